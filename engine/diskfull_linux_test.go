package engine_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/models"
	"sparkbar/engine/testneed"
	"sparkbar/resources"
)

// TestDiskFull downloads to a volume that another program fills meanwhile: the
// error says so, what has come stays and is not offered, the loaded model and
// the settings beside it are not harmed, and with room the download goes on.
func TestDiskFull(t *testing.T) {
	target, _ := resources.Demo()
	size := 0
	for _, text := range target {
		size += len(text)
	}
	volume := t.TempDir()
	if err := syscall.Mount("none", volume, "tmpfs", 0, "size=16m"); err != nil {
		testneed.Missing(t, "the right to mount a small volume", "run the tests as root")
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(volume, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	free := func() int64 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(volume, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Bavail) * st.Bsize
	}
	if int64(size) > free()/2 {
		t.Fatalf("the demo has %d bytes, too many for this test", size)
	}
	h := newHub(t, map[string]map[string][]byte{"org/big": target})
	places := models.Places{Hub: filepath.Join(volume, "hub"), Folders: []string{t.TempDir()}}
	writeModel(t, filepath.Join(places.Folders[0], "org", "here"))
	d, err := models.NewDownloader(models.HubOptions{Cache: places.Hub, Endpoint: h.URL, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Options{Version: "test", Backend: func() (compute.Backend, error) { return compute.NewReference(), nil }, Downloader: d, Places: places,
		Catalogue: models.NewCatalogue(models.CatalogueOptions{Places: places}), Live: engine.Live{Base: engine.LoadRequest{Mode: "baseline", Warmup: ptr(false)}}})
	t.Cleanup(func() { e.Close(context.Background()) })
	if _, err := e.Load(t.Context(), engine.LoadRequest{Model: "org/here"}); err != nil {
		t.Fatal(err)
	}
	want := answer(t, e, short("", "hi")).Text

	// When the weights are asked for, another program has taken all but a little.
	junk := filepath.Join(volume, "junk")
	var once sync.Once
	h.hold = func(path string, _ *http.Request) {
		if strings.HasSuffix(path, ".safetensors") {
			once.Do(func() {
				f, err := os.Create(junk)
				if err != nil {
					t.Error(err)
					return
				}
				defer f.Close()
				block := make([]byte, 64<<10)
				for free() > 640<<10 {
					if _, err := f.Write(block); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	_, err = e.Load(t.Context(), engine.LoadRequest{Model: "org/big"})
	if kindOf(err) != engine.ErrDownload || !strings.Contains(err.Error(), "is full") || !strings.Contains(err.Error(), places.Hub) {
		t.Fatalf("%q %v", kindOf(err), err)
	}
	st := e.Status()
	if st.State != engine.StateReady || st.Model == nil || st.Model.ID != "here" || !strings.Contains(st.LastError, "is full") {
		t.Errorf("%+v", st)
	}
	if got := answer(t, e, short("", "hi")).Text; got != want {
		t.Errorf("the running model answers %q, before %q", got, want)
	}
	for _, m := range e.Models() {
		if m.ID == "org/big" && m.Loadable() {
			t.Errorf("offered: %+v", m)
		}
	}
	if _, err := e.Generate(t.Context(), short("org/big", "hi"), nil); kindOf(err) != engine.ErrModelNotFound {
		t.Errorf("a request for it: %v", err)
	}
	// Still full: refused before anything is asked for.
	before := h.count(".safetensors")
	if _, err := e.Load(t.Context(), engine.LoadRequest{Model: "org/big"}); kindOf(err) != engine.ErrDownload || !strings.Contains(err.Error(), "free") || h.count(".safetensors") != before {
		t.Errorf("still full: %v", err)
	}

	if err := os.Remove(junk); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	asked := []string{}
	h.mu.Lock()
	h.hold = func(path string, r *http.Request) {
		mu.Lock()
		asked = append(asked, path+" "+r.Header.Get("Range"))
		mu.Unlock()
	}
	h.mu.Unlock()
	if st, err = e.Load(t.Context(), engine.LoadRequest{Model: "org/big"}); err != nil || st.Model.ID != "big" {
		t.Fatalf("with room: %v %+v", err, st)
	}
	if got := answer(t, e, short("", "hi")).Text; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, a := range asked {
		if !strings.HasPrefix(a, "model.safetensors") {
			t.Errorf("%s had come before", a)
		}
	}
	if len(asked) == 0 {
		t.Error("nothing was missing")
	}
}
