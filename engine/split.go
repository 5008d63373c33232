package engine

// promptSplitter is a backend on a GPU that can let the CPU make a part of a prompt's
// layers (cpu_split). By width of a layer, its outputs, the CPU has a fraction of them.
type promptSplitter interface {
	SetPromptSplit(fraction *float64) // before anything is loaded; 0 = nothing, nil = what measurements say
	PromptSplit() map[int]float64     // what was last in use; nil = nothing
	SuspendPromptSplit()
}

// splitPrompts tells the backend what the load asks for; on one that has no use for it
// the model gets a note.
func (l *loaded) splitPrompts() {
	if s, ok := l.backend.(promptSplitter); ok {
		s.SetPromptSplit(l.request.CPUSplit)
	} else if value(l.request.CPUSplit, 0) > 0 {
		l.notes = append(l.notes, unusedWarning([]string{"cpu_split"})...)
	}
}

// split is the CPU's part in prompts, or what it was before it ended.
func (l *loaded) split() (now, ended map[int]float64) {
	s, ok := l.backend.(promptSplitter)
	switch {
	case !ok:
		return nil, nil
	case l.splitEnded.Load():
		return nil, s.PromptSplit()
	}
	return s.PromptSplit(), nil
}

// endSplit ends the CPU's part until the next load, and reports whether it had one.
// What was read with it goes, because what comes is rounded otherwise.
func (l *loaded) endSplit() bool {
	s, ok := l.backend.(promptSplitter)
	if !ok || l.splitEnded.Load() {
		return false
	}
	had := s.PromptSplit() != nil
	if had {
		l.run.Store().Clear()
	}
	l.splitEnded.Store(true)
	s.SuspendPromptSplit()
	return had
}
