package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is an entry that is found in the text before anything else is done with it.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // takes white space on its left along
	RStrip     bool   `json:"rstrip"`      // and on its right
	Normalized *bool  `json:"normalized"`  // is looked for in normalized text; default: unless special
	Special    bool   `json:"special"`
}

func (a *addedToken) normalized() bool {
	if a.Normalized == nil {
		return !a.Special
	}
	return *a.Normalized
}

// maxAddedToken bounds the length in bytes of one added token, and so the work per text position.
const maxAddedToken = 1024

// addedSet finds the tokens of a set: leftmost, then longest, without overlap.
type addedSet struct {
	trie   *trie // nil: empty set
	tokens []addedToken
}

// add puts a token into the set under the text it is looked for as.
func (s *addedSet) add(text string, token addedToken) {
	if text == "" {
		return
	}
	if s.trie == nil {
		s.trie = newTrie(64)
	}
	s.trie.add(text, int32(len(s.tokens)))
	s.tokens = append(s.tokens, token)
}

// cut calls other with the stretches of text between tokens and found with the tokens, in order.
// With plain set, special tokens count as text.
func (s *addedSet) cut(text string, plain bool, other func(from, to int), found func(id int32)) {
	done := 0 // end of what was handed out
	if s.trie != nil {
		for i := 0; i < len(text); {
			if !s.trie.first[text[i]] {
				i++
				continue
			}
			index, n := s.trie.longest(text[i:])
			if index < 0 {
				i++
				continue
			}
			token := &s.tokens[index]
			start, end := i, i+n
			i = end
			if plain && token.Special || token.SingleWord && touchesWord(text, start, end) {
				continue
			}
			if token.LStrip {
				start = max(len(strings.TrimRightFunc(text[:start], unicode.IsSpace)), done)
			}
			if token.RStrip {
				end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
			}
			if done < start {
				other(done, start)
			}
			found(token.ID)
			done = max(end, done)
		}
	}
	if done < len(text) {
		other(done, len(text))
	}
}

func touchesWord(text string, start, end int) bool {
	before, n := utf8.DecodeLastRuneInString(text[:start])
	after, m := utf8.DecodeRuneInString(text[end:])
	return n > 0 && isWord(before) || m > 0 && isWord(after)
}
