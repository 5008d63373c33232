// Package machine reads facts of the computer: memory now available, cores that
// this process may use. Readings are cheap and never fail: what the system does
// not tell is zero.
//
// Never here: policies about these facts (engine), arithmetic on bandwidth
// (engine/telemetry).
//
// Read first: Memory.
package machine
