package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.yaml.in/yaml/v3"

	"sparkbar/engine"
	"sparkbar/engine/wholefile"
	"sparkbar/httpapi"
)

// setting is one key of the settings file.
type setting struct {
	key   string
	flag  string // that it stands for, "" = none
	check func(v any) (any, string)
	about string
}

// The checks return the value in its Go type, or what it must be.
func oneOf(list ...string) func(any) (any, string) {
	return func(v any) (any, string) {
		if s, ok := v.(string); ok && slices.Contains(list, s) {
			return s, ""
		}
		return nil, "one of " + strings.Join(list, ", ")
	}
}

func someOf(list ...string) func(any) (any, string) {
	return func(v any) (any, string) {
		got, bad := texts(v)
		if bad == "" {
			for _, s := range got.([]string) {
				if !slices.Contains(list, s) {
					bad = "no"
				}
			}
		}
		if bad != "" {
			return nil, "a list of " + strings.Join(list, ", ")
		}
		return got, ""
	}
}

func text(v any) (any, string) {
	if s, ok := v.(string); ok {
		return s, ""
	}
	return nil, "a text"
}

// addresses is one address, or several as the flag has them.
func addresses(v any) (any, string) {
	if list, bad := texts(v); bad == "" {
		v = strings.Join(list.([]string), ",")
	}
	s, ok := v.(string)
	for _, h := range strings.Split(s, ",") {
		h = strings.TrimSpace(h)
		ok = ok && h != "" && !strings.ContainsAny(h, "/ ") && (net.ParseIP(strings.Trim(h, "[]")) != nil || !strings.Contains(h, ":"))
	}
	if !ok {
		return nil, "an address such as 127.0.0.1 or 0.0.0.0, without a port, or a list of them"
	}
	return s, ""
}

func truth(v any) (any, string) {
	if b, ok := v.(bool); ok {
		return b, ""
	}
	return nil, "true or false"
}

func whole(lo, hi int) func(any) (any, string) {
	return func(v any) (any, string) {
		if f, ok := v.(float64); ok && f == math.Trunc(f) && f >= float64(lo) && f <= float64(hi) {
			return int(f), ""
		}
		return nil, fmt.Sprintf("a whole number from %d to %d", lo, hi)
	}
}

func number(lo, hi float64) func(any) (any, string) {
	return func(v any) (any, string) {
		if f, ok := v.(float64); ok && f >= lo && f <= hi {
			return f, ""
		}
		return nil, fmt.Sprintf("a number from %v to %v", lo, hi)
	}
}

func texts(v any) (any, string) {
	list, ok := v.([]any)
	out := []string{}
	for _, x := range list {
		s, isText := x.(string)
		ok = ok && isText
		out = append(out, s)
	}
	if !ok {
		return nil, "a list of texts"
	}
	return out, ""
}

func draftCap(v any) (any, string) {
	if v == "auto" {
		return "auto", ""
	}
	if n, bad := whole(1, 64)(v); bad == "" {
		return strconv.Itoa(n.(int)), ""
	}
	return nil, "a whole number from 1 to 64, or auto"
}

func kvBits(v any) (any, string) {
	if n, bad := whole(0, 8)(v); bad == "" && slices.Contains([]int{0, 4, 8}, n.(int)) {
		return n, ""
	}
	return nil, "0, 4 or 8"
}

var (
	modes   = oneOf(engine.Modes...)
	window  = whole(0, 10_000_000)
	efforts = oneOf(engine.Efforts...)
)

