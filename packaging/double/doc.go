// Package double runs the app of the menu bar on Linux: the real app/cocoa and
// darwinkit's messaging core, against a double of AppKit written here.
//
// GNUstep's Foundation is real (strings, arrays, dictionaries); double.m is the
// rest: a status bar, menus, alerts, a pasteboard, windows that draw nothing,
// the Keychain as a dictionary, and what Apple's Objective-C runtime has and
// GCC's has not. It reads commands from its input, one a line, and answers each
// with a line of JSON; the test drives it like a user: it opens the menu, clicks
// items by their identifier, answers dialogs, reads titles back.
//
// Never here: anything that the product needs.
//
// Read first: double_test.go.
package double
