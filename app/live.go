package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkbar/engine"
	"sparkbar/engine/models"
	"sparkbar/httpapi/client"
)

// atStart are the settings that hold from the next start on; all others are
// taken over by a running server.
var atStart = []string{"server.compat", "server.queue_limit", "prefix_cache.slots", "hub.offline", "hub.hosts", "hub.ca_file"}

// holdLimit is how long a request waits for a load; most clients give up later.
const holdLimit = 2 * time.Minute

// live are the settings that hold from the next request on.
func live(v *config, load engine.LoadRequest) engine.Live {
	l := engine.Live{NoModelSwitch: v.GetBool("no-model-switch"), IdleUnload: v.GetDuration("idle-unload"), DefaultMaxTokens: v.GetInt("default-max-tokens"),
		MaxTokensCap: v.GetInt("max-tokens-cap"), Base: load, ForModel: v.modelRequests(), Pinned: v.file.pinned()}
	l.NoWake = v.file.get("model.wake_on_request") == false
	if v.file.get("server.hold_during_load") == true {
		l.HoldDuringLoad = holdLimit
	}
	l.Aliases, l.IdleUnloads = v.file.ofModels()
	if v.given("idle-unload") {
		l.IdleUnloads = nil
	}
	if v.IsSet("default-temperature") {
		l.Temperature = pointer(v.GetFloat64("default-temperature"))
	}
	if v.IsSet("default-top-p") {
		l.TopP = pointer(v.GetFloat64("default-top-p"))
	}
	if v.IsSet("default-min-p") {
		l.MinP = pointer(v.GetFloat64("default-min-p"))
	}
	if v.IsSet("default-top-k") {
		l.TopK = pointer(max(v.GetInt("default-top-k"), 0)) // below: off, as in requests
	}
	return l
}

// modelRequests tells the settings of each model, as the file has them now.
func (c *config) modelRequests() func(model string) engine.LoadRequest {
	values := *c.file.values.Load()
	return func(model string) engine.LoadRequest { return c.unless(modelRequest(values, model)) }
}

// unless takes out of the settings of one model those that a flag overrides.
func (c *config) unless(r engine.LoadRequest) engine.LoadRequest {
	given := func(flags ...string) bool { return slices.ContainsFunc(flags, c.given) }
	if given("mode") {
		r.Mode = ""
	}
	if given("drafter") {
		r.Drafter = ""
	}
	drop(&r.ContextWindow, given("context-window"))
	drop(&r.KVBits, given("kv-bits"))
	drop(&r.MaxDraft, given("max-draft"))
	drop(&r.EnableThinking, given("no-thinking"))
	drop(&r.ReasoningEffort, given("reasoning-effort"))
	drop(&r.LookupDrafts, given("lookup-drafts", "no-lookup-drafts"))
	drop(&r.ConfidenceThreshold, given("confidence-threshold"))
	drop(&r.DrafterWindow, given("drafter-window"))
	return r
}

func drop[T any](p **T, yes bool) {
	if yes {
		*p = nil
	}
}

// startLoad is the load that a server starts with. Its settings are those of
// every load, with the model's own over them.
func startLoad(load engine.LoadRequest) engine.LoadRequest {
	return engine.LoadRequest{Model: load.Model, Drafter: load.Drafter}
}

// loadedLast is startLoad where the model is the one that was loaded last: if
// that has gone from this machine, the demo takes its place, since a start must
// not download what nobody asks for now.
func (c *config) loadedLast(eng *engine.Engine, load engine.LoadRequest, log *slog.Logger) engine.LoadRequest {
	r := startLoad(load)
	if c.given("model") || c.given("target") || r.Model != c.file.get("model.last") || !c.file.startsLast() {
		return r
	}
	here := slices.ContainsFunc(eng.Models(), func(m models.Model) bool { return m.ID == r.Model && m.Loadable() })
	if _, err := os.Stat(r.Model); err == nil || here {
		return r
	}
	log.Warn("the model that was loaded last is not on this machine any more; the demo takes its place", "model", r.Model)
	return engine.LoadRequest{Model: demoID}
}

