package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"

	"sparkbar/engine/wholefile"
)

// maxConfigBytes bounds a config file; published ones stay below one megabyte. Decoded, a text takes up to fifty times
// its size.
const maxConfigBytes = 4 << 20

// Config is a decoded JSON object, usually config.json, with typed reading.
//
// A key whose value is null counts as absent. Unknown keys are ignored. Reading a required key that is absent, or any
// key with a value of the wrong type, returns the zero value (or the default) and records an error that names file and
// key; check Err once after reading everything. A Config and the values made from it by Sub share that record, so one
// value must not be read by two goroutines; Checkpoint.Config gives each caller its own.
type Config struct {
	obj object
	err *error
}

func newConfig(o object) Config { return Config{o, new(error)} }

// ParseConfig decodes a JSON object. It accepts what model files contain beyond the standard: Infinity, -Infinity and
// NaN, bare or as {"__float__": "Infinity"}. Name is what errors call it, such as the file's path.
func ParseConfig(name string, text []byte) (Config, error) {
	o, err := parseObject(name, text)
	return newConfig(o), err
}

func parseObject(name string, text []byte) (object, error) {
	if len(text) > maxConfigBytes {
		return object{}, fmt.Errorf("%s has %d bytes, more than the %d a config may have; the file is damaged, download it again", name, len(text), maxConfigBytes)
	}
	s := scanner{text: text}
	if s.peek() != '{' {
		return object{}, fmt.Errorf("%s is not a JSON object; the file is damaged, download it again", name)
	}
	v, err := s.value()
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return object{}, fmt.Errorf("%s is not valid JSON: %w; the file is damaged, download it again", name, err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return object{}, fmt.Errorf("%s is not a JSON object; the file is damaged, download it again", name)
	}
	return object{name, m}, nil
}

// readObject decodes a JSON file; found is false when there is none.
func readObject(path string) (o object, text []byte, found bool, err error) {
	text, err = wholefile.Read(path, maxConfigBytes)
	if errors.Is(err, os.ErrNotExist) {
		return object{}, nil, false, nil
	}
	if err != nil {
		return object{}, nil, false, err
	}
	o, err = parseObject(path, text)
	return o, text, true, err
}

// Err is the first error recorded while reading.
func (c Config) Err() error {
	if c.err == nil {
		return nil
	}
	return *c.err
}

func (c Config) fail(key, format string, args ...any) {
	if c.err != nil && *c.err == nil {
		*c.err = fmt.Errorf("%s: %q %s", c.obj.name, key, fmt.Sprintf(format, args...))
	}
}

// Has reports whether key is present and not null.
func (c Config) Has(key string) bool { return c.obj.values[key] != nil }

// Empty reports whether there are no keys at all: an absent file or an absent Sub.
func (c Config) Empty() bool { return len(c.obj.values) == 0 }

// Keys lists the keys, sorted, those with null included.
func (c Config) Keys() []string { return slices.Sorted(maps.Keys(c.obj.values)) }

// Value is the decoded value: nil, bool, int64, float64, string, []any or map[string]any. Do not change it.
func (c Config) Value(key string) any { return c.obj.values[key] }

// Sub is the object below a path of keys. It is empty when one is absent or null, and an error when one is no object.
func (c Config) Sub(path ...string) Config {
	for _, key := range path {
		v := c.obj.values[key]
		m, ok := v.(map[string]any)
		if v != nil && !ok {
			c.fail(key, "must be an object, found %s", kind(v))
		}
		c.obj = object{c.obj.name + ": " + key, m}
	}
	return c
}

// Int is a required whole number; 4096.0 counts as one.
func (c Config) Int(key string) int { return required(c, key, Config.IntOr) }

// IntOr is a whole number, or def when key is absent.
func (c Config) IntOr(key string, def int) int {
	v := c.obj.values[key]
	if v == nil {
		return def
	}
	n, ok := whole(v)
	if !ok {
		c.fail(key, "must be a whole number, found %s", kind(v))
		return def
	}
	return n
}

// Float is a required number.
func (c Config) Float(key string) float64 { return required(c, key, Config.FloatOr) }

// FloatOr is a number, or def when key is absent.
func (c Config) FloatOr(key string, def float64) float64 {
	v := c.obj.values[key]
	if v == nil {
		return def
	}
	f, ok := number(v)
	if !ok {
		c.fail(key, "must be a number, found %s", kind(v))
		return def
	}
	return f
}

// Bool is a required true or false.
func (c Config) Bool(key string) bool { return required(c, key, Config.BoolOr) }

// BoolOr is true or false, or def when key is absent.
func (c Config) BoolOr(key string, def bool) bool {
	v := c.obj.values[key]
	if v == nil {
		return def
	}
	b, ok := v.(bool)
	if !ok {
		c.fail(key, "must be true or false, found %s", kind(v))
		return def
	}
	return b
}

// String is a required string.
func (c Config) String(key string) string { return required(c, key, Config.StringOr) }

// StringOr is a string, or def when key is absent.
func (c Config) StringOr(key, def string) string {
	v := c.obj.values[key]
	if v == nil {
		return def
	}
	s, ok := v.(string)
	if !ok {
		c.fail(key, "must be a string, found %s", kind(v))
		return def
	}
	return s
}

// Ints is a list of whole numbers, nil when key is absent. A single number counts as a list of one, as eos_token_id
// is written both ways.
func (c Config) Ints(key string) []int { return listOf(c, key, "whole numbers", whole) }

// Floats is a list of numbers, nil when key is absent; a single number counts as a list of one.
func (c Config) Floats(key string) []float64 { return listOf(c, key, "numbers", number) }

// Strings is a list of strings, nil when key is absent; a single string counts as a list of one.
func (c Config) Strings(key string) []string {
	return listOf(c, key, "strings", func(v any) (string, bool) { s, ok := v.(string); return s, ok })
}

func required[T any](c Config, key string, read func(Config, string, T) T) T {
	var zero T
	if !c.Has(key) {
		c.fail(key, "is missing")
	}
	return read(c, key, zero)
}

func listOf[T any](c Config, key, what string, read func(any) (T, bool)) []T {
	v := c.obj.values[key]
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	out := make([]T, len(list))
	for i, e := range list {
		if out[i], ok = read(e); !ok {
			c.fail(key, "must be a list of %s, found %s", what, kind(e))
			return nil
		}
	}
	return out
}

func whole(v any) (int, bool) {
	switch v := v.(type) {
	case int64:
		return int(v), int64(int(v)) == v
	case float64:
		if v == math.Trunc(v) && math.Abs(v) <= 1<<53 {
			return int(v), int64(int(v)) == int64(v)
		}
	}
	return 0, false
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// kind names a decoded value in an error.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	case string:
		return fmt.Sprintf("the string %q", clip(v))
	}
	return fmt.Sprint(v)
}
