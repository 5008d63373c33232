package engine

import (
	"strings"
	"testing"
)

func TestMLXStop(t *testing.T) {
	m := newMLXStop([]string{"mall mod", "", "xy"}, func(s string) []int32 { return []int32{int32(len(s)), 9} })
	var out strings.Builder
	for _, piece := range []string{"a s", "mal", "l mo", "del x", "xyz ma", "ll"} {
		out.WriteString(m.cut(piece))
	}
	if got := out.String() + "|" + m.held; got != "a sel xz |mall" {
		t.Errorf("%q", got)
	}
	for i, want := range []bool{false, false, false, true} {
		if got := m.token([]int32{2, 8, 2, 9}[i]); got != want {
			t.Errorf("token %d: %v", i, got)
		}
	}
	if m.matched != "xy" {
		t.Errorf("%q", m.matched)
	}
}

// FuzzMLXStop: cutting does not depend on how the text comes in pieces.
func FuzzMLXStop(f *testing.F) {
	f.Add("one two three", "two", 3)
	f.Add("aabaab", "aab", 1)
	f.Fuzz(func(t *testing.T, text, stop string, n int) {
		if n < 1 {
			return
		}
		none := func(string) []int32 { return nil }
		whole := newMLXStop([]string{stop}, none)
		want := whole.cut(text) + whole.held
		pieces := newMLXStop([]string{stop}, none)
		var got strings.Builder
		for i := 0; i < len(text); i += min(n, len(text)-i) {
			got.WriteString(pieces.cut(text[i : i+min(n, len(text)-i)]))
		}
		if got.String()+pieces.held != want {
			t.Errorf("%q without %q: %q, want %q", text, stop, got.String()+pieces.held, want)
		}
	})
}
