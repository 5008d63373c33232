// Package chat turns conversations into prompts and generated text back into
// messages, for every model family.
//
// Here live the choice and rendering of a model's chat template, the
// normalization of messages that clients send, the split of generated text
// into thought, answer and tool calls, and the matching of stop strings. All
// of it works on text: tokens are known only by their strings.
//
// What must never live here: tokenizing, sampling, anything of a wire format
// (ids, indices of choices, event framing), the template language itself
// (that is package jinja).
//
// Read Format first: it says how one model speaks. NewFormat finds it out from
// the model's files, Render makes a prompt, NewParser reads an answer. The
// families are two tables: thoughtTable in family.go and toolTable in
// tools.go; a new family is a new row.
package chat
