package cpu

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// readBandwidth is the best rate, in bytes a second, at which all cores read a
// block larger than the caches.
var readBandwidth = sync.OnceValue(func() float64 {
	const size = 256 << 20
	mem := make([]uint64, size/8)
	for i := range mem {
		mem[i] = uint64(i)
	}
	n := runtime.GOMAXPROCS(0)
	best := 0.0
	for range 5 {
		start := time.Now()
		var wg sync.WaitGroup
		for t := range n {
			part := mem[len(mem)*t/n : len(mem)*(t+1)/n]
			wg.Go(func() {
				var a, b, c, d uint64
				for len(part) >= 8 {
					p := (*[8]uint64)(part)
					a, b, c, d = a|p[0]|p[4], b|p[1]|p[5], c|p[2]|p[6], d|p[3]|p[7]
					part = part[8:]
				}
				runtime.KeepAlive(a | b | c | d)
			})
		}
		wg.Wait()
		best = max(best, size/time.Since(start).Seconds())
	}
	return best
})

// affine4 returns a 4-bit weight in groups of 32 with bfloat16 scales.
func affine4(name string, rows, cols int) layout.Matrix {
	r := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	m := layout.Matrix{Name: name, Scheme: layout.Affine, Rows: rows, Cols: cols, Bits: 4, Group: 32, DType: layout.BF16, GlobalScale: 1}
	m.Weight = make([]byte, m.Rows*m.RowBytes())
	m.Scales, m.Biases = make([]byte, m.Rows*m.ScaleBytes()), make([]byte, m.Rows*m.ScaleBytes())
	for i := 0; i+8 <= len(m.Weight); i += 8 {
		*(*uint64)(unsafe.Pointer(&m.Weight[i])) = r.Uint64()
	}
	for i := 1; i < len(m.Scales); i += 2 { // about 0.01 and -0.08
		m.Scales[i], m.Scales[i-1] = 0x3c, byte(r.Uint32())
		m.Biases[i], m.Biases[i-1] = 0xbd, byte(r.Uint32())
	}
	return m
}

// BenchmarkLinear runs 4-bit weights of the shapes of SmolLM2-135M, enough copies
// of each to leave the nearest caches, in one program. "all" is one whole token.
func BenchmarkLinear(b *testing.B) {
	if len(Levels()) == 0 {
		b.Skip("this build has no kernels to measure")
	}
	type shape struct{ out, in, n int }
	sets := []struct {
		name   string
		shapes []shape
	}{
		{"576x576", []shape{{576, 576, 240}}}, {"1536x576", []shape{{1536, 576, 90}}}, {"576x1536", []shape{{576, 1536, 90}}}, {"49152x576", []shape{{49152, 576, 3}}},
		{"all", []shape{{576, 576, 60}, {192, 576, 60}, {1536, 576, 60}, {576, 1536, 30}, {49152, 576, 1}}},
	}
	for _, set := range sets {
		for _, exact := range []bool{false, true} {
			kind := "int8"
			if exact {
				kind = "exact"
			}
			b.Run(fmt.Sprintf("%s/%s", set.name, kind), func(b *testing.B) {
				be := open(b, Options{Exact: exact})
				var ws []*compute.Weight
				bytes := 0
				for _, s := range set.shapes {
					m := affine4("bench", s.out, s.in)
					for range s.n {
						if exact { // an exact backend reads the weight itself: give it its own copy
							m = affine4("bench", s.out, s.in)
						}
						w, err := be.Load(m)
						if err != nil {
							b.Fatal(err)
						}
						defer be.Unload(w)
						ws = append(ws, w)
						bytes += len(m.Weight) + len(m.Scales) + len(m.Biases)
					}
				}
				for _, rows := range []int{1, 2, 4, 8, 64} {
					b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
						sc := compute.NewScratch(be)
						defer sc.Close()
						r := rand.New(rand.NewPCG(1, 2))
						x := map[int]compute.View{}
						var p compute.Program
						for _, w := range ws {
							if !x[w.Cols].Given() {
								v, _ := sc.F32(rows, w.Cols)
								for i := range rows {
									for j := range v.F32(i) {
										v.F32(i)[j] = float32(r.NormFloat64())
									}
								}
								x[w.Cols] = v
							}
							out, err := sc.F32(rows, w.Rows)
							if err != nil {
								b.Fatal(err)
							}
							p.Add(compute.Linear{X: x[w.Cols], W: w, Scale: 1, Out: out, Prefill: rows})
						}
						if err := compute.Run(be, &p, nil); err != nil {
							b.Fatal(err)
						}
						for b.Loop() {
							if err := compute.Run(be, &p, nil); err != nil {
								b.Fatal(err)
							}
						}
						rate := float64(bytes) * float64(b.N) / b.Elapsed().Seconds()
						b.ReportMetric(rate/1e9, "GB/s")
						b.ReportMetric(rate/readBandwidth(), "of-read-bandwidth")
						b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
					})
				}
			})
		}
	}
}
