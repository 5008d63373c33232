package telemetry

import "fmt"

// Arm is one run of a race: greedy decoding of the same prompt.
type Arm struct {
	Index  int
	Label  string
	Tokens []int32
}

// RaceVerdict compares the arms of a race with the first one. With fewer than
// two arms only Comparable (false), Reason and Detail are meaningful.
type RaceVerdict struct {
	Comparable bool    `json:"comparable"`
	Reason     string  `json:"reason,omitempty"`
	Identical  *bool   `json:"identical,omitempty"` // no arm has another token where it overlaps the reference
	Overlap    *bool   `json:"identical_where_overlapping,omitempty"`
	Reference  *string `json:"reference,omitempty"` // label of the first arm
	// Divergences holds the first difference of each arm, if any. A pointer,
	// so that an empty list is written and an incomparable race has none.
	Divergences *[]Divergence `json:"divergences,omitempty"`
	Detail      *string       `json:"detail"`
}

// Divergence is the first position at which an arm differs from the
// reference. Tokens are nil where a sequence had ended.
type Divergence struct {
	Arm            int    `json:"arm"`
	Label          string `json:"label"`
	FirstDiff      int    `json:"first_diff"`
	LengthOnly     bool   `json:"length_only"`
	ReferenceToken *int32 `json:"reference_token"`
	ArmToken       *int32 `json:"arm_token"`
	*Margin
}

// Margin says how close the target's decision at a real divergence was, on a
// rebuilt cache: context for a person, not a pass mark.
type Margin struct {
	Margin      float64 `json:"margin"`      // between the two arms' tokens
	Top2        float64 `json:"top2_margin"` // between the two best tokens
	Logits      Logits  `json:"logits"`
	Approximate bool    `json:"approximate"` // always true
}

// Logits are the logits of the two tokens at a divergence.
type Logits struct {
	Reference float64 `json:"reference"`
	Arm       float64 `json:"arm"`
}

// CompareArms finds the first difference of every arm from the first. A mere
// difference in length is listed, but is no disagreement. Margins are left
// for the caller to fill in.
func CompareArms(arms []Arm) RaceVerdict {
	if len(arms) < 2 {
		detail := "There is nothing to compare with."
		return RaceVerdict{Reason: "need at least two arms to compare", Detail: &detail}
	}
	ref := arms[0]
	list, identical, agreed := []Divergence{}, true, 0
	for _, a := range arms[1:] {
		n := min(len(ref.Tokens), len(a.Tokens))
		i := 0
		for i < n && ref.Tokens[i] == a.Tokens[i] {
			i++
		}
		if i == n && len(ref.Tokens) == len(a.Tokens) {
			continue
		}
		d := Divergence{Arm: a.Index, Label: a.Label, FirstDiff: i, LengthOnly: i == n}
		if i < len(ref.Tokens) {
			d.ReferenceToken = &ref.Tokens[i]
		}
		if i < len(a.Tokens) {
			d.ArmToken = &a.Tokens[i]
		}
		if !d.LengthOnly {
			if identical || i < agreed {
				agreed = i
			}
			identical = false
		}
		list = append(list, d)
	}
	detail := "Every arm produced the same tokens."
	switch {
	case !identical:
		detail = fmt.Sprintf("The arms agree on the first %d tokens. A later difference is usually a near-tie: candidates whose scores differ by less than rounding.", agreed)
	case len(list) > 0:
		detail = "Every arm produced the same tokens where they overlap; they only differ in how many tokens they emitted before hitting the limit."
	}
	return RaceVerdict{Comparable: true, Identical: &identical, Overlap: &identical, Reference: &ref.Label, Divergences: &list, Detail: &detail}
}
