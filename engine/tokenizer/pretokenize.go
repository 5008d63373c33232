package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// piece is a part of the text on its way to the model. first is set for the piece at the very start
// of the text.
type piece struct {
	text  string
	first bool
}

// preTokenizer splits pieces; it never yields an empty one.
type preTokenizer interface {
	split(p piece, yield func(piece))
}

// split is the pre-tokenizer "Split" and what several others amount to.
type split struct {
	match    matcher
	behavior behavior
	invert   bool
}

// behavior says what becomes of the matches of a split.
type behavior uint8

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
}

func (s *split) split(p piece, yield func(piece)) {
	emit := func(from, to int) {
		if from < to {
			yield(piece{p.text[from:to], p.first && from == 0})
		}
	}
	// open is the start of a span that is not written yet. A span is a match or what lies between two.
	open, end := 0, 0
	previous := false // the last span was a match
	span := func(from, to int, match bool) {
		if from == to && !match {
			return
		}
		match = match != s.invert
		switch s.behavior {
		case isolated:
			emit(from, to)
		case removed:
			if !match {
				emit(from, to)
			}
		case contiguous:
			if match != previous {
				emit(open, from)
				open = from
			}
		case mergedWithPrevious:
			if !match || previous {
				emit(open, from)
				open = from
			}
		case mergedWithNext:
			// A match joins what follows unless that is a match too.
			if match || !previous {
				emit(open, from)
				open = from
			}
		}
		previous, end = match, to
	}
	last := 0
	s.match.each(p.text, func(from, to int) {
		span(last, from, false)
		span(from, to, true)
		last = to
	})
	span(last, len(p.text), false)
	if s.behavior >= mergedWithPrevious {
		emit(open, end)
	}
}

// byteLevel is the pre-tokenizer "ByteLevel": GPT-2 words, then each byte as a character. With raw set
// the bytes stay bytes, because the model takes them so.
type byteLevel struct {
	prefixSpace bool
	words       preTokenizer // nil: no splitting
	raw         bool
}

func (b *byteLevel) split(p piece, yield func(piece)) {
	if b.prefixSpace && !strings.HasPrefix(p.text, " ") {
		p.text = " " + p.text
	}
	out := yield
	if !b.raw {
		out = func(p piece) { yield(piece{toByteChars(p.text), p.first}) }
	}
	if b.words == nil {
		out(p)
		return
	}
	b.words.split(p, out)
}

// metaspace is the pre-tokenizer "Metaspace": spaces become a visible character, one may be put in
// front, and words start at each.
type metaspace struct {
	replacement string
	prepend     prependScheme
	words       *split // nil: no splitting
}

type prependScheme uint8

const (
	prependAlways prependScheme = iota
	prependFirst
	prependNever
)

func (m *metaspace) split(p piece, yield func(piece)) {
	p.text = strings.ReplaceAll(p.text, " ", m.replacement)
	if (m.prepend == prependAlways || m.prepend == prependFirst && p.first) && !strings.HasPrefix(p.text, m.replacement) {
		p.text = m.replacement + p.text
	}
	if m.words == nil {
		yield(p)
		return
	}
	m.words.split(p, yield)
}

// preSequence applies pre-tokenizers one after the other.
type preSequence []preTokenizer

func (s preSequence) split(p piece, yield func(piece)) {
	if len(s) == 0 {
		yield(p)
		return
	}
	for i := len(s) - 1; i > 0; i-- {
		stage, next := s[i], yield
		yield = func(p piece) { stage.split(p, next) }
	}
	s[0].split(p, yield)
}

// maxNesting bounds "Sequence" inside "Sequence" in tokenizer.json.
const maxNesting = 8

