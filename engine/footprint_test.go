package engine

import (
	"testing"

	"sparkbar/engine/checkpoint"
)

// TestFootprint: the weights that a token reads are all those of the file, however
// they are stored.
func TestFootprint(t *testing.T) {
	for _, file := range []string{"blocks.gguf", "tiny-llama.gguf"} {
		c, err := checkpoint.Open("checkpoint/testdata/gguf/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if f := footprint(c); f.TotalBytes != c.Bytes() || f.ActiveBytes <= 0 || f.ActiveBytes > f.TotalBytes {
			t.Errorf("%s: %+v, %d bytes are stored", file, f, c.Bytes())
		}
		c.Close()
	}
}
