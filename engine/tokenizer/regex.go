package tokenizer

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

const (
	maxPattern   = 1 << 14               // bytes
	matchTimeout = 2 * time.Second       // per search
	byteTimeout  = 20 * time.Microsecond // per byte of text for all searches together, besides matchTimeout
)

// regexMatcher runs a pattern on a backtracking engine. Where the time limit strikes, the rest of the
// text counts as unmatched.
type regexMatcher struct{ re *regexp2.Regexp }

// compileRegex compiles a pattern of the Oniguruma dialect. It refuses patterns that take forever on
// short texts.
func compileRegex(pattern string) (*regexMatcher, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("pattern of %d bytes is longer than %d", len(pattern), maxPattern)
	}
	translated, err := translatePattern(pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	re, err := regexp2.Compile(translated, regexp2.Multiline)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", pattern, err)
	}
	re.MatchTimeout = matchTimeout
	for _, unit := range []string{"a", "A", "1", " ", "\n", ".", "ab", "a1", "a ", "é", "漢", "=-"} {
		if _, err := re.MatchString(strings.Repeat(unit, 48) + "\x00"); err != nil {
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		}
	}
	return &regexMatcher{re}, nil
}

func (m *regexMatcher) each(text string, yield func(start, end int)) {
	runes := []rune(text)
	deadline := time.Now().Add(matchTimeout + time.Duration(len(text))*byteTimeout)
	runePos, bytePos, count := 0, 0, 0
	advance := func(to int) int {
		for ; runePos < to; runePos++ {
			bytePos += utf8.RuneLen(runes[runePos])
		}
		return bytePos
	}
	match, err := m.re.FindRunesMatch(runes)
	for err == nil && match != nil {
		start := advance(match.Index)
		yield(start, advance(match.Index+match.Length))
		if count++; count%64 == 0 && time.Now().After(deadline) {
			return
		}
		match, err = m.re.FindNextMatch(match)
	}
}

var (
	inlineFlags    = regexp.MustCompile(`^\(\?[imx-]+[:)]`)
	groupOpening   = regexp.MustCompile(`^\((\?(<\w+>|'\w+')?)?`)
	groupReference = regexp.MustCompile(`^\\k(<[^>]*>|'[^']*')`)
	countedRepeat  = regexp.MustCompile(`^\{(\d*)(,?)(\d*)\}`)
	hexInBraces    = regexp.MustCompile(`^\\x\{([0-9A-Fa-f]{1,6})\}`)
	propertyEscape = regexp.MustCompile(`^\\[pP]\{(\^?)([A-Za-z_]+)\}`)
)

var errIntersection = errors.New("intersections of character classes are supported at the end of a class, with a negated one: [a&&[^b]]")

// translatePattern rewrites an Oniguruma (Ruby syntax) pattern for the engine in use: possessive
// quantifiers become atomic groups, nested character classes are flattened, the intersection with a negated
// class becomes a subtraction, \x{…} becomes the character, the flag m ("dot matches line breaks") becomes s, and
// without regard to case s is also ſ, which the engine, comparing lower case, tells apart.
func translatePattern(p string) (string, error) {
	var out []byte
	var groups []int // where the open groups start in out
	var folds []bool // fold before each of them
	fold := false    // case means nothing here
	atom := -1       // where the last atom starts in out; -1: nothing to repeat
	for i := 0; i < len(p); {
		rest := p[i:]
		if m := countedRepeat.FindStringSubmatch(rest); m != nil && atom >= 0 && m[1]+m[3] != "" {
			low := m[1]
			if low == "" {
				low = "0"
			}
			out = append(out, "{"+low+m[2]+m[3]+"}"...)
			i += len(m[0])
			switch {
			case strings.HasPrefix(p[i:], "?"):
				out = append(out, '?')
				i++
			case strings.HasPrefix(p[i:], "+"), strings.HasPrefix(p[i:], "*"): // here this is no possessive quantifier but a second one
				out = append(append(append(out[:atom:atom], "(?:"...), out[atom:]...), ')', p[i])
				i++
			}
			continue
		}
		switch c := p[i]; c {
		case '\\':
			s, n, err := translateEscape(rest)
			if err != nil {
				return "", err
			}
			atom = len(out)
			out = append(out, s...)
			i += n
		case '[':
			s, n, err := translateClass(rest)
			if err != nil {
				return "", err
			}
			if fold {
				s = foldLongS(s)
			}
			atom = len(out)
			out = append(out, s...)
			i += n
		case '(':
			groups, folds = append(groups, len(out)), append(folds, fold)
			if flags := inlineFlags.FindString(rest); flags != "" {
				out = append(out, strings.ReplaceAll(flags, "m", "s")...)
				i += len(flags)
				if strings.HasSuffix(flags, ")") { // for the rest of the group around
					groups, folds = groups[:len(groups)-1], folds[:len(folds)-1]
				}
				on, off, _ := strings.Cut(flags, "-")
				fold = (fold || strings.Contains(on, "i")) && !strings.Contains(off, "i")
			} else {
				// Keep a group's opening, such as ?: ?= ?! ?<= ?<! and names, away from the
				// rules for quantifiers and for s.
				opening := groupOpening.FindString(rest)
				out = append(out, opening...)
				i += len(opening)
			}
			atom = -1
		case ')':
			if len(groups) == 0 {
				return "", errors.New("unbalanced )")
			}
			atom, groups = groups[len(groups)-1], groups[:len(groups)-1]
			fold, folds = folds[len(folds)-1], folds[:len(folds)-1]
			out = append(out, ')')
			i++
		case '*', '+', '?':
			out = append(out, c)
			i++
			if i < len(p) && atom >= 0 {
				switch p[i] {
				case '?':
					out = append(out, '?')
					i++
				case '+':
					out = append(append(append(out[:atom:atom], "(?>"...), out[atom:]...), ')')
					i++
				}
			}
		case '|', '^', '$':
			atom = -1
			out = append(out, c)
			i++
		default:
			r, size := utf8.DecodeRuneInString(rest)
			atom = len(out)
			if fold && strings.ContainsRune("sSſ", r) {
				out = append(out, "[sſ]"...)
			} else {
				out = append(out, rest[:size]...)
			}
			i += size
		}
	}
	return string(out), nil
}

