package menubar

import (
	"fmt"
	"strings"
)

// Glyph names the icon in the menu bar.
type Glyph string

// The glyphs; all are template images, so colour never carries meaning.
const (
	GlyphBolt     Glyph = "bolt"
	GlyphDownload Glyph = "bolt.down"
	GlyphPulse    Glyph = "bolt.pulse" // PulseFrames of them, two a second
	GlyphFilled   Glyph = "bolt.fill"
	GlyphDimmed   Glyph = "bolt.dimmed"
	GlyphSlashed  Glyph = "bolt.slash"
)

// PulseFrames is how many pictures GlyphPulse has.
const PulseFrames = 3

// StatusTitle is what stands in the menu bar while the menu is closed.
type StatusTitle struct {
	Glyph Glyph
	Frame int // of GlyphPulse, from 0
	Text  string
	// Width is the number of characters to keep room for, so that neighbours do
	// not jump: the widest text of the last ten seconds.
	Width int
	Label string // for screen readers
}

// Title is the text and icon in the menu bar.
func Title(s State) StatusTitle {
	t := StatusTitle{Text: s.titleText()}
	switch s.Phase() {
	case Starting, NoModel, Asleep:
		t.Glyph = GlyphBolt
	case Downloading:
		t.Glyph = GlyphDownload
	case Loading, WarmingUp, Cancelling:
		t.Glyph = GlyphPulse
		t.Frame = int(s.Now.UnixMilli() / pulse.Milliseconds() % PulseFrames)
	case Ready, Prefill, Generating:
		t.Glyph = GlyphFilled
	case Stopped:
		t.Glyph = GlyphDimmed
	case Failed:
		t.Glyph = GlyphSlashed
	}
	t.Width = len([]rune(t.Text))
	for _, w := range s.widest {
		if s.Now.Sub(w.at) < widthWindow {
			t.Width = max(t.Width, w.n)
		}
	}
	t.Label = App + ": " + s.words()
	if s.Phase() == Generating {
		t.Label += ", " + speed(s.Rate()) + " tokens per second"
	}
	if s.pressure() == PressureCritical {
		t.Label += ", memory pressure critical"
	}
	return t
}

func (s *State) titleText() string {
	text := ""
	switch phase := s.Phase(); {
	case s.Settings.Text == "none":
	case s.Settings.Text == "memory" && s.Loaded():
		text = gigabytes(s.Health.WeightBytes+s.Health.DrafterBytes) + "G"
	case phase == Downloading:
		if text = percent(s.Download.Done, s.Download.Total); text == "" {
			text = gigabytes(s.Download.Done) + " GB"
		}
	case phase == Loading || phase == WarmingUp || phase == Cancelling:
		text = "…"
	case phase == Prefill:
		if r, ok := s.reading(); ok && r.Prompt >= longPrompt {
			text = "▸" + percent(int64(r.Read), int64(r.Prompt))
		}
	case phase == Generating:
		text = fmt.Sprintf("%.0f", s.Rate())
		if s.Settings.Text == "rate+accept" {
			text += fmt.Sprintf(" ·%.1f", s.accept)
		}
	}
	if s.pressure() == PressureCritical {
		text += "!"
	}
	return text
}

// reading is the running request whose prompt is being read.
func (s *State) reading() (Request, bool) {
	for _, r := range s.Requests {
		if r.Running && r.Out == 0 {
			return r, true
		}
	}
	return Request{}, false
}

// words names the phase for people.
func (s *State) words() string {
	switch s.Phase() {
	case NoModel:
		return "no model loaded"
	case WarmingUp:
		return "warming up"
	case Prefill:
		return "reading a prompt"
	case Failed:
		return "failed"
	}
	return strings.ReplaceAll(string(s.Phase()), "_", " ")
}

// headline is the first row of the menu.
func (s *State) headline() string {
	text := ""
	switch s.Phase() {
	case Starting:
		text = "Starting…"
	case NoModel:
		text = "No model loaded"
		if s.LoadError != "" {
			text = "Model did not load: " + sentence(s.LoadError)
		}
	case Asleep:
		text = "Asleep: " + name(s.LastModel) + " loads on the next request"
		if s.LastModel == "" {
			text = "Asleep: the model loads on the next request"
		}
	case Downloading:
		text = "Downloading " + name(s.arriving())
	case Loading:
		text = "Loading " + name(s.arriving()) + "…"
		if p := s.Health.Progress; p != nil && p.BytesTotal > 0 {
			text += " " + percent(p.BytesDone, p.BytesTotal)
		}
	case WarmingUp:
		text = "Warming up " + name(s.arriving()) + "…"
	case Ready:
		text = name(s.Health.Model) + " · ready"
	case Prefill:
		text = "Reading prompt"
		if r, ok := s.reading(); ok && r.Prompt > 0 {
			text = fmt.Sprintf("Reading prompt: %d of %d tokens", r.Read, r.Prompt)
		}
	case Generating:
		text = name(s.Health.Model) + " · " + speed(s.Rate()) + " tok/s"
	case Cancelling:
		text = "Cancelling…"
	case Stopped:
		text = "Server stopped"
	case Failed:
		text = s.Server.Failure
	}
	if s.Server.Moved && s.Listening() {
		text = middle(text, titleLimit-len(" · on port 65535"))
		text += fmt.Sprintf(" · on port %d", s.Server.Port)
	}
	return middle(text, titleLimit)
}
