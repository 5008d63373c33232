package menubar

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
)

// titleLimit is the longest title in characters.
const titleLimit = 64

// nameLimit is the longest name of a model within a title.
const nameLimit = 34

const gib = 1 << 30

// gigabytes writes bytes with one decimal, without the unit.
func gigabytes[T int64 | uint64](b T) string { return fmt.Sprintf("%.1f", float64(b)/gib) }

// speed writes a rate: whole from 10 on, one decimal below.
func speed(r float64) string {
	if r >= 9.95 {
		return strconv.Itoa(int(math.Round(r)))
	}
	return fmt.Sprintf("%.1f", max(r, 0))
}

func percent(done, total int64) string {
	if total <= 0 {
		return ""
	}
	return strconv.FormatInt(min(max(100*done/total, 0), 100), 10) + "%"
}

// name is the last part of a repo or path, cut in its middle when it is long.
func name(id string) string {
	if b := path.Base(strings.TrimRight(id, "/")); b != "." && b != "/" {
		id = b
	}
	return middle(id, nameLimit)
}

// middle shortens text to n characters by leaving out its middle. Line ends and
// other control characters, which a menu cannot show, become spaces.
func middle(text string, n int) string {
	r := []rune(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, text))
	if len(r) <= n {
		return string(r)
	}
	head := (n - 1 + 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
}

// sentence is the first sentence of a message.
func sentence(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if i := strings.Index(s, ". "); i > 0 {
		s = s[:i]
	}
	return strings.TrimSuffix(s, ".")
}

// eta is how long a download will take, in words.
func eta(t *Transfer) string {
	if t.Total <= 0 || t.Speed <= 0 {
		return ""
	}
	left := time.Duration(float64(t.Total-t.Done)/t.Speed) * time.Second
	switch {
	case left < 90*time.Second:
		return fmt.Sprintf("%d s", max(int(left.Seconds()), 0))
	case left < 90*time.Minute:
		return fmt.Sprintf("%d min", int(math.Round(left.Minutes())))
	case left > 99*time.Hour:
		return "days"
	}
	return fmt.Sprintf("%d h", int(math.Round(left.Hours())))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

func localBase(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
