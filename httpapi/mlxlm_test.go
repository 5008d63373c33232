package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/models"
	"sparkbar/httpapi/internal/enginetest"
)

// mlxAnswer is what a whole answer or a stream says.
type mlxAnswer struct {
	Content, Reasoning, Text string
	ContentNull              bool // a whole answer without text
	Calls                    []string
	Finish                   string
	Usage                    map[string]any
}

func mlxParse(t *testing.T, body string) (a mlxAnswer, ok bool) {
	t.Helper()
	type choice struct {
		Text    *string
		Finish  *string `json:"finish_reason"`
		Message map[string]any
		Delta   map[string]any
	}
	var frames []string
	if strings.HasPrefix(body, "data:") || strings.HasPrefix(body, ":") {
		for _, e := range parseSSE(body) {
			if strings.HasPrefix(e.data, "{") {
				frames = append(frames, e.data)
			}
		}
	} else {
		frames = []string{body}
	}
	for _, f := range frames {
		var v struct {
			Choices []choice
			Usage   map[string]any
			Error   any
		}
		if err := json.Unmarshal([]byte(f), &v); err != nil || v.Error != nil {
			return a, false
		}
		if v.Usage != nil {
			a.Usage = v.Usage
			delete(a.Usage, "prompt_tokens_details") // pasts are reused from 16 tokens on
		}
		for _, c := range v.Choices {
			if c.Finish != nil {
				a.Finish = *c.Finish
			}
			if c.Text != nil {
				a.Text += *c.Text
			}
			for _, m := range []map[string]any{c.Message, c.Delta} {
				if s, ok := m["content"].(string); ok {
					a.Content += s
				}
				if v, ok := m["content"]; ok && v == nil {
					a.ContentNull = true
				}
				if s, ok := m["reasoning"].(string); ok {
					a.Reasoning += s
				}
				calls, _ := m["tool_calls"].([]any)
				for _, c := range calls {
					f, _ := c.(map[string]any)["function"].(map[string]any)
					if f["name"] != nil {
						a.Calls = append(a.Calls, fmt.Sprint(f["name"], " "))
					}
					if len(a.Calls) > 0 {
						a.Calls[len(a.Calls)-1] += fmt.Sprint(f["arguments"])
					}
				}
			}
		}
	}
	for i, c := range a.Calls { // arguments are JSON, however it is spaced
		name, args, _ := strings.Cut(c, " ")
		var v any
		if json.Unmarshal([]byte(args), &v) == nil {
			a.Calls[i] = name + " " + string(encode(v))
		}
	}
	return a, true
}

type mlxSession struct {
	Flags     []string
	Exchanges []mlxExchange
}

type mlxExchange struct {
	Name    string
	Request struct {
		Method, Path string
		Body         json.RawMessage
		Raw          string `json:"raw_body"`
		Headers      map[string]string
		NoLength     bool `json:"no_length"`
	}
	Status int // 0 = the connection was closed
	Body   string
}

// start makes an engine as the flags of a session say.
func (m *mlxSession) start(t *testing.T) (*engine.Engine, *Server) {
	t.Helper()
	off := false
	load := engine.LoadRequest{Mode: "baseline", Warmup: &off}
	o := engine.Options{Version: "test", Backend: func() (compute.Backend, error) { return compute.NewReference(), nil }, ModelRoot: ".", Slots: 10}
	number := func(s string) *int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return &n
	}
	for i := 0; i < len(m.Flags); i += 2 {
		switch v := m.Flags[i+1]; m.Flags[i] {
		case "--model":
			load.Model = v
		case "--draft-model":
			load.Drafter, load.Mode = v, "auto"
		case "--prompt-cache-size":
			if o.Slots = *number(v); o.Slots == 0 {
				o.Slots = -1
			}
		case "--kv-bits":
			load.KVBits = number(v)
		case "--kv-group-size":
			load.KVGroup = number(v)
		case "--quantized-kv-start": // quantized from the first token on
		default:
			t.Fatalf("flag %s", m.Flags[i])
		}
	}
	o.Live.Base = load
	o.Live.Base.Model, o.Live.Base.Drafter = "", ""
	o.Catalogue = models.NewCatalogue(models.CatalogueOptions{Places: models.Places{Hub: mlxHub(t)}})
	e := engine.New(o)
	t.Cleanup(func() { e.Close(context.Background()) })
	if load.Model != "" {
		if _, err := e.LoadFrom(context.Background(), load); err != nil {
			t.Fatal(err)
		}
	}
	return e, New(e, Options{Profile: MLXLMProfile()})
}

