package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// GGUFMeta is the vocabulary of a GGUF file, the values of its tokenizer.ggml.* keys. Absent keys stay
// zero or nil.
type GGUFMeta struct {
	Model        string    // tokenizer.ggml.model: "gpt2", "llama" or "gemma4"
	Pre          string    // tokenizer.ggml.pre: how "gpt2" text is split; "" means "default"
	Tokens       []string  // tokenizer.ggml.tokens
	Scores       []float32 // tokenizer.ggml.scores ("llama")
	Types        []int32   // tokenizer.ggml.token_type
	Merges       []string  // tokenizer.ggml.merges ("gpt2", "gemma4")
	BOS          *int32    // tokenizer.ggml.bos_token_id
	EOS          *int32    // tokenizer.ggml.eos_token_id
	EOT          *int32    // tokenizer.ggml.eot_token_id
	EOM          *int32    // tokenizer.ggml.eom_token_id
	UNK          *int32    // tokenizer.ggml.unknown_token_id
	PAD          *int32    // tokenizer.ggml.padding_token_id
	AddBOS       *bool     // tokenizer.ggml.add_bos_token
	AddEOS       *bool     // tokenizer.ggml.add_eos_token
	AddSpace     *bool     // tokenizer.ggml.add_space_prefix ("llama")
	ChatTemplate string    // tokenizer.chat_template
	// ChatTemplates holds tokenizer.chat_template.<name> by name.
	ChatTemplates map[string]string
}

// The values of tokenizer.ggml.token_type.
const (
	ggufNormal      = 1
	ggufUnknown     = 2
	ggufControl     = 3
	ggufUserDefined = 4
	ggufUnused      = 5
	ggufByte        = 6
)

// ggufPre says how a "gpt2" vocabulary splits text: the patterns apply one after the other.
type ggufPre struct {
	patterns     []string
	ignoreMerges bool
	addBOS       bool
	nfc          bool // the original tokenizer normalizes to NFC, which the file does not tell
}

