package models

import (
	"fmt"
	"strings"
)

// Choice is what to load.
type Choice struct {
	Mode    string // baseline, lookup, dspark, dflash or draft
	Target  string
	Drafter string // "" = none
}

// Modes are the accepted values of a mode; "" is auto.
var Modes = []string{"auto", "baseline", "lookup", "dspark", "dflash", "draft"}

// Resolve decides what a request for a model means. An explicit drafter with
// mode auto is taken for a DSpark head: what it really is shows when it is
// opened, and then that counts. Errors name what could be asked for instead.
func Resolve(model, mode, drafter string) (Choice, error) {
	c := Choice{Mode: mode, Target: expand(model), Drafter: drafter}
	pair, _ := Find(c.Target)
	known := map[string]string{"dspark": pair.DSpark, "dflash": pair.DFlash}
	switch mode {
	case "baseline", "lookup":
		c.Drafter = ""
	case "draft":
		if drafter == "" {
			return Choice{}, fmt.Errorf("mode draft needs a draft model: name a small model of the family of %s, or choose mode auto", c.Target)
		}
	case "dspark", "dflash":
		if drafter == "" {
			c.Drafter = known[mode]
		}
		if c.Drafter == "" {
			return Choice{}, fmt.Errorf("no %s drafter is known for %s; name one, or choose %s", mode, c.Target, alternatives(known))
		}
	case "auto", "":
		switch {
		case drafter != "":
			c.Mode = "dspark"
		case known[pair.Mode] != "":
			c.Mode = pair.Mode
		case pair.DSpark != "":
			c.Mode = "dspark"
		case pair.DFlash != "":
			c.Mode = "dflash"
		default:
			c.Mode = "lookup"
		}
		if drafter == "" {
			c.Drafter = known[c.Mode]
		}
	default:
		return Choice{}, fmt.Errorf("mode %q is unknown; the choices are %s", mode, strings.Join(Modes, ", "))
	}
	return c, nil
}

func alternatives(known map[string]string) string {
	var list []string
	for _, mode := range []string{"dspark", "dflash"} {
		if known[mode] != "" {
			list = append(list, fmt.Sprintf("mode %s (%s)", mode, known[mode]))
		}
	}
	return strings.Join(append(list, "mode lookup or baseline, which need none"), ", ")
}

// expand turns the reference's short names, and no name at all, into a model.
func expand(model string) string {
	switch model {
	case "qwen3":
		return "mlx-community/Qwen3-4B-8bit"
	case "", "gemma4":
		return "mlx-community/gemma-4-12B-it-8bit"
	}
	return model
}
