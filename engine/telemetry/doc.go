// Package telemetry turns what the engine did into what people and clients
// read: rounds, request summaries, totals, the roofline, verdicts, and the
// event stream that carries them.
//
// What lives here: the per-round record and its ring ([Log]); the summary of
// one request, the x_mlx_dspark block ([Request.Summary]), and the totals over
// all ([Totals]); memory-bandwidth arithmetic ([Chip], [Roofline],
// [BaselineMBU], [WeightFootprint]) and the verdict on a machine
// ([VerdictInput.Verdict]); the comparison of race arms ([CompareArms]); the
// event broker ([Bus]).
//
// What must never live here: reading the machine (that is engine/machine),
// HTTP, models, clocks of its own. Times are passed in. JSON field names are
// the wire contract of the HTTP routes and must not change.
//
// Log, Totals and Bus are safe for concurrent use; recording never blocks on
// a reader.
//
// Read [Log] first, then [Bus].
package telemetry
