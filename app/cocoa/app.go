//go:build darwin || double

package cocoa

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/progrium/darwinkit/objc"

	"sparkbar/app/menubar"
)

func init() { runtime.LockOSThread() } // AppKit wants the first thread

// Options of the app.
type Options struct {
	// Menu makes the Controller for this app as its Host.
	Menu func(host menubar.Host) *menubar.Controller
	// Quit ends the server and returns when it is gone; with now, running
	// requests are not waited for. The program ends after it, or after Grace.
	Quit func(now bool)
	// Grace is how long Quit may take before the program ends all the same; when
	// the system ends, it is systemGrace.
	Grace func() time.Duration
	// LogFile is shown on demand; "" = there is none.
	LogFile string
	Log     *slog.Logger
	// Dashboard is the address of a screen of the window, "" = its first one.
	// hidden tells that the user cannot see the menu bar item.
	Dashboard func(screen string, hidden bool) string
	// Sleeps is called before the computer falls asleep, which waits for it, but
	// not longer than sleepGrace. Woke is called after the sleep.
	Sleeps, Woke func()
}

// How long the computer is kept from sleeping, and from shutting down.
const (
	sleepGrace  = 2 * time.Second
	systemGrace = 4 * time.Second
)

// App is the app of the menu bar. It is the menubar.Host.
type App struct {
	o    Options
	menu *menubar.Controller

	// Main thread only:
	application, item, button, bar objc.Object
	window                         objc.Object
	rendered                       menu
	shown                          menubar.StatusTitle
	activity                       objc.Object
	hidden                         bool // the item was not to be seen at the start

	now, quitting bool

	mu   sync.Mutex
	work []func()
}

// current is the app of this process; callbacks of the system go to it.
var current *App

// Run shows the app and returns when it is told to quit. It must be called on
// the main goroutine, once.
func Run(o Options) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	a := &App{o: o}
	current = a
	objc.WithAutoreleasePool(func() {
		a.application = send[objc.Object](class("NSApplication"), "sharedApplication")
		send[bool](a.application, "setActivationPolicy:", policyAccessory)
		send[objc.Void](a.application, "setDelegate:", delegate())
		a.menu = o.Menu(a)
	})
	send[objc.Void](a.application, "run")
}

// Values of AppKit's enumerations.
const (
	policyRegular   = 0
	policyAccessory = 1
	imageLeft       = 2
	alertFirst      = 1000
	// user initiated, idle system sleep disabled
	activityOptions = 0x00FFFFFF | 1<<20
	terminateCancel = 0
	terminateNow    = 1
	terminateLater  = 2
	// of NSEventModifierFlags and NSWindowOcclusionState
	optionKey        = 1 << 19
	commandKey       = 1 << 20
	shiftKey         = 1 << 17
	occlusionVisible = 1 << 1
)

