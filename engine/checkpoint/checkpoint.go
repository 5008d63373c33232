package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"sparkbar/engine/layout"
	"sparkbar/engine/wholefile"
)

// maxTensors bounds how many tensors one checkpoint may hold; the largest published ones hold a tenth of it.
const maxTensors = 1 << 20

// Checkpoint is an open model folder or GGUF file. Its methods may be called from several goroutines, except Rename
// and Close, which need it for themselves.
type Checkpoint struct {
	path     string // as given to Open, made clean
	config   object
	raw      []byte
	generate object
	meta     map[string]string
	gguf     *Metadata
	quant    quantization
	tensors  map[string]*entry
	indexed  map[string]string // tensor name -> shard, from the index file
	files    []mapped
	borrowed int  // files of others, before all else, see Overlay
	private  bool // files are read, not mapped

	mu     sync.Mutex // guards the copies
	copies [][]byte   // anonymous mappings
	arena  []byte     // free rest of the newest small one
	closed bool
}

// entry is one stored tensor.
type entry struct {
	name  string        // as stored, before any rename: what config.json calls it
	file  int           // index in Checkpoint.files
	dtype layout.DType  // 0 when scheme is a GGUF block kind
	block layout.Scheme // GGUF block kind, or 0
	shape []int
	data  []byte

	heads int     // GGUF llama family: rows are rope pairs interleaved within this many heads; 0: in order
	shift float32 // GGUF gemma: the file stores the norm weight plus one; -1 is added back. 0: as stored
}

// mapped is one weight file in memory.
type mapped struct {
	path  string
	data  []byte
	paged bool // backed by the file, not read
}

// object is a decoded JSON object and the name errors call it by.
type object struct {
	name   string
	values map[string]any
}

// Open maps the checkpoint at path: a folder with config.json and model*.safetensors (one file, or shards with or
// without an index), a .safetensors file, or a .gguf file (any shard of a split one). A .safetensors file whose name
// starts with "model" stands for its folder; any other one, such as adapters.safetensors, is opened alone. A folder
// without safetensors but with exactly one GGUF model opens that.
//
// Headers are checked completely, tensor data is not read. Errors name the file and, where there is one, the tensor.
func Open(path string) (*Checkpoint, error) { return open(path, false) }

func open(path string, private bool) (c *Checkpoint, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the model: %w", err)
	}
	c = &Checkpoint{path: filepath.Clean(path), tensors: map[string]*entry{}, private: private}
	defer func() {
		if err != nil {
			c.Close()
			c = nil
		}
	}()
	switch {
	case info.IsDir():
		err = c.openFolder(path)
	case strings.HasSuffix(strings.ToLower(path), ".gguf") || isGGUF(path):
		err = c.openGGUF(path)
	case strings.HasSuffix(strings.ToLower(path), ".safetensors"):
		err = c.openSafetensorsFile(path)
	default:
		err = fmt.Errorf("%s is neither a folder, a .safetensors nor a .gguf file; give the model's folder or its .gguf file", path)
	}
	return c, err
}

// isGGUF reports whether a file of another name begins as GGUF files do: the blobs
// of Ollama are named by their hash.
func isGGUF(path string) bool {
	f, _, err := wholefile.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && string(magic[:]) == "GGUF"
}

// Path is the path given to Open.
func (c *Checkpoint) Path() string { return c.path }

// Config is config.json, or for GGUF the metadata in the words of a Hugging Face config (model_type, hidden_size, …).
// Each call returns a fresh value with no recorded error. It is empty for a lone .safetensors file without one.
func (c *Checkpoint) Config() Config { return newConfig(c.config) }

// RawConfig is the text Config was decoded from; for GGUF it is generated. It may contain Infinity and NaN literals.
func (c *Checkpoint) RawConfig() []byte { return c.raw }

// GenerationConfig is generation_config.json; empty when there is none and for GGUF.
func (c *Checkpoint) GenerationConfig() Config { return newConfig(c.generate) }

// FileMetadata is the free text map of the safetensors headers (__metadata__), merged over shards.
func (c *Checkpoint) FileMetadata() map[string]string { return c.meta }

// GGUF is the typed metadata of a GGUF file, nil for other checkpoints.
func (c *Checkpoint) GGUF() *Metadata { return c.gguf }

// Has reports whether there is a tensor of that name.
func (c *Checkpoint) Has(name string) bool { return c.tensors[name] != nil }

