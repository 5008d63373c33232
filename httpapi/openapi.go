package httpapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"sparkbar/engine"
)

// The description of all routes is made from the types that the handlers
// answer with. What requests may hold is written down here, since handlers read
// them key by key; a test sends every key with a wrong value.

type schema map[string]any

func kind(name string) schema { return schema{"type": name} }

func nullable(s schema) schema {
	out := maps.Clone(s)
	switch t := s["type"].(type) {
	case string:
		out["type"] = []string{t, "null"}
		return out
	case []string:
		return out
	}
	return schema{"anyOf": []schema{s, {"type": "null"}}}
}

func between(s schema, lo, hi float64) schema {
	out := maps.Clone(s)
	out["minimum"] = lo
	if hi > lo {
		out["maximum"] = hi
	}
	return out
}

func enum(list ...string) schema { return schema{"type": "string", "enum": list} }

func list(s schema) schema { return schema{"type": "array", "items": s} }

// operation is one route.
type operation struct {
	method, path, summary string
	query                 []string
	request               schema // nil = no body
	required              []string
	response              any     // the type that is answered, nil = no body
	stream                []event // what a stream carries
	fails                 []int   // statuses that only some routes answer with
}

func (s *Server) operations() []operation {
	var (
		num, whole, truth, text = kind("number"), kind("integer"), kind("boolean"), kind("string")
		texts                   = schema{"anyOf": []schema{text, list(text)}}
		windows                 = between(whole, 0, 0)
		sampling                = schema{"model": text, "temperature": between(num, 0, 0), "top_p": between(num, 0, 1), "min_p": between(num, 0, 1), "top_k": whole, "seed": whole,
			"xtc_probability": between(num, 0, 1), "xtc_threshold": between(num, 0, 0.5), "repetition_penalty": between(num, 0, 0), "presence_penalty": num, "frequency_penalty": num,
			"repetition_context_size": windows, "presence_context_size": windows, "frequency_context_size": windows, "logit_bias": schema{"type": "object", "additionalProperties": num},
			"stream": truth}
		tokens = between(whole, 0, 0)
		id     = between(whole, 0, 0) // of a token
		effort = enum("none", "minimal", "low", "medium", "high", "xhigh")
		usage  = schema{"type": "object", "properties": schema{"include_usage": truth}}
		format = object(schema{"type": enum("text")}, "type")
		kwargs = anyObject("Variables of the model's chat template")
		// What can go wrong with a generation, and where a model is needed.
		running = []int{http.StatusNotFound, http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}
		loaded  = []int{http.StatusServiceUnavailable}
	)
	with := func(extra schema) schema {
		out := maps.Clone(sampling)
		maps.Copy(out, extra)
		return out
	}
	beside := func(extra schema) schema { // see fields.beside
		out := with(extra)
		maps.Copy(out, schema{"adapters": text, "draft_model": nullable(text), "num_draft_tokens": windows})
		return out
	}
	load := schema{"model": some(text), "drafter": text, "mode": enum(engine.Modes...), "max_draft": schema{"anyOf": []schema{between(whole, 1, 64), enum("auto")}}, "lookup_drafts": truth,
		"confidence_threshold": between(num, 0, 1), "context_window": schema{"anyOf": []schema{{"const": 0}, between(whole, 1024, 10_000_000)}}, "kv_bits": schema{"enum": []int{0, 4, 8}},
		"drafter_window": between(whole, 0, 0), "drafter_bits": schema{"enum": []int{0, 2, 3, 4, 5, 6, 8}}, "warmup": truth, "memory_guard": truth, "enable_thinking": truth,
		"reasoning_effort": enum(engine.Efforts...), "small_m": truth, "sdpa_split": truth, "multirow_attn": truth, "cpu_split": between(num, 0, 1), "wait": truth}
	modes := enum(slices.DeleteFunc(slices.Clone(engine.Modes), func(m string) bool { return m == "auto" })...)
	arm := either(modes, object(schema{"mode": modes, "cap": nullable(either(between(whole, 1, 64), enum("auto"))), "confidence": nullable(between(num, 0, 1))}, "mode"))
	messages := with(schema{"max_tokens": tokens, "stop_sequences": texts, "messages": some(list(turnIn)), "system": systemIn,
		"tools": list(anthropicToolIn), "tool_choice": object(schema{"type": enum("auto", "any", "tool", "none"), "name": text, "disable_parallel_tool_use": truth}, "type"), "thinking": thinkingIn, "enable_thinking": truth, "reasoning_effort": effort, "output_config": object(schema{"effort": text})})
	owners := []int{http.StatusNotFound, http.StatusConflict, http.StatusInternalServerError}
	return []operation{
		{method: "POST", path: "/v1/chat/completions", summary: "Answer a conversation", required: []string{"messages"}, response: chatCompletion{}, stream: s.openAIStream(chatCompletion{}), fails: running,
			request: beside(schema{"messages": some(list(chatMessageIn)), "max_tokens": tokens, "max_completion_tokens": tokens, "stop": texts, "n": between(whole, 1, 8), "logprobs": schema{"anyOf": []schema{truth, between(whole, 1, 10)}},
				"top_logprobs": between(whole, 0, float64(s.profile.MaxTopLogprobs)), "stream_options": usage, "tools": list(chatToolIn), "tool_choice": toolChoiceIn, "parallel_tool_calls": truth, "enable_thinking": truth, "thinking": thinkingIn, "reasoning_effort": effort,
				"chat_template_kwargs": kwargs, "role_mapping": schema{"type": "object", "additionalProperties": text}, "response_format": format})},
		{method: "POST", path: "/v1/completions", summary: "Continue a text", required: []string{"prompt"}, response: textCompletion{}, stream: s.openAIStream(textCompletion{}), fails: running,
			request: beside(schema{"prompt": either(some(text), some(list(some(text))), some(list(id)), some(list(some(list(id))))), "max_tokens": tokens, "max_completion_tokens": tokens, "stop": texts, "n": between(whole, 1, 8),
				"logprobs": schema{"anyOf": []schema{truth, between(whole, 0, 20)}}, "stream_options": usage, "echo": truth, "best_of": between(whole, 1, maxBestOf), "response_format": format})},
		{method: "POST", path: "/v1/messages", summary: "Answer a conversation, as Anthropic does", required: []string{"messages"}, response: anthropicMessage{}, stream: s.anthropicStream(), fails: running, request: messages},
		{method: "POST", path: "/v1/messages/count_tokens", summary: "Count the tokens of a conversation", required: []string{"messages"}, response: tokenCount{}, fails: running, request: messages},
		{method: "POST", path: "/v1/responses", summary: "Answer, as OpenAI's Responses API does", required: []string{"input"}, response: responseObject{}, stream: responsesStream(), fails: running,
			request: with(schema{"input": either(some(text), some(list(inputItemIn))), "instructions": text, "max_output_tokens": tokens, "max_tokens": tokens, "stop": texts, "tools": list(responseToolIn), "tool_choice": toolChoiceIn,
				"reasoning": schema{"type": "object", "properties": schema{"effort": effort}}, "reasoning_effort": effort, "enable_thinking": truth, "thinking": thinkingIn, "chat_template_kwargs": kwargs, "text": object(schema{"format": format}),
				"parallel_tool_calls": truth, "metadata": values(text)})},
		{method: "GET", path: "/v1/models", summary: "List the models that a request can name", response: []any{modelList{}, anthropicModelList{}}, fails: loaded},
		{method: "GET", path: "/v1/models/{id}", summary: "One of them", response: []any{modelEntry{}, anthropicModel{}}, fails: []int{http.StatusNotFound, http.StatusServiceUnavailable}},

		{method: "GET", path: "/health", summary: "How the server stands; needs no key", response: []any{ready{}, notReady{}}},
		{method: "GET", path: "/metrics", summary: "Counters since the load; with Accept: text/plain in Prometheus' format", query: []string{"format"}, response: metricsReply{}, fails: loaded},
		{method: "GET", path: "/rounds", summary: "The latest rounds", query: []string{"limit"}, response: roundsReply{}, fails: loaded},
		{method: "GET", path: "/events", summary: "Rounds and prefill progress of the loaded model", stream: modelStream, fails: loaded},
		{method: "GET", path: "/machine", summary: "The machine, and how well the model uses it", response: machineReply{}},
		{method: "GET", path: "/calibration", summary: "What rounds cost here", response: calibrationReply{}, fails: loaded},
		{method: "GET", path: "/doctor", summary: "What is wrong here, each with its fix", response: doctorReply{}},

		{method: "POST", path: "/admin/load", summary: "Load or swap the model, fetching it if need be", required: []string{"model"}, request: load, response: controlStatus{},
			fails: append([]int{http.StatusBadGateway}, running...)},
		{method: "POST", path: "/admin/load/cancel", summary: "Cancel the load", request: schema{"cleanup": truth}, response: []any{cancelReply{}, notCancelled{}}},
		{method: "POST", path: "/admin/unload", summary: "Free the model", request: schema{}, response: controlStatus{}, fails: running},
		{method: "GET", path: "/admin/status", summary: "Where loading stands", response: controlStatus{}},
		{method: "GET", path: "/admin/events", summary: "Everything that happens, across loads", stream: adminStream},
		{method: "GET", path: "/admin/downloads", summary: "The downloads under way, and the latest that have ended", response: downloadList{}},
		{method: "POST", path: "/admin/downloads", summary: "Fetch a model without loading it, with its drafter", required: []string{"model"}, request: schema{"model": text, "drafter": truth}, response: downloadProgress{},
			fails: []int{http.StatusNotFound, http.StatusBadGateway, http.StatusServiceUnavailable}},
		{method: "POST", path: "/admin/downloads/{id}/pause", summary: "Stop the transfer for a while", request: schema{}, response: downloadProgress{}, fails: []int{http.StatusNotFound}},
		{method: "POST", path: "/admin/downloads/{id}/resume", summary: "Let it go on", request: schema{}, response: downloadProgress{}, fails: []int{http.StatusNotFound}},
		{method: "POST", path: "/admin/downloads/{id}/cancel", summary: "End it, and the load that waits for it", request: schema{"cleanup": truth}, response: downloadProgress{}, fails: []int{http.StatusNotFound}},
		{method: "GET", path: "/admin/models", summary: "The models on this machine, and published ones", response: inventory{}},
		{method: "POST", path: "/admin/models/remove", summary: "Delete a downloaded model from this machine", required: []string{"model"}, request: schema{"model": text}, response: removedReply{}, fails: owners},
		{method: "GET", path: "/admin/fit", summary: "Whether a model of this machine fits into its memory at a context", query: []string{"model", "context"}, response: fitInfo{}, fails: []int{http.StatusBadRequest, http.StatusNotFound}},
		{method: "GET", path: "/admin/log", summary: "The latest lines of the log", query: []string{"after"}, response: logReply{}, fails: []int{http.StatusBadRequest, http.StatusNotFound}},
		{method: "POST", path: "/admin/race", summary: "Compare ways to run the loaded model", required: []string{"prompt"}, stream: raceStream, fails: loaded,
			request: schema{"prompt": some(text), "arms": schema{"type": "array", "items": arm, "minItems": minArms, "maxItems": maxArms}, "max_tokens": between(whole, 1, 0), "thinking": truth, "reasoning_effort": effort}},
		{method: "GET", path: "/admin/requests", summary: "The requests under way", response: requestList{}},
		{method: "POST", path: "/admin/requests/{id}/cancel", summary: "End one of them", request: schema{}, response: requestCancelled{}, fails: []int{http.StatusNotFound}},
		{method: "GET", path: "/admin/integrations", summary: "What client programs need", response: integrations{}, fails: loaded},
		{method: "POST", path: "/admin/integrations/{id}/write", summary: "Write a client's file, or say what would change", request: schema{"apply": truth}, response: FileChange{}, fails: append([]int{http.StatusServiceUnavailable}, owners...)},
		{method: "GET", path: "/admin/settings", summary: "The settings in force", response: settingsReply{}, fails: []int{http.StatusNotFound}},
		{method: "PATCH", path: "/admin/settings", summary: "Change settings by dotted key; null takes one out", request: schema{"*": schema{}}, response: settingsReply{},
			fails: []int{http.StatusNotFound, http.StatusInternalServerError}},
		{method: "GET", path: "/openapi.json", summary: "This description", response: openDocument{}},
	}
}

