// Package cocoa draws the menu of app/menubar in the menu bar of macOS and
// carries clicks back. It decides nothing: titles, order, what is enabled and
// what a click means come from there.
//
// It sends Objective-C messages through darwinkit's messaging core (objc.Call),
// and only to the classes named here; darwinkit's generated bindings of whole
// frameworks would more than double the size of the program. What the system
// calls back, and what darwinkit has no bindings for (login item, notifications,
// Keychain, the window with the dashboard), is in bridge.m. The copy of
// darwinkit must be the one that packaging repairs; with another one this
// package does not compile.
//
// Everything here runs on the main thread; other goroutines hand work over with
// onMain. Objects that live as long as the app are retained once and kept in
// [App]; nothing else is kept.
//
// Never here: decisions, HTTP, texts of the menu.
//
// Read first: App.
package cocoa