// Names lists every tensor, sorted.
func (c *Checkpoint) Names() []string {
	names := make([]string, 0, len(c.tensors))
	for n := range c.tensors {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Bytes is the storage of all tensors.
func (c *Checkpoint) Bytes() int64 {
	var n int64
	for _, e := range c.tensors {
		n += int64(len(e.data))
	}
	return n
}

// Evict tells the system that the given stored bytes are not needed for now, because a backend has repacked them. They
// stay readable, from the file. It does nothing for copies and for files that were read instead of mapped.
func (c *Checkpoint) Evict(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.files {
		if f.paged && inside(f.data, b) {
			dropPages(b)
		}
	}
}

// inside reports whether b is a part of region.
func inside(region, b []byte) bool {
	if len(b) == 0 || len(region) == 0 {
		return false
	}
	lo, at := uintptr(unsafe.Pointer(&region[0])), uintptr(unsafe.Pointer(&b[0]))
	return at >= lo && at+uintptr(len(b)) <= lo+uintptr(len(region))
}

// Rename replaces every tensor name by what f returns for it and drops those for which keep is false. Names follow
// the stored ones into error texts and into the per-path entries of config.json, which keep meaning the stored names.
// It fails, and changes nothing, when two tensors would get one name.
func (c *Checkpoint) Rename(f func(name string) (newName string, keep bool)) error {
	renamed := make(map[string]*entry, len(c.tensors))
	for _, name := range c.Names() {
		to, keep := f(name)
		if !keep {
			continue
		}
		if other := renamed[to]; other != nil {
			return fmt.Errorf("%s: tensors %q and %q are both called %q; the file mixes two layouts, download the model again", c.path, other.name, c.tensors[name].name, to)
		}
		renamed[to] = c.tensors[name]
	}
	c.tensors = renamed
	return nil
}

// Tensor finds a tensor by name. Tensors in a GGUF block kind have no element type: read them with Matrix.
//
// Two kinds of GGUF tensors are corrected copies: biases of permuted llama heads, and gemma norms, which GGUF stores
// with one added.
func (c *Checkpoint) Tensor(name string) (Tensor, error) {
	e, err := c.find(name)
	if err != nil {
		return Tensor{}, err
	}
	if e.block != 0 {
		return Tensor{}, fmt.Errorf("%s: tensor %q is stored as %s blocks, not as plain numbers", c.files[e.file].path, e.name, e.block)
	}
	return Tensor{Name: name, DType: e.dtype, Shape: slices.Clone(e.shape), Data: c.corrected(e)}, nil
}

func (c *Checkpoint) find(name string) (*entry, error) {
	if c.closed {
		return nil, fmt.Errorf("%s: tensor %q: the checkpoint is closed", c.path, name)
	}
	if e := c.tensors[name]; e != nil {
		return e, nil
	}
	if file := c.indexed[name]; file != "" {
		return nil, fmt.Errorf("%s: tensor %q is missing: the index expects it in %s; download that file again", c.path, name, file)
	}
	return nil, fmt.Errorf("%s: tensor %q is missing; the model is incomplete or of another kind than its config says", c.path, name)
}

// Close unmaps everything. Slices handed out before must not be used afterwards.
func (c *Checkpoint) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	var errs []error
	for _, f := range c.files[min(c.borrowed, len(c.files)):] { // it may be closed twice
		errs = append(errs, freePages(f.data))
	}
	for _, b := range c.copies {
		errs = append(errs, freePages(b))
	}
	c.files, c.copies, c.arena, c.tensors = nil, nil, nil, nil
	if c.gguf != nil {
		c.gguf.values = nil
	}
	return errors.Join(errs...)
}

// mapFile adds the file at path and returns its index.
func (c *Checkpoint) mapFile(path string) (int, error) {
	f, err := mapFile(path, c.private)
	if err != nil {
		return 0, err
	}
	c.files = append(c.files, f)
	return len(c.files) - 1, nil
}

// alloc returns n zero bytes that live until Close, outside the Go heap where the system allows it. It is the Alloc of
// every Matrix of the checkpoint. A closed checkpoint allocates on the heap.
func (c *Checkpoint) alloc(n int) []byte {
	const chunk, align = 1 << 20, 64
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return make([]byte, n)
	}
	if n > chunk/4 {
		b := newPages(n)
		c.copies = append(c.copies, b)
		return b[:n:n]
	}
	size := (n + align - 1) / align * align
	if len(c.arena) < size {
		c.arena = newPages(chunk)
		c.copies = append(c.copies, c.arena)
	}
	b := c.arena[:n:n]
	c.arena = c.arena[size:]
	return b
}
