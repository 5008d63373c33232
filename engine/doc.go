// Package engine is the control plane: it loads, swaps and unloads models,
// admits requests, turns messages into tokens and tokens into text, reasoning
// and tool calls, and tells everybody what happens. HTTP handlers, the menu
// bar and the command line are views of it.
//
// Its state machine (State) is the single source of truth; every change is an
// event on the bus that Events subscribes to. One goroutine, locked to its
// thread, owns the device (the loop of engine/decode).
//
// Never here: HTTP, wire dialects, settings files, menus (httpapi, app); kernels
// and model families (the sub-packages).
//
// Read first: Engine, then Request and Result in api.go.
package engine
