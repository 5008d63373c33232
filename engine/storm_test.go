package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/cpu"
	"sparkbar/engine/internal/testmodel"
	"sparkbar/engine/machine"
	"sparkbar/httpapi"
)

// stormModels writes three models that answer differently: the demo, and copies
// of it that lack a layer of one kind.
func stormModels(t *testing.T, root string) []string {
	t.Helper()
	ids := []string{"org/one", "org/two", "org/six"}
	for i, id := range ids {
		dir := filepath.Join(root, id)
		writeModel(t, dir)
		if i == 0 {
			continue
		}
		changed := testmodel.Edit(t, dir, func(_ map[string]any, tensors map[string]testmodel.Tensor) {
			for name, x := range tensors { // a layer less of one kind
				if strings.Contains(name, []string{"", "layers.0.mlp.down_proj", "layers.1.mlp.down_proj"}[i]) {
					tensors[name] = testmodel.Tensor{DType: x.DType, Shape: x.Shape, Data: make([]byte, len(x.Data))}
				}
			}
		})
		weights, err := os.ReadFile(filepath.Join(changed, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

// usage is what a process holds.
type usage struct {
	resident    int64
	files, maps int // open files, and mappings of files below root
}

func usageOf(t *testing.T, root string) (u usage) {
	t.Helper()
	for range 3 { // what finalizers let go of is returned by the next
		runtime.GC()
		debug.FreeOSMemory()
	}
	u.resident = machine.Resident()
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.files = len(fds)
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
		u.maps = strings.Count(string(maps), root)
	}
	return u
}

// TestStorm: eight clients stream while three models are swapped by their
// requests and by explicit loads, which are cancelled at random like the
// requests themselves. Whoever is answered is answered by the model named, to
// the letter; whoever is not is told why in a documented way. Memory, open files
// and mappings are afterwards what they were before.
func TestStorm(t *testing.T) {
	swaps := int64(50)
	if testing.Short() {
		swaps = 10
	}
	var root string
	var ids []string
	e := local(t, func(o *engine.Options) {
		root = o.ModelRoot
		ids = stormModels(t, root)
		o.Backend = func() (compute.Backend, error) { return cpu.New(cpu.Options{Threads: 2}) }
		o.QueueLimit = 1000
	}, nil...)
	server := httptest.NewServer(httpapi.New(e, httpapi.Options{}))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	post := func(ctx context.Context, path string, body any) (*http.Response, error) {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+path, bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		return client.Do(req)
	}
	prompts := []string{"What is speculative decoding?", "Tell me a story", "What day comes after Monday?", "hi"}
	ask := func(model, prompt string) map[string]any {
		return map[string]any{"model": model, "stream": true, "temperature": 0, "max_tokens": 24, "messages": []map[string]string{{"role": "user", "content": prompt}}}
	}

	// One after the other: what is right.
	want := map[string]string{}
	for _, id := range ids {
		for _, p := range prompts {
			resp, err := post(t.Context(), "/v1/chat/completions", ask(id, p))
			if err != nil {
				t.Fatal(err)
			}
			text, end, failure := readChat(resp.Body, -1)
			resp.Body.Close()
			if resp.StatusCode != 200 || failure != "" || end == "" {
				t.Fatalf("%s alone: %d %q %q %s", id, resp.StatusCode, text, end, failure)
			}
			want[id+p] = text
		}
	}
	prompts = slices.DeleteFunc(prompts, func(p string) bool {
		a, b, c := want[ids[0]+p], want[ids[1]+p], want[ids[2]+p]
		return a == b || b == c || a == c
	})
	if len(prompts) < 2 {
		t.Fatalf("the models do not differ: %q", want)
	}
	rest := func() usage { // the same model, idle, nobody connected
		for {
			_, err := e.Load(t.Context(), engine.LoadRequest{Model: ids[0]})
			if err == nil {
				break
			}
			if kindOf(err) != engine.ErrBusy { // a load for the last request may be under way
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		for _, p := range prompts {
			if res := answer(t, e, short(ids[0], p)); res.Text == "" {
				t.Fatal("no answer")
			}
		}
		client.CloseIdleConnections()
		server.CloseClientConnections()
		return usageOf(t, root)
	}
	rest()
	before := rest()
	for { // nothing of the answers so far is on its way out any more
		time.Sleep(100 * time.Millisecond)
		now := usageOf(t, root)
		if now.files >= before.files && now.maps >= before.maps {
			break
		}
		before = now
	}

	var done, right, cancelled, refused atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { // counts the swaps
		sub := e.Events().Subscribe(1 << 16)
		defer sub.Close()
		var last int64
		for {
			ev, err := sub.Next(ctx)
			if err != nil {
				return
			}
			st, ok := ev.Data.(engine.Status)
			if ok && st.Model != nil && st.Model.LoadedAt.UnixNano() != last {
				last = st.Model.LoadedAt.UnixNano()
				done.Add(1)
			}
		}
	}()
	var all sync.WaitGroup
	for i := range 8 {
		r := rand.New(rand.NewPCG(uint64(i), 7))
		all.Go(func() {
			for done.Load() < swaps || right.Load() < swaps/2 {
				id, prompt, stopAfter := ids[r.IntN(3)], prompts[r.IntN(len(prompts))], -1
				if r.IntN(4) == 0 {
					stopAfter = r.IntN(8)
				}
				one, cancel := context.WithCancel(ctx)
				resp, err := post(one, "/v1/chat/completions", ask(id, prompt))
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					cancel()
					continue
				}
				if resp.StatusCode != 200 {
					text, _ := io.ReadAll(resp.Body)
					if !documented(resp.StatusCode, string(text)) || resp.StatusCode == 503 && resp.Header.Get("Retry-After") == "" {
						t.Errorf("client %d: %d %s", i, resp.StatusCode, text)
					}
					refused.Add(1)
				} else {
					text, end, failure := readChat(resp.Body, stopAfter)
					switch {
					case failure != "":
						if !documented(0, failure) {
							t.Errorf("client %d, %s: %s", i, id, failure)
						}
						refused.Add(1)
					case end != "" && text == want[id+prompt]:
						right.Add(1)
					case end == "" && stopAfter >= 0 && strings.HasPrefix(want[id+prompt], text):
						cancelled.Add(1)
					default:
						t.Errorf("client %d, %s: %q (%s), want %q", i, id, text, end, want[id+prompt])
					}
				}
				again := resp.StatusCode != 200
				cancel()
				resp.Body.Close()
				if again {
					time.Sleep(5 * time.Millisecond) // as a client would, for longer
				}
			}
		})
	}
	all.Go(func() { // the owner loads, cancels and unloads
		r := rand.New(rand.NewPCG(99, 7))
		for done.Load() < swaps || right.Load() < swaps/2 {
			path, body := "/admin/load", map[string]any{"model": ids[r.IntN(3)], "wait": r.IntN(2) == 0, "mode": []string{"baseline", "lookup"}[r.IntN(2)]}
			switch r.IntN(12) {
			case 0, 1, 2:
				path, body = "/admin/load/cancel", map[string]any{}
			case 3:
				path, body = "/admin/unload", map[string]any{}
			}
			resp, err := post(ctx, path, body)
			if err != nil {
				t.Error(err)
				return
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode/100 != 2 && !documented(resp.StatusCode, string(text)) {
				t.Errorf("%s: %d %s", path, resp.StatusCode, text)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	all.Wait()
	stop()
	for len(e.Requests()) > 0 || e.Status().Loading != nil {
		runtime.Gosched()
	}
	limit := before.resident + before.resident/20 + 20<<20
	after := rest()
	// Connections and old models go in their own time.
	for end := time.Now().Add(time.Minute); (after.files > before.files || after.maps > before.maps || after.resident > limit) && time.Now().Before(end); after = usageOf(t, root) {
		time.Sleep(50 * time.Millisecond)
	}
	t.Logf("%d swaps: %d right answers, %d cancelled, %d refused; before %+v, after %+v", done.Load(), right.Load(), cancelled.Load(), refused.Load(), before, after)
	if before.resident > 0 && after.resident > limit {
		t.Errorf("%d bytes of memory after %d, more than %d", after.resident, before.resident, limit)
	}
	if after.files > before.files || after.maps > before.maps {
		t.Errorf("%d files and %d mappings after %d and %d", after.files, after.maps, before.files, before.maps)
	}
}

// documented reports whether an error is one that a client may meet during
// swaps: nothing is loaded, a load is under way, another is asked for, or the
// load was cancelled.
func documented(status int, text string) bool {
	for s, words := range map[int]string{503: "no model is loaded|a model is loading", 429: "another load or unload is under way|a load or unload is under way", 409: "cancelled"} {
		for w := range strings.SplitSeq(words, "|") {
			if (status == 0 || status == s) && strings.Contains(text, w) {
				return true
			}
		}
	}
	return false
}

// readChat reads a streamed chat; it stops after so many pieces, -1 = never.
func readChat(body io.Reader, pieces int) (text, end, failure string) {
	for lines := bufio.NewScanner(body); lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Error   json.RawMessage
			Choices []struct {
				Delta  struct{ Content string }
				Finish *string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return text, end, fmt.Sprintf("%v in %s", err, data)
		}
		if chunk.Error != nil {
			return text, end, string(chunk.Error)
		}
		for _, c := range chunk.Choices {
			text += c.Delta.Content
			if c.Finish != nil {
				end = *c.Finish
			}
		}
		if pieces >= 0 {
			if pieces == 0 {
				return text, end, ""
			}
			pieces--
		}
	}
	return text, end, ""
}
