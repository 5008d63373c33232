package models

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sparkbar/engine/testneed"
)

// hubLibrary returns how to run client.py with Python's huggingface_hub.
func hubLibrary(t *testing.T) func(h *hubDouble, args ...string) *exec.Cmd {
	t.Helper()
	python, err := filepath.Abs("../../build/huggingface/bin/python")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(python), "..", "done")); err != nil {
		testneed.Missing(t, "Python's huggingface_hub", "run `engine/models/testdata/setup.sh build/huggingface`")
	}
	home := t.TempDir()
	return func(h *hubDouble, args ...string) *exec.Cmd {
		cmd := exec.Command(python, append([]string{"testdata/client.py"}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HF_ENDPOINT=" + h.URL, "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_UPDATE_CHECK=1", "NO_PROXY=*"}
		return cmd
	}
}

type scanned struct {
	Warnings   []string
	Incomplete int
	Repos      map[string]struct {
		Size      int64
		Revisions map[string]struct{ Refs, Files []string }
	}
}

// TestSharedCache works on one cache by turns with the hub library.
func TestSharedCache(t *testing.T) {
	library := hubLibrary(t)
	output := func(cmd *exec.Cmd) string {
		t.Helper()
		var errors strings.Builder
		cmd.Stderr = &errors
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args[1:], err, errors.String())
		}
		return strings.TrimSpace(string(out))
	}
	files := modelFiles(t)
	want := wanted(files)
	h := newHubDouble(t)
	r := h.add(repo, files)
	cdn := httptest.NewServer(h)
	defer cdn.Close()
	h.other = cdn.URL
	scan := func(cache string) scanned {
		t.Helper()
		var s scanned
		if err := json.Unmarshal([]byte(output(library(h, "scan", cache, "-"))), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Warnings) > 0 {
			t.Errorf("the hub library warns of %v", s.Warnings)
		}
		return s
	}
	find := func(cache string) Model {
		m, _ := NewCatalogue(CatalogueOptions{Places: Places{Hub: cache}}).Find(repo)
		return m
	}

	t.Run("ours, read by it", func(t *testing.T) {
		o := h.options(t)
		got, err := download(t, o, Request{Repo: repo})
		if err != nil {
			t.Fatal(err)
		}
		s := scan(o.Cache)
		size := int64(0)
		for _, data := range want {
			size += int64(len(data))
		}
		rev := s.Repos[repo].Revisions[r.commit]
		if s.Repos[repo].Size != size || s.Incomplete != 0 || !reflect.DeepEqual(rev.Refs, []string{"main"}) || !reflect.DeepEqual(rev.Files, slices.Sorted(maps.Keys(want))) {
			t.Errorf("%+v", s)
		}
		if out := output(library(h, "offline", o.Cache, repo)); out != got[0].Path+"\n"+filepath.Join(got[0].Path, "model.safetensors") {
			t.Error(out)
		}
		before := h.total()
		if out := output(library(h, "download", o.Cache, repo)); out != got[0].Path || h.total() != before {
			t.Error(out, h.total()-before)
		}
		if m := find(o.Cache); !m.Loadable() {
			t.Errorf("%+v", m)
		}
	})

	t.Run("its, read by us", func(t *testing.T) {
		o := h.options(t)
		path := output(library(h, "download", o.Cache, repo))
		if m := find(o.Cache); !m.Loadable() || m.Path != path {
			t.Errorf("%+v, wants %s", m, path)
		}
		before := h.total()
		got, err := download(t, o, Request{Repo: repo})
		if err != nil || got[0].Path != path || h.total() != before {
			t.Error(got, err, h.total()-before)
		}
		check(t, path, want)
	})

	t.Run("ours broken off, finished by it", func(t *testing.T) {
		o := h.options(t)
		k := &killer{at: 150, unsynced: map[string][][2]int64{}}
		o.disk.hook = k.hook
		if _, err := download(t, o, Request{Repo: repo}); err == nil {
			t.Fatal("not broken off")
		}
		if m := find(o.Cache); m.Complete || m.Reason == "" {
			t.Errorf("%+v", m)
		}
		path := output(library(h, "download", o.Cache, repo))
		check(t, path, want)
		o.disk.hook = nil
		before := h.total()
		if _, err := download(t, o, Request{Repo: repo}); err != nil || h.total() != before {
			t.Error(err, h.total()-before)
		}
		if s := scan(o.Cache); s.Incomplete != 0 || len(leftovers(o.Cache)) > 0 {
			t.Error(s.Incomplete, leftovers(o.Cache))
		}
		if m := find(o.Cache); !m.Loadable() {
			t.Errorf("%+v", m)
		}
	})

	t.Run("its broken off, finished by us", func(t *testing.T) {
		o := h.options(t)
		reached := make(chan struct{}, 10)
		h.setFault(func(w http.ResponseWriter, r *http.Request, f *fileDouble) bool {
			if r.Method != http.MethodGet || f.path != "model.safetensors" {
				return false
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(f.data)))
			w.Write(f.data[:len(f.data)/2])
			w.(http.Flusher).Flush()
			reached <- struct{}{}
			<-r.Context().Done()
			return true
		})
		cmd := library(h, "download", o.Cache, repo)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		<-reached
		cmd.Process.Kill()
		cmd.Wait()
		h.setFault(nil)
		if m := find(o.Cache); m.Loadable() || m.Reason == "" {
			t.Errorf("%+v", m)
		}
		got, err := download(t, o, Request{Repo: repo})
		if err != nil {
			t.Fatal(err)
		}
		check(t, got[0].Path, want)
		if m := find(o.Cache); !m.Loadable() {
			t.Errorf("%+v", m)
		}
		scan(o.Cache)
	})

	t.Run("at the same time", func(t *testing.T) {
		o := h.options(t)
		o.clock = nil // it really waits for the other process
		lock := filepath.Join(o.Cache, ".locks", repoFolder(repo), r.files["model.safetensors"].etag()+".lock")
		if err := os.MkdirAll(filepath.Dir(lock), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := library(h, "lock", o.Cache, lock)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
			t.Fatal(line, err)
		}
		d, err := NewDownloader(o)
		if err != nil {
			t.Fatal(err)
		}
		j := d.Start(Request{Repo: repo})
		for j.Progress().State != StateWaiting {
			select {
			case <-j.Done():
				t.Fatal("did not wait", j.err)
			default:
			}
		}
		io.Closer(in).Close()
		cmd.Wait()
		got, err := j.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		check(t, got[0].Path, want)
	})
}