// mlxHub is the cache of downloads that the recorded server saw.
func mlxHub(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	repo := func(folder, ref string, files map[string][]byte) {
		const revision = "0123456789abcdef0123456789abcdef01234567"
		snap := filepath.Join(dir, folder, "snapshots", revision)
		for _, d := range []string{snap, filepath.Join(dir, folder, "refs")} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		files["../../refs/"+ref] = []byte(revision)
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(snap, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	three := func() map[string][]byte {
		return map[string][]byte{"config.json": []byte("{}"), "model.safetensors.index.json": []byte("{}"), "tokenizer_config.json": []byte("{}")}
	}
	repo("models--acme--listed-4bit", "main", three())
	repo("models--acme--no-main", "v1", three())
	noIndex := three()
	delete(noIndex, "model.safetensors.index.json")
	noIndex["model.safetensors"] = []byte("x")
	repo("models--acme--no-index", "main", noIndex)
	repo("datasets--acme--data", "main", three())
	tiny := map[string][]byte{}
	files, err := filepath.Glob("models/tiny-chat/*")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if tiny[filepath.Base(f)], err = os.ReadFile(f); err != nil {
			t.Fatal(err)
		}
	}
	repo("models--acme--tiny-chat", "main", tiny)
	return dir
}

// send sends a request as it was sent, also one that is not good HTTP.
func (x *mlxExchange) send(t *testing.T, s *Server) (status int, header http.Header, body string) {
	t.Helper()
	q := &x.Request
	text := q.Raw
	if q.Body != nil {
		text = string(q.Body)
	}
	if q.NoLength || q.Headers["Content-Length"] != "" {
		return overTCP(t, s, x)
	}
	var headers []string
	for k, v := range q.Headers {
		headers = append(headers, k, v)
	}
	w := call(s, q.Method, q.Path, text, headers...)
	return w.Code, w.Header(), w.Body.String()
}

// mlxQuotes tells texts of errors that quote Python or its libraries, whose
// wording nobody relies on.
func mlxQuotes(text string) bool {
	for _, s := range []string{"Invalid JSON in request body: ", "has no attribute", "object is not iterable", "expected str, bytes", "Cannot find an appropriate cached", "can only concatenate",
		"dictionary update sequence", "'text'", "'type'", "text input must be", "No safetensors found", "[Errno", "Tools should either", "Adapter at ", "LoRA config", "Cannot apply chat template", "Only 'text'"} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// TestMLXLMReplay: a recorded server and this one, with the same models and the
// same requests in the same order, say the same. Every recording is replayed.
func TestMLXLMReplay(t *testing.T) {
	t.Chdir("testdata/mlx-lm") // paths in requests are relative
	mlxlm := rerun{group: "mlx_lm"}
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) != 23 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		session := strings.TrimSuffix(file, ".json")
		t.Run(session, func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var rec mlxSession
			if err := json.Unmarshal(b, &rec); err != nil || len(rec.Exchanges) < 2 {
				t.Fatal(len(rec.Exchanges), err)
			}
			_, s := rec.start(t)
			for _, x := range rec.Exchanges {
				name := session + "/" + x.Name
				differ := func(field string, got, want any) {
					if mlxlm.excused(name, field, true) {
						return
					}
					t.Errorf("%s: %s is %v, want %v\nrequest %s %s %.300s", name, field, got, want, x.Request.Method, x.Request.Path, x.Request.Body)
				}
				status, header, body := x.send(t, s)
				if status != x.Status {
					differ("status", fmt.Sprint(status, " ", body), fmt.Sprint(x.Status, " ", x.Body))
					if status >= 500 && status != http.StatusServiceUnavailable {
						t.Errorf("%s: status %d is never right", name, status)
					}
					continue
				}
				if status != http.StatusOK {
					mlxError(x.Body, body, differ)
					continue
				}
				mlxCompare(t, x.Body, body, header, differ)
			}
			if w := call(s, "GET", "/health", ""); w.Code != http.StatusOK {
				t.Errorf("%s: the server is not well after it: %d %s", session, w.Code, w.Body)
			}
		})
	}
	mlxlm.checkUsed(t)
}

