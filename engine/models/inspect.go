package models

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"sparkbar/engine/arch"
	"sparkbar/engine/checkpoint"
	"sparkbar/engine/wholefile"
)

// inspector looks into model folders and GGUF files, and remembers what it saw
// until the names, sizes or times of the files change. It reads headers only: a
// catalogue must not read gigabytes from a slow volume, as opening a checkpoint
// may.
type inspector struct {
	mu   sync.Mutex
	seen map[string]*inspected
}

type inspected struct {
	signature string
	models    []Model
	used      bool
}

func newInspector() *inspector { return &inspector{seen: map[string]*inspected{}} }

// look returns what is remembered of a path, or inspects it.
func (in *inspector) look(path, signature string, inspect func() []Model) []Model {
	in.mu.Lock()
	e := in.seen[path]
	in.mu.Unlock()
	if e == nil || e.signature != signature {
		e = &inspected{signature: signature, models: inspect()}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	e.used = true
	in.seen[path] = e
	return slices.Clone(e.models)
}

// sweep forgets what the last scan did not meet.
func (in *inspector) sweep() {
	in.mu.Lock()
	defer in.mu.Unlock()
	maps.DeleteFunc(in.seen, func(_ string, e *inspected) bool { return !e.used })
	for _, e := range in.seen {
		e.used = false
	}
}

// entry is a file of a model folder; info is nil where a link leads nowhere.
type entry struct {
	name string
	info fs.FileInfo
}

// entries lists the files of a folder, following links, and a text that changes
// when any of them does.
func entries(dir string) (map[string]entry, string) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, ""
	}
	defer f.Close()
	list, _ := f.ReadDir(maxEntries)
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	out := map[string]entry{}
	var sig strings.Builder
	for _, e := range list {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		switch {
		case err != nil:
			info = nil
			fmt.Fprintf(&sig, "%s gone\n", e.Name())
		case !info.Mode().IsRegular():
			continue
		default:
			fmt.Fprintf(&sig, "%s %d %d\n", e.Name(), info.Size(), info.ModTime().UnixNano())
		}
		out[e.Name()] = entry{e.Name(), info}
	}
	return out, sig.String()
}

// folder returns the models in a folder: the one of its config.json, and every
// GGUF file. Folders that hold nothing like a model give none.
func (in *inspector) folder(dir string) []Model {
	files, signature := entries(dir)
	if len(files) == 0 {
		return nil
	}
	list := in.look(dir, signature, func() []Model {
		if m, ok := inspectFolder(dir, files); ok {
			return []Model{m}
		}
		return nil
	})
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(strings.ToLower(name), ".gguf") || strings.HasPrefix(name, "mmproj") {
			continue
		}
		if m := splitGGUF.FindStringSubmatch(name); m != nil && m[2] != "00001" {
			if _, first := files[fmt.Sprintf("%s-00001-of-%s.gguf", m[1], m[3])]; first {
				continue
			}
		}
		list = append(list, in.gguf(filepath.Join(dir, name), files))
	}
	return list
}