const (
	reDigit        = `\p{N}`
	reDigits3      = `\p{N}{1,3}`
	reFalconPunct  = "[\\p{P}\\$\\+<=>\\^~\\|`]+"
	reDefaultPunct = `[\p{P}\$\+<=>\^~\|]+`
	reHanKana      = `[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+`
	reCJK          = `[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]+`
	reDeepSeek3    = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|" +
		`[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	reBloom     = ` ?[^(\s|.,!?…。，、।۔،)]+`
	reBailing   = `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`
	reSeedCoder = reContract + `|` + reWord + `|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`
	reMiniCPM   = reContract + `|` + reWord + `|\p{N}+` + reTail
	reExaoneMoE = reContract + `|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+`
	reTinyAya   = `\d{1,3}(?=(?:\d{3})*\b)`
	reLines     = `[^\n]+|[\n]+`
)

// ggufPres lists the known values of tokenizer.ggml.pre.
var ggufPres = func() map[string]ggufPre {
	all := make(map[string]ggufPre)
	put := func(p ggufPre, names ...string) {
		for _, name := range names {
			all[name] = p
		}
	}
	put(ggufPre{patterns: []string{reDefaultPunct, reGPT2, `\p{N}+`, `[0-9][0-9][0-9]`}}, "", "default")
	put(ggufPre{patterns: []string{reLlama3}, ignoreMerges: true, addBOS: true},
		"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano")
	put(ggufPre{patterns: []string{reLlama3}}, "dbrx", "smaug-bpe", "glm4", "chatglm-bpe")
	put(ggufPre{patterns: []string{reQwen2}, nfc: true}, "qwen2", "deepseek-r1-qwen")
	put(ggufPre{patterns: []string{reQwen2}}, "stablelm2", "kormo", "f2llmv2", "megrez", "hunyuan", "grok-2", "solar-open")
	put(ggufPre{patterns: []string{reQwen35}, nfc: true}, "qwen35")
	put(ggufPre{patterns: []string{reGPT2}}, "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "mpt", "olmo", "jais",
		"trillion", "granite-docling", "exaone4", "modern-bert", "roberta-bpe",
		"jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code")
	put(ggufPre{patterns: []string{reDigit, reGPT2}}, "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone",
		"minerva-7b", "mellum2")
	put(ggufPre{patterns: []string{reFalconPunct, reGPT2, `[0-9][0-9][0-9]`}}, "falcon")
	put(ggufPre{patterns: []string{reDigits3, reHanKana, reDeepSeek3}}, "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4")
	put(ggufPre{patterns: []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, reCJK, reDigit}}, "deepseek-coder")
	put(ggufPre{patterns: []string{reTekken}, ignoreMerges: true, addBOS: true}, "tekken")
	put(ggufPre{patterns: []string{reO200k}}, "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2")
	put(ggufPre{patterns: []string{reO200k}, ignoreMerges: true}, "granite-embed-multi-97m")
	put(ggufPre{patterns: []string{reTinyAya, reO200k}}, "tiny_aya", "cohere2moe")
	put(ggufPre{patterns: []string{reBloom}}, "bloom", "poro-chat", "gpt3-finnish")
	put(ggufPre{patterns: []string{reBloom, reDigit}}, "viking")
	put(ggufPre{patterns: []string{reBailing}}, "bailingmoe", "bailingmoe2", "llada-moe")
	put(ggufPre{patterns: []string{reSeedCoder}}, "seed-coder")
	put(ggufPre{patterns: []string{reDigits3, reMiniCPM}, ignoreMerges: true}, "minicpm5")
	put(ggufPre{patterns: []string{reExaoneMoE}}, "exaone-moe")
	put(ggufPre{patterns: []string{`\p{N}+`, `(?=(\d{3})+(?!\d))`}}, "superbpe")
	return all
}()

// FromGGUF builds a tokenizer from the vocabulary of a GGUF file. Its ids equal those of the tokenizer
// the file was converted from; where the file lacks a fact (Unicode normalization of "qwen2"), the
// known original is followed.
func FromGGUF(meta GGUFMeta) (*Tokenizer, error) {
	t, err := fromGGUF(&meta)
	if err != nil {
		return nil, fmt.Errorf("GGUF vocabulary: %w", err)
	}
	return t, nil
}

func fromGGUF(meta *GGUFMeta) (*Tokenizer, error) {
	if len(meta.Tokens) == 0 {
		return nil, errors.New("tokenizer.ggml.tokens is missing or empty")
	}
	if meta.Types != nil && len(meta.Types) != len(meta.Tokens) {
		return nil, fmt.Errorf("tokenizer.ggml.token_type has %d values for %d tokens", len(meta.Types), len(meta.Tokens))
	}
	vocab := make(map[string]int32, len(meta.Tokens))
	var added []addedToken
	no := false
	for i, token := range meta.Tokens {
		if token == "" {
			continue
		}
		if !utf8.ValidString(token) {
			return nil, fmt.Errorf("tokenizer.ggml.tokens[%d] is not UTF-8", i)
		}
		if other, ok := vocab[token]; ok {
			return nil, fmt.Errorf("tokenizer.ggml.tokens: %q has the ids %d and %d", token, other, i)
		}
		vocab[token] = int32(i)
		switch kind := meta.kind(i); kind {
		case ggufControl, ggufUnknown, ggufUserDefined:
			added = append(added, addedToken{ID: int32(i), Content: token, Special: kind != ggufUserDefined, Normalized: &no})
		}
	}
	t := &Tokenizer{decoder: &decoder{byteLevel: true}, pre: preSequence(nil)}
	var addBOS bool
	var err error
	switch meta.Model {
	case "gpt2":
		addBOS, err = t.setGGUFBytePairs(meta, vocab)
	case "llama":
		addBOS, err = true, t.setGGUFScores(meta, vocab)
	case "gemma4":
		addBOS, err = true, t.setGGUFGemma4(meta, vocab)
	default:
		err = fmt.Errorf("tokenizer.ggml.model %q is not supported (supported: gpt2, llama, gemma4)", meta.Model)
	}
	if err != nil {
		return nil, err
	}
	if err := t.setVocab(vocab, added); err != nil {
		return nil, err
	}
	t.setBytes()
	return t, t.setGGUFSettings(meta, addBOS)
}

// kind returns the type of token i; files without types mark nothing.
func (m *GGUFMeta) kind(i int) int32 {
	if m.Types != nil {
		return m.Types[i]
	}
	if _, ok := byteToken(m.Tokens[i]); ok {
		return ggufByte
	}
	return ggufNormal
}

// setGGUFBytePairs sets up a byte-level vocabulary.
func (t *Tokenizer) setGGUFBytePairs(meta *GGUFMeta, vocab map[string]int32) (addBOS bool, err error) {
	pre, ok := ggufPres[meta.Pre]
	if !ok {
		return false, fmt.Errorf("tokenizer.ggml.pre %q is not supported", meta.Pre)
	}
	merges, err := splitMerges(meta.Merges)
	if err != nil {
		return false, fmt.Errorf("tokenizer.ggml.merges%w", err)
	}
	var stages preSequence
	for _, pattern := range pre.patterns {
		m, err := newRegexMatcher(pattern)
		if err != nil {
			return false, err
		}
		stages = append(stages, &split{match: m})
	}
	t.pre = append(stages, &byteLevel{raw: true})
	if pre.nfc {
		t.normalize = normalizers{func(s string) string { return unicodeForm(s, false, true) }}
	}
	t.model, err = newBPE(bpeConfig{vocab: vocab, merges: merges, ignoreMerges: pre.ignoreMerges, raw: true})
	return pre.addBOS, err
}

// spaceMark stands for a space in SentencePiece vocabularies.
const spaceMark = "▁"

// setGGUFScores sets up a SentencePiece BPE vocabulary: two neighbours merge where their concatenation
// is an entry, highest score first.
func (t *Tokenizer) setGGUFScores(meta *GGUFMeta, vocab map[string]int32) error {
	if len(meta.Scores) != len(meta.Tokens) {
		return fmt.Errorf("tokenizer.ggml.scores has %d values for %d tokens", len(meta.Scores), len(meta.Tokens))
	}
	plain := func(id int32) bool {
		kind := meta.kind(int(id))
		return kind != ggufControl && kind != ggufUnknown && kind != ggufByte
	}
	var order []int32
	for _, id := range vocab {
		if score := float64(meta.Scores[id]); math.IsNaN(score) {
			return fmt.Errorf("tokenizer.ggml.scores[%d] is not a number", id)
		}
		if token := meta.Tokens[id]; plain(id) && len(token) <= maxUnigramEntry {
			order = append(order, id)
		}
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(meta.Scores[b], meta.Scores[a]), cmp.Compare(a, b))
	})
	c := bpeConfig{vocab: vocab, byteFallback: true, fuseUnk: true}
	if unk := meta.id(meta.UNK, 0); unk >= 0 {
		c.unk = meta.Tokens[unk]
	}
	m, err := newBPE(c)
	if err != nil {
		return err
	}
	rank := int32(-1)
	for i, id := range order {
		if i == 0 || meta.Scores[id] != meta.Scores[order[i-1]] {
			rank++ // equal scores rank equally
		}
		token := meta.Tokens[id]
		for cut := range token {
			if cut == 0 {
				continue
			}
			a, okA := vocab[token[:cut]]
			b, okB := vocab[token[cut:]]
			if okA && okB && plain(a) && plain(b) {
				m.merges.put(a, b, rank, id)
			}
		}
	}
	t.model = m
	addSpace := meta.AddSpace == nil || *meta.AddSpace
	t.setSpaceMarks(addSpace)
	return nil
}

// setSpaceMarks makes spaces visible on the way in, after putting one in front if addSpace is set, and
// undoes both on the way out.
func (t *Tokenizer) setSpaceMarks(addSpace bool) {
	if addSpace {
		t.normalize = append(t.normalize, func(s string) string { return spaceMark + s })
	}
	t.normalize = append(t.normalize, func(s string) string { return strings.ReplaceAll(s, " ", spaceMark) })
	t.decoder = &decoder{byteFallback: true, trim: ' '}
	t.decoder.stages = append(t.decoder.stages, func(token string, _ bool) string {
		return strings.ReplaceAll(token, spaceMark, " ")
	})
	if addSpace {
		t.decoder.trimStart = 1
	}
}

// setGGUFGemma4 sets up the vocabulary of Gemma 4: BPE with merges over text with visible spaces, line by
// line; runs of line breaks are entries.
func (t *Tokenizer) setGGUFGemma4(meta *GGUFMeta, vocab map[string]int32) error {
	merges, err := splitMerges(meta.Merges)
	if err != nil {
		return fmt.Errorf("tokenizer.ggml.merges%w", err)
	}
	lines, err := newRegexMatcher(reLines)
	if err != nil {
		return err
	}
	c := bpeConfig{vocab: vocab, merges: merges, byteFallback: true, fuseUnk: true}
	if unk := meta.id(meta.UNK, -1); unk >= 0 {
		c.unk = meta.Tokens[unk]
	}
	m, err := newBPE(c)
	if err != nil {
		return err
	}
	m.whole = make(map[string]int32)
	for token, id := range vocab {
		if strings.Trim(token, "\n") == "" {
			m.whole[token] = id
		}
	}
	t.model, t.pre = m, preSequence{&split{match: lines}}
	t.setSpaceMarks(false)
	return nil
}

// id returns the id a key gives, or the default of the kind, or -1 if the vocabulary lacks it.
func (m *GGUFMeta) id(given *int32, otherwise int32) int32 {
	if given != nil {
		otherwise = *given
	}
	if otherwise < 0 || int(otherwise) >= len(m.Tokens) || m.Tokens[otherwise] == "" {
		return -1
	}
	return otherwise
}

// setGGUFSettings fills in named tokens, chat templates and what is put around a text.
func (t *Tokenizer) setGGUFSettings(meta *GGUFMeta, addBOS bool) error {
	bos, eos, unk := int32(-1), int32(-1), int32(-1)
	if meta.Model == "llama" {
		bos, eos, unk = 1, 2, 0
	}
	s := settings{special: map[string]string{}, templates: map[string]string{}, template: meta.ChatTemplate}
	for name, text := range meta.ChatTemplates {
		s.templates[name] = text
	}
	if s.template == "" {
		s.template = s.templates["default"]
	}
	for _, named := range []struct {
		name, key string
		given     *int32
		otherwise int32
	}{
		{"bos_token", "bos_token_id", meta.BOS, bos}, {"eos_token", "eos_token_id", meta.EOS, eos},
		{"unk_token", "unknown_token_id", meta.UNK, unk}, {"pad_token", "padding_token_id", meta.PAD, -1},
	} {
		id := meta.id(named.given, named.otherwise)
		if id < 0 && named.given != nil && *named.given >= 0 {
			return fmt.Errorf("tokenizer.ggml.%s is %d, but there are %d tokens", named.key, *named.given, len(meta.Tokens))
		}
		if id >= 0 {
			s.special[named.name] = meta.Tokens[id]
		}
	}
	if text, ok := s.special["eos_token"]; ok {
		s.eosTokens = append(s.eosTokens, text)
	}
	for _, given := range []*int32{meta.EOT, meta.EOM} {
		if id := meta.id(given, -1); id >= 0 {
			s.eosTokens = append(s.eosTokens, meta.Tokens[id])
		}
	}
	if meta.AddBOS != nil {
		addBOS = *meta.AddBOS
	}
	s.config = map[string]any{"add_bos_token": addBOS, "add_eos_token": meta.AddEOS != nil && *meta.AddEOS}
	t.settings = s
	t.settings.resolve(t)
	return nil
}
