package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKinds compares small tokenizers of many kinds with what Hugging Face tokenizers made of the same
// texts (testdata/gen_kinds.py).
func TestKinds(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "kinds", "*.json"))
	if err != nil || len(files) != 53 {
		t.Fatalf("%d files instead of 53: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var golden struct {
				Tokenizer json.RawMessage `json:"tokenizer"`
				goldenCases
			}
			if err := json.Unmarshal(data, &golden); err != nil {
				t.Fatal(err)
			}
			tok, err := New(golden.Tokenizer, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range golden.Cases {
				if got := tok.Encode(c.Text, true); !slices.Equal(got, c.IDs) {
					t.Errorf("Encode(%q, true)\n got  %q\n want %q", c.Text, entries(tok, got), entries(tok, c.IDs))
				}
				if got := tok.Encode(c.Text, false); !slices.Equal(got, c.IDsNoSpecial) {
					t.Errorf("Encode(%q, false)\n got  %q\n want %q", c.Text, entries(tok, got), entries(tok, c.IDsNoSpecial))
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

func entries(tok *Tokenizer, ids []int32) []string {
	var out []string
	for _, id := range ids {
		out = append(out, tok.Token(id))
	}
	return out
}
