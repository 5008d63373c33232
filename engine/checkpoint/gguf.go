package checkpoint

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkbar/engine/layout"
)

// GGUF: "GGUF", version, tensor count, metadata count, the metadata, the tensor descriptions, padding to the
// alignment, tensor data. Everything is little endian. Dimensions are stored innermost first.

const (
	maxGGUFKeys   = 1 << 16
	maxGGUFShards = 1 << 10
	maxGGUFDims   = 4
)

// GGUF metadata types.
const (
	ggufU8 = iota
	ggufI8
	ggufU16
	ggufI16
	ggufU32
	ggufI32
	ggufF32
	ggufBool
	ggufString
	ggufArray
	ggufU64
	ggufI64
	ggufF64
)

// ggufSize is the width of the fixed-size metadata types, 0 for the others.
var ggufSize = [...]int{ggufU8: 1, ggufI8: 1, ggufU16: 2, ggufI16: 2, ggufU32: 4, ggufI32: 4, ggufF32: 4, ggufBool: 1, ggufU64: 8, ggufI64: 8, ggufF64: 8}

// ggufTypes are the tensor types that can be read, by their number in the file.
var ggufTypes = map[uint32]struct {
	dtype layout.DType
	block layout.Scheme
}{
	0: {layout.F32, 0}, 1: {layout.F16, 0}, 30: {layout.BF16, 0}, 28: {layout.F64, 0}, 24: {layout.I8, 0}, 25: {layout.I16, 0}, 26: {layout.I32, 0}, 27: {layout.I64, 0},
	2: {0, layout.Q4_0}, 3: {0, layout.Q4_1}, 6: {0, layout.Q5_0}, 7: {0, layout.Q5_1}, 8: {0, layout.Q8_0},
	10: {0, layout.Q2_K}, 11: {0, layout.Q3_K}, 12: {0, layout.Q4_K}, 13: {0, layout.Q5_K}, 14: {0, layout.Q6_K}, 20: {0, layout.IQ4_NL}, 39: {0, layout.GGUFMXFP4},
}

// ggufUnread names tensor types that exist but cannot be read, for the error.
var ggufUnread = map[uint32]string{
	9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}

// Metadata is the key-value part of a GGUF file (of the first shard of a split one). Values are decoded when asked
// for; ok is false when the key is absent or of another type. A nil Metadata, and one whose checkpoint is closed, has
// no keys.
type Metadata struct {
	values map[string]ggufValue
}

// ggufValue is one undecoded value, checked to be complete.
type ggufValue struct {
	kind uint32 // element type of an array
	list bool
	n    int
	raw  []byte
}

// Keys lists the keys, sorted.
func (m *Metadata) Keys() []string {
	if m == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(m.values))
}

// Has reports whether key is present.
func (m *Metadata) Has(key string) bool {
	_, ok := m.find(key)
	return ok
}

func (m *Metadata) find(key string) (ggufValue, bool) {
	if m == nil {
		return ggufValue{}, false
	}
	v, ok := m.values[key]
	return v, ok
}

// String is a string value.
func (m *Metadata) String(key string) (string, bool) {
	v, ok := m.find(key)
	if !ok || v.list || v.kind != ggufString {
		return "", false
	}
	return v.strings()[0], true
}

// Int is a value of any integer type.
func (m *Metadata) Int(key string) (int64, bool) {
	v, ok := m.find(key)
	if !ok || v.list {
		return 0, false
	}
	return v.int(0)
}

// Float is a value of a float or integer type.
func (m *Metadata) Float(key string) (float64, bool) {
	v, ok := m.find(key)
	if !ok || v.list {
		return 0, false
	}
	return v.float(0)
}

// Bool is a true or false value.
func (m *Metadata) Bool(key string) (value, ok bool) {
	v, ok := m.find(key)
	if !ok || v.list || v.kind != ggufBool {
		return false, false
	}
	return v.raw[0] != 0, true
}

// Strings is an array of strings, such as tokenizer.ggml.tokens. The result does not refer to the file.
func (m *Metadata) Strings(key string) ([]string, bool) {
	v, ok := m.find(key)
	if !ok || !v.list || v.kind != ggufString {
		return nil, false
	}
	return v.strings(), true
}

// Ints is an array of any integer type or of booleans, such as tokenizer.ggml.token_type. A single value counts as an
// array of one.
func (m *Metadata) Ints(key string) ([]int64, bool) { return ggufList(m, key, ggufValue.int) }

// Floats is an array of a float or integer type, such as tokenizer.ggml.scores. A single value counts as an array of
// one.
func (m *Metadata) Floats(key string) ([]float64, bool) { return ggufList(m, key, ggufValue.float) }

