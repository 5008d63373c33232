package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/machine"
)

// scripted and real are the two replays of mlx-dspark's recordings: with an engine
// that says what was recorded, and with the models of the recordings.
var (
	scripted = rerun{group: "mlx-dspark"}
	real     = rerun{group: "mlx-dspark", real: true}
)

// measuredFields differ under --max-draft auto: how much is drafted depends on what
// rounds cost on this machine.
var measuredFields = map[string]bool{"x_mlx_dspark.cap": true, "x_mlx_dspark.accept_len": true, "x_mlx_dspark.target_forwards": true, "x_mlx_dspark.lookup_rounds": true}

// realVolatile are keys whose values differ from run to run, or between machines.
var realVolatile = map[string]bool{"id": true, "created": true, "created_at": true, "item_id": true, "call_id": true, "signature": true,
	"tokens_per_sec": true, "decode_tokens_per_sec": true, "prefill_seconds": true, "decode_seconds": true, "ttft_seconds": true,
	"prefill_tokens_per_sec": true, "decay_ratio": true, "swap_delta_bytes": true, "ceiling_tokens_per_sec": true, "roofline_ratio": true}

// realOptional are keys that a short run may have or not.
var realOptional = map[string]bool{"prefill_tokens_per_sec": true, "decay_ratio": true, "swap_delta_bytes": true, "ceiling_tokens_per_sec": true, "roofline_ratio": true, "cold": true}

type realExchange struct {
	Name, Method, Path string
	Headers            map[string]string
	Body               json.RawMessage
	Status             int
	Answer             json.RawMessage // a stream is a string
}

