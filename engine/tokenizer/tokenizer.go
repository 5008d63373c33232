package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Tokenizer converts between text and token ids. It is immutable and safe for concurrent use.
//
// Ids outside the vocabulary are never an error: they have no text.
type Tokenizer struct {
	// The way in.
	addedRaw        addedSet // looked for in the text as it is
	addedNormalized addedSet // looked for in normalized text
	normalize       normalizers
	pre             preTokenizer
	model           model
	template        template

	// The way out. Entry i is tokens[i]; its bytes are text[offsets[i]:offsets[i+1]].
	tokens  []string
	ids     map[string]int32
	special []bool
	text    []byte
	offsets []uint32
	decoder *decoder

	settings settings
}

// New builds a tokenizer from the contents of tokenizer.json and tokenizer_config.json; the latter may be
// nil. Every part of tokenizer.json that would change ids or text and is not supported is an error.
func New(tokenizerJSON, tokenizerConfigJSON []byte) (*Tokenizer, error) {
	return newFromFiles(tokenizerJSON, configFiles{config: tokenizerConfigJSON})
}

func newFromFiles(tokenizerJSON []byte, files configFiles) (*Tokenizer, error) {
	settings, err := parseSettings(files)
	if err != nil {
		return nil, err
	}
	var file struct {
		Model         json.RawMessage `json:"model"`
		AddedTokens   []addedToken    `json:"added_tokens"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"`
	}
	fail := func(part string, err error) (*Tokenizer, error) {
		if part != "" {
			part = ": " + part
		}
		return nil, fmt.Errorf("tokenizer.json%s: %w", part, err)
	}
	if err := json.Unmarshal(tokenizerJSON, &file); err != nil {
		return fail("", err)
	}
	t := &Tokenizer{settings: settings}
	if t.normalize, err = parseNormalizer(file.Normalizer, 0); err != nil {
		return fail("normalizer", err)
	}
	pre, err := parsePreTokenizer(file.PreTokenizer, 0)
	if err != nil {
		return fail("pre_tokenizer", err)
	}
	t.pre = pre
	vocab, err := t.parseModel(file.Model, pre)
	if err != nil {
		return fail("", err)
	}
	added, err := withConfigTokens(file.AddedTokens, vocab, &settings)
	if err != nil {
		return fail("added_tokens", err)
	}
	if err := t.setVocab(vocab, added); err != nil {
		return fail("", err)
	}
	if t.decoder, err = parseDecoder(file.Decoder); err != nil {
		return fail("decoder", err)
	}
	t.setBytes()
	if t.template, err = parsePostProcessor(file.PostProcessor, t.ID, 0); err != nil {
		return fail("post_processor", err)
	}
	t.settings.resolve(t)
	return t, nil
}

