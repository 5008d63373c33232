package checkpoint

import (
	"maps"
	"slices"

	"sparkbar/engine/layout"
)

// OpenCopy is Open for files that another program may write anew while they are
// in use, as a trainer does: they are read, not mapped.
func OpenCopy(path string) (*Checkpoint, error) { return open(path, true) }

// Overlay returns c as it would be with the tensors of over in the place of its
// own of the same names (those that Rename has given). config.json keeps its say
// about how they are stored. The result has the memory of both, which must stay
// open as long as it is, and must be closed too.
func (c *Checkpoint) Overlay(over *Checkpoint) *Checkpoint {
	v := &Checkpoint{path: c.path, config: c.config, raw: c.raw, generate: c.generate, meta: c.meta, quant: c.quant,
		tensors: maps.Clone(c.tensors), files: slices.Concat(c.files, over.files), borrowed: len(c.files) + len(over.files)}
	for name, e := range over.tensors {
		put := *e
		put.file += len(c.files)
		if old := c.tensors[name]; old != nil {
			put.name = old.name
		}
		v.tensors[name] = &put
	}
	return v
}

// Form is how a tensor is stored: its shape, and its element type, which is 0 for
// GGUF blocks. Nil and 0 if there is no such tensor.
func (c *Checkpoint) Form(name string) (shape []int, t layout.DType) {
	if e := c.tensors[name]; e != nil {
		return slices.Clone(e.shape), e.dtype
	}
	return nil, 0
}

// Size is how many bytes a tensor takes as it is stored, 0 if there is none.
func (c *Checkpoint) Size(name string) int64 {
	if e := c.tensors[name]; e != nil {
		return int64(len(e.data))
	}
	return 0
}