// given reports whether a flag is on the command line or in the environment, so
// that the settings file has no say in it.
func (c *config) given(flag string) bool { return c.origin(flag) != "" }

// origin is the flag or the variable that decides about a flag, "" = none.
func (c *config) origin(flag string) string {
	if f := c.flags.Lookup(flag); f != nil && f.Changed {
		return "--" + flag
	}
	for _, name := range envNames(flag) {
		if os.Getenv(name) != "" {
			return name
		}
	}
	return ""
}

// follow applies edits of the settings file to a running engine: folders, what
// requests and loads begin with, and with a load of the model what that runs
// with. What else there is to apply does config.apply, which may refuse. A file
// with an error changes nothing. told hears of each edit, nil if it was good; it
// may be nil.
func (c *config) follow(ctx context.Context, eng *engine.Engine, log *slog.Logger, told func(error)) error {
	if told == nil {
		told = func(error) {}
	}
	last := *c.file.values.Load()
	places := eng.Places()
	return c.file.watch(ctx, func(err error) {
		var now *config
		if err == nil {
			now, err = c.reread()
		}
		var load engine.LoadRequest
		if err == nil {
			load, err = loadRequest(now)
		}
		if err == nil && c.apply != nil {
			err = c.apply(now)
		}
		if err != nil {
			log.Error("the settings are not taken over; the last good ones stay in use", "error", err)
			told(err)
			return
		}
		c.latest.Store(now)
		var changed, later []string
		for key := range maps.Keys(union(last, *c.file.values.Load())) {
			switch {
			case reflect.DeepEqual(last[key], c.file.get(key)):
			case slices.Contains(atStart, key):
				later = append(later, key)
			default:
				changed = append(changed, key)
			}
		}
		last = *c.file.values.Load()
		slices.Sort(changed)
		slices.Sort(later)
		log.Info("settings read again", "file", c.file.path, "changed", strings.Join(changed, " "), "later", strings.Join(later, " "))
		if p, _, _ := storage(now); !reflect.DeepEqual(p, places) {
			places = p
			eng.SetPlaces(p)
		}
		if r := eng.Configure(live(now, load)); r != nil {
			go reload(ctx, eng, *r, log)
		}
		told(nil)
	})
}

func union(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// reload loads the model again with settings that have changed, once the load
// under way has ended; the old one answers meanwhile.
func reload(ctx context.Context, eng *engine.Engine, r engine.LoadRequest, log *slog.Logger) {
	for ctx.Err() == nil {
		if m := eng.Status().Model; m == nil || m.Target != r.Model {
			return // its next load has the settings anyway
		}
		_, err := eng.LoadFrom(ctx, r)
		var e *engine.Error
		switch {
		case err == nil:
			log.Info("loaded again with the changed settings", "model", r.Model)
			return
		case !errors.As(err, &e) || e.Kind != engine.ErrBusy:
			log.Error("the model could not be loaded with the changed settings; it runs on with the old ones", "model", r.Model, "error", err)
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// portFindings tells who holds the port of a server that does not run.
func portFindings(ctx context.Context, v *config) []engine.Finding {
	port := v.GetInt("port")
	if port == 0 {
		return nil // any will do
	}
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
	if err != nil {
		return nil // it is free
	}
	c.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if api, err := client.New(fmt.Sprintf("http://127.0.0.1:%d", port), ""); err == nil {
		if h, err := api.Health(ctx); err == nil && h.Status != "" {
			return nil // it is a server like this one
		}
	}
	return []engine.Finding{{Code: "port_taken", Level: engine.LevelProblem, Message: fmt.Sprintf("%s listens on port %d, where the server is to listen", portHolder(port), port),
		Fix: fmt.Sprintf("stop that program, or choose another port: sparkbar config set server.port %d", port+1)}}
}
