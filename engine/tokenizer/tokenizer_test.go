package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

// byteVocab is a complete small tokenizer.json: the 256 bytes, a few merges and two added tokens.
// replace pairs change parts of it.
func byteVocab(replace ...string) []byte {
	vocab := make(map[string]int)
	for b, s := range byteChars {
		vocab[s] = b
	}
	for _, s := range []string{"ab", "abc"} {
		vocab[s] = len(vocab)
	}
	v, err := json.Marshal(vocab)
	if err != nil {
		panic(err)
	}
	return []byte(strings.NewReplacer(replace...).Replace(fmt.Sprintf(`{
		"added_tokens": [{"id": 258, "content": "<s>", "special": true}, {"id": 259, "content": "<t>", "normalized": false}],
		"normalizer": null,
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
		"post_processor": null,
		"decoder": {"type": "ByteLevel"},
		"model": {"type": "BPE", "unk_token": null, "vocab": %s, "merges": ["a b", "ab c"]}}`, v)))
}

func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	units := []string{" ", "  ", "\n", "a", "the", "The", "é", "e\u0301", "漢", "😀", "👩‍👩‍👧", "1", "<|im_end|>", "<s>", "'s", "\t", "\x00", "\u3000", "Ġ", "<0x41>"}
	for _, name := range []string{"bytes", "llama3", "gemma", "qwen"} {
		tok := load(t, name)
		for range 300 {
			var b strings.Builder
			for range r.IntN(20) {
				b.WriteString(units[r.IntN(len(units))])
			}
			text := b.String()
			want := text
			if name == "qwen" { // normalizes to NFC
				want = unicodeForm(text, false, true)
			}
			ids := tok.Encode(text, false)
			if got := tok.Decode(ids, false); got != want {
				t.Fatalf("%s: %q came back as %q", name, want, got)
			}
			var raw []byte
			for _, id := range ids {
				raw = append(raw, tok.TokenBytes(id)...)
			}
			if string(raw) != want {
				t.Fatalf("%s: the bytes of the tokens of %q are %q", name, want, raw)
			}
			if got := strings.Join(segments(tok.Stream(false), ids), ""); got != want {
				t.Fatalf("%s: %q was streamed as %q", name, want, got)
			}
		}
	}
}

// TestStreamAnyIDs: whatever the ids are, a stream says what Decode says, in valid UTF-8.
func TestStreamAnyIDs(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, name := range append([]string{"bytes"}, goldenNames...) {
		tok := load(t, name)
		for range 300 {
			ids := make([]int32, r.IntN(40))
			for i := range ids {
				ids[i] = int32(r.IntN(tok.VocabSize()+20) - 10)
			}
			for _, skip := range []bool{false, true} {
				got := segments(tok.Stream(skip), ids)
				for _, s := range got {
					if !utf8.ValidString(s) {
						t.Fatalf("%s: %v streamed a broken character: %q", name, ids, got)
					}
				}
				if joined, want := strings.Join(got, ""), tok.Decode(ids, skip); joined != want {
					t.Fatalf("%s: %v\n streamed %q\n decoded  %q", name, ids, joined, want)
				}
			}
		}
	}
}

// TestSplitEmoji: no piece of a character that spans tokens is ever shown.
func TestSplitEmoji(t *testing.T) {
	tok := load(t, "bytes")
	s := tok.Stream(false)
	var shown []string
	for _, id := range tok.Encode("a😀漢b", false) {
		shown = append(shown, s.Add(id))
	}
	want := []string{"a", "", "", "", "😀", "", "", "漢", "b"}
	if !slices.Equal(shown, want) || s.Finish() != "" {
		t.Errorf("shown %q, want %q", shown, want)
	}
	s.Add(tok.Encode("😀", false)[0])
	if got := s.Finish(); got != "\uFFFD" {
		t.Errorf("a cut character ends as %q", got)
	}
	if got := s.Add(tok.Encode("x", false)[0]); got != "x" {
		t.Errorf("a stream does not start afresh after Finish: %q", got)
	}
}

