package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// sampleBytes are read at the beginning, in the middle and at the end of a tensor.
const sampleBytes = 256

// Fingerprint names what the checkpoint holds: two that differ in configuration,
// in the name, type, shape or sampled bytes of any tensor, or in the size or date
// of a file have different ones. It reads a few hundred bytes of each tensor, not
// all: whoever edits weights in place, keeps the sizes and sets the date back
// escapes it. Call it before Rename.
func (c *Checkpoint) Fingerprint() string {
	h := sha256.New()
	number := func(n int64) { binary.Write(h, binary.LittleEndian, n) }
	text := func(s string) {
		number(int64(len(s)))
		h.Write([]byte(s))
	}
	text(string(c.raw))
	for _, f := range c.files {
		text(filepath.Base(f.path))
		number(int64(len(f.data)))
		if info, err := os.Stat(f.path); err == nil {
			number(info.ModTime().UnixNano())
		}
	}
	for _, name := range c.Names() {
		e := c.tensors[name]
		text(e.name)
		text(fmt.Sprint(e.dtype, e.block, e.shape, e.heads, e.shift))
		n := len(e.data)
		number(int64(n))
		for _, at := range []int{0, n / 2, n - sampleBytes} {
			at = max(at, 0)
			h.Write(e.data[at:min(at+sampleBytes, n)])
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
