package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/machine"
	"sparkbar/engine/models"
	"sparkbar/engine/telemetry"
	"sparkbar/httpapi/internal/enginetest"
)

// sameShape compares keys, their order and types; nulls fit anything, and the
// first entry of a list stands for all.
func sameShape(t *testing.T, what, path string, want, got *tree) {
	t.Helper()
	if want.kind == 'n' || got.kind == 'n' {
		return
	}
	if want.kind != got.kind {
		t.Errorf("%s: %s is %c, want %c", what, path, got.kind, want.kind)
		return
	}
	switch want.kind {
	case '{':
		at := -1
		for _, k := range want.keys {
			p := strings.TrimPrefix(path+"."+k, ".")
			kid, ok := got.kids[k]
			if _, err := strconv.Atoi(k); err == nil && !ok { // a width or a length, not a key
				continue
			}
			if !ok {
				t.Errorf("%s: %s is missing", what, p)
				continue
			}
			i := slices.Index(got.keys, k)
			if i < at && what != "admin-models" {
				t.Errorf("%s: %s comes too early: %v, want %v", what, p, got.keys, want.keys)
			}
			at = max(at, i)
			sameShape(t, what, p, want.kids[k], kid)
		}
	case '[':
		if len(want.list) > 0 && len(got.list) > 0 {
			sameShape(t, what, path+"[0]", want.list[0], got.list[0])
		}
	}
}