func TestInvalidUTF8(t *testing.T) {
	tok := load(t, "bytes")
	for in, want := range map[string]string{
		"\xff": "\uFFFD", "a\xe6\xbcb": "a\uFFFDb", "\xf0\x9f\x98": "\uFFFD", "\xc0\x80": "\uFFFD\uFFFD",
		"\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD", "\xf4\x90": "\uFFFD\uFFFD", "é\xc3": "é\uFFFD", "\xe6\xe6\xbc\xa2": "\uFFFD漢",
	} {
		if got := validText(in); got != want {
			t.Errorf("validText(%q) = %q, want %q", in, got, want)
		}
		ids := make([]int32, len(in))
		for i := range len(in) {
			ids[i], _ = tok.ID(byteChars[in[i]])
		}
		if got := tok.Decode(ids, false); got != want {
			t.Errorf("Decode of %q = %q, want %q", in, got, want)
		}
		if got := tok.Decode(tok.Encode(in, false), false); got != want {
			t.Errorf("%q came back as %q, want %q", in, got, want)
		}
	}
}

func TestUnknownIDs(t *testing.T) {
	tok := load(t, "qwen")
	for _, id := range []int32{-1, -1 << 31, int32(tok.VocabSize()), 1<<31 - 1} {
		if tok.Token(id) != "" || tok.TokenBytes(id) != nil || tok.IsSpecial(id) || tok.Decode([]int32{id}, false) != "" || tok.Stream(true).Add(id) != "" {
			t.Errorf("id %d is not empty", id)
		}
	}
}

func TestEncodePlain(t *testing.T) {
	tok := load(t, "qwen")
	text := "a<|im_end|>b<think>c"
	plain := tok.EncodePlain(text)
	end, _ := tok.ID("<|im_end|>")
	think, _ := tok.ID("<think>")
	if slices.Contains(plain, end) {
		t.Error("EncodePlain made a special token")
	}
	if !slices.Contains(plain, think) {
		t.Error("EncodePlain missed an added token that is not special")
	}
	if got := tok.Decode(plain, true); got != text {
		t.Errorf("came back as %q", got)
	}
	if ids := load(t, "llama3").EncodePlain("x"); len(ids) != 1 {
		t.Errorf("EncodePlain applied a template: %v", ids)
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := load(t, "smollm2")
	text := benchText()[:20000]
	want := tok.Encode(text, true)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				if got := tok.Encode(text, true); !slices.Equal(got, want) {
					t.Error("concurrent Encode differs")
				}
				if tok.Decode(want, false) != text {
					t.Error("concurrent Decode differs")
				}
			}
		})
	}
	wg.Wait()
}

// TestLongWords: texts without a place to split take no more than n log n steps; with anything
// quadratic this test would take minutes.
func TestLongWords(t *testing.T) {
	const size = 1 << 17
	for _, name := range goldenNames {
		tok := load(t, name)
		for _, unit := range []string{"a", " ", "ab", "\u0301"} {
			text := strings.Repeat(unit, size/len(unit))
			if got := tok.Decode(tok.Encode(text, false), false); name != "qwen" && got != text && name != "llama2" {
				t.Errorf("%s: a run of %q came back with %d of %d bytes", name, unit, len(got), len(text))
			}
		}
	}
}

// TestHeapAgreesWithScan: the two ways to merge give the same ids.
func TestHeapAgreesWithScan(t *testing.T) {
	tok := load(t, "smollm2")
	m := tok.model.(*bpe)
	words := strings.Fields(benchText()[:50000])
	for _, w := range append(words, strings.Repeat("ab", 40), strings.Repeat("the", 30), strings.Repeat("a", 77)) {
		short := m.mergeShort(nil, &mergeScratch{id: m.symbols(nil, w)})
		long := m.mergeLong(nil, &mergeScratch{id: m.symbols(nil, w)})
		if !slices.Equal(short, long) {
			t.Fatalf("%q: %v and %v", w, short, long)
		}
	}
}

