package arch

import "sparkbar/engine/checkpoint"

// mistral3 wraps a vision tower around a language model of type ministral3 or,
// for the others, llama.
func mistral3(cfg checkpoint.Config, l *Loader) *Model {
	l.TextTower("vision_tower", "multi_modal_projector", "vision_encoder", "patch_merger", "image_newline")
	text := textConfig(cfg)
	tied := text.BoolOr("tie_word_embeddings", cfg.BoolOr("tie_word_embeddings", false))
	switch kind := text.StringOr("model_type", "mistral"); kind {
	case "ministral3":
		return ministral3(text, l, tied)
	case "mistral4":
		l.Fail("%w: text_config.model_type %q is not supported", errConfig, kind)
	}
	return llamaTied(text, l, tied)
}

// ministral3 is llama whose queries grow with the position (Ministral 3, 2025).
func ministral3(cfg checkpoint.Config, l *Loader, tied bool) *Model {
	c := readLlama(cfg, l)
	params := cfg.Sub("rope_parameters")
	beta, orig := params.Float("llama_4_scaling_beta"), params.Int("original_max_position_embeddings")
	l.Positive("rope_parameters.original_max_position_embeddings", orig)
	c.qBeta, c.qOrig, c.tied = float32(beta), orig, tied
	l.Drop(activationScales)
	return c.build(cfg, l)
}
