package chat

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sparkbar/engine/chat/jinja"
)

// This file holds the parse and render functions of toolTable.

var errNoCall = errors.New("no function call in the tool block")

// --- values ---

// looseJSON decodes JSON in which strings may hold raw control characters.
func looseJSON(s string) (any, error) {
	v, err := jinja.DecodeJSON([]byte(s))
	if err == nil {
		return v, nil
	}
	var b strings.Builder
	in, changed := false, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case in && c == '\\' && i+1 < len(s):
			b.WriteByte(c)
			i++
			b.WriteByte(s[i])
			continue
		case c == '"':
			in = !in
		case in && c < 0x20:
			fmt.Fprintf(&b, `\u%04x`, c)
			changed = true
			continue
		}
		b.WriteByte(s[i])
	}
	if !changed {
		return nil, err
	}
	return jinja.DecodeJSON([]byte(b.String()))
}

// guess reads text as JSON, else as a Python literal, else as itself.
func guess(s string) any {
	if v, err := looseJSON(s); err == nil {
		return v
	}
	if v, err := pyLiteral(s); err == nil {
		return v
	}
	return s
}

// number reads a Python float; an integral one becomes an int.
func number(s string) (any, bool) {
	if strings.ContainsAny(s, "xXpP") {
		return nil, false
	}
	s = strings.TrimSpace(s)
	if b, ok := new(big.Int).SetString(s, 10); ok && len(s) < 4000 {
		return intValue(b), true
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, false
	}
	if f == math.Trunc(f) {
		b, _ := big.NewFloat(f).Int(nil)
		return intValue(b), true
	}
	return f, true
}

func intValue(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

// isNull tells that a parameter's text stands for null, in a schema that does
// not ask for a string.
func isNull(s string) bool { return strings.EqualFold(s, "null") }

// byTypes converts the text of a parameter to the most special type allowed
// that it can be read as. Without types it is a string.
func byTypes(s string, allowed []string) any {
	low := strings.ToLower(strings.TrimSpace(s))
	if isNull(s) || slices.Contains(allowed, "null") && (low == "none" || low == "nil" || low == "null") {
		return nil
	}
	allows := func(names ...string) bool {
		for _, n := range names {
			if slices.Contains(allowed, n) {
				return true
			}
		}
		return false
	}
	if len(allowed) == 0 {
		return s
	}
	if allows("integer", "int") {
		if v, ok := number(s); ok {
			if _, float := v.(float64); !float && !strings.ContainsAny(s, ".eE") {
				return v
			}
		}
	}
	if allows("number", "float") {
		if v, ok := number(s); ok {
			return v
		}
	}
	if allows("boolean", "bool") {
		switch low {
		case "true", "1", "yes", "on":
			return true
		case "false", "0", "no", "off":
			return false
		}
	}
	if allows("object", "array") {
		if v, err := looseJSON(s); err == nil {
			return v
		}
		if v, err := pyLiteral(s); err == nil {
			return v
		}
	}
	if allows("string", "str", "text") {
		return s
	}
	if v, err := jinja.DecodeJSON([]byte(s)); err == nil {
		return v
	}
	return s
}

func isStringParam(s schemas, function, name string) bool {
	m := s.param(function, name)
	if m == nil {
		return false
	}
	t, _ := m.Get("type")
	return t == "string"
}

func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	return toJSON(v)
}

// toJSON encodes a value that came from JSON; one nested too deeply to be
// encoded again gives "".
func toJSON(v any) string {
	s, _ := jinja.EncodeJSON(v)
	return s
}

func argsOf(c parsedCall) *jinja.Map {
	if m, ok := c.args.(*jinja.Map); ok {
		return m
	}
	return jinja.NewMap()
}

func unquoteName(s string) string {
	s = strings.TrimSpace(s)
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// trimNewlines removes one newline at each end.
func trimNewlines(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, "\n"), "\n")
}

// --- json_tools: <tool_call>{"name": f, "arguments": {…}}</tool_call> ---

func parseJSONCalls(body string, _ schemas) ([]parsedCall, error) {
	v, err := looseJSON(strings.TrimSpace(body))
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	var calls []parsedCall
	for _, it := range list {
		m, _ := it.(*jinja.Map)
		if m == nil {
			return nil, errors.New("a tool call must be a JSON object")
		}
		name, _ := m.Get("name")
		s, ok := name.(string)
		if !ok || s == "" {
			return nil, errors.New("a tool call needs a name")
		}
		args, ok := m.Get("arguments")
		if !ok || args == nil {
			args = jinja.NewMap()
		}
		if t, ok := args.(string); ok {
			if v, err := jinja.DecodeJSON([]byte(t)); err == nil {
				args = v
			}
		}
		id, _ := m.Get("id")
		idText, _ := id.(string)
		calls = append(calls, parsedCall{idText, s, args})
	}
	if len(calls) == 0 {
		return nil, errNoCall
	}
	return calls, nil
}