// kindOf reads the "type" of a part of tokenizer.json; "" for null.
func kindOf(raw json.RawMessage) (string, error) {
	if isNull(raw) {
		return "", nil
	}
	var head struct{ Type string }
	if err := json.Unmarshal(raw, &head); err != nil {
		return "", err
	}
	if head.Type == "" {
		return "", errors.New(`has no "type"`)
	}
	return head.Type, nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func unsupported(kind string) error { return fmt.Errorf("type %q is not supported", kind) }

// parsePreTokenizer reads the "pre_tokenizer" of tokenizer.json into a flat list.
func parsePreTokenizer(raw json.RawMessage, depth int) (preSequence, error) {
	kind, err := kindOf(raw)
	if err != nil || kind == "" {
		return nil, err
	}
	if depth > maxNesting {
		return nil, errors.New("nested too deeply")
	}
	var c struct {
		PreTokenizers    []json.RawMessage `json:"pretokenizers"`
		AddPrefixSpace   *bool             `json:"add_prefix_space"`
		UseRegex         *bool             `json:"use_regex"`
		IndividualDigits bool              `json:"individual_digits"`
		Pattern          json.RawMessage   `json:"pattern"`
		Behavior         string            `json:"behavior"`
		Invert           bool              `json:"invert"`
		Replacement      string            `json:"replacement"`
		PrependScheme    string            `json:"prepend_scheme"`
		Split            *bool             `json:"split"`
		Delimiter        string            `json:"delimiter"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	b := isolated
	if c.Behavior != "" {
		var ok bool
		if b, ok = behaviors[c.Behavior]; !ok {
			return nil, fmt.Errorf("%s: behavior %q is not known", kind, c.Behavior)
		}
	}
	switch kind {
	case "Sequence":
		var all preSequence
		for i, raw := range c.PreTokenizers {
			p, err := parsePreTokenizer(raw, depth+1)
			if err != nil {
				return nil, fmt.Errorf("pretokenizers[%d]: %w", i, err)
			}
			all = append(all, p...)
		}
		return all, nil
	case "ByteLevel":
		p := &byteLevel{prefixSpace: c.AddPrefixSpace == nil || *c.AddPrefixSpace}
		if c.UseRegex == nil || *c.UseRegex {
			p.words = splitOn(reGPT2)
		}
		return preSequence{p}, nil
	case "Split":
		m, err := parsePattern(c.Pattern)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		return preSequence{&split{match: m, behavior: b, invert: c.Invert}}, nil
	case "Digits":
		s := &split{match: runeMatcher(unicode.IsNumber), behavior: contiguous}
		if c.IndividualDigits {
			s.behavior = isolated
		}
		return preSequence{s}, nil
	case "Punctuation":
		return preSequence{&split{match: runeMatcher(isPunctuation), behavior: b}}, nil
	case "Whitespace":
		return preSequence{&split{match: wordOrSymbols{}, behavior: removed, invert: true}}, nil
	case "WhitespaceSplit":
		return preSequence{&split{match: runeMatcher(unicode.IsSpace), behavior: removed}}, nil
	case "BertPreTokenizer":
		return preSequence{
			&split{match: runeMatcher(unicode.IsSpace), behavior: removed},
			&split{match: runeMatcher(isPunctuation), behavior: isolated},
		}, nil
	case "CharDelimiterSplit":
		r, size := utf8.DecodeRuneInString(c.Delimiter)
		if size == 0 || size != len(c.Delimiter) {
			return nil, fmt.Errorf("%s: delimiter %q is not one character", kind, c.Delimiter)
		}
		return preSequence{&split{match: literalMatcher(string(r)), behavior: removed}}, nil
	case "Metaspace":
		replacement, scheme, err := parseMetaspace(c.Replacement, c.PrependScheme, c.AddPrefixSpace)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		p := &metaspace{replacement: replacement, prepend: scheme}
		if c.Split == nil || *c.Split {
			p.words = &split{match: literalMatcher(replacement), behavior: mergedWithNext}
		}
		return preSequence{p}, nil
	}
	return nil, unsupported(kind)
}

// splitOn splits text at the matches of one of the known patterns.
func splitOn(pattern string) *split {
	return &split{match: &wordScanner{rules: knownPatterns[pattern], classes: classes{bmpClass()}}}
}

// parseMetaspace reads the fields shared by the pre-tokenizer and the decoder "Metaspace".
func parseMetaspace(replacement, scheme string, addPrefixSpace *bool) (string, prependScheme, error) {
	if replacement == "" {
		replacement = "▁"
	}
	if utf8.RuneCountInString(replacement) != 1 {
		return "", 0, fmt.Errorf("replacement %q is not one character", replacement)
	}
	switch scheme {
	case "":
		if addPrefixSpace != nil && !*addPrefixSpace {
			return replacement, prependNever, nil
		}
		return replacement, prependAlways, nil
	case "always":
		return replacement, prependAlways, nil
	case "first":
		return replacement, prependFirst, nil
	case "never":
		return replacement, prependNever, nil
	}
	return "", 0, fmt.Errorf("prepend_scheme %q is not known", scheme)
}

// parsePattern reads {"String": …} or {"Regex": …}.
func parsePattern(raw json.RawMessage) (matcher, error) {
	var p struct{ String, Regex *string }
	if isNull(raw) {
		return nil, errors.New("pattern is missing")
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	switch {
	case p.String != nil && *p.String != "":
		return literalMatcher(*p.String), nil
	case p.Regex != nil:
		return newRegexMatcher(*p.Regex)
	}
	return nil, errors.New(`pattern has neither "String" nor "Regex"`)
}

func isPunctuation(r rune) bool {
	if r < utf8.RuneSelf {
		return '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~'
	}
	return unicode.IsPunct(r)
}

// wordOrSymbols matches \w+|[^\w\s]+.
type wordOrSymbols struct{}

func (wordOrSymbols) each(text string, yield func(start, end int)) {
	const (
		inSpace = iota
		inWord
		inSymbols
	)
	start, state := 0, inSpace
	for i, r := range text {
		now := inSymbols
		if isWord(r) {
			now = inWord
		} else if unicode.IsSpace(r) {
			now = inSpace
		}
		if now != state {
			if state != inSpace {
				yield(start, i)
			}
			start, state = i, now
		}
	}
	if state != inSpace {
		yield(start, len(text))
	}
}
