//go:build cgo && unix

package cpu

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// readBandwidth is the best rate, in bytes a second, at which all cores read a
// block larger than the caches, in large pages like packed weights.
var readBandwidth = sync.OnceValue(func() float64 {
	const size = 256 << 20
	block, err := mapMemory(size)
	if err != nil {
		panic(err)
	}
	defer syscall.Munmap(block)
	adviseHuge(block)
	mem := unsafe.Slice((*uint64)(unsafe.Pointer(&block[0])), size/8)
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

// ReadBandwidth is readBandwidth for the other test package.
func ReadBandwidth() float64 { return readBandwidth() }

// cpuTime is the processor time of this process: what an op costs when other
// processes want the cores too.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure runs p b.N times.
func measure(b *testing.B, be compute.Backend, p *compute.Program, bytes, rows int) {
	if err := compute.Run(be, p, nil); err != nil {
		b.Fatal(err)
	}
	cpu := cpuTime()
	for b.Loop() {
		if err := compute.Run(be, p, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	cpu = cpuTime() - cpu
	rate := float64(bytes) * float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
	b.ReportMetric(rate/1e9, "GB/s")
	b.ReportMetric(rate/readBandwidth(), "of-read-bandwidth")
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
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
						measure(b, be, &p, bytes, rows)
					})
				}
			})
		}
	}
}

// BenchmarkToken runs a whole forward pass of SmolLM2-135M's shape with 4-bit
// weights over 512 cached positions: what a step costs by its number of rows.
func BenchmarkToken(b *testing.B) {
	if len(Levels()) == 0 {
		b.Skip("this build has no kernels to measure")
	}
	const layers, dim, ff, vocab, heads, kvHeads, hd, context = 30, 576, 1536, 49152, 9, 3, 64, 512
	for _, threads := range []int{1, 0} {
		be := open(b, Options{Threads: threads})
		bytes := 0
		load := func(rows, cols int) *compute.Weight {
			m := affine4("bench", rows, cols)
			w, err := be.Load(m)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { be.Unload(w) })
			bytes += len(m.Weight) + len(m.Scales) + len(m.Biases)
			return w
		}
		type layer struct {
			q, k, v, o, gate, up, down *compute.Weight
			kv                         compute.KV
		}
		var model [layers]layer
		const blocks = context/compute.PageSize + 2
		for i := range model {
			l := layer{load(dim, dim), load(kvHeads*hd, dim), load(kvHeads*hd, dim), load(dim, dim), load(ff, dim), load(ff, dim), load(dim, ff), compute.KV{}}
			l.kv = compute.KV{Pages: blocks, Heads: kvHeads, KDim: hd, VDim: hd, Type: layout.F16}
			size, _ := l.kv.PageBytes()
			l.kv.K, _ = be.Alloc("k", size*blocks)
			l.kv.V, _ = be.Alloc("v", size*blocks)
			for _, kv := range []*compute.Buffer{l.kv.K, l.kv.V} {
				for i := range kv.Bytes { // what nobody wrote may be one page of zeros
					kv.Bytes[i] = 0x2c
				}
			}
			model[i] = l
		}
		head := load(vocab, dim)
		for _, rows := range []int{1, 2, 3, 4, 6, 8, 9, 11, 12, 16, 17, 24, 32, 33, 40, 64} {
			b.Run(fmt.Sprintf("threads=%d/rows=%d", threads, rows), func(b *testing.B) {
				sc, params := compute.NewScratch(be), compute.NewParams(be)
				defer sc.Close()
				defer params.Close()
				f32 := func(rows, cols int) compute.View {
					v, err := sc.F32(rows, cols)
					if err != nil {
						b.Fatal(err)
					}
					return v
				}
				ints := func(n int, f func(i int) int32) compute.View {
					v := make([]int32, n)
					for i := range v {
						v[i] = f(i)
					}
					w, _ := params.Ints(1, v)
					return w
				}
				seq := func(i int) int32 { return int32(i) }
				pos := func(i int) int32 { return int32(context + i) }
				zero := func(int) int32 { return 0 }
				step := compute.Rows{N: rows, Segments: 1, Prefill: rows, IDs: ints(rows, seq), Pos: ints(rows, pos), Of: ints(rows, zero)}
				pages := compute.Pages{Table: ints(blocks, seq), Lo: ints(rows, zero), Hi: ints(rows, func(i int) int32 { return pos(i) + 1 })}
				x, h, q, k, v, a, g := f32(rows, dim), f32(rows, dim), f32(rows, dim), f32(rows, kvHeads*hd), f32(rows, kvHeads*hd), f32(rows, dim), f32(rows, ff)
				logits, norm, freq := f32(rows, vocab), f32(1, dim), f32(1, hd/2)
				id, _ := sc.I32(1, rows)
				for i := range norm.F32(0) {
					norm.F32(0)[i] = 1
				}
				for i := range freq.F32(0) {
					freq.F32(0)[i] = 1 / float32(i+1)
				}
				rms := func(out compute.View) compute.Norm {
					return compute.Norm{X: x, Out: out, W: norm, Eps: 1e-5, Scale: 1}
				}
				p := compute.Program{Label: compute.LabelTarget}
				p.Add(compute.Embed{IDs: step.IDs, W: head, Scale: 1, Out: x})
				for _, l := range model {
					p.Add(rms(h),
						compute.Linear{X: h, W: l.q, Scale: 1, Out: q}, compute.Linear{X: h, W: l.k, Scale: 1, Out: k}, compute.Linear{X: h, W: l.v, Scale: 1, Out: v},
						compute.RoPE{X: q, Pos: step.Pos, Freq: freq, HeadDim: hd, Mul: 1}, compute.RoPE{X: k, Pos: step.Pos, Freq: freq, HeadDim: hd, Mul: 1},
						compute.KVWrite{K: k, V: v, KV: l.kv, Rows: step, Pages: pages},
						compute.Attention{Q: q, KV: l.kv, Rows: step, Pages: pages, Heads: heads, Scale: 0.125, Out: a},
						compute.Linear{X: a, W: l.o, Scale: 1, Residual: x, Out: x},
						rms(h),
						compute.Linear{X: h, W: l.gate, Up: l.up, Act: compute.ActSwiGLU, Scale: 1, Out: g},
						compute.Linear{X: g, W: l.down, Scale: 1, Residual: x, Out: x})
				}
				p.Add(rms(h), compute.Linear{X: h, W: head, Scale: 1, Out: logits}, compute.Argmax{X: logits, Out: id})
				measure(b, be, &p, bytes, rows)
			})
		}
	}
}
