package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/big"
	"reflect"
	"slices"
	"strings"
)

// Values in a template are, by Python type:
//
//	None nil · bool bool · int int64 or, beyond its range, *big.Int
//	float float64 · str string (markup for what "e" and "safe" return)
//	list []any · tuple tuple · dict *Map
//
// and the internal types below. Lists are never changed in place: the sandbox
// forbids it, so sharing them is safe.
type (
	tuple  []any
	markup string

	// undefined is what an unknown name or attribute evaluates to: it prints
	// as nothing, and any other use fails with kind and msg.
	undefined struct {
		kind Kind
		msg  string
	}

	// function is a builtin that a template can call.
	function struct {
		name string
		call func(r *run, a args) any
	}

	rangeValue struct{ start, stop, step, count int64 }

	// group is one pair of groupby: a tuple whose items also have names.
	group struct {
		grouper any
		list    []any
	}

	// generator yields a sequence once, as Python's generators do.
	generator struct {
		name string
		next func() (any, bool)
	}

	namespace struct{ attrs *Map }

	// dictView is what keys(), values() and items() return.
	dictView struct {
		m    *Map
		name string // keys, values, items
	}

	sliceValue struct{ lo, hi, step any }

	joiner struct {
		sep  any
		used bool
	}
	cycler struct {
		items []any
		pos   int
	}
)

// Map is a dict: it keeps the order in which keys were first set. The zero
// value is an empty Map. Rendering only reads the Maps it is given.
type Map struct {
	keys, vals []any
	index      map[any]int // from key (as hashKey makes it) to position; nil while small
}

const smallMap = 8

// NewMap returns an empty Map.
func NewMap() *Map { return &Map{} }

// Len returns the number of entries.
func (m *Map) Len() int { return len(m.keys) }

// Get returns the value of a string key.
func (m *Map) Get(key string) (any, bool) {
	if i := m.findStr(key); i >= 0 {
		return m.vals[i], true
	}
	return nil, false
}

// Set sets the value of a string key; a new key goes to the end. The value
// must be of a type that Render accepts.
func (m *Map) Set(key string, val any) {
	if i := m.findStr(key); i >= 0 {
		m.vals[i] = val
		return
	}
	m.add(key, key, val)
}

// Delete removes a string key.
func (m *Map) Delete(key string) {
	i := m.findStr(key)
	if i < 0 {
		return
	}
	m.keys = slices.Delete(m.keys, i, i+1)
	m.vals = slices.Delete(m.vals, i, i+1)
	m.index = nil
}

// All yields the entries with string keys in order.
func (m *Map) All() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		for i, k := range m.keys {
			if s, ok := k.(string); ok && !yield(s, m.vals[i]) {
				return
			}
		}
	}
}

// Clone returns a copy whose entries can be set without touching m; the
// values are shared.
func (m *Map) Clone() *Map {
	return &Map{keys: slices.Clone(m.keys), vals: slices.Clone(m.vals)}
}

func (m *Map) findStr(key string) int {
	if m.index == nil && len(m.keys) <= smallMap {
		for i, k := range m.keys {
			if s, ok := k.(string); ok && s == key {
				return i
			}
		}
		return -1
	}
	return m.findHashed(key)
}

func (m *Map) findHashed(h any) int {
	if m.index == nil {
		if len(m.keys) <= smallMap {
			for i, k := range m.keys {
				if hk, _ := hashKey(k, 0); hk == h {
					return i
				}
			}
			return -1
		}
		// Built on first use; a Map is filled before it is shared.
		m.buildIndex()
	}
	if i, ok := m.index[h]; ok {
		return i
	}
	return -1
}

func (m *Map) buildIndex() {
	m.index = make(map[any]int, len(m.keys))
	for i, k := range m.keys {
		h, _ := hashKey(k, 0)
		m.index[h] = i
	}
}

// add appends a key that is not in m yet.
func (m *Map) add(key, h, val any) {
	m.keys = append(m.keys, key)
	m.vals = append(m.vals, val)
	if m.index != nil {
		m.index[h] = len(m.keys) - 1
	} else if len(m.keys) > smallMap {
		m.buildIndex()
	}
}

// tupleKey is the hash form of a tuple used as a dict key.
type tupleKey string

// hashKey returns a comparable value that is equal for keys Python holds
// equal, or false for an unhashable key.
func hashKey(k any, depth int) (any, bool) {
	switch k := k.(type) {
	case string:
		return k, true
	case markup:
		return string(k), true
	case nil:
		return nil, true
	case bool:
		if k {
			return int64(1), true
		}
		return int64(0), true
	case int64:
		return k, true
	case *big.Int:
		return tupleKey("int " + k.String()), true
	case float64:
		if i, ok := floatToInt(k); ok {
			return hashKey(i, depth)
		}
		return k, true
	case tuple:
		if depth > 20 {
			return nil, false
		}
		var b strings.Builder
		for _, it := range k {
			h, ok := hashKey(it, depth+1)
			if !ok {
				return nil, false
			}
			fmt.Fprintf(&b, "%T %d ", h, len(fmt.Sprint(h)))
			fmt.Fprint(&b, h)
		}
		return tupleKey(b.String()), true
	case []any, *Map, sliceValue:
		return nil, false
	case undefined:
		return undefined{}, true
	default:
		return k, true // pointers, compared by identity
	}
}