func renderJSONCalls(calls []parsedCall) string {
	var parts []string
	for _, c := range calls {
		parts = append(parts, "<tool_call>\n"+`{"name": `+toJSON(c.name)+`, "arguments": `+toJSON(c.args)+"}\n</tool_call>")
	}
	return strings.Join(parts, "\n")
}

// --- qwen3_coder: <function=f><parameter=p>v</parameter></function> ---

var (
	qwenFunction = regexp.MustCompile(`(?s)<function=(.*)</function>`)
	qwenParam    = regexp.MustCompile(`(?s)<parameter=(.*?)</parameter>`)
	qwenName     = regexp.MustCompile(`^\s*([^\s<>]+)>?`)
)

func parseQwenXML(body string, s schemas) ([]parsedCall, error) {
	m := qwenFunction.FindStringSubmatch(body)
	if m == nil {
		return nil, errNoCall
	}
	rest := m[1]
	n := qwenName.FindStringSubmatch(rest)
	if n == nil {
		return nil, errors.New("a function needs a name")
	}
	call := parsedCall{name: n[1]}
	args := jinja.NewMap()
	for _, p := range qwenParam.FindAllStringSubmatch(rest[len(n[0]):], -1) {
		pn := qwenName.FindStringSubmatch(p[1])
		if pn == nil {
			continue
		}
		v, err := qwenValue(trimNewlines(p[1][len(pn[0]):]), s.param(call.name, pn[1]))
		if err != nil {
			return nil, fmt.Errorf("parameter '%s': %w", pn[1], err)
		}
		args.Set(pn[1], v)
	}
	call.args = args
	return []parsedCall{call}, nil
}

