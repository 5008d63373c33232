package testneed

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Missing skips or fails the test; how says what would help.
func Missing(t testing.TB, what, how string) {
	t.Helper()
	if os.Getenv("SPARKBAR_REQUIRE") == "all" {
		t.Fatalf("%s is missing, and SPARKBAR_REQUIRE=all asks for it: %s", what, how)
	}
	t.Skipf("%s is missing: %s", what, how)
}

// SmolLM2 returns the folder of the real small model that `make setup` fetches:
// model.gguf and mlx/ in it.
func SmolLM2(t testing.TB) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "..", "..", "build", "smollm2")
	if _, err := os.Stat(filepath.Join(dir, "done")); err != nil {
		Missing(t, "the SmolLM2 model", "run `make setup`")
	}
	return dir
}
