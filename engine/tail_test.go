package engine

import (
	"os"
	"testing"

	"sparkbar/engine/tokenizer"
)

// TestUnstableTail: a template that opens a thought only in the prompt to be
// answered has a tail that the next turn does not keep; one that does not, has
// only the last token.
func TestUnstableTail(t *testing.T) {
	vocabulary, err := os.ReadFile("../resources/demo/chat/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, prompt string
		more         bool
	}{{"plain", "", false}, {"opens a thought", "<think>\\n", true}} {
		template := "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content }}<|im_end|>\\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n" + c.prompt + "{% endif %}"
		tok, err := tokenizer.New(vocabulary, []byte(`{"chat_template": "`+template+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		l := &loaded{voice: &voice{tok: tok}}
		if l.format, err = newFormat(tok, ""); err != nil {
			t.Fatal(err)
		}
		if n := l.unstableTail(); (n > 1) != c.more {
			t.Errorf("%s: %d tokens", c.name, n)
		}
	}
}
