package tokenizer

import (
	"maps"
	"strings"
	"unicode/utf8"
)

// matcher finds the parts of a text that a pattern matches.
type matcher interface {
	// each calls yield with the bounds of every match, from left to right.
	each(text string, yield func(start, end int))
}

// newRegexMatcher compiles a pattern of the Oniguruma dialect. Well-known patterns get a scanner of
// their own, which needs linear time; the others run on a backtracking engine under a time limit.
func newRegexMatcher(pattern string) (matcher, error) {
	if rules, ok := knownPatterns[pattern]; ok {
		return &wordScanner{rules: rules, classes: classes{bmpClass()}}, nil
	}
	return compileRegex(pattern)
}

// wordRules describes a split pattern of the GPT family. Every character of a text belongs to one
// match, so the matches are the words. At each position the first alternative that fits is taken:
//
//  1. contraction: one of 's 't 're 've 'm 'll 'd
//  2. letters, after at most one leading character
//  3. digits, at most so many
//  4. other characters, after at most one space, and what may trail them
//  5. white space up to its last line break (if lines is set)
//  6. white space, except its last character if more text follows
//  7. white space
type wordRules struct {
	contraction contractionRule
	// asciiFold: where contractions may be in any case, ſ does not count as s.
	asciiFold bool
	// lead: letters may follow any one character but a line break, letter or number; otherwise only a space.
	lead bool
	// marks counts combining marks as letters.
	marks bool
	// cased splits words before an upper-case letter that follows a lower-case one.
	cased bool
	// digits is the largest number of digits in a word, 0: no limit and a space may come first.
	digits int
	// tail is what alternative 4 may end in besides its own characters.
	tail string
	// lines: alternative 5 exists.
	lines bool
}

type contractionRule uint8

const (
	noContraction    contractionRule = iota
	lowerContraction                 // 's but not 'S
	anyContraction                   // (?i:'s)
	trailContraction                 // (?i:'s) only directly after a word
)

const (
	reGPT2       = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	reGPT2Group  = `'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	reTail       = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	reTailSlash  = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	reContract   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	reContract2  = `'(?i:[sdmt]|ll|ve|re)`
	reContract3  = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`
	reWord       = `[^\r\n\p{L}\p{N}]?\p{L}+`
	reWordMark   = `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`
	reUp         = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
	reLow        = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
	reCased1     = `[^\r\n\p{L}\p{N}]?` + reUp + `*` + reLow + `+`
	reCased2     = `[^\r\n\p{L}\p{N}]?` + reUp + `+` + reLow + `*`
	reTailMark   = `| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	reQwen2      = reContract + `|` + reWord + `|\p{N}` + reTail
	reLlama3     = reContract + `|` + reWord + `|\p{N}{1,3}` + reTail
	reQwen35     = reContract + `|` + reWordMark + `|\p{N}` + reTailMark
	reO200k      = reCased1 + reContract + `?|` + reCased2 + reContract + `?|\p{N}{1,3}` + reTailSlash
	reO200kDigit = reCased1 + reContract + `?|` + reCased2 + reContract + `?|\p{N}` + reTailSlash
	reTekken     = reCased1 + `|` + reCased2 + `|\p{N}` + reTailSlash
)

// knownPatterns maps the exact text of split patterns to what they mean.
var knownPatterns = func() map[string]wordRules {
	gpt2 := wordRules{contraction: lowerContraction}
	qwen := wordRules{contraction: anyContraction, lead: true, digits: 1, tail: "\r\n", lines: true}
	llama3 := qwen
	llama3.digits = 3
	qwen35 := qwen
	qwen35.marks = true
	o200k := wordRules{contraction: trailContraction, lead: true, cased: true, digits: 3, tail: "\r\n/", lines: true}
	o200k1 := o200k
	o200k1.digits = 1
	tekken := o200k1
	tekken.contraction = noContraction
	known := map[string]wordRules{
		reGPT2: gpt2, reGPT2Group: gpt2,
		reQwen2: qwen, reLlama3: llama3, reQwen35: qwen35, reO200k: o200k, reO200kDigit: o200k1, reTekken: tekken,
	}
	for pattern, rules := range maps.Clone(known) {
		if !strings.Contains(pattern, reContract+"?") {
			known[strings.ReplaceAll(pattern, reContract, reContract2)] = rules
		}
		rules.asciiFold = true
		if strings.Contains(pattern, reContract) {
			known[strings.ReplaceAll(pattern, reContract, reContract3)] = rules
		}
	}
	return known
}()

// wordScanner matches the words of a pattern described by wordRules.
type wordScanner struct {
	rules   wordRules
	classes classes
}

func (w *wordScanner) each(text string, yield func(start, end int)) {
	for at := 0; at < len(text); {
		end := at + w.word(text[at:])
		yield(at, end)
		at = end
	}
}

