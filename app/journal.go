package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sparkbar/app/menubar"
)

// crashWindow is how far back crashes count as one row of them.
const crashWindow = 10 * time.Minute

// journal is what the app remembers from one life to the next, beside the
// settings: it is written by the program, not by people. Safe for concurrent use.
type journal struct {
	path  string
	mu    sync.Mutex
	kept  journalEntries
	begun bool // what was found has been read
	ended bool // nothing is written any more
}

type journalEntries struct {
	// Running is true from the start to a clean end, so one that is found true
	// tells of a crash.
	Running  bool        `json:"running"`
	Model    string      `json:"model,omitempty"` // loaded, or being loaded
	Crashes  []time.Time `json:"crashes,omitempty"`
	Welcomed bool        `json:"welcomed"`                 // the first run is over
	Skipped  string      `json:"skipped_update,omitempty"` // a version that is not wanted
	Checked  time.Time   `json:"update_checked,omitzero"`
	Login    *bool       `json:"login_applied,omitempty"` // what login.enabled was when it was carried out
}

// openJournal reads the journal of the folder dir; one that is missing or
// damaged is empty.
func openJournal(dir string) *journal {
	j := &journal{path: filepath.Join(dir, "journal.json")}
	if b, err := os.ReadFile(j.path); err == nil && len(b) < 1<<20 {
		if json.Unmarshal(b, &j.kept) != nil {
			j.kept = journalEntries{Welcomed: true} // damaged: not a first run
		}
	}
	return j
}

// entries returns what is remembered.
func (j *journal) entries() journalEntries {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.kept
}

// change writes what f makes of the entries.
func (j *journal) change(f func(*journalEntries)) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended {
		return nil // the life that the entries are of is over
	}
	f(&j.kept)
	b, err := json.MarshalIndent(j.kept, "", " ")
	if err != nil {
		return err
	}
	return writeWhole(j.path, append(b, '\n'), 0o600)
}

// begin notes that the app runs. It returns the crash that ended the life
// before, nil if there was none or no model was loaded then, and whether this is
// the first life.
func (j *journal) begin(now time.Time) (crash *menubar.Crashed, first bool, err error) {
	_, missing := os.Stat(j.path)
	err = j.change(func(e *journalEntries) {
		first = errors.Is(missing, fs.ErrNotExist)
		var recent []time.Time
		for _, t := range e.Crashes {
			if now.Sub(t) < crashWindow && !t.After(now) {
				recent = append(recent, t)
			}
		}
		if e.Running {
			recent = append(recent, now)
			if e.Model != "" {
				crash = &menubar.Crashed{Model: e.Model, Recent: len(recent)}
			}
		}
		e.Running, e.Model, e.Crashes = true, "", recent
		j.begun = true
	})
	return crash, first, err
}

// model notes the model that is loaded or being loaded.
func (j *journal) model(id string) error {
	j.mu.Lock()
	same := !j.begun || j.kept.Model == id
	j.mu.Unlock()
	if same {
		return nil
	}
	return j.change(func(e *journalEntries) { e.Model = id })
}

// end notes a clean end.
func (j *journal) end() error {
	return j.change(func(e *journalEntries) { e.Running, e.Model, j.ended = false, "", true })
}
