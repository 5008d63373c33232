"""Drives a server with the openai library and prints one JSON line per check:
{"check": name, "result": value}. The test compares them with its table; what
openai_sdk.mjs prints is the same. Arguments: base URL, key, part.

Every answer and every event of a stream is validated against the library's
own types: a field that is missing or of the wrong type is an error here.
"""
import asyncio
import json
import time
import urllib.request

import openai

from common import base, cancelled, check, key, part, say

options = dict(base_url=base + "/v1", api_key=key, max_retries=0, timeout=120, _strict_response_validation=True)
client = openai.OpenAI(**options)
MODEL = "tiny-chat"
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
TOOLS = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS = [{"type": "function", "strict": False, **FUNCTION}]


def ask(text, **more):
    return client.chat.completions.create(model=MODEL, messages=say(text), **more)


def usage_of(u):
    return [u.prompt_tokens, u.completion_tokens, u.total_tokens]


def calls_of(message):
    return [[c.id, c.function.name, json.loads(c.function.arguments)] for c in message.tool_calls]


def chat_plain():
    a = ask("plain")
    c = a.choices[0]
    return [a.object, a.model, len(a.choices), c.index, c.message.role, c.message.content, c.finish_reason, usage_of(a.usage), a.id.startswith("chatcmpl-"), a._request_id == a.id]


def chat_stream():
    text, roles, reasons, ids, usages = [], [], [], set(), []
    for chunk in ask("plain", stream=True, stream_options={"include_usage": True}):
        ids.add(chunk.id)
        if chunk.usage is not None:
            usages.append([usage_of(chunk.usage), len(chunk.choices)])
        for c in chunk.choices:
            text.append(c.delta.content or "")
            if c.delta.role:
                roles.append(c.delta.role)
            if c.finish_reason:
                reasons.append(c.finish_reason)
    return ["".join(text), roles, reasons, len(ids), usages]


def chat_stream_without_usage():
    return sum(chunk.usage is not None for chunk in ask("plain", stream=True))


def chat_stream_helper():
    kinds = set()
    with client.chat.completions.stream(model=MODEL, messages=say("tools"), tools=TOOLS) as s:
        for event in s:
            kinds.add(event.type)
        final = s.get_final_completion()
    c = final.choices[0]
    return [sorted(kinds & {"content.delta", "content.done", "tool_calls.function.arguments.done"}), c.finish_reason, c.message.content, calls_of(c.message)]


def chat_keep_alive():
    return "".join(c.choices[0].delta.content or "" for c in ask("slow", stream=True))


def chat_reasoning():
    m = ask("think").choices[0].message
    parts = [[], []]
    for chunk in ask("think", stream=True):
        d = chunk.choices[0].delta
        parts[0].append(getattr(d, "reasoning_content", None) or "")
        parts[1].append(d.content or "")
    return [m.reasoning_content, m.content, "".join(parts[0]), "".join(parts[1])]


def tool_round(first):
    history = say("tools") + [first]
    for c in first["tool_calls"]:
        history.append({"role": "tool", "tool_call_id": c["id"], "content": "result of " + c["function"]["name"]})
    return history


def chat_tools():
    first = ask("tools", tools=TOOLS, tool_choice="auto", parallel_tool_calls=True).choices[0]
    second = client.chat.completions.create(model=MODEL, tools=TOOLS, messages=tool_round(first.message.to_dict()))
    return [first.finish_reason, first.message.content, calls_of(first.message), second.choices[0].message.content]