// mlxError compares the bodies of refusals.
func mlxError(want, got string, differ func(field string, got, want any)) {
	var w, g struct{ Error *string }
	if json.Unmarshal([]byte(want), &w) != nil || w.Error == nil {
		if want != "" || got != "" {
			differ("body", got, want) // plain text or a page
		}
		return
	}
	if json.Unmarshal([]byte(got), &g) != nil || g.Error == nil {
		differ("body", got, want)
	} else if *g.Error != *w.Error && !mlxQuotes(*w.Error) && !strings.Contains(*g.Error, *w.Error) {
		differ("error", *g.Error, *w.Error)
	}
}

// mlxCompare compares answers and streams.
func mlxCompare(t *testing.T, wantBody, gotBody string, header http.Header, differ func(field string, got, want any)) {
	t.Helper()
	stream := strings.HasPrefix(wantBody, "data:") || strings.HasPrefix(wantBody, ":")
	kind := "application/json"
	if stream {
		kind = "text/event-stream"
	}
	if got := header.Get("Content-Type"); got != kind {
		differ("content-type", got, kind)
	}
	want, ok := mlxParse(t, wantBody)
	got, ok2 := mlxParse(t, gotBody)
	if !ok || !ok2 {
		differ("kind", gotBody, wantBody)
		return
	}
	// That server drops the first space of an answer, this one does not.
	for _, p := range [][2]*string{{&got.Text, &want.Text}, {&got.Content, &want.Content}} {
		if *p[0] == " "+*p[1] {
			*p[0] = *p[1]
		}
	}
	g, v := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if a, b := g.Field(i).Interface(), v.Field(i).Interface(); !reflect.DeepEqual(a, b) {
			differ(strings.ToLower(g.Type().Field(i).Name), fmt.Sprintf("%q", fmt.Sprint(a)), fmt.Sprintf("%q", fmt.Sprint(b)))
		}
	}
	if stream { // the same kinds of chunks
		shapes := mlxShapes(gotBody)
		for _, shape := range mlxShapes(wantBody) {
			if !slices.Contains(shapes, shape) {
				differ("chunk", shapes, shape)
			}
		}
		return
	}
	var w, h any
	if json.Unmarshal([]byte(wantBody), &w) != nil || json.Unmarshal([]byte(gotBody), &h) != nil {
		differ("json", gotBody, wantBody)
		return
	}
	mlxTree("", w, h, differ)
}

// mlxShapes are the kinds of chunks of a stream: which keys they have.
func mlxShapes(body string) []string {
	var shapes []string
	for _, e := range parseSSE(body) {
		shape := e.data
		var v map[string]any
		if json.Unmarshal([]byte(e.data), &v) == nil {
			shape = fmt.Sprint(v["object"], keysOf(v))
			if list, _ := v["choices"].([]any); len(list) > 0 {
				c := list[0].(map[string]any)
				shape += fmt.Sprint(keysOf(c), c["finish_reason"])
				if d, ok := c["delta"].(map[string]any); ok {
					_, role := d["role"]
					shape += fmt.Sprint(" role ", role)
				}
			}
		}
		if !slices.Contains(shapes, shape) {
			shapes = append(shapes, shape)
		}
	}
	return shapes
}