// inspectFolder describes a folder by its config.json and safetensors; ok is
// false when it is not meant to be such a model.
func inspectFolder(dir string, files map[string]entry) (m Model, ok bool) {
	m = Model{Path: dir, Kind: KindFolder}
	weights, ggufs, others := 0, 0, 0
	for name := range files {
		switch strings.ToLower(filepath.Ext(name)) {
		case ".safetensors":
			weights++
		case ".gguf":
			ggufs++
		case ".bin", ".pt", ".pth", ".onnx", ".npz":
			others++
		}
	}
	_, configured := files["config.json"]
	_, adapter := files["adapter_config.json"]
	_, indexed := files["model.safetensors.index.json"]
	switch {
	case adapter && !configured:
		m.Reason = "an adapter, not a model: load its base model and name the adapter in the request"
		return m, true
	case !configured && weights > 0:
		m.Reason = "config.json is missing; download the model again"
		return m, true
	case !configured || weights == 0 && !indexed && ggufs > 0:
		return m, false
	}
	if info, err := os.Stat(dir); err == nil {
		m.Snapshot = info.ModTime()
	}
	text, err := wholefile.Read(filepath.Join(dir, "config.json"), 16<<20)
	if err != nil {
		m.Reason = fmt.Sprintf("config.json cannot be read (%v); download the model again", err)
		return m, true
	}
	cfg, err := checkpoint.ParseConfig("config.json", text)
	if err != nil {
		m.Reason = fmt.Sprintf("%v; download the model again", err)
		return m, true
	}
	m.Reason = foreign(cfg)
	m.Drafter = isDrafterConfig(cfg)
	body := cfg
	for _, key := range []string{"text_config", "transformer_layer_config"} {
		if part := cfg.Sub(key); !part.Empty() {
			body = part
		}
	}
	m.Type = cfg.StringOr("model_type", body.StringOr("model_type", ""))
	m.Context = body.IntOr("max_position_embeddings", 0)
	m.Geometry = GeometryOf(cfg)
	if m.Reason == "" && !m.Drafter && !slices.Contains(arch.Types(), m.Type) {
		m.Reason = fmt.Sprintf("the model is of type %q, which Sparkbar cannot run", m.Type)
	}
	if err := errors.Join(cfg.Err(), body.Err()); err != nil && m.Reason == "" {
		m.Reason = err.Error()
	}
	shards, why := shards(dir, files)
	var types map[string]int64
	for _, name := range shards {
		m.Bytes += files[name].info.Size()
		if why == "" {
			sizes, err := safetensorsHeader(filepath.Join(dir, name))
			if err != nil {
				why = fmt.Sprintf("%s: %v; download the model again", name, err)
			}
			if types == nil {
				types = map[string]int64{}
			}
			for k, v := range sizes {
				types[k] += v
			}
		}
	}
	if _, ok := files["tokenizer.json"]; why == "" && !ok && !m.Drafter {
		why = "tokenizer.json is missing; download the model again"
		if _, ok := files["tokenizer.model"]; ok {
			why = "tokenizer.json is missing and tokenizer.model alone cannot be read; choose a conversion of the model that has it"
		}
	}
	if len(shards) == 0 && why == "" && others > 0 {
		why = "the weights are not safetensors; choose a conversion of the model to safetensors or GGUF"
	}
	if len(shards) == 0 && why == "" {
		why = "no weights have arrived (model*.safetensors); download the model again"
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name].info == nil && why == "" && isSmallFile(name) {
			why = fmt.Sprintf("%s is a link to a file that is gone; download the model again", name)
		}
	}
	m.Quantization = quantizationText(cfg, types)
	m.Complete = why == ""
	if m.Reason == "" {
		m.Reason = why
	}
	return m, true
}

// isDrafterConfig reports whether a config is that of a drafter head, in any of
// its packagings.
func isDrafterConfig(cfg checkpoint.Config) bool {
	for _, name := range cfg.Strings("architectures") {
		if strings.Contains(name, "DSpark") || strings.Contains(name, "DFlash") || isOtherHead(name) {
			return true
		}
	}
	return cfg.Has("speculators_config") || cfg.Has("speculators_model_type") || cfg.Has("dflash_config") || cfg.Has("eagle_config") ||
		cfg.Has("medusa_num_heads") || cfg.Has("block_size") && cfg.Has("target_layer_ids")
}

func isOtherHead(name string) bool {
	return strings.Contains(name, "Eagle") || strings.Contains(name, "Medusa")
}

// foreign says what a checkpoint is that looks like a model or drafter and is
// none for us; "" when nothing speaks against it.
func foreign(cfg checkpoint.Config) string {
	speculator := cfg.StringOr("speculators_model_type", "")
	if s := cfg.Sub("speculators_config"); !s.Empty() {
		speculator = s.StringOr("algorithm", speculator)
	}
	switch {
	case speculator != "" && speculator != "dspark":
		return fmt.Sprintf("a speculator of algorithm %q, which is not supported; use a DSpark or DFlash head", speculator)
	case slices.ContainsFunc(cfg.Strings("architectures"), isOtherHead), cfg.Has("eagle_config"), cfg.Has("medusa_num_heads"):
		return "a speculator head of a kind that is not supported; use a DSpark or DFlash head"
	case !cfg.Has("block_size") && slices.ContainsFunc(cfg.Keys(), func(k string) bool { return strings.HasPrefix(k, "dspark_") }):
		return "a full model with a drafter inside, which cannot be used"
	}
	return ""
}

