package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// decoder turns entries back into text. It is the decoder chain of tokenizer.json in a form that
// works token by token: every entry has bytes of its own, and only the two ends of the text are special.
type decoder struct {
	stages []decodeStage // applied to each entry in turn
	// Bytes of entries: byteLevel reads them in the byte alphabet, byteFallback reads "<0xNN>".
	byteLevel    bool
	byteFallback bool
	trim         rune // cut from the start of the text …
	trimStart    int  // … up to so many times
	trimEnd      int  // … and from its end
	// positional: the first entry of a text is decoded differently.
	positional bool
}

// decodeStage rewrites one entry; first is set for the first entry of a text.
type decodeStage func(token string, first bool) string

// maxTrim bounds the number of characters a decoder may trim at an end.
const maxTrim = 64

// bytes returns the bytes of one entry.
func (d *decoder) bytes(token string, first bool) string {
	if d.byteFallback {
		if b, ok := byteToken(token); ok {
			return string([]byte{b})
		}
	}
	for _, stage := range d.stages {
		token = stage(token, first)
	}
	if d.byteLevel {
		if raw, ok := fromByteChars(token); ok {
			return raw
		}
	}
	return token
}

// parseDecoder reads the "decoder" of tokenizer.json.
func parseDecoder(raw json.RawMessage) (*decoder, error) {
	d := &decoder{}
	if isNull(raw) { // entries are words
		d.positional = true
		d.stages = append(d.stages, func(token string, first bool) string {
			if first {
				return token
			}
			return " " + token
		})
		return d, nil
	}
	fused := false // the stages so far turn the entries into one text
	return d, d.parse(raw, &fused, 0)
}

func (d *decoder) parse(raw json.RawMessage, fused *bool, depth int) error {
	kind, err := kindOf(raw)
	if err != nil {
		return err
	}
	if depth > maxNesting {
		return errors.New("nested too deeply")
	}
	var c struct {
		Decoders       []json.RawMessage `json:"decoders"`
		Pattern        json.RawMessage   `json:"pattern"`
		Content        string            `json:"content"`
		Start          int               `json:"start"`
		Stop           int               `json:"stop"`
		Replacement    string            `json:"replacement"`
		PrependScheme  string            `json:"prepend_scheme"`
		AddPrefixSpace *bool             `json:"add_prefix_space"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	switch kind {
	case "Sequence":
		for i, raw := range c.Decoders {
			if err := d.parse(raw, fused, depth+1); err != nil {
				return fmt.Errorf("decoders[%d]: %w", i, err)
			}
		}
	case "Fuse":
		*fused = true
	case "ByteLevel":
		if *fused || d.byteFallback {
			return errors.New("a ByteLevel after Fuse or ByteFallback is not supported")
		}
		d.byteLevel, *fused = true, true
	case "ByteFallback":
		if *fused {
			return errors.New("a ByteFallback after Fuse or ByteLevel is not supported")
		}
		d.byteFallback = true
	case "Replace":
		m, err := parsePattern(c.Pattern)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		literal, isLiteral := m.(literalMatcher)
		if *fused && (d.byteLevel || !isLiteral || utf8.RuneCountInString(string(literal)) != 1) {
			return errors.New("a Replace after Fuse is only supported for one character, after ByteLevel not at all")
		}
		d.stages = append(d.stages, func(token string, _ bool) string { return replaceMatches(m, token, c.Content) })
	case "Metaspace":
		if *fused {
			return errors.New("a Metaspace after Fuse or ByteLevel is not supported")
		}
		replacement, scheme, err := parseMetaspace(c.Replacement, c.PrependScheme, c.AddPrefixSpace)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		d.positional = d.positional || scheme != prependNever
		d.stages = append(d.stages, func(token string, first bool) string {
			if first && scheme != prependNever {
				return strings.ReplaceAll(token, replacement, "")
			}
			return strings.ReplaceAll(token, replacement, " ")
		})
	case "Strip":
		r, size := utf8.DecodeRuneInString(c.Content)
		if size == 0 || size != len(c.Content) {
			return fmt.Errorf("%s: content %q is not one character", kind, c.Content)
		}
		if c.Start < 0 || c.Stop < 0 || c.Start > maxTrim || c.Stop > maxTrim {
			return fmt.Errorf("%s: start %d or stop %d is not within 0 to %d", kind, c.Start, c.Stop, maxTrim)
		}
		if !*fused {
			d.stages = append(d.stages, func(token string, _ bool) string {
				token = token[trimStart(token, r, c.Start):]
				return token[:len(token)-trimEnd(token, r, c.Stop)]
			})
			break
		}
		if d.trimStart+d.trimEnd > 0 {
			return errors.New("more than one Strip after Fuse is not supported")
		}
		d.trim, d.trimStart, d.trimEnd = r, c.Start, c.Stop
	default:
		return unsupported(kind)
	}
	return nil
}

// trimStart returns the number of bytes of up to n leading r.
func trimStart[T ~string | ~[]byte](s T, r rune, n int) int {
	cut := 0
	c := string(r)
	for ; n > 0 && strings.HasPrefix(string(s[cut:min(cut+len(c), len(s))]), c); n-- {
		cut += len(c)
	}
	return cut
}

// trimEnd returns the number of bytes of up to n trailing r.
func trimEnd[T ~string | ~[]byte](s T, r rune, n int) int {
	cut := 0
	c := string(r)
	for ; n > 0 && strings.HasSuffix(string(s[max(len(s)-cut-len(c), 0):len(s)-cut]), c); n-- {
		cut += len(c)
	}
	return cut
}