func readGolden(t *testing.T, name string) golden {
	t.Helper()
	b, err := os.ReadFile("testdata/control/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var g golden
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	return g
}

// busy is an engine with a dspark model and a known machine.
func busy() *enginetest.Engine {
	e := enginetest.New(enginetest.Say("a", "b"))
	st := e.Status()
	m := st.Model
	m.Mode, m.Drafter, m.DrafterWindow = "dspark", "/models/tiny-drafter", 4096
	m.Weights = telemetry.Footprint{TotalBytes: 2e9, ActiveBytes: 1e9}
	m.DrafterWeights = &telemetry.Footprint{TotalBytes: 1e8, ActiveBytes: 1e8}
	m.KVBytesPerToken = 1000
	st.Guard = engine.GuardStatus{Enabled: true, Level: machine.Warn, Pending: machine.Warn, Sheds: 1, Last: &engine.Shed{Level: machine.Warn, Action: "x"}}
	e.SetStatus(st)
	e.Info = engine.MachineInfo{Chip: machine.Chip{Name: "Test chip", Cores: 4, OS: "linux", Arch: "amd64", OSVersion: "1"}, Resident: 1 << 30, Peak: 2 << 30,
		Bandwidth: machine.Bandwidth{GBs: 100, MeasuredAt: time.Unix(1000, 0), Method: "scan"},
		Thermal:   machine.Thermal{Heat: machine.Fair, Celsius: 81.3},
		Memory:    machine.Memory{Total: 64 << 30, Available: 32 << 30, SwapTotal: 5, SwapUsed: 2, Pressure: machine.Warn, PressureLevel: 2}}
	var cal engine.Calibration
	if err := json.Unmarshal([]byte(`{"Key":"v1|x","verify":{"1":20,"2":21,"4":30},"drafter":{"1":5,"2":5,"4":5},"overhead":1.5}`), &cal); err != nil {
		panic(err)
	}
	e.Costs = cal
	info := calibrate.NewController(cal.Costs, calibrate.ControllerConfig{MaxCap: 3}).Info()
	e.Gauge = &engine.Gauges{Controller: &info, Trimmable: true, PositionBytes: 1000, Pages: 20, PagesUsed: 3}
	e.Gauge.Store.Tokens, e.Gauge.Store.Hits, e.Gauge.Store.ReusedTokens = []int{50, 30}, 2, 70
	e.Total.Requests = 1
	return e
}

// TestControlShapes compares answers about machine and models with recorded
// ones.
func TestControlShapes(t *testing.T) {
	e := busy()
	e.Local = []models.Model{
		{ID: "mlx-community/Qwen3-4B-8bit", Path: "/hub/x", Bytes: 5 << 30, Complete: true, Source: models.SourceHub, Type: "qwen3", Quantization: "8-bit", Context: 40960, Snapshot: time.Unix(2000, 0)},
		{ID: "deepseek-ai/dspark_qwen3_4b_block7", Bytes: 1 << 30, Complete: true, Drafter: true, Source: models.SourceHub},
		{ID: "org/half", Bytes: 9 << 30, Reason: "model-00002 is missing", Source: models.SourceFolder},
	}
	s := New(e, Options{})
	call(s, "POST", "/v1/chat/completions", chatBody) // so that there is a latest request
	for _, c := range []struct{ golden, path, what string }{
		{"baseline-machine", "/machine", "machine"}, {"dspark-machine", "/machine", "machine"}, {"dspark-metrics", "/metrics", "metrics"},
		{"auto-cap-calibration", "/calibration", "calibration"}, {"auto-cap-metrics", "/metrics", "metrics"},
		{"no-model-admin-models", "/admin/models", "admin-models"}, {"no-model-doctor", "/doctor", "doctor"},
		{"baseline-integrations", "/admin/integrations", "integrations"},
	} {
		g := readGolden(t, c.golden)
		w := call(s, "GET", c.path, "")
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", c.path, w.Code, w.Body)
		}
		sameShape(t, c.what, "", parseTree(t, g.Response.Body), parseTree(t, w.Body.Bytes()))
	}

	at := func(path, keys string) any {
		t.Helper()
		var v any
		get(t, s, path, &v)
		for key := range strings.SplitSeq(keys, ".") {
			o, _ := v.(map[string]any)
			v = o[key]
		}
		return v
	}
	// 1e9 bytes of weights and 1000 a token at 100 GB/s; a plain step of 20 ms at 512.
	for keys, want := range map[string]any{"roofline.at_zero.ceiling_tps": 100.0, "baseline.step_ms": 20.0, "baseline.mbu": 0.5003, "verdict.level": "problem",
		"guard.pending": "warn", "guard.last_shed.action": "x", "memory.free_percent": 50.0, "bandwidth.gb_s": 100.0, "bandwidth.source": "measured",
		"thermal.state": "fair", "thermal.celsius": 81.3} {
		if got := at("/machine", keys); got != want {
			t.Errorf("/machine %s is %v, want %v", keys, got, want)
		}
	}
	for keys, want := range map[string]any{"prefix_cache.enabled": true, "prefix_cache.cached_tokens": 50.0, "prefix_cache.hits": 2.0, "prefix_cache.reused_tokens": 70.0,
		"memory.cache_bytes": 64.0 * 20 * 1000, "system.pressure": "warn", "verdict.level": "problem", "auto_cap.rounds": 0.0, "memory_guard.sheds": 1.0} {
		if got := at("/metrics", keys); got != want {
			t.Errorf("/metrics %s is %v, want %v", keys, got, want)
		}
	}
	var inv inventory
	get(t, s, "/admin/models", &inv)
	if len(inv.Models) != 17 || !inv.Models[0].Ready || !*inv.Models[0].Fits || inv.Models[1].TargetInstalled || *inv.Models[0].CeilingTPS != 18.6 {
		t.Errorf("%+v", inv.Models[:2])
	}
	if rows := inv.Installed; len(rows) != 3 || rows[0].Repo != "org/half" || rows[0].Complete || rows[0].Reason == nil || rows[0].Fit != nil ||
		*rows[1].RegistryID != "qwen3-4b" || rows[1].Fit.Verdict != "fits" || rows[2].Kind != "drafter" || inv.Disk.Bytes != 6<<30 || *inv.Loaded != "/models/tiny-chat" {
		t.Errorf("%+v", inv.Installed)
	}

	// Without a model the machine is still told about.
	e.SetStatus(engine.Status{State: engine.StateIdle})
	for _, key := range []string{"model", "roofline", "baseline", "verdict"} {
		if got := at("/machine", key); got != nil {
			t.Errorf("/machine %s is %v without a model", key, got)
		}
	}
	e.Info.Thermal = machine.Thermal{}
	if at("/machine", "thermal.state") != nil || at("/machine", "thermal.celsius") != nil {
		t.Error("a temperature that nobody knows")
	}
	if at("/machine", "chip.name") != "Test chip" || at("/machine", "guard.enabled") != false {
		t.Error("chip or guard")
	}
	if w := call(s, "GET", "/calibration", ""); w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func get(t *testing.T, s *Server, path string, v any) {
	t.Helper()
	w := call(s, "GET", path, "")
	if err := json.Unmarshal(w.Body.Bytes(), v); w.Code != 200 || err != nil {
		t.Fatalf("%s: %d %v %s", path, w.Code, err, w.Body)
	}
}

// TestLocalModels: other complete models of this machine are listed, and can be
// named.
func TestLocalModels(t *testing.T) {
	e := enginetest.New(enginetest.Say("ok"))
	e.Local = []models.Model{{ID: "org/other", Complete: true, Snapshot: time.Unix(2000, 0)}, {ID: "org/draft", Complete: true, Drafter: true},
		{ID: "org/half", Reason: "incomplete"}, {ID: "tiny", Path: "/models/tiny-chat", Complete: true, Snapshot: time.Unix(3000, 0)}}
	s := New(e, Options{})
	var list modelList
	get(t, s, "/v1/models", &list)
	if len(list.Data) != 2 || list.Data[0].ID != "tiny-chat" || list.Data[0].Created != 3000 || list.Data[1].ID != "org/other" || list.Data[1].Created != 2000 {
		t.Errorf("%+v", list.Data)
	}
	if w := call(s, "GET", "/v1/models/org/other", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"id":"org/other"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/v1/models/org/draft", "/v1/models/org/half"} {
		if w := call(s, "GET", path, ""); w.Code != 404 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	plain := New(e, Options{Profile: MLXLMProfile()})
	for path, want := range map[string]string{"/v1/models/org/other": `{"object":"list","data":[{"id":"org/other","object":"model","created":2000}]}`, "/v1/models/x": `{"object":"list","data":[]}`} {
		if w := call(plain, "GET", path, ""); w.Code != 200 || w.Body.String() != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	e.SetStatus(engine.Status{State: engine.StateIdle})
	get(t, s, "/v1/models", &list)
	if len(list.Data) != 2 {
		t.Errorf("without a model: %+v", list.Data)
	}
	for path, body := range map[string]string{"/v1/chat/completions": `{"model":"org/other","messages":[{"role":"user","content":"x"}]}`, "/v1/completions": `{"model":"org/other","prompt":"x"}`,
		"/v1/messages": `{"model":"org/other","max_tokens":9,"messages":[{"role":"user","content":"x"}]}`, "/v1/responses": `{"model":"org/other","input":"x"}`} {
		w := call(s, "POST", path, body)
		if w.Code != 200 || !strings.Contains(w.Body.String(), `"model":"org/other"`) {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, r := range e.Asked() {
		if r.Model != "org/other" {
			t.Errorf("the engine was asked for %q", r.Model)
		}
	}
}

// events reads a race's stream and checks the order and keys against a
// recording.
func raceEvents(t *testing.T, s *Server, name string) []sseEvent {
	t.Helper()
	g := readGolden(t, name)
	w := call(s, "POST", "/admin/race", string(g.Request.Body))
	if w.Code != 200 {
		t.Fatalf("%s: %d %s", name, w.Code, w.Body)
	}
	squeeze := func(list []sseEvent) (out []sseEvent) {
		for _, e := range list {
			if e.name != "token" || len(out) == 0 || out[len(out)-1].name != "token" {
				out = append(out, e)
			}
		}
		return out
	}
	want, got := squeeze(parseSSE(g.Response.SSE)), squeeze(parseSSE(w.Body.String()))
	if len(want) != len(got) {
		t.Fatalf("%s: %d kinds of events, want %d: %s", name, len(got), len(want), w.Body)
	}
	for i := range want {
		if want[i].name != got[i].name {
			t.Fatalf("%s: event %d is %s, want %s", name, i, got[i].name, want[i].name)
		}
		sameShape(t, "race", want[i].name, parseTree(t, []byte(want[i].data)), parseTree(t, []byte(got[i].data)))
	}
	return got
}

func TestRace(t *testing.T) {
	e := enginetest.New(enginetest.Script{})
	s := New(e, Options{})
	say := func(pieces []string, ids ...int32) enginetest.Script {
		script := enginetest.Say(pieces...)
		for _, id := range ids {
			script.Result.Tokens = append(script.Result.Tokens, engine.Token{ID: id})
		}
		script.Result.PromptTokens = []int32{1, 2}
		return script
	}
	e.Answer(func(r engine.Request) enginetest.Script { return say([]string{"a", "b"}, 5, 6) })
	raceEvents(t, s, "baseline-race-lookup-baseline")
	asked := e.Asked()
	if len(asked) != 2 || asked[0].Arm.Mode != "lookup" || asked[1].Arm.Mode != "baseline" || asked[0].MaxTokens != 24 || *asked[0].Sampling.Temperature != 0 || asked[0].Prompt.Kwargs["enable_thinking"] != false {
		t.Errorf("%+v", asked)
	}
	if s.latest.Load() != nil {
		t.Error("an arm counts as the latest request")
	}

	e = busy()
	s = New(e, Options{})
	e.Answer(func(r engine.Request) enginetest.Script { return say([]string{"a"}, 5, 6) })
	raceEvents(t, s, "auto-cap-race-auto")
	raceEvents(t, s, "dspark-race")
	asked = e.Asked()
	if a := asked[0].Arm; !a.Auto || a.Mode != "dspark" {
		t.Errorf("%+v", a)
	}
	if a := asked[3].Arm; a.Cap != 4 || *a.Confidence != 0.3 {
		t.Errorf("%+v", a)
	}

	// A real difference comes with the target's margin.
	e.Answer(func(r engine.Request) enginetest.Script {
		switch {
		case r.Prompt.Tokens != nil:
			if fmt.Sprint(r.Prompt.Tokens) != "[1 2 5]" {
				t.Errorf("the margin was asked for at %v", r.Prompt.Tokens)
			}
			res := say(nil, 6)
			res.Result.Tokens[0].Top = []engine.TokenProb{{ID: 6, Logprob: -0.5}, {ID: 9, Logprob: -0.75}}
			return res
		case r.Arm.Mode == "baseline":
			return say([]string{"a"}, 5, 6, 7)
		}
		return say([]string{"a"}, 5, 9, 7)
	})
	w := call(s, "POST", "/admin/race", `{"prompt":"x","arms":["baseline","lookup"]}`)
	if !strings.Contains(w.Body.String(), `"identical":false`) || !strings.Contains(w.Body.String(), `"first_diff":1,"length_only":false,"reference_token":6,"arm_token":9,"margin":0.25,"top2_margin":0.25`) {
		t.Errorf("%s", w.Body)
	}
	// Without arms: what is loaded against plain decoding.
	w = call(s, "POST", "/admin/race", `{"prompt":"x"}`)
	if !strings.Contains(w.Body.String(), `"arms":[{"mode":"dspark","cap":null,"confidence":null},{"mode":"baseline"`) {
		t.Errorf("%s", w.Body)
	}
	// A failure ends the stream in order.
	e.Answer(func(engine.Request) enginetest.Script {
		return enginetest.Script{Steps: []enginetest.Step{{Err: &engine.Error{Kind: engine.ErrInternal, Message: "broken"}}}}
	})
	events := parseSSE(call(s, "POST", "/admin/race", `{"prompt":"x"}`).Body.String())
	if n := len(events); n < 3 || events[n-2].name != "error" || !strings.Contains(events[n-2].data, "broken") || events[n-1].name != "done" {
		t.Errorf("%+v", events)
	}
	for _, bad := range []string{`{"prompt":5}`, `{"prompt":"x","arms":[5,"baseline"]}`, `{"prompt":"x","arms":[{"mode":"dspark","cap":"many"},"baseline"]}`, `{"prompt":"x","arms":[{"mode":"baseline","cap":"auto"},"baseline"]}`,
		`{"prompt":"x","arms":[{"mode":"dspark","confidence":2},"baseline"]}`, `{"prompt":"x","arms":{}}`, `{"prompt":"x","max_tokens":0}`, `{"prompt":"x","reasoning_effort":"max"}`} {
		if w := call(s, "POST", "/admin/race", bad); w.Code != 400 {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
}

func TestRequestsRoute(t *testing.T) {
	e := enginetest.New(enginetest.Say("x"))
	e.Running = []engine.RequestInfo{{ID: "a", State: "running", Model: "m", PromptTokens: 3, Tokens: 2, Since: time.Now().Add(-90 * time.Minute)}, {ID: "b", State: "queued"}}
	s := New(e, Options{})
	w := call(s, "GET", "/admin/requests", "")
	if w.Code != 200 || !strings.Contains(w.Body.String(), `{"id":"a","state":"running","model":"m","client":"","prompt_tokens":3,"tokens":2,"seconds":54`) || !strings.Contains(w.Body.String(), `"id":"b","state":"queued","model":null`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := call(s, "POST", "/admin/requests/b/cancel", ""); w.Code != 200 || w.Body.String() != `{"cancelled":true,"id":"b"}` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := call(s, "POST", "/admin/requests/b/cancel", ""); w.Code != 404 || !strings.Contains(w.Body.String(), "/admin/requests") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestIntegrations: the snippets hold address, key, model and limits; those of
// files parse.
func TestIntegrations(t *testing.T) {
	e := enginetest.New(enginetest.Say("x"))
	st := e.Status()
	st.Model.ContextWindow = 40960
	e.SetStatus(st)
	s := New(e, Options{Keys: []string{"it's"}})
	w := call(s, "GET", "/admin/integrations", "", "Host", "box.local:8080", "Authorization", "Bearer it's")
	var r integrations
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil || w.Code != 200 {
		t.Fatal(w.Code, err)
	}
	var ids []string
	for _, i := range r.Integrations {
		ids = append(ids, i.ID)
		for _, step := range i.Setup {
			set := map[string]bool{"command": step.Command != "", "env": step.Env != nil, "file": step.Path != "" && step.Content != "", "fields": step.Fields != nil}
			for kind, ok := range set {
				if ok != (kind == step.Kind) {
					t.Errorf("%s: a step of kind %s: %+v", i.ID, step.Kind, step)
				}
			}
			if step.Kind == "file" && strings.HasSuffix(step.Path, ".json") && !json.Valid([]byte(step.Content)) {
				t.Errorf("%s: %s", i.ID, step.Content)
			}
			if strings.Contains(step.Command, "it's") {
				t.Errorf("%s: not quoted: %s", i.ID, step.Command)
			}
		}
	}
	if want := "claude-code codex opencode pi openai-compatible continue zed vscode cline aider qwen-code jetbrains xcode curl openai-sdk anthropic-sdk"; strings.Join(ids, " ") != want {
		t.Errorf("%v", ids)
	}
	if r.BaseURL != "http://box.local:8080" || r.Integrations[0].Setup[0].Command != `sparkbar claude --url http://box.local:8080 --api-key 'it'\''s'` {
		t.Errorf("%s %+v", r.BaseURL, r.Integrations[0])
	}
	env := r.Integrations[0].Setup[1].Env
	if env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] != "40960" || env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] != "32768" || env["ANTHROPIC_AUTH_TOKEN"] != "it's" || env["ANTHROPIC_MODEL"] != "tiny-chat" {
		t.Errorf("%v", env)
	}
	if c := r.Integrations[1].Setup[0]; c.Path != "~/.codex/mlx-dspark.config.toml" || !strings.Contains(c.Content, "model_auto_compact_token_limit = 32768") || strings.Contains(c.Content, "profiles.") {
		t.Errorf("%+v", c)
	}
	if w := call(s, "GET", "/admin/integrations", ""); w.Code != 401 {
		t.Errorf("without the key: %d", w.Code)
	}
}

// memorySettings keeps settings in memory.
type memorySettings map[string]any

func (m memorySettings) Path() string           { return "/etc/x.yaml" }
func (m memorySettings) Values() map[string]any { return m }
func (m memorySettings) Locked() map[string]string {
	return map[string]string{"server.port": "--port"}
}
func (m memorySettings) Change(c map[string]json.RawMessage) error {
	for k, v := range c {
		if strings.HasPrefix(k, "bad") {
			return &SettingError{k, "'" + k + "' is no setting"}
		}
		m[k] = v
	}
	return nil
}

func TestSettingsRoutes(t *testing.T) {
	e := enginetest.New(enginetest.Say("x"))
	s := New(e, Options{Settings: memorySettings{"ui.detail": "simple"}})
	if w := call(s, "GET", "/admin/settings", ""); w.Body.String() != `{"path":"/etc/x.yaml","values":{"ui.detail":"simple"},"locked":{"server.port":"--port"}}` {
		t.Errorf("%s", w.Body)
	}
	if w := call(s, "PATCH", "/admin/settings", `{"a.b":[1]}`); w.Code != 200 || !strings.Contains(w.Body.String(), `"a.b":[1]`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, body := range []string{`{}`, `{"bad.key":1}`, `[]`} {
		if w := call(s, "PATCH", "/admin/settings", body); w.Code != 400 {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	if w := call(New(e, Options{}), "GET", "/admin/settings", ""); w.Code != 404 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestDownloadStatus: a load that fetches files says how far it is and how fast.
func TestDownloadStatus(t *testing.T) {
	e := enginetest.New(enginetest.Say("x"))
	e.SetStatus(engine.Status{State: engine.StateDownloading, Loading: &engine.LoadProgress{Model: "org/m", BytesDone: 5, BytesTotal: 10,
		Download: &engine.Download{ID: "dl_1", Model: "org/m", Repo: "org/m", State: "downloading", BytesDone: 5, BytesTotal: 10, BytesPerSecond: 2.5, ETA: 2 * time.Second}}})
	s := New(e, Options{})
	want := `"download":{"repo":"org/m","bytes_done":5,"bytes_total":10,"state":"downloading","bytes_per_second":2.5,"eta_seconds":2,"id":"dl_1","model":"org/m","error":null}`
	for _, path := range []string{"/health", "/admin/status"} {
		if w := call(s, "GET", path, ""); !strings.Contains(w.Body.String(), want) || !strings.Contains(w.Body.String(), `"phase":"loading"`) {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
	e.FailLoads(&engine.Error{Kind: engine.ErrDownload, Message: "the hub cannot be reached"})
	if w := call(s, "POST", "/admin/load", `{"model":"org/m"}`); w.Code != 502 || !strings.Contains(w.Body.String(), "cannot be reached") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestDownloadRoutes: a download is started, paused, resumed and cancelled by
// its id; the status lists what is under way, and events tell.
func TestDownloadRoutes(t *testing.T) {
	e := enginetest.New(enginetest.Say("x"))
	s := New(e, Options{})
	sub := e.Bus.Subscribe(16)
	defer sub.Close()
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/admin/downloads", "", 200, `{"downloads":[]}`},
		{"GET", "/admin/status", "", 200, `{"ready":true,"loading":false,"model":"tiny-chat","error":null}`},
		{"POST", "/admin/downloads", `{}`, 400, "a download needs a 'model'"},
		{"POST", "/admin/downloads", `{"model":5}`, 400, "a download needs a 'model'"},
		{"POST", "/admin/downloads", `{"model":"org/m","drafter":"yes"}`, 400, "'drafter' must be a boolean"},
		{"POST", "/admin/downloads", `{"model":" org/m "}`, 202, `{"repo":"org/m","bytes_done":0,"bytes_total":null,"state":"planning","bytes_per_second":0,"eta_seconds":null,"id":"dl_org_m","model":"org/m","error":null}`},
		{"GET", "/admin/status", "", 200, `"downloads":[{"repo":"org/m"`},
		{"POST", "/admin/downloads/dl_org_m/pause", "", 200, `"state":"paused"`},
		{"POST", "/admin/downloads/dl_org_m/resume", "{}", 200, `"state":"downloading"`},
		{"POST", "/admin/downloads/dl_org_m/cancel", `{"cleanup":1}`, 400, "'cleanup' must be a boolean"},
		{"POST", "/admin/downloads/dl_org_m/cancel", `{"cleanup":true}`, 200, `"error":"cancelled, cleanup true"`},
		{"POST", "/admin/downloads/dl_org_m/cancel", "", 404, "GET /admin/downloads"},
		{"POST", "/admin/downloads/x/pause", "", 404, "no download 'x'"},
		{"GET", "/admin/downloads", "", 200, `"state":"cancelled"`},
		{"GET", "/admin/status", "", 200, `"error":null}`},
		{"GET", "/admin/downloads/x/pause", "", 405, "use POST"},
	} {
		w := call(s, c.method, c.path, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s %s: %d %s, want %d with %s", c.method, c.path, c.body, w.Code, w.Body, c.status, c.want)
		}
	}
	e.FailLoads(&engine.Error{Kind: engine.ErrDownload, Message: "this server downloads nothing"})
	if w := call(s, "POST", "/admin/downloads", `{"model":"org/m"}`); w.Code != 502 || !strings.Contains(w.Body.String(), "downloads nothing") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, state := range []string{"paused", "downloading", "cancelled"} {
		ev, err := sub.Next(t.Context())
		if d, ok := ev.Data.(engine.Download); err != nil || !ok || d.State != state {
			t.Errorf("%+v %v, want %s", ev, err, state)
		}
	}
}

// TestSetAccess: keys, hosts and origins change while the server runs.
func TestSetAccess(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("x")), Options{Keys: []string{"old"}})
	try := func(key, host, origin string) int {
		r := httptest.NewRequest("GET", "/v1/models", nil)
		r.Host = host
		r.Header.Set("X-Api-Key", key)
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code
	}
	const page = "https://app.example"
	check := func(when string, want ...int) {
		t.Helper()
		got := []int{try("old", "localhost", ""), try("new", "localhost", ""), try("old", "box.example", ""), try("new", "box.example", ""), try("new", "localhost", page)}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	check("before", 200, 401, 403, 403, 403)
	s.SetAccess([]string{"new"}, []string{"box.example"}, []string{page})
	check("after", 401, 200, 401, 200, 200)
	s.SetAccess(nil, nil, nil)
	check("without", 200, 200, 403, 403, 403)
}
