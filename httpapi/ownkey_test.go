package httpapi

import (
	"strings"
	"testing"

	"sparkbar/httpapi/internal/enginetest"
)

// TestOwnKey: snippets hold the key of who asks, never that of another client nor
// the program's own, which is taken where keys are.
func TestOwnKey(t *testing.T) {
	s := New(enginetest.New(enginetest.Say("x")), Options{Keys: []string{"", "first-key", "second-key"}, HiddenKey: "hidden-key"})
	for key, want := range map[string]string{"first-key": "first-key", "second-key": "second-key", "hidden-key": "first-key"} {
		for _, header := range [][]string{{"Authorization", "Bearer " + key}, {"X-Api-Key", key}, {"Authorization", "Bearer wrong", "X-Api-Key", key}} {
			w := call(s, "GET", "/admin/integrations", "", header...)
			body := w.Body.String()
			if w.Code != 200 || !strings.Contains(body, want) {
				t.Errorf("%v: %d %.300s", header, w.Code, body)
			}
			for _, other := range []string{"first-key", "second-key", "hidden-key"} {
				if other != want && strings.Contains(body, other) {
					t.Errorf("%v is shown %s", header, other)
				}
			}
		}
	}
	s.SetAccess(nil, nil, nil)
	if w := call(s, "GET", "/admin/integrations", "", "X-Api-Key", "hidden-key"); w.Code != 200 || strings.Contains(w.Body.String(), "hidden-key") || !strings.Contains(w.Body.String(), placeholderKey) {
		t.Errorf("without keys: %d %s", w.Code, w.Body)
	}
	s.SetAccess([]string{"third"}, nil, nil)
	for key, want := range map[string]int{"third": 200, "hidden-key": 200, "first-key": 401, "": 401} {
		if w := call(s, "GET", "/v1/models", "", "X-Api-Key", key); w.Code != want {
			t.Errorf("%q: %d, want %d", key, w.Code, want)
		}
	}
}
