// Package tokenizer turns text into token ids and back, exactly as the model
// was trained: the ids equal those of Hugging Face tokenizers for the same
// tokenizer.json, and those of the GGUF vocabulary kinds "gpt2", "llama" and
// "gemma4".
//
// The way in: added tokens are cut out of the text (added.go), the rest is
// normalized (normalize.go), split into words (pretokenize.go; scan.go for the
// well-known patterns, regex.go for all others), and every word becomes ids
// (bpe.go, unigram.go); a template may put special tokens around the result
// (postprocess.go). The way out: every id has its bytes (decode.go); Stream
// hands them out token by token without ever cutting a character (stream.go).
// config.go reads the files beside tokenizer.json, gguf.go maps a GGUF
// vocabulary onto the same parts.
//
// Read Tokenizer first. It is immutable and safe for concurrent use.
//
// tokenizer.json is untrusted input: a bad file is an error that names the
// part, never a panic, a hang or a large allocation. Character properties are
// those of Go's Unicode tables; characters younger than these may split
// differently than in the original.
//
// What must never live here: chat template rendering, reasoning and tool-call
// parsing, stop strings (engine/chat, engine/decode), reading of GGUF files
// (engine/checkpoint), and any import of another package of this module.
package tokenizer
