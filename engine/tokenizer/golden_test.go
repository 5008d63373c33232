package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goldenNames are the folders of testdata with cases.json and stream.json, recorded from Hugging Face
// tokenizers 0.23.3 and mlx-lm 0.32.2.
var goldenNames = []string{"smollm2", "qwen", "llama3", "gemma", "llama2"}

func load(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func readJSON(t testing.TB, to any, path ...string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, to); err != nil {
		t.Fatal(err)
	}
}

type goldenCases struct {
	VocabSize int `json:"vocab_size"`
	Cases     []struct {
		Text               string   `json:"text"`
		IDs                []int32  `json:"ids"`
		IDsNoSpecial       []int32  `json:"ids_no_special"`
		Tokens             []string `json:"tokens"`
		Decoded            string   `json:"decoded"`
		DecodedSkipSpecial string   `json:"decoded_skip_special"`
	} `json:"cases"`
}

func TestGoldenCases(t *testing.T) {
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			var golden goldenCases
			readJSON(t, &golden, name, "cases.json")
			if len(golden.Cases) != 97 {
				t.Fatalf("%d cases, want 97", len(golden.Cases))
			}
			if tok.VocabSize() != golden.VocabSize {
				t.Errorf("VocabSize = %d, want %d", tok.VocabSize(), golden.VocabSize)
			}
			for _, c := range golden.Cases {
				if got := tok.Encode(c.Text, true); !slices.Equal(got, c.IDs) {
					t.Errorf("Encode(%q, true) = %v, want %v", c.Text, got, c.IDs)
				}
				got := tok.Encode(c.Text, false)
				if !slices.Equal(got, c.IDsNoSpecial) {
					t.Errorf("Encode(%q, false) = %v, want %v", c.Text, got, c.IDsNoSpecial)
				}
				for i, id := range c.IDsNoSpecial {
					if tok.Token(id) != c.Tokens[i] {
						t.Errorf("Token(%d) = %q, want %q", id, tok.Token(id), c.Tokens[i])
					}
				}
				if got := tok.Decode(c.IDsNoSpecial, false); got != c.Decoded {
					t.Errorf("Decode(%q, false) = %q, want %q", c.Text, got, c.Decoded)
				}
				if got := tok.Decode(c.IDs, true); got != c.DecodedSkipSpecial {
					t.Errorf("Decode(%q, true) = %q, want %q", c.Text, got, c.DecodedSkipSpecial)
				}
			}
		})
	}
}

// streamDeviations lists the recorded streams that we do not follow, by tokenizer and index in stream.json.
// The recording server loses text there: the streamed text differs from the decoded text, which is a
// decision of this project to do right.
var streamDeviations = map[string]map[int]string{
	"smollm2": {1: firstSpace, 7: byteZero, 20: firstSpace, 21: firstSpace, 22: firstSpace, 26: firstSpace},
	"qwen":    {1: firstSpace, 7: byteZero},
	"llama3":  {1: firstSpace, 7: byteZero, 21: firstSpace},
}

const (
	firstSpace = "the recording drops the space a byte-level text starts with"
	byteZero   = "the recording writes byte 0 as the two bytes of U+0100"
)

// TestGoldenStream compares the pieces of text that a stream hands out after each token, and at the end.
func TestGoldenStream(t *testing.T) {
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			tok := load(t, name)
			var golden struct {
				Cases []struct {
					Kind          string   `json:"kind"`
					IDs           []int32  `json:"ids"`
					Segments      []string `json:"segments"`
					FinalizeError *string  `json:"finalize_error"`
				} `json:"cases"`
			}
			readJSON(t, &golden, name, "stream.json")
			for i, c := range golden.Cases {
				got := segments(tok.Stream(false), c.IDs)
				if text, want := strings.Join(got, ""), tok.Decode(c.IDs, false); text != want {
					t.Errorf("case %d (%s): streamed %q, decoded %q", i, c.Kind, text, want)
				}
				want := slices.Clone(c.Segments)
				switch streamDeviations[name][i] {
				case firstSpace:
					want = withFirstSpace(want)
				case byteZero:
					for j := range want {
						want[j] = strings.ReplaceAll(want[j], "\u0100", "\x00")
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("case %d (%s):\n ids %v\n got  %q\n want %q", i, c.Kind, c.IDs, got, want)
				}
				if streamDeviations[name][i] != "" && c.FinalizeError == nil && slices.Equal(got, c.Segments) {
					t.Errorf("case %d (%s) does not deviate", i, c.Kind)
				}
			}
		})
	}
}

// withFirstSpace puts a space in front of the first text of segments.
func withFirstSpace(segments []string) []string {
	segments = slices.Clone(segments)
	for i := range segments {
		if segments[i] != "" {
			segments[i] = " " + segments[i]
			break
		}
	}
	return segments
}

func segments(s *Stream, ids []int32) []string {
	var out []string
	for _, id := range ids {
		out = append(out, s.Add(id))
	}
	return append(out, s.Finish())
}
