package tokenizer

import (
	"sort"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// unicodeForm normalizes s: canonical (NFC, NFD) or compatibility (NFKC, NFKD), composed or not.
// golang.org/x/text does the work except for texts with long runs of combining marks, into which it
// would insert a character of its own.
func unicodeForm(s string, compatibility, compose bool) string {
	ascii := true
	for i := 0; i < len(s) && ascii; i++ {
		ascii = s[i] < utf8.RuneSelf
	}
	if ascii {
		return s
	}
	if longMarkRun(s) {
		return unicodeFormSlow(s, compatibility, compose)
	}
	switch {
	case compatibility && compose:
		return norm.NFKC.String(s)
	case compatibility:
		return norm.NFKD.String(s)
	case compose:
		return norm.NFC.String(s)
	}
	return norm.NFD.String(s)
}

// longMarkRun reports whether s has more than eight characters in a row that are not starters (one
// character decomposes into at most three of them, and x/text leaves runs of 30 alone).
func longMarkRun(s string) bool {
	run := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			run = 0
			i++
			continue
		}
		p := norm.NFD.PropertiesString(s[i:])
		switch {
		case p.CCC() != 0:
			if run++; run > 8 {
				return true
			}
		case p.TrailCCC() != 0: // a starter that decomposes into one and marks
			run = 1
		default:
			run = 0
		}
		i += max(p.Size(), 1)
	}
	return false
}

// unicodeFormSlow is the algorithm of the Unicode standard, section 3.11.
func unicodeFormSlow(s string, compatibility, compose bool) string {
	form := norm.NFD
	if compatibility {
		form = norm.NFKD
	}
	type char struct {
		r   rune
		ccc uint8
	}
	chars := make([]char, 0, len(s)/2)
	for i, r := range s {
		p := form.PropertiesString(s[i:])
		d := string(p.Decomposition())
		switch {
		case 0xac00 <= r && r <= 0xd7a3: // Hangul has no table
			d = form.String(string(r))
		case d == "":
			chars = append(chars, char{r, p.CCC()})
			continue
		}
		for j, r := range d {
			chars = append(chars, char{r, norm.NFD.PropertiesString(d[j:]).CCC()})
		}
	}
	for i := 0; i < len(chars); { // canonical order
		if chars[i].ccc == 0 {
			i++
			continue
		}
		end := i
		for end < len(chars) && chars[end].ccc != 0 {
			end++
		}
		run := chars[i:end]
		sort.SliceStable(run, func(a, b int) bool { return run[a].ccc < run[b].ccc })
		i = end
	}
	if compose && len(chars) > 0 {
		pairs := compositions()
		out := chars[:0:0]
		starter := -1 // index in out of the last starter
		for _, c := range chars {
			if starter >= 0 {
				last := out[len(out)-1]
				adjacent := starter == len(out)-1
				if adjacent || last.ccc < c.ccc && last.ccc != 0 {
					if r, ok := composePair(pairs, out[starter].r, c.r); ok {
						out[starter].r = r
						continue
					}
				}
			}
			if c.ccc == 0 {
				starter = len(out)
			}
			out = append(out, c)
		}
		chars = out
	}
	b := make([]byte, 0, len(s))
	for _, c := range chars {
		b = utf8.AppendRune(b, c.r)
	}
	return string(b)
}

// compositions maps canonical pairs to their composed character (Hangul excepted).
var compositions = sync.OnceValue(func() map[[2]rune]rune {
	pairs := make(map[[2]rune]rune)
	for r := rune(0xa0); r <= unicode.MaxRune; r++ {
		if 0xac00 <= r && r <= 0xd7a3 || 0x20000 <= r {
			continue
		}
		if norm.NFD.PropertiesString(string(r)).Decomposition() == nil || norm.NFC.String(string(r)) != string(r) {
			continue
		}
		// The last mark of the full decomposition joins the composition of what precedes it.
		d := []rune(norm.NFD.String(string(r)))
		if len(d) < 2 {
			continue
		}
		head := []rune(norm.NFC.String(string(d[:len(d)-1])))
		if len(head) == 1 {
			pairs[[2]rune{head[0], d[len(d)-1]}] = r
		}
	}
	return pairs
})

func composePair(pairs map[[2]rune]rune, a, b rune) (rune, bool) {
	const sBase, lBase, vBase, tBase, lCount, vCount, tCount = 0xac00, 0x1100, 0x1161, 0x11a7, 19, 21, 28
	if lBase <= a && a < lBase+lCount && vBase <= b && b < vBase+vCount {
		return sBase + ((a-lBase)*vCount+(b-vBase))*tCount, true
	}
	if sBase <= a && a < sBase+lCount*vCount*tCount && (a-sBase)%tCount == 0 && tBase < b && b < tBase+tCount {
		return a + b - tBase, true
	}
	r, ok := pairs[[2]rune{a, b}]
	return r, ok
}
