package checkpoint

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestConfig(t *testing.T) {
	c := must(ParseConfig("dir/config.json", []byte(`{
		"int": 7, "whole": 4096.0, "float": 0.5, "big": 1e5, "yes": true, "text": "a\"\u00e9\ud83d\ude00\ud83dx\n", "null": null,
		"inf": Infinity, "range": [0.0, Infinity], "minus": -Infinity, "nan": NaN, "tagged": {"__float__": "Infinity"}, "tags": [1, {"__float__": "-Infinity"}],
		"eos": 2, "list": [1, 2.0], "names": ["a", "b"], "name": "a", "empty": [], "twice": 1, "twice": 2,
		"sub": {"inner": {"x": 1}, "y": "z"}, "huge": 1e999, "max": 9223372036854775807, "over": 9223372036854775808 }`)))(t)
	for got, want := range map[any]any{
		c.Int("int"): 7, c.Int("whole"): 4096, c.Float("float"): 0.5, c.Float("big"): 1e5, c.Int("big"): 100000, c.Bool("yes"): true,
		c.String("text"): "a\"é😀\uFFFDx\n", c.IntOr("null", 5): 5, c.IntOr("absent", 6): 6, c.Float("inf"): math.Inf(1), c.Float("minus"): math.Inf(-1),
		c.Float("tagged"): math.Inf(1), c.StringOr("absent", "d"): "d", c.BoolOr("null", true): true, c.FloatOr("absent", 2.5): 2.5,
		c.Sub("sub", "inner").Int("x"): 1, c.Sub("sub").String("y"): "z", c.Sub("absent", "deeper").IntOr("x", 3): 3, c.Int("twice"): 2, c.Float("huge"): math.Inf(1), c.Int("max"): math.MaxInt64,
	} {
		if got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if !math.IsNaN(c.Float("nan")) || !slices.Equal(c.Floats("range"), []float64{0, math.Inf(1)}) || !slices.Equal(c.Floats("tags"), []float64{1, math.Inf(-1)}) ||
		!slices.Equal(c.Ints("eos"), []int{2}) || !slices.Equal(c.Ints("list"), []int{1, 2}) || !slices.Equal(c.Strings("names"), []string{"a", "b"}) ||
		!slices.Equal(c.Strings("name"), []string{"a"}) || c.Ints("absent") != nil || c.Ints("empty") == nil || c.Has("null") || !c.Has("int") ||
		!c.Sub("absent").Empty() || c.Sub("sub").Empty() || c.Value("yes") != true {
		t.Error("a list or a presence check is wrong")
	}
	if err := c.Err(); err != nil {
		t.Error(err)
	}
	if keys := c.Keys(); len(keys) != 23 || !slices.IsSorted(keys) {
		t.Errorf("%d keys %v", len(keys), keys)
	}
}

func TestConfigErrors(t *testing.T) {
	const text = `{"text": "x", "half": 1.5, "list": [1, "a"], "object": {"x": {"y": "z"}}, "over": 9223372036854775808, "nan": NaN}`
	for i, tc := range []struct {
		read func(c Config)
		want string
	}{
		{func(c Config) { c.Int("absent") }, `"absent" is missing`},
		{func(c Config) { c.Int("text") }, `"text" must be a whole number, found the string "x"`},
		{func(c Config) { c.Int("half") }, `"half" must be a whole number, found 1.5`},
		{func(c Config) { c.Int("over") }, `"over" must be a whole number`},
		{func(c Config) { c.Int("nan") }, `"nan" must be a whole number`},
		{func(c Config) { c.Float("text") }, `"text" must be a number`},
		{func(c Config) { c.Bool("text") }, `"text" must be true or false`},
		{func(c Config) { c.String("list") }, `"list" must be a string, found a list`},
		{func(c Config) { c.Ints("list") }, `"list" must be a list of whole numbers, found the string "a"`},
		{func(c Config) { c.Floats("object") }, `"object" must be a list of numbers, found an object`},
		{func(c Config) { c.Strings("half") }, `"half" must be a list of strings`},
		{func(c Config) { c.Sub("text") }, `"text" must be an object`},
		{func(c Config) { c.Sub("object", "x").Int("y") }, `config.json: object: x: "y" must be a whole number`},
		{func(c Config) { c.Int("text"); c.Float("list") }, `"text" must be a whole number`}, // the first one stays
	} {
		c := must(ParseConfig("dir/config.json", []byte(text)))(t)
		tc.read(c)
		if err := c.Err(); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "dir/config.json") {
			t.Errorf("%d: %v, want %q", i, err, tc.want)
		}
	}
	var zero Config
	if zero.Int("x"); zero.Err() != nil || !zero.Empty() {
		t.Error("the zero Config is not empty")
	}
}

func TestConfigSyntax(t *testing.T) {
	for _, text := range []string{``, ` `, `{`, `{}x`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{"a":+1}`, `{"a":.5}`, `{"a":1.}`, `{"a":0x10}`, `{"a":1_0}`, `{"a":tru}`, `{"a":'b'}`,
		`{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u12g4"}`, `{"a":"b`, `{"a":"\`, `[1]`, `"x"`, `{"a":--1}`, `{"a":1e}`, `{"a":[1 2]}`, `{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`} {
		if c, err := ParseConfig("dir/config.json", []byte(text)); err == nil || !strings.Contains(err.Error(), "dir/config.json") {
			t.Errorf("%.40s: read as %v, %v", text, c.obj.values, err)
		}
	}
	c := must(ParseConfig("x", []byte(`{"a":{"__float__":"1.5"},"b":{"__float__":"x"},"c":{"__float__":1},"d":"\ud83d\u0041"}`)))(t)
	if got := fmt.Sprint(c.obj.values); got != "map[a:1.5 b:map[__float__:x] c:map[__float__:1] d:\uFFFDA]" {
		t.Errorf("read as %s", got)
	}
}
