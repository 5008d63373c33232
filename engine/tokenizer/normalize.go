package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// normalizer rewrites text before it is split. The text is valid UTF-8.
type normalizer func(text string) string

// normalizers applies several in turn.
type normalizers []normalizer

func (n normalizers) apply(text string) string {
	for _, f := range n {
		text = f(text)
	}
	return text
}

// parseNormalizer reads the "normalizer" of tokenizer.json into a flat list.
func parseNormalizer(raw json.RawMessage, depth int) (normalizers, error) {
	kind, err := kindOf(raw)
	if err != nil || kind == "" {
		return nil, err
	}
	if depth > maxNesting {
		return nil, errors.New("nested too deeply")
	}
	var c struct {
		Normalizers []json.RawMessage `json:"normalizers"`
		Prepend     string            `json:"prepend"`
		Pattern     json.RawMessage   `json:"pattern"`
		Content     string            `json:"content"`
		Left        *bool             `json:"strip_left"`
		Right       *bool             `json:"strip_right"`
		Charsmap    *string           `json:"precompiled_charsmap"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	one := func(f normalizer) (normalizers, error) { return normalizers{f}, nil }
	switch kind {
	case "Sequence":
		var all normalizers
		for i, raw := range c.Normalizers {
			n, err := parseNormalizer(raw, depth+1)
			if err != nil {
				return nil, fmt.Errorf("normalizers[%d]: %w", i, err)
			}
			all = append(all, n...)
		}
		return all, nil
	case "NFC":
		return one(func(s string) string { return unicodeForm(s, false, true) })
	case "NFD":
		return one(func(s string) string { return unicodeForm(s, false, false) })
	case "NFKC":
		return one(func(s string) string { return unicodeForm(s, true, true) })
	case "NFKD":
		return one(func(s string) string { return unicodeForm(s, true, false) })
	case "Lowercase":
		return one(lowercase)
	case "StripAccents":
		return one(func(s string) string { return dropRunes(s, unicode.IsMark) })
	case "Nmt":
		return one(nmt)
	case "ByteLevel":
		return one(toByteChars)
	case "Prepend":
		prefix := c.Prepend
		return one(func(s string) string {
			if s == "" {
				return s
			}
			return prefix + s
		})
	case "Strip":
		left, right := c.Left == nil || *c.Left, c.Right == nil || *c.Right
		return one(func(s string) string {
			if left {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if right {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		})
	case "Replace":
		m, err := parsePattern(c.Pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		content := c.Content
		return one(func(s string) string { return replaceMatches(m, s, content) })
	case "Precompiled":
		if c.Charsmap == nil {
			return nil, nil
		}
		blob, err := base64.StdEncoding.DecodeString(*c.Charsmap)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		if len(blob) == 0 {
			return nil, nil
		}
		m, err := newCharsmap(blob)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		return one(m.normalize)
	}
	return nil, unsupported(kind)
}

// replaceMatches returns text with every match of m replaced by content.
func replaceMatches(m matcher, text, content string) string {
	if literal, ok := m.(literalMatcher); ok {
		return strings.ReplaceAll(text, string(literal), content)
	}
	var b strings.Builder
	last := 0
	m.each(text, func(from, to int) {
		b.WriteString(text[last:from])
		b.WriteString(content)
		last = to
	})
	if last == 0 && b.Len() == 0 {
		return text
	}
	b.WriteString(text[last:])
	return b.String()
}

// lowercase maps every character by itself, without regard to its neighbours.
func lowercase(s string) string {
	const dottedI = "İ" // the one character whose lower case is two
	s = strings.ReplaceAll(s, dottedI, "i\u0307")
	return strings.Map(unicode.ToLower, s)
}

func dropRunes(s string, drop func(rune) bool) string {
	return strings.Map(func(r rune) rune {
		if drop(r) {
			return -1
		}
		return r
	}, s)
}

// nmt drops control characters and maps odd spaces to the plain one.
func nmt(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 1 <= r && r <= 8, r == 0xb, 0xe <= r && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
			return -1
		case r == 9, r == 0xa, r == 0xc, r == 0xd, r == 0x1680, 0x200b <= r && r <= 0x200f, r == 0x2028, r == 0x2029,
			r == 0x2581, r == 0xfeff, r == 0xfffd:
			return ' '
		}
		return r
	}, s)
}

// charsmap is the compiled replacement table of SentencePiece: a double-array trie over the texts to
// replace, whose values are offsets of NUL-terminated replacements.
type charsmap struct {
	units        []uint32
	replacements string
}

func newCharsmap(blob []byte) (*charsmap, error) {
	if len(blob) < 4 {
		return nil, errors.New("charsmap is cut off")
	}
	size := binary.LittleEndian.Uint32(blob)
	blob = blob[4:]
	if size%4 != 0 || size == 0 || uint64(size) > uint64(len(blob)) {
		return nil, fmt.Errorf("charsmap claims a table of %d bytes in %d", size, len(blob))
	}
	m := &charsmap{units: make([]uint32, size/4)}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(blob[4*i:])
	}
	m.replacements = string(blob[size:])
	if !utf8.ValidString(m.replacements) {
		return nil, errors.New("charsmap has replacements that are not UTF-8")
	}
	return m, nil
}

// lookup returns the replacement of the shortest entry that s starts with.
func (m *charsmap) lookup(s string) (string, bool) {
	offset := func(u uint32) uint32 { return (u >> 10) << ((u & (1 << 9)) >> 6) }
	pos := offset(m.units[0])
	for i := 0; i < len(s); i++ {
		c := s[i]
		if pos ^= uint32(c); c == 0 || int64(pos) >= int64(len(m.units)) {
			return "", false
		}
		u := m.units[pos]
		if u&(1<<31|0xff) != uint32(c) {
			return "", false
		}
		pos ^= offset(u)
		if u>>8&1 == 0 {
			continue
		}
		if int64(pos) >= int64(len(m.units)) {
			return "", false
		}
		at := m.units[pos] & (1<<31 - 1)
		if int64(at) > int64(len(m.replacements)) || at < uint32(len(m.replacements)) && !utf8.RuneStart(m.replacements[at]) {
			return "", false
		}
		text, _, _ := strings.Cut(m.replacements[at:], "\x00")
		return text, true
	}
	return "", false
}

// normalize replaces whole grapheme clusters of less than six bytes where the table knows them, else
// single characters.
func (m *charsmap) normalize(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		n := clusterLen(s[i:])
		cluster := s[i : i+n]
		i += n
		if n < 6 {
			if to, ok := m.lookup(cluster); ok {
				b.WriteString(to)
				continue
			}
		}
		for _, r := range cluster {
			if to, ok := m.lookup(string(r)); ok {
				b.WriteString(to)
			} else {
				b.WriteRune(r)
			}
		}
	}
	return b.String()
}

// clusterLen returns the length of the grapheme cluster that s starts with, as far as clusters of less
// than six bytes go: CR LF, a base with combining characters, and prefixed numbering marks.
func clusterLen(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if r == '\r' {
		if strings.HasPrefix(s, "\r\n") {
			return 2
		}
		return 1
	}
	if isControl(r) {
		return n
	}
	for unicode.Is(unicode.Prepended_Concatenation_Mark, r) && n < len(s) {
		next, size := utf8.DecodeRuneInString(s[n:])
		if isControl(next) {
			return n
		}
		r, n = next, n+size
	}
	for n < len(s) {
		r, size := utf8.DecodeRuneInString(s[n:])
		if !unicode.IsMark(r) && !unicode.Is(unicode.Other_Grapheme_Extend, r) && r != 0x200d && (r < 0x1f3fb || r > 0x1f3ff) {
			break
		}
		n += size
	}
	return n
}

func isControl(r rune) bool {
	return (unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r) || r == 0x2028 || r == 0x2029) &&
		r != 0x200c && r != 0x200d && !unicode.Is(unicode.Prepended_Concatenation_Mark, r)
}