func hasPrefixAny(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// qwenValue converts by the declared type; several declared types are tried
// from the most special one.
func qwenValue(s string, schema *jinja.Map) (any, error) {
	if isNull(s) {
		return nil, nil
	}
	if schema == nil || schema.Len() == 0 {
		return s, nil
	}
	declared, ok := schema.Get("type")
	if list, isList := declared.([]any); isList {
		return byTypes(s, types(schema)), nil
	} else if _, isText := declared.(string); ok && !isText && list == nil {
		ok = false
	}
	if !ok {
		if all := types(schema); len(all) > 0 {
			if _, enum := schema.Get("enum"); !enum {
				return byTypes(s, all), nil
			}
		}
		v, err := jinja.DecodeJSON([]byte(s))
		if err != nil {
			return s, nil
		}
		switch v.(type) {
		case []any, *jinja.Map:
			return v, nil
		}
		return s, nil
	}
	t := strings.ToLower(strings.TrimSpace(declared.(string)))
	switch {
	case slices.Contains([]string{"string", "str", "text", "varchar", "char", "enum"}, t):
		return s, nil
	case hasPrefixAny(t, "int", "uint", "long", "short", "unsigned"):
		v, ok := number(s)
		if _, float := v.(float64); !ok || float {
			return nil, fmt.Errorf("%q is not an integer", clip(s))
		}
		return v, nil
	case hasPrefixAny(t, "num", "float"):
		v, ok := number(s)
		if !ok {
			return nil, fmt.Errorf("%q is not a number", clip(s))
		}
		return v, nil
	case slices.Contains([]string{"boolean", "bool", "binary"}, t):
		return strings.EqualFold(strings.TrimSpace(s), "true"), nil
	}
	if slices.Contains([]string{"object", "array", "arr"}, t) || hasPrefixAny(t, "dict", "list") {
		if v, err := looseJSON(s); err == nil {
			return v, nil
		}
	}
	if v, err := pyLiteral(s); err == nil {
		return v, nil
	}
	return s, nil
}

func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

func renderQwenXML(calls []parsedCall) string {
	var b strings.Builder
	for i, c := range calls {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("<tool_call>\n<function=" + c.name + ">\n")
		for k, v := range argsOf(c).All() {
			b.WriteString("<parameter=" + k + ">\n" + text(v) + "\n</parameter>\n")
		}
		b.WriteString("</function>\n</tool_call>")
	}
	return b.String()
}

// --- glm47, longcat: f<arg_key>k</arg_key><arg_value>v</arg_value> ---

var (
	glmArg     = regexp.MustCompile(`(?s)<arg_key>(.*?)</arg_key>(?:\\n|\s)*<arg_value>(.*?)</arg_value>`)
	longcatArg = regexp.MustCompile(`(?s)<longcat_arg_key>(.*?)</longcat_arg_key>(?:\\n|\s)*<longcat_arg_value>(.*?)</longcat_arg_value>`)
)

func argKeys(name, body string, re *regexp.Regexp, s schemas) parsedCall {
	args := jinja.NewMap()
	for _, m := range re.FindAllStringSubmatch(body, -1) {
		key, val := strings.TrimSpace(m[1]), strings.TrimSpace(m[2])
		if isStringParam(s, name, key) {
			args.Set(key, val)
		} else {
			args.Set(key, guess(val))
		}
	}
	return parsedCall{name: name, args: args}
}

func parseLongcat(body string, s schemas) ([]parsedCall, error) {
	body = strings.TrimSpace(body)
	if strings.HasPrefix(body, "{") {
		if calls, err := parseJSONCalls(body, s); err == nil {
			return calls, nil
		}
	}
	name, _, ok := strings.Cut(body, "<longcat_arg_key>")
	if name = strings.TrimSpace(name); name == "" || !ok && strings.ContainsAny(name, " \n{<") {
		return nil, errNoCall
	}
	return []parsedCall{argKeys(name, body, longcatArg, s)}, nil
}

func parseGLM(body string, s schemas) ([]parsedCall, error) {
	if name, _, ok := strings.Cut(body, "<arg_key>"); ok {
		return []parsedCall{argKeys(strings.TrimSpace(name), body, glmArg, s)}, nil
	}
	if c, ok := glmJSON(body, s); ok {
		return []parsedCall{c}, nil
	}
	if c, ok := glmPlain(body, s); ok {
		return []parsedCall{c}, nil
	}
	return []parsedCall{{name: "unknown", args: rawArgs(strings.TrimSpace(body))}}, nil
}

func rawArgs(s string) *jinja.Map {
	m := jinja.NewMap()
	m.Set("raw", s)
	return m
}

// glmJSON reads the JSON shapes that GLM models sometimes write.
func glmJSON(body string, s schemas) (c parsedCall, ok bool) {
	v, err := jinja.DecodeJSON([]byte(strings.TrimSpace(body)))
	if err != nil {
		return c, false
	}
	if list, isList := v.([]any); isList && len(list) > 0 {
		v = list[0]
	}
	m, _ := v.(*jinja.Map)
	if m == nil {
		return c, false
	}
	var name, args any
	args, hasArgs := m.Get("arguments")
	if n, ok := m.Get("name"); ok && hasArgs {
		name = n
	} else if n, ok := m.Get("function"); ok && hasArgs {
		name = n
	} else if t, _ := m.Get("tool"); t != nil {
		if tool, ok := t.(*jinja.Map); ok {
			name, _ = tool.Get("name")
			args, _ = tool.Get("arguments")
		}
	}
	if nested, ok := name.(*jinja.Map); ok {
		if args == nil {
			args, _ = nested.Get("arguments")
		}
		name, _ = nested.Get("name")
	}
	if t, ok := args.(string); ok {
		args = guess(t)
	}
	c.name, ok = name.(string)
	if !ok {
		return c, false
	}
	if args == nil {
		c.args = jinja.NewMap()
		return c, true
	}
	given, ok := args.(*jinja.Map)
	if !ok {
		return c, false
	}
	c.args = normalizeArgs(c.name, given, s)
	return c, true
}

// normalizeArgs makes declared strings strings and guesses the rest.
func normalizeArgs(name string, given *jinja.Map, s schemas) *jinja.Map {
	out := jinja.NewMap()
	for k, v := range given.All() {
		t, isText := v.(string)
		switch {
		case isStringParam(s, name, k) && !isText:
			out.Set(k, toJSON(v))
		case isStringParam(s, name, k) || !isText:
			out.Set(k, v)
		default:
			out.Set(k, guess(t))
		}
	}
	return out
}

// glmPlain reads "f {json}", "f k=v" and "f words".
func glmPlain(body string, s schemas) (c parsedCall, ok bool) {
	body = strings.TrimSpace(body)
	if body == "" {
		return c, false
	}
	if first, rest, ok := strings.Cut(body, "\n"); ok {
		name := strings.TrimSpace(first)
		if m, ok := guess(strings.TrimSpace(rest)).(*jinja.Map); ok && name != "" {
			return parsedCall{name: name, args: normalizeArgs(name, m, s)}, true
		}
	}
	name, rest, _ := strings.Cut(body, " ")
	c.name = name
	rest = strings.TrimSpace(rest)
	if rest == "" {
		c.args = jinja.NewMap()
		return c, true
	}
	if m, ok := guess(rest).(*jinja.Map); ok {
		c.args = normalizeArgs(name, m, s)
	} else if m, ok := keyValues(rest, name, s); ok {
		c.args = m
	} else {
		c.args = rawArgs(rest)
	}
	return c, true
}

// keyValues reads "a=1 b='two words'".
func keyValues(s, name string, sc schemas) (*jinja.Map, bool) {
	words, ok := shellWords(s)
	if !ok || len(words) == 0 {
		return nil, false
	}
	m := jinja.NewMap()
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return nil, false
		}
		if isStringParam(sc, name, k) {
			m.Set(k, v)
		} else {
			m.Set(k, guess(v))
		}
	}
	return m, true
}

