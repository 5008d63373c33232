package httpapi

import (
	"encoding/json"
	"testing"

	"sparkbar/httpapi/internal/enginetest"
)

// TestCPUSplit: /health tells what the CPU reads of prompts beside a GPU, or null.
func TestCPUSplit(t *testing.T) {
	e := enginetest.New(enginetest.Say("a"))
	s := New(e, Options{})
	health := func() (now, ended string) {
		t.Helper()
		var v map[string]json.RawMessage
		if err := json.Unmarshal(call(s, "GET", "/health", "").Body.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		return string(v["cpu_split"]), string(v["cpu_split_suspended"])
	}
	if now, ended := health(); now != "null" || ended != "null" {
		t.Errorf("without: %s, %s", now, ended)
	}
	st := e.Status()
	st.CPUSplit = map[int]float64{14336: 0.2, 4096: 0.1}
	e.SetStatus(st)
	const want = `{"min_rows":1,"fracs":{"14336":0.2,"4096":0.1}}`
	if now, ended := health(); now != want || ended != "null" {
		t.Errorf("with: %s, %s", now, ended)
	}
	st.CPUSplit, st.CPUSplitEnded = nil, st.CPUSplit
	e.SetStatus(st)
	if now, ended := health(); now != "null" || ended != want {
		t.Errorf("suspended: %s, %s", now, ended)
	}
}