func ggufList[T any](m *Metadata, key string, read func(ggufValue, int) (T, bool)) ([]T, bool) {
	v, ok := m.find(key)
	if !ok || v.kind == ggufString {
		return nil, false
	}
	out := make([]T, v.n)
	for i := range out {
		if out[i], ok = read(v, i); !ok {
			return nil, false
		}
	}
	return out, true
}

func (v ggufValue) strings() []string {
	out := make([]string, v.n)
	raw := v.raw
	for i := range out {
		n := binary.LittleEndian.Uint64(raw)
		out[i] = string(raw[8 : 8+n])
		raw = raw[8+n:]
	}
	return out
}

func (v ggufValue) int(i int) (int64, bool) {
	le := binary.LittleEndian
	switch v.kind {
	case ggufU8, ggufBool:
		return int64(v.raw[i]), true
	case ggufI8:
		return int64(int8(v.raw[i])), true
	case ggufU16:
		return int64(le.Uint16(v.raw[2*i:])), true
	case ggufI16:
		return int64(int16(le.Uint16(v.raw[2*i:]))), true
	case ggufU32:
		return int64(le.Uint32(v.raw[4*i:])), true
	case ggufI32:
		return int64(int32(le.Uint32(v.raw[4*i:]))), true
	case ggufU64:
		u := le.Uint64(v.raw[8*i:])
		return int64(u), u <= math.MaxInt64
	case ggufI64:
		return int64(le.Uint64(v.raw[8*i:])), true
	}
	return 0, false
}

func (v ggufValue) float(i int) (float64, bool) {
	switch v.kind {
	case ggufF32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(v.raw[4*i:]))), true
	case ggufF64:
		return math.Float64frombits(binary.LittleEndian.Uint64(v.raw[8*i:])), true
	case ggufBool:
		return 0, false
	}
	n, ok := v.int(i)
	return float64(n), ok
}

// ggufReader walks a GGUF header. Every length is compared with what is left of the file before it is used.
type ggufReader struct {
	file []byte
	at   int
	err  error
}

func (r *ggufReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *ggufReader) bytes(n uint64, what string) []byte {
	if r.err == nil && n > uint64(len(r.file)-r.at) {
		r.fail("%s at byte %d needs %d bytes, the file has %d left: it is damaged or cut off", what, r.at, n, len(r.file)-r.at)
	}
	if r.err != nil {
		return nil
	}
	b := r.file[r.at : r.at+int(n)]
	r.at += int(n)
	return b
}

