package arch

import (
	"path/filepath"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/cpu"
	"sparkbar/engine/layout"
	"sparkbar/engine/testneed"
)

// TestSmolLM2Formats: the real model gives the same bits from its GGUF file as
// from the MLX folder that was converted from it, in exact arithmetic.
func TestSmolLM2Formats(t *testing.T) {
	dir := testneed.SmolLM2(t)
	ids := []int32{1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411}
	var rows [2][][]float32
	for i, path := range []string{"model.gguf", "mlx"} {
		b, err := cpu.New(cpu.Options{Exact: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		r := newRig(t, b, filepath.Join(dir, path), cache.Options{Type: layout.F32})
		q := r.seq()
		rows[i] = append(r.step(q, ids, len(ids)), r.step(q, ids[:1], 1)...)
		q.Close()
	}
	for i := range rows[0] {
		same(t, "logits of the GGUF file against the MLX folder", rows[0][i], rows[1][i])
	}
}
