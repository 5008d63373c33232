// Package httpapi is the HTTP face of the engine: OpenAI Chat Completions,
// Completions and Responses, Anthropic Messages, the control plane under
// /admin, the telemetry routes and the files of the dashboard.
//
// What lives here: decoding and validation of requests, the wire types beside
// the handler that speaks them (chat.go, completions.go, messages.go,
// responses.go, models.go, control.go, downloads.go, telemetry.go, owner.go), the
// description of them all (openapi.go), one error envelope per dialect
// (errors.go), event streams (sse.go), and the guards that every request passes
// (middleware.go: Host, Origin, keys, body size).
//
// What must never live here: prompt templates, tokenizing, parsing of model
// output, scheduling, model files. All of that is behind the [Engine]
// interface; this package never looks inside a token.
//
// Every generation takes the same road: a handler turns the body into an
// engine.Request, generation.go runs it, and the handler's writer turns the
// deltas into frames of its dialect. A request is validated before the first
// byte of the answer is sent, so a bad one always gets a real status.
//
// Constants that differ between the wire profiles are fields of [Profile];
// nothing else in the package asks which profile is on.
//
// Read [Server] first, then chat.go.
package httpapi
