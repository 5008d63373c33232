package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// How much of the app's log is kept.
const (
	logLimit = 10 << 20 // of one file
	logFiles = 3
)

// logFile is a log that begins anew when it has grown large: sparkbar.log, and
// before it sparkbar.log.1 and so on. Safe for concurrent use.
type logFile struct {
	path  string
	limit int64
	mu    sync.Mutex
	f     *os.File
	size  int64
}

func openLog(dir string, limit int64) (*logFile, error) {
	l := &logFile{path: filepath.Join(dir, "sparkbar.log"), limit: limit}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.f, l.size = f, info.Size()
	return nil
}

// Write implements io.Writer; a line is never split over two files.
func (l *logFile) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(b)) > l.limit {
		if err := l.turn(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(b)
	l.size += int64(n)
	return n, err
}

// turn begins a new file and lets go of the oldest.
func (l *logFile) turn() error {
	older := func(n int) string {
		if n == 0 {
			return l.path
		}
		return fmt.Sprintf("%s.%d", l.path, n)
	}
	err := l.f.Close()
	for n := logFiles - 1; n > 0; n-- {
		if e := os.Rename(older(n-1), older(n)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, l.open())
}

// Close implements io.Closer.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
