package models

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestDiskReallyFull downloads to a volume of 96 KiB, where root may make one;
// TestDiskFull does the same with a quota everywhere.
func TestDiskReallyFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=96k"); err != nil {
		t.Skipf("no volume can be mounted (%v): TestDiskFull stands in", err)
	}
	mounted := true
	defer func() {
		if mounted {
			syscall.Unmount(dir, 0)
		}
	}()
	h := newHubDouble(t)
	files := modelFiles(t)
	h.add(repo, files)
	o := h.options(t)
	o.Cache, o.disk.lazy = filepath.Join(dir, "hub"), false
	_, err := download(t, o, Request{Repo: repo})
	wantError(t, err, ErrDiskFull, "still to come", "free")
	if h.total() != 0 {
		t.Error("bytes came before the check")
	}
	o.free = func(string) (int64, error) { return 1 << 40, nil } // as if another program took the room meanwhile
	_, err = download(t, o, Request{Repo: repo})
	wantError(t, err, ErrDiskFull, "is full", "is kept")
	if m, ok := NewCatalogue(CatalogueOptions{Places: Places{Hub: o.Cache}}).Find(repo); !ok || m.Loadable() {
		t.Errorf("%+v", m)
	}
	before := h.total()
	if before == 0 || len(leftovers(o.Cache)) == 0 {
		t.Error("nothing is kept")
	}
	// Room is made: the download goes on, on another volume with what is here.
	roomy := filepath.Join(t.TempDir(), "hub")
	if err := os.CopyFS(roomy, os.DirFS(o.Cache)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	mounted = false
	o.Cache, o.free = roomy, nil
	got, err := download(t, o, Request{Repo: repo})
	if err != nil {
		t.Fatal(err)
	}
	check(t, got[0].Path, wanted(files))
	size := int64(0)
	for _, data := range wanted(files) {
		size += int64(len(data))
	}
	if n := h.total() - before; n >= size {
		t.Errorf("%d bytes to go on with a model of %d", n, size)
	}
}