// parseModel reads the "model" of tokenizer.json and returns its vocabulary.
func (t *Tokenizer) parseModel(raw json.RawMessage, pre preSequence) (map[string]int32, error) {
	if isNull(raw) {
		return nil, errors.New(`has no "model"`)
	}
	var m struct {
		Type         string          `json:"type"`
		Vocab        json.RawMessage `json:"vocab"`
		Merges       json.RawMessage `json:"merges"`
		UnkToken     string          `json:"unk_token"`
		UnkID        *int32          `json:"unk_id"`
		FuseUnk      bool            `json:"fuse_unk"`
		ByteFallback bool            `json:"byte_fallback"`
		IgnoreMerges bool            `json:"ignore_merges"`
		Prefix       string          `json:"continuing_subword_prefix"`
		Suffix       string          `json:"end_of_word_suffix"`
		Dropout      *float64        `json:"dropout"`
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if m.Type == "" { // files from before the field existed
		m.Type = "BPE"
		if bytes.HasPrefix(m.Vocab, []byte("[")) {
			m.Type = "Unigram"
		}
	}
	switch m.Type {
	case "BPE":
		if m.Dropout != nil && *m.Dropout != 0 {
			return nil, fmt.Errorf("model.dropout is %v: random tokenization is not supported, set it to null", *m.Dropout)
		}
		c := bpeConfig{unk: m.UnkToken, fuseUnk: m.FuseUnk, byteFallback: m.ByteFallback, ignoreMerges: m.IgnoreMerges,
			prefix: m.Prefix, suffix: m.Suffix}
		if err := json.Unmarshal(m.Vocab, &c.vocab); err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
		var err error
		if c.merges, err = parseMerges(m.Merges); err != nil {
			return nil, fmt.Errorf("model.merges%w", err)
		}
		// Where the bytes are spelled out last, the spelling is left out on both sides.
		if n := len(pre); n > 0 {
			if last, ok := pre[n-1].(*byteLevel); ok {
				last.raw, c.raw = true, true
			}
		}
		model, err := newBPE(c)
		t.model = model
		return c.vocab, err
	case "Unigram":
		var entries [][2]any
		if err := json.Unmarshal(m.Vocab, &entries); err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
		tokens, scores, vocab := make([]string, len(entries)), make([]float64, len(entries)), make(map[string]int32, len(entries))
		for i, e := range entries {
			token, ok1 := e[0].(string)
			score, ok2 := e[1].(float64)
			if !ok1 || !ok2 {
				return nil, fmt.Errorf("model.vocab[%d] is not a pair of a text and a score", i)
			}
			tokens[i], scores[i], vocab[token] = token, score, int32(i)
		}
		unk := int32(-1)
		if m.UnkID != nil {
			if unk = *m.UnkID; unk < 0 {
				return nil, fmt.Errorf("model.unk_id is %d", unk)
			}
		}
		model, err := newUnigram(tokens, scores, unk, m.ByteFallback)
		t.model = model
		return vocab, err
	}
	return nil, fmt.Errorf("model: %w (supported: BPE, Unigram)", unsupported(m.Type))
}

// parseMerges reads merges written as "a b" or as pairs.
func parseMerges(raw json.RawMessage) ([][2]string, error) {
	if isNull(raw) {
		return nil, nil
	}
	if inner, ok := bytes.CutPrefix(raw, []byte("[")); ok && bytes.HasPrefix(bytes.TrimLeft(inner, " \t\r\n"), []byte("[")) {
		var pairs [][]string
		if err := json.Unmarshal(raw, &pairs); err != nil {
			return nil, fmt.Errorf(": %w", err)
		}
		merges := make([][2]string, len(pairs))
		for i, p := range pairs {
			if len(p) != 2 {
				return nil, fmt.Errorf("[%d] has %d parts instead of 2", i, len(p))
			}
			merges[i] = [2]string{p[0], p[1]}
		}
		return merges, nil
	}
	var lines []string
	if err := json.Unmarshal(raw, &lines); err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	return splitMerges(lines)
}

// splitMerges splits merges written as "a b".
func splitMerges(lines []string) ([][2]string, error) {
	merges := make([][2]string, 0, len(lines))
	for i, line := range lines {
		if strings.HasPrefix(line, "#version") {
			continue
		}
		a, b, ok := strings.Cut(line, " ")
		if !ok || strings.Contains(b, " ") {
			return nil, fmt.Errorf("[%d]: %q is not two tokens with one space between", i, line)
		}
		merges = append(merges, [2]string{a, b})
	}
	return merges, nil
}

// setVocab fills the tables between entries and ids, and the sets of added tokens.
func (t *Tokenizer) setVocab(vocab map[string]int32, added []addedToken) error {
	// Ids may leave gaps, but not so many that a small file asks for a large table.
	limit := 2*(len(vocab)+len(added)) + 1<<16
	size := 0
	for token, id := range vocab {
		if id < 0 || int(id) >= limit {
			return fmt.Errorf("model.vocab: the id %d of %q is out of range", id, token)
		}
		size = max(size, int(id)+1)
	}
	for i, a := range added {
		if a.ID < 0 || int(a.ID) >= limit {
			return fmt.Errorf("added_tokens[%d]: the id %d of %q is out of range", i, a.ID, a.Content)
		}
		size = max(size, int(a.ID)+1)
	}
	t.tokens, t.special = make([]string, size), make([]bool, size)
	t.ids = make(map[string]int32, len(vocab)+len(added))
	taken := make([]bool, size)
	for token, id := range vocab {
		if taken[id] {
			return fmt.Errorf("model.vocab: %q and %q both have the id %d", t.tokens[id], token, id)
		}
		taken[id], t.tokens[id], t.ids[token] = true, token, id
	}
	for i, a := range added {
		if len(a.Content) > maxAddedToken {
			return fmt.Errorf("added_tokens[%d]: longer than %d bytes", i, maxAddedToken)
		}
		if a.Content == "" {
			continue
		}
		if id, ok := vocab[a.Content]; ok {
			a.ID = id // the model's own id counts
		} else if taken[a.ID] && t.tokens[a.ID] != a.Content {
			return fmt.Errorf("added_tokens[%d]: %q and %q both have the id %d", i, t.tokens[a.ID], a.Content, a.ID)
		}
		if id, ok := t.ids[a.Content]; ok && id != a.ID {
			return fmt.Errorf("added_tokens[%d]: %q has the ids %d and %d", i, a.Content, id, a.ID)
		}
		taken[a.ID], t.tokens[a.ID], t.ids[a.Content], t.special[a.ID] = true, a.Content, a.ID, a.Special
		if a.normalized() {
			t.addedNormalized.add(t.normalize.apply(a.Content), a)
		} else {
			t.addedRaw.add(a.Content, a)
		}
	}
	return nil
}

// setBytes fills the table of the bytes of each entry.
func (t *Tokenizer) setBytes() {
	t.offsets = make([]uint32, len(t.tokens)+1)
	for i, token := range t.tokens {
		t.text = append(t.text, t.decoder.bytes(token, false)...)
		t.offsets[i+1] = uint32(len(t.text))
	}
}

// Encode returns the ids of text. Added tokens written in the text, special ones included, are
// recognised. With addSpecial the model's template is applied, which usually puts BOS in front.
// Invalid UTF-8 counts as U+FFFD. A tokenizer.json's "truncation" and "padding" are not applied.
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 {
	ids := make([]int32, 0, len(text)/3+8)
	if addSpecial {
		ids = append(ids, t.template.before...)
	}
	ids = t.encode(ids, text, false)
	if addSpecial {
		ids = append(ids, t.template.after...)
	}
	return ids
}

// EncodePlain is Encode for text that must not contain control tokens: special tokens written in the
// text are encoded as ordinary text (other added tokens, such as "<think>" of some models, are still
// recognised), and no template is applied.
func (t *Tokenizer) EncodePlain(text string) []int32 {
	return t.encode(make([]int32, 0, len(text)/3+8), text, true)
}

func (t *Tokenizer) encode(ids []int32, text string, plain bool) []int32 {
	found := func(id int32) { ids = append(ids, id) }
	word := func(p piece) { ids = t.model.encode(ids, p.text) }
	text = validText(text)
	t.addedRaw.cut(text, plain, func(from, to int) {
		part := t.normalize.apply(text[from:to])
		t.addedNormalized.cut(part, plain, func(partFrom, partTo int) {
			t.pre.split(piece{part[partFrom:partTo], from == 0 && partFrom == 0}, word)
		}, found)
	}, found)
	return ids
}

// Decode returns the text of ids, without special tokens if skipSpecial is set. Unknown ids contribute
// nothing. Bytes that are not UTF-8 become U+FFFD, one for each maximal invalid part.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.Stream(skipSpecial)
	for _, id := range ids {
		s.push(id)
	}
	return s.rest()
}

