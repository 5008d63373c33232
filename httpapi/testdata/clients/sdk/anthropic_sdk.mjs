// The checks of anthropic_sdk.py with the library for Node; both print the
// same. Arguments: base URL, key, part, folder with node_modules.
import { all, apiKey, base, cancelled, library, run, say } from './common.mjs'

const { Anthropic } = library('@anthropic-ai/sdk')
const client = new Anthropic({ baseURL: base, apiKey, maxRetries: 0, timeout: 120_000 })
const model = 'tiny-chat'
const tools = [{ name: 'get_weather', description: 'Weather of a city', input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] } }]

const body = (text, more) => ({ model, max_tokens: 64, messages: say(text), ...more })
const ask = (text, more) => client.messages.create(body(text, more))
const stream = (text, more) => client.messages.stream(body(text, more))
const usageOf = u => [u.input_tokens, u.output_tokens]
const shapes = {
  text: b => ['text', b.text],
  thinking: b => ['thinking', b.thinking, b.signature !== ''],
  tool_use: b => ['tool_use', b.id, b.name, b.input],
}
const blocksOf = m => m.content.map(b => shapes[b.type](b))
const textOf = events => events.filter(e => e.type === 'content_block_delta').map(e => e.delta.text).join('')
const toolRound = m => [...say('tools'), { role: 'assistant', content: m.content },
  { role: 'user', content: m.content.filter(b => b.type === 'tool_use').map(b => ({ type: 'tool_result', tool_use_id: b.id, content: 'result of ' + b.name })) }]

async function fault(f) {
  try {
    await f()
  } catch (e) {
    if (!(e instanceof Anthropic.APIError)) throw e
    if (e.status === undefined) return ['in the stream', e.error?.error?.type ?? null]
    return [e.constructor.name, e.status, e.error?.error?.type ?? null, e.headers?.get('retry-after') ?? null]
  }
  return 'no error'
}