func (r *ggufReader) u32(what string) uint32 {
	if b := r.bytes(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *ggufReader) u64(what string) uint64 {
	if b := r.bytes(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *ggufReader) name(what string) string {
	n := r.u64("the length of " + what)
	if r.err == nil && n > maxName {
		r.fail("%s at byte %d claims %d bytes: the file is damaged", what, r.at, n)
	}
	return string(r.bytes(n, what))
}

func (r *ggufReader) value(key string) (v ggufValue) {
	what := fmt.Sprintf("metadata %q", key)
	v.kind, v.n = r.u32(what), 1
	if v.kind == ggufArray {
		v.list = true
		v.kind = r.u32(what)
		n := r.u64(what)
		if r.err == nil && n > uint64(len(r.file)-r.at) { // every element has at least one byte
			r.fail("%s claims %d elements, the file has %d bytes left: it is damaged or cut off", what, n, len(r.file)-r.at)
		}
		v.n = int(n)
	}
	if r.err != nil {
		return v
	}
	start := r.at
	switch {
	case v.kind == ggufString:
		for i := 0; i < v.n && r.err == nil; i++ {
			r.bytes(r.u64(what), what)
		}
	case int(v.kind) < len(ggufSize) && ggufSize[v.kind] > 0:
		r.bytes(uint64(v.n)*uint64(ggufSize[v.kind]), what)
	default:
		r.fail("%s has the unknown type %d", what, v.kind)
	}
	v.raw = r.file[start:r.at:r.at]
	return v
}

// parseGGUF checks the header of a whole file in memory and returns its metadata and its tensors as views, with the
// names the file uses.
func parseGGUF(file []byte) (*Metadata, []*entry, error) {
	r := &ggufReader{file: file}
	if string(r.bytes(4, "the magic")) != "GGUF" {
		return nil, nil, fmt.Errorf("this is not a GGUF file")
	}
	version := r.u32("the version")
	tensors, keys := r.u64("the tensor count"), r.u64("the metadata count")
	left := uint64(len(file) - r.at)
	switch {
	case r.err != nil:
		return nil, nil, r.err
	case version&0xffff == 0:
		return nil, nil, fmt.Errorf("this is a big-endian GGUF file; get the little-endian one")
	case version != 2 && version != 3:
		return nil, nil, fmt.Errorf("GGUF version %d cannot be read, versions 2 and 3 can; convert the model again", version)
	case keys > maxGGUFKeys || keys > left/13: // key length, type, one byte
		return nil, nil, fmt.Errorf("the header claims %d metadata entries in %d bytes: it is damaged", keys, left)
	case tensors > maxTensors || tensors > left/24: // name length, dimensions, type, offset
		return nil, nil, fmt.Errorf("the header claims %d tensors in %d bytes: it is damaged", tensors, left)
	}
	meta := &Metadata{map[string]ggufValue{}}
	for i := uint64(0); i < keys && r.err == nil; i++ {
		key := r.name("a metadata key")
		if _, twice := meta.values[key]; twice {
			r.fail("metadata %q is there twice", key)
		}
		meta.values[key] = r.value(key)
	}
	align := uint64(32)
	if a, ok := meta.Int("general.alignment"); ok && r.err == nil {
		align = uint64(a)
		if a <= 0 || a > 1<<20 || a&(a-1) != 0 {
			r.fail("general.alignment is %d, want a power of two", a)
		}
	}
	type placed struct {
		*entry
		at, size uint64
	}
	var list []placed
	seen := map[string]bool{}
	for i := uint64(0); i < tensors && r.err == nil; i++ {
		e, offset, size := r.tensor()
		if r.err == nil && seen[e.name] {
			r.fail("tensor %q is there twice", e.name)
		}
		if r.err == nil && offset%align != 0 {
			r.fail("tensor %q starts at %d, which is not a multiple of %d", e.name, offset, align)
		}
		seen[e.name] = true
		list = append(list, placed{e, offset, size})
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	start := (uint64(r.at) + align - 1) / align * align
	var data []byte
	if start <= uint64(len(file)) {
		data = file[start:]
	}
	slices.SortStableFunc(list, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	out := make([]*entry, len(list))
	var end uint64
	for i, p := range list {
		switch n := uint64(len(data)); {
		case p.size > n || p.at > n-p.size:
			return nil, nil, fmt.Errorf("tensor %q needs data bytes %d to %d, but the data ends at %d: it is cut off", p.name, p.at, p.at+p.size, n)
		case p.at < end:
			return nil, nil, fmt.Errorf("tensor %q overlaps tensor %q", p.name, list[i-1].name)
		case p.at-end >= align:
			return nil, nil, fmt.Errorf("there is a gap of %d bytes before tensor %q", p.at-end, p.name)
		}
		end = p.at + p.size
		p.data = data[p.at:end:end]
		out[i] = p.entry
	}
	return meta, out, nil
}

// tensor reads one tensor description and computes its size from type and shape.
func (r *ggufReader) tensor() (e *entry, offset, size uint64) {
	e = &entry{name: r.name("a tensor name")}
	what := fmt.Sprintf("tensor %q", e.name)
	dims := r.u32(what)
	if r.err == nil && (dims == 0 || dims > maxGGUFDims) {
		r.fail("%s has %d dimensions, want 1 to %d", what, dims, maxGGUFDims)
	}
	for i := uint32(0); i < dims && r.err == nil; i++ {
		d := r.u64(what)
		if r.err == nil && (d == 0 || d > math.MaxInt) {
			r.fail("%s has a dimension of %d", what, d)
		}
		e.shape = append(e.shape, int(d))
	}
	kind := r.u32(what)
	offset = r.u64(what)
	if r.err != nil {
		return e, 0, 0
	}
	t, ok := ggufTypes[kind]
	if !ok {
		name := ggufUnread[kind]
		if name == "" {
			name = fmt.Sprintf("number %d", kind)
		}
		r.fail("%s is of type %s, which cannot be read; get the model in another quantization, such as Q4_K_M or Q8_0", what, name)
		return e, 0, 0
	}
	e.dtype, e.block = t.dtype, t.block
	shape, unit := slices.Clone(e.shape), t.dtype.Size()
	if t.block != 0 {
		if shape[0]%t.block.BlockSize() != 0 {
			r.fail("%s has rows of %d, which are not whole %s blocks of %d", what, shape[0], t.block, t.block.BlockSize())
			return e, 0, 0
		}
		shape[0] /= t.block.BlockSize()
		unit = t.block.BlockBytes()
	}
	size, ok = product(shape, unit)
	if !ok || offset > 1<<62 {
		r.fail("%s has shape %v at %d, too large for a file", what, e.shape, offset)
	}
	slices.Reverse(e.shape)
	return e, offset, size
}

// openGGUFFolder opens the one GGUF model of a folder.
func (c *Checkpoint) openGGUFFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("cannot read the model folder: %w", err)
	}
	var models []string
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(strings.ToLower(name), ".gguf") || strings.HasPrefix(name, "mmproj") {
			continue
		}
		if m := shardName.FindStringSubmatch(name); m != nil && m[2] != "00001" {
			continue
		}
		models = append(models, name)
	}
	switch len(models) {
	case 0:
		return fmt.Errorf("%s holds no weights (model*.safetensors or *.gguf); if a download was interrupted, resume it", dir)
	case 1:
		return c.openGGUF(filepath.Join(dir, models[0]))
	}
	return fmt.Errorf("%s holds %d GGUF models (%s, %s, …); name one of the files", dir, len(models), models[0], models[1])
}

// openGGUF opens a GGUF file and, when it is split, all its shards.
func (c *Checkpoint) openGGUF(path string) error {
	paths := []string{path}
	if m := shardName.FindStringSubmatch(filepath.Base(path)); m != nil {
		n, err := strconv.Atoi(m[3])
		if err != nil || n < 1 || n > maxGGUFShards {
			return fmt.Errorf("%s claims to be one of %s files, more than a model may have", path, m[3])
		}
		paths = paths[:0]
		for i := 1; i <= n; i++ {
			paths = append(paths, filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i, m[3])))
		}
	}
	var all []*entry
	seen := map[string]*entry{}
	for i, p := range paths {
		if _, err := os.Stat(p); err != nil && len(paths) > 1 {
			return fmt.Errorf("the model is incomplete: %s is missing; download it too", p)
		}
		file, err := c.mapFile(p)
		if err != nil {
			return err
		}
		meta, list, err := parseGGUF(c.files[file].data)
		if err != nil {
			return fmt.Errorf("%s: %w; download the file again", p, err)
		}
		if i == 0 {
			c.gguf = meta
			if n, ok := meta.Int("split.count"); ok && n > 1 && n != int64(len(paths)) {
				return fmt.Errorf("%s is one of %d files of a split model, but is not named so (name-00001-of-%05d.gguf); restore its name", p, n, n)
			}
		} else if no, ok := meta.Int("split.no"); ok && no != int64(i) {
			return fmt.Errorf("%s says it is part %d of the model, its name says part %d; download it again", p, no+1, i+1)
		}
		for _, e := range list {
			if other := seen[e.name]; other != nil {
				return fmt.Errorf("%s: tensor %q is also in %s; the files are of different models", p, e.name, c.files[other.file].path)
			}
			e.file = file
			seen[e.name] = e
			all = append(all, e)
		}
	}
	if len(all) > maxTensors {
		return fmt.Errorf("%s: more than %d tensors in all; this is no model", path, maxTensors)
	}
	if n, ok := c.gguf.Int("split.tensors.count"); ok && n != int64(len(all)) {
		return fmt.Errorf("%s: the files hold %d tensors, the first one promises %d; download the model again", path, len(all), n)
	}
	if err := c.adoptGGUF(all); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// unpermute puts the rows of a llama q or k projection in Hugging Face order. GGUF stores each head's rows so that the
