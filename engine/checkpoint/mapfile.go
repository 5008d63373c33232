package checkpoint

import (
	"fmt"
	"io"
	"math"
	"os"

	"sparkbar/engine/wholefile"
)

// mapFile brings a whole file into memory, read-only. Files on volumes that may go away are read, and others too if a
// private copy is asked for; else they are mapped.
func mapFile(path string, private bool) (mapped, error) {
	f, size, err := wholefile.Open(path)
	if err != nil {
		return mapped{}, fmt.Errorf("cannot open a weight file: %w", err)
	}
	defer f.Close()
	switch {
	case size == 0:
		return mapped{}, fmt.Errorf("%s is empty; download it again", path)
	case size > math.MaxInt:
		return mapped{}, fmt.Errorf("%s has %d bytes, too many for this machine", path, size)
	}
	if !private && !mayVanish(f) {
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
