package metalkern

import (
	"strings"
	"testing"
)

// TestTrouble: errors of the GPU say what to do.
func TestTrouble(t *testing.T) {
	for code, want := range map[int]string{errTimeout: "--prefill-step-size", errPageFault: "doctor --kernels", errAccess: "front", errNotAllowed: "front", errOutOfMemory: "smaller model", 1: "--backend cpu"} {
		if err := explain(code, "planted"); !strings.Contains(err.Error(), "planted") || !strings.Contains(err.Error(), want) {
			t.Errorf("code %d: %v", code, err)
		}
	}
	const gb = 1e9
	if roomFor(1*gb, 9*gb, 10*gb) != nil || roomFor(100*gb, 0, 0) != nil {
		t.Error("what fits is refused")
	}
	if err := roomFor(2*gb, 9*gb, 10*gb); err == nil || !strings.Contains(err.Error(), "10.0 GB") || !strings.Contains(err.Error(), "wired_limit_mb") {
		t.Errorf("%v", err)
	}
}

// TestArchiveIn: another machine has another file of compiled kernels.
func TestArchiveIn(t *testing.T) {
	a, err := ArchiveIn("dir", "M4, 23A1, 1.0")
	if err != nil {
		t.Fatal(err)
	}
	same, err := ArchiveIn("dir", "M4, 23A1, 1.0")
	if err != nil || same != a {
		t.Errorf("%s, %s, %v", a, same, err)
	}
	for _, m := range []string{"M3, 23A1, 1.0", "M4, 23B1, 1.0", "M4, 23A1, 1.1"} {
		if b, err := ArchiveIn("dir", m); err != nil || b == a {
			t.Errorf("%s has the file of another machine: %v", m, err)
		}
	}
}