// two of a rope pair are neighbours: Hugging Face row (head, half, j) is stored as (head, j, half). The rows are copied
// on every call, once per load; all other GGUF matrices are views.
func (c *Checkpoint) unpermute(m layout.Matrix, e *entry) layout.Matrix {
	if e.heads == 0 {
		return m
	}
	return m.PickRows(ropeOrder(m.Rows, e.heads))
}

// ropeOrder lists the stored row of each Hugging Face row.
func ropeOrder(rows, heads int) []int {
	order := make([]int, rows)
	d := rows / heads
	for i := range order {
		head, r := i/d, i%d
		order[i] = head*d + r%(d/2)*2 + r/(d/2)
	}
	return order
}

// corrected is the data of a plain tensor with the two GGUF conventions undone.
func (c *Checkpoint) corrected(e *entry) []byte {
	switch {
	case e.heads > 0:
		size := len(e.data) / e.shape[0]
		out := c.alloc(len(e.data))
		for i, from := range ropeOrder(e.shape[0], e.heads) {
			copy(out[i*size:], e.data[from*size:][:size])
		}
		return out
	case e.shift != 0:
		out := c.alloc(len(e.data))
		for i := 0; i < len(out); i += 4 {
			v := math.Float32frombits(binary.LittleEndian.Uint32(e.data[i:])) + e.shift
			binary.LittleEndian.PutUint32(out[i:], math.Float32bits(v))
		}
		return out
	}
	return e.data
}