// word returns the length of the first word of s, which is not empty.
func (w *wordScanner) word(s string) int {
	c, size := w.classes.at(s)
	rules := &w.rules
	if s[0] == '\'' && (rules.contraction == lowerContraction || rules.contraction == anyContraction) {
		if n := rules.contracted(s); n > 0 {
			return n
		}
	}
	letters := letter
	if rules.marks {
		letters |= mark
	}
	// Alternative 2.
	switch {
	case rules.cased:
		if n := w.casedWord(s, c, size); n > 0 {
			if rules.contraction == trailContraction {
				n += rules.contracted(s[n:])
			}
			return n
		}
	case rules.lead && c&(newline|letter|number) == 0, s[0] == ' ':
		if n := w.run(s[size:], letters); n > 0 {
			return size + n
		}
		if c&letters != 0 { // a mark that nothing follows
			return size
		}
	case c&letters != 0:
		return size + w.run(s[size:], letters)
	}
	// Alternative 3.
	if c&number != 0 {
		n := size
		for count := 1; rules.digits == 0 || count < rules.digits; count++ {
			c, size := w.classes.at(s[n:])
			if c&number == 0 || size == 0 {
				break
			}
			n += size
		}
		return n
	}
	if rules.digits == 0 && s[0] == ' ' {
		if n := w.run(s[1:], number); n > 0 {
			return 1 + n
		}
	}
	// Alternative 4.
	n := 0
	if s[0] == ' ' {
		n = 1
	}
	if other := w.runNot(s[n:], space|letters|number); other > 0 {
		n += other
		for n < len(s) && strings.IndexByte(rules.tail, s[n]) >= 0 {
			n++
		}
		return n
	}
	// Only white space is left: alternatives 5 to 7.
	last, lineEnd, n := 0, 0, 0
	for {
		c, size := w.classes.at(s[n:])
		if c&space == 0 || size == 0 {
			break
		}
		last = n
		n += size
		if c&newline != 0 {
			lineEnd = n
		}
	}
	switch {
	case rules.lines && lineEnd > 0:
		return lineEnd
	case n < len(s) && last > 0:
		return last
	}
	return n
}

// run returns the length of the longest start of s whose characters are all of class in.
func (w *wordScanner) run(s string, in class) int {
	n := 0
	for n < len(s) {
		c, size := w.classes.at(s[n:])
		if c&in == 0 {
			break
		}
		n += size
	}
	return n
}

// runNot returns the length of the longest start of s with no character of class not.
func (w *wordScanner) runNot(s string, not class) int {
	n := 0
	for n < len(s) {
		c, size := w.classes.at(s[n:])
		if c&not != 0 {
			break
		}
		n += size
	}
	return n
}

// casedWord matches [lead]? upperish* lowerish+ or else [lead]? upperish+ lowerish*; c and size belong to the
// first character of s. It returns 0 where neither matches.
func (w *wordScanner) casedWord(s string, c class, size int) int {
	lead := 0
	if c&(newline|letter|number) == 0 {
		lead = size
	}
	for _, skip := range [2]int{lead, 0} {
		if n := w.upperLower(s[skip:]); n > 0 {
			return skip + n
		}
		if lead == 0 {
			break
		}
	}
	// No lower-case character can follow, so the word is a run of upper-case ones.
	if n := w.run(s[lead:], upperish); n > 0 {
		return lead + n
	}
	return 0
}

// upperLower matches upperish* lowerish+ as a backtracking engine does: as many upperish characters as
// possible, given back one by one until one of them counts as lowerish.
func (w *wordScanner) upperLower(s string) int {
	up, both := 0, -1 // end of the upperish run; start of its last character that is lowerish too
	for up < len(s) {
		c, size := w.classes.at(s[up:])
		if c&upperish == 0 {
			break
		}
		if c&lowerish != 0 {
			both = up
		}
		up += size
	}
	if n := w.run(s[up:], lowerish); n > 0 {
		return up + n
	}
	if both < 0 {
		return 0
	}
	return both + w.run(s[both:], lowerish)
}

// contracted returns the length of the English contraction that s starts with, 0 if none.
func (r *wordRules) contracted(s string) int {
	anyCase := r.contraction != lowerContraction
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	fold := func(i int) byte {
		if i >= len(s) {
			return 0
		}
		if c := s[i]; anyCase && 'A' <= c && c <= 'Z' {
			return c | 0x20
		}
		return s[i]
	}
	a, b := fold(1), fold(2)
	switch {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	case anyCase && !r.asciiFold && strings.HasPrefix(s[1:], "ſ"):
		return 1 + len("ſ")
	}
	return 0
}

// literalMatcher matches a fixed, non-empty text.
type literalMatcher string

func (m literalMatcher) each(text string, yield func(start, end int)) {
	for at := 0; ; {
		i := strings.Index(text[at:], string(m))
		if i < 0 {
			return
		}
		yield(at+i, at+i+len(m))
		at += i + len(m)
	}
}

// runeMatcher matches each single character for which it is true.
type runeMatcher func(rune) bool

func (m runeMatcher) each(text string, yield func(start, end int)) {
	for i, r := range text {
		if m(r) {
			yield(i, i+utf8.RuneLen(r))
		}
	}
}
