package metaltest

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"sparkbar/metalkern"
)

//go:embed emu
var emuFiles embed.FS

// Build says how kernels are compiled.
type Build struct {
	Checked bool // call the device for every load and store
	Fuse    bool // let the compiler fuse products and sums where it likes
}

var (
	flags = strings.Fields("-std=c++17 -O2 -march=x86-64-v3 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-strict-aliasing -fno-math-errno -fno-trapping-math " +
		"-Wall -Wextra -Werror -Wdouble-promotion -Wno-unused-parameter -Wno-unused-function -Wno-unused-const-variable -Wno-unused-but-set-parameter")
	checked = strings.Fields("-O1 -fno-vectorize -fno-slp-vectorize -fsanitize-coverage=func,trace-loads,trace-stores")
)

// compiler finds clang.
func compiler() (string, error) {
	for _, name := range []string{"clang++-19", "clang++-20", "clang++-18", "clang++"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no clang++")
}

// compile returns the path of a shared library with the given kernels; libraries
// are kept in dir under the hash of all that went into them.
func compile(dir string, sources []metalkern.Source, b Build) (string, error) {
	cxx, err := compiler()
	if err != nil {
		return "", err
	}
	opts := append([]string{cxx}, flags...)
	if b.Fuse {
		opts = append(opts, "-ffp-contract=fast")
	} else {
		opts = append(opts, "-ffp-contract=off")
	}
	emu, err := unpack(dir)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintln(h, opts, b, emu)
	for _, s := range sources {
		fmt.Fprintln(h, s.Name, s.Text)
	}
	out := filepath.Join(dir, hex.EncodeToString(h.Sum(nil)[:12])+".so")
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	tmp, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	run := func(args ...string) error { return clang(cxx, args...) }
	// the device itself is the same for all kernels: its object is kept too
	var objects []string
	object := func(src, name string, hooks bool) error {
		args := append([]string(nil), opts[1:]...)
		if b.Checked {
			args = append(args, "-DEMU_CHECKED")
			if hooks {
				args = append(args, checked...)
			}
		}
		sum := sha256.New()
		text, err := os.ReadFile(src)
		if err != nil {
			return err
		}
		fmt.Fprintln(sum, args, emu, string(text))
		obj := filepath.Join(dir, hex.EncodeToString(sum.Sum(nil)[:12])+".o")
		objects = append(objects, obj)
		if _, err := os.Stat(obj); err == nil {
			return nil
		}
		part := filepath.Join(tmp, name+".o")
		if err := run(append(args, "-I", emu, "-c", "-o", part, src)...); err != nil {
			return err
		}
		return os.Rename(part, obj)
	}
	if err := object(filepath.Join(emu, "device.cpp"), "device", false); err != nil {
		return "", err
	}
	for _, s := range sources {
		text, err := preprocess(tmp, cxx, s)
		if err != nil {
			return "", err
		}
		cpp, err := translate(s.Name, text)
		if err != nil {
			return "", err
		}
		gen := filepath.Join(tmp, s.Name+".cpp")
		if err := os.WriteFile(gen, []byte(cpp), 0o644); err != nil {
			return "", err
		}
		if err := object(gen, s.Name, true); err != nil {
			return "", err
		}
	}
	part := filepath.Join(tmp, "kernels.so")
	if err := run(append([]string{"-shared", "-Wl,-z,defs", "-o", part}, append(objects, "-lm")...)...); err != nil {
		return "", err
	}
	return out, os.Rename(part, out)
}

func clang(cxx string, args ...string) error {
	if text, err := exec.Command(cxx, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(args[len(args)-1]), err, text)
	}
	return nil
}

// preprocess expands the macros of a kernel file, so that translate sees its
// kernels' parameters; line markers keep the names of the sources.
func preprocess(tmp, cxx string, s metalkern.Source) (string, error) {
	in, out := filepath.Join(tmp, s.Name+".in"), filepath.Join(tmp, s.Name+".ii")
	plain := strings.ReplaceAll(s.Text, "#include <metal_stdlib>", "")
	plain = strings.ReplaceAll(plain, `_Pragma("clang loop unroll(full)")`, "") // for registers, of which nothing here needs to know
	if err := os.WriteFile(in, []byte(plain), 0o644); err != nil {
		return "", err
	}
	if err := clang(cxx, "-E", "-x", "c++", "-undef", "-nostdinc", "-D__METAL_VERSION__=310", "-o", out, in); err != nil {
		return "", err
	}
	text, err := os.ReadFile(out)
	return strings.ReplaceAll(string(text), in, s.Name), err
}

// CheckSpaces compiles the kernels with real address spaces, which running them
// does without: a pointer from one to another, or a copy that Metal would refuse,
// is an error. Nothing is kept.
func CheckSpaces(sources []metalkern.Source) error {
	cxx, err := compiler()
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "spaces")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	emu, err := unpack(tmp)
	if err != nil {
		return err
	}
	for _, s := range sources {
		text, err := preprocess(tmp, cxx, s)
		if err != nil {
			return err
		}
		text = attribute.ReplaceAllString(constantLine.ReplaceAllString(text, "static uint $1;"), "")
		gen := filepath.Join(tmp, s.Name+".cpp")
		if err := os.WriteFile(gen, []byte("#include \"metal_stdlib\"\n"+text), 0o644); err != nil {
			return err
		}
		if err := clang(cxx, "-std=c++17", "-DEMU_SPACES", "-fsyntax-only", "-Wno-unused-value", "-I", emu, gen); err != nil {
			return err
		}
	}
	return nil
}

