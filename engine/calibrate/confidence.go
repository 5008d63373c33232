package calibrate

// ConfidenceRule decides how much of a drafted block is worth verifying, from
// the drafter's own confidence in each position.
type ConfidenceRule int

const (
	// Survival keeps the longest prefix whose product of confidences reaches
	// the threshold, and always at least one draft.
	Survival ConfidenceRule = iota
	// PerPosition cuts before the first confidence below the threshold, which
	// may keep nothing. It is the rule of the DSpark paper.
	PerPosition
)

// Keep returns how many of the drafts to verify. A threshold of 0 or less
// keeps all.
func (r ConfidenceRule) Keep(confidence []float32, threshold float64) int {
	if threshold <= 0 {
		return len(confidence)
	}
	n, survival := 0, 1.0
	for n < len(confidence) {
		c := float64(confidence[n])
		if survival *= c; r == PerPosition {
			survival = c
		}
		if !(survival >= threshold) {
			break
		}
		n++
	}
	if r == Survival && n == 0 && len(confidence) > 0 {
		return 1
	}
	return n
}
