// Package machine reads facts of the computer: chip and cores, memory and how
// short it is, how fast memory is read. Readings are cheap (the bandwidth is
// measured once and kept in a file) and never fail: what the system does not
// tell is zero or Unknown. Guard decides from readings when memory must be given
// back.
//
// Never here: giving memory back and other policies (engine), arithmetic on
// bandwidth and the table of Apple's chips (engine/telemetry).
//
// Read first: Memory.
package machine
