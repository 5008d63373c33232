package models

import (
	"context"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Kind is how a model is stored.
type Kind string

// The kinds of models.
const (
	KindFolder Kind = "folder" // config.json and safetensors
	KindGGUF   Kind = "gguf"
)

// Source is who put a model where it is.
type Source string

// The sources of models.
const (
	SourceHub      Source = "cache" // the hub cache
	SourceLMStudio Source = "lmstudio"
	SourceOllama   Source = "ollama"
	SourceFolder   Source = "model_dirs" // a configured folder
	SourceBuiltin  Source = "builtin"
)

// Model is one model on this machine, or what there is of it.
type Model struct {
	ID     string // what a request calls it: org/name, a folder's name, Ollama's name:tag
	Path   string // folder or GGUF file; "" for a built-in one
	Kind   Kind
	Source Source
	Type   string // model_type; of a GGUF file its general.architecture in the same words
	// Drafter says that the model cannot answer alone.
	Drafter bool
	Bytes   int64 // weights on disk
	// Complete says that every file of the model is there and of the right
	// length.
	Complete bool
	// Reason is why the model cannot be loaded: incomplete, or nothing that
	// Sparkbar runs. "" = it can.
	Reason       string
	Context      int    // positions the model was made for; 0 = not stated
	Quantization string // "4-bit", "bf16", "mxfp4", "Q4_K_M", ...
	Geometry     Geometry
	Snapshot     time.Time // when it came to this machine
	Revision     string    // commit, of models of the hub cache
}

// Loadable reports whether the model may be offered.
func (m Model) Loadable() bool { return m.Complete && m.Reason == "" }

// CatalogueOptions configure a Catalogue.
type CatalogueOptions struct {
	Places   Places
	Builtins []Model

	// For tests.
	clock  clock
	events func(roots []string) (<-chan struct{}, func(roots []string), func())
}

// Catalogue is the list of the models on this machine. It may be used from
// several goroutines.
type Catalogue struct {
	o       CatalogueOptions
	inspect *inspector

	scanning sync.Mutex // one scan at a time
	mu       sync.Mutex
	scanned  bool
	list     []Model
}

// NewCatalogue returns a catalogue that has not looked yet.
func NewCatalogue(o CatalogueOptions) *Catalogue {
	if o.clock == nil {
		o.clock = systemClock{}
	}
	if o.events == nil {
		o.events = fileEvents
	}
	return &Catalogue{o: o, inspect: newInspector()}
}

// List returns all models, those that can be loaded first, then larger first.
// It looks at the disk only the first time; Watch and Rescan keep it fresh.
func (c *Catalogue) List() []Model {
	c.mu.Lock()
	scanned := c.scanned
	c.mu.Unlock()
	if !scanned {
		c.Rescan()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

// Find returns the model of that id. Case counts only where two ids differ in
// nothing else.
func (c *Catalogue) Find(id string) (Model, bool) {
	list := c.List()
	for _, same := range []func(a, b string) bool{func(a, b string) bool { return a == b }, strings.EqualFold} {
		for _, m := range list {
			if same(m.ID, id) {
				return m, true
			}
		}
	}
	return Model{}, false
}

// Rescan looks at the disk now and reports whether the list changed. Models
// that did not change on disk are not read again.
func (c *Catalogue) Rescan() bool {
	c.scanning.Lock()
	defer c.scanning.Unlock()
	c.mu.Lock()
	places := c.o.Places
	c.mu.Unlock()
	list := slices.Clone(c.o.Builtins)
	for i := range list {
		list[i].Source, list[i].Complete = SourceBuiltin, true
	}
	list = append(list, scanPlaces(places, c.inspect)...)
	for i := range list {
		if m := &list[i]; m.Type == "" && isPublishedDrafter(m.ID) { // its config.json has not come yet
			m.Drafter = true
		}
	}
	c.inspect.sweep()
	list = oneOfEach(list)
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := !c.scanned || !reflect.DeepEqual(list, c.list)
	c.list, c.scanned = list, true
	return changed
}

// SetPlaces looks into other folders from now on, at once, and reports whether
// that changed the list.
func (c *Catalogue) SetPlaces(p Places) bool {
	c.mu.Lock()
	c.o.Places = p
	c.mu.Unlock()
	return c.Rescan()
}

func (c *Catalogue) roots() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.o.Places.roots()
}

func isPublishedDrafter(id string) bool {
	return slices.ContainsFunc(pairs, func(p Pair) bool { return id == p.DSpark || id == p.DFlash })
}

// oneOfEach keeps one model of each id, the first that can be loaded, and sorts.
func oneOfEach(all []Model) []Model {
	at := map[string]int{}
	var list []Model
	for _, m := range all {
		i, twice := at[m.ID]
		switch {
		case !twice:
			at[m.ID] = len(list)
			list = append(list, m)
		case m.Loadable() && !list[i].Loadable():
			list[i] = m
		}
	}
	slices.SortStableFunc(list, func(a, b Model) int {
		switch {
		case a.Loadable() != b.Loadable():
			return order(a.Loadable())
		case a.Drafter != b.Drafter:
			return -order(a.Drafter)
		case a.Bytes != b.Bytes:
			return order(a.Bytes > b.Bytes)
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

func order(first bool) int {
	if first {
		return -1
	}
	return 1
}

const (
	settleTime = 300 * time.Millisecond // from the first event of a batch to the scan
	rescanTime = 30 * time.Second       // changes below the roots raise no event
)

// Watch keeps the list fresh until ctx ends, and calls changed after each scan
// that changed it. Events are taken from the roots only; what happens deeper is
// seen within 30 seconds, or at Rescan.
func (c *Catalogue) Watch(ctx context.Context, changed func()) {
	events, roots, stop := c.o.events(c.roots())
	defer stop()
	scan := func() {
		if c.Rescan() {
			changed()
		}
		roots(c.roots()) // some may have come into being
	}
	scan()
	tick := c.o.clock.After(rescanTime)
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			if settled == nil {
				settled = c.o.clock.After(settleTime)
			}
		case <-settled:
			settled = nil
			scan()
		case <-tick:
			tick = c.o.clock.After(rescanTime)
			scan()
		}
	}
}

// roots are the folders in whose list of entries models appear.
func (p Places) roots() []string {
	list := []string{p.Hub}
	list = append(list, p.LMStudio...)
	list = append(list, p.Folders...)
	if p.Ollama != "" {
		list = append(list, filepath.Join(p.Ollama, "manifests"))
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

// fileEvents watches folders with the means of the system. Without such means
// the regular scan has to do.
func fileEvents(roots []string) (events <-chan struct{}, add func([]string), stop func()) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, func([]string) {}, func() {}
	}
	add = func(roots []string) {
		for _, dir := range roots {
			_ = w.Add(dir) // again is nothing; absent ones may come
		}
	}
	add(roots)
	out := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case e, ok := <-w.Events:
				if !ok {
					return
				}
				if e.Op == fsnotify.Chmod {
					continue
				}
			case _, ok := <-w.Errors: // an overflow: something happened
				if !ok {
					return
				}
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, add, func() { w.Close() }
}