// UnmarshalJSON decodes a JSON object, keeping the order of its keys at every
// level. Integers become ints of any size, other numbers floats.
func (m *Map) UnmarshalJSON(data []byte) error {
	v, err := DecodeJSON(data)
	if err != nil {
		return err
	}
	d, ok := v.(*Map)
	if !ok {
		return fmt.Errorf("expected a JSON object, found %s", typeName(v))
	}
	*m = *d
	return nil
}

// MarshalJSON encodes m in its own order, without escaping HTML or non-ASCII
// characters.
func (m *Map) MarshalJSON() ([]byte, error) {
	b, err := EncodeJSON(m)
	return []byte(b), err
}

// maxJSONDepth bounds the nesting of decoded JSON.
const maxJSONDepth = 500

// DecodeJSON decodes one JSON text into template values: nil, bool, int64,
// *big.Int, float64, string, []any and *Map.
func DecodeJSON(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := decodeValue(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("extra data after the JSON value at byte %d", d.InputOffset())
	}
	return v, nil
}

func decodeValue(d *json.Decoder, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, fmt.Errorf("JSON nested deeper than %d levels", maxJSONDepth)
	}
	t, err := d.Token()
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return decodeNumber(string(t))
	case json.Delim:
		if t == '[' {
			list := []any{}
			for d.More() {
				v, err := decodeValue(d, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, unexpectedEOF(err)
		}
		m := NewMap()
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, unexpectedEOF(err)
			}
			v, err := decodeValue(d, depth+1)
			if err != nil {
				return nil, err
			}
			m.Set(k.(string), v)
		}
		_, err := d.Token()
		return m, unexpectedEOF(err)
	}
	return t, nil
}

func unexpectedEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func decodeNumber(s string) (any, error) {
	if strings.ContainsAny(s, ".eE") {
		return parseFloat(s), nil
	}
	if len(s) > maxIntDigits {
		return nil, fmt.Errorf("JSON integer of %d digits is too long", len(s))
	}
	b, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("bad JSON number %q", s)
	}
	return normInt(b), nil
}

var errDeep = errors.New("value nested too deeply, or in itself")

// convert turns a Go value into a template value. Maps with unordered keys
// are sorted by key.
func convert(v any, depth int) (any, error) {
	if depth > maxJSONDepth {
		return nil, errDeep
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, string:
		return v, nil
	case int:
		return int64(v), nil
	case *big.Int:
		return normInt(v), nil
	case json.Number:
		return decodeNumber(string(v))
	case []any:
		for i, it := range v {
			switch it.(type) {
			case nil, bool, int64, float64, string:
				continue
			}
			// Rebuild the list only if something in it needs converting.
			out := slices.Clone(v)
			for ; i < len(v); i++ {
				c, err := convert(v[i], depth+1)
				if err != nil {
					return nil, err
				}
				out[i] = c
			}
			return out, nil
		}
		return v, nil
	case *Map:
		if v == nil {
			return nil, nil
		}
		out := &Map{keys: v.keys, vals: make([]any, len(v.vals))}
		for i, it := range v.vals {
			c, err := convert(it, depth+1)
			if err != nil {
				return nil, err
			}
			out.vals[i] = c
		}
		if len(out.keys) > smallMap {
			out.buildIndex()
		}
		return out, nil
	}
	rv := reflect.ValueOf(v)
	switch rv.Kind() {
	case reflect.Int8, reflect.Int16, reflect.Int32:
		return rv.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return normInt(new(big.Int).SetUint64(rv.Uint())), nil
	case reflect.Float32:
		return rv.Float(), nil
	case reflect.String:
		return rv.String(), nil
	case reflect.Bool:
		return rv.Bool(), nil
	case reflect.Slice, reflect.Array:
		out := make([]any, rv.Len())
		for i := range out {
			c, err := convert(rv.Index(i).Interface(), depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = c
		}
		return out, nil
	case reflect.Map:
		if rv.Type().Key().Kind() != reflect.String {
			break
		}
		keys := rv.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		out := NewMap()
		for _, k := range keys {
			c, err := convert(rv.MapIndex(k).Interface(), depth+1)
			if err != nil {
				return nil, err
			}
			out.Set(k.String(), c)
		}
		return out, nil
	}
	return nil, fmt.Errorf("a template cannot use a value of Go type %T", v)
}

// typeName is Python's name for the type of v.
func typeName(v any) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case markup:
		return "Markup"
	case []any:
		return "list"
	case tuple:
		return "tuple"
	case *group:
		return "_GroupTuple"
	case *Map:
		return "dict"
	case undefined:
		return "Undefined"
	case rangeValue:
		return "range"
	case *generator:
		return v.name
	case *namespace:
		return "Namespace"
	case dictView:
		return "dict_" + v.name
	case *macro:
		return "Macro"
	case *loopContext:
		return "LoopContext"
	case *joiner:
		return "Joiner"
	case *cycler:
		return "Cycler"
	case sliceValue:
		return "slice"
	}
	return "function"
}
