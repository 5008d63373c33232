package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// The GPT-2 byte alphabet: each byte is written as one printable character. Printable Latin-1
// characters stand for themselves, the other 68 bytes become U+0100, U+0101, … in order.
var (
	byteRune  [256]rune    // byte → character
	runeByte  [0x144]int16 // character → byte, -1 if the character is not of the alphabet
	byteChars [256]string  // byteRune as strings
)

func init() {
	for i := range runeByte {
		runeByte[i] = -1
	}
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if b < 0x21 || b > 0x7e && b < 0xa1 || b == 0xad {
			r = next
			next++
		}
		byteRune[b], runeByte[r], byteChars[b] = r, int16(b), string(r)
	}
}

// toByteChars writes text in the byte alphabet.
func toByteChars(text string) string {
	var b strings.Builder
	b.Grow(len(text) + len(text)/2)
	for i := 0; i < len(text); i++ {
		b.WriteString(byteChars[text[i]])
	}
	return b.String()
}

// fromByteChars reads text written in the byte alphabet; ok is false if it has other characters.
func fromByteChars(text string) (raw string, ok bool) {
	out := make([]byte, 0, len(text))
	for _, r := range text {
		if int(r) >= len(runeByte) || runeByte[r] < 0 {
			return "", false
		}
		out = append(out, byte(runeByte[r]))
	}
	return string(out), true
}

// byteToken reads "<0xNN>", the entry of one byte in vocabularies with byte fallback.
func byteToken(token string) (b byte, ok bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	for _, c := range []byte(token[3:5]) {
		switch {
		case '0' <= c && c <= '9':
			b = b<<4 | (c - '0')
		case 'A' <= c && c <= 'F':
			b = b<<4 | (c - 'A' + 10)
		case 'a' <= c && c <= 'f':
			b = b<<4 | (c - 'a' + 10)
		default:
			return 0, false
		}
	}
	return b, true
}

func byteTokenName(b byte) string {
	const hex = "0123456789ABCDEF"
	return string([]byte{'<', '0', 'x', hex[b>>4], hex[b&15], '>'})
}

// appendValid appends src to dst with every maximal invalid part replaced by one U+FFFD (the
// practice of the Unicode standard). If more may follow (final is false), an unfinished but so far
// valid character at the end is left out. n is the number of bytes of src that were used.
func appendValid(dst, src []byte, final bool) (out []byte, n int) {
	for n < len(src) {
		run := n
		for run < len(src) && src[run] < utf8.RuneSelf {
			run++
		}
		dst = append(dst, src[n:run]...)
		if n = run; n == len(src) {
			break
		}
		if r, size := utf8.DecodeRune(src[n:]); r != utf8.RuneError || size > 1 {
			dst = append(dst, src[n:n+size]...)
			n += size
			continue
		}
		bad, unfinished := invalidLen(src[n:])
		if unfinished && !final {
			break
		}
		dst = append(dst, "\uFFFD"...)
		n += bad
	}
	return dst, n
}

// invalidLen returns how many bytes at the start of s, which does not start with a valid character,
// are one maximal invalid part, and whether further bytes could still complete it.
func invalidLen(s []byte) (n int, unfinished bool) {
	lo, hi := byte(0x80), byte(0xbf)
	var need int
	switch c := s[0]; {
	case 0xc2 <= c && c <= 0xdf:
		need = 2
	case 0xe0 <= c && c <= 0xef:
		need = 3
		if c == 0xe0 {
			lo = 0xa0
		} else if c == 0xed {
			hi = 0x9f
		}
	case 0xf0 <= c && c <= 0xf4:
		need = 4
		if c == 0xf0 {
			lo = 0x90
		} else if c == 0xf4 {
			hi = 0x8f
		}
	default:
		return 1, false
	}
	for n = 1; n < need; n++ {
		if n == len(s) {
			return n, true
		}
		if s[n] < lo || s[n] > hi {
			return n, false
		}
		lo, hi = 0x80, 0xbf
	}
	return n, false
}

// validText returns text with invalid UTF-8 replaced as in appendValid.
func validText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	out, _ := appendValid(make([]byte, 0, len(text)+8), []byte(text), true)
	return string(out)
}
