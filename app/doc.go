// Command sparkbar is the program: a server for local language models
// (`sparkbar serve`, and what plain `sparkbar` does where there is no menu bar;
// on macOS plain `sparkbar` is the menu-bar app), a terminal chat, the menu as a
// page (`sparkbar top`), and the command line around them.
//
// Here live flags and environment (cobra, viper), the settings file, the life of
// the process (listening, signals, draining; of the app: sleep, crashes, updates)
// and what is printed on a terminal. Commands that talk to a server use httpapi's
// client. Those that work without one (generate, benchmark, calibrate, plan) make
// an engine in this process and use it directly.
//
// Never here: HTTP handlers, inference, what the menu shows (app/menubar) and how
// it is drawn (app/cocoa).
//
// Read first: serve.go, then desktop.go for the app.
package main