// unpack writes the emulator's C++ files below dir and returns their folder.
func unpack(dir string) (string, error) {
	h := sha256.New()
	texts := map[string][]byte{}
	err := fs.WalkDir(emuFiles, "emu", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := emuFiles.ReadFile(p)
		fmt.Fprintln(h, p, len(text), string(text))
		texts[filepath.Base(p)] = text
		return err
	})
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, "emu-"+hex.EncodeToString(h.Sum(nil)[:6]))
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	tmp, err := os.MkdirTemp(dir, "emu")
	if err != nil {
		return "", err
	}
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o644); err != nil {
			return "", err
		}
	}
	if err := os.Rename(tmp, to); err != nil {
		os.RemoveAll(tmp)
		if _, there := os.Stat(to); there != nil {
			return "", err
		}
	}
	return to, nil
}

var (
	constantLine = regexp.MustCompile(`constant\s+uint\s+(\w+)\s*\[\[function_constant\((\d+)\)\]\];`)
	kernelHead   = regexp.MustCompile(`kernel\s+void\s+(\w+)\s*\(`)
	attribute    = regexp.MustCompile(`\[\[(\w+)(?:\((\d+)\))?\]\]`)
)

// builtins are the arguments that a kernel may ask of the device.
var builtins = map[string]string{
	"threadgroup_position_in_grid":   "uint3{t->group[0], t->group[1], t->group[2]}",
	"threadgroups_per_grid":          "uint3{t->groups[0], t->groups[1], t->groups[2]}",
	"thread_index_in_threadgroup":    "t->id",
	"thread_index_in_simdgroup":      "t->lane",
	"simdgroup_index_in_threadgroup": "t->simd",
}

// translate turns a preprocessed kernel file into C++: function constants become
// variables, attributes go, and each kernel gets a function that calls it with
// the arguments of a thread.
func translate(name, text string) (string, error) {
	var tail, table strings.Builder
	count := 0
	var constants uint64
	for _, m := range constantLine.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.Atoi(m[2])
		if n > 63 {
			return "", fmt.Errorf("%s: function constant %s has index %d", name, m[1], n)
		}
		if constants&(1<<n) != 0 {
			return "", fmt.Errorf("%s: function constant %d is declared twice", name, n)
		}
		constants |= 1 << n
		fmt.Fprintf(&table, "{%d, &%s}, ", n, m[1])
	}
	ncon := strings.Count(table.String(), "&")
	var kernels strings.Builder
	for _, at := range kernelHead.FindAllStringSubmatchIndex(text, -1) {
		kernel, from := text[at[2]:at[3]], at[1]
		depth, to := 1, from
		for ; to < len(text) && depth > 0; to++ {
			switch text[to] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		var args []string
		var writes uint64
		buffers, shared := 0, 0
		for _, p := range strings.Split(text[from:to-1], ",") {
			a := attribute.FindStringSubmatch(p)
			if a == nil {
				return "", fmt.Errorf("%s: %s: parameter %q has no attribute", name, kernel, strings.TrimSpace(p))
			}
			n, _ := strconv.Atoi(a[2])
			switch {
			case a[1] == "buffer" && n == 0:
				args = append(args, "R{t->buf[0]}")
			case a[1] == "buffer":
				if buffers++; n != buffers || n > 30 {
					return "", fmt.Errorf("%s: %s: buffer(%d) is not the next one", name, kernel, n)
				}
				if !regexp.MustCompile(`\bconst\b`).MatchString(p) {
					writes |= 1 << n
				}
				args = append(args, fmt.Sprintf("P{t->buf[%d]}", n))
			case a[1] == "threadgroup" && n == 0:
				shared = 1
				args = append(args, "P{t->shared}")
			case builtins[a[1]] != "":
				args = append(args, builtins[a[1]])
			default:
				return "", fmt.Errorf("%s: %s: attribute %s is not emulated", name, kernel, a[1])
			}
		}
		fmt.Fprintf(&tail, "void run_%s(const emu_thread *t) { %s(%s); }\n", kernel, kernel, strings.Join(args, ", "))
		fmt.Fprintf(&kernels, "{%q, %q, run_%s, %d, %#xull, %d, %#xull},\n", kernel, name, kernel, buffers, writes, shared, constants)
		count++
	}
	if count == 0 {
		return "", fmt.Errorf("%s: no kernels", name)
	}
	text = constantLine.ReplaceAllString(text, "static uint $1;")
	text = attribute.ReplaceAllString(text, "")
	return "#include \"metal_stdlib\"\n" + text + "\n# 1 \"thunks\"\n#include \"device.h\"\nnamespace {\nstruct P { void *p; template <class T> operator T *() const { return (T *)p; } };\n" +
		"struct R { void *p; template <class T> operator const T &() const { return *(const T *)p; } };\n" + tail.String() +
		"const emu_kernel kernels[] = {" + kernels.String() + "};\nconst emu_constant constants[] = {" + table.String() + "{-1, nullptr}};\n" +
		fmt.Sprintf("__attribute__((constructor)) void add() { emu_register(kernels, %d, constants, %d); }\n}\n", count, ncon), nil
}

// cacheDir is where compiled kernels stay between tests: below build/ of the
// repository, or the system's temporary folder.
func cacheDir() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	dir := filepath.Join(filepath.Dir(file), "..", "..", "build", "metal-emulator")
	if err := os.MkdirAll(dir, 0o755); err == nil {
		return dir, nil
	}
	dir = filepath.Join(os.TempDir(), fmt.Sprintf("metal-emulator-%d", os.Getuid()))
	return dir, os.MkdirAll(dir, 0o700)
}
