package metalkern

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sparkbar/engine/wholefile"
)

// book is what is known of the kernels on this machine, in two files that are trusted
// only whole and only where all they hold for is the same: one of a model's shape, with
// choices and wrong results, and one of the machine, with what hung, crashed or failed
// there (hard faults), whatever the model.
//
// Beside the latter lies, while a dispatch runs for the first time, a file that names
// it: found at a later start, it says that the dispatch took the process, or the
// machine, with it.
type book struct {
	kept    bool // in files; else for as long as the process lives
	model   page
	machine page
	chosen  map[Key]string
	proven  map[uint64]bool
	faults  []fault
	shares  map[int]float64 // the CPU's, by width
	again   bool            // what the model's file has is not wanted; the next save replaces it
}

// page is one of the files, and what it holds for.
type page struct {
	path, machine, shape string
	changed              bool // there is more than it has
}

// fault is a variant that must not run.
type fault struct {
	Key     Key    `json:"key"`
	Variant string `json:"variant"` // "" = the kernel has one way only
	Why     string `json:"why"`
	// Hard: it hung, crashed, or the device failed. It counts for all shapes of its
	// kernel then, and is not tried again.
	Hard bool `json:"hard,omitempty"`
}

// bookFile is the form of the file; Sum is the hash of the rest.
type bookFile struct {
	Format  int             `json:"format"`
	Machine string          `json:"machine"`
	Shape   string          `json:"shape"`
	Chosen  map[Key]string  `json:"chosen"`
	Shares  map[int]float64 `json:"cpu_split,omitempty"`
	Proven  []string        `json:"proven"`
	Faults  []fault         `json:"faults"`
	Sum     string          `json:"sum"`
}

const (
	bookFormat = 2
	mostBook   = 1 << 20 // bytes of a file
)

// trialNote is the form of the file beside it.
type trialNote struct {
	Machine string `json:"machine"`
	Key     Key    `json:"key"`
	Variant string `json:"variant"`
}