// schema is every setting there is.
var schema = []setting{
	{"server.host", "host", addresses, "address to listen on, or a list of them"},
	{"server.port", "port", whole(0, 65535), "port to listen on, 0 = any free one"},
	{"server.api_key", "api-key", text, "key that clients must present"},
	{"server.allowed_hosts", "allow-host", texts, "names accepted in the Host header"},
	{"server.allowed_origins", "cors-origin", texts, "web origins whose pages may call the API"},
	{"server.compat", "compat", oneOf("sparkbar", "mlx-lm"), "wire profile"},
	{"server.queue_limit", "queue-limit", whole(1, 100_000), "requests that may wait"},
	{"server.autostart", "", truth, "the app's server starts with the app"},
	{"model.autoload", "model", text, "model that is loaded at the start"},
	{"model.last", "", text, "model that was loaded last"},
	{"model.pinned", "", texts, "models that are never unloaded when idle"},
	{"model.dirs", "model-dirs", texts, "folders with models"},
	{"model.switch", "model-switch", truth, "requests may switch to another local model"},
	{"model.idle_unload", "idle-unload", number(0, 100_000), "minutes without a request until the model is unloaded, 0 = never"},
	{"model.wake_on_request", "", truth, "a request loads a model again that was unloaded when idle"},
	{"server.hold_during_load", "", truth, "requests wait for a load, up to two minutes, instead of being refused"},
	{"model.context_window", "context-window", window, "longest prompt and answer in tokens, 0 = the model's own"},
	{"model.kv_bits", "kv-bits", kvBits, "bits of the KV cache, 0 = full precision"},
	{"decode.mode", "mode", modes, "how tokens are proposed"},
	{"decode.max_draft", "max-draft", draftCap, "drafted tokens per round"},
	{"decode.lookup_drafts", "lookup-drafts", truth, "copy from the context beside a drafter"},
	{"decode.confidence_threshold", "confidence-threshold", number(0, 1), "cut drafts below this confidence"},
	{"decode.drafter_window", "drafter-window", window, "context that a draft block attends, 0 = all"},
	{"generate.thinking", "thinking", truth, "models think unless a request says otherwise"},
	{"generate.reasoning_effort", "reasoning-effort", efforts, "how much they think"},
	{"generate.temperature", "default-temperature", number(0, 100), "when a request does not say"},
	{"generate.top_p", "default-top-p", number(0, 1), "when a request does not say"},
	{"generate.top_k", "default-top-k", whole(0, 1_000_000), "when a request does not say"},
	{"generate.max_tokens", "default-max-tokens", whole(1, 10_000_000), "longest answer when a request does not say"},
	{"generate.max_tokens_cap", "max-tokens-cap", whole(1, 10_000_000), "longest answer that a request may ask for"},
	{"prefix_cache.slots", "prefix-cache-slots", whole(0, 1000), "finished conversations that are kept for reuse"},
	{"prefix_cache.dir", "prefix-cache-dir", text, "folder that keeps long prompts across restarts"},
	{"prefix_cache.disk_gb", "prefix-cache-disk", number(0, 1<<20), "GB that this folder may hold, 0 = nothing is kept on disk"},
	{"memory.guard", "memory-guard", truth, "give memory back when the system is short of it"},
	{"hub.offline", "offline", truth, "never use the network for models"},
	{"hub.hosts", "hub-hosts", texts, "further hosts that the hub may redirect downloads to"},
	{"hub.ca_file", "hub-ca", text, "certificates trusted for downloads besides the system's"},
	{"menubar.text", "", oneOf("auto", "none", "rate+accept", "memory"), "what the menu bar shows"},
	{"menubar.ribbon", "", truth, "the menu shows the latest rounds"},
	{"menubar.notices", "", someOf("download", "load", "port", "server"), "what the app notifies about"},
	{"ui.detail", "", oneOf("simple", "advanced", "developer"), "how much the app shows"},
	{"ui.appearance", "", oneOf("system", "light", "dark"), "how the window looks"},
	{"ui.text_zoom", "", number(0.5, 3), "size of texts in the window"},
	{"ui.screen", "", text, "screen that was open last"},
	{"ui.lab_tab", "", text, "page of the lab that was open last"},
	{"power.prevent_sleep", "", oneOf("never", "requests", "always"), "when the machine may not sleep"},
	{"quit.grace", "", number(0, 600), "seconds that running answers get when the app quits"},
	{"login.enabled", "", truth, "the app starts at login"},
	{"update.check", "", truth, "look for updates"},
	{"log.level", "log-level", oneOf("debug", "info", "warn", "error"), "what is logged"},
}

// modelSchema are the settings of one model, models."<id>".<key>.
var modelSchema = map[string]func(any) (any, string){
	"alias": text, "idle_unload": number(0, 100_000), "context_window": window, "kv_bits": kvBits, "mode": modes, "max_draft": draftCap, "thinking": truth, "reasoning_effort": efforts,
	"lookup_drafts": truth, "confidence_threshold": number(0, 1), "drafter": text, "drafter_window": window,
}

// findSetting returns the check of a key, nil if there is no such setting.
func findSetting(key string) func(any) (any, string) {
	if id, field, ok := modelKey(key); ok && id != "" {
		return modelSchema[field]
	}
	for _, s := range schema {
		if s.key == key {
			return s.check
		}
	}
	return nil
}

