package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sparkbar/engine/chat"
	"sparkbar/engine/chat/jinja"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/tokenizer"
)

// newFormat works out how the model speaks. template replaces its own if given.
func newFormat(t *tokenizer.Tokenizer, template string) (*chat.Format, error) {
	def, named := t.ChatTemplates()
	files := map[string]string{}
	maps.Copy(files, named)
	if def != "" {
		files["default"] = def
	}
	special := jinja.NewMap()
	tokens := t.SpecialTokens()
	for _, name := range slices.Sorted(maps.Keys(tokens)) {
		special.Set(name, tokens[name])
	}
	parser, _ := t.Config()["tool_parser_type"].(string)
	return chat.NewFormat(chat.Config{TemplateFiles: files, Override: template, SpecialTokens: special, ToolParser: parser,
		HasToken: func(s string) bool { _, ok := t.ID(s); return ok }})
}

// encode turns a prompt into token ids; text is the rendered conversation, ""
// for the other kinds of prompt.
func (l *voice) encode(p Prompt) (ids []int32, text string, err error) {
	switch {
	case p.Tokens != nil:
		return p.Tokens, "", nil
	case p.Text != nil:
		return l.tok.Encode(*p.Text, true), "", nil
	}
	if text, err = l.render(p); err != nil {
		return nil, "", err
	}
	return l.tok.Encode(text+l.lead(p), !l.format.HasTemplate()), text, nil
}

// lead is the part of the answer that a prompt already holds, behind the rendered
// conversation. An answer that the caller began goes on as it may.
func (l *voice) lead(p Prompt) string {
	if !p.MustCall || p.Tools == nil || p.ContinueFinal {
		return ""
	}
	return l.format.BeginCall(p.CallName)
}

// render makes the text of a conversation.
func (l *voice) render(p Prompt) (string, error) {
	bad := func(field, format string, args ...any) error {
		return &Error{Kind: ErrInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
	}
	list, err := decodeList(p.Messages)
	if err != nil || len(list) == 0 {
		return "", bad("messages", "'messages' must be a non-empty list")
	}
	messages := make([]*jinja.Map, len(list))
	for i, m := range list {
		var ok bool
		if messages[i], ok = m.(*jinja.Map); !ok {
			return "", bad("messages", "'messages[%d]' must be an object with 'role' and 'content'", i)
		}
	}
	tools, err := decodeList(p.Tools)
	if err != nil {
		return "", bad("tools", "'tools' must be a list of objects")
	}
	kwargs := jinja.NewMap()
	for _, m := range []map[string]any{l.kwargs, p.Kwargs} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			v, err := templateValue(m[k])
			if err != nil {
				return "", bad("chat_template_kwargs", "template argument %q: %v", k, err)
			}
			if s, ok := v.(string); ok && k == "reasoning_effort" {
				v = l.format.Effort(s)
			}
			kwargs.Set(k, v)
		}
	}
	if l.lead(p) != "" {
		kwargs.Set("enable_thinking", false)
	}
	o := chat.Options{AddGenerationPrompt: !p.ContinueFinal, ContinueFinalMessage: p.ContinueFinal, Kwargs: kwargs, FoldSystem: p.FoldSystem, PartSeparator: "\n"}
	if p.MLXRules {
		o.PartSeparator = ""
	}
	if p.RoleMapping != nil {
		v, err := jinja.DecodeJSON(p.RoleMapping)
		if o.RoleMapping, _ = v.(*jinja.Map); err != nil || o.RoleMapping == nil {
			return "", bad("role_mapping", "'role_mapping' must be an object of prefixes by role")
		}
	}
	if p.MLXRules {
		if o.RoleMapping == nil && !l.format.HasTemplate() {
			o.RoleMapping = chat.DefaultRoleMapping()
		}
		for _, m := range messages {
			if _, ok := m.Get("content"); !ok {
				m.Set("content", "")
			}
		}
	}
	if _, given := kwargs.Get("enable_thinking"); p.MLXRules && !given && l.format.Thinks() {
		kwargs.Set("enable_thinking", true)
	}
	text, err := l.format.Render(messages, tools, o)
	var part *chat.PartError
	switch {
	case errors.As(err, &part):
		return "", bad("messages", "%v", err)
	case err != nil:
		return "", &Error{Kind: ErrInvalid, Field: "messages", Message: "could not apply chat template: " + err.Error(), Cause: err}
	}
	return text, nil
}

// decodeList reads a JSON list, keeping the order of keys; nothing is nil.
func decodeList(raw json.RawMessage) ([]any, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	v, err := jinja.DecodeJSON(raw)
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("not a list")
	}
	return list, nil
}

// templateValue brings a decoded JSON value into the template engine's types.
func templateValue(v any) (any, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return jinja.DecodeJSON(raw)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jinja.DecodeJSON(raw)
}

// ggufVocabulary collects what a GGUF file says about its tokens.
func ggufVocabulary(m *checkpoint.Metadata) tokenizer.GGUFMeta {
	str := func(key string) string { s, _ := m.String(key); return s }
	id := func(key string) *int32 {
		v, ok := m.Int("tokenizer.ggml." + key)
		if !ok {
			return nil
		}
		i := int32(v)
		return &i
	}
	flag := func(key string) *bool {
		v, ok := m.Bool("tokenizer.ggml." + key)
		if !ok {
			return nil
		}
		return &v
	}
	g := tokenizer.GGUFMeta{Model: str("tokenizer.ggml.model"), Pre: str("tokenizer.ggml.pre"), ChatTemplate: str("tokenizer.chat_template"), ChatTemplates: map[string]string{},
		BOS: id("bos_token_id"), EOS: id("eos_token_id"), EOT: id("eot_token_id"), EOM: id("eom_token_id"), UNK: id("unknown_token_id"), PAD: id("padding_token_id"),
		AddBOS: flag("add_bos_token"), AddEOS: flag("add_eos_token"), AddSpace: flag("add_space_prefix")}
	g.Tokens, _ = m.Strings("tokenizer.ggml.tokens")
	g.Merges, _ = m.Strings("tokenizer.ggml.merges")
	scores, _ := m.Floats("tokenizer.ggml.scores")
	for _, s := range scores {
		g.Scores = append(g.Scores, float32(s))
	}
	types, _ := m.Ints("tokenizer.ggml.token_type")
	for _, t := range types {
		g.Types = append(g.Types, int32(t))
	}
	names, _ := m.Strings("tokenizer.chat_templates")
	for _, n := range names {
		g.ChatTemplates[n] = str("tokenizer.chat_template." + n)
	}
	return g
}

// openTokenizerDir is the folder that holds a checkpoint's tokenizer.
func openTokenizerDir(path string) string {
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return filepath.Dir(path)
	}
	return path
}
