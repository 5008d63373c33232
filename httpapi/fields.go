package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// fields reads a JSON object of a request key by key. Absent and null are the
// same. The first value that does not fit is remembered in err, naming its
// key; later reads go on, so a caller checks once at the end.
type fields struct {
	raw     map[string]json.RawMessage
	prefix  string // path of this object, with a trailing dot, for messages
	profile *Profile
	err     *apiError
}

// parseObject reads a whole body. An empty body is an empty object.
func parseObject(body []byte, p *Profile) (*fields, *apiError) {
	f := &fields{raw: map[string]json.RawMessage{}, profile: p}
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return f, nil
	}
	if !json.Valid(body) {
		var v json.RawMessage
		return nil, invalid("", "%s: %s", p.BadJSON, jsonFault(json.Unmarshal(body, &v)))
	}
	if body[0] != '{' {
		return nil, invalid("", "%s", p.NotAnObject)
	}
	if err := json.Unmarshal(body, &f.raw); err != nil {
		return nil, invalid("", "%s: %s", p.BadJSON, jsonFault(err))
	}
	return f, nil
}

func jsonFault(err error) string {
	if s, ok := err.(*json.SyntaxError); ok {
		return fmt.Sprintf("%s (at byte %d)", s.Error(), s.Offset)
	}
	return err.Error()
}

// fail remembers the first fault.
func (f *fields) fail(err *apiError) {
	if f.err == nil || f.rank(err) < f.rank(f.err) {
		f.err = err
	}
}

// rank is the place of a fault in the profile's order.
func (f *fields) rank(err *apiError) int {
	if i := slices.Index(f.profile.CheckOrder, err.Field); i >= 0 {
		return i
	}
	return len(f.profile.CheckOrder)
}

// badType reports a value of the wrong JSON type.
func (f *fields) badType(key, want string) {
	f.fail(invalid(f.prefix+key, "%s", f.profile.TypeMessage(f.prefix+key, want)))
}

// badValue reports a value out of range; rule reads like "must be at least 0".
func (f *fields) badValue(key, rule string) {
	f.fail(invalid(f.prefix+key, "%s", f.profile.ValueMessage(f.prefix+key, rule)))
}

// get returns the raw value; false if absent or null.
func (f *fields) get(key string) (json.RawMessage, bool) {
	v, ok := f.raw[key]
	if !ok || string(v) == "null" {
		return nil, false
	}
	return v, true
}

// typed is get for a value of a type that the profile may insist on.
func (f *fields) typed(key, want string) (json.RawMessage, bool) {
	v, ok := f.get(key)
	if _, there := f.raw[key]; there && !ok && f.prefix == "" && f.profile.RefuseNull[key] {
		f.badType(key, want)
	}
	return v, ok
}

func (f *fields) text(key string) *string {
	v, ok := f.typed(key, "string")
	if !ok {
		return nil
	}
	var s string
	if v[0] != '"' || json.Unmarshal(v, &s) != nil {
		f.badType(key, "string")
		return nil
	}
	return &s
}

func (f *fields) boolean(key string) *bool {
	v, ok := f.typed(key, "boolean")
	if !ok {
		return nil
	}
	b := string(v) == "true"
	if !b && string(v) != "false" {
		f.badType(key, "boolean")
		return nil
	}
	return &b
}

// flag is boolean with false as the default.
func (f *fields) flag(key string) bool {
	b := f.boolean(key)
	return b != nil && *b
}

// number reads a finite number within [lo, hi].
func (f *fields) number(key string, lo, hi float64) *float64 {
	want := "number"
	if f.profile.Fractions[f.prefix+key] {
		want = "float"
	}
	v, ok := f.typed(key, want)
	if !ok {
		return nil
	}
	x, ok := parseNumber(f.counted(v))
	if !ok || want == "float" && !isFraction(v) {
		f.badType(key, want)
		return nil
	}
	if x < lo || x > hi {
		f.badValue(key, boundRule(x, lo, hi))
		return nil
	}
	return &x
}

// counted is the number that the profile takes a value for.
func (f *fields) counted(v json.RawMessage) json.RawMessage {
	if f.profile.PythonNumbers && isTruth(v) {
		if string(v) == "true" {
			return json.RawMessage("1")
		}
		return json.RawMessage("0")
	}
	return v
}

// isFraction reports a number that is not written as an integer.
func isFraction(v json.RawMessage) bool {
	return !isTruth(v) && bytes.ContainsAny(v, ".eE")
}

