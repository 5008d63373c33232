package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class is a set of character properties that split patterns ask for.
type class uint8

const (
	letter   class = 1 << iota // \p{L}
	number                     // \p{N}
	space                      // \s, White_Space
	mark                       // \p{M}
	upperish                   // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	lowerish                   // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
	newline                    // [\r\n]
	punct                      // \p{P}
)

// bmpClass holds the class of every character of the basic plane.
var bmpClass = sync.OnceValue(func() *[0x10000]class {
	t := new([0x10000]class)
	for _, c := range classTables {
		for _, r := range c.table.R16 {
			for x := uint32(r.Lo); x <= uint32(r.Hi); x += uint32(r.Stride) {
				t[x] |= c.class
			}
		}
	}
	t['\r'] |= newline
	t['\n'] |= newline
	return t
})

var classTables = []struct {
	table *unicode.RangeTable
	class class
}{
	{unicode.L, letter}, {unicode.N, number}, {unicode.White_Space, space}, {unicode.M, mark | upperish | lowerish},
	{unicode.Lu, upperish}, {unicode.Lt, upperish}, {unicode.Ll, lowerish},
	{unicode.Lm, upperish | lowerish}, {unicode.Lo, upperish | lowerish}, {unicode.P, punct},
}

// classes reads the class of the character at the start of a text.
type classes struct{ bmp *[0x10000]class }

// at returns the class and size of the first character of s; size is 0 at the end.
func (t classes) at(s string) (c class, size int) {
	if len(s) == 0 {
		return 0, 0
	}
	if b := s[0]; b < utf8.RuneSelf {
		return t.bmp[b], 1
	}
	r, size := utf8.DecodeRuneInString(s)
	if r < 0x10000 {
		return t.bmp[r], size
	}
	for _, x := range classTables {
		if unicode.Is(x.table, r) {
			c |= x.class
		}
	}
	return c, size
}

// isWord reports whether r counts as \w of added tokens with single_word and of the pre-tokenizer "Whitespace".
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
