package wholefile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write gives the file at path a content and permissions, on disk before it
// returns. Its folder must exist. After an error the file is as it was. What is no
// file, such as /dev/null, is not replaced by one.
func Write(path string, content []byte, mode fs.FileMode) error {
	if info, err := os.Lstat(path); err == nil && info.Mode()&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		return fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// Open opens the regular file at path for reading and returns how many bytes it
// has. Nothing else: a pipe in its place would hold the caller up until somebody
// writes.
func Open(path string) (f *os.File, size int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	f, err = os.Open(path)
	return f, info.Size(), err
}

// Read returns the content of the regular file at path, which must not be larger
// than most bytes: nobody else's file can fill the memory.
func Read(path string, most int64) ([]byte, error) {
	f, _, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	if int64(len(text)) > most {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return text, nil
}
