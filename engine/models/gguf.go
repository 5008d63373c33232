package models

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"sparkbar/engine/arch"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/wholefile"
)

// ggufTypes are the families of GGUF files that can be run, as model_type.
var ggufTypes = map[string]string{
	"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "gemma3": "gemma3_text", "phi3": "phi3", "gpt-oss": "gpt_oss", "lfm2": "lfm2", "dspark": "dspark",
}

// ggufTensor is the size of one block of a tensor type. Those without ok exist,
// but nothing reads them yet.
var ggufTensor = map[uint32]struct {
	name        string
	count, size uint64
	ok          bool
}{
	0: {"F32", 1, 4, true}, 1: {"F16", 1, 2, true}, 30: {"BF16", 1, 2, true}, 28: {"F64", 1, 8, true},
	24: {"I8", 1, 1, true}, 25: {"I16", 1, 2, true}, 26: {"I32", 1, 4, true}, 27: {"I64", 1, 8, true},
	2: {"Q4_0", 32, 18, true}, 3: {"Q4_1", 32, 20, true}, 6: {"Q5_0", 32, 22, true}, 7: {"Q5_1", 32, 24, true}, 8: {"Q8_0", 32, 34, true},
	10: {"Q2_K", 256, 84, true}, 11: {"Q3_K", 256, 110, true}, 12: {"Q4_K", 256, 144, true}, 13: {"Q5_K", 256, 176, true}, 14: {"Q6_K", 256, 210, true},
	20: {"IQ4_NL", 32, 18, true}, 39: {"MXFP4", 32, 17, true},
	9: {"Q8_1", 32, 36, false}, 15: {"Q8_K", 256, 292, false}, 16: {"IQ2_XXS", 256, 66, false}, 17: {"IQ2_XS", 256, 74, false}, 18: {"IQ3_XXS", 256, 98, false},
	19: {"IQ1_S", 256, 50, false}, 21: {"IQ3_S", 256, 110, false}, 22: {"IQ2_S", 256, 82, false}, 23: {"IQ4_XS", 256, 136, false}, 29: {"IQ1_M", 256, 56, false},
	34: {"TQ1_0", 256, 54, false}, 35: {"TQ2_0", 256, 66, false},
}

// ggufFileTypes are the values of general.file_type.
var ggufFileTypes = map[int64]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M",
	16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
	28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}

// gguf describes a GGUF file with all its parts. files is the folder's content,
// nil for a file that stands alone.
func (in *inspector) gguf(path string, files map[string]entry) Model {
	parts := []string{path}
	if m := splitGGUF.FindStringSubmatch(filepath.Base(path)); m != nil {
		if n, _ := strconv.Atoi(m[3]); n >= 1 && n <= 1024 {
			parts = parts[:0]
			for i := 1; i <= n; i++ {
				parts = append(parts, filepath.Join(filepath.Dir(path), fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i, m[3])))
			}
		}
	}
	signature := ""
	for _, p := range parts {
		if info, err := os.Stat(p); err == nil {
			signature += fmt.Sprintf("%d %d\n", info.Size(), info.ModTime().UnixNano())
		} else {
			signature += "gone\n"
		}
	}
	return in.look(path, signature, func() []Model { return []Model{inspectGGUF(parts)} })[0]
}

func inspectGGUF(parts []string) Model {
	m := Model{Path: parts[0], Kind: KindGGUF}
	for i, path := range parts {
		f, size, err := wholefile.Open(path)
		if err != nil {
			if m.Reason == "" {
				m.Reason = fmt.Sprintf("%s is missing; download it again", filepath.Base(path))
			}
			continue
		}
		if info, err := f.Stat(); err == nil && i == 0 {
			m.Snapshot = info.ModTime()
		}
		m.Bytes += size
		h, err := readGGUF(f, size)
		f.Close()
		if err != nil && m.Reason == "" {
			m.Reason = fmt.Sprintf("%v; download it again", err)
		}
		if err == nil && i == 0 {
			h.describe(&m)
		}
		if err == nil && h.unread != "" && m.Reason == "" {
			m.Complete, m.Reason = true, fmt.Sprintf("tensors of type %s cannot be read; get the model in another quantization, such as Q4_K_M or Q8_0", h.unread)
		}
	}
	if m.Reason == "" {
		m.Complete = true
		if !m.Drafter && !slices.Contains(arch.Types(), m.Type) {
			m.Reason = fmt.Sprintf("GGUF files of the architecture %q cannot be run", m.Type)
		}
	}
	return m
}

