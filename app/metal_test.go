package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/viper"

	"sparkbar/engine"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// faulty is a device on which lists that use some kernel give nothing.
type faulty struct {
	metalkern.Device
	kernel string // "" = none
	do     string // fail, hang
	marked map[uint32]bool
}

func (f *faulty) Pipeline(kernel string, c []metalkern.Constant) (uint32, error) {
	id, err := f.Device.Pipeline(kernel, c)
	if kernel == f.kernel {
		f.marked[id] = true
	}
	return id, err
}

type faultyFence struct{ do string }

func (f faultyFence) Wait(time.Duration) (time.Duration, error) {
	if f.do == "hang" {
		return 0, metalkern.ErrHung
	}
	return 0, errors.New("planted: the GPU failed")
}

func (f *faulty) Submit(l *metalkern.List) (metalkern.Fence, error) {
	if slices.ContainsFunc(l.Dispatches, func(d metalkern.Dispatch) bool { return f.marked[d.Pipeline] }) {
		return faultyFence{f.do}, nil
	}
	return f.Device.Submit(l)
}

// emulateGPU gives this machine a GPU for a test, and a cache folder.
func emulateGPU(t *testing.T, kernel, do string) (cache string) {
	t.Helper()
	metaltest.Need(t)
	cache = t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	old := openGPU
	t.Cleanup(func() { openGPU = old })
	openGPU = func(string) (metalkern.Device, error) {
		d, err := metaltest.NewDevice(sources, metaltest.Build{}, metaltest.Order{})
		return &faulty{d, kernel, do, map[uint32]bool{}}, err
	}
	return filepath.Join(cache, "sparkbar", "metal")
}

// TestDoctorKernels: all kernels of the demo and its drafter are tried, the choice
// is kept, and what fails is named.
func TestDoctorKernels(t *testing.T) {
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	dir := emulateGPU(t, "", "")
	settingsFile(t, "")
	ask := func(args ...string) (kernelReport, error) {
		t.Helper()
		out, err := command1(t, "", append([]string{"doctor", "--kernels", "--json"}, args...)...)
		var r kernelReport
		if jerr := json.Unmarshal([]byte(out), &r); jerr != nil {
			t.Fatalf("%v %v %s", err, jerr, out)
		}
		return r, err
	}
	r, err := ask("demo")
	seen := map[string]bool{}
	for _, x := range r.Trials {
		seen[x.Kernel] = true
		if !x.OK {
			t.Errorf("%+v", x)
		}
	}
	for _, k := range []string{"embed", "norm", "linear_rows", "linear_tiles", "rope", "kv_write", "attention", "choose", "cpu_split"} {
		if !seen[k] {
			t.Errorf("kernel %s was not tried", k)
		}
	}
	if err != nil || !r.OK || r.Drills != len(metalkern.Drills) || r.GPU != "emulated" || len(r.Findings) != 0 {
		t.Errorf("%v, %d drills on %q, findings %+v", err, r.Drills, r.GPU, r.Findings)
	}
	books, err := filepath.Glob(filepath.Join(dir, "kernels-*.json"))
	if err != nil || len(books) != 1 {
		t.Fatal(books, err)
	}
	text, err := os.ReadFile(books[0])
	if err != nil || !strings.Contains(string(text), "emulated, ") || !strings.Contains(string(text), ", "+runtime.GOOS+" ") || !strings.Contains(string(text), "sparkbar "+version) {
		t.Errorf("%.300s, %v", text, err)
	}
	t.Logf("%d trials of %d kernels", len(r.Trials), len(seen))

	emulateGPU(t, "rope", "fail")
	r, err = ask("demo")
	if err == nil || r.OK || r.Drills >= len(metalkern.Drills) || !slices.ContainsFunc(r.Findings, func(f engine.Finding) bool {
		return f.Code == "kernel_unfit" && strings.Contains(f.Message, "rope") && strings.Contains(f.Message, "planted") && strings.Contains(f.Fix, "CPU")
	}) {
		t.Errorf("a kernel that fails: %v, %+v", err, r.Findings)
	}
	openGPU = metalkern.Open
	if runtime.GOOS != "darwin" {
		if r, err = ask("demo"); err != nil || !r.OK || len(r.Findings) != 1 || r.Findings[0].Code != "no_gpu" {
			t.Errorf("without a GPU: %v, %+v", err, r)
		}
	}
	if _, err := command1(t, "", "doctor", "demo"); err == nil || !strings.Contains(err.Error(), "--kernels") {
		t.Errorf("a model without --kernels: %v", err)
	}
}