func TestSpecialTokens(t *testing.T) {
	tok := load(t, "bytes")
	if id, ok := tok.EOS(); !ok || tok.Token(id) != "<|im_end|>" {
		t.Errorf("EOS = %d %v", id, ok)
	}
	if id, ok := tok.PAD(); !ok || tok.Token(id) != "<|endoftext|>" {
		t.Errorf("PAD = %d %v", id, ok)
	}
	if _, ok := tok.BOS(); ok {
		t.Error("there is no BOS")
	}
	if _, ok := tok.UNK(); ok {
		t.Error("there is no UNK")
	}
	if got := tok.EOSIDs(); !slices.Equal(got, []int32{258}) {
		t.Errorf("EOSIDs = %v", got)
	}
	if got := tok.StopIDs(); !slices.Equal(got, []int32{256, 258}) {
		t.Errorf("StopIDs = %v", got)
	}
	if def, _ := tok.ChatTemplates(); !strings.Contains(def, "<|im_start|>") {
		t.Errorf("template %q", def)
	}
	if tok.Config()["model_max_length"] != 2048.0 {
		t.Errorf("config %v", tok.Config())
	}
	if tok.Decode([]int32{257, 97, 258}, true) != tok.Token(97) && tok.Decode([]int32{257, 97, 258}, true) != "a" {
		t.Errorf("special tokens are not skipped: %q", tok.Decode([]int32{257, 97, 258}, true))
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name, config string
		check        func(t *testing.T, tok *Tokenizer)
	}{
		{"token as object, bos on", `{"bos_token": {"content": "<s>"}, "add_bos_token": true}`, func(t *testing.T, tok *Tokenizer) {
			if got := tok.Encode("x", true); !slices.Equal(got, []int32{258, 'x'}) {
				t.Errorf("Encode = %v", got)
			}
		}},
		{"eos on", `{"eos_token": "<s>", "add_eos_token": true}`, func(t *testing.T, tok *Tokenizer) {
			if got := tok.Encode("x", true); !slices.Equal(got, []int32{'x', 258}) {
				t.Errorf("Encode = %v", got)
			}
			if got := tok.Encode("x", false); !slices.Equal(got, []int32{'x'}) {
				t.Errorf("Encode without special = %v", got)
			}
		}},
		{"several eos", `{"eos_token": ["<s>", "<t>", "nope"]}`, func(t *testing.T, tok *Tokenizer) {
			if got := tok.EOSIDs(); !slices.Equal(got, []int32{258, 259}) {
				t.Errorf("EOSIDs = %v", got)
			}
		}},
		{"named token that is a plain entry", `{"pad_token": "abc"}`, func(t *testing.T, tok *Tokenizer) {
			if got := tok.Encode("xabcx", false); !slices.Equal(got, []int32{'x', 257, 'x'}) || !tok.IsSpecial(257) {
				t.Errorf("Encode = %v", got)
			}
		}},
		{"tokens only the config declares", `{"added_tokens_decoder": {"260": {"content": "<u>", "special": true}, "258": {"content": "<other>"}}}`, func(t *testing.T, tok *Tokenizer) {
			if got := tok.Encode("a<u>b", false); !slices.Equal(got, []int32{'a', 260, 'b'}) || tok.VocabSize() != 261 {
				t.Errorf("Encode = %v", got)
			}
			if tok.Token(258) != "<s>" {
				t.Errorf("token 258 = %q", tok.Token(258))
			}
		}},
		{"templates by name", `{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}`, func(t *testing.T, tok *Tokenizer) {
			if def, named := tok.ChatTemplates(); def != "D" || named["tool_use"] != "T" {
				t.Errorf("%q %v", def, named)
			}
		}},
		{"templates as an object", `{"chat_template": {"default": "D", "x": "X"}}`, func(t *testing.T, tok *Tokenizer) {
			if def, named := tok.ChatTemplates(); def != "D" || named["x"] != "X" {
				t.Errorf("%q %v", def, named)
			}
		}},
		{"null", `null`, func(t *testing.T, tok *Tokenizer) {
			if len(tok.Config()) != 0 {
				t.Errorf("%v", tok.Config())
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := New(byteVocab(`"!": `, `"!": `), []byte(c.config))
			if err != nil {
				t.Fatal(err)
			}
			remapped(t, tok)
			c.check(t, tok)
		})
	}
}

// remapped checks that byteVocab gives each byte its own value as id, as the tests write ids as bytes.
func remapped(t *testing.T, tok *Tokenizer) {
	t.Helper()
	if got := tok.Encode("ax", false); !slices.Equal(got, []int32{'a', 'x'}) {
		t.Fatalf("Encode = %v", got)
	}
}

func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "has no tokenizer.json") {
		t.Errorf("empty folder: %v", err)
	}
	write("tokenizer.json", string(byteVocab()))
	write("special_tokens_map.json", `{"eos_token": {"content": "<s>"}, "bos_token": "<t>"}`)
	write("chat_template.json", `{"chat_template": "from json"}`)
	check := func(wantTemplate string, wantNamed, wantSpecial map[string]string) {
		t.Helper()
		tok, err := Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		if def, named := tok.ChatTemplates(); def != wantTemplate || !maps.Equal(named, wantNamed) {
			t.Errorf("templates %q %v, want %q %v", def, named, wantTemplate, wantNamed)
		}
		if got := tok.SpecialTokens(); !maps.Equal(got, wantSpecial) {
			t.Errorf("special tokens %v, want %v", got, wantSpecial)
		}
	}
	check("from json", map[string]string{}, map[string]string{"eos_token": "<s>", "bos_token": "<t>"})
	write("tokenizer_config.json", `{"chat_template": "from config", "eos_token": "<t>"}`)
	check("from config", map[string]string{}, map[string]string{"eos_token": "<t>", "bos_token": "<t>"})
	write("chat_template.jinja", "from jinja")
	write("additional_chat_templates/tool_use.jinja", "tools")
	check("from jinja", map[string]string{"tool_use": "tools"}, map[string]string{"eos_token": "<t>", "bos_token": "<t>"})
	write("tokenizer_config.json", `{`)
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "tokenizer_config.json") {
		t.Errorf("broken config: %v", err)
	}
}

