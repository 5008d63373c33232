package models

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// disk is how a download changes files. Everything that later must be trusted
// is written to another name, flushed, renamed, and its folder flushed.
type disk struct {
	// hook, when set, is asked before every change; its error stands for the
	// change. Tests trace and stop a download with it.
	hook func(op, path string, at, n int64) error
	// lazy leaves the flushing to the system; for tests.
	lazy bool
}

func (d *disk) ask(op, path string, at, n int64) error {
	if d.hook == nil {
		return nil
	}
	return d.hook(op, path, at, n)
}

// folder makes a folder and those above it.
func (d *disk) folder(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil
	}
	if err := d.ask("mkdir", path, 0, 0); err != nil {
		return err
	}
	return os.MkdirAll(path, 0o777)
}

// open opens a file for reading and writing, making it if need be.
func (d *disk) open(path string, flags int) (*os.File, error) {
	if err := d.ask("open", path, 0, 0); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|flags, 0o666)
}

func (d *disk) writeAt(f *os.File, p []byte, at int64) error {
	if err := d.ask("write", f.Name(), at, int64(len(p))); err != nil {
		_, _ = f.WriteAt(p[:len(p)/2], at) // a write that is cut short leaves a part
		return err
	}
	_, err := f.WriteAt(p, at)
	return err
}

func (d *disk) sync(f *os.File) error {
	if err := d.ask("sync", f.Name(), 0, 0); err != nil {
		return err
	}
	if d.lazy {
		return nil
	}
	return f.Sync()
}

// syncFolder makes the names in a folder durable.
func (d *disk) syncFolder(path string) error {
	if err := d.ask("syncdir", path, 0, 0); err != nil {
		return err
	}
	if d.lazy {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}

func (d *disk) rename(from, to string) error {
	if err := d.ask("rename", from+"\x00"+to, 0, 0); err != nil {
		return err
	}
	return os.Rename(from, to)
}

// remove removes a file or an empty folder, if there is one.
func (d *disk) remove(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := d.ask("remove", path, 0, 0); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// replace writes a whole small file so that readers see the old or the new one.
// temp is the name that it has until then.
func (d *disk) replace(path, temp string, text []byte) error {
	f, err := d.open(temp, os.O_TRUNC)
	if err != nil {
		return err
	}
	err = d.writeAt(f, text, 0)
	if err == nil {
		err = d.sync(f)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = d.rename(temp, path)
	}
	if err == nil {
		err = d.syncFolder(filepath.Dir(path))
	}
	return err
}

// link makes path a symbolic link to target, in place of what may be there.
func (d *disk) link(target, path string) error {
	if have, err := os.Readlink(path); err == nil && have == target {
		return nil
	}
	temp := path + tempSuffix
	if err := d.remove(temp); err != nil {
		return err
	}
	if err := d.ask("symlink", temp, 0, 0); err != nil {
		return err
	}
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return d.rename(temp, path)
}

// lock takes the lock that the hub library takes for a blob: flock on a file
// that stays. waiting is called once when somebody else holds it.
func (d *disk) lock(ctx context.Context, path string, sleep func(context.Context, time.Duration) error, waiting func()) (release func(), err error) {
	if err := d.folder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	for {
		f, err := d.open(path, 0)
		if err != nil {
			return nil, err
		}
		_ = f.Chmod(0o664) // as the hub library: users of one cache wait for each other
		for {
			err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
			if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
				break
			}
			if waiting != nil {
				waiting()
				waiting = nil
			}
			if err := sleep(ctx, 200*time.Millisecond); err != nil {
				f.Close()
				return nil, err
			}
		}
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		}
		// Somebody may have removed the file between open and lock.
		held, err1 := f.Stat()
		named, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, named) {
			return func() { f.Close() }, nil
		}
		f.Close()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// freeSpace is what this user may still write to the volume of a folder that
// exists or will exist, in bytes.
func freeSpace(path string) (int64, error) {
	for {
		var s unix.Statfs_t
		err := unix.Statfs(path, &s)
		if err == nil {
			return int64(uint64(s.Bavail) * uint64(s.Bsize)), nil
		}
		up := filepath.Dir(path)
		if !errors.Is(err, syscall.ENOENT) || up == path {
			return 0, err
		}
		path = up
	}
}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