// shellWords splits as a POSIX shell does, with quotes and backslashes.
func shellWords(s string) ([]string, bool) {
	var words []string
	var w strings.Builder
	started := false
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote == '\'' && c != '\'' || quote == '"' && c != '"' && c != '\\':
			w.WriteByte(c)
		case quote != 0 && c == quote:
			quote = 0
		case c == '\\':
			if i++; i >= len(s) {
				return nil, false
			}
			if quote == '"' && s[i] != '"' && s[i] != '\\' {
				w.WriteByte('\\')
			}
			w.WriteByte(s[i])
			started = true
		case c == '\'' || c == '"':
			quote = c
			started = true
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			if started {
				words = append(words, w.String())
				w.Reset()
				started = false
			}
		default:
			w.WriteByte(c)
			started = true
		}
	}
	if started {
		words = append(words, w.String())
	}
	return words, quote == 0
}

func renderArgKeys(calls []parsedCall, prefix string) string {
	var b strings.Builder
	for i, c := range calls {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("<" + prefix + "tool_call>" + c.name + "\n")
		for k, v := range argsOf(c).All() {
			b.WriteString("<" + prefix + "arg_key>" + k + "</" + prefix + "arg_key>\n")
			b.WriteString("<" + prefix + "arg_value>" + text(v) + "</" + prefix + "arg_value>\n")
		}
		b.WriteString("</" + prefix + "tool_call>")
	}
	return b.String()
}

// --- minimax_m2: <invoke name="f"><parameter name="p">v</parameter></invoke> ---

var (
	invokeBlock = regexp.MustCompile(`(?s)<invoke name=(.*?)</invoke>`)
	invokeParam = regexp.MustCompile(`(?s)<parameter name=([^>]+)>(.*?)</parameter>`)
)

func parseInvoke(body string, s schemas) ([]parsedCall, error) {
	var calls []parsedCall
	for _, m := range invokeBlock.FindAllStringSubmatch(body, -1) {
		head, _, _ := strings.Cut(m[1], ">")
		c := parsedCall{name: unquoteName(head)}
		if c.name == "" {
			return nil, errors.New("an invoke needs a name")
		}
		args := jinja.NewMap()
		for _, p := range invokeParam.FindAllStringSubmatch(m[1], -1) {
			key := unquoteName(p[1])
			args.Set(key, byTypes(strings.TrimSpace(p[2]), types(s.param(c.name, key))))
		}
		c.args = args
		calls = append(calls, c)
	}
	if len(calls) == 0 {
		return nil, errNoCall
	}
	return calls, nil
}

func renderInvoke(calls []parsedCall) string {
	var b strings.Builder
	b.WriteString("<minimax:tool_call>\n")
	for _, c := range calls {
		b.WriteString(`<invoke name="` + c.name + "\">\n")
		for k, v := range argsOf(c).All() {
			b.WriteString(`<parameter name="` + k + `">` + text(v) + "</parameter>\n")
		}
		b.WriteString("</invoke>\n")
	}
	return b.String() + "</minimax:tool_call>"
}

// --- minicpm5: <function name="f"><param name="p">v</param></function> ---

var (
	miniFunction = regexp.MustCompile(`(?s)(?:<function\s+)?(?:name\s*=\s*)?("[^"]*"|'[^']*'|[^\s"'<>]+)\s*>`)
	miniParam    = regexp.MustCompile(`(?s)<param\s+name\s*=\s*("[^"]*"|'[^']*'|[^\s"'<>]+)\s*>`)
	cdata        = regexp.MustCompile(`(?s)^\s*<!\[CDATA\[(.*?)\]\]>`)
)

