package tokenizer

import "errors"

// GGUFMeta is the vocabulary of a GGUF file, the values of its tokenizer.ggml.* keys. Absent keys stay
// zero or nil.
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
func FromGGUF(meta GGUFMeta) (*Tokenizer, error) { return nil, errors.New("TODO") }
