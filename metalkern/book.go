package metalkern

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"sparkbar/engine/wholefile"
)

// book is what is known of the kernels on this machine for one shape of model: a
// file that is trusted only whole and only where all it holds for is the same.
//
// Beside it lies, while a variant runs for the first time, a file that names it:
// found at a later start, it says that the variant took the process, or the
// machine, with it.
type book struct {
	path    string // "" = nothing is kept
	machine string
	shape   string
	chosen  map[Key]string
	proven  map[uint64]bool
	faults  []fault
	changed bool
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
	Format  int            `json:"format"`
	Machine string         `json:"machine"`
	Shape   string         `json:"shape"`
	Chosen  map[Key]string `json:"chosen"`
	Proven  []string       `json:"proven"`
	Faults  []fault        `json:"faults"`
	Sum     string         `json:"sum"`
}

const (
	bookFormat = 1
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
func (r *rehearsal) shape(o Options) (string, error) {
	sum, err := sourcesSum()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, sum, variants, o.Activations, o.Relaxed)
	for _, f := range slices.Sorted(maps.Keys(r.formats)) {
		fmt.Fprintln(h, f)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
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

// openBook reads what is kept; what cannot be trusted counts as nothing.
func openBook(o Trials, shape string) (*book, error) {
	b := &book{machine: o.Machine, shape: shape, chosen: map[Key]string{}, proven: map[uint64]bool{}}
	if o.Dir == "" {
		return b, nil
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("what is known of the kernels cannot be kept: %w", err)
	}
	b.path = filepath.Join(o.Dir, "kernels-"+short(o.Machine+"\n"+shape)+".json")
	b.read()
	if o.Again {
		clear(b.chosen)
		clear(b.proven)
		b.faults = slices.DeleteFunc(b.faults, func(f fault) bool { return !f.Hard })
	}
	return b, nil
}

func (b *book) where() string {
	if b.path == "" {
		return "above"
	}
	return b.path
}

// readFile reads a file of ours of at most a size.
func readFile(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return text, err
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

// read adds what the file has.
func (b *book) read() {
	text, err := readFile(b.path, mostBook)
	if err != nil {
		return
	}
	var f bookFile
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(&f) != nil || f.Format != bookFormat || f.Machine != b.machine || f.Shape != b.shape || f.Sum == "" || f.Sum != f.sum() {
		return
	}
	for k, name := range f.Chosen {
		if slices.ContainsFunc(variants[k.Kernel], func(v Variant) bool { return v.Name == name }) {
			b.chosen[k] = name
		}
	}
	for _, s := range f.Proven {
		if n, err := strconv.ParseUint(s, 16, 64); err == nil {
			b.proven[n] = true
		}
	}
	for _, x := range f.Faults {
		if !slices.Contains(b.faults, x) {
			b.faults = append(b.faults, x)
		}
	}
}

// apply makes the choices those of the book.
func (b *book) apply(c *choices) {
	for k, name := range b.chosen {
		c.chosen[k] = slices.IndexFunc(variants[k.Kernel], func(v Variant) bool { return v.Name == name })
	}
}

// lock keeps other processes from trying kernels at the same time, and takes note
// of a trial that was never ended. Where another process holds the lock, this one
// keeps nothing.
func (b *book) lock() (unlock func()) {
	if b.path == "" {
		return func() {}
	}
	path := b.path
	nothing := func() { b.path = path }
	f, err := os.OpenFile(strings.TrimSuffix(path, ".json")+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		b.path = ""
		return nothing
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		f.Close()
		b.path = ""
		return nothing
	}
	if text, err := readFile(b.note(), mostBook); err == nil {
		var n trialNote
		if json.Unmarshal(text, &n) == nil && n.Machine == b.machine && n.Key.Kernel != "" {
			b.blame(n.Key, n.Variant, "it ended the process, or hung, when it was tried", true)
			b.save()
		}
		_ = os.Remove(b.note())
	}
	return func() { f.Close() }
}

func (b *book) note() string { return strings.TrimSuffix(b.path, ".json") + ".trying" }

// trying notes that a variant is about to run for the first time; tried that it
// came back.
func (b *book) trying(k Key, name string) {
	if b.path == "" {
		return
	}
	text, err := json.Marshal(trialNote{b.machine, k, name})
	if err == nil {
		err = wholefile.Write(b.note(), text, 0o644)
	}
	_ = err // a disk that is full keeps nobody from working
}

func (b *book) tried() {
	if b.path != "" {
		_ = os.Remove(b.note())
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

func (b *book) blame(k Key, name, why string, hard bool) {
	if len(why) > 1000 {
		why = why[:1000]
	}
	b.faults = append(b.faults, fault{k, name, strings.ToValidUTF8(why, ""), hard})
	maps.DeleteFunc(b.chosen, func(o Key, v string) bool { return v == name && (o == k || hard && o.Kernel == k.Kernel) })
	if hard {
		clear(b.proven) // what was tried with it is tried with another one
	}
	b.changed = true
}

func (b *book) choose(k Key, name string) { b.chosen[k], b.changed = name, true }

func (b *book) prove(sig uint64) { b.proven[sig], b.changed = true, true }

// save writes the file, unless nothing is new. What cannot be kept is tried again
// at the next start.
func (b *book) save() {
	if b.path == "" || !b.changed {
		return
	}
	f := bookFile{Format: bookFormat, Machine: b.machine, Shape: b.shape, Chosen: b.chosen, Proven: []string{}, Faults: b.faults}
	for _, s := range slices.Sorted(maps.Keys(b.proven)) {
		f.Proven = append(f.Proven, strconv.FormatUint(s, 16))
	}
	f.Sum = f.sum()
	text, err := json.MarshalIndent(f, "", " ")
	if err == nil {
		err = wholefile.Write(b.path, text, 0o644)
	}
	b.changed = err != nil
}