const checks = {
  async message_plain() {
    const m = await ask('plain', { system: 'Be brief.', metadata: { user_id: 'u' } })
    return [m.type, m.role, m.model, blocksOf(m), m.stop_reason, m.stop_sequence, usageOf(m.usage), m.id.startsWith('msg_'), m._request_id === m.id]
  },
  async message_stream() {
    const events = await all(ask('plain', { stream: true }))
    return [events.map(e => e.type), textOf(events), events[0].message.usage.input_tokens, events[0].message.stop_reason]
  },
  async message_stream_helper() {
    let text = ''
    const s = stream('plain').on('text', t => (text += t))
    const m = await s.finalMessage()
    return [text, blocksOf(m), m.stop_reason, usageOf(m.usage)]
  },
  async message_keep_alive() {
    return await stream('slow').finalText()
  },
  async message_thinking() {
    const on = { max_tokens: 2000, thinking: { type: 'enabled', budget_tokens: 1024 } }
    const m = await ask('think', on)
    const streamed = await stream('think', on).finalMessage()
    const off = await ask('think', { thinking: { type: 'disabled' } })
    const again = await client.messages.create({ model, max_tokens: 9, messages: [...say('plain'), { role: 'assistant', content: m.content }, ...say('plain')] })
    return [blocksOf(m), JSON.stringify(blocksOf(streamed)) === JSON.stringify(blocksOf(m)), blocksOf(off), again.stop_reason]
  },
  async message_tools() {
    const first = await ask('tools', { tools, tool_choice: { type: 'auto' } })
    const second = await client.messages.create({ model, max_tokens: 64, tools, messages: toolRound(first) })
    return [first.stop_reason, blocksOf(first), blocksOf(second)]
  },
  async message_tools_stream() {
    const first = await stream('tools', { tools }).finalMessage()
    const text = await client.messages.stream({ model, max_tokens: 64, tools, messages: toolRound(first) }).finalText()
    return [first.stop_reason, blocksOf(first), text]
  },
  async message_params() {
    return JSON.parse((await ask('params', { stop_sequences: ['END', 'FIN'], temperature: 0.5, top_p: 0.25, top_k: 3 })).content[0].text)
  },
  async message_stop() {
    const m = await ask('stopped', { stop_sequences: ['END'] })
    return [m.stop_reason, m.stop_sequence, (await ask('length')).stop_reason]
  },
  async count_tokens() {
    return (await client.messages.countTokens({ model, messages: say('plain'), system: 'Be brief.', tools })).input_tokens
  },
  async models() {
    const one = await client.models.retrieve(model)
    return [(await all(client.models.list())).map(m => m.id), one.id, one.type ?? null, one.display_name !== '', new Date(one.created_at).getUTCFullYear()]
  },
  async errors() {
    const wrong = client.withOptions({ apiKey: 'wrong' })
    return {
      key: await fault(() => wrong.messages.create(body('plain'))),
      model: await fault(() => client.models.retrieve('other')),
      'unknown model': await fault(() => ask('plain', { model: 'org/other' })),
      value: await fault(() => ask('plain', { temperature: -1 })),
      long: await fault(() => ask('long')),
      'long stream': await fault(() => ask('long', { stream: true })),
      busy: await fault(() => ask('busy')),
      loading: await fault(() => ask('loading', { stream: true })),
      crash: await fault(() => ask('crash')),
      broken: await fault(() => all(ask('broken', { stream: true }))),
    }
  },
  async retry() { // Retry-After decides how long the library waits
    const waits = []
    const real = globalThis.setTimeout
    globalThis.setTimeout = (f, ms, ...rest) => (ms === 5000 ? (waits.push(ms / 1000), real(f, 0, ...rest)) : real(f, ms, ...rest))
    try {
      const m = await client.withOptions({ maxRetries: 1 }).messages.create(body('busy once'))
      return [m.content[0].text, waits]
    } finally {
      globalThis.setTimeout = real
    }
  },
  async abort_stream() {
    const s = stream('block')
    s.done().catch(() => {})
    const text = await new Promise((resolve, reject) => s.on('text', resolve).on('error', reject))
    s.abort()
    return cancelled(text)
  },
  async abort_whole() {
    const control = new AbortController()
    const answer = client.messages.create(body('hang'), { signal: control.signal })
    answer.catch(() => {})
    await fetch(base + '/blocked')
    control.abort()
    try {
      await answer
    } catch (e) {
      if (e instanceof Anthropic.APIUserAbortError) return cancelled('aborted')
      throw e
    }
  },
}

async function demo() { // the same questions, answered by a real engine
  const more = { model: 'demo', messages: say('Tell me a story'), max_tokens: 40, temperature: 0 }
  const m = await client.messages.create(more)
  const text = m.content[0].text
  let streamed = ''
  const final = await client.messages.stream(more).on('text', t => (streamed += t)).finalMessage()
  const short = await client.messages.create({ ...more, max_tokens: 3 })
  const word = text.trim().split(/\s+/)[2]
  const stopped = await client.messages.create({ ...more, stop_sequences: [word] })
  for await (const e of await client.messages.create({ ...more, max_tokens: 2000, stream: true })) break
  const prompt = u => u.input_tokens + (u.cache_read_input_tokens ?? 0)
  return {
    text: text.length > 20, stream: [streamed === text, final.content[0].text === text], usage: [prompt(final.usage) === prompt(m.usage), final.usage.output_tokens === m.usage.output_tokens],
    count: (await client.messages.countTokens({ model: 'demo', messages: more.messages })).input_tokens === prompt(m.usage),
    length: [short.usage.output_tokens, short.stop_reason], stop: [stopped.stop_reason, stopped.stop_sequence === word, stopped.content[0].text === text.slice(0, text.indexOf(word)).trim()],
    long: await fault(() => client.messages.create({ ...more, messages: say('word '.repeat(20000)) })),
    models: (await all(client.models.list())).map(x => x.id),
  }
}

await run({ demo }, checks)
