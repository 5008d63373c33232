package sample

import "math"

// TokenLogprob is a token with its natural log-probability.
type TokenLogprob struct {
	ID      int32
	Logprob float32
}

// Logprobs returns the log-softmax value of the chosen token and appends the
// k most likely tokens to top, most likely first, equals by lowest id. Pass
// the row before or after penalties according to the dialect's contract;
// temperature and truncation never enter. Tokens with a logit of −Inf are not
// listed. A chosen id outside the row has log-probability −Inf.
func Logprobs(row []float32, chosen int32, k int, top []TokenLogprob) (float32, []TokenLogprob) {
	lse := logSumExp(row)
	first := len(top)
	if k > 0 {
		for i, x := range row {
			n := len(top) - first
			if n == k && !(x > top[len(top)-1].Logprob) {
				continue
			}
			if !(x > float32(math.Inf(-1))) {
				continue
			}
			if n < k {
				top = append(top, TokenLogprob{})
			}
			j := len(top) - 1
			for j > first && x > top[j-1].Logprob {
				top[j] = top[j-1]
				j--
			}
			top[j] = TokenLogprob{ID: int32(i), Logprob: x}
		}
		for i := first; i < len(top); i++ {
			top[i].Logprob = float32(float64(top[i].Logprob) - lse)
		}
	}
	if uint(chosen) >= uint(len(row)) {
		return float32(math.Inf(-1)), top
	}
	return float32(float64(row[chosen]) - lse), top
}

// logSumExp is log Σ exp(row), computed around the maximum.
func logSumExp(row []float32) float64 {
	m := float32(math.Inf(-1))
	for _, x := range row {
		m = max(m, x)
	}
	if math.IsInf(float64(m), -1) {
		return float64(m)
	}
	sum := 0.0
	var part [512]float32
	for len(row) > 0 {
		n := min(len(row), len(part))
		sum += expInto(part[:n], row[:n], 1, m)
		row = row[n:]
	}
	return float64(m) + math.Log(sum)
}
