package draft

import (
	"fmt"
	"slices"
	"strings"

	"sparkbar/engine/arch"
	"sparkbar/engine/checkpoint"
)

// Kind is what sort of drafter a checkpoint holds; its text is the mode that
// users know.
type Kind string

// The kinds of drafters that have weights.
const (
	KindDSpark  Kind = "dspark"
	KindDFlash  Kind = "dflash"
	KindClassic Kind = "draft" // a plain model
)

// KindOf tells the kind of a drafter by its config.json. The error says what the
// checkpoint is instead, and what could be used.
func KindOf(cfg checkpoint.Config) (Kind, error) {
	const advice = "use a DSpark or DFlash head made for this target, a small model of its family as draft model, or the mode lookup, which needs none"
	names := cfg.Strings("architectures")
	named := func(part string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, part) })
	}
	inner := cfg.Sub("dflash_config")
	projector := inner.StringOr("projector_type", "")
	known := slices.Contains(arch.Types(), cfg.StringOr("model_type", ""))
	if err := cfg.Err(); err != nil {
		return "", err
	}
	switch {
	case isSpeculator(cfg) || isEmbedded(cfg) || projector == "dspark" || named("DSpark"):
		return KindDSpark, nil
	case projector != "" && projector != "dflash":
		return "", fmt.Errorf("a head with projector_type %q is not supported; %s", projector, advice)
	case named("DFlash") || !inner.Empty() && !cfg.Has("markov_rank"):
		return KindDFlash, nil
	case cfg.Has("block_size") && cfg.Has("target_layer_ids"):
		return KindDSpark, nil
	case named("Eagle") || named("Medusa") || cfg.Has("eagle_config") || cfg.Has("medusa_num_heads"):
		return "", fmt.Errorf("%s heads are not supported; %s", strings.Join(names, ", "), advice)
	case known:
		return KindClassic, nil
	}
	return "", fmt.Errorf("config.json (model_type %q, architectures %q) is neither a drafter head nor a model that Sparkbar can run; %s", cfg.StringOr("model_type", ""), names, advice)
}

// Open loads the drafter in a checkpoint, of whatever kind it is, for the host's
// model. The checkpoint must stay open until Close.
func Open(ck *checkpoint.Checkpoint, host Host) (Drafter, error) {
	kind, err := KindOf(ck.Config())
	if err != nil {
		return nil, fmt.Errorf("drafter %s: %w", ck.Path(), err)
	}
	switch kind {
	case KindDSpark:
		return opened(OpenDSpark(ck, host))
	case KindDFlash:
		return opened(OpenDFlash(ck, host))
	}
	return opened(OpenClassic(ck, host))
}

// opened keeps a nil pointer from becoming a Drafter.
func opened[D Drafter](d D, err error) (Drafter, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}
