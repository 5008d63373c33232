package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkbar/engine/wholefile"
)

// settings is what the files beside tokenizer.json say.
type settings struct {
	config    map[string]any
	special   map[string]string // named special tokens
	eosTokens []string
	template  string
	templates map[string]string
	eos, stop []int32
}

// configFiles holds the contents of the files beside tokenizer.json; absent ones are nil.
type configFiles struct {
	config           []byte // tokenizer_config.json
	specialTokensMap []byte // special_tokens_map.json
	templateJinja    []byte // chat_template.jinja
	templateJSON     []byte // chat_template.json
	namedJinja       map[string]string
}

const (
	maxTokenizerFile = 512 << 20 // bytes of tokenizer.json
	maxConfigFile    = 64 << 20  // bytes of any other file
)

// Load reads the tokenizer of a model folder: tokenizer.json, and where present tokenizer_config.json,
// special_tokens_map.json (for names the config lacks), and chat templates from chat_template.jinja,
// tokenizer_config.json, chat_template.json (in that order) and additional_chat_templates/*.jinja.
func Load(dir string) (*Tokenizer, error) {
	tokenizerJSON, err := wholefile.Read(filepath.Join(dir, "tokenizer.json"), maxTokenizerFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no tokenizer.json: %w", dir, err)
	} else if err != nil {
		return nil, err
	}
	var files configFiles
	for name, to := range map[string]*[]byte{
		"tokenizer_config.json": &files.config, "special_tokens_map.json": &files.specialTokensMap,
		"chat_template.jinja": &files.templateJinja, "chat_template.json": &files.templateJSON,
	} {
		if *to, err = wholefile.Read(filepath.Join(dir, name), maxConfigFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	const folder = "additional_chat_templates"
	named, _ := os.ReadDir(filepath.Join(dir, folder)) // most models have none
	for _, entry := range named {
		if name, ok := strings.CutSuffix(entry.Name(), ".jinja"); ok {
			source, err := wholefile.Read(filepath.Join(dir, folder, entry.Name()), maxConfigFile)
			if err != nil {
				return nil, err
			}
			if files.namedJinja == nil {
				files.namedJinja = make(map[string]string)
			}
			files.namedJinja[name] = string(source)
		}
	}
	t, err := newFromFiles(tokenizerJSON, files)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return t, nil
}

// specialNames are the special tokens that have a name in tokenizer_config.json.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// stopTokens end a turn in well-known model families, whatever the configuration names.
var stopTokens = []string{"<turn|>", "<|tool_response>", "<end_of_turn>", "<|im_end|>", "<|eot|>", "<|endoftext|>", "<eos>"}

func parseSettings(files configFiles) (settings, error) {
	s := settings{config: map[string]any{}, special: map[string]string{}, templates: map[string]string{}}
	if len(files.config) > 0 {
		if err := json.Unmarshal(files.config, &s.config); err != nil {
			return s, fmt.Errorf("tokenizer_config.json: %w", err)
		}
		if s.config == nil { // the file says null
			s.config = map[string]any{}
		}
	}
	more := map[string]any{}
	if len(files.specialTokensMap) > 0 {
		if err := json.Unmarshal(files.specialTokensMap, &more); err != nil {
			return s, fmt.Errorf("special_tokens_map.json: %w", err)
		}
	}
	for _, name := range specialNames {
		for _, source := range []map[string]any{s.config, more} {
			if text := tokenText(source[name]); text != "" {
				s.special[name] = text
				break
			}
		}
	}
	switch eos := s.config["eos_token"].(type) {
	case []any:
		for _, e := range eos {
			if text := tokenText(e); text != "" {
				s.eosTokens = append(s.eosTokens, text)
			}
		}
		if len(s.eosTokens) > 0 {
			s.special["eos_token"] = s.eosTokens[0]
		}
	default:
		if text, ok := s.special["eos_token"]; ok {
			s.eosTokens = []string{text}
		}
	}
	return s, s.readTemplates(files)
}

// readTemplates collects the chat templates; a template in a file of its own wins.
func (s *settings) readTemplates(files configFiles) error {
	var inJSON struct {
		ChatTemplate any `json:"chat_template"`
	}
	if len(files.templateJSON) > 0 {
		if err := json.Unmarshal(files.templateJSON, &inJSON); err != nil {
			return fmt.Errorf("chat_template.json: %w", err)
		}
	}
	for _, source := range []any{inJSON.ChatTemplate, s.config["chat_template"]} {
		switch v := source.(type) {
		case string:
			s.template = v
		case map[string]any:
			for name, text := range v {
				if text, ok := text.(string); ok {
					s.templates[name] = text
				}
			}
		case []any:
			for _, item := range v {
				m, _ := item.(map[string]any)
				name, ok1 := m["name"].(string)
				text, ok2 := m["template"].(string)
				if ok1 && ok2 {
					s.templates[name] = text
				}
			}
		}
	}
	maps.Copy(s.templates, files.namedJinja)
	if files.templateJinja != nil {
		s.template = string(files.templateJinja)
	} else if s.template == "" {
		s.template = s.templates["default"]
	}
	return nil
}

// tokenText reads a token written as a string or as an object with "content".
func tokenText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		text, _ := v["content"].(string)
		return text
	}
	return ""
}