// shards lists the weight files of a folder as engine/checkpoint takes them, or
// says what is missing.
func shards(dir string, files map[string]entry) (list []string, missing string) {
	there := func(name string) bool { e, ok := files[name]; return ok && e.info != nil }
	var found, listed []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(name, "model") && strings.HasSuffix(name, ".safetensors") {
			if there(name) {
				found = append(found, name)
			} else {
				missing = name
			}
		}
	}
	if _, ok := files["model.safetensors.index.json"]; ok {
		text, err := wholefile.Read(filepath.Join(dir, "model.safetensors.index.json"), 64<<20)
		var index struct {
			Map map[string]string `json:"weight_map"`
		}
		if err == nil {
			err = json.Unmarshal(text, &index)
		}
		if err != nil {
			return found, fmt.Sprintf("model.safetensors.index.json cannot be read (%v); download the model again", err)
		}
		absent := ""
		for _, name := range slices.Compact(slices.Sorted(maps.Values(index.Map))) {
			if there(name) {
				listed = append(listed, name)
			} else if absent == "" {
				absent = name
			}
		}
		if absent == "" && len(listed) > 0 {
			return listed, ""
		}
		if len(listed) > 0 || len(found) == 0 {
			missing = absent
		}
	}
	for _, name := range found {
		if m := shardName.FindStringSubmatch(name); m != nil && missing == "" {
			n, _ := strconv.Atoi(m[3])
			for i := 1; i <= n && missing == ""; i++ {
				if part := fmt.Sprintf("%s-%05d-of-%s.safetensors", m[1], i, m[3]); !there(part) {
					missing = part
				}
			}
		}
	}
	if missing != "" {
		missing = clip(missing, 100) + " is missing; download the model again"
	}
	return found, missing
}

// maxHeader is the limit of the safetensors library.
const maxHeader = 100_000_000

// safetensorsHeader checks that a file has the length that its header promises
// and returns how many bytes there are of each element type.
func safetensorsHeader(path string) (map[string]int64, error) {
	f, size, err := wholefile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var head [8]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return nil, fmt.Errorf("the file has %d bytes, too few for a safetensors header", size)
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n > maxHeader || int64(n) > size-8 {
		return nil, fmt.Errorf("the header claims %d bytes of a file of %d: it is damaged or cut off", n, size)
	}
	return readTensorTable(io.LimitReader(f, int64(n)), size-8-int64(n))
}

// readTensorTable reads the JSON of a safetensors header, tensor by tensor.
func readTensorTable(r io.Reader, data int64) (map[string]int64, error) {
	sizes := map[string]int64{}
	var sum, end int64
	d := json.NewDecoder(r)
	bad := func(err error) error { return fmt.Errorf("bad safetensors header: %w", err) }
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, bad(errors.Join(err, errors.New("it is no object")))
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, bad(err)
		}
		if name == "__metadata__" {
			var skip json.RawMessage
			if err := d.Decode(&skip); err != nil {
				return nil, bad(err)
			}
			continue
		}
		var t struct {
			DType   string   `json:"dtype"`
			Offsets [2]int64 `json:"data_offsets"`
		}
		if err := d.Decode(&t); err != nil {
			return nil, bad(err)
		}
		lo, hi := t.Offsets[0], t.Offsets[1]
		if lo < 0 || hi < lo || hi > data {
			return nil, fmt.Errorf("tensor %q needs data bytes %d to %d of %d: the file is cut off", name, lo, hi, data)
		}
		sizes[t.DType] += hi - lo
		sum += hi - lo
		end = max(end, hi)
	}
	if _, err := d.Token(); err != nil {
		return nil, bad(err)
	}
	if sum != data || end != data {
		return nil, fmt.Errorf("the tensors take %d bytes, the file has %d: it is damaged", sum, data)
	}
	return sizes, nil
}

// quantizationText is how people call the stored format.
func quantizationText(cfg checkpoint.Config, types map[string]int64) string {
	if q := cfg.Sub("quantization"); !q.Empty() {
		if mode := q.StringOr("mode", "affine"); mode != "affine" {
			return mode
		}
		if bits := q.IntOr("bits", 0); bits > 0 {
			return fmt.Sprintf("%d-bit", bits)
		}
	}
	if q := cfg.Sub("quantization_config"); !q.Empty() {
		method := strings.ToLower(q.StringOr("quant_algo", q.StringOr("quant_method", "")))
		if bits := q.IntOr("bits", 0); bits > 0 && method == "" {
			return fmt.Sprintf("%d-bit", bits)
		}
		if method != "" {
			return method
		}
	}
	best := ""
	for t, n := range types {
		if n > types[best] {
			best = t
		}
	}
	return strings.ToLower(best)
}
