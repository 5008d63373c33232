package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzNew: any file is a tokenizer that works or an error.
func FuzzNew(f *testing.F) {
	f.Add(byteVocab(), []byte(`{"eos_token": "<s>", "added_tokens_decoder": {"7": {"content": "x"}}}`), "ab <s>")
	for _, name := range []string{"added", "behavior-removed", "unigram-bytes", "metaspace-bpe"} {
		data, err := os.ReadFile(filepath.Join("testdata", "kinds", name+".json"))
		if err != nil {
			f.Fatal(err)
		}
		data = data[len(`{"tokenizer":`):slices.Index(data, '\n')]
		if i := strings.Index(string(data), `,"cases":`); i > 0 {
			data = data[:i]
		}
		f.Add(data, []byte("{}"), "Hello <w> é")
	}
	f.Fuzz(func(t *testing.T, file, config []byte, text string) {
		if strings.Contains(string(file), "Regex") {
			t.Skip() // hostile patterns run into their time limit, which is slow
		}
		tok, err := New(file, config)
		if err != nil {
			return
		}
		ids := tok.Encode(text, true)
		tok.EncodePlain(text)
		if got, want := strings.Join(segments(tok.Stream(false), ids), ""), tok.Decode(ids, false); got != want {
			t.Errorf("streamed %q, decoded %q", got, want)
		}
	})
}

// FuzzText: any text goes in, and comes out again as it was.
func FuzzText(f *testing.F) {
	byName := make(map[string]*Tokenizer)
	for _, name := range []string{"bytes", "smollm2", "llama3", "qwen", "gemma", "llama2"} {
		byName[name] = load(f, name)
	}
	for _, s := range []string{"", "Hello, world!", "漢字😀 <|im_end|>", "\xff\xe6\xbc", "'s don't  \n\n", "<0x41>▁", strings.Repeat("e\u0301", 20)} {
		f.Add(s)
	}
	// The alphabet of SmolLM2 lacks some bytes (controls, and those of unassigned planes), and it has no
	// unknown token: they are dropped.
	var lost []byte
	for b := range 256 {
		if _, ok := byName["smollm2"].ID(byteChars[b]); !ok {
			lost = append(lost, byte(b))
		}
	}
	if len(lost) != 21 {
		f.Fatalf("SmolLM2 drops %q", lost)
	}
	f.Fuzz(func(t *testing.T, text string) {
		valid := validText(text)
		for name, tok := range byName {
			ids := tok.Encode(text, false)
			got := tok.Decode(ids, false)
			switch name {
			case "qwen": // normalizes to NFC
				if want := unicodeForm(valid, false, true); !strings.Contains(valid, "<|") && got != want {
					t.Errorf("%s: %q came back as %q", name, want, got)
				}
			case "gemma", "llama2": // spell spaces as ▁
				if !strings.ContainsAny(valid, "▁<") && got != valid {
					t.Errorf("%s: %q came back as %q", name, valid, got)
				}
			default:
				want := valid
				if name == "smollm2" {
					want = validText(string(slices.DeleteFunc([]byte(valid), func(b byte) bool { return slices.Contains(lost, b) })))
				}
				if got != want {
					t.Errorf("%s: %q came back as %q", name, want, got)
				}
			}
		}
	})
}

// FuzzStream: any ids stream as they decode.
func FuzzStream(f *testing.F) {
	toks := []*Tokenizer{load(f, "bytes"), load(f, "llama2"), load(f, "smollm2")}
	f.Add([]byte{0, 0, 1, 2, 250, 1, 3}, true)
	f.Add([]byte("\xe6\xbc\xa2 a"), false)
	f.Fuzz(func(t *testing.T, data []byte, skip bool) {
		for _, tok := range toks {
			var ids []int32
			for i := 0; i+1 < len(data); i += 2 {
				ids = append(ids, int32(data[i])<<8|int32(data[i+1]))
			}
			for _, b := range data {
				ids = append(ids, int32(b))
			}
			got := segments(tok.Stream(skip), ids)
			for _, s := range got {
				if !utf8.ValidString(s) {
					t.Errorf("%q is cut", s)
				}
			}
			if want := tok.Decode(ids, skip); strings.Join(got, "") != want {
				t.Errorf("streamed %q, decoded %q", got, want)
			}
		}
	})
}

// FuzzGGUF: any vocabulary is a tokenizer that works or an error.
func FuzzGGUF(f *testing.F) {
	f.Add("llama", "", "<unk>,<s>,</s>,▁,a,▁a,<0x0A>", "", []byte{2, 3, 3, 1, 1, 1, 6}, int32(1), "a a\n")
	f.Add("gpt2", "qwen2", "a,b,ab,<s>", "a b", []byte{1, 1, 1, 3}, int32(3), "ab<s>")
	f.Add("gemma4", "", "a,b,ab,\n\n", "a b", []byte{1, 1, 1, 4}, int32(-1), "ab\n\n")
	f.Fuzz(func(t *testing.T, model, pre, tokens, merges string, types []byte, bos int32, text string) {
		meta := GGUFMeta{Model: model, Pre: pre, Tokens: strings.Split(tokens, ","), BOS: &bos}
		if merges != "" {
			meta.Merges = strings.Split(merges, ",")
		}
		for i := range meta.Tokens {
			meta.Scores = append(meta.Scores, float32(-i))
			if i < len(types) {
				meta.Types = append(meta.Types, int32(types[i]))
			}
		}
		tok, err := FromGGUF(meta)
		if err != nil {
			return
		}
		ids := tok.Encode(text, true)
		if got, want := strings.Join(segments(tok.Stream(true), ids), ""), tok.Decode(ids, true); got != want {
			t.Errorf("streamed %q, decoded %q", got, want)
		}
	})
}