// openDocument is the answer of /openapi.json itself.
type openDocument struct {
	OpenAPI    string         `json:"openapi"`
	Info       map[string]any `json:"info"`
	Paths      map[string]any `json:"paths"`
	Components map[string]any `json:"components"`
	Security   []any          `json:"security"`
}

// schemas collects the schemas of types.
type schemas struct {
	all     map[string]any
	types   map[string]reflect.Type // behind the names of all
	unknown []string                // what nothing is known about; a test wants none
}

var marshaler = reflect.TypeFor[json.Marshaler]()

// of returns the schema of a type, by reference where it has a name.
func (c *schemas) of(t reflect.Type, where string) schema {
	if s, ok := custom[where]; ok {
		c.pull(s)
		return s
	}
	if s, ok := custom[t.String()]; ok {
		c.pull(s)
		return s
	}
	if t.Kind() != reflect.Pointer && t.Implements(marshaler) && t.Kind() != reflect.Struct {
		c.unknown = append(c.unknown, where)
		return schema{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return nullable(c.of(t.Elem(), where))
	case reflect.Bool:
		return kind("boolean")
	case reflect.String:
		return kind("string")
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return kind("integer")
	case reflect.Float64, reflect.Float32:
		return kind("number")
	case reflect.Slice, reflect.Array:
		return list(c.of(t.Elem(), where+"[]"))
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": c.of(t.Elem(), where+"{}")}
	case reflect.Struct:
		if t.Name() == "" {
			return c.object(t)
		}
		switch c.types[t.Name()] {
		case t:
		case nil: // noted first: it may contain itself
			c.types[t.Name()] = t
			c.all[t.Name()] = c.object(t)
		default:
			c.unknown = append(c.unknown, "two types named "+t.Name())
		}
		return schema{"$ref": "#/components/schemas/" + t.Name()}
	}
	c.unknown = append(c.unknown, where)
	return schema{}
}

// pull makes sure that what a custom schema refers to is there.
func (c *schemas) pull(s schema) {
	text := string(encode(s))
	for name, t := range referred {
		if strings.Contains(text, `"#/components/schemas/`+name+`"`) {
			c.of(t, "")
		}
	}
}

// object is the schema of a struct's fields.
func (c *schemas) object(t reflect.Type) schema {
	properties, required := schema{}, []string{}
	var add func(t reflect.Type, optional bool)
	add = func(t reflect.Type, optional bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			tag, has := f.Tag.Lookup("json")
			name, rest, _ := strings.Cut(tag, ",")
			if f.Anonymous && !has {
				inner := f.Type
				if inner.Kind() == reflect.Pointer {
					add(inner.Elem(), true)
				} else {
					add(inner, optional)
				}
				continue
			}
			if name == "-" || !f.IsExported() {
				continue
			}
			properties[name] = c.of(f.Type, t.String()+"."+name)
			if !optional && !strings.Contains(rest, "omitempty") {
				required = append(required, name)
			}
		}
	}
	add(t, false)
	slices.Sort(required)
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// describe makes the whole description.
func (s *Server) describe() (openDocument, []string) {
	c := &schemas{all: map[string]any{}, types: map[string]reflect.Type{}}
	paths := map[string]any{}
	for _, op := range s.operations() {
		content := schema{}
		switch v := op.response.(type) {
		case nil:
		case []any:
			var any []schema
			for _, x := range v {
				any = append(any, c.of(reflect.TypeOf(x), ""))
			}
			content["application/json"] = schema{"schema": schema{"anyOf": any}}
		default:
			content["application/json"] = schema{"schema": c.of(reflect.TypeOf(v), "")}
		}
		if op.stream != nil {
			content["text/event-stream"] = schema{"schema": c.events(op.stream)}
		}
		if op.path == "/metrics" {
			content["text/plain"] = schema{"schema": kind("string")}
		}
		responses := s.failures(c, op)
		responses["200"] = answer("The answer", content)
		o := schema{"summary": op.summary, "operationId": operationID(op), "responses": responses}
		if op.path == "/admin/load" || op.path == "/admin/downloads" && op.method == "POST" {
			responses["202"] = answer("It has begun", content)
		}
		if op.path == "/health" {
			o["security"] = []any{}
		}
		var parameters []schema
		for part := range strings.SplitSeq(op.path, "/") {
			if name, ok := strings.CutPrefix(part, "{"); ok {
				parameters = append(parameters, schema{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": kind("string")})
			}
		}
		for _, q := range op.query {
			parameters = append(parameters, schema{"name": q, "in": "query", "required": false, "schema": kind("string")})
		}
		if parameters != nil {
			o["parameters"] = parameters
		}
		if op.request != nil {
			body := schema{"type": "object", "properties": op.request, "additionalProperties": true} // unknown fields are ignored
			switch {
			case len(op.request) == 0:
				body = anyObject("Nothing in it is read")
			case op.request["*"] != nil:
				body = anyObject("Settings by dotted key; null takes one out")
				body["minProperties"] = 1
			default:
				// Absent and null are the same.
				properties := schema{}
				for key, v := range op.request {
					properties[key] = v
					if !slices.Contains(op.required, key) && !s.profile.RefuseNull[key] {
						properties[key] = nullable(v.(schema))
					}
				}
				body["properties"] = properties
			}
			if len(op.required) > 0 {
				body["required"] = op.required
			}
			o["requestBody"] = schema{"required": len(op.required) > 0, "content": schema{"application/json": schema{"schema": body}}}
		}
		item, _ := paths[op.path].(schema)
		if item == nil {
			item = schema{}
			paths[op.path] = item
		}
		item[strings.ToLower(op.method)] = o
	}
	security := []any{schema{"bearer": []string{}}, schema{"key": []string{}}}
	if len(s.access.Load().hashes) == 0 {
		security = append(security, schema{})
	}
	return openDocument{OpenAPI: "3.1.0", Info: map[string]any{"title": "Sparkbar", "version": s.engine.Status().Version}, Paths: paths, Security: security,
		Components: map[string]any{"schemas": c.all, "securitySchemes": schema{"bearer": schema{"type": "http", "scheme": "bearer"}, "key": schema{"type": "apiKey", "in": "header", "name": "x-api-key"}}}}, c.unknown
}

// answer is one response; every one has the id of its request.
func answer(description string, content schema) schema {
	return schema{"description": description, "content": content, "headers": schema{"X-Request-Id": schema{"required": true, "schema": kind("string")}}}
}

// failures are the responses of an operation that are no success, in the
// dialects that its path is answered in.
func (s *Server) failures(c *schemas, op operation) schema {
	bodies := []schema{c.of(reflect.TypeOf(s.profile.ErrorBody(dialectOf(op.path), &apiError{})), "")}
	if strings.HasPrefix(op.path, "/v1/models") {
		bodies = append(bodies, c.of(reflect.TypeOf(s.profile.ErrorBody(dialectAnthropic, &apiError{})), ""))
	}
	content := schema{"application/json": schema{"schema": either(bodies...)}}
	statuses := append([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestEntityTooLarge}, op.fails...)
	if op.request != nil {
		statuses = append(statuses, http.StatusBadRequest, http.StatusUnsupportedMediaType)
	}
	out := schema{}
	for _, status := range statuses {
		r := answer(http.StatusText(status), content)
		if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
			r["headers"].(schema)["Retry-After"] = schema{"required": true, "schema": kind("string")}
		}
		out[strconv.Itoa(status)] = r
	}
	return out
}

func operationID(op operation) string {
	var b strings.Builder
	b.WriteString(strings.ToLower(op.method))
	for _, r := range op.path {
		switch {
		case r == '/' || r == '.' || r == '_':
			b.WriteByte('_')
		case r != '{' && r != '}':
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (s *Server) openapi(c *gin.Context) *apiError {
	doc, _ := s.describe()
	s.reply(c, http.StatusOK, doc)
	return nil
}
