// Package tokenizer turns text into token ids and back, exactly as the model
// was trained: the ids equal those of Hugging Face tokenizers for the same
// tokenizer.json, and those of the GGUF vocabulary kinds "gpt2" and "llama".
//
// The way in: added tokens are cut out of the text (added.go), the rest is
// normalized (normalize.go), split into words (pretokenize.go, scan.go), and
// every word becomes ids (bpe.go, unigram.go); a template may put special
// tokens around the result (postprocess.go). The way out: every id has its
// bytes (decode.go); Stream hands them out token by token without ever cutting
// a character (stream.go).
//
// Read Tokenizer first. It is immutable and safe for concurrent use.
//
// tokenizer.json is untrusted input: a bad file is an error that names the
// part, never a panic, a hang or a large allocation.
//
// What must never live here: chat template rendering, reasoning and tool-call
// parsing, stop strings (engine/chat, engine/decode), reading of GGUF files
// (engine/checkpoint), and any import of another package of this module.
package tokenizer
