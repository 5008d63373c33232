package arch

import (
	"fmt"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// TestDynamicRope compares with testdata/gen_dynamic_rope.py, and checks that
// rows past the trained length have the same bits alone and among others.
func TestDynamicRope(t *testing.T) {
	data := openTensors(t, "testdata/dynamic_rope.safetensors")
	ids, want := data.ids(t), data.rows(t, "logits")
	const config = `{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 160, "rms_norm_eps": 1e-05, "rope_theta": 100000.0,
		"max_position_embeddings": 16, "rope_scaling": {"type": "dynamic", "factor": 2.0}}`
	dir := readTensors(t, "../testdata/models/llama/smollm2/model.safetensors").write(t, config)
	for _, b := range backends(t) {
		r := newRig(t, b, dir, cache.Options{Type: layout.F32})
		q := r.seq()
		for i, row := range r.step(q, ids, len(ids)) {
			near(t, fmt.Sprintf("row %d", i), row, want[i], 3.5e-4)
		}
		q.Close()
		r.rollback(randomIDs(compute.PageSize+12, r.m.Vocab))
		r.ragged()
	}
}
