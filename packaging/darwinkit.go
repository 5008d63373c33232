package packaging

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DarwinkitVersion is the version that the edits are for.
const DarwinkitVersion = "v0.5.0"

// edit is a change of one place in a file of darwinkit.
type edit struct{ file, old, new string }

// The edits of darwinkit 0.5.0.
var darwinkitEdits = []edit{
	// libffi stores whole words for results narrower than one, so the cell must
	// be at least a word wider than the result, or it damages the Go heap.
	{"objc/call.go", "\tvar ret T\n\tvar retPtr unsafe.Pointer\n", "\tvar cell struct {\n\t\tret T\n\t\t_   uintptr\n\t}\n\tvar ret T\n\tvar retPtr unsafe.Pointer\n"},
	{"objc/call.go", "\t\tretPtr = unsafe.Pointer(&ret)\n", "\t\tretPtr = unsafe.Pointer(&cell.ret)\n"},
	// libffi keeps the address of the argument types for the life of the call
	// interface, so they must not lie on a goroutine's stack.
	{"objc/ffi/ffi.go", "\truntime.KeepAlive(rtype)\n\truntime.KeepAlive(argtypes)\n", "\tif len(argtypes) > 0 {\n\t\tcif.arg_types = &argtypes[0]\n\t}\n\tcif.rtype = rtype\n"},
	// Cells of a call lie on the goroutine's stack, and that stack moves when the
	// called method calls back into Go: they must be on the heap.
	{"objc/ffi/ffi.go", "\tC.ffi_call0(toUintptrT(cif), fn,", "\tif never {\n\t\tsink = [3]unsafe.Pointer{unsafe.Pointer(cif), rvalue, unsafe.Pointer(&avalues[0])}\n\t}\n\tC.ffi_call0(toUintptrT(cif), fn,"},
	{"objc/ffi/ffi.go", "func IsStruct(t *Type) bool {\n", "// never is not true; it keeps the compiler from seeing that sink is not used.\nvar (\n\tnever bool\n\tsink  [3]unsafe.Pointer\n)\n\nfunc IsStruct(t *Type) bool {\n"},
	// The signature is part of the descriptor: it must be freed first.
	{"objc/block.m", "    free((void*)(block->descriptor));\n    free((void*)(block->descriptor->signature));\n", "    free((void*)(block->descriptor->signature));\n    free((void*)(block->descriptor));\n"},
}

// patchedMark is a file that only the patched copy has. app/cocoa uses its
// constant, so that it compiles against nothing else.
const patchedMark = `package objc

// SparkbarPatched marks the copy of darwinkit in which calls with narrow
// results, callbacks and blocks are safe.
const SparkbarPatched = 1
`

// darwinkitParts are the folders that the app uses: the messaging core. The
// generated bindings of each framework are left out; they would more than
// double the size of the program.
var darwinkitParts = []string{"objc", "internal"}

// PatchDarwinkit writes a copy of the parts of darwinkit in src that the app
// uses to the new folder dst, with the known memory faults repaired. It fails
// if an edit does not match exactly once.
func PatchDarwinkit(src, dst string) error {
	keep := func(rel string) bool {
		return slices.ContainsFunc(darwinkitParts, func(p string) bool { return rel == p || strings.HasPrefix(rel, p+"/") })
	}
	err := filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel != "." && !keep(rel) && !slices.ContainsFunc(darwinkitParts, func(part string) bool { return strings.HasPrefix(part, rel+"/") }) {
				return filepath.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(rel, "_test.go") || !keep(rel) && rel != "go.mod" && rel != "go.sum" && rel != "LICENSE" {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		out := filepath.Join(dst, filepath.FromSlash(rel))
		if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
			return err
		}
		return os.WriteFile(out, b, 0o644)
	})
	if err != nil {
		return fmt.Errorf("copy of darwinkit: %w", err)
	}
	for _, e := range darwinkitEdits {
		p := filepath.Join(dst, filepath.FromSlash(e.file))
		b, err := os.ReadFile(p)
		if err != nil {
			return fmt.Errorf("%s is not darwinkit %s: %w", src, DarwinkitVersion, err)
		}
		if n := strings.Count(string(b), e.old); n != 1 {
			return fmt.Errorf("%s of %s: a place to edit is there %d times instead of once; is it darwinkit %s?", e.file, src, n, DarwinkitVersion)
		}
		if err := os.WriteFile(p, []byte(strings.Replace(string(b), e.old, e.new, 1)), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dst, "objc", "sparkbar.go"), []byte(patchedMark), 0o644)
}

// Modfile writes a go.mod (and go.sum beside it) for `go build -modfile`, which
// takes darwinkit from the folder patched.
func Modfile(gomod, patched, out string) error {
	for _, ext := range []string{".mod", ".sum"} {
		b, err := os.ReadFile(strings.TrimSuffix(gomod, ".mod") + ext)
		if err != nil {
			return err
		}
		if ext == ".mod" {
			b = fmt.Appendf(b, "\nreplace github.com/progrium/darwinkit => %s\n", patched)
		}
		if err := os.WriteFile(strings.TrimSuffix(out, ".mod")+ext, b, 0o644); err != nil {
			return err
		}
	}
	return nil
}