// parseMiniCPM reads the functions of a block whose leading marker may be cut
// off. A CDATA section may hold any text.
func parseMiniCPM(body string, s schemas) ([]parsedCall, error) {
	var calls []parsedCall
	for rest := body; ; {
		m := miniFunction.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		name := unquoteName(rest[m[2]:m[3]])
		rest = rest[m[1]:]
		args := jinja.NewMap()
		for {
			own, after, _ := strings.Cut(rest, "</function>")
			p := miniParam.FindStringSubmatchIndex(own)
			if p == nil {
				rest = after
				break
			}
			key := unquoteName(rest[p[2]:p[3]])
			rest = rest[p[1]:]
			raw, marked := "", false
			if c := cdata.FindStringSubmatchIndex(rest); c != nil {
				raw, marked = rest[c[2]:c[3]], true
				rest = rest[c[1]:]
			}
			i := strings.Index(rest, "</param>")
			if i < 0 {
				return nil, fmt.Errorf("parameter '%s' is not closed", key)
			}
			if !marked {
				raw = strings.TrimSpace(rest[:i])
			}
			rest = rest[i+len("</param>"):]
			args.Set(key, byTypes(raw, types(s.param(name, key))))
		}
		calls = append(calls, parsedCall{name: name, args: args})
	}
	if len(calls) == 0 {
		return nil, errNoCall
	}
	return calls, nil
}

func renderMiniCPM(calls []parsedCall) string {
	var b strings.Builder
	for _, c := range calls {
		b.WriteString(`<function name="` + c.name + `">`)
		for k, v := range argsOf(c).All() {
			t := text(v)
			if strings.ContainsAny(t, "<&\n") {
				t = "<![CDATA[" + t + "]]>"
			}
			b.WriteString(`<param name="` + k + `">` + t + "</param>")
		}
		b.WriteString("</function>")
	}
	return b.String()
}

// --- mistral: [TOOL_CALLS][{…}] or [TOOL_CALLS]f[ARGS]{…} ---

var mistralHeader = regexp.MustCompile(`([\p{L}\p{N}_-]+)\s*(?:\[CALL_ID\]([^\[]*))?\[ARGS\]\s*`)

func parseMistral(body string, s schemas) ([]parsedCall, error) {
	if v, err := jinja.DecodeJSON([]byte(strings.TrimSpace(body))); err == nil {
		if _, ok := v.([]any); ok {
			calls, err := parseJSONCalls(body, s)
			if err != nil {
				return nil, err
			}
			for _, c := range calls {
				if _, ok := c.args.(*jinja.Map); !ok {
					return nil, fmt.Errorf("the arguments of '%s' are not an object", c.name)
				}
			}
			return calls, nil
		}
	}
	var calls []parsedCall
	for rest := body; ; {
		m := mistralHeader.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		c := parsedCall{name: rest[m[2]:m[3]]}
		if m[4] >= 0 {
			c.id = strings.TrimSpace(rest[m[4]:m[5]])
		}
		rest = rest[m[1]:]
		n := jsonEnd(rest)
		v, err := jinja.DecodeJSON([]byte(rest[:n]))
		if err != nil {
			return nil, fmt.Errorf("the arguments of '%s' are not JSON: %w", c.name, err)
		}
		c.args = v
		rest = rest[n:]
		calls = append(calls, c)
	}
	if len(calls) == 0 {
		return nil, errNoCall
	}
	return calls, nil
}

// jsonEnd returns how long the JSON value at the start of s is: for objects
// and lists up to the matching bracket, else up to white space or the end.
func jsonEnd(s string) int {
	depth, in := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case in && c == '\\':
			i++
		case c == '"':
			in = !in
			if !in && depth == 0 {
				return i + 1
			}
		case in:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			if depth--; depth <= 0 {
				return i + 1
			}
		case depth == 0 && (c == ' ' || c == '\n' || c == '\t'):
			return i
		}
	}
	return len(s)
}

func renderMistral(calls []parsedCall) string {
	var b strings.Builder
	for _, c := range calls {
		b.WriteString("[TOOL_CALLS]" + c.name)
		if c.id != "" {
			b.WriteString("[CALL_ID]" + c.id)
		}
		b.WriteString("[ARGS]" + toJSON(c.args))
	}
	return b.String()
}

// --- pythonic: [f(a=1, b="x"), g()] ---

