package tokenizer

import "errors"

var errTODO = errors.New("tokenizer: not yet implemented")

// Tokenizer converts between text and token ids. It is immutable and safe for concurrent use.
type Tokenizer struct{}

// Load reads the tokenizer of a model folder: tokenizer.json, and if present tokenizer_config.json,
// special_tokens_map.json, chat_template.jinja, chat_template.json and additional_chat_templates/*.jinja.
func Load(dir string) (*Tokenizer, error) { return nil, errTODO }

// New builds a tokenizer from the contents of tokenizer.json and tokenizer_config.json (the latter may be nil).
func New(tokenizerJSON, tokenizerConfigJSON []byte) (*Tokenizer, error) { return nil, errTODO }

// GGUFMeta is the vocabulary of a GGUF file, the values of its tokenizer.ggml.* keys. Absent keys stay zero or nil.
type GGUFMeta struct {
	Model        string    // tokenizer.ggml.model: "gpt2" or "llama"
	Pre          string    // tokenizer.ggml.pre: how "gpt2" text is split; "" means "default"
	Tokens       []string  // tokenizer.ggml.tokens
	Scores       []float32 // tokenizer.ggml.scores ("llama")
	Types        []int32   // tokenizer.ggml.token_type
	Merges       []string  // tokenizer.ggml.merges ("gpt2")
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

// FromGGUF builds a tokenizer from the vocabulary of a GGUF file.
func FromGGUF(meta GGUFMeta) (*Tokenizer, error) { return nil, errTODO }

// Encode returns the ids of text. Added and special tokens written in the text are recognised.
// addSpecial also applies the model's template (usually a leading BOS).
func (t *Tokenizer) Encode(text string, addSpecial bool) []int32 { return nil }

// EncodePlain is Encode without a template in which special tokens written in the text stay plain text.
func (t *Tokenizer) EncodePlain(text string) []int32 { return nil }

// Decode returns the text of ids; unknown ids contribute nothing.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string { return "" }

// Token returns the vocabulary entry of id as written in the file, "" if there is none.
func (t *Tokenizer) Token(id int32) string { return "" }

// TokenBytes returns the bytes id contributes to the text, nil if there is no such id.
func (t *Tokenizer) TokenBytes(id int32) []byte { return nil }

// ID returns the id of a vocabulary entry.
func (t *Tokenizer) ID(token string) (int32, bool) { return 0, false }

// IsSpecial reports whether id is a special (control) token.
func (t *Tokenizer) IsSpecial(id int32) bool { return false }

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return 0 }

// BOS returns the beginning-of-sequence id, if the model has one.
func (t *Tokenizer) BOS() (id int32, ok bool) { return 0, false }

// EOS returns the end-of-sequence id, if the model has one.
func (t *Tokenizer) EOS() (id int32, ok bool) { return 0, false }

// PAD returns the padding id, if the model has one.
func (t *Tokenizer) PAD() (id int32, ok bool) { return 0, false }

// UNK returns the unknown-token id, if the model has one.
func (t *Tokenizer) UNK() (id int32, ok bool) { return 0, false }

// EOSIDs returns the end-of-sequence ids the tokenizer's own files name.
func (t *Tokenizer) EOSIDs() []int32 { return nil }

// StopIDs returns EOSIDs plus the well-known end-of-turn tokens that the vocabulary holds.
func (t *Tokenizer) StopIDs() []int32 { return nil }

// SpecialTokens returns the named special tokens ("bos_token", "eos_token", …) as text, as chat templates see them.
func (t *Tokenizer) SpecialTokens() map[string]string { return nil }

// Config returns the parsed tokenizer_config.json. Callers must not modify it.
func (t *Tokenizer) Config() map[string]any { return nil }

// ChatTemplates returns the default chat template ("" if none) and all named ones.
func (t *Tokenizer) ChatTemplates() (def string, named map[string]string) { return "", nil }

// Stream returns a streaming detokenizer; the concatenation of what it returns equals Decode of the ids.
func (t *Tokenizer) Stream(skipSpecial bool) *Stream { return &Stream{} }

// Stream decodes one sequence token by token. It is not safe for concurrent use.
type Stream struct{}

// Add takes the next id and returns the text that became final.
func (s *Stream) Add(id int32) string { return "" }

// Finish returns the rest; incomplete characters become U+FFFD.
func (s *Stream) Finish() string { return "" }
