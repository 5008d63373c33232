package metalkern

import (
	"fmt"
	"path/filepath"
)

// roomFor says whether a GPU that has used bytes of its working set in use may take
// more: beyond it, weights would be moved in and out at each token.
func roomFor(bytes, used, limit int) error {
	if limit <= 0 || used+bytes <= limit {
		return nil
	}
	return fmt.Errorf("the GPU may use %.1f GB, %.1f GB are in use and %.1f GB more are asked for; take a smaller model, a shorter context (--context-window) or 8-bit KV (--kv-bits 8), or raise the limit with `sudo sysctl iogpu.wired_limit_mb`",
		float64(limit)/1e9, float64(used)/1e9, float64(bytes)/1e9)
}

// The codes of MTLCommandBufferError that say what to do.
const (
	errTimeout     = 2
	errPageFault   = 3
	errAccess      = 4
	errNotAllowed  = 7
	errOutOfMemory = 8
)

// explain turns the error of a command buffer into one that says what to do.
func explain(code int, text string) error {
	what := "if it comes back, run `sparkbar doctor --kernels`, or use --backend cpu"
	switch code {
	case errTimeout:
		what = "the GPU took too long: close other programs that use it, or read prompts in smaller pieces (--prefill-step-size 128)"
	case errPageFault:
		what = "a kernel touched memory that is not its own: run `sparkbar doctor --kernels` and report it; --backend cpu works meanwhile"
	case errAccess, errNotAllowed:
		what = "macOS does not let this process use the GPU now: bring the app to the front, or log in at the machine"
	case errOutOfMemory:
		what = "the GPU has no memory left: close other programs, or load a smaller model or a shorter context (--context-window)"
	}
	return fmt.Errorf("metal: %s (error %d); %s", text, code, what)
}

// ArchiveIn names the file below dir that keeps compiled kernels for a machine (chip,
// build of the system, version of the program) and the kernels' sources as they are.
func ArchiveIn(dir, machine string) (string, error) {
	sum, err := sourcesSum()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "compiled-"+short(machine+"\n"+sum)+".metallib"), nil
}