var (
	pyCall = regexp.MustCompile(`(?s)\[([\p{L}\p{N}_.]+)\((.*?)\)\]`)
	pyArg  = regexp.MustCompile(`(?s)([\p{L}\p{N}_]+)=(?:"([^"]*)"|'([^']*)'|([^,]+))(?:,\s*|$)`)
)

func parsePythonic(body string, _ schemas) ([]parsedCall, error) {
	if calls, err := pyCalls(body); err == nil {
		return calls, nil
	}
	// What is no Python is searched for one call whose values may be bare
	// words.
	m := pyCall.FindStringSubmatch(body)
	if m == nil {
		return nil, errNoCall
	}
	args := jinja.NewMap()
	for _, a := range pyArg.FindAllStringSubmatch(m[2], -1) {
		v := a[2] + a[3] + strings.TrimSpace(a[4])
		if lit, err := pyLiteral(v); err == nil {
			args.Set(a[1], lit)
		} else {
			args.Set(a[1], v)
		}
	}
	return []parsedCall{{name: m[1], args: args}}, nil
}

func renderPythonic(calls []parsedCall) string {
	var parts []string
	for _, c := range calls {
		var args []string
		for k, v := range argsOf(c).All() {
			args = append(args, k+"="+pyRepr(v))
		}
		parts = append(parts, c.name+"("+strings.Join(args, ", ")+")")
	}
	return "<|tool_call_start|>[" + strings.Join(parts, ", ") + "]<|tool_call_end|>"
}

// --- kimi_k2: functions.f:0<|tool_call_argument_begin|>{…} ---

const (
	kimiBegin = "<|tool_call_begin|>"
	kimiEnd   = "<|tool_call_end|>"
	kimiArgs  = "<|tool_call_argument_begin|>"
)

var kimiID = regexp.MustCompile(`(?s)^\s*((?:functions\.)?(.+?):\d+)\s*$`)

func parseKimi2(body string, _ schemas) ([]parsedCall, error) {
	var blocks []string
	for rest := body; ; {
		i := strings.Index(rest, kimiBegin)
		if i < 0 {
			break
		}
		j := strings.Index(rest[i:], kimiEnd)
		if j < 0 {
			break
		}
		blocks = append(blocks, rest[i+len(kimiBegin):i+j])
		rest = rest[i+j+len(kimiEnd):]
	}
	if len(blocks) == 0 {
		blocks = []string{body}
	}
	var calls []parsedCall
	for _, b := range blocks {
		head, args, ok := strings.Cut(b, kimiArgs)
		m := kimiID.FindStringSubmatch(head)
		if !ok || m == nil {
			return nil, errNoCall
		}
		calls = append(calls, parsedCall{m[1], m[2], guess(strings.TrimLeft(args, " \t\r\n"))})
	}
	return calls, nil
}

func renderKimi2(calls []parsedCall) string {
	var b strings.Builder
	b.WriteString("<|tool_calls_section_begin|>")
	for i, c := range calls {
		id := c.id
		if id == "" {
			id = fmt.Sprintf("functions.%s:%d", c.name, i)
		}
		b.WriteString(kimiBegin + id + kimiArgs + toJSON(c.args) + kimiEnd)
	}
	return b.String() + "<|tool_calls_section_end|>"
}

// --- kimi_k3: <|open|>call tool="f"<|sep|>…<|close|>call<|sep|> ---

var xtmlAttr = regexp.MustCompile(`([\p{L}\p{N}_]+)="([^"]*)"`)

var (
	xtmlEscape   = strings.NewReplacer("&", "&amp;", `"`, "&quot;")
	xtmlUnescape = strings.NewReplacer("&quot;", `"`, "&amp;", "&")
)

// xtmlElement cuts the first element of a kind out of s.
func xtmlElement(s, kind string) (attrs map[string]string, inner, rest string, ok bool) {
	i := strings.Index(s, "<|open|>"+kind)
	if i < 0 {
		return nil, "", s, false
	}
	head, body, ok := strings.Cut(s[i+len("<|open|>"+kind):], "<|sep|>")
	if !ok {
		return nil, "", s, false
	}
	inner, rest, ok = strings.Cut(body, "<|close|>"+kind+"<|sep|>")
	if !ok {
		return nil, "", s, false
	}
	attrs = map[string]string{}
	for _, a := range xtmlAttr.FindAllStringSubmatch(head, -1) {
		attrs[a[1]] = xtmlUnescape.Replace(a[2])
	}
	return attrs, inner, rest, true
}

