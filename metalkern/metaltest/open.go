package metaltest

import (
	"os"
	"testing"

	"sparkbar/engine/compute"
	"sparkbar/engine/testneed"
	"sparkbar/metalkern"
)

// Open returns the Metal backend on an emulated device, both closed with the
// test. Without clang on an x86-64 Linux the test is skipped.
func Open(t testing.TB, b Build, o Order) (compute.Backend, *Device) {
	t.Helper()
	return OpenWith(t, b, o, metalkern.Options{})
}

// OpenWith is Open of a backend with options.
func OpenWith(t testing.TB, b Build, o Order, with metalkern.Options) (compute.Backend, *Device) {
	t.Helper()
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	Need(t)
	d, err := NewDevice(sources, b, o)
	if err != nil {
		t.Fatal(err)
	}
	back := metalkern.New(d, with)
	t.Cleanup(func() {
		if err := back.Close(); err != nil {
			t.Error(err)
		}
	})
	return back, d
}

// Need skips the test where kernels cannot be compiled and run.
func Need(t testing.TB) {
	t.Helper()
	if !emulates {
		testneed.Missing(t, "the Metal emulation", "it runs on Linux on x86-64, with cgo")
	}
	if _, err := compiler(); err != nil {
		testneed.Missing(t, "clang++", "install clang-19 (`make setup-cross`)")
	}
}

// Also returns the backends with the Metal backend on an emulated device behind
// them: for tests that hold for every backend. Where kernels cannot be compiled
// and run, or under the race detector, which does not watch them, it returns the
// others alone; SPARKBAR_REQUIRE=all makes a missing compiler a failure.
func Also(t testing.TB, backends ...compute.Backend) []compute.Backend {
	t.Helper()
	if raceEnabled {
		return backends
	}
	if _, err := compiler(); err != nil || !emulates {
		if os.Getenv("SPARKBAR_REQUIRE") == "all" {
			Need(t)
		}
		t.Log("the Metal backend is left out: no clang++, or not Linux on x86-64")
		return backends
	}
	b, _ := Open(t, Build{}, Order{})
	return append(backends, b)
}
