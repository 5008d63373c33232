"""Drives a server with the anthropic library and prints one JSON line per
check, like openai_sdk.py. Arguments: base URL, key, part.
"""
import asyncio
import json
import time
import urllib.request

import anthropic

from common import base, cancelled, check, key, part, say

options = dict(base_url=base, api_key=key, max_retries=0, timeout=120, _strict_response_validation=True)
client = anthropic.Anthropic(**options)
MODEL = "tiny-chat"
TOOLS = [{"name": "get_weather", "description": "Weather of a city", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]


def ask(text, **more):
    return client.messages.create(model=MODEL, max_tokens=64, messages=say(text), **more)


def stream(text, **more):
    return client.messages.stream(model=MODEL, max_tokens=64, messages=say(text), **more)


def usage_of(u):
    return [u.input_tokens, u.output_tokens]


def blocks_of(m):
    out = []
    for b in m.content:
        out.append({"text": lambda: ["text", b.text], "thinking": lambda: ["thinking", b.thinking, b.signature != ""], "tool_use": lambda: ["tool_use", b.id, b.name, b.input]}[b.type]())
    return out


def message_plain():
    m = ask("plain", system="Be brief.", metadata={"user_id": "u"})
    return [m.type, m.role, m.model, blocks_of(m), m.stop_reason, m.stop_sequence, usage_of(m.usage), m.id.startswith("msg_"), m._request_id == m.id]


def message_stream():
    events = list(ask("plain", stream=True))
    return [[e.type for e in events], "".join(e.delta.text for e in events if e.type == "content_block_delta"), events[0].message.usage.input_tokens, events[0].message.stop_reason]


def message_stream_helper():
    with stream("plain") as s:
        text = "".join(s.text_stream)
        m = s.get_final_message()
    return [text, blocks_of(m), m.stop_reason, usage_of(m.usage)]


def message_keep_alive():
    with stream("slow") as s:
        return "".join(s.text_stream)


def message_thinking():
    on = {"type": "enabled", "budget_tokens": 1024}
    m = client.messages.create(model=MODEL, max_tokens=2000, messages=say("think"), thinking=on)
    with client.messages.stream(model=MODEL, max_tokens=2000, messages=say("think"), thinking=on) as s:
        streamed = s.get_final_message()
    off = ask("think", thinking={"type": "disabled"})
    history = say("plain") + [{"role": "assistant", "content": [b.to_dict() for b in m.content]}] + say("plain")
    again = client.messages.create(model=MODEL, max_tokens=9, messages=history)
    return [blocks_of(m), blocks_of(streamed) == blocks_of(m), blocks_of(off), again.stop_reason]


def tool_round(m):
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": "result of " + b.name} for b in m.content if b.type == "tool_use"]
    return say("tools") + [{"role": "assistant", "content": [b.to_dict() for b in m.content]}, {"role": "user", "content": results}]


def message_tools():
    first = ask("tools", tools=TOOLS, tool_choice={"type": "auto"})
    second = client.messages.create(model=MODEL, max_tokens=64, tools=TOOLS, messages=tool_round(first))
    return [first.stop_reason, blocks_of(first), blocks_of(second)]


def message_tools_stream():
    with stream("tools", tools=TOOLS) as s:
        first = s.get_final_message()
    with client.messages.stream(model=MODEL, max_tokens=64, tools=TOOLS, messages=tool_round(first)) as s:
        return [first.stop_reason, blocks_of(first), s.get_final_text()]


def message_params():  # the library has no parameters of its own for these any more
    return json.loads(ask("params", stop_sequences=["END", "FIN"], extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 3}).content[0].text)


def message_stop():
    m, n = ask("stopped", stop_sequences=["END"]), ask("length")
    return [m.stop_reason, m.stop_sequence, n.stop_reason]


def count_tokens():
    return client.messages.count_tokens(model=MODEL, messages=say("plain"), system="Be brief.", tools=TOOLS).input_tokens