// modelKey takes models.<id>.<key> apart; the id may hold dots.
func modelKey(key string) (id, field string, ok bool) {
	rest, ok := strings.CutPrefix(key, "models.")
	i := strings.LastIndexByte(rest, '.')
	if !ok || i < 0 {
		return "", "", false
	}
	return strings.Trim(rest[:i], `"`), rest[i+1:], true
}

// settingPath is where a key lies in the file.
func settingPath(key string) []string {
	if id, field, ok := modelKey(key); ok {
		return []string{"models", id, field}
	}
	return strings.Split(key, ".")
}

// badSetting says where a settings file is wrong.
type badSetting struct {
	file    string
	line    int // 0 = not known
	key     string
	message string
}

func (b *badSetting) Error() string {
	where := b.file
	if b.line > 0 {
		where += ":" + strconv.Itoa(b.line)
	}
	return where + ": " + b.message
}

const maxSettings = 1 << 20

// parseSettings reads and checks a settings file. Keys that nobody knows are
// kept in the file and returned by name.
func parseSettings(file string, content []byte) (values map[string]any, unknown []string, err error) {
	bad := func(line int, key, format string, args ...any) error {
		return &badSetting{file, line, key, fmt.Sprintf(format, args...)}
	}
	values = map[string]any{}
	if len(content) > maxSettings {
		return nil, nil, bad(0, "", "the file has more than %d bytes", maxSettings)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		message := strings.TrimPrefix(err.Error(), "yaml: ")
		line := 0
		if rest, ok := strings.CutPrefix(message, "line "); ok {
			n, text, _ := strings.Cut(rest, ": ")
			line, _ = strconv.Atoi(n)
			message = text
		}
		return nil, nil, bad(line, "", "%s", message)
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return values, nil, nil
	}
	var walk func(n *yaml.Node, path []string) error
	walk = func(n *yaml.Node, path []string) error {
		key := joinKey(path)
		if n.Kind == yaml.AliasNode || n.Anchor != "" {
			return bad(n.Line, key, "%s: anchors and aliases are not used here", key)
		}
		if check := findSetting(key); check != nil {
			v, err := plainValue(n)
			if err != nil {
				return bad(n.Line, key, "%s: %v", key, err)
			}
			if v == nil {
				return nil
			}
			good, must := check(v)
			if must != "" {
				return bad(n.Line, key, "%s must be %s", key, must)
			}
			values[key] = good
			return nil
		}
		if n.Kind != yaml.MappingNode {
			if len(path) == 0 {
				return bad(n.Line, "", "the file must hold keys and values, such as server: {port: 8080}")
			}
			unknown = append(unknown, key)
			return nil
		}
		if len(path) > 8 {
			return bad(n.Line, key, "%s: nested too deeply", key)
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if err := walk(n.Content[i+1], append(path[:len(path):len(path)], n.Content[i].Value)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(doc.Content[0], nil); err != nil {
		return nil, nil, err
	}
	return values, unknown, nil
}

// joinKey is the dotted key of a path.
func joinKey(path []string) string { return strings.Join(path, ".") }

// plainValue is a scalar or a list of scalars as encoding/json would have it.
func plainValue(n *yaml.Node) (any, error) {
	var v any
	switch n.Kind {
	case yaml.ScalarNode:
		if err := n.Decode(&v); err != nil {
			return nil, err
		}
	case yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return nil, errors.New("lists hold plain values only")
			}
			x, err := plainValue(c)
			if err != nil {
				return nil, err
			}
			list = append(list, x)
		}
		return list, nil
	default:
		return nil, errors.New("must be a plain value or a list")
	}
	switch x := v.(type) {
	case int:
		return float64(x), nil
	case int64:
		return float64(x), nil
	case uint64:
		return float64(x), nil
	case nil, bool, float64, string:
		return x, nil
	}
	return n.Value, nil // a date, say: what was written
}

// settings is the settings file. Its values are read by one goroutine at a time
// and handed out as one immutable map.
type settings struct {
	path    string
	writing sync.Mutex
	values  atomic.Pointer[map[string]any]
	unknown atomic.Pointer[[]string]
	fault   atomic.Pointer[badSetting] // of the latest edit, nil = good
}

// settingsPath is where the settings of this user lie.
func settingsPath() (string, error) {
	if p := os.Getenv("SPARKBAR_CONFIG"); p != "" {
		return filepath.Abs(p)
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("where settings are kept is not known: %w; set SPARKBAR_CONFIG to a file", err)
	}
	name := "sparkbar"
	if filepath.Base(dir) == "Application Support" {
		name = "Sparkbar"
	}
	return filepath.Join(dir, name, "config.yaml"), nil
}

// openSettings reads the settings file; one that does not exist is empty.
func openSettings() (*settings, error) {
	path, err := settingsPath()
	if err != nil {
		return nil, err
	}
	s := &settings{path: path}
	return s, s.load()
}

// load reads the file; values that are not good leave the old ones in force.
func (s *settings) load() error {
	content, err := os.ReadFile(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	values, unknown, err := parseSettings(s.path, content)
	if err != nil {
		var b *badSetting
		if errors.As(err, &b) {
			s.fault.Store(b)
		}
		if s.values.Load() == nil {
			s.values.Store(&map[string]any{})
		}
		return err
	}
	s.fault.Store(nil)
	s.values.Store(&values)
	s.unknown.Store(&unknown)
	return nil
}

// get is a value of the file, nil = not set.
func (s *settings) get(key string) any { return (*s.values.Load())[key] }

// Path implements httpapi.Settings.
func (s *settings) Path() string { return s.path }

// Values implements httpapi.Settings; keys are not shown.
func (s *settings) Values() map[string]any {
	out := maps.Clone(*s.values.Load())
	if _, ok := out["server.api_key"]; ok {
		out["server.api_key"] = "(set)"
	}
	return out
}

// Change implements httpapi.Settings.
func (s *settings) Change(change map[string]json.RawMessage) error {
	plain := map[string]any{}
	for key, raw := range change {
		check := findSetting(key)
		if check == nil {
			return &httpapi.SettingError{Key: key, Message: fmt.Sprintf("there is no setting '%s'; `sparkbar config get` lists them", key)}
		}
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			return &httpapi.SettingError{Key: key, Message: err.Error()}
		}
		if v != nil {
			if _, must := check(v); must != "" {
				return &httpapi.SettingError{Key: key, Message: fmt.Sprintf("'%s' must be %s", key, must)}
			}
		}
		plain[key] = v
	}
	return s.write(plain)
}

// write changes keys of the file, nil takes one out, and keeps everything else
// in it, comments too.
func (s *settings) write(change map[string]any) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	content, err := os.ReadFile(s.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, _, err := parseSettings(s.path, content); err != nil {
		return fmt.Errorf("%w; correct that first", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return err
	}
	if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
		doc = yaml.Node{Kind: yaml.DocumentNode, HeadComment: doc.HeadComment, Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	}
	for _, key := range slices.Sorted(maps.Keys(change)) {
		if err := setNode(doc.Content[0], settingPath(key), change[key]); err != nil {
			return err
		}
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if len(doc.Content[0].Content) > 0 {
		if err := enc.Encode(&doc); err != nil {
			return err
		}
	}
	if _, _, err := parseSettings(s.path, out.Bytes()); err != nil {
		return err
	}
	if err := writeWhole(s.path, out.Bytes(), 0o600); err != nil {
		return err
	}
	return s.load()
}

// setNode puts a value at a path of a mapping; nil takes it out, and mappings
// that it leaves empty.
func setNode(n *yaml.Node, path []string, v any) error {
	at := -1
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == path[0] {
			at = i
		}
	}
	last := len(path) == 1
	if v == nil {
		if at < 0 {
			return nil
		}
		child := n.Content[at+1]
		if !last && child.Kind == yaml.MappingNode {
			if err := setNode(child, path[1:], nil); err != nil {
				return err
			}
		}
		if last || child.Kind == yaml.MappingNode && len(child.Content) == 0 {
			n.Content = slices.Delete(n.Content, at, at+2)
		}
		return nil
	}
	if at < 0 {
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: path[0]}, &yaml.Node{Kind: yaml.MappingNode})
		at = len(n.Content) - 2
	}
	child := n.Content[at+1]
	if !last {
		if child.Kind != yaml.MappingNode {
			*child = yaml.Node{Kind: yaml.MappingNode}
		}
		return setNode(child, path[1:], v)
	}
	if f, ok := v.(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		v = int64(f)
	}
	old := *child
	*child = yaml.Node{}
	if err := child.Encode(v); err != nil {
		return err
	}
	child.LineComment, child.HeadComment, child.FootComment = old.LineComment, old.HeadComment, old.FootComment
	return nil
}

