package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sparkbar/engine/arch"
)

// maxAdapters is how many adapters of a model stay loaded while nobody uses them.
const maxAdapters = 4

// adapters are the adapters of a loaded model, kept from one request to the next.
type adapters struct {
	mu   sync.Mutex
	list []*adapterSlot // latest use last
}

// adapterSlot is one loaded adapter.
type adapterSlot struct {
	path    string
	stamp   [2]fileStamp
	adapter *arch.Adapter
	users   int // generations that hold it
}

// fileStamp changes when a file does.
type fileStamp struct {
	size int64
	time time.Time
}

// adapter hands out the adapter in a folder, loaded if need be; done must be
// called at the end. The caller holds the model.
func (l *loaded) adapter(ctx context.Context, path string) (a *arch.Adapter, done func(), err error) {
	if path == "" {
		return nil, func() {}, nil
	}
	full, stamp, err := adapterFiles(path)
	if err != nil {
		return nil, nil, err
	}
	s := &l.adapters
	take := func() *adapterSlot {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := slices.IndexFunc(s.list, func(x *adapterSlot) bool { return x.path == full && x.stamp == stamp })
		if i < 0 {
			return nil
		}
		x := s.list[i]
		x.users++
		s.list = append(slices.Delete(s.list, i, i+1), x)
		return x
	}
	x := take()
	if x == nil {
		l.do(func() {
			if err = ctx.Err(); err != nil {
				err = &Error{Kind: ErrCancelled, Message: "the request was cancelled before its adapter was loaded", Cause: context.Cause(ctx)}
				return
			}
			if x = take(); x != nil {
				return // somebody else wanted it too
			}
			if err = l.roomFor(path, stamp[1].size); err != nil {
				return
			}
			var a *arch.Adapter
			if a, err = arch.LoadAdapter(l.model, path); err != nil {
				err = &Error{Kind: ErrLoadFailed, Field: "adapters", Message: err.Error(), Cause: err}
				return
			}
			x = &adapterSlot{path: full, stamp: stamp, adapter: a, users: 1}
			s.mu.Lock()
			s.list = append(s.list, x)
			s.mu.Unlock()
			l.dropAdapters(maxAdapters)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return x.adapter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x.users--
	}, nil
}

// roomFor checks that an adapter whose file has the given size fits: it is read,
// and a backend may keep a copy in its own form. Others make room if need be. It
// runs on the model's goroutine.
func (l *loaded) roomFor(path string, size int64) error {
	if l.memory == nil {
		return nil
	}
	need := 2 * size
	short := func() (free int64, yes bool) {
		m := l.memory()
		return int64(m.Available), m.Available > 0 && int64(m.Available) < need
	}
	if _, yes := short(); yes {
		l.dropAdapters(0)
	}
	if free, yes := short(); yes {
		return &Error{Kind: ErrLoadFailed, Field: "adapters", Message: fmt.Sprintf("adapter %s needs about %d MB of memory, of which %d MB are free; close other programs, or fuse it into a model of its own with mlx_lm.fuse and load that instead", clip(path), need>>20, free>>20)}
	}
	return nil
}

// dropAdapters frees those that nobody holds, least recently used first, until
// at most keep are left, which together are no larger than half the model. It runs
// on the model's goroutine.
func (l *loaded) dropAdapters(keep int) {
	s := &l.adapters
	s.mu.Lock()
	var gone []*adapterSlot
	var all int64
	for _, x := range s.list {
		all += x.adapter.Bytes()
	}
	s.list = slices.DeleteFunc(s.list, func(x *adapterSlot) bool {
		if x.users > 0 || len(s.list)-len(gone) <= keep && all <= l.model.WeightBytes/2 {
			return false
		}
		all -= x.adapter.Bytes()
		gone = append(gone, x)
		return true
	})
	s.mu.Unlock()
	for _, x := range gone {
		if l.run != nil {
			l.run.Forget(x.adapter)
		}
		x.adapter.Close()
	}
}

// adapterFiles finds the files of an adapter's folder.
func adapterFiles(path string) (full string, stamp [2]fileStamp, err error) {
	full, err = realPath(path)
	if err == nil {
		var info os.FileInfo
		if info, err = os.Stat(full); err == nil && !info.IsDir() {
			err = errors.New("not a folder")
		}
	}
	if err != nil {
		return "", stamp, &Error{Kind: ErrModelNotFound, Field: "adapters", Message: fmt.Sprintf("The adapter path does not exist: %s; name a folder with adapter_config.json and adapters.safetensors", clip(path)), Cause: err}
	}
	for i, name := range []string{"adapter_config.json", "adapters.safetensors"} {
		info, err := os.Stat(filepath.Join(full, name))
		if err != nil {
			return "", stamp, &Error{Kind: ErrLoadFailed, Field: "adapters", Message: fmt.Sprintf("adapter %s: it has no %s", clip(path), name), Cause: err}
		}
		stamp[i] = fileStamp{info.Size(), info.ModTime()}
	}
	return full, stamp, nil
}