// foldLongS adds s to a translated class that holds ſ, and the other way round.
func foldLongS(class string) string {
	re, err := regexp2.Compile("(?i)"+class, regexp2.None)
	if err != nil || strings.Contains(class, "-[") { // the whole pattern's fault; a subtraction stays as it is
		return class
	}
	negated := strings.HasPrefix(class, "[^")
	inside := func(s string) bool { ok, _ := re.MatchString(s); return ok != negated }
	if s, long := inside("s"), inside("ſ"); s != long {
		body := strings.TrimSuffix(class, "]")
		if before, ok := strings.CutSuffix(body, "-"); ok { // that would no longer be itself
			if escapes := len(before) - len(strings.TrimRight(before, `\`)); escapes%2 == 0 {
				body = before + `\-`
			}
		}
		return body + "sſ]"
	}
	return class
}

// translateEscape translates the escape that s starts with and returns its length in s.
func translateEscape(s string) (out string, n int, err error) {
	if m := groupReference.FindString(s); m != "" {
		return m, len(m), nil
	}
	if m := hexInBraces.FindStringSubmatch(s); m != nil {
		x, err := strconv.ParseUint(m[1], 16, 32)
		if err != nil || x > unicode.MaxRune {
			return "", 0, fmt.Errorf("%s is not a character", m[0])
		}
		return regexp2.Escape(string(rune(x))), len(m[0]), nil
	}
	if m := propertyEscape.FindStringSubmatch(s); m != nil {
		negated := (m[1] == "^") != (s[1] == 'P')
		if negated {
			return `\P{` + m[2] + `}`, len(m[0]), nil
		}
		return `\p{` + m[2] + `}`, len(m[0]), nil
	}
	if strings.HasPrefix(s, `\h`) {
		return "", 0, errors.New(`\h is not supported`)
	}
	if len(s) < 2 {
		return "", 0, errors.New("ends in a backslash")
	}
	_, size := utf8.DecodeRuneInString(s[1:])
	return s[:1+size], 1 + size, nil
}

// translateClass translates the character class that s starts with and returns its length in s.
func translateClass(s string) (out string, n int, err error) {
	var b strings.Builder
	b.WriteByte('[')
	i := 1
	if strings.HasPrefix(s[i:], "^") {
		b.WriteByte('^')
		i++
	}
	if strings.HasPrefix(s[i:], "]") { // a ] in first place stands for itself
		b.WriteString(`\]`)
		i++
	}
	for depth := 1; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "[:"):
			return "", 0, errors.New("POSIX character classes are not supported")
		case strings.HasPrefix(s[i:], "[^"):
			return "", 0, errors.New("negated classes inside a class are not supported")
		case strings.HasPrefix(s[i:], "&&[^") && depth == 1 && s[1] != '^':
			without, size, err := translateClass(s[i+2:])
			if err != nil {
				return "", 0, err
			}
			if i += 2 + size; !strings.HasPrefix(s[i:], "]") {
				return "", 0, errIntersection
			}
			return b.String() + "-[" + without[len("[^"):] + "]", i + 1, nil
		case strings.HasPrefix(s[i:], "&&"):
			return "", 0, errIntersection
		case s[i] == '[':
			depth++
			i++
		case s[i] == ']':
			i++
			if depth--; depth == 0 {
				b.WriteByte(']')
				return b.String(), i, nil
			}
		case s[i] == '\\':
			esc, size, err := translateEscape(s[i:])
			if err != nil {
				return "", 0, err
			}
			b.WriteString(esc)
			i += size
		default:
			_, size := utf8.DecodeRuneInString(s[i:])
			b.WriteString(s[i : i+size])
			i += size
		}
	}
	return "", 0, errors.New("unterminated character class")
}
