package httpapi

import (
	"maps"
	"reflect"

	"sparkbar/engine"
	"sparkbar/engine/calibrate"
	"sparkbar/engine/telemetry"
)

// Shapes of the description that are not the type of an answer: what requests
// hold, and the events of streams. An object without described keys is written
// with anyObject, and only where its keys are somebody else's: a test lists
// those places.

// anyObject is an object whose keys this server does not decide; what says who
// does.
func anyObject(what string) schema {
	return schema{"type": "object", "additionalProperties": true, "description": what}
}

// object is an object with these keys. Others are accepted and ignored.
func object(properties schema, required ...string) schema {
	s := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

func either(list ...schema) schema { return schema{"anyOf": list} }

// values is an object with keys of the caller's choice and values of one kind.
func values(s schema) schema { return schema{"type": "object", "additionalProperties": s} }

// some is s, and not empty.
func some(s schema) schema {
	out := maps.Clone(s)
	if s["type"] == "array" {
		out["minItems"] = 1
	} else {
		out["minLength"] = 1
	}
	return out
}

func empty() schema { return schema{"type": "array", "maxItems": 0, "items": kind("null")} }

var (
	jsonSchema = anyObject("A JSON Schema")
	arguments  = anyObject("Arguments of the caller's function")

	cacheControl = nullable(object(schema{"type": kind("string"), "ttl": kind("string")}))
	textPartIn   = object(schema{"type": enum("text", "input_text", "output_text"), "text": kind("string"), "cache_control": cacheControl}, "type", "text")
	refusalIn    = object(schema{"type": enum("refusal"), "refusal": kind("string")}, "type", "refusal")
	partsIn      = either(kind("string"), list(either(textPartIn, refusalIn)))

	callIn = object(schema{"id": kind("string"), "type": enum("function"),
		"function": object(schema{"name": kind("string"), "arguments": either(kind("string"), arguments)}, "name", "arguments")}, "function")
	chatMessageIn = object(schema{"role": enum("system", "developer", "user", "assistant", "tool"), "content": nullable(partsIn), "name": kind("string"),
		"reasoning_content": nullable(kind("string")), "reasoning": nullable(kind("string")), "tool_calls": nullable(list(callIn)), "tool_call_id": kind("string")}, "role")

	functionIn     = schema{"name": some(kind("string")), "description": kind("string"), "parameters": jsonSchema}
	chatToolIn     = object(schema{"type": kind("string"), "function": object(functionIn, "name")}, "type", "function")
	responseToolIn = object(schema{"type": kind("string"), "name": kind("string"), "description": kind("string"), "parameters": nullable(jsonSchema), "function": object(functionIn)}, "type")
	textOrNull     = nullable(kind("string"))
	namedIn        = schema{"type": textOrNull, "name": textOrNull, "function": nullable(object(schema{"name": textOrNull}))}
	namedTools     = nullable(list(nullable(object(namedIn))))
	toolChoiceIn   = either(enum("auto", "none", "required", "any"), object(schema{"type": kind("string"), "name": textOrNull, "function": namedIn["function"],
		"mode": textOrNull, "tools": namedTools, "allowed_tools": nullable(object(schema{"mode": textOrNull, "tools": namedTools}))}, "type"))

	blockIn = either(
		textPartIn,
		object(schema{"type": enum("thinking"), "thinking": kind("string"), "signature": kind("string")}, "type", "thinking"),
		object(schema{"type": enum("redacted_thinking"), "data": kind("string")}, "type"),
		object(schema{"type": enum("tool_use"), "id": kind("string"), "name": kind("string"), "input": arguments, "cache_control": cacheControl}, "type", "id", "name", "input"),
		object(schema{"type": enum("tool_result"), "tool_use_id": kind("string"), "is_error": kind("boolean"), "cache_control": cacheControl,
			"content": either(kind("string"), list(object(schema{"type": kind("string"), "text": kind("string")}, "type")))}, "type", "tool_use_id"))
	turnIn          = object(schema{"role": enum("user", "assistant", "system", "developer"), "content": either(kind("string"), list(blockIn))}, "role", "content")
	systemIn        = either(kind("string"), list(textPartIn))
	anthropicToolIn = object(schema{"name": kind("string"), "type": kind("string"), "description": kind("string"), "input_schema": jsonSchema, "defer_loading": kind("boolean"),
		"cache_control": cacheControl})
	thinkingIn = either(kind("boolean"), object(schema{"type": enum("enabled", "disabled", "adaptive"), "budget_tokens": kind("integer")}, "type"))

	inputItemIn = either(
		kind("string"),
		object(schema{"type": enum("message"), "role": enum("system", "developer", "user", "assistant"), "content": nullable(partsIn)}),
		object(schema{"type": enum("function_call"), "id": kind("string"), "call_id": kind("string"), "name": kind("string"), "arguments": either(kind("string"), arguments)}, "type", "name"),
		object(schema{"type": enum("function_call_output"), "call_id": kind("string"), "output": either(kind("string"), list(textPartIn))}, "type", "call_id", "output"),
		object(schema{"type": enum("reasoning"), "id": kind("string"), "summary": list(object(schema{"type": kind("string"), "text": kind("string")}))}, "type"))
)

// event is one kind of event of a stream: its name ("message" where the stream
// gives none) and the types that its data may have. A string is itself.
type event struct {
	name string
	data []any
}

// events describes a stream: the schema is that of one event, as data and
// event.
func (c *schemas) events(list []event) schema {
	var any []schema
	for _, e := range list {
		var data []schema
		for _, v := range e.data {
			if text, ok := v.(string); ok {
				data = append(data, schema{"const": text})
				continue
			}
			data = append(data, schema{"type": "string", "contentMediaType": "application/json", "contentSchema": c.of(reflect.TypeOf(v), e.name)})
		}
		one := data[0]
		if len(data) > 1 {
			one = either(data...)
		}
		any = append(any, schema{"type": "object", "properties": schema{"event": schema{"const": e.name}, "data": one}, "required": []string{"data", "event"}, "additionalProperties": false})
	}
	return schema{"anyOf": any, "description": "Server-sent events; this is the schema of one"}
}

// The streams.
func (s *Server) openAIStream(chunk any) []event {
	return []event{{"message", []any{chunk, s.profile.ErrorBody(dialectOpenAI, &apiError{}), "[DONE]"}}}
}

func (s *Server) anthropicStream() []event {
	return []event{{"message_start", []any{messageStart{}}}, {"content_block_start", []any{blockStart{}}}, {"content_block_delta", []any{blockDelta{}}},
		{"content_block_stop", []any{blockStop{}}}, {"message_delta", []any{messageDelta{}}}, {"message_stop", []any{messageStop{}}}, {"ping", []any{ping{}}},
		{"error", []any{s.profile.ErrorBody(dialectAnthropic, &apiError{})}}}
}

func responsesStream() (list []event) {
	for _, name := range []string{"created", "in_progress", "output_item.added", "output_item.done", "content_part.added", "content_part.done", "output_text.delta", "output_text.done",
		"reasoning_summary_part.added", "reasoning_summary_part.done", "reasoning_summary_text.delta", "reasoning_summary_text.done",
		"function_call_arguments.delta", "function_call_arguments.done", "completed", "incomplete", "failed"} {
		list = append(list, event{"response." + name, []any{responseEvent{}}})
	}
	return list
}

var (
	modelStream = []event{{roundEvent, []any{telemetry.Round{}}}, {prefillEvent, []any{telemetry.Prefill{}}}, {statsEvent, []any{telemetry.Stats{}}}}
	adminStream = []event{{stateEvent, []any{ready{}, notReady{}}}, {roundEvent, []any{telemetry.Round{}}}, {prefillEvent, []any{telemetry.Prefill{}}},
		{"request", []any{engine.RequestEvent{}}}, {"pressure", []any{guardInfo{}}}, {"download", []any{downloadProgress{}}}, {"models", []any{struct{}{}}}}
	raceStream = []event{{"start", []any{raceStart{}}}, {"arm_start", []any{raceArmStart{}}}, {"token", []any{raceToken{}}}, {"arm_done", []any{raceArmDone{}}},
		{"verdict", []any{telemetry.RaceVerdict{}}}, {"error", []any{raceError{}}}, {"done", []any{struct{}{}}}}
)

// custom are the schemas of what a type alone does not tell, by type or by
// type and field.
var custom = map[string]schema{
	"httpapi.orderedObject": {"type": "object", "properties": schema{"role": kind("string"), "content": nullable(kind("string")), "reasoning_content": kind("string"),
		"reasoning": kind("string"), "tool_calls": list(refTo(chatToolCall{}))}, "additionalProperties": false},
	"httpapi.LogLine.time":                     {"type": "string", "format": "date-time"},
	"httpapi.textLogprobs.top_logprobs":        list(values(kind("number"))),
	"httpapi.openAIErrorBody.code":             {"type": []string{"integer", "string"}},
	"httpapi.anthropicMessage.content":         list(either(refTo(textBlock{}), refTo(thinkingBlock{}), refTo(toolUseBlock{}))),
	"httpapi.toolUseBlock.input":               arguments,
	"httpapi.blockStart.content_block":         either(refTo(textBlock{}), refTo(thinkingBlock{}), refTo(toolUseBlock{})),
	"httpapi.blockDelta.delta":                 either(refTo(textDelta{}), refTo(thinkingDelta{}), refTo(signatureDelta{}), refTo(inputDelta{})),
	"httpapi.responseObject.output":            list(either(refTo(messageItem{}), refTo(reasoningItem{}), refTo(callItem{}))),
	"httpapi.responseObject.metadata":          values(kind("string")),
	"httpapi.responseObject.tools":             list(responseToolIn),
	"httpapi.responseObject.tool_choice":       toolChoiceIn,
	"httpapi.responseEvent.item":               either(refTo(messageItem{}), refTo(reasoningItem{}), refTo(callItem{})),
	"httpapi.responseEvent.part":               either(refTo(outputText{}), refTo(summaryText{})),
	"httpapi.responseEvent.logprobs":           empty(),
	"httpapi.outputText.annotations":           empty(),
	"httpapi.raceArm.cap":                      raceCap,
	"httpapi.raceArmDone.cap":                  raceCap,
	"httpapi.metricsReply.auto_cap":            nullable(refTo(calibrate.ControllerInfo{})),
	"httpapi.calibrationCosts.verify_ms":       curve,
	"httpapi.calibrationCosts.drafter_ms":      curve,
	"httpapi.calibrationCosts.verify_grid":     values(curve),
	"calibrate.ControllerInfo.predicted_rates": curve,
	"httpapi.calibrationCosts.controller":      nullable(refTo(calibrate.ControllerInfo{})),
	"httpapi.calibrationCosts.recommendation": {"type": "object", "properties": schema{"knee_width": kind("integer"), "dflash_full_block_viable": kind("boolean"), "recommend": kind("string")},
		"required": []string{"knee_width", "dflash_full_block_viable", "recommend"}, "additionalProperties": false},
	"httpapi.settingsReply.values":    anyObject("The settings by dotted key"),
	"httpapi.openDocument.info":       object(schema{"title": kind("string"), "version": kind("string")}, "title", "version"),
	"httpapi.openDocument.paths":      values(anyObject("The operations of a path, as OpenAPI has them")),
	"httpapi.openDocument.components": object(schema{"schemas": values(jsonSchema), "securitySchemes": values(anyObject("As OpenAPI has it"))}, "schemas", "securitySchemes"),
	"httpapi.openDocument.security":   list(values(list(kind("string")))),
}

var (
	// curve is a number, or numbers by width.
	curve   = either(kind("number"), values(kind("number")))
	raceCap = either(kind("integer"), enum("auto"), kind("null"))
)

// referred are the types that custom schemas refer to, by name.
var referred = map[string]reflect.Type{}

func refTo(v any) schema {
	t := reflect.TypeOf(v)
	referred[t.Name()] = t
	return schema{"$ref": "#/components/schemas/" + t.Name()}
}
