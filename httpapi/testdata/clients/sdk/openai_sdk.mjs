// The checks of openai_sdk.py with the openai library for Node; both print the
// same. Arguments: base URL, key, part, folder with node_modules.
import { all, apiKey, base, cancelled, library, run, say } from './common.mjs'

const { OpenAI } = library('openai')
const options = { baseURL: base + '/v1', apiKey, maxRetries: 0, timeout: 120_000 }
const client = new OpenAI(options)
const model = 'tiny-chat'
const fn = { name: 'get_weather', description: 'Weather of a city', parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }
const tools = [{ type: 'function', function: fn }]
const flatTools = [{ type: 'function', strict: false, ...fn }]

const ask = (text, more) => client.chat.completions.create({ model, messages: say(text), ...more })
const respond = (input, more) => client.responses.create({ model, input, ...more })
const usageOf = u => [u.prompt_tokens, u.completion_tokens, u.total_tokens]
const callsOf = m => m.tool_calls.map(c => [c.id, c.function.name, JSON.parse(c.function.arguments)])
const textOf = chunks => chunks.map(c => c.choices[0]?.delta.content ?? '').join('')
const toolRound = first => [...say('tools'), first, ...first.tool_calls.map(c => ({ role: 'tool', tool_call_id: c.id, content: 'result of ' + c.function.name }))]
const logprobOf = t => [t.token, t.logprob, t.bytes, t.top_logprobs.map(a => [a.token, a.logprob])]
const responseUsage = u => [u.input_tokens, u.output_tokens, u.total_tokens, u.input_tokens_details.cached_tokens, u.output_tokens_details.reasoning_tokens]

async function fault(f) {
  try {
    await f()
  } catch (e) {
    if (!(e instanceof OpenAI.APIError)) throw e
    return [e.constructor.name, e.status ?? null, e.code == null ? null : String(e.code), e.headers?.get('retry-after') ?? null]
  }
  return 'no error'
}