func keysOf(m map[string]any) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// mlxTree: got has all that want has, of the same types, and values that do not
// differ from run to run.
func mlxTree(path string, want, got any, differ func(field string, got, want any)) {
	if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", got) {
		differ(path, fmt.Sprintf("%T %v", got, got), fmt.Sprintf("%T %v", want, want))
		return
	}
	switch w := want.(type) {
	case map[string]any:
		g := got.(map[string]any)
		for _, k := range keysOf(w) {
			at := strings.TrimPrefix(path+"."+k, ".")
			switch v, there := g[k]; {
			case !there:
				differ(at, "missing", w[k])
			case k == "id" && strings.HasPrefix(path, "choices[0].message"), k == "id" && path == "", k == "created", k == "system_fingerprint", k == "cached_tokens", k == "content", k == "text", k == "arguments":
				if v != nil && w[k] != nil && k != "content" { // texts were compared already
					mlxTree(at, fmt.Sprintf("%T", w[k]), fmt.Sprintf("%T", v), differ)
				}
				if list, ok := w[k].([]any); ok { // of log-probabilities
					mlxTree(at, list, v, differ)
				}
			default:
				mlxTree(at, w[k], v, differ)
			}
		}
	case []any:
		g := got.([]any)
		if len(w) != len(g) {
			differ(path, len(g), len(w))
			return
		}
		for i := range w {
			mlxTree(fmt.Sprintf("%s[%d]", path, i), w[i], g[i], differ)
		}
	case float64:
		g := got.(float64)
		if strings.HasSuffix(path, ".logprob") && math.Abs(w-g) >= 2e-4 {
			differ("logprob", g, w)
		} else if w != g && !strings.HasSuffix(path, ".logprob") {
			differ(path, g, w)
		}
	case string:
		cwd, _ := os.Getwd()
		if g := got.(string); strings.ReplaceAll(w, "${CWD}", cwd) != g {
			differ(path, g, w)
		}
	default:
		if want != got {
			differ(path, got, want)
		}
	}
}

// overTCP sends a request whose head no client library would write.
func overTCP(t *testing.T, s *Server, x *mlxExchange) (status int, header http.Header, body string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() {
		served <- New(s.engine, Options{Profile: MLXLMProfile(), Log: slog.New(slog.DiscardHandler)}).Serve(ctx, ln)
	}()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n", x.Request.Method, x.Request.Path)
	for k, v := range x.Request.Headers {
		fmt.Fprintf(c, "%s: %s\r\n", k, v)
	}
	fmt.Fprint(c, "\r\n")
	all, _ := io.ReadAll(c)
	head, body, _ := strings.Cut(string(all), "\r\n\r\n")
	fmt.Sscanf(head, "HTTP/1.1 %d", &status)
	return status, http.Header{}, body
}

// TestPythonNumbers: what counts as a number is what Python's isinstance says; each
// row is what mlx_lm.server 0.32.2 answered.
func TestPythonNumbers(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("ok")), Options{Profile: MLXLMProfile()})
	whole := []string{"max_tokens", "max_completion_tokens", "top_k", "num_draft_tokens", "repetition_context_size", "presence_context_size", "frequency_context_size", "top_logprobs", "seed"}
	number := []string{"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
	type row struct{ field, value, want string }
	var rows []row
	for _, f := range slices.Concat(whole, number) {
		rows = append(rows, row{f, "true", ""})
		if !strings.HasPrefix(f, "max_") {
			rows = append(rows, row{f, "false", ""})
		}
	}
	for _, f := range whole {
		rows = append(rows, row{f, "1.0", strings.Replace(f, "_completion", "", 1) + " must be of type int"})
	}
	for _, f := range number {
		rows = append(rows, row{f, "1.0", ""}, row{f, "1", ""})
	}
	rows = append(rows,
		row{"max_tokens", "false", "max_tokens must be at least 1"},
		row{"xtc_probability", "true", "xtc_probability must be of type float"},
		row{"xtc_threshold", "false", "xtc_threshold must be of type float"},
		row{"stream", "1", "stream must be of type bool"},
		row{"logprobs", "1", "logprobs must be of type bool"},
		row{"logit_bias", `{"1":true}`, ""},
		// the first in the order of that server, wherever it is read here
		row{"model", `[],"logprobs":"x"`, "logprobs must be of type bool"},
		row{"model", `null,"frequency_context_size":{}`, "frequency_context_size must be of type int"},
	)
	for _, r := range rows {
		w := call(s, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi"}],"`+r.field+`":`+r.value+`}`)
		var got struct{ Error string }
		_ = json.Unmarshal(w.Body.Bytes(), &got)
		if want := map[bool]int{true: 200, false: 400}[r.want == ""]; w.Code != want || got.Error != r.want {
			t.Errorf("%s %s: %d %q, want %d %q", r.field, r.value, w.Code, got.Error, want, r.want)
		}
	}
}
