package chat

import "strings"

// Stopper finds stop strings in text that arrives in pieces. It ends at the
// match that is complete first (of several complete at the same character, the
// longest), however the text is cut into pieces, and passes on no character
// that could still belong to a match.
type Stopper struct {
	stops   []string
	held    string // text not passed on: a proper prefix of a stop string
	matched string
}

// NewStopper returns a Stopper for the given stop strings; empty ones are
// ignored.
func NewStopper(stops []string) *Stopper {
	s := &Stopper{}
	for _, t := range stops {
		if t != "" {
			s.stops = append(s.stops, t)
		}
	}
	return s
}

// Feed takes the next piece of text and returns what may be shown. Once hit is
// true, safe is the last text before the stop string; later calls return
// nothing.
func (s *Stopper) Feed(piece string) (safe string, hit bool) {
	if s.matched != "" {
		return "", true
	}
	text := s.held + piece
	end, start := len(text)+1, 0
	for _, t := range s.stops {
		i := strings.Index(text, t)
		if i < 0 {
			continue
		}
		if e := i + len(t); e < end || e == end && i < start {
			end, start, s.matched = e, i, t
		}
	}
	if s.matched != "" {
		s.held = ""
		return text[:start], true
	}
	n := heldBack(text, s.stops)
	s.held = text[len(text)-n:]
	return text[:len(text)-n], false
}

// Flush returns the text still held back, unchanged, when no more will come.
func (s *Stopper) Flush() string {
	held := s.held
	s.held = ""
	return held
}

// Matched returns the stop string that was hit, or "".
func (s *Stopper) Matched() string { return s.matched }

// heldBack returns the length of the longest end of text that is the beginning
// of a marker but not all of it.
func heldBack(text string, markers []string) int {
	longest := 0
	for _, m := range markers {
		for n := min(len(m)-1, len(text)); n > longest; n-- {
			if strings.HasPrefix(m, text[len(text)-n:]) {
				longest = n
				break
			}
		}
	}
	return longest
}
