package checkpoint

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sparkbar/engine/layout"
	"sparkbar/engine/wholefile"
)

const (
	maxHeaderBytes = 100_000_000 // the limit of the format's own library
	maxIndexBytes  = 64 << 20
	maxDims        = 8
	maxName        = 1 << 10
)

// openFolder opens a model folder.
func (c *Checkpoint) openFolder(dir string) error {
	files, err := c.shards(dir)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return c.openGGUFFolder(dir)
	}
	if err := c.readConfigs(dir); err != nil {
		return err
	}
	if c.raw == nil {
		return fmt.Errorf("%s has weights but no config.json; the folder is incomplete, download it again", dir)
	}
	return c.openShards(files)
}

// openSafetensorsFile opens the folder around a model*.safetensors file, or any other file alone.
func (c *Checkpoint) openSafetensorsFile(path string) error {
	dir := filepath.Dir(path)
	if err := c.readConfigs(dir); err != nil {
		return err
	}
	files := []string{path}
	if strings.HasPrefix(filepath.Base(path), "model") {
		var err error
		if files, err = c.shards(dir); err != nil {
			return err
		}
	}
	return c.openShards(files)
}

func (c *Checkpoint) readConfigs(dir string) (err error) {
	if c.config, c.raw, _, err = readObject(filepath.Join(dir, "config.json")); err != nil {
		return err
	}
	if c.generate, _, _, err = readObject(filepath.Join(dir, "generation_config.json")); err != nil {
		return err
	}
	c.quant, err = readQuantization(c.config)
	return err
}

func (c *Checkpoint) openShards(files []string) error {
	c.meta = map[string]string{}
	for _, path := range files {
		if err := c.addSafetensors(path); err != nil {
			return err
		}
	}
	return nil
}