// ggufHeader is what a catalogue needs of a GGUF header.
type ggufHeader struct {
	texts   map[string]string
	numbers map[string]int64
	lists   map[string][]int64
	unread  string // a tensor type that cannot be read
}

const (
	maxGGUFText = 1 << 10 // longer texts are skipped
	maxGGUFList = 1 << 12 // longer lists are skipped
)

// readGGUF reads the header of a file of the given size and checks that the
// tensors lie inside it.
func readGGUF(file io.Reader, size int64) (h *ggufHeader, err error) {
	r := &ggufReader{r: bufio.NewReaderSize(file, 1<<16), left: uint64(size)}
	defer func() {
		if r.err != nil {
			h, err = nil, fmt.Errorf("the GGUF file is damaged or cut off: %w", r.err)
		}
	}()
	magic := r.u32()
	version := r.u32()
	switch {
	case r.err == nil && magic != 0x46554747:
		r.err = fmt.Errorf("it does not begin as one")
	case r.err == nil && version != 2 && version != 3:
		r.err = fmt.Errorf("version %d is unknown", version)
	}
	tensors, keys := r.u64(), r.u64()
	if r.err == nil && (keys > r.left/13 || tensors > r.left/24) {
		r.err = fmt.Errorf("the header claims %d keys and %d tensors", keys, tensors)
	}
	h = &ggufHeader{texts: map[string]string{}, numbers: map[string]int64{}, lists: map[string][]int64{}}
	for ; keys > 0 && r.err == nil; keys-- {
		key := r.text()
		r.value(r.u32(), key, h)
	}
	var end uint64
	for ; tensors > 0 && r.err == nil; tensors-- {
		name := r.text()
		dims := r.u32()
		if dims > 8 {
			r.err = fmt.Errorf("tensor %q has %d dimensions", name, dims)
		}
		n := uint64(1)
		for ; dims > 0 && r.err == nil; dims-- {
			d := r.u64()
			if d == 0 || n > math.MaxInt64/d {
				r.err = fmt.Errorf("tensor %q is too large", name)
				break
			}
			n *= d
		}
		kind, at := r.u32(), r.u64()
		t, known := ggufTensor[kind]
		if r.err != nil {
			break
		}
		if !known || !t.ok {
			h.unread = t.name
			if !known {
				h.unread = fmt.Sprint("number ", kind)
			}
		}
		if known {
			bytes := n / t.count * t.size
			if n%t.count != 0 || n/t.count > math.MaxInt64/t.size || at > math.MaxInt64-bytes {
				r.err = fmt.Errorf("tensor %q is not whole", name)
				break
			}
			end = max(end, at+bytes)
		}
	}
	align := uint64(32)
	if a, ok := h.numbers["general.alignment"]; ok && a > 0 && a <= 1<<20 {
		align = uint64(a)
	}
	if r.err == nil {
		start := (uint64(size) - r.left + align - 1) / align * align
		if start > uint64(size) && end > 0 || start <= uint64(size) && end > uint64(size)-start {
			r.err = fmt.Errorf("its tensors end at byte %d, the file at %d", start+end, size)
		}
	}
	return h, nil
}

