package ngram

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func loadJSON(t *testing.T, name string, into any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func TestIndexGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			MinN      int  `json:"min_n"`
			MaxN      int  `json:"max_n"`
			MaxDraft  int  `json:"max_draft"`
			LongDraft *int `json:"long_draft"`
			Tokens    []int32
			Steps     []struct {
				Upto    int
				Propose []int32
			}
		}
	}
	loadJSON(t, "lookup_index.json", &f)
	proposals := 0
	for i, c := range f.Cases {
		cfg := Config{MinN: c.MinN, MaxN: c.MaxN, Draft: c.MaxDraft}
		if c.LongDraft != nil {
			cfg.LongDraft = *c.LongDraft
		}
		x, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		done := 0
		for j, s := range c.Steps {
			x.Append(c.Tokens[done:s.Upto]...)
			done = s.Upto
			if got := x.Propose(nil, math.MaxInt, true); !slices.Equal(got, s.Propose) {
				t.Errorf("case %d step %d: proposes %v, want %v", i, j, got, s.Propose)
			}
			proposals++
		}
	}
	t.Logf("%d cases, %d proposals", len(f.Cases), proposals)
}

func TestGateGoldens(t *testing.T) {
	var f struct {
		Cases []struct {
			ProbeEvery int `json:"probe_every"`
			Seq        []struct {
				AllowedBefore           bool `json:"allowed_before"`
				Drafted, Accepted, Base int
				Fails                   int
				RoundsSince             int `json:"rounds_since"`
			}
		}
	}
	loadJSON(t, "lookup_gate.json", &f)
	for i, c := range f.Cases {
		g := Gate{ProbeEvery: c.ProbeEvery}
		for j, s := range c.Seq {
			if g.Allowed() != s.AllowedBefore {
				t.Errorf("case %d round %d: allowed %v, want %v", i, j, g.Allowed(), s.AllowedBefore)
			}
			g.Update(s.Drafted, s.Accepted, s.Base)
			if g.fails != s.Fails || g.since != s.RoundsSince {
				t.Errorf("case %d round %d: fails %d, since %d; want %d, %d", i, j, g.fails, g.since, s.Fails, s.RoundsSince)
			}
		}
	}
	t.Logf("%d cases", len(f.Cases))
}

// scan is the definition of a proposal, by searching the sequence backwards. next is
// where the copy before it would go on, and becomes where this one begins.
func scan(tokens []int32, cfg Config, long bool, next *int) []int32 {
	n := len(tokens)
	matched := func(end, most int) (m int) {
		for m < most && m < end && tokens[end-1-m] == tokens[n-1-m] {
			m++
		}
		return m
	}
	end := 0
	for k := cfg.MaxN; k >= cfg.MinN && end == 0; k-- {
		for e := n - 1; e >= k && k <= n; e-- {
			if matched(e, k) == k {
				end = e
				break
			}
		}
	}
	if m := matched(*next, mostMatch); cfg.GoOn && m >= cfg.MinN && m >= matched(end, mostMatch) {
		end = *next
	}
	if *next = end; end == 0 {
		return nil
	}
	length := cfg.Draft
	if m := matched(end, cfg.LongDraft); long && m >= longMatch && cfg.LongDraft > 0 {
		length = min(cfg.LongDraft, 2*m)
	}
	if !cfg.GoOn {
		length = min(length, n-end)
	}
	all := slices.Clone(tokens)
	for i := range length {
		all = append(all, all[end+i])
	}
	return all[n:]
}

func TestIndexAgainstScan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	wentOn, ranOn := 0, 0
	for range 60 {
		cfg := []Config{Standalone, Hybrid, {MinN: 1, MaxN: 3, Draft: 2}}[r.IntN(3)]
		cfg.GoOn = r.IntN(4) > 0
		x, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		var tokens []int32
		next := 0
		add := func(ids ...int32) {
			tokens = append(tokens, ids...)
			x.Append(ids...)
			if next > 0 {
				next += len(ids)
			}
		}
		vocab := int32(1 + r.IntN(6))
		for len(tokens) < 300 {
			if k := 20; len(tokens) > 60 && r.IntN(10) == 0 { // a long copy
				at := r.IntN(len(tokens) - k)
				add(tokens[at : at+k]...)
			}
			add(r.Int32N(vocab) - 1) // negative ids are ids too
			long, limit := r.IntN(2) == 0, r.IntN(40)
			before, fresh := next, 0
			want := scan(tokens, cfg, long, &next)
			scan(tokens, cfg, long, &fresh)
			if cfg.GoOn && before > 0 && next == before && next != fresh {
				wentOn++
			}
			if next > 0 && len(want) > len(tokens)-next {
				ranOn++
			}
			want = want[:min(len(want), limit)]
			if got := x.Propose(nil, limit, long); !slices.Equal(got, want) {
				t.Fatalf("%+v after %v: proposes %v, want %v", cfg, tokens, got, want)
			}
		}
	}
	if wentOn < 100 || ranOn < 100 {
		t.Errorf("%d copies went on elsewhere than at the latest occurrence, %d past the end", wentOn, ranOn)
	}
}

