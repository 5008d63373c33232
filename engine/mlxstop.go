package engine

import (
	"slices"
	"strings"
)

// mlxStop is how mlx_lm.server treats stop strings: a generation ends where the
// tokens of a stop string, encoded alone, come in a row; elsewhere a stop
// string is only cut out of the text.
type mlxStop struct {
	stops   []string
	ids     [][]int32
	recent  []int32 // as many tokens as the longest stop has
	held    string  // may be the beginning of a stop string
	matched string  // the one that ended the generation
}

func newMLXStop(stops []string, encode func(string) []int32) *mlxStop {
	m := &mlxStop{}
	for _, s := range stops {
		if s != "" {
			m.stops, m.ids = append(m.stops, s), append(m.ids, encode(s))
		}
	}
	return m
}

// token takes the next token and reports whether it completes a stop.
func (m *mlxStop) token(id int32) bool {
	longest := 0
	for _, ids := range m.ids {
		longest = max(longest, len(ids))
	}
	m.recent = append(m.recent, id)
	m.recent = m.recent[max(0, len(m.recent)-longest):]
	for i, ids := range m.ids {
		if n := len(m.recent) - len(ids); len(ids) > 0 && n >= 0 && slices.Equal(m.recent[n:], ids) {
			m.matched = m.stops[i]
			return true
		}
	}
	return false
}

// cut takes the next text and returns what is certain to be shown.
func (m *mlxStop) cut(text string) string {
	var out strings.Builder
	rest := m.held + text
	for {
		at, length := -1, 0
		for _, s := range m.stops {
			if i := strings.Index(rest, s); i >= 0 && (at < 0 || i < at || i == at && len(s) > length) {
				at, length = i, len(s)
			}
		}
		if at < 0 {
			break
		}
		out.WriteString(rest[:at])
		rest = rest[at+length:]
	}
	keep := 0
	for _, s := range m.stops {
		for n := min(len(s)-1, len(rest)); n > keep; n-- {
			if strings.HasSuffix(rest, s[:n]) {
				keep = n
			}
		}
	}
	m.held = rest[len(rest)-keep:]
	out.WriteString(rest[:len(rest)-keep])
	return out.String()
}
