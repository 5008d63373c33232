// Package calibrate answers one question: how many drafted tokens should the
// target verify per round?
//
// What lives here: measured cost curves and their JSON form ([Curve],
// [Costs]); the cost model and the caps derived from it ([Costs.Rate],
// [Costs.BestCap], [Costs.CapAtDepth]); the knee report; the controller
// behind --max-draft auto, which follows acceptance and measured time and may
// park speculation altogether ([Controller], for each request anew with
// [Controller.Begin]); the confidence cut of a drafted
// block ([ConfidenceRule]).
//
// What must never live here: clocks, models, files. Times are passed in, in
// milliseconds; whoever measures and stores them does that elsewhere.
//
// Words: the cap C is the number of drafted tokens verified per round, the
// width is C+1 (the pending token comes first), p is the chance that a draft
// is accepted given that all before it were, depth is the number of context
// tokens.
//
// Read [Costs] first.
package calibrate
