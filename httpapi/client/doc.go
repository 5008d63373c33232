// Package client is a typed client of the server's own HTTP routes: loads and
// unloads, status, telemetry and chat.
//
// What lives here: [Client], which speaks to a server over TCP ([New]) or to a
// handler of the same process ([InProcess]) in exactly the same way; the
// decoded answers; a reader of event streams.
//
// What must never live here: rules of the server, knowledge of the engine's
// insides, state between calls. The menu bar and the command line see the
// engine through this package only.
//
// An answer that is not a success is an [*Error] with the server's status,
// type and message.
//
// Read [Client] first.
package client
