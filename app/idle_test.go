package main

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"sparkbar/app/menubar"
)

// idleTime is how long an idle app is watched.
const idleTime = 20 * time.Second

// BenchmarkIdle measures what the app costs while nobody asks anything: engine
// with a model, server and view-model, with the menu closed and with it open.
func BenchmarkIdle(b *testing.B) {
	for name, open := range map[string]bool{"closed": false, "open": true} {
		b.Run(name, func(b *testing.B) {
			x := startDesk(b, []string{"--log-level", "info"}, nil)
			x.phase(menubar.Ready)
			if !open {
				x.ctl.Close()
			}
			time.Sleep(12 * time.Second) // what follows a load has ended
			for b.Loop() {
				heap, routines, spent := usage()
				time.Sleep(idleTime)
				heap2, routines2, spent2 := usage()
				share := 100 * (spent2 - spent).Seconds() / idleTime.Seconds()
				b.ReportMetric(share, "%core")
				b.ReportMetric(float64(heap2-heap), "B-growth")
				b.ReportMetric(float64(routines2-routines), "goroutines-growth")
				if !open && (share >= 0.5 || routines2 > routines || heap2-heap > 256<<10) {
					b.Errorf("an idle app takes %.2f %% of a core and grows by %d bytes and %d goroutines in %s", share, heap2-heap, routines2-routines, idleTime)
				}
			}
		})
	}
}

// usage is the live heap, the goroutines, and the processor time spent so far.
func usage() (heap int64, routines int, spent time.Duration) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err) // of this process, it cannot fail
	}
	return int64(m.HeapAlloc), runtime.NumGoroutine(), time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
