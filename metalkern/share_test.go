package metalkern

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// TestShares replays the recorded shares of mlx-dspark's kernel plans: how many whole
// tiles a fraction is, and which fraction times speak for. That a recorded share has
// rows where this one has outputs does not matter to either; chunks below its 512
// rows are left whole there and shared here, because a row's bits must not depend on
// its chunk.
func TestShares(t *testing.T) {
	text, err := os.ReadFile("testdata/cpu_split.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Fn    string             `json:"fn"`
		Rows  int                `json:"rows"`
		Frac  float64            `json:"frac"`
		Share int                `json:"cpu_rows"`
		Times map[string]float64 `json:"times"`
	}
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) != 5 {
		t.Fatal(len(cases), err)
	}
	for _, c := range cases {
		switch c.Fn {
		case "cpu_split_rows":
			if n := shareOf(c.Rows, c.Frac, 64); n != c.Share {
				t.Errorf("%v of %d is %d, wants %d", c.Frac, c.Rows, n, c.Share)
			}
		case "pick_fraction":
			keys := slices.Sorted(maps.Keys(c.Times))
			var times []time.Duration
			for _, k := range keys {
				times = append(times, time.Duration(c.Times[k]*float64(time.Second)))
			}
			if got, err := strconv.ParseFloat(keys[pickFraction(times)], 64); err != nil || got != c.Frac {
				t.Errorf("with %v it is %v, wants %v; %v", c.Times, got, c.Frac, err)
			}
		default:
			t.Errorf("%s is not replayed", c.Fn)
		}
	}
	s := &splitter{o: Split{Tile: 64}}
	for _, c := range []struct {
		rows     int
		fraction float64
		gpu      int
	}{{4096, 0.2, 3264}, {128, 0.4, 64}, {128, 0.2, 128}, {200, 0.3, 128}, {11008, 0.1, 9920}, {128, 0.99, 64}, {4096, 0.99, 64}, {4096, 0, 4096}} {
		if n := s.cutAt(c.rows, c.fraction); n != c.gpu {
			t.Errorf("%v of %d outputs: the GPU has %d, wants %d", c.fraction, c.rows, n, c.gpu)
		}
	}
}