def models():
    page = client.models.list()
    one = client.models.retrieve(MODEL)
    return [[m.id for m in page], one.id, one.type, one.display_name != "", one.created_at.year]


def fault(f):
    try:
        f()
    except anthropic.APIStatusError as e:
        kind = e.body["error"]["type"]
        if e.status_code == 200:
            return ["in the stream", kind]
        return [type(e).__name__, e.status_code, kind, e.response.headers.get("retry-after")]
    return "no error"


def consume(s):
    for _ in s:
        pass


def errors():
    wrong = client.with_options(api_key="wrong")
    return {
        "key": fault(lambda: wrong.messages.create(model=MODEL, max_tokens=9, messages=say("plain"))),
        "model": fault(lambda: client.models.retrieve("other")),
        "unknown model": fault(lambda: client.messages.create(model="org/other", max_tokens=9, messages=say("plain"))),
        "value": fault(lambda: ask("plain", extra_body={"temperature": -1})),
        "long": fault(lambda: ask("long")),
        "long stream": fault(lambda: consume(ask("long", stream=True))),
        "busy": fault(lambda: ask("busy")),
        "loading": fault(lambda: ask("loading", stream=True)),
        "crash": fault(lambda: ask("crash")),
        "broken": fault(lambda: consume(ask("broken", stream=True))),
    }


def retry():
    """Retry-After decides how long the library waits."""
    waits, real = [], time.sleep
    time.sleep = lambda s: waits.append(s) or real(0)
    try:
        m = client.with_options(max_retries=1).messages.create(model=MODEL, max_tokens=9, messages=say("busy once"))
    finally:
        time.sleep = real
    return [m.content[0].text, waits]


def abort_stream():
    with stream("block") as s:
        text = next(iter(s.text_stream))
    return cancelled(text)


def abort_whole():
    async def run():
        async with anthropic.AsyncAnthropic(**options) as c:
            task = asyncio.create_task(c.messages.create(model=MODEL, max_tokens=9, messages=say("hang")))
            await asyncio.to_thread(lambda: urllib.request.urlopen(base + "/blocked").read())
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return await asyncio.to_thread(cancelled, "aborted")

    return asyncio.run(run())


def demo():
    """The same questions, answered by a real engine."""
    more = dict(model="demo", messages=say("Tell me a story"), max_tokens=40, extra_body={"temperature": 0})
    m = client.messages.create(**more)
    text = m.content[0].text
    with client.messages.stream(**more) as s:
        streamed = "".join(s.text_stream)
        final = s.get_final_message()
    short = client.messages.create(**dict(more, max_tokens=3))
    word = text.split()[2]
    stopped = client.messages.create(**more, stop_sequences=[word])
    with client.messages.stream(**dict(more, max_tokens=2000)) as s:
        next(iter(s.text_stream))
    prompt = lambda u: u.input_tokens + (u.cache_read_input_tokens or 0)
    return {
        "text": len(text) > 20, "stream": [streamed == text, final.content[0].text == text], "usage": [prompt(final.usage) == prompt(m.usage), final.usage.output_tokens == m.usage.output_tokens],
        "count": client.messages.count_tokens(model="demo", messages=more["messages"]).input_tokens == prompt(m.usage),
        "length": [short.usage.output_tokens, short.stop_reason], "stop": [stopped.stop_reason, stopped.stop_sequence == word, stopped.content[0].text == text[:text.index(word)].strip()],
        "long": fault(lambda: client.messages.create(model="demo", max_tokens=9, messages=say("word " * 20000))),
        "models": [m.id for m in client.models.list()],
    }


if part == "demo":
    check(demo)
else:
    for f in (message_plain, message_stream, message_stream_helper, message_keep_alive, message_thinking, message_tools, message_tools_stream, message_params, message_stop, count_tokens, models, errors, retry,
              abort_stream, abort_whole):
        check(f)
