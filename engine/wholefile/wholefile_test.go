package wholefile

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.json")
	for _, text := range []string{"a first, longer content", "second"} {
		if err := Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// What cannot be replaced stays, and nothing is left beside it.
	folder := filepath.Join(dir, "folder")
	if err := os.MkdirAll(filepath.Join(folder, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if Write(folder, []byte("x"), 0o600) == nil || Write(filepath.Join(dir, "none", "x"), nil, 0o600) == nil {
		t.Error("a folder was replaced, or one was made")
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
}

// Whoever names /dev/null for a file means to keep nothing, and the device stays.
func TestWriteReplacesFilesOnly(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(pipe, []byte("x"), 0o600); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	if info, err := os.Stat(pipe); err != nil {
		t.Error(err)
	} else if info.Mode().IsRegular() {
		t.Error("the pipe is a file now")
	}
}

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if _, err := Read(path, 4); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(path, []byte("four"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := Read(path, 4); err != nil || string(text) != "four" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Read(path, 3); err == nil {
		t.Error("a file that is too large was read")
	}
}

func TestReadsRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("1234"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := Read(file, 4); err != nil || string(text) != "1234" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := Read(file, 3); err == nil || !strings.Contains(err.Error(), "larger than 3 bytes") {
		t.Errorf("a file above the limit: %v", err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir} { // a read of the pipe would never end
		if _, err := Read(path, 4); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, _, err := Open(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}