// TestUntrusted: broken and hostile files are errors that name the part.
func TestUntrusted(t *testing.T) {
	nested := func(kind, key string) string {
		s := "null"
		for range 200 {
			s = fmt.Sprintf(`{"type": "Sequence", %q: [%s]}`, key, s)
		}
		return fmt.Sprintf("%q: %s", kind, s)
	}
	regexSplit := func(pattern string) string {
		p, _ := json.Marshal(pattern)
		return `"pre_tokenizer": {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": ` + string(p) + `}}`
	}
	const pre = `"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}`
	const merges = `"merges": ["a b", "ab c"]`
	for _, c := range []struct{ name, old, new, want string }{
		{"id far out", `"abc":257`, `"abc":2000000000`, `model.vocab: the id 2000000000 of "abc" is out of range`},
		{"negative id", `"abc":257`, `"abc":-1`, "out of range"},
		{"id is not an int32", `"abc":257`, `"abc":99999999999`, "model.vocab"},
		{"id is a fraction", `"abc":257`, `"abc":1.5`, "model.vocab"},
		{"duplicate id", `"abc":257`, `"abc":256`, "both have the id 256"},
		{"added id far out", `"id": 259`, `"id": 2000000000`, `added_tokens[1]: the id 2000000000 of "<t>" is out of range`},
		{"added id taken", `"id": 259`, `"id": 5`, "both have the id 5"},
		{"added token with two ids", `"<t>"`, `"<s>"`, "has the ids 258 and 259"},
		{"merge of unknown tokens", merges, `"merges": ["a b", "q zz"]`, `model.merges[1]`},
		{"merge into an unknown token", merges, `"merges": ["x y"]`, `"xy" is not in model.vocab`},
		{"merge without a space", merges, `"merges": ["ab"]`, "model.merges[0]"},
		{"merge with three parts", merges, `"merges": ["a b c"]`, "model.merges[0]"},
		{"merge pair of three", merges, `"merges": [["a", "b", "c"]]`, "3 parts"},
		{"merges of numbers", merges, `"merges": [1, 2]`, "model.merges"},
		{"no model", `"model":`, `"modle":`, `has no "model"`},
		{"unknown model", `"BPE"`, `"WordPiece"`, `"WordPiece" is not supported`},
		{"dropout", `"unk_token": null`, `"dropout": 0.1`, "model.dropout is 0.1"},
		{"unknown unk token", `"unk_token": null`, `"unk_token": "<unk>"`, `model.unk_token "<unk>"`},
		{"unknown pre-tokenizer", `{"type": "ByteLevel", "add`, `{"type": "UnicodeScripts", "add`, `pre_tokenizer: type "UnicodeScripts" is not supported`},
		{"pre-tokenizer without a type", `{"type": "ByteLevel", "add`, `{"add`, `pre_tokenizer: has no "type"`},
		{"nested pre-tokenizers", pre, nested("pre_tokenizer", "pretokenizers"), "nested too deeply"},
		{"nested normalizers", `"normalizer": null`, nested("normalizer", "normalizers"), "nested too deeply"},
		{"nested post-processors", `"post_processor": null`, nested("post_processor", "processors"), "nested too deeply"},
		{"nested decoders", `"decoder": {"type": "ByteLevel"}`, nested("decoder", "decoders"), "nested too deeply"},
		{"regex blow-up", pre, regexSplit(`(a+)+$`), "timeout"},
		{"bad regex", pre, regexSplit(`(`), "pattern"},
		{"unbalanced regex", pre, regexSplit(`a)b`), "unbalanced"},
		{"class intersection", pre, regexSplit(`[\p{L}&&a]`), "intersections"},
		{"POSIX class", pre, regexSplit(`[[:alpha:]]`), "not supported"},
		{"long regex", pre, regexSplit(strings.Repeat("a", 1<<15)), "longer than"},
		{"unknown behavior", pre, `"pre_tokenizer": {"type": "Split", "behavior": "Melted", "pattern": {"String": " "}}`, `behavior "Melted"`},
		{"empty pattern", pre, `"pre_tokenizer": {"type": "Split", "behavior": "Isolated", "pattern": {"String": ""}}`, "pattern"},
		{"no pattern", pre, `"pre_tokenizer": {"type": "Split", "behavior": "Isolated"}`, "pattern is missing"},
		{"unknown normalizer", `"normalizer": null`, `"normalizer": {"type": "BertNormalizer"}`, `normalizer: type "BertNormalizer"`},
		{"bad charsmap", `"normalizer": null`, `"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAD/////"}`, "charsmap claims"},
		{"charsmap is not base64", `"normalizer": null`, `"normalizer": {"type": "Precompiled", "precompiled_charsmap": "%"}`, "base64"},
		{"unknown decoder", `{"type": "ByteLevel"}`, `{"type": "CTC"}`, `decoder: type "CTC"`},
		{"endless strip", `{"type": "ByteLevel"}`, `{"type": "Strip", "content": " ", "start": 1000000000, "stop": 0}`, "start 1000000000"},
		{"unsupported decoder order", `"decoder": {"type": "ByteLevel"}`, `"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}`, "decoders[1]"},
		{"template with an unknown token", `"post_processor": null`, `"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<x>"}}, {"Sequence": {"id": "A"}}]}`, `"<x>" is not a token`},
		{"template without the text", `"post_processor": null`, `"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}`, "names the text 0 times"},
		{"template as text with B", `"post_processor": null`, `"post_processor": {"type": "TemplateProcessing", "single": "<s> $B"}`, "second text"},
		{"huge template", `"post_processor": null`, `"post_processor": {"type": "TemplateProcessing", "single": [` + strings.Repeat(`{"SpecialToken": {"id": "<s>"}},`, 100) + `{"Sequence": {"id": "A"}}]}`, "more than 64"},
		{"long added token", `"<t>"`, `"` + strings.Repeat("t", 5000) + `"`, "longer than 1024"},
		{"not JSON", `"model"`, `model`, "tokenizer.json: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := byteVocab(c.old, c.new)
			if string(data) == string(byteVocab()) {
				t.Fatalf("%q does not occur", c.old)
			}
			_, err := New(data, nil)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "tokenizer.json") {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	for _, c := range []struct{ model, want string }{
		{`{"type": "Unigram", "vocab": []}`, "empty"},
		{`{"type": "Unigram", "vocab": [["a", 1]], "unk_id": 5}`, "unk_id 5"},
		{`{"type": "Unigram", "vocab": [["a", 1]], "unk_id": -2}`, "unk_id is -2"},
		{`{"type": "Unigram", "vocab": [["a", "b"]]}`, "model.vocab[0]"},
		{`{"type": "Unigram", "vocab": [[1, 2]]}`, "model.vocab[0]"},
		{`{"type": "Unigram", "vocab": {"a": 1}}`, "model.vocab"},
		{`{"type": "Unigram", "vocab": [["` + strings.Repeat("a", 3000) + `", 1]]}`, "longer than"},
		{`{"type": "BPE", "vocab": [1]}`, "model.vocab"},
		{`{"type": "BPE"}`, "model.vocab"},
		{`7`, "model"},
	} {
		if _, err := New([]byte(`{"model": `+c.model+`}`), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: error %v, want %q", c.model, err, c.want)
		}
	}
	for _, data := range []string{"", "null", "[]", "{}", strings.Repeat("[", 100000), `{"model": ` + strings.Repeat(`{"a":`, 50000)} {
		if _, err := New([]byte(data), nil); err == nil {
			t.Errorf("%.20q is accepted", data)
		}
	}
	if _, err := New(byteVocab(), []byte(`{"added_tokens_decoder": {"x": {}}}`)); err == nil || !strings.Contains(err.Error(), "tokenizer_config.json") {
		t.Errorf("bad added_tokens_decoder: %v", err)
	}
}

func TestTranslatePattern(t *testing.T) {
	for in, want := range map[string]string{
		`a++b*+c?+`:                `(?>a+)(?>b*)(?>c?)`,
		`[^\r\n]?+\p{L}+?`:         `(?>[^\r\n]?)\p{L}+?`,
		`(?:ab|c)++`:               `(?>(?:ab|c)+)`,
		`(?i:'s)|s(?=y)(?<!z)`:     `(?i:'[sſ])|s(?=y)(?<!z)`,
		`(?i)s(?-i:S)ſ`:            `(?i)[sſ](?-i:S)[sſ]`,
		`((?i)s)s(?i:[sd][^s]a)`:   `((?i)[sſ])s(?i:[sdsſ][^ssſ]a)`,
		`(?i:[a-z]+[t]\s)`:         `(?i:[a-zsſ]+[t]\s)`,
		`(?i:[sz-][a\-s\\-])`:      `(?i:[sz\-sſ][a\-s\\\-sſ])`,
		`(?i)(?<size>s)\k<size>`:   `(?i)(?<size>[sſ])\k<size>`,
		`(?i)(?<=s)(?'s'a)`:        `(?i)(?<=[sſ])(?'s'a)`,
		`\x{4E00}-\x{2E}`:          `一-\.`,
		`[^(\s|[.,])]+`:            `[^(\s|.,)]+`,
		`[]a]`:                     `[\]a]`,
		`a{,3}b{2}c{2,}d{x}`:       `a{0,3}b{2}c{2,}d{x}`,
		`\p{^L}\P{^L}`:             `\P{L}\p{L}`,
		`(?m:.)`:                   `(?s:.)`,
		`\++`:                      `\++`,
		`a{2,3}?`:                  `a{2,3}?`,
		`a(?:b){1,3}+c{2}*`:        `a(?:(?:b){1,3})+(?:c{2})*`,
		`x[\p{L}&&[^\p{Han}a]]+`:   `x[\p{L}-[\p{Han}a]]+`,
		`[\p{L}\x{3040}-\x{309F}]`: "[\\p{L}\\u3040-ゟ]",
	} {
		if got, err := translatePattern(in); err != nil || got != want {
			t.Errorf("translatePattern(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, bad := range []string{`a)`, `[a`, `\`, `[[:alpha:]]`, `[a&&b]`, `[^a&&[^b]]`, `[a&&[^b]c]`, `[a&&[^b`, `[a[^b]]`, `\x{FFFFFF}`, `\h`} {
		if got, err := translatePattern(bad); err == nil {
			t.Errorf("translatePattern(%q) = %q", bad, got)
		}
	}
}

// TestKnownPatterns compares the hand-written scanners with the general engine on the same patterns.
func TestKnownPatterns(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	units := []string{" ", "  ", "\n", "\r", "\t", "a", "B", "é", "Éa", "ʰ", "ǅ", "漢", "한", "\u0301", "\u093f", "1", "22", "٣", "½", "'", "'s", "'LL", "'re", ".", "/", "_", "😀", "\u00a0", "\u200d", "\x00", "Ⅳ"}
	for pattern := range knownPatterns {
		general, err := compileRegex(pattern)
		if err != nil {
			t.Errorf("%q: %v", pattern, err)
			continue
		}
		scanner, err := newRegexMatcher(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := scanner.(*wordScanner); !ok {
			t.Fatalf("%q is not recognised", pattern)
		}
		for range 400 {
			var b strings.Builder
			for range r.IntN(14) {
				b.WriteString(units[r.IntN(len(units))])
			}
			text := b.String()
			collect := func(m matcher) (words []string) {
				m.each(text, func(from, to int) { words = append(words, text[from:to]) })
				return words
			}
			if got, want := collect(scanner), collect(general); !slices.Equal(got, want) {
				t.Fatalf("%q\n on %+q\n got  %+q\n want %+q", pattern, text, got, want)
			}
		}
	}
}

// TestLongS: where case means nothing, s is ſ, in letters and classes, as the library of
// recorded tokenizers has it.
func TestLongS(t *testing.T) {
	for pattern, want := range map[string]string{
		`(?i:'s)|z+`:          "a 'ſ b",
		`'(?i:[sdmt]|ll)`:     "a 'ſ b",
		`'(?i:[a-z])`:         "a 'ſ b",
		`(?i)'s`:              "a 'ſ b",
		`(?i:'[^s])`:          "a'ſb",
		`(?i:x(?-i:'s))|'s|ſ`: "a' ſ b",
		`(?i:\w'ſ)`:           "a'ſ b",
		`(?i:'[sz-])`:         "a 'ſ b",
		`(?i)(?<s>'s)`:        "a 'ſ b",
	} {
		re, err := compileRegex(pattern)
		if err != nil {
			t.Fatal(err)
		}
		const text = "a'ſb"
		var got []string
		last := 0
		re.each(text, func(start, end int) {
			got, last = append(got, text[last:start], text[start:end]), end
		})
		got = slices.DeleteFunc(append(got, text[last:]), func(s string) bool { return s == "" })
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %q, want %q", pattern, s, want)
		}
	}
}
