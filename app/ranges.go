package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"sparkbar/engine/cpu"
)

// numberRange is what a flag may be. A value that cannot be is the fault of who
// starts the program, and must not become that of every client.
type numberRange struct {
	flag   string
	lo, hi float64
	only   []float64 // beside lo to hi, or instead where lo is above hi
}

var ranges = []numberRange{
	{"confidence-threshold", 0, 1, nil},
	{"context-window", 16, 10_000_000, []float64{0}},
	{"kv-bits", 1, 0, []float64{0, 4, 8}},
	{"kv-group-size", 1, 0, []float64{32, 64, 128}},
	{"drafter-bits", 1, 0, []float64{0, 2, 3, 4, 5, 6, 8}},
	{"cpu-split", 0, 0.99, nil},
	{"drafter-window", 0, math.MaxInt32, nil},
	{"lookup-long-draft", 1, 64, nil},
	{"prefill-step-size", 0, math.MaxInt32, nil},
	{"port", 0, 65535, nil},
	{"default-max-tokens", 1, math.MaxInt32, nil},
	{"max-tokens-cap", 1, math.MaxInt32, nil},
	{"default-temperature", 0, math.MaxFloat32, nil},
	{"default-top-p", 0, 1, nil},
	{"default-min-p", 0, 1, nil},
	{"prefix-cache-slots", 0, math.MaxInt32, nil},
	{"prefix-cache-disk", 0, math.MaxFloat32, nil},
	{"max-batch", 1, 1024, nil},
	{"queue-limit", 1, 100_000, nil},
	{"memory-bandwidth", 0, math.MaxFloat32, nil},
	{"threads", 0, cpu.MaxThreads, nil},
	{"temperature", 0, math.MaxFloat32, nil},
	{"top-p", 0, 1, nil},
	{"max-new-tokens", 1, math.MaxInt32, nil},
	{"idle-unload", 0, math.MaxFloat64, nil}, // nanoseconds
}

// checkRanges reports the first number that cannot be, as the command line's fault.
func checkRanges(v *config) error {
	for _, r := range ranges {
		if v.flags.Lookup(r.flag) == nil || !v.given(r.flag) {
			continue
		}
		x := v.GetFloat64(r.flag)
		if r.flag == "idle-unload" {
			x = float64(v.GetDuration(r.flag))
		}
		if x >= r.lo && x <= r.hi || slices.Contains(r.only, x) {
			continue
		}
		return &usageError{fmt.Errorf("--%s must be %s, got %s", r.flag, r.rule(), v.GetString(r.flag))}
	}
	return nil
}

// rule says what the flag may be.
func (r numberRange) rule() string {
	var list []string
	for _, x := range r.only {
		list = append(list, strconv.FormatFloat(x, 'f', -1, 64))
	}
	if r.lo > r.hi {
		return "one of " + strings.Join(list, ", ")
	}
	text := "at least " + strconv.FormatFloat(r.lo, 'f', -1, 64)
	if r.hi < math.MaxInt32 {
		text = strconv.FormatFloat(r.lo, 'f', -1, 64) + " to " + strconv.FormatFloat(r.hi, 'f', -1, 64)
	}
	if len(list) > 0 {
		text += ", or " + strings.Join(list, ", ")
	}
	return text
}