def chat_tools_stream():
    calls, reason = {}, None
    for chunk in ask("tools", tools=TOOLS, stream=True):
        c = chunk.choices[0]
        reason = c.finish_reason or reason
        for d in c.delta.tool_calls or []:
            call = calls.setdefault(d.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
            call["id"] += d.id or ""
            call["function"]["name"] += d.function.name or ""
            call["function"]["arguments"] += d.function.arguments or ""
    first = {"role": "assistant", "content": None, "tool_calls": [calls[i] for i in sorted(calls)]}
    stream = client.chat.completions.create(model=MODEL, tools=TOOLS, messages=tool_round(first), stream=True)
    return [reason, len(calls), "".join(c.choices[0].delta.content or "" for c in stream)]


def logprob_of(t):
    return [t.token, t.logprob, t.bytes, [[a.token, a.logprob] for a in t.top_logprobs]]


def chat_logprobs():
    whole = ask("logprobs", logprobs=True, top_logprobs=2).choices[0].logprobs
    streamed = []
    for chunk in ask("logprobs", logprobs=True, top_logprobs=2, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    none = ask("logprobs").choices[0].logprobs
    return [[logprob_of(t) for t in whole.content], [logprob_of(t) for t in streamed] == [logprob_of(t) for t in whole.content], none is None]


def chat_n():
    a = ask("params", n=3, seed=5)
    seeds = [json.loads(c.message.content)["seed"] for c in a.choices]
    return [[c.index for c in a.choices], seeds[0], len(set(seeds))]


def chat_params():
    a = ask("params", seed=5, stop=["END", "FIN"], max_completion_tokens=9, temperature=0.5, top_p=0.25, presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={"7": -100}, user="u", metadata={"a": "b"}, store=False, reasoning_effort="low")
    return json.loads(a.choices[0].message.content)


def chat_length():
    return ask("length").choices[0].finish_reason


def completions():
    create = client.completions.create
    a = create(model=MODEL, prompt="plain", max_tokens=4)
    # The library's type of a chunk asks for a finish_reason, which no server has in the middle of a stream.
    lax = openai.OpenAI(**dict(options, _strict_response_validation=False))
    streamed = list(lax.completions.create(model=MODEL, prompt="plain", stream=True, stream_options={"include_usage": True}))
    pair = create(model=MODEL, prompt=["plain", "length"])
    echo = create(model=MODEL, prompt="plain", echo=True)
    probs = create(model=MODEL, prompt="logprobs", logprobs=2).choices[0].logprobs
    ids = create(model=MODEL, prompt=[1, 2, 3])
    return [a.object, a.choices[0].text, a.choices[0].finish_reason, usage_of(a.usage), "".join(c.choices[0].text for c in streamed if c.choices), usage_of(streamed[-1].usage),
            [[c.index, c.text, c.finish_reason] for c in pair.choices], echo.choices[0].text, probs.tokens, probs.token_logprobs, probs.text_offset, probs.top_logprobs, ids.choices[0].text]


def models():
    page = client.models.list()
    one = client.models.retrieve(MODEL)
    return [[m.id for m in page], page.data[0].object, one.id, one.owned_by, one.created > 0]


def respond(text, **more):
    return client.responses.create(model=MODEL, input=text, **more)


def response_usage(u):
    return [u.input_tokens, u.output_tokens, u.total_tokens, u.input_tokens_details.cached_tokens, u.output_tokens_details.reasoning_tokens]


def responses_plain():
    a = respond("plain", instructions="Be brief.", metadata={"a": "b"})
    return [a.object, a.status, a.output_text, [i.type for i in a.output], response_usage(a.usage), a.instructions, a.metadata, a.error]


def responses_stream():
    events = list(respond("think", stream=True))
    final = events[-1].response
    return [[e.type for e in events], "".join(e.delta for e in events if e.type == "response.output_text.delta"), final.status, final.output_text, [i.type for i in final.output], final.usage.output_tokens_details.reasoning_tokens,
            all(b.sequence_number == a.sequence_number + 1 for a, b in zip(events, events[1:]))]


def responses_stream_helper():
    with client.responses.stream(model=MODEL, input="tools", tools=FLAT_TOOLS) as s:
        for event in s:
            pass
        final = s.get_final_response()
    return [final.output_text, [[c.call_id, c.name, json.loads(c.arguments)] for c in final.output if c.type == "function_call"]]


def responses_tools():
    first = respond("tools", tools=FLAT_TOOLS)
    items = say("tools") + [i.to_dict() for i in first.output]
    for i in first.output:
        if i.type == "function_call":
            items.append({"type": "function_call_output", "call_id": i.call_id, "output": "result of " + i.name})
    return [first.status, [i.type for i in first.output], respond(items, tools=FLAT_TOOLS).output_text]


def responses_length():
    a = respond("length", max_output_tokens=3)
    return [a.status, a.incomplete_details.reason, a.max_output_tokens, list(respond("length", stream=True))[-1].type]


def fault(f):
    try:
        f()
    except openai.APIError as e:
        r = getattr(e, "response", None)
        return [type(e).__name__, getattr(e, "status_code", None), e.code, r.headers.get("retry-after") if r is not None else None]
    return "no error"


def consume(stream):
    for _ in stream:
        pass


def errors():
    wrong = client.with_options(api_key="wrong")
    return {
        "key": fault(lambda: wrong.models.list()),
        "model": fault(lambda: client.models.retrieve("other")),
        "unknown model": fault(lambda: client.chat.completions.create(model="org/other", messages=say("plain"))),
        "route": fault(lambda: client.embeddings.create(model=MODEL, input="x")),
        "value": fault(lambda: ask("plain", temperature=-1)),
        "long": fault(lambda: ask("long")),
        "long stream": fault(lambda: ask("long", stream=True)),
        "long responses": fault(lambda: respond("long")),
        "busy": fault(lambda: ask("busy")),
        "loading": fault(lambda: respond("loading", stream=True)),
        "crash": fault(lambda: ask("crash")),
        "broken": fault(lambda: consume(ask("broken", stream=True))),
    }


def responses_broken():
    return [e.response.error.code for e in respond("broken", stream=True) if e.type == "response.failed"]


def retry():
    """Retry-After decides how long the library waits."""
    waits, real = [], time.sleep
    time.sleep = lambda s: waits.append(s) or real(0)
    try:
        text = client.with_options(max_retries=1).chat.completions.create(model=MODEL, messages=say("busy once")).choices[0].message.content
    finally:
        time.sleep = real
    return [text, waits]


def abort_stream():
    with ask("block", stream=True) as s:
        text = next(c.choices[0].delta.content for c in s if c.choices[0].delta.content)
    return cancelled(text)


def abort_whole():
    async def run():
        async with openai.AsyncOpenAI(**options) as c:
            task = asyncio.create_task(c.chat.completions.create(model=MODEL, messages=say("hang")))
            await asyncio.to_thread(lambda: urllib.request.urlopen(base + "/blocked").read())
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return await asyncio.to_thread(cancelled, "aborted")

    return asyncio.run(run())


def abort_responses():
    with respond("block", stream=True) as s:
        text = next(e.delta for e in s if e.type == "response.output_text.delta")
    return cancelled(text)


def demo():
    """The same questions, answered by a real engine."""
    question = say("Tell me a story")
    create = client.chat.completions.create
    a = create(model="demo", messages=question, temperature=0, max_tokens=40, logprobs=True, top_logprobs=2)
    text, count = a.choices[0].message.content, a.usage.completion_tokens
    tokens = a.choices[0].logprobs.content
    spoken = b"".join(bytes(t.bytes) for t in tokens if t.bytes).decode(errors="replace")
    chunks = list(create(model="demo", messages=question, temperature=0, max_tokens=40, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    short = create(model="demo", messages=question, temperature=0, max_tokens=3)
    word = text.split()[2]
    stopped = create(model="demo", messages=question, temperature=0, max_tokens=40, stop=word).choices[0]
    drawn = [create(model="demo", messages=question, temperature=1, seed=7, max_tokens=20).choices[0].message.content for _ in range(2)]
    r = client.responses.create(model="demo", input=question, temperature=0, max_output_tokens=40)
    events = list(client.responses.create(model="demo", input=question, temperature=0, max_output_tokens=40, stream=True))
    with create(model="demo", messages=question, stream=True) as s:
        next(iter(s))
    return {
        "text": len(text) > 20, "tokens": len(tokens) == count, "spoken": spoken.strip().startswith(text.strip()), "stream": streamed == text,
        "usage": usage_of(chunks[-1].usage) == usage_of(a.usage), "length": [short.usage.completion_tokens, short.choices[0].finish_reason],
        "stop": [stopped.finish_reason, stopped.message.content == text[:text.index(word)]], "seed": drawn[0] == drawn[1],
        "responses": r.output_text == text, "events": events[-1].response.output_text == text,
        "completions": len(client.completions.create(model="demo", prompt="Once upon", max_tokens=5, temperature=0).choices[0].text) > 0,
        "long": fault(lambda: create(model="demo", messages=say("word " * 20000))),
        "models": [m.id for m in client.models.list()],
    }


if part == "demo":
    check(demo)
else:
    for f in (chat_plain, chat_stream, chat_stream_without_usage, chat_stream_helper, chat_keep_alive, chat_reasoning, chat_tools, chat_tools_stream, chat_logprobs, chat_n, chat_params, chat_length,
              completions, models, responses_plain, responses_stream, responses_stream_helper, responses_tools, responses_length, responses_broken, errors, retry, abort_stream, abort_whole, abort_responses):
        check(f)
