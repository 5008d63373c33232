package tokenizer

import (
	"os"
	"strings"
	"testing"
)

// benchText is 1 MB of text in several languages, code and numbers, without short repetitions: words are
// drawn from lists by a fixed generator. bench_hf.py builds the same text.
func benchText() string {
	words := strings.Fields(`the of and to in is that it for was on are with as be this have from or had by not but what
		some we can out other were all there when up use your how said each she which their time will way about many
		tokenizer benchmark measurement understanding international characteristic straightforward
		été naïve façade Straße Übergröße mañana corazón Привет мир хорошо человек 漢字 日本語 中文测试 한국어 텍스트 العربية עברית हिन्दी ไทย 😀 👍🏽
		def return func(x) if(a==b){ }; foo_bar += self.value[0] != None # // <div> "quoted" 3.14159 2024 1,000,000 http://example.com/a?b=c`)
	var b strings.Builder
	state := uint32(12345)
	next := func(n int) int {
		state = state*1664525 + 1013904223
		return int(state>>8) % n
	}
	for b.Len() < 1<<20 {
		b.WriteString(words[next(len(words))])
		switch r := next(40); {
		case r == 0:
			b.WriteString(".\n\n")
		case r == 1:
			b.WriteString("\n    ")
		case r == 2:
			b.WriteString(", ")
		case r < 8:
			for range 2 + next(6) { // a word of its own
				b.WriteByte(byte('a' + next(26)))
			}
			b.WriteByte(' ')
		default:
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// BenchmarkEncode measures one thread; compare with bench_hf.py. The text is written to BENCH_TEXT if that
// is set, for the peer to read.
func BenchmarkEncode(b *testing.B) {
	text := benchText()
	if path := os.Getenv("BENCH_TEXT"); path != "" {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range goldenNames {
		b.Run(name, func(b *testing.B) {
			tok := load(b, name)
			b.SetBytes(int64(len(text)))
			tokens := 0
			for b.Loop() {
				tokens = len(tok.Encode(text, false))
			}
			b.ReportMetric(float64(tokens), "tokens")
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := load(b, "smollm2")
	ids := tok.Encode(benchText(), false)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			tok.Decode(ids, false)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/token")
	})
	b.Run("stream", func(b *testing.B) {
		for b.Loop() {
			s := tok.Stream(false)
			for _, id := range ids {
				s.Add(id)
			}
			s.Finish()
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/token")
	})
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		load(b, "smollm2")
	}
}