// Token returns the entry of id as the vocabulary writes it ("Ġthe", "▁the", "<0x0A>"), "" if there is none.
func (t *Tokenizer) Token(id int32) string {
	if !t.valid(id) {
		return ""
	}
	return t.tokens[id]
}

// TokenBytes returns the bytes that id contributes to a text, not necessarily whole characters; nil if
// there is no such id. Callers must not modify them.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	if !t.valid(id) {
		return nil
	}
	from, to := t.offsets[id], t.offsets[id+1]
	return t.text[from:to:to]
}

// ID returns the id of an entry, written as the vocabulary writes it.
func (t *Tokenizer) ID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// IsSpecial reports whether id is a special token, that is, one that skipSpecial leaves out.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.valid(id) && t.special[id] }

// VocabSize is one more than the largest id. A model's logits may be longer than that.
func (t *Tokenizer) VocabSize() int { return len(t.tokens) }

func (t *Tokenizer) valid(id int32) bool { return id >= 0 && int(id) < len(t.tokens) }

// BOS returns the beginning-of-sequence id, if there is one.
func (t *Tokenizer) BOS() (id int32, ok bool) { return t.named("bos_token") }

// EOS returns the end-of-sequence id, if there is one.
func (t *Tokenizer) EOS() (id int32, ok bool) { return t.named("eos_token") }

// PAD returns the padding id, if there is one.
func (t *Tokenizer) PAD() (id int32, ok bool) { return t.named("pad_token") }

// UNK returns the unknown-token id, if there is one.
func (t *Tokenizer) UNK() (id int32, ok bool) { return t.named("unk_token") }

func (t *Tokenizer) named(name string) (int32, bool) {
	token, ok := t.settings.special[name]
	if !ok {
		return 0, false
	}
	return t.ID(token)
}

// EOSIDs returns the end-of-sequence ids that the tokenizer's own files name. A model's
// generation_config.json may add others.
func (t *Tokenizer) EOSIDs() []int32 { return slices.Clone(t.settings.eos) }

// StopIDs returns EOSIDs and the well-known end-of-turn tokens the vocabulary has, in ascending order.
func (t *Tokenizer) StopIDs() []int32 { return slices.Clone(t.settings.stop) }

// SpecialTokens returns the texts of the named special tokens ("bos_token", "eos_token", …), as chat
// templates refer to them.
func (t *Tokenizer) SpecialTokens() map[string]string { return maps.Clone(t.settings.special) }

// Config returns the parsed tokenizer_config.json, which may be empty. Callers must not modify it.
func (t *Tokenizer) Config() map[string]any { return t.settings.config }

// ChatTemplates returns the sources of the default chat template, "" if there is none, and of the named
// ones.
func (t *Tokenizer) ChatTemplates() (def string, named map[string]string) {
	return t.settings.template, maps.Clone(t.settings.templates)
}