var shardName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.(safetensors|gguf)$`)

// shards lists the weight files of a folder: those the index names when they are all there, else every
// model*.safetensors, of which numbered ones must be complete. An index left over from another packaging of the model
// (none of its files exist) is ignored.
func (c *Checkpoint) shards(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the model folder: %w", err)
	}
	have := map[string]bool{}
	var found []string
	for _, e := range entries {
		have[e.Name()] = true
		if strings.HasPrefix(e.Name(), "model") && strings.HasSuffix(e.Name(), ".safetensors") {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	var missing []string
	if have["model.safetensors.index.json"] {
		path := filepath.Join(dir, "model.safetensors.index.json")
		if c.indexed, err = readIndex(path); err != nil {
			return nil, err
		}
		var listed []string
		for _, name := range slices.Compact(slices.Sorted(maps.Values(c.indexed))) {
			if have[name] {
				listed = append(listed, filepath.Join(dir, name))
			} else {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 && len(listed) > 0 {
			return listed, nil
		}
		if len(listed) == 0 && len(found) > 0 {
			c.indexed, missing = nil, nil
		}
	}
	for _, path := range found {
		base := filepath.Base(path)
		if m := shardName.FindStringSubmatch(base); m != nil {
			n, _ := strconv.Atoi(m[3])
			for i := 1; i <= n && len(missing) == 0; i++ {
				if name := fmt.Sprintf("%s-%05d-of-%s.safetensors", m[1], i, m[3]); !have[name] {
					missing = append(missing, name)
				}
			}
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s is incomplete: %s is missing; download it again", dir, missing[0])
	}
	return found, nil
}

// readIndex reads the tensor -> file map of an index file.
func readIndex(path string) (map[string]string, error) {
	text, err := wholefile.Read(path, maxIndexBytes)
	if err != nil {
		return nil, err
	}
	index, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; the file is damaged, download it again", path, err)
	}
	return index, nil
}

func parseIndex(text []byte) (map[string]string, error) {
	index := map[string]string{}
	s := scanner{text: text}
	err := s.object(func(key string) error {
		if key != "weight_map" {
			return s.skip()
		}
		return s.object(func(name string) error {
			file, err := s.string()
			if err != nil {
				return err
			}
			if file == "" || file == "." || file == ".." || strings.ContainsAny(file, `/\`) {
				return fmt.Errorf("tensor %q is said to be in %q, which is not a file name", clip(name), clip(file))
			}
			if len(index) >= maxTensors {
				return fmt.Errorf("more than %d tensors", maxTensors)
			}
			index[name] = file
			return nil
		})
	})
	if err == nil {
		err = s.end()
	}
	return index, err
}

// addSafetensors maps one file and adds its tensors.
func (c *Checkpoint) addSafetensors(path string) error {
	file, err := c.mapFile(path)
	if err != nil {
		return err
	}
	return c.addMapped(file)
}

// addMapped adds the tensors of a file that is in memory.
func (c *Checkpoint) addMapped(file int) error {
	path := c.files[file].path
	list, meta, err := parseSafetensors(c.files[file].data)
	if err != nil {
		return fmt.Errorf("%s: %w; download the file again", path, err)
	}
	maps.Copy(c.meta, meta)
	if len(c.tensors)+len(list) > maxTensors {
		return fmt.Errorf("%s: more than %d tensors in all; this is no model", path, maxTensors)
	}
	for _, e := range list {
		if other := c.tensors[e.name]; other != nil {
			return fmt.Errorf("%s: tensor %q is also in %s; remove the file that does not belong to the model", path, e.name, c.files[other.file].path)
		}
		e.file = file
		c.tensors[e.name] = e
	}
	return nil
}

// parseSafetensors checks the header of a whole file in memory and returns its tensors as views, in data order.
//
// The layout: an 8-byte length, that many bytes of JSON {"name": {"dtype", "shape", "data_offsets": [from, to]}},
// then the data, which the ranges must cover from end to end without a gap or an overlap.
func parseSafetensors(file []byte) ([]*entry, map[string]string, error) {
	if len(file) < 8 {
		return nil, nil, fmt.Errorf("the file has %d bytes, too few for a safetensors header", len(file))
	}
	n := binary.LittleEndian.Uint64(file)
	if n > maxHeaderBytes {
		return nil, nil, fmt.Errorf("the header claims %d bytes, more than a safetensors header may have", n)
	}
	if n > uint64(len(file)-8) {
		return nil, nil, fmt.Errorf("the file is cut off inside its header: it has %d bytes of %d", len(file)-8, n)
	}
	header, data := file[8:8+n], file[8+n:]
	meta := map[string]string{}
	type ranged struct {
		*entry
		lo, hi uint64
	}
	var list []ranged
	seen := map[string]bool{}
	s := scanner{text: header}
	err := s.object(func(name string) error {
		if len(name) > maxName {
			return fmt.Errorf("a tensor name has %d bytes", len(name))
		}
		if seen[name] {
			return fmt.Errorf("tensor %q is listed twice", name)
		}
		seen[name] = true
		if name == "__metadata__" {
			if s.peek() == 'n' { // mlx writes null for an empty map
				_, err := s.value()
				return err
			}
			return s.object(func(key string) error {
				v, err := s.value()
				if text, ok := v.(string); ok {
					meta[key] = text
				} else if v != nil {
					meta[key] = fmt.Sprint(v)
				}
				return err
			})
		}
		if len(list) >= maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		e, lo, hi, err := s.tensorHeader(name)
		list = append(list, ranged{e, lo, hi})
		return err
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("bad safetensors header: %w", err)
	}
	slices.SortFunc(list, func(a, b ranged) int {
		if a.lo != b.lo {
			return cmp.Compare(a.lo, b.lo)
		}
		return cmp.Compare(a.hi, b.hi)
	})
	out := make([]*entry, len(list))
	var at uint64
	for i, r := range list {
		switch {
		case r.hi > uint64(len(data)):
			return nil, nil, fmt.Errorf("tensor %q ends at data byte %d, but the file ends at %d: it is cut off", r.name, r.hi, len(data))
		case r.lo < at:
			return nil, nil, fmt.Errorf("tensor %q overlaps tensor %q", r.name, list[i-1].name)
		case r.lo > at:
			return nil, nil, fmt.Errorf("there is a gap of %d bytes before tensor %q", r.lo-at, r.name)
		}
		at = r.hi
		r.data = data[r.lo:r.hi:r.hi]
		out[i] = r.entry
	}
	if at != uint64(len(data)) {
		return nil, nil, fmt.Errorf("%d bytes follow the last tensor", uint64(len(data))-at)
	}
	return out, meta, nil
}

// tensorHeader reads one {"dtype", "shape", "data_offsets"} and checks that they agree.
func (s *scanner) tensorHeader(name string) (e *entry, lo, hi uint64, err error) {
	e = &entry{name: name}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("tensor %q: %s", name, fmt.Sprintf(format, args...))
	}
	var offsets []uint64
	var dtype string
	shaped := false
	err = s.object(func(key string) (err error) {
		switch key {
		case "dtype":
			dtype, err = s.string()
		case "shape":
			shaped, e.shape = true, nil
			return s.array(func() error {
				d, err := s.natural()
				if err != nil {
					return bad("bad shape: %v", err)
				}
				if len(e.shape) == maxDims {
					return bad("more than %d dimensions", maxDims)
				}
				if uint64(int(d)) != d || int(d) < 0 {
					return bad("dimension %d is too large", d)
				}
				e.shape = append(e.shape, int(d))
				return nil
			})
		case "data_offsets":
			offsets = nil
			return s.array(func() error {
				d, err := s.natural()
				if err != nil {
					return bad("bad data_offsets: %v", err)
				}
				if len(offsets) == 2 {
					return bad("data_offsets has more than two numbers")
				}
				offsets = append(offsets, d)
				return nil
			})
		default:
			return s.skip()
		}
		return err
	})
	if err != nil {
		return e, 0, 0, err
	}
	var known bool
	if e.dtype, known = layout.ParseDType(dtype); !known {
		return e, 0, 0, bad("element type %q is unknown; convert the model to F32, F16, BF16 or an MLX quantization", clip(dtype))
	}
	if !shaped || len(offsets) != 2 {
		return e, 0, 0, bad("shape or data_offsets are missing")
	}
	size, ok := product(e.shape, e.dtype.Size())
	lo, hi = offsets[0], offsets[1]
	switch {
	case !ok:
		return e, 0, 0, bad("shape %v is too large", e.shape)
	case hi < lo:
		return e, 0, 0, bad("data_offsets [%d, %d] run backwards", lo, hi)
	case hi-lo != size:
		return e, 0, 0, bad("%s %v needs %d bytes, data_offsets [%d, %d] hold %d", e.dtype, e.shape, size, lo, hi, hi-lo)
	}
	return e, lo, hi, nil
}

// natural reads a number from 0 to 2^64-1.
func (s *scanner) natural() (uint64, error) {
	w := s.word()
	n, err := strconv.ParseUint(w, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, s.errorf("%s is too large", clip(w))
	}
	if err != nil {
		return 0, s.errorf("%q is not a whole number of at least 0", clip(w))
	}
	return n, nil
}

// product multiplies dimensions and an element size; ok is false when it leaves 63 bits.
func product(shape []int, size int) (n uint64, ok bool) {
	n = uint64(size)
	zero := false
	for _, d := range shape {
		if d == 0 {
			zero = true
			continue
		}
		if n > (1<<63-1)/uint64(d) {
			return 0, false
		}
		n *= uint64(d)
	}
	if zero {
		return 0, true
	}
	return n, true
}