// describe fills in what the header says about the model.
func (h *ggufHeader) describe(m *Model) {
	family := h.texts["general.architecture"]
	kind, known := ggufTypes[family]
	if !known {
		kind = family
	}
	number := func(key string) int64 {
		if v, ok := h.lists[family+"."+key]; ok && len(v) > 0 {
			return slices.Max(v)
		}
		return h.numbers[family+"."+key]
	}
	if kind == "llama" && number("expert_count") > 0 {
		kind = "mixtral"
	}
	m.Type, m.Drafter = kind, family == "dspark"
	m.Context = clampInt(number("context_length"))
	m.Quantization = ggufFileTypes[h.numbers["general.file_type"]]
	if _, ok := h.numbers["general.file_type"]; !ok {
		m.Quantization = ""
	}
	heads, hidden := number("attention.head_count"), number("embedding_length")
	dim := number("attention.key_length")
	if dim == 0 && heads > 0 {
		dim = hidden / heads
	}
	layers := ""
	if v := h.lists[family+".attention.head_count_kv"]; len(v) > 0 { // zero: a layer without attention
		for i, n := range v {
			layers += fmt.Sprintf(`%s"%s"`, map[bool]string{true: "", false: ","}[i == 0], map[bool]string{true: "conv", false: "full_attention"}[n == 0])
		}
		layers = `,"layer_types":[` + layers + `]`
	}
	text := fmt.Sprintf(`{"model_type":%q,"num_hidden_layers":%d,"num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":%d,"hidden_size":%d,"intermediate_size":%d,"vocab_size":%d,"sliding_window":%d,"conv_L_cache":%d%s}`,
		kind, number("block_count"), heads, number("attention.head_count_kv"), dim, hidden, number("feed_forward_length"), number("vocab_size"), number("attention.sliding_window"), number("shortconv.l_cache"), layers)
	if cfg, err := checkpoint.ParseConfig(m.Path, []byte(text)); err == nil {
		m.Geometry = GeometryOf(cfg)
	}
}

func clampInt(n int64) int {
	return int(min(max(n, 0), math.MaxInt32))
}

// ggufReader reads a header from a stream. left is what the file has beyond.
type ggufReader struct {
	r    *bufio.Reader
	left uint64
	err  error
}

func (r *ggufReader) skip(n uint64) {
	if r.err != nil {
		return
	}
	if n > r.left {
		r.err = io.ErrUnexpectedEOF
		return
	}
	r.left -= n
	for n > 0 && r.err == nil {
		step := int(min(n, 1<<30))
		_, r.err = r.r.Discard(step)
		n -= uint64(step)
	}
}

func (r *ggufReader) bytes(n uint64) []byte {
	b := make([]byte, n) // callers bound n
	if r.err == nil && n > r.left {
		r.err = io.ErrUnexpectedEOF
	}
	if r.err == nil {
		r.left -= n
		_, r.err = io.ReadFull(r.r, b)
	}
	if r.err != nil {
		clear(b)
	}
	return b
}

func (r *ggufReader) u32() uint32 { return binary.LittleEndian.Uint32(r.bytes(4)) }
func (r *ggufReader) u64() uint64 { return binary.LittleEndian.Uint64(r.bytes(8)) }

// text reads a text; a long one is skipped and empty.
func (r *ggufReader) text() string {
	n := r.u64()
	if n > maxGGUFText {
		r.skip(n)
		return ""
	}
	return string(r.bytes(n))
}

var ggufWidth = [...]uint64{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

const (
	ggufText = 8
	ggufList = 9
)

// value reads a value and keeps texts, whole numbers and short lists of them.
func (r *ggufReader) value(kind uint32, key string, h *ggufHeader) {
	switch {
	case kind == ggufText:
		h.texts[key] = r.text()
	case kind == ggufList:
		kind, n := r.u32(), r.u64()
		switch {
		case r.err != nil:
		case n > r.left:
			r.err = io.ErrUnexpectedEOF
		case kind == ggufText:
			for ; n > 0 && r.err == nil; n-- {
				r.skip(r.u64())
			}
		case int(kind) >= len(ggufWidth) || ggufWidth[kind] == 0:
			r.err = fmt.Errorf("%q is a list of the unknown type %d", key, kind)
		case n > maxGGUFList || kind == 6 || kind == 12:
			r.skip(n * ggufWidth[kind])
		default:
			list := make([]int64, 0, n)
			for ; n > 0 && r.err == nil; n-- {
				list = append(list, r.integer(kind))
			}
			h.lists[key] = list
		}
	case int(kind) >= len(ggufWidth) || ggufWidth[kind] == 0:
		if r.err == nil {
			r.err = fmt.Errorf("%q has the unknown type %d", key, kind)
		}
	default:
		h.numbers[key] = r.integer(kind)
	}
}

// integer reads one number; a fraction counts as zero.
func (r *ggufReader) integer(kind uint32) int64 {
	b := r.bytes(ggufWidth[kind])
	var u [8]byte
	copy(u[:], b)
	n := binary.LittleEndian.Uint64(u[:])
	switch kind {
	case 1:
		return int64(int8(n))
	case 3:
		return int64(int16(n))
	case 5:
		return int64(int32(n))
	case 6, 12:
		return 0
	}
	return int64(n)
}