// shape names what a choice depends on besides the machine: the formats and sizes
// of the model's weights, the kernels' sources, and how they are used.
func (r *rehearsal) shape(sources string, o Options) string {
	h := sha256.New()
	fmt.Fprintln(h, sources, variants, o.Activations, o.Relaxed)
	if o.Split != nil {
		fmt.Fprintln(h, "with", o.Split.Threads, "threads of the CPU")
	}
	for _, f := range slices.Sorted(maps.Keys(r.formats)) {
		fmt.Fprintln(h, f)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// sourcesSum is the hash of all kernel files.
func sourcesSum() (string, error) {
	sources, err := Sources()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, s := range sources {
		fmt.Fprintln(h, s.Name, len(s.Text), s.Text)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// short makes a file name of a text.
func short(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// openBook reads what is kept; what cannot be trusted counts as nothing, and where
// nothing can be written nothing is kept.
func openBook(o Trials, shape, sources string) *book {
	b := &book{chosen: map[Key]string{}, proven: map[uint64]bool{}, shares: map[int]float64{}, again: o.Again}
	if o.Dir == "" || os.MkdirAll(o.Dir, 0o755) != nil {
		return b
	}
	open := func(kind, machine, shape string) page {
		return page{path: filepath.Join(o.Dir, kind+"-"+short(machine+"\n"+shape)+".json"), machine: machine, shape: shape}
	}
	b.kept = true
	b.model, b.machine = open("kernels", o.Machine+", "+o.Version, shape), open("faults", o.Machine, sources)
	b.model.changed = o.Again
	return b
}

// known is the error of a fault that was found before.
func (b *book) known(f *fault) error {
	switch {
	case !b.kept:
		return fmt.Errorf("%s; this was found before", f.Why)
	case f.Hard:
		return fmt.Errorf("%s; this was found before, see %s", f.Why, b.machine.path)
	}
	return fmt.Errorf("%s; this was found before, see %s", f.Why, b.model.path)
}

func (f bookFile) sum() string {
	f.Sum = ""
	text, err := json.Marshal(f)
	if err != nil {
		return ""
	}
	s := sha256.Sum256(text)
	return hex.EncodeToString(s[:])
}

// read returns what the file has.
func (p page) read() (f bookFile, ok bool) {
	text, err := wholefile.Read(p.path, mostBook)
	if err != nil {
		return f, false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(&f) != nil || f.Format != bookFormat || f.Machine != p.machine || f.Shape != p.shape || f.Sum == "" || f.Sum != f.sum() {
		return bookFile{}, false
	}
	return f, true
}

// write writes the file, unless nothing is new. What cannot be kept is tried again at
// the next start.
func (p *page) write(f bookFile) bool {
	if !p.changed {
		return false
	}
	f.Format, f.Machine, f.Shape = bookFormat, p.machine, p.shape
	f.Sum = f.sum()
	text, err := json.MarshalIndent(f, "", " ")
	if err == nil {
		err = wholefile.Write(p.path, text, 0o644)
	}
	p.changed = err != nil
	return err == nil
}

// read adds what the files have: another process may have written them since.
func (b *book) read() {
	machine, _ := b.machine.read()
	var model bookFile
	if !b.again {
		model, _ = b.model.read()
	}
	for _, x := range slices.Concat(machine.Faults, model.Faults) {
		b.note(x)
	}
	for k, name := range model.Chosen {
		if _, mine := b.chosen[k]; !mine && b.banned(k, name) == nil && slices.ContainsFunc(variants[k.Kernel], func(v way) bool { return v.Name == name }) {
			b.chosen[k] = name
		}
	}
	for rows, f := range model.Shares {
		if _, mine := b.shares[rows]; !mine && slices.Contains(shareFractions, f) {
			b.shares[rows] = f
		}
	}
	for _, s := range model.Proven {
		if n, err := strconv.ParseUint(s, 16, 64); err == nil {
			b.proven[n] = true
		}
	}
}

// apply makes the choices those of the book.
func (b *book) apply(c *choices) {
	for k, name := range b.chosen {
		c.chosen[k] = slices.IndexFunc(variants[k.Kernel], func(v way) bool { return v.Name == name })
	}
}

// lock keeps other processes from trying kernels at the same time, reads what they
// have found, and takes note of a trial that was never ended. Where another process
// holds the lock, this one keeps nothing.
func (b *book) lock() (unlock func()) {
	if !b.kept {
		return func() {}
	}
	b.read()
	nothing := func() { b.kept = true }
	f, err := os.OpenFile(strings.TrimSuffix(b.machine.path, ".json")+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		b.kept = false
		return nothing
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		f.Close()
		b.kept = false
		return nothing
	}
	b.read() // again: the lock may have come free just now
	if text, err := wholefile.Read(b.tryingPath(), mostBook); err == nil {
		var n trialNote
		if json.Unmarshal(text, &n) == nil && n.Machine == b.machine.machine && n.Key.Kernel != "" {
			b.blame(n.Key, n.Variant, "it ended the process, or hung, when it was tried", true)
			b.save()
		}
		_ = os.Remove(b.tryingPath())
	}
	return func() { f.Close() }
}

// enter notes one thing outside a rehearsal and keeps it.
func (b *book) enter(note func()) {
	unlock := b.lock()
	defer unlock()
	note()
	b.save()
}

func (b *book) tryingPath() string { return strings.TrimSuffix(b.machine.path, ".json") + ".trying" }

// trying notes that a variant is about to run for the first time; tried that it
// came back.
func (b *book) trying(k Key, name string) {
	if !b.kept {
		return
	}
	if text, err := json.Marshal(trialNote{b.machine.machine, k, name}); err == nil {
		_ = wholefile.Write(b.tryingPath(), text, 0o644) // a disk that is full keeps nobody from working
	}
}

func (b *book) tried() {
	if b.kept {
		_ = os.Remove(b.tryingPath())
	}
}

// banned returns why a variant must not run for a key, nil if nothing is known.
func (b *book) banned(k Key, name string) *fault {
	for i, f := range b.faults {
		if f.Variant == name && (f.Key == k || f.Hard && f.Key.Kernel == k.Kernel) {
			return &b.faults[i]
		}
	}
	return nil
}

// note adds a fault, once, and reports whether it is new. A variant that is not to
// run is no longer chosen; what was tried with it is tried with another one (tried).
func (b *book) note(f fault) bool {
	if slices.ContainsFunc(b.faults, func(o fault) bool { return o.Key == f.Key && o.Variant == f.Variant && o.Hard == f.Hard }) {
		return false
	}
	b.faults = append(b.faults, f)
	maps.DeleteFunc(b.chosen, func(o Key, v string) bool {
		return v == f.Variant && (o == f.Key || f.Hard && o.Kernel == f.Key.Kernel)
	})
	return true
}

func (b *book) blame(k Key, name, why string, hard bool) {
	if len(why) > 1000 {
		why = why[:1000]
	}
	if b.note(fault{k, name, strings.ToValidUTF8(why, ""), hard}) {
		b.model.changed = true
		b.machine.changed = b.machine.changed || hard
	}
}

func (b *book) choose(k Key, name string) { b.chosen[k], b.model.changed = name, true }

func (b *book) share(rows int, f float64) { b.shares[rows], b.model.changed = f, true }

func (b *book) prove(sig uint64) { b.proven[sig], b.model.changed = true, true }

// save writes the files where something is new.
func (b *book) save() {
	if !b.kept {
		return
	}
	hard := func(f fault) bool { return f.Hard }
	soft := func(f fault) bool { return !f.Hard }
	f := bookFile{Chosen: b.chosen, Shares: b.shares, Proven: []string{}, Faults: slices.DeleteFunc(slices.Clone(b.faults), hard)}
	for _, s := range slices.Sorted(maps.Keys(b.proven)) {
		f.Proven = append(f.Proven, strconv.FormatUint(s, 16))
	}
	if b.model.write(f) {
		b.again = false
	}
	b.machine.write(bookFile{Faults: slices.DeleteFunc(slices.Clone(b.faults), soft)})
}