// whole reads an integer of any size that fits; 5.0 counts as 5 unless the profile
// tells them apart.
func (f *fields) whole(v json.RawMessage) (int64, bool) {
	if f.profile.PythonNumbers && isFraction(v) {
		return 0, false
	}
	return parseInteger(f.counted(v))
}

// integer reads a whole number within [lo, hi].
func (f *fields) integer(key string, lo, hi int64) *int {
	v, ok := f.typed(key, "integer")
	if !ok {
		return nil
	}
	n, ok := f.whole(v)
	if !ok {
		f.badType(key, "integer")
		return nil
	}
	if n < lo || n > hi {
		f.badValue(key, boundRule(float64(n), float64(lo), float64(hi)))
		return nil
	}
	i := int(n)
	return &i
}

// list reads an array.
func (f *fields) list(key string) []json.RawMessage {
	v, ok := f.get(key)
	if !ok {
		return nil
	}
	var l []json.RawMessage
	if v[0] != '[' || json.Unmarshal(v, &l) != nil {
		f.badType(key, "list")
		return nil
	}
	return l
}

// object reads a nested object; nil if absent.
func (f *fields) object(key string) *fields {
	v, ok := f.get(key)
	if !ok {
		return nil
	}
	o := f.nested(f.prefix+key, v)
	if o == nil {
		f.badType(key, "object")
	}
	return o
}

// nested wraps a raw value that should be an object; nil if it is not one.
func (f *fields) nested(path string, v json.RawMessage) *fields {
	o := &fields{prefix: path + ".", profile: f.profile}
	if len(v) == 0 || v[0] != '{' || json.Unmarshal(v, &o.raw) != nil {
		return nil
	}
	return o
}

// texts reads a string or a list of strings; empty strings are dropped.
func (f *fields) texts(key string) []string {
	v, ok := f.get(key)
	if !ok {
		return nil
	}
	var l []string
	if v[0] == '"' {
		l = []string{*f.text(key)}
	} else if v[0] != '[' || hasNull(v) || json.Unmarshal(v, &l) != nil {
		f.badValue(key, "must be a string or a list of strings")
		return nil
	}
	kept := l[:0]
	for _, s := range l {
		if s != "" {
			kept = append(kept, s)
		}
	}
	return kept
}

// hasNull reports a null element, which encoding/json would read as "".
func hasNull(list json.RawMessage) bool {
	var l []json.RawMessage
	if json.Unmarshal(list, &l) != nil {
		return true
	}
	for _, v := range l {
		if string(v) == "null" {
			return true
		}
	}
	return false
}

func parseNumber(v json.RawMessage) (float64, bool) {
	if len(v) == 0 || (v[0] != '-' && (v[0] < '0' || v[0] > '9')) {
		return 0, false
	}
	x, err := strconv.ParseFloat(string(v), 64)
	return x, err == nil && !math.IsInf(x, 0) && !math.IsNaN(x)
}

func parseInteger(v json.RawMessage) (int64, bool) {
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true
	}
	x, ok := parseNumber(v)
	if !ok || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, false
	}
	return int64(x), true
}

// boundRule says which bound x breaks.
func boundRule(x, lo, hi float64) string {
	rule, bound := "must be at least ", lo
	if x > hi {
		rule, bound = "must be at most ", hi
	}
	return rule + strconv.FormatFloat(bound, 'f', -1, 64)
}

// orderedObject is a JSON object that is written in the order it was built in.
type orderedObject []member

type member struct {
	key   string
	value json.RawMessage
}

func (o orderedObject) get(key string) (json.RawMessage, bool) {
	for _, m := range o {
		if m.key == key {
			return m.value, string(m.value) != "null"
		}
	}
	return nil, false
}

func (o *orderedObject) set(key string, v json.RawMessage) {
	for i := range *o {
		if (*o)[i].key == key {
			(*o)[i].value = v
			return
		}
	}
	*o = append(*o, member{key, v})
}

// MarshalJSON writes the members in order.
func (o orderedObject) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(encode(m.key))
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encode is json.Marshal without HTML escaping. The values of this package
// always encode; one that does not is a programming error.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("httpapi: encoding %T: %v", v, err))
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// quote shows a value of the caller in a message, shortened, in the single
// quotes that the clients of the reference know.
func quote(v json.RawMessage) string {
	s := string(v)
	var t string
	if json.Unmarshal(v, &t) == nil {
		s = "'" + t + "'"
	}
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:80], "") + "…"
	}
	return s
}
