package jinja

// Limits bound what one template may use. A zero field means the default.
type Limits struct {
	Source int   // bytes of template source
	Steps  int64 // evaluated nodes, loop turns, compared or copied items
	Depth  int   // nesting of expressions, blocks, macro calls and values
	Output int   // bytes of rendered text
	Value  int   // bytes of one string, or 16 times the items of one list, that the template builds
	Total  int64 // bytes of all values that one rendering builds
	Range  int   // items of one range()
}

// DefaultLimits are far above what any published chat template needs for a
// conversation that fills a million-token window.
var DefaultLimits = Limits{
	Source: 1 << 20,
	Steps:  50_000_000,
	Depth:  4000,
	Output: 64 << 20,
	Value:  64 << 20,
	Total:  4 << 30,
	Range:  100_000,
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	pick(&l.Source, d.Source)
	pick(&l.Steps, d.Steps)
	pick(&l.Depth, d.Depth)
	pick(&l.Output, d.Output)
	pick(&l.Value, d.Value)
	pick(&l.Total, d.Total)
	pick(&l.Range, d.Range)
	return l
}

func pick[T int | int64](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
