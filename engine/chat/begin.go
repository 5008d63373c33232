package chat

import "strings"

// BeginCall is how an answer begins that is a tool call and nothing else: of the
// named function, or of any with name "". A prompt that ends in it, and in no
// thought, leaves the model no other answer. It is "" where the model's format of
// calls is not known.
//
// Texts end where tokens do, as far as that can be said for all vocabularies: a
// model that finds half a token goes on less well.
func (f *Format) BeginCall(name string) string {
	text := ""
	if f.templates != nil {
		text = f.text()
	}
	lead := ""
	if c := f.thought.channels; c != nil {
		if c.call != nil {
			return c.call(name)
		}
		lead = c.answer
	}
	if f.toolName == "" || len(f.tools) == 0 || f.tools[0].begin == nil {
		return ""
	}
	return lead + f.tools[0].begin(name, text)
}

// beginning makes begin of what stands before the name and right after it.
func beginning(before, after string) func(name, template string) string {
	return func(name, _ string) string {
		if name == "" {
			return strings.TrimSuffix(before, "=") // "=name" is one token in many vocabularies
		}
		quoted := toJSON(name)
		return before + quoted[1:len(quoted)-1] + after
	}
}

// beginMistral: older templates write a list of objects, newer ones name[ARGS]{…}.
func beginMistral(name, template string) string {
	const marker = "[TOOL_CALLS]"
	switch {
	case name == "":
		return marker
	case strings.Contains(template, "[ARGS]"):
		return marker + name + "[ARGS]"
	}
	return marker + `[{"name": ` + toJSON(name) + ","
}

// beginHarmony is the header of a message to a function.
func beginHarmony(name string) string {
	const header = "<|channel|>commentary to=functions."
	if name == "" {
		return header
	}
	return header + name + " <|constrain|>json" + channelMessage
}