const checks = {
  async chat_plain() {
    const a = await ask('plain')
    const c = a.choices[0]
    return [a.object, a.model, a.choices.length, c.index, c.message.role, c.message.content, c.finish_reason, usageOf(a.usage), a.id.startsWith('chatcmpl-'), a._request_id === a.id]
  },
  async chat_stream() {
    const chunks = await all(ask('plain', { stream: true, stream_options: { include_usage: true } }))
    const choices = chunks.flatMap(c => c.choices)
    return [textOf(chunks), choices.flatMap(c => c.delta.role ?? []), choices.flatMap(c => c.finish_reason ?? []), new Set(chunks.map(c => c.id)).size,
      chunks.filter(c => c.usage).map(c => [usageOf(c.usage), c.choices.length])]
  },
  async chat_stream_without_usage() {
    return (await all(ask('plain', { stream: true }))).filter(c => c.usage).length
  },
  async chat_stream_helper() {
    const seen = new Set()
    const s = client.chat.completions.stream({ model, messages: say('tools'), tools })
    s.on('content.delta', e => seen.add('content.delta')).on('content.done', e => seen.add('content.done')).on('tool_calls.function.arguments.done', e => seen.add('tool_calls.function.arguments.done'))
    const c = (await s.finalChatCompletion()).choices[0]
    return [[...seen].sort(), c.finish_reason, c.message.content, callsOf(c.message)]
  },
  async chat_keep_alive() {
    return textOf(await all(ask('slow', { stream: true })))
  },
  async chat_reasoning() {
    const m = (await ask('think')).choices[0].message
    const chunks = await all(ask('think', { stream: true }))
    return [m.reasoning_content, m.content, chunks.map(c => c.choices[0].delta.reasoning_content ?? '').join(''), textOf(chunks)]
  },
  async chat_tools() {
    const first = (await ask('tools', { tools, tool_choice: 'auto', parallel_tool_calls: true })).choices[0]
    const second = await client.chat.completions.create({ model, tools, messages: toolRound(first.message) })
    return [first.finish_reason, first.message.content, callsOf(first.message), second.choices[0].message.content]
  },
  async chat_tools_stream() {
    const calls = []
    let reason = null
    for await (const chunk of await ask('tools', { tools, stream: true })) {
      const c = chunk.choices[0]
      reason = c.finish_reason ?? reason
      for (const d of c.delta.tool_calls ?? []) {
        const call = (calls[d.index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } })
        call.id += d.id ?? ''
        call.function.name += d.function.name ?? ''
        call.function.arguments += d.function.arguments ?? ''
      }
    }
    const messages = toolRound({ role: 'assistant', content: null, tool_calls: calls })
    return [reason, calls.length, textOf(await all(client.chat.completions.create({ model, tools, messages, stream: true })))]
  },
  async chat_run_tools() { // the library's own loop: it calls the functions and asks again
    const given = []
    const s = client.chat.completions.runTools({ model, messages: say('tools'), tools: ['get_weather', 'get_time'].map(name => ({ type: 'function', function: {
      name, description: name, parameters: { type: 'object', properties: {} }, parse: JSON.parse, function: args => { given.push(args); return 'result of ' + name } } })) })
    return [await s.finalContent(), given]
  },
  async chat_logprobs() {
    const whole = (await ask('logprobs', { logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content.map(logprobOf)
    const streamed = (await all(ask('logprobs', { logprobs: true, top_logprobs: 2, stream: true }))).flatMap(c => c.choices[0].logprobs?.content ?? []).map(logprobOf)
    return [whole, JSON.stringify(streamed) === JSON.stringify(whole), ((await ask('logprobs')).choices[0].logprobs ?? null) === null]
  },
  async chat_n() {
    const a = await ask('params', { n: 3, seed: 5 })
    const seeds = a.choices.map(c => JSON.parse(c.message.content).seed)
    return [a.choices.map(c => c.index), seeds[0], new Set(seeds).size]
  },
  async chat_params() {
    const a = await ask('params', { seed: 5, stop: ['END', 'FIN'], max_completion_tokens: 9, temperature: 0.5, top_p: 0.25, presence_penalty: 0.5, frequency_penalty: -0.5, logit_bias: { 7: -100 }, user: 'u', metadata: { a: 'b' }, store: false, reasoning_effort: 'low' })
    return JSON.parse(a.choices[0].message.content)
  },
  async chat_length() {
    return (await ask('length')).choices[0].finish_reason
  },
  async completions() {
    const create = more => client.completions.create({ model, ...more })
    const a = await create({ prompt: 'plain', max_tokens: 4 })
    const streamed = await all(create({ prompt: 'plain', stream: true, stream_options: { include_usage: true } }))
    const pair = await create({ prompt: ['plain', 'length'] })
    const echo = await create({ prompt: 'plain', echo: true })
    const probs = (await create({ prompt: 'logprobs', logprobs: 2 })).choices[0].logprobs
    const ids = await create({ prompt: [1, 2, 3] })
    return [a.object, a.choices[0].text, a.choices[0].finish_reason, usageOf(a.usage), streamed.map(c => c.choices[0]?.text ?? '').join(''), usageOf(streamed.at(-1).usage),
      pair.choices.map(c => [c.index, c.text, c.finish_reason]), echo.choices[0].text, probs.tokens, probs.token_logprobs, probs.text_offset, probs.top_logprobs, ids.choices[0].text]
  },
  async models() {
    const page = await client.models.list()
    const one = await client.models.retrieve(model)
    return [(await all(page)).map(m => m.id), page.data[0].object, one.id, one.owned_by, one.created > 0]
  },
  async responses_plain() {
    const a = await respond('plain', { instructions: 'Be brief.', metadata: { a: 'b' } })
    return [a.object, a.status, a.output_text, a.output.map(i => i.type), responseUsage(a.usage), a.instructions, a.metadata, a.error]
  },
  async responses_stream() {
    const events = await all(respond('think', { stream: true }))
    const final = events.at(-1).response
    const text = final.output.flatMap(i => i.content ?? []).map(p => p.text).join('')
    return [events.map(e => e.type), events.filter(e => e.type === 'response.output_text.delta').map(e => e.delta).join(''), final.status, text, final.output.map(i => i.type), final.usage.output_tokens_details.reasoning_tokens,
      events.every((e, i) => i === 0 || e.sequence_number === events[i - 1].sequence_number + 1)]
  },
  async responses_stream_helper() {
    const final = await client.responses.stream({ model, input: 'tools', tools: flatTools }).finalResponse()
    return [final.output_text, final.output.filter(c => c.type === 'function_call').map(c => [c.call_id, c.name, JSON.parse(c.arguments)])]
  },
  async responses_tools() {
    const first = await respond('tools', { tools: flatTools })
    const items = [...say('tools'), ...first.output, ...first.output.filter(i => i.type === 'function_call').map(i => ({ type: 'function_call_output', call_id: i.call_id, output: 'result of ' + i.name }))]
    return [first.status, first.output.map(i => i.type), (await respond(items, { tools: flatTools })).output_text]
  },
  async responses_length() {
    const a = await respond('length', { max_output_tokens: 3 })
    return [a.status, a.incomplete_details.reason, a.max_output_tokens, (await all(respond('length', { stream: true }))).at(-1).type]
  },
  async responses_broken() {
    return (await all(respond('broken', { stream: true }))).filter(e => e.type === 'response.failed').map(e => e.response.error.code)
  },
  async errors() {
    const wrong = client.withOptions({ apiKey: 'wrong' })
    return {
      key: await fault(() => wrong.models.list()),
      model: await fault(() => client.models.retrieve('other')),
      'unknown model': await fault(() => client.chat.completions.create({ model: 'org/other', messages: say('plain') })),
      route: await fault(() => client.embeddings.create({ model, input: 'x' })),
      value: await fault(() => ask('plain', { temperature: -1 })),
      long: await fault(() => ask('long')),
      'long stream': await fault(() => ask('long', { stream: true })),
      'long responses': await fault(() => respond('long')),
      busy: await fault(() => ask('busy')),
      loading: await fault(() => respond('loading', { stream: true })),
      crash: await fault(() => ask('crash')),
      broken: await fault(() => all(ask('broken', { stream: true }))),
    }
  },
  async retry() { // Retry-After decides how long the library waits
    const waits = []
    const real = globalThis.setTimeout
    globalThis.setTimeout = (f, ms, ...rest) => (ms === 5000 ? (waits.push(ms / 1000), real(f, 0, ...rest)) : real(f, ms, ...rest))
    try {
      const a = await client.withOptions({ maxRetries: 1 }).chat.completions.create({ model, messages: say('busy once') })
      return [a.choices[0].message.content, waits]
    } finally {
      globalThis.setTimeout = real
    }
  },
  async abort_stream() {
    let text = ''
    for await (const c of await ask('block', { stream: true })) if ((text = c.choices[0].delta.content)) break
    return cancelled(text)
  },
  async abort_whole() {
    const control = new AbortController()
    const answer = client.chat.completions.create({ model, messages: say('hang') }, { signal: control.signal })
    answer.catch(() => {})
    await fetch(base + '/blocked')
    control.abort()
    try {
      await answer
    } catch (e) {
      if (e instanceof OpenAI.APIUserAbortError) return cancelled('aborted')
      throw e
    }
  },
  async abort_responses() {
    let text = ''
    for await (const e of await respond('block', { stream: true })) if (e.type === 'response.output_text.delta' && (text = e.delta)) break
    return cancelled(text)
  },
}

async function demo() { // the same questions, answered by a real engine
  const messages = say('Tell me a story')
  const create = more => client.chat.completions.create({ model: 'demo', messages, temperature: 0, max_tokens: 40, ...more })
  const a = await create({ logprobs: true, top_logprobs: 2 })
  const text = a.choices[0].message.content
  const tokens = a.choices[0].logprobs.content
  const spoken = Buffer.from(tokens.flatMap(t => t.bytes ?? [])).toString()
  const chunks = await all(create({ stream: true, stream_options: { include_usage: true } }))
  const short = await create({ max_tokens: 3 })
  const word = text.trim().split(/\s+/)[2]
  const stopped = (await create({ stop: word })).choices[0]
  const drawn = []
  for (let i = 0; i < 2; i++) drawn.push((await create({ temperature: 1, seed: 7, max_tokens: 20 })).choices[0].message.content)
  const input = { model: 'demo', input: messages, temperature: 0, max_output_tokens: 40 }
  const r = await client.responses.create(input)
  const events = await all(client.responses.create({ ...input, stream: true }))
  const last = events.at(-1).response.output.flatMap(i => i.content ?? []).map(p => p.text).join('')
  for await (const c of await create({ max_tokens: 2000, stream: true })) break
  return {
    text: text.length > 20, tokens: tokens.length === a.usage.completion_tokens, spoken: spoken.trim().startsWith(text.trim()), stream: textOf(chunks) === text,
    usage: String(usageOf(chunks.at(-1).usage)) === String(usageOf(a.usage)), length: [short.usage.completion_tokens, short.choices[0].finish_reason],
    stop: [stopped.finish_reason, stopped.message.content === text.slice(0, text.indexOf(word))], seed: drawn[0] === drawn[1],
    responses: r.output_text === text, events: last === text,
    completions: (await client.completions.create({ model: 'demo', prompt: 'Once upon', max_tokens: 5, temperature: 0 })).choices[0].text.length > 0,
    long: await fault(() => create({ messages: say('word '.repeat(20000)) })),
    models: (await all(client.models.list())).map(m => m.id),
  }
}

await run({ demo }, checks)