// TestAutoBackend: where there is a GPU, auto runs models on it once its kernels
// have passed; where one does not, on the CPU, and says so.
func TestAutoBackend(t *testing.T) {
	if testing.Short() {
		t.Skip("the plain run does this: the race detector does not watch the kernels")
	}
	for _, c := range []struct{ name, kernel, do, backend string }{{"sound", "", "", "metal"}, {"a kernel that fails", "attention", "fail", "cpu"}, {"a kernel that hangs", "norm", "hang", "cpu"}} {
		t.Run(c.name, func(t *testing.T) {
			emulateGPU(t, c.kernel, c.do)
			for _, start := range []string{"first", "second"} {
				t.Run(start, func(t *testing.T) {
					s := startServe(t, "--model", "demo", "--prefix-cache-disk", "0")
					var health any
					for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
						var status int
						if status, health = s.call("GET", "/health", ""); status == 200 && field(health, "status") == "ok" {
							break
						}
						if time.Now().After(end) {
							t.Fatal(health)
						}
					}
					if got := field(health, "backend"); got != c.backend {
						t.Errorf("backend %v, want %s", got, c.backend)
					}
					if status, v := s.call("POST", "/v1/chat/completions", `{"model":"demo","messages":[{"role":"user","content":"hi"}],"max_tokens":8}`); status != 200 {
						t.Fatal(status, v)
					}
					text, err := json.Marshal(field(health, "warnings"))
					if err != nil {
						t.Fatal(err)
					}
					if said := strings.Contains(string(text), "demo runs on the CPU: the "); said != (c.backend == "cpu") {
						t.Errorf("%s", text)
					}
				})
			}
		})
	}
}

// TestMetalFlags: what is for the metal backend reaches it, and is refused where there
// is another one; a GPU that cannot be used is told of.
func TestMetalFlags(t *testing.T) {
	chosen := func(flags ...string) (backendChoice, error) {
		v := viper.New()
		v.Set("backend", "auto")
		for i := 0; i < len(flags); i += 2 {
			v.Set(flags[i], flags[i+1])
		}
		return backendOf(&config{Viper: v})
	}
	old := openGPU
	t.Cleanup(func() { openGPU = old })
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	openGPU = func(string) (metalkern.Device, error) { return metalkern.NewRecorder(), nil }
	for _, c := range []struct {
		activations, identity string
		want                  layout.DType
		rounding              string
	}{{"f32", "strict", layout.F32, ""}, {"f16", "strict", layout.F16, "--activations f16"}, {"bf16", "relaxed", layout.BF16, "--activations bf16 --identity relaxed"}} {
		x, err := chosen("activations", c.activations, "identity", c.identity)
		if err != nil || x.name != "metal" || x.fallback == nil || x.rounding != c.rounding || len(x.findings()) > 0 {
			t.Fatalf("%+v: %+v, %v", c, x, err)
		}
		b, err := x.open()
		if err != nil {
			t.Fatal(err)
		}
		if got := b.(interface{ Activations() layout.DType }).Activations(); got != c.want {
			t.Errorf("--activations %s: %v", c.activations, got)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
	x, err := chosen()
	if err != nil {
		t.Fatal(err)
	}
	openGPU = func(string) (metalkern.Device, error) { return nil, errors.New("planted: no command queue") }
	if _, err := x.open(); !errors.Is(err, compute.ErrUnfit) || !strings.Contains(err.Error(), "planted") {
		t.Errorf("a GPU that went away before the load: %v", err)
	}
	x, err = chosen()
	if f := x.findings(); err != nil || x.name != "cpu" || len(f) != 1 || !strings.Contains(f[0].Message, "planted") {
		t.Errorf("a GPU that cannot be used: %+v, %+v, %v", x, x.findings(), err)
	}
	if _, err := chosen("activations", "f16"); err == nil || !strings.Contains(err.Error(), "--activations f16 is for the metal backend") || !strings.Contains(err.Error(), "planted") {
		t.Errorf("auto without a GPU: %v", err)
	}
	openGPU = func(string) (metalkern.Device, error) { return nil, metalkern.ErrNoDevice }
	if x, err := chosen(); err != nil || x.name != "cpu" || len(x.findings()) > 0 {
		t.Errorf("no GPU: %+v, %v", x, err)
	}
	for _, name := range []string{"cpu", "reference"} {
		if _, err := chosen("backend", name, "identity", "relaxed"); err == nil || exitCode(err) != 2 || !strings.Contains(err.Error(), "--identity relaxed is for the metal backend, and --backend is "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
