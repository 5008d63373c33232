// Package menubar is the menu of Sparkbar without a screen: what it shows and
// what its items do, the same for the menu bar of macOS and for a terminal.
//
// [State] is everything that the menu depends on. It changes only by
// [State.Apply], which takes one [Event] and the time. From a State follow, by
// pure functions, the items ([Menu]), the text beside the icon ([Title]), and
// what a click means ([Click]): an [Effect] to carry out, or a [Dialog] to ask
// first. [Controller] feeds events from the server into the State and carries
// effects out, through httpapi/client alone and a few things that only the
// place it runs in can do ([Host], [Server]).
//
// The rules of each item are written down in testdata/items.tsv, which the
// tests hold against the code in every state.
//
// Never here: AppKit, terminals, HTTP beyond the client, clocks other than the
// times handed in.
//
// Read first: State, then Menu.
package menubar