func parseKimi3(body string, _ schemas) ([]parsedCall, error) {
	var calls []parsedCall
	for {
		attrs, inner, rest, ok := xtmlElement(body, "call")
		if !ok {
			break
		}
		body = rest
		if attrs["tool"] == "" {
			continue
		}
		c := parsedCall{name: attrs["tool"]}
		if _, raw, _, ok := xtmlElement(inner, "json"); ok {
			v, err := jinja.DecodeJSON([]byte(raw))
			m, isMap := v.(*jinja.Map)
			if err != nil || !isMap {
				continue
			}
			c.args = m
		} else {
			args := jinja.NewMap()
			for {
				a, value, rest, ok := xtmlElement(inner, "argument")
				if !ok {
					break
				}
				inner = rest
				kind, typed := a["type"]
				if v, err := jinja.DecodeJSON([]byte(value)); typed && kind != "string" && err == nil {
					args.Set(a["key"], v)
				} else {
					args.Set(a["key"], value)
				}
			}
			c.args = args
		}
		calls = append(calls, c)
	}
	if len(calls) == 0 {
		return nil, errNoCall
	}
	return calls, nil
}

func renderKimi3(calls []parsedCall) string {
	var b strings.Builder
	b.WriteString("<|open|>tools<|sep|>")
	for i, c := range calls {
		fmt.Fprintf(&b, `<|open|>call tool="%s" index="%d"<|sep|>`, xtmlEscape.Replace(c.name), i+1)
		for k, v := range argsOf(c).All() {
			fmt.Fprintf(&b, `<|open|>argument key="%s" type="%s"<|sep|>%s<|close|>argument<|sep|>`,
				xtmlEscape.Replace(k), jsonType(v), text(v))
		}
		b.WriteString("<|close|>call<|sep|>")
	}
	return b.String() + "<|close|>tools<|sep|>"
}

// --- muse_spark: <atem:invoke name="f"><atem:parameter name="p">v</…></…> ---

var (
	atemInvoke = regexp.MustCompile(`<atem:invoke\b[^>]*?\bname="([^"]+)"\s*>`)
	atemParam  = regexp.MustCompile(`<atem:parameter\b[^>]*?\bname="([^"]+)"[^>]*?>`)
)

func parseAtem(body string, s schemas) ([]parsedCall, error) {
	var calls []parsedCall
	for rest := body; ; {
		m := atemInvoke.FindStringSubmatchIndex(rest)
		if m == nil {
			break
		}
		c := parsedCall{name: rest[m[2]:m[3]]}
		rest = rest[m[1]:]
		args := jinja.NewMap()
		for {
			own, after, _ := strings.Cut(rest, "</atem:invoke>")
			p := atemParam.FindStringSubmatchIndex(own)
			if p == nil {
				rest = after
				break
			}
			key := rest[p[2]:p[3]]
			rest = rest[p[1]:]
			i := strings.Index(rest, "</atem:parameter>")
			if i < 0 {
				return nil, fmt.Errorf("parameter '%s' is not closed", key)
			}
			raw := rest[:i]
			rest = rest[i+len("</atem:parameter>"):]
			if v, err := jinja.DecodeJSON([]byte(raw)); isStringParam(s, c.name, key) {
				args.Set(key, raw)
			} else if err == nil {
				args.Set(key, v)
			} else {
				args.Set(key, strings.TrimSpace(raw))
			}
		}
		c.args = args
		calls = append(calls, c)
	}
	if len(calls) == 0 {
		return nil, errNoCall
	}
	return calls, nil
}

func renderAtem(calls []parsedCall) string {
	var b strings.Builder
	b.WriteString("<atem:function_calls>\n")
	for _, c := range calls {
		b.WriteString(`<atem:invoke name="` + c.name + "\">\n")
		for k, v := range argsOf(c).All() {
			b.WriteString(`<atem:parameter name="` + k + `">` + text(v) + "</atem:parameter>\n")
		}
		b.WriteString("</atem:invoke>\n")
	}
	return b.String() + "</atem:function_calls>"
}

// --- gemma4, function_gemma: call:f{key:<|"|>text<|"|>,n:1} ---

const (
	gemmaQuote  = `<|"|>`
	escapeQuote = "<escape>"
)

// gemmaReader reads the call notation of the Gemma families: JSON without
// quotes around keys and with a marker for the quotes of strings.
type gemmaReader struct {
	s     string
	quote string
	bare  bool // unquoted words are strings
	depth int
}

var errGemma = errors.New("the arguments of the call are malformed")

