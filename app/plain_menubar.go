//go:build (darwin && cgo) || double

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sparkbar/app/cocoa"
	"sparkbar/app/menubar"
	"sparkbar/httpapi"
	"sparkbar/httpapi/client"
)

// logLimit is the size at which the log file is begun anew.
const logLimit = 10 << 20

// plain is what `sparkbar` without a command does on macOS: the menu bar with
// the server in the same process. serve's flags and environment apply.
func plain(serve *cobra.Command) error {
	v, err := bind(serve)
	if err != nil {
		return err
	}
	load, err := loadRequest(v)
	if err != nil {
		return err
	}
	apiKeys, err := keys(v)
	if err != nil {
		return err
	}
	profile, ok := profiles[v.GetString("compat")]
	if !ok {
		return &usageError{fmt.Errorf("--compat must be sparkbar or mlx-lm, got '%s'", v.GetString("compat"))}
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
	log, logFile, err := openLog(dir)
	if err != nil {
		return err
	}
	defer logFile.Close()

	eng, err := newEngine(v, load)
	if err != nil {
		return err
	}
	options := httpapi.Options{AllowedHosts: v.list("allow-host"), CORSOrigins: v.list("cors-origin"), Profile: profile(), Settings: v.file}
	handler := func(keys []string) *httpapi.Server {
		o := options
		o.Keys, o.Log = keys, log
		return httpapi.New(eng, o)
	}
	net := &listeners{handler: handler, port: v.GetInt("port"), chosen: v.IsSet("port"), keys: apiKeys, secret: secret, hosts: networkHosts, log: log}
	inside := httpapi.New(eng, options) // for the menu: it never stops, asks for no key, and logs no refresh
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := v.follow(ctx, eng, log); err != nil {
		log.Warn("changes of the settings file will not be noticed", "error", err)
	}
	var ctl *menubar.Controller
	cocoa.Run(cocoa.Options{
		Log: log, LogFile: logFile.Name(), Grace: 15 * time.Second,
		Menu: func(host menubar.Host) *menubar.Controller {
			app := host.(*cocoa.App)
			ctl = menubar.New(menubar.Options{Client: client.InProcess(inside, ""), Host: host, Server: net, Changed: app.Changed})
			go ctl.Run(ctx)
			go func() {
				if err := net.Start(0); err != nil {
					log.Error("the server could not start", "error", err)
					if taken, ok := err.(menubar.PortTaken); ok {
						ctl.Apply(taken)
					}
				}
				ctl.Apply(menubar.ServerSeen(net.State()))
				if v.GetBool("no-model") {
					return
				}
				if _, err := eng.LoadFrom(ctx, load); err != nil && ctx.Err() == nil {
					log.Error("the model could not be loaded", "model", load.Model, "error", err)
				}
			}()
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
		Woke: func() { ctl.Apply(menubar.ServerSeen(net.State())) },
		Quit: func(now bool) {
			if now {
				cancel()
			}
			if err := net.Stop(); err != nil {
				log.Error("stopping", "error", err)
			}
			end, done := context.WithTimeout(context.Background(), 5*time.Second)
			defer done()
			if err := eng.Close(end); err != nil {
				log.Error("the engine did not end well", "error", err)
			}
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

// openLog opens the log file; one that has grown large is kept once.
func openLog(dir string) (*slog.Logger, *os.File, error) {
	path := filepath.Join(dir, "sparkbar.log")
	if info, err := os.Stat(path); err == nil && info.Size() > logLimit {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	return slog.New(slog.NewTextHandler(f, nil)), f, nil
}
