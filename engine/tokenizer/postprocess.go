package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// template holds the special tokens that go before and after a text.
type template struct{ before, after []int32 }

// maxTemplate bounds the special tokens a template may add.
const maxTemplate = 64

// parsePostProcessor reads the "post_processor" of tokenizer.json. id resolves a special token.
func parsePostProcessor(raw json.RawMessage, id func(token string) (int32, bool), depth int) (template, error) {
	kind, err := kindOf(raw)
	if err != nil || kind == "" {
		return template{}, err
	}
	if depth > maxNesting {
		return template{}, errors.New("nested too deeply")
	}
	var c struct {
		Processors    []json.RawMessage `json:"processors"`
		Single        json.RawMessage   `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
		Sep []any `json:"sep"`
		Cls []any `json:"cls"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return template{}, fmt.Errorf("%s: %w", kind, err)
	}
	var t template
	switch kind {
	case "ByteLevel": // only moves offsets
		return t, nil
	case "Sequence":
		for i, raw := range c.Processors {
			inner, err := parsePostProcessor(raw, id, depth+1)
			if err != nil {
				return t, fmt.Errorf("processors[%d]: %w", i, err)
			}
			t.before = append(inner.before, t.before...)
			t.after = append(t.after, inner.after...)
		}
	case "BertProcessing", "RobertaProcessing":
		for _, part := range []struct {
			name string
			pair []any
			to   *[]int32
		}{{"cls", c.Cls, &t.before}, {"sep", c.Sep, &t.after}} {
			var token string
			if len(part.pair) == 2 {
				token, _ = part.pair[0].(string)
			}
			n, ok := id(token)
			if !ok {
				return t, fmt.Errorf("%s: the token of %q is not in the vocabulary", kind, part.name)
			}
			*part.to = append(*part.to, n)
		}
	case "TemplateProcessing":
		names, err := templateNames(c.Single)
		if err != nil {
			return t, fmt.Errorf("TemplateProcessing: single: %w", err)
		}
		to, texts := &t.before, 0
		for _, name := range names {
			if name == "$A" {
				to = &t.after
				texts++
				continue
			}
			if special, ok := c.SpecialTokens[name]; ok {
				*to = append(*to, special.IDs...)
				continue
			}
			n, ok := id(name)
			if !ok {
				return t, fmt.Errorf("%s: single: %q is not a token", kind, name)
			}
			*to = append(*to, n)
		}
		if texts != 1 {
			return t, fmt.Errorf("TemplateProcessing: single names the text %d times", texts)
		}
	default:
		return t, unsupported(kind)
	}
	if len(t.before)+len(t.after) > maxTemplate {
		return t, fmt.Errorf("%s: more than %d special tokens", kind, maxTemplate)
	}
	return t, nil
}

// templateNames returns the special tokens of a template in order, the text as "$A".
func templateNames(raw json.RawMessage) ([]string, error) {
	var short string
	if json.Unmarshal(raw, &short) == nil {
		names := strings.Fields(short)
		for i, name := range names {
			name, _, _ = strings.Cut(name, ":") // a type id may follow
			if strings.HasPrefix(name, "$") {
				if name == "$B" {
					return nil, errors.New("names a second text")
				}
				name = "$A"
			}
			names[i] = name
		}
		return names, nil
	}
	var parts []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return nil, err
	}
	var names []string
	for i, p := range parts {
		switch {
		case p.SpecialToken != nil:
			names = append(names, p.SpecialToken.ID)
		case p.Sequence != nil && p.Sequence.ID == "A":
			names = append(names, "$A")
		default:
			return nil, fmt.Errorf("part %d is neither a special token nor the text", i)
		}
	}
	return names, nil
}