// realModels makes a folder as the recorded server had it at /: the models lie
// below models/. tiny-chat-effort has the files of tiny-chat beside its own.
func realModels(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for from, to := range map[string][]string{"tiny-chat": {"tiny-chat", "tiny-chat-effort"}, "tiny-chat-effort": {"tiny-chat-effort"}, "tiny-drafter": {"tiny-drafter"}} {
		files, _ := filepath.Glob("testdata/dspark-real/models/" + from + "/*")
		for _, name := range to {
			dir := filepath.Join(root, "models", name)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				to := filepath.Join(dir, filepath.Base(f))
				if _, err := os.Stat(to); err == nil && from != name {
					continue // its own is there
				}
				b, err := os.ReadFile(f)
				if err == nil {
					err = os.WriteFile(to, b, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return root
}

// startReal makes a server as the flags of a recording say, and the folder that
// its models are in.
func startReal(t *testing.T, flags []string) (s *Server, root string) {
	t.Helper()
	root = realModels(t)
	load := engine.LoadRequest{Mode: "auto"}
	o := engine.Options{Version: "test", Backend: func() (compute.Backend, error) { return compute.NewReference(), nil }, Slots: 2, ModelRoot: root,
		Memory: func() machine.Memory { return machine.Memory{Total: 64 << 30, Available: 48 << 30} }}
	var web Options
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	set := func(n int) *int { return &n }
	off := false
	for i := 0; i < len(flags); i++ {
		switch flags[i] {
		case "--no-small-m", "--no-sdpa-split", "--no-multirow-attn": // of Metal kernels
			continue
		case "--no-model":
			continue
		case "--no-warmup":
			load.Warmup = &off
			continue
		case "--no-lookup-drafts":
			load.LookupDrafts = &off
			continue
		}
		i++
		switch v := flags[i]; flags[i-1] {
		case "--mode":
			load.Mode = v
		case "--model":
			load.Model = root + v
		case "--drafter":
			load.Drafter = root + v
		case "--drafter-bits":
			load.DrafterBits = set(number(v))
		case "--max-draft":
			if v == "auto" {
				load.MaxDraft = set(0)
			} else {
				load.MaxDraft = set(number(v))
			}
		case "--context-window":
			load.ContextWindow = set(number(v))
		case "--reasoning-effort":
			load.ReasoningEffort = &v
		case "--api-key":
			web.Keys = []string{v}
		case "--default-max-tokens":
			o.DefaultMaxTokens = number(v)
		case "--max-tokens-cap":
			o.MaxTokensCap = number(v)
		case "--prefix-cache-slots":
			o.Slots = number(v)
		case "--max-batch":
			o.MaxBatch = number(v)
		case "--default-temperature", "--wide-gemm-min", "--cpu-split":
		default:
			t.Fatalf("flag %s", flags[i-1])
		}
	}
	e := engine.New(o)
	t.Cleanup(func() { e.Close(context.Background()) })
	if load.Model != "" {
		if _, err := e.LoadFrom(context.Background(), load); err != nil {
			t.Fatal(err)
		}
	}
	return New(e, web), root
}

// TestDSparkReplay sends the recorded requests of mlx-dspark to the real engine
// with the same models: texts, thoughts, calls, reasons and counts are the same.
func TestDSparkReplay(t *testing.T) {
	files, err := filepath.Glob("testdata/dspark-real/*.json")
	if err != nil || len(files) != 10 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		config := strings.TrimSuffix(filepath.Base(file), ".json")
		t.Run(config, func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var rec struct {
				Flags     []string
				Exchanges []realExchange
			}
			if err := json.Unmarshal(b, &rec); err != nil || len(rec.Exchanges) < 2 {
				t.Fatal(len(rec.Exchanges), err)
			}
			s, root := startReal(t, rec.Flags)
			for _, x := range rec.Exchanges {
				name := config + "-" + x.Name
				differ := func(field string, got, want any) {
					if real.excused(name, field, true) {
						return
					}
					if name == "auto-cap-chat" && measuredFields[field] {
						return
					}
					t.Errorf("%s: %s is %v, want %v\nrequest %s %.300s", name, field, got, want, x.Path, x.Body)
				}
				g := golden{Name: name}
				g.Request.Body = x.Body
				var headers []string
				for k, v := range x.Headers {
					headers = append(headers, k, v)
				}
				body := string(g.body())
				if strings.HasPrefix(x.Path, "/admin/") {
					body = strings.ReplaceAll(body, "/models/", root+"/models/")
				}
				w := call(s, x.Method, x.Path, body, headers...)
				want := cmp.Or(real.rightStatus(name), x.Status)
				if w.Code != want {
					differ("status", fmt.Sprint(w.Code, " ", w.Body), fmt.Sprint(want, " ", string(x.Answer)))
					continue
				}
				if want != x.Status {
					continue
				}
				var sse string
				if json.Unmarshal(x.Answer, &sse) == nil && len(x.Answer) > 0 && x.Answer[0] == '"' {
					if ct := w.Header().Get("Content-Type"); ct != "text/event-stream" {
						differ("content-type", ct, "text/event-stream")
						continue
					}
					realStreams(t, name, sse, w.Body.String(), differ)
					continue
				}
				if x.Method == "GET" || strings.HasPrefix(x.Path, "/admin/") {
					realShape(name, "", parseTree(t, x.Answer), parseTree(t, w.Body.Bytes()), differ)
					continue
				}
				if len(bytes.TrimSpace(x.Answer)) == 0 || string(x.Answer) == "null" {
					continue
				}
				realTree(name, "", parseTree(t, x.Answer), parseTree(t, w.Body.Bytes()), differ)
			}
		})
	}
	t.Run("events", replayEvents)
	t.Run("phases", replayPhases)
	t.Run("download", replayDownload)
	real.checkUsed(t)
}

// wholeCalls joins the pieces of tool calls in the deltas of a chat stream.
func wholeCalls(events []sseEvent) {
	for i := range events {
		var o map[string]any
		if json.Unmarshal([]byte(events[i].data), &o) != nil {
			continue
		}
		choice, ok := first(o["choices"])
		if !ok {
			continue
		}
		d, _ := choice["delta"].(map[string]any)
		list, _ := d["tool_calls"].([]any)
		var calls []any
		for _, c := range list {
			c := c.(map[string]any)
			n := len(calls)
			if n == 0 || calls[n-1].(map[string]any)["index"] != c["index"] {
				calls = append(calls, c)
				continue
			}
			f, g := calls[n-1].(map[string]any)["function"].(map[string]any), c["function"].(map[string]any)
			f["arguments"] = fmt.Sprint(f["arguments"], g["arguments"])
		}
		if len(calls) < len(list) {
			d["tool_calls"] = calls
			events[i].data = string(encode(o))
		}
	}
}

// realStreams compares two streams event by event, pieces of text joined.
func realStreams(t *testing.T, name, wantText, gotText string, differ func(field string, got, want any)) {
	t.Helper()
	want, got := comparable(t, wantText), comparable(t, gotText)
	wholeCalls(got)
	if len(want) != len(got) {
		differ("events", show(got), show(want))
		return
	}
	for i := range want {
		if want[i].name != got[i].name || (want[i].data == "[DONE]") != (got[i].data == "[DONE]") {
			differ("events", show(got), show(want))
			return
		}
		if want[i].data != "[DONE]" {
			realTree(name, "", parseTree(t, []byte(want[i].data)), parseTree(t, []byte(got[i].data)), differ)
		}
	}
}

// realTree: got has the keys of want, with the same types, and the same values
// where they do not differ from run to run.
func realTree(name, path string, want, got *tree, differ func(field string, got, want any)) {
	if real.excepted(name, path, want, got) {
		return
	}
	if want.kind != got.kind {
		differ(path, fmt.Sprintf("%c %s", got.kind, got.text), fmt.Sprintf("%c %s", want.kind, want.text))
		return
	}
	switch want.kind {
	case '{':
		for _, k := range want.keys {
			p := strings.TrimPrefix(path+"."+k, ".")
			kid, ok := got.kids[k]
			if real.excepted(name, p, want.kids[k], kid) || realOptional[k] {
				continue
			}
			if !ok {
				differ(p, "missing", want.kids[k].text)
				continue
			}
			switch {
			case realVolatile[k], k == "cached_tokens" && !strings.HasPrefix(name, "cache-"):
				if kid.kind != want.kids[k].kind {
					differ(p, string(kid.kind), string(want.kids[k].kind))
				}
			case k == "arguments" && kid.kind == '"': // JSON, however it is spaced
				var a, b any
				if json.Unmarshal([]byte(want.kids[k].text), &a) != nil || json.Unmarshal([]byte(kid.text), &b) != nil {
					realTree(name, p, want.kids[k], kid, differ)
				} else if !bytes.Equal(encode(a), encode(b)) {
					differ(p, kid.text, want.kids[k].text)
				}
			default:
				realTree(name, p, want.kids[k], kid, differ)
			}
		}
	case '[':
		if len(want.list) != len(got.list) {
			differ(path, len(got.list), len(want.list))
			return
		}
		for i := range want.list {
			realTree(name, fmt.Sprintf("%s[%d]", path, i), want.list[i], got.list[i], differ)
		}
	case '0':
		a, _ := strconv.ParseFloat(want.text, 64)
		b, _ := strconv.ParseFloat(got.text, 64)
		if a != b && !(strings.Contains(path, "logprobs") && math.Abs(a-b) < 1e-3) {
			differ(path, got.text, want.text)
		}
	default:
		if want.text != got.text {
			differ(path, strconv.Quote(got.text), strconv.Quote(want.text))
		}
	}
}

// realShape: got has the keys of want, of the same kinds where neither is null;
// reports differ in their values.
func realShape(name, path string, want, got *tree, differ func(field string, got, want any)) {
	if want.kind == 'n' || got.kind == 'n' {
		return
	}
	if want.kind != got.kind {
		differ(path, fmt.Sprintf("%c %s", got.kind, got.text), fmt.Sprintf("%c %s", want.kind, want.text))
		return
	}
	for _, k := range want.keys {
		p := strings.TrimPrefix(path+"."+k, ".")
		switch kid, ok := got.kids[k]; {
		case ok:
			realShape(name, p, want.kids[k], kid, differ)
		case !realOptional[k] && strings.Trim(k, "0123456789") != "" && !real.excepted(name, p, want.kids[k], nil):
			differ(p, "missing", want.kids[k].text)
		}
	}
	if len(want.list) > 0 && len(got.list) > 0 {
		realShape(name, path+"[0]", want.list[0], got.list[0], differ)
	}
}

// elsewhere are recordings that are not replayed as they are, and the tests
// that show the same: what they hold depends on time, or on a hub.
var elsewhere = map[string]string{
	"baseline/bad-content-length": "TestBadLengths",
	"no-model/machine":            "TestMachineWithoutModel",
	"cli/":                        "TestRecordedCommandLines",
}

// TestEveryGoldenIsReplayed: every recording of mlx-dspark is replayed with a
// scripted engine, with the real one, or shown by a test of its own.
func TestEveryGoldenIsReplayed(t *testing.T) {
	list, err := os.ReadFile("testdata/dspark-goldens.txt")
	if err != nil {
		t.Fatal(err)
	}
	replayed := map[string]bool{}
	files, _ := filepath.Glob("testdata/dspark-real/*.json")
	for _, f := range files {
		var rec struct{ Exchanges []realExchange }
		b, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(b, &rec)
		}
		if err != nil {
			t.Fatal(f, err)
		}
		for _, x := range rec.Exchanges {
			replayed[strings.TrimSuffix(filepath.Base(f), ".json")+"/"+x.Name] = true
		}
	}
	names := strings.Fields(string(list))
	if len(names) < 230 {
		t.Fatal(len(names))
	}
	used := map[string]bool{}
	for _, name := range names {
		config, rest, _ := strings.Cut(name, "/")
		found := replayed[name]
		for _, dir := range []string{"dspark", "control", "dspark-live"} {
			_, err := os.Stat("testdata/" + dir + "/" + config + "-" + rest + ".json")
			found = found || err == nil
		}
		for _, key := range []string{name, config + "/"} {
			if elsewhere[key] != "" {
				found, used[key] = true, true
			}
		}
		if !found {
			t.Errorf("%s is replayed nowhere", name)
		}
	}
	for key := range elsewhere {
		if !used[key] {
			t.Errorf("there is no recording %s", key)
		}
	}
}