// guarded runs f; a panic is logged and goes no further.
func guarded(what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			log := slog.Default()
			if current != nil {
				log = current.o.Log
			}
			log.Error("the menu bar caught a fault", "in", what, "fault", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	f()
}

// onMain runs f on the main thread, soon.
func (a *App) onMain(f func()) {
	a.mu.Lock()
	a.work = append(a.work, f)
	a.mu.Unlock()
	wakeMain()
}

// event answers what the system tells; the result counts for eventTerminate.
func (a *App) event(kind, arg int) int {
	switch kind {
	case eventLaunched:
		a.build()
	case eventTerminate:
		return a.terminate()
	case eventReopen: // opened from Finder: the way in when the item is hidden
		a.revive()
		a.show("")
	case eventMenuOpens:
		a.menu.Apply(menubar.OptionKey(send[uint](class("NSEvent"), "modifierFlags")&optionKey != 0))
		a.menu.Open()
		a.render()
	case eventMenuCloses:
		a.menu.Close()
	case eventClick:
		if it, ok := a.rendered.at(arg); ok {
			a.menu.Click(it.ID, it.Arg)
		}
	case eventWindowCloses: // the Dock icon goes with the window
		send[bool](a.application, "setActivationPolicy:", policyAccessory)
	case eventSleep:
		a.o.Log.Info("the computer falls asleep")
		if a.o.Sleeps != nil {
			done := make(chan struct{})
			go guarded("sleep", func() { defer close(done); a.o.Sleeps() })
			select {
			case <-done:
			case <-time.After(sleepGrace):
			}
		}
	case eventWake:
		a.revive()
		if a.o.Woke != nil {
			go guarded("wake", a.o.Woke)
		}
	case eventWork:
		a.mu.Lock()
		work := a.work
		a.work = nil
		a.mu.Unlock()
		for _, f := range work {
			guarded("work", f)
		}
	}
	return 0
}

// build makes the status item and its menu.
func (a *App) build() {
	a.bar = send[objc.Object](class("NSStatusBar"), "systemStatusBar")
	a.rendered = newMenu()
	a.place()
	center := send[objc.Object](send[objc.Object](class("NSWorkspace"), "sharedWorkspace"), "notificationCenter")
	watchPower(center)
	send[objc.Void](a.application, "setMainMenu:", a.mainMenu())
	a.render()
	if !launchedAtLogin() {
		time.AfterFunc(lookAfter, func() { a.onMain(a.look) })
	}
}

// lookAfter is when a user who has opened the app by hand has seen its item, if
// it can be seen.
const lookAfter = 3 * time.Second

// look finds out whether the item is to be seen; if it is not, the dashboard
// says so when it is opened. That is all: nobody is interrupted.
func (a *App) look() {
	window := send[objc.Object](a.button, "window")
	a.hidden = !send[bool](a.item, "isVisible") || window.IsNil() || send[uint](window, "occlusionState")&occlusionVisible == 0
	if a.hidden {
		a.o.Log.Info("the menu bar item is hidden by the system or by a program that tidies the menu bar")
	}
}

// place puts the item into the menu bar.
func (a *App) place() {
	a.item = send[objc.Object](a.bar, "statusItemWithLength:", float64(-1))
	a.item.Retain() // the bar does not keep it
	send[objc.Void](a.item, "setAutosaveName:", "sparkbar")
	a.button = send[objc.Object](a.item, "button")
	send[objc.Void](a.button, "setImagePosition:", imageLeft)
	send[objc.Void](a.item, "setMenu:", a.rendered.object)
	a.shown = menubar.StatusTitle{}
}

// revive makes the status item anew when the system has hidden it.
func (a *App) revive() {
	if a.item.IsNil() || send[bool](a.item, "isVisible") {
		return
	}
	a.o.Log.Info("the menu bar item was hidden; it is made anew")
	send[objc.Void](a.bar, "removeStatusItem:", a.item)
	a.item.Release()
	a.place()
	a.render()
}

// Changed redraws; the Controller calls it.
func (a *App) Changed() { a.onMain(a.render) }

// render brings the menu bar to what the Controller says.
func (a *App) render() {
	if a.menu == nil || a.item.IsNil() {
		return
	}
	title, tree := a.menu.View()
	if title.Glyph != a.shown.Glyph || title.Frame != a.shown.Frame {
		image := template(glyph(title.Glyph, title.Frame))
		send[objc.Void](a.button, "setImage:", image)
		image.Release() // the button keeps it
	}
	if title.Glyph != a.shown.Glyph {
		send[objc.Void](a.button, "setAppearsDisabled:", title.Glyph == menubar.GlyphDimmed)
	}
	if title.Text != a.shown.Text || title.Width != a.shown.Width {
		// Figure spaces are as wide as digits.
		text := title.Text + strings.Repeat("\u2007", max(title.Width-len([]rune(title.Text)), 0))
		if text != "" {
			text = " " + text
		}
		send[objc.Void](a.button, "setTitle:", text)
	}
	if title.Label != a.shown.Label {
		send[objc.Void](a.button, "setToolTip:", title.Label)
		send[objc.Void](a.button, "setAccessibilityLabel:", title.Label)
	}
	a.shown = title
	a.rendered.update(tree)
}

// template makes an image of which only the alpha counts; it must be released.
func template(png []byte) objc.Object {
	image := send[objc.Object](send[objc.Object](class("NSImage"), "alloc"), "initWithData:", png)
	send[objc.Void](image, "setTemplate:", true)
	return image
}

// terminate is the system's question whether the app may end: later, when the
// server has ended, but within the grace. Asked again, at once.
func (a *App) terminate() int {
	if a.quitting {
		return terminateNow
	}
	a.quitting = true
	now, grace := a.now, a.o.Grace()
	if endedBySystem() { // a logout, restart or shutdown waits for every app
		now, grace = true, systemGrace
	}
	done := make(chan struct{})
	go guarded("quit", func() {
		defer close(done)
		if a.o.Quit != nil {
			a.o.Quit(now)
		}
	})
	go func() {
		select {
		case <-done:
		case <-time.After(grace):
		}
		a.onMain(func() { send[objc.Void](a.application, "replyToApplicationShouldTerminate:", true) })
	}()
	return terminateLater
}

// show opens the dashboard at a screen.
func (a *App) show(screen string) {
	if a.window.IsNil() {
		a.window = newWindow()
	}
	loadWindow(a.window, a.o.Dashboard(screen, a.hidden))
	send[bool](a.application, "setActivationPolicy:", policyRegular)
	send[objc.Void](a.window, "makeKeyAndOrderFront:", objc.Object{})
	send[objc.Void](a.application, "activateIgnoringOtherApps:", true)
}

// What follows is the menubar.Host.

// Features tells that this host can do everything.
func (a *App) Features() menubar.HostFeatures {
	return menubar.HostFeatures{Window: true, Reveal: true, Login: true, Server: true, Quit: true}
}

// Copy puts text on the pasteboard.
func (a *App) Copy(text string) error {
	return a.ask(func() error {
		board := send[objc.Object](class("NSPasteboard"), "generalPasteboard")
		send[int](board, "clearContents")
		if !send[bool](board, "setString:forType:", text, "public.utf8-plain-text") {
			return errors.New("macOS did not take the text to copy")
		}
		return nil
	})
}

// ask runs f on the main thread and waits for its answer. It must not be called
// there.
func (a *App) ask(f func() error) error {
	answer := make(chan error, 1)
	a.onMain(func() {
		err := errors.New("the app could not do this; its log says why") // if f panics
		defer func() { answer <- err }()
		err = f()
	})
	return <-answer
}

// Open shows the dashboard.
func (a *App) Open(screen string) error {
	a.onMain(func() { a.show(screen) })
	return nil
}

// Browse opens a page in the user's browser.
func (a *App) Browse(page string) error {
	return a.ask(func() error {
		u := send[objc.Object](class("NSURL"), "URLWithString:", page)
		if u.IsNil() || !send[bool](workspace(), "openURL:", u) {
			return fmt.Errorf("%s cannot be opened", page)
		}
		return nil
	})
}

func workspace() objc.Object { return send[objc.Object](class("NSWorkspace"), "sharedWorkspace") }

// Reveal shows a file in Finder.
func (a *App) Reveal(path string) error {
	return a.ask(func() error {
		if !send[bool](workspace(), "selectFile:inFileViewerRootedAtPath:", path, "") {
			return fmt.Errorf("%s cannot be shown", path)
		}
		return nil
	})
}

// Trash moves a folder to the Trash.
func (a *App) Trash(path string) error {
	return a.ask(func() error {
		u := send[objc.Object](class("NSURL"), "fileURLWithPath:", path)
		files := send[objc.Object](class("NSFileManager"), "defaultManager")
		if !send[bool](files, "trashItemAtURL:resultingItemURL:error:", u, objc.Object{}, objc.Object{}) {
			return fmt.Errorf("%s could not be moved to the Trash", path)
		}
		return nil
	})
}

// Log shows the log file.
func (a *App) Log() error {
	if a.o.LogFile == "" {
		return errors.New("no log file is kept")
	}
	return a.Reveal(a.o.LogFile)
}

// Edit opens a file in its editor.
func (a *App) Edit(path string) error {
	return a.ask(func() error {
		u := send[objc.Object](class("NSURL"), "fileURLWithPath:", path)
		if !send[bool](workspace(), "openURL:", u) {
			return fmt.Errorf("%s cannot be opened", path)
		}
		return nil
	})
}

// Notify shows a notification.
func (a *App) Notify(title, text string) error {
	a.onMain(func() { notify(title, text) })
	return nil
}

// Login tells about the login item.
func (a *App) Login() menubar.LoginItem {
	switch loginStatus() {
	case 0:
		return menubar.LoginOff
	case 1:
		return menubar.LoginOn
	case 2:
		return menubar.LoginNeedsApproval
	}
	return menubar.LoginUnavailable
}

// SetLogin changes the login item.
func (a *App) SetLogin(on bool) error { return setLogin(on) }

// LoginSettings opens the system's list of login items.
func (a *App) LoginSettings() error {
	a.onMain(openLoginSettings)
	return nil
}

// Awake holds the computer awake while it works.
func (a *App) Awake(on bool) {
	a.onMain(func() {
		process := send[objc.Object](class("NSProcessInfo"), "processInfo")
		switch {
		case on && a.activity.IsNil():
			a.activity = send[objc.Object](process, "beginActivityWithOptions:reason:", uint64(activityOptions), "A request or a download is under way")
			a.activity.Retain()
		case !on && !a.activity.IsNil():
			send[objc.Void](process, "endActivity:", a.activity)
			a.activity.Release()
			a.activity = objc.Object{}
		}
	})
}

// Battery is the charge of the battery in percent, -1 while the computer does
// not run on one.
func (a *App) Battery() int { return battery() }

// Ask shows a dialog.
func (a *App) Ask(d menubar.Dialog) {
	a.onMain(func() {
		answer := -1
		defer func() { a.menu.Answer(answer) }()
		alert := send[objc.Object](send[objc.Object](class("NSAlert"), "alloc"), "init")
		defer alert.Release()
		send[objc.Void](alert, "setMessageText:", d.Title)
		send[objc.Void](alert, "setInformativeText:", d.Text)
		for i, b := range d.Buttons {
			button := send[objc.Object](alert, "addButtonWithTitle:", b.Title)
			if b.Effect.Do == menubar.VerbNothing && i > 0 {
				send[objc.Void](button, "setKeyEquivalent:", "\x1b")
			}
		}
		send[objc.Void](a.application, "activateIgnoringOtherApps:", true)
		answer = send[int](alert, "runModal") - alertFirst
	})
}

// Quit ends the program.
func (a *App) Quit(now bool) {
	a.onMain(func() {
		a.now = now
		send[objc.Void](a.application, "terminate:", objc.Object{})
	})
}
