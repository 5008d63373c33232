package arch

import "sparkbar/engine/checkpoint"

// qwen2 is llama with biases on q, k and v (Qwen2 technical report, 2024).
func qwen2(cfg checkpoint.Config, l *Loader) *Model {
	c := readLlama(cfg, l)
	c.theta = ropeTheta(cfg, 1e6)
	c.context = cfg.IntOr("max_position_embeddings", 32768)
	c.attnBias, c.outBias, c.mlpBias = true, false, false
	c.layerTypes = nil // its windows are not used
	return c.build(cfg, l)
}
