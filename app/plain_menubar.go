//go:build (darwin && cgo) || double

package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sparkbar/app/cocoa"
	"sparkbar/app/menubar"
)

// plain is what `sparkbar` without a command does on macOS: the menu bar with
// the server in the same process. serve's flags and environment apply.
func plain(serve *cobra.Command) error {
	v, err := bind(serve)
	if err != nil {
		return err
	}
	dir := filepath.Dir(v.file.path)
	shown := make(chan struct{}, 1)
	first, release, err := single(dir, func() {
		select {
		case shown <- struct{}{}:
		default:
		}
	})
	if err != nil || !first {
		return err
	}
	defer release()
	out, err := openLog(dir, logLimit)
	if err != nil {
		return err
	}
	defer out.Close()
	d, err := newDesktop(v, dir, out, secret)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cocoa.Run(cocoa.Options{
		Log: d.log, LogFile: out.path, Dashboard: d.dashboard,
		Grace: func() time.Duration { return d.grace() + 10*time.Second },
		Menu: func(host menubar.Host) *menubar.Controller {
			app := host.(*cocoa.App)
			ctl := d.menu(host, app.Changed)
			go d.run(ctx)
			go func() {
				for range shown {
					_ = app.Open("") // it only queues
				}
			}()
			stop := make(chan os.Signal, 1)
			signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
			go func() {
				<-stop
				app.Quit(false)
			}()
			return ctl
		},
		Sleeps: d.sleeps,
		Woke:   d.woke,
		Quit: func(now bool) {
			cancel()
			d.quit(now)
		},
	})
	return nil
}

// secret is the key that other devices present; it lives in the Keychain.
func secret() (string, error) {
	if k := cocoa.Key(); k != "" {
		return k, nil
	}
	k := newKey()
	return k, cocoa.SetKey(k)
}

// savedKey is the key of the Keychain.
func savedKey() (string, error) {
	if k := cocoa.Key(); k != "" {
		return k, nil
	}
	return "", errors.New("server.api_key says that the key is in the Keychain, and there is none; turn on Available on Local Network in the app, or set another key")
}