// The parts of a file begin alike: what was copied up to there goes on.
func TestCopyGoesOn(t *testing.T) {
	x, err := New(Config{MinN: 3, MaxN: 4, Draft: 3, GoOn: true})
	if err != nil {
		t.Fatal(err)
	}
	file := []int32{1, 10, 11, 12, 13, 2, 10, 11, 12, 14, 3, 10, 11, 12, 15}
	x.Append(file...)
	x.Append(90, 91, 92) // what is to be done with it
	x.Append(1, 10, 11, 12)
	if got := x.Propose(nil, 9, true); !slices.Equal(got, []int32{13, 2, 10}) {
		t.Fatalf("proposes %v", got)
	}
	x.Append(13, 2, 10, 11, 12)
	if got := x.Propose(nil, 9, true); !slices.Equal(got, []int32{14, 3, 10}) {
		t.Errorf("after the second head proposes %v", got)
	}
	x.Append(24, 3, 10, 11, 12) // 14 was changed
	if got := x.Propose(nil, 9, true); !slices.Equal(got, []int32{15, 90, 91}) {
		t.Errorf("after a change proposes %v", got)
	}
}

// A text that repeats itself goes on doing so, for as long as a draft may be.
func TestCopyOfItself(t *testing.T) {
	cfg := Standalone
	cfg.GoOn = true
	x, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	x.Append(5)
	for range 5 {
		x.Append(1, 2, 3)
	}
	want := []int32{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}
	if got := x.Propose(nil, math.MaxInt, true); !slices.Equal(got, want) {
		t.Errorf("proposes %v", got)
	}
	if got := x.Propose([]int32{8}, 5, true); !slices.Equal(got, []int32{8, 1, 2, 3, 1, 2}) {
		t.Errorf("proposes %v", got)
	}
}

func TestOldTokensAreForgotten(t *testing.T) {
	x, err := New(Config{MinN: 2, MaxN: 3, Draft: 4, GoOn: true})
	if err != nil {
		t.Fatal(err)
	}
	x.limit = 64
	var all []int32
	r := rand.New(rand.NewPCG(2, 2))
	for range 2000 {
		tok := r.Int32N(9)
		all = append(all, tok)
		x.Append(tok)
		if len(x.tokens) > 64 || len(x.tables[0].slots) > 256 {
			t.Fatalf("%d tokens, %d slots kept", len(x.tokens), len(x.tables[0].slots))
		}
		kept := all[len(all)-len(x.tokens):]
		next := x.next
		if got, want := x.Propose(nil, 4, false), scan(kept, x.cfg, false, &next); !slices.Equal(got, want) {
			t.Fatalf("proposes %v, want %v", got, want)
		}
	}
	if len(x.tokens) < 32 {
		t.Errorf("only %d tokens kept", len(x.tokens))
	}
}

func TestProposalsAreCopies(t *testing.T) {
	x, err := New(Standalone)
	if err != nil {
		t.Fatal(err)
	}
	x.Append(1, 2, 3, 4, 5, 1, 2, 3)
	draft := x.Propose(make([]int32, 0, 8), 8, true)
	if !slices.Equal(draft, []int32{4, 5, 1, 2, 3}) {
		t.Fatalf("proposes %v", draft)
	}
	// The round rejects all but the first draft; the others must leave no
	// trace, even when the caller writes into its slice.
	for i := range draft[1:] {
		draft[1+i] = 99
	}
	x.Append(draft[0], 7)
	if !slices.Equal(x.tokens, []int32{1, 2, 3, 4, 5, 1, 2, 3, 4, 7}) {
		t.Errorf("index holds %v", x.tokens)
	}
	x.Append(1, 2, 3, 4)
	if got := x.Propose(nil, 2, false); !slices.Equal(got, []int32{7, 1}) {
		t.Errorf("proposes %v, want the tokens after the latest match", got)
	}
	if got := x.Propose(nil, 0, false); got != nil {
		t.Errorf("without budget proposes %v", got)
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	for _, cfg := range []Config{{}, {MinN: 3, MaxN: 2, Draft: 1}, {MinN: 1, MaxN: 17, Draft: 1}, {MinN: 1, MaxN: 2}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

func BenchmarkAppendPropose(b *testing.B) {
	x, err := New(Hybrid)
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 100000 {
		x.Append(r.Int32N(2000))
	}
	draft := make([]int32, 0, 32)
	b.ReportAllocs()
	for b.Loop() {
		x.Append(r.Int32N(2000))
		draft = x.Propose(draft[:0], 32, true)
	}
}
