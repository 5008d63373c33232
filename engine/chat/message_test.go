package chat

// Message is an answer put together from events, for comparison with what it
// should be; the engine hands events on as they come.
type Message struct {
	Thought string
	Text    string
	Calls   []Call
	Broken  []error // what was wrong with calls whose markup is in Text
}

// Add takes in the next events. The markup of broken calls becomes text.
func (m *Message) Add(events ...Event) {
	for _, e := range events {
		switch e.Kind {
		case Text:
			m.Text += e.Text
		case BrokenCall:
			m.Text += e.Text
			m.Broken = append(m.Broken, e.Err)
		case Thought:
			m.Thought += e.Text
		case TextWasThought:
			m.Thought += m.Text
			m.Text = ""
		case CallStart:
			m.Calls = append(m.Calls, Call{ID: e.ID, Name: e.Name})
		case CallArgs:
			m.Calls[len(m.Calls)-1].Arguments += e.Text
		case CallDrop:
			m.Calls = m.Calls[:len(m.Calls)-1]
		}
	}
}

// Parse reads a whole answer.
func (f *Format) Parse(text string, o ParserOptions) Message {
	p := f.NewParser(o)
	var m Message
	m.Add(p.Feed(text)...)
	m.Add(p.Finish()...)
	return m
}