func parseGemma(body, quote string, bare bool) ([]parsedCall, error) {
	g := &gemmaReader{s: body, quote: quote, bare: bare}
	var calls []parsedCall
	for {
		i := strings.Index(g.s, "call:")
		if i < 0 {
			break
		}
		g.s = g.s[i+len("call:"):]
		name := g.word("-.")
		g.space()
		if name == "" || !strings.HasPrefix(g.s, "{") {
			continue
		}
		v, err := g.value()
		if err != nil {
			return nil, err
		}
		calls = append(calls, parsedCall{name: name, args: v})
	}
	if len(calls) == 0 {
		return nil, errNoCall
	}
	return calls, nil
}

func (g *gemmaReader) space() { g.s = strings.TrimLeft(g.s, " \t\r\n") }

func (g *gemmaReader) skip(prefix string) bool {
	g.space()
	if strings.HasPrefix(g.s, prefix) {
		g.s = g.s[len(prefix):]
		return true
	}
	return false
}

// word reads letters, digits, underscores and the extra characters.
func (g *gemmaReader) word(extra string) string {
	g.space()
	n := strings.IndexFunc(g.s, func(c rune) bool {
		return !(c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= utf8.RuneSelf ||
			strings.ContainsRune(extra, c))
	})
	if n < 0 {
		n = len(g.s)
	}
	w := g.s[:n]
	g.s = g.s[n:]
	return w
}

// str reads a string in the family's or in JSON's quotes, if one stands next.
func (g *gemmaReader) str() (string, bool, error) {
	if g.skip(g.quote) {
		s, rest, ok := strings.Cut(g.s, g.quote)
		if !ok {
			return "", false, errGemma
		}
		g.s = rest
		return s, true, nil
	}
	if g.space(); strings.HasPrefix(g.s, `"`) {
		n := jsonEnd(g.s)
		v, err := jinja.DecodeJSON([]byte(g.s[:n]))
		s, ok := v.(string)
		if err != nil || !ok {
			return "", false, errGemma
		}
		g.s = g.s[n:]
		return s, true, nil
	}
	return "", false, nil
}

func (g *gemmaReader) value() (any, error) {
	if g.depth++; g.depth > 100 {
		return nil, errGemma
	}
	defer func() { g.depth-- }()
	s, ok, err := g.str()
	if ok || err != nil {
		return s, err
	}
	if g.skip("{") {
		m := jinja.NewMap()
		for !g.skip("}") {
			key, ok, err := g.str()
			if err != nil {
				return nil, err
			}
			if !ok {
				if key = g.word("-.$"); key == "" {
					return nil, errGemma
				}
			}
			if !g.skip(":") {
				return nil, errGemma
			}
			v, err := g.value()
			if err != nil {
				return nil, err
			}
			m.Set(key, v)
			if g.space(); !g.skip(",") && !strings.HasPrefix(g.s, "}") {
				return nil, errGemma
			}
		}
		return m, nil
	}
	if g.skip("[") {
		list := []any{}
		for !g.skip("]") {
			v, err := g.value()
			if err != nil {
				return nil, err
			}
			list = append(list, v)
			if g.space(); !g.skip(",") && !strings.HasPrefix(g.s, "]") {
				return nil, errGemma
			}
		}
		return list, nil
	}
	n := strings.IndexAny(g.s, ",}]")
	if n < 0 {
		return nil, errGemma
	}
	raw := strings.TrimSpace(g.s[:n])
	v, err := jinja.DecodeJSON([]byte(raw))
	if err != nil {
		if !g.bare {
			return nil, errGemma
		}
		v = raw
	}
	g.s = g.s[n:]
	return v, nil
}

func renderGemma(calls []parsedCall, quote string) string {
	start, end := "<|tool_call>", "<tool_call|>"
	if quote == escapeQuote {
		start, end = "<start_function_call>", "<end_function_call>"
	}
	var b strings.Builder
	var write func(v any)
	write = func(v any) {
		switch v := v.(type) {
		case string:
			b.WriteString(quote + v + quote)
		case *jinja.Map:
			b.WriteByte('{')
			first := true
			for k, it := range v.All() {
				if !first {
					b.WriteByte(',')
				}
				first = false
				b.WriteString(k + ":")
				write(it)
			}
			b.WriteByte('}')
		case []any:
			b.WriteByte('[')
			for i, it := range v {
				if i > 0 {
					b.WriteByte(',')
				}
				write(it)
			}
			b.WriteByte(']')
		default:
			b.WriteString(toJSON(v))
		}
	}
	for _, c := range calls {
		b.WriteString(start + "call:" + c.name)
		write(argsOf(c))
		b.WriteString(end)
	}
	return b.String()
}
