package checkpoint

import (
	"fmt"
	"io"
	"math"
	"os"
)

// mapFile brings a whole file into memory, read-only. Files on volumes that may go away are read, others are mapped.
func mapFile(path string) (mapped, error) {
	f, err := os.Open(path)
	if err != nil {
		return mapped{}, fmt.Errorf("cannot open a weight file: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return mapped{}, err
	}
	size := info.Size()
	switch {
	case !info.Mode().IsRegular():
		return mapped{}, fmt.Errorf("%s is not a regular file; give the model's folder or file itself", path)
	case size == 0:
		return mapped{}, fmt.Errorf("%s is empty; download it again", path)
	case size > math.MaxInt:
		return mapped{}, fmt.Errorf("%s has %d bytes, too many for this machine", path, size)
	}
	if !mayVanish(f) {
		if data, err := mapPages(f, int(size)); err == nil {
			return mapped{path, data, true}, nil
		}
	}
	data, err := readFile(f, int(size))
	if err != nil {
		return mapped{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return mapped{path, data, false}, nil
}

// readFile is the portable way to bring a file into memory.
func readFile(f *os.File, size int) ([]byte, error) {
	data := newPages(size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), data); err != nil {
		freePages(data)
		return nil, err
	}
	return data, nil
}
