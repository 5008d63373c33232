package arch

import (
	"fmt"
	"slices"
	"testing"

	"sparkbar/engine/cache"
	"sparkbar/engine/compute"
	"sparkbar/engine/layout"
)

// TestRopeEntries: rope_scaling that was added to a config with rope_parameters is
// what counts, and without it rope_parameters does.
func TestRopeEntries(t *testing.T) {
	const config = `{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 64, "num_attention_heads": 4,
		"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 160, "rms_norm_eps": 1e-05, "max_position_embeddings": 512, %s}`
	const yarn = `"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32`
	last := func(rope string) []float32 {
		dir := readTensors(t, "../testdata/models/llama/smollm2/model.safetensors").write(t, fmt.Sprintf(config, rope))
		rows := newRig(t, compute.NewReference(), dir, cache.Options{Type: layout.F32}).prompt(randomIDs(40, 160))
		return rows[len(rows)-1]
	}
	plain := last(`"rope_theta": 500.0`)
	want := last(`"rope_theta": 500.0, "rope_scaling": {` + yarn + `}`)
	if slices.Equal(plain, want) {
		t.Fatal("yarn changes nothing")
	}
	same(t, "rope_parameters", last(`"rope_parameters": {"rope_theta": 500.0, `+yarn+`}`), want)
	same(t, "both", last(`"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "rope_scaling": {`+yarn+`}`), want)
	same(t, "null", last(`"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}, "rope_scaling": null`), plain)
}

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