// writeWhole replaces a file as a whole, or leaves it as it was.
func writeWhole(path string, content []byte, mode fs.FileMode) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return wholefile.Write(path, content, mode)
}

// watch reads the file again whenever it changes, until ctx ends, and calls
// changed with what is wrong with it, nil if it is good. A file that is wrong
// leaves the settings as they were.
func (s *settings) watch(ctx context.Context, changed func(error)) error {
	dir := filepath.Dir(s.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	last, _ := os.ReadFile(s.path) // before the first event can come
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	if err := w.Add(dir); err != nil { // the folder, since editors replace the file
		w.Close()
		return err
	}
	go func() {
		defer w.Close()
		const settle = 50 * time.Millisecond // a save is several events
		timer := time.NewTimer(settle)       // what came before the watch is found, too
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-w.Events:
				if !ok {
					return
				}
				if filepath.Clean(e.Name) == s.path {
					timer.Reset(settle)
				}
			case <-w.Errors:
			case <-timer.C:
				now, err := os.ReadFile(s.path)
				if err != nil && !errors.Is(err, fs.ErrNotExist) || bytes.Equal(now, last) {
					continue
				}
				last = now
				changed(s.load())
			}
		}
	}()
	return nil
}

// flags are the settings as the values of flags.
func (s *settings) flags() map[string]any {
	out := map[string]any{}
	values := *s.values.Load()
	if s.startsLast() {
		if last, ok := values["model.last"]; ok {
			out["model"] = last
		}
	}
	for _, x := range schema {
		v, ok := values[x.key]
		if !ok || x.flag == "" {
			continue
		}
		switch x.flag {
		case "idle-unload":
			out[x.flag] = time.Duration(v.(float64) * float64(time.Minute))
		case "thinking":
			out["no-thinking"] = !v.(bool)
		case "model-switch":
			out["no-model-switch"] = !v.(bool)
		case "model":
			switch v {
			case "none":
				out["no-model"] = true
			case "last": // see above
			default:
				out["model"] = v
			}
		default:
			out[x.flag] = v
		}
	}
	return out
}