// withConfigTokens returns the added tokens of tokenizer.json and those that only the configuration
// declares: entries of added_tokens_decoder, and named special tokens that are ordinary entries of the
// vocabulary. Where the two contradict each other tokenizer.json counts.
func withConfigTokens(added []addedToken, vocab map[string]int32, s *settings) ([]addedToken, error) {
	texts, ids := make(map[string]bool), make(map[int32]bool, len(added))
	for _, a := range added {
		texts[a.Content], ids[a.ID] = true, true
	}
	inVocab := make(map[int32]string)
	declared, _ := s.config["added_tokens_decoder"].(map[string]any)
	for key := range declared {
		if n, err := strconv.ParseInt(key, 10, 32); err == nil {
			inVocab[int32(n)] = ""
		}
	}
	for token, id := range vocab {
		if _, ok := inVocab[id]; ok {
			inVocab[id] = token
		}
	}
	for _, key := range slices.Sorted(maps.Keys(declared)) {
		n, err := strconv.ParseInt(key, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder: %q is not an id", key)
		}
		raw, err := json.Marshal(declared[key])
		if err != nil {
			return nil, err
		}
		var a addedToken
		if err := json.Unmarshal(raw, &a); err != nil {
			return nil, fmt.Errorf("tokenizer_config.json: added_tokens_decoder[%s]: %w", key, err)
		}
		a.ID = int32(n)
		if texts[a.Content] || ids[a.ID] || inVocab[a.ID] != "" && inVocab[a.ID] != a.Content {
			continue
		}
		added, texts[a.Content], ids[a.ID] = append(added, a), true, true
	}
	for _, name := range specialNames {
		text, ok := s.special[name]
		if id, inModel := vocab[text]; ok && inModel && !texts[text] {
			added, texts[text] = append(added, addedToken{ID: id, Content: text, Special: true}), true
		}
	}
	return added, nil
}

// resolve looks up the ids of named tokens and applies add_bos_token and add_eos_token, which override
// that side of the template where the configuration has them.
func (s *settings) resolve(t *Tokenizer) {
	for _, text := range s.eosTokens {
		if id, ok := t.ID(text); ok && !slices.Contains(s.eos, id) {
			s.eos = append(s.eos, id)
		}
	}
	s.stop = slices.Clone(s.eos)
	unk, hasUnk := t.UNK()
	for _, text := range stopTokens {
		if id, ok := t.ID(text); ok && !(hasUnk && id == unk) && !slices.Contains(s.stop, id) {
			s.stop = append(s.stop, id)
		}
	}
	slices.Sort(s.stop)
	side := func(key string, to *[]int32, id int32, ok bool) {
		on, given := s.config[key].(bool)
		if !given {
			return
		}
		*to = nil
		if on && ok {
			*to = []int32{id}
		}
	}
	bos, ok := t.BOS()
	side("add_bos_token", &t.template.before, bos, ok)
	eos, ok := t.EOS()
	side("add_eos_token", &t.template.after, eos, ok)
}
