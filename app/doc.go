// Command sparkbar is the program: a server for local language models
// (`sparkbar serve`, and what plain `sparkbar` does where there is no menu bar;
// on macOS plain `sparkbar` is the menu-bar app), a terminal chat, the menu as a
// page (`sparkbar top`), and the command line around them.
//
// Here live flags and environment (cobra, viper), the life of the process
// (listening, signals, draining) and what is printed on a terminal. Everything
// else is reached through httpapi and its client; nothing here reaches around
// them into the engine, except to make one.
//
// Never here: HTTP handlers, inference, model files.
//
// Read first: serve.go.
package main