// modelRequest are the settings of one model among the values of a file.
func modelRequest(values map[string]any, model string) engine.LoadRequest {
	var r engine.LoadRequest
	for key, v := range values {
		id, field, ok := modelKey(key)
		if !ok || id != model {
			continue
		}
		switch field {
		case "context_window":
			r.ContextWindow = pointer(v.(int))
		case "kv_bits":
			r.KVBits = pointer(v.(int))
		case "mode":
			r.Mode = v.(string)
		case "max_draft":
			n, _ := strconv.Atoi(v.(string)) // auto is 0
			r.MaxDraft = &n
		case "thinking":
			r.EnableThinking = pointer(v.(bool))
		case "reasoning_effort":
			r.ReasoningEffort = pointer(v.(string))
		case "lookup_drafts":
			r.LookupDrafts = pointer(v.(bool))
		case "confidence_threshold":
			r.ConfidenceThreshold = pointer(v.(float64))
		case "drafter":
			r.Drafter = v.(string)
		case "drafter_window":
			r.DrafterWindow = pointer(v.(int))
		}
	}
	return r
}

// startsLast reports whether a server starts with the model that was loaded
// last; it does unless the file says otherwise.
func (s *settings) startsLast() bool {
	v := s.get("model.autoload")
	return v == nil || v == "last"
}

// pinned are the models that stay loaded.
func (s *settings) pinned() []string {
	list, _ := s.get("model.pinned").([]string)
	return list
}

// ofModels are the names and the idle times that models have of their own.
func (s *settings) ofModels() (aliases map[string]string, idle map[string]time.Duration) {
	aliases, idle = map[string]string{}, map[string]time.Duration{}
	for key, v := range *s.values.Load() {
		switch id, field, _ := modelKey(key); field {
		case "alias":
			aliases[v.(string)] = id
		case "idle_unload":
			idle[id] = time.Duration(v.(float64) * float64(time.Minute))
		}
	}
	return aliases, idle
}

// loaded notes which model was loaded last. It is of no weight: a file that
// cannot be written stays as it is.
func (s *settings) loaded(model string) {
	if s.get("model.last") != model {
		_ = s.write(map[string]any{"model.last": model})
	}
}
