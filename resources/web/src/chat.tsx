import { useEffect, useRef, useState } from "preact/hooks";
import { Stats, stream } from "./api";
import { Markdown } from "./markdown";
import { useStore } from "./store";
import { Empty, number } from "./ui";

type Turn = { role: "user" | "assistant"; content: string; reasoning?: string; stats?: Stats; error?: string; stopped?: boolean };
type Session = { id: string; title: string; turns: Turn[] };
type Options = { system: string; temperature: string; top_p: string; seed: string; max_tokens: string; stop: string; thinking: "" | "on" | "off"; effort: string };

const noOptions: Options = { system: "", temperature: "", top_p: "", seed: "", max_tokens: "", stop: "", thinking: "", effort: "" };
const sessionsKept = 100;

function kept<T>(name: string, otherwise: T): T {
  try {
    return JSON.parse(localStorage.getItem("sparkbar." + name) ?? "") as T;
  } catch {
    return otherwise;
  }
}
function keep(name: string, value: unknown) {
  try {
    localStorage.setItem("sparkbar." + name, JSON.stringify(value));
  } catch { /* the browser keeps no more; the chat goes on */ }
}

const fresh = (): Session => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "New chat", turns: [] });

function body(session: Session, o: Options): Record<string, unknown> {
  const messages: { role: string; content: string }[] = o.system.trim() ? [{ role: "system", content: o.system }] : [];
  for (const t of session.turns) if (!t.error || t.content) messages.push({ role: t.role, content: t.content }); // thinking is not sent back
  const b: Record<string, unknown> = { messages, stream: true, stream_options: { include_usage: true } };
  for (const [key, text] of [["temperature", o.temperature], ["top_p", o.top_p], ["seed", o.seed], ["max_tokens", o.max_tokens]]) if (text.trim()) b[key] = Number(text);
  const stop = o.stop.split("\n").filter((s) => s);
  if (stop.length) b.stop = stop;
  if (o.thinking) b.enable_thinking = o.thinking === "on";
  if (o.effort) b.reasoning_effort = o.effort;
  return b;
}

export function Chat() {
  const [sessions, setSessions] = useState<Session[]>(() => { const s = kept<Session[]>("chats", []); return s.length ? s : [fresh()]; });
  const [at, setAt] = useState(0), [draft, setDraft] = useState(""), [options, setOptions] = useState<Options>(() => ({ ...noOptions, ...kept("chat-options", noOptions) }));
  const [open, setOpen] = useState(false), [running, setRunning] = useState<AbortController | null>(null);
  const health = useStore((s) => s.health), prefill = useStore((s) => s.prefill);
  const end = useRef<HTMLDivElement>(null), near = useRef(true), input = useRef<HTMLTextAreaElement>(null);
  const session = sessions[Math.min(at, sessions.length - 1)];
  const all = useRef(sessions);
  all.current = sessions;

  const store = (list: Session[], save = true) => { setSessions(list); all.current = list; if (save) keep("chats", list.slice(0, sessionsKept)); };
  const change = (id: string, f: (s: Session) => Session, save = true) => store(all.current.map((s) => (s.id === id ? f(s) : s)), save);
  useEffect(() => { if (near.current) end.current?.scrollIntoView({ block: "end" }); });
  useEffect(() => input.current?.focus(), [session.id]);

  async function answer(s: Session) {
    const abort = new AbortController();
    setRunning(abort);
    near.current = true;
    const turn: Turn = { role: "assistant", content: "" };
    let pending = 0;
    const show = (save: boolean) => change(s.id, (x) => ({ ...x, turns: [...s.turns, { ...turn }] }), save);
    show(false);
    try {
      for await (const e of stream("POST", "/v1/chat/completions", body(s, options), abort.signal)) {
        if (e.data === "[DONE]") break;
        const v = JSON.parse(e.data);
        if (v.error) throw new Error(v.error.message ?? String(v.error));
        const d = v.choices?.[0]?.delta;
        if (d?.content) turn.content += d.content;
        if (d?.reasoning_content) turn.reasoning = (turn.reasoning ?? "") + d.reasoning_content;
        if (v.x_mlx_dspark) turn.stats = v.x_mlx_dspark;
        if (!pending) pending = window.setTimeout(() => { pending = 0; show(false); }, 66);
      }
    } catch (e) {
      if (abort.signal.aborted) turn.stopped = true;
      else turn.error = e instanceof Error ? e.message : String(e);
    }
    clearTimeout(pending);
    show(true);
    setRunning(null);
    input.current?.focus();
  }

  function send() {
    const text = draft.trim();
    if (!text || running) return;
    setDraft("");
    const s: Session = { ...session, title: session.turns.length ? session.title : text.slice(0, 48), turns: [...session.turns, { role: "user", content: text }] };
    change(s.id, () => s);
    answer(s);
  }
  function regenerate() {
    const turns = session.turns.slice();
    while (turns.length && turns[turns.length - 1].role === "assistant") turns.pop();
    answer({ ...session, turns });
  }
  const option = (key: keyof Options) => ({ value: options[key], onInput: (e: Event) => { const o = { ...options, [key]: (e.target as HTMLInputElement).value }; setOptions(o); keep("chat-options", o); } });
  const ready = !!health?.model;

  return <div class="chat">
    <nav class="chats" aria-label="Chats">
      <button class="primary" disabled={!!running} onClick={() => { if (sessions[0].turns.length) store([fresh(), ...sessions]); setAt(0); }}>New chat</button>
      <ul>{sessions.map((s, i) => <li key={s.id}>
        <button class={"plain" + (s.id === session.id ? " here" : "")} aria-current={s.id === session.id} disabled={!!running} onClick={() => setAt(i)}>{s.title}</button>
        <button class="plain x" aria-label={"Delete chat " + s.title} disabled={!!running} onClick={() => { const rest = sessions.filter((x) => x !== s); store(rest.length ? rest : [fresh()]); setAt(0); }}>×</button>
      </li>)}</ul>
    </nav>
    <section class="talk" aria-label="Conversation">
      <div class="turns" tabIndex={0} role="log" aria-label="Messages" onScroll={(e) => { const t = e.currentTarget as HTMLElement; near.current = t.scrollHeight - t.scrollTop - t.clientHeight < 140; }}>
        {!session.turns.length && <Empty title={ready ? "Ask " + health!.model : "No model is loaded"}>
          {ready ? <p class="row center">{["What is speculative decoding?", "Tell me a story"].map((q) => <button key={q} onClick={() => { setDraft(q); input.current?.focus(); }}>{q}</button>)}</p>
            : <p><a href="#models">Load a model</a> to begin.</p>}
        </Empty>}
        {session.turns.map((t, i) => <article key={i} class={"turn " + t.role} aria-label={t.role === "user" ? "You" : "Answer"}>
          {t.reasoning && <details><summary>Thinking</summary><div class="reasoning">{t.reasoning}</div></details>}
          {t.role === "user" ? <p class="said">{t.content}</p> : <Markdown text={t.content} />}
          {t.error && <p class="bad-text" role="alert">{t.error}</p>}
          {t.stopped && <p class="dim">Stopped.</p>}
          {t.stats && <p class="strip"><b>{number(t.stats.decode_tokens_per_sec)} tok/s</b><span>{number(t.stats.accept_len, 2)} per round</span><span>{t.stats.mode}{t.stats.cap ? " cap " + t.stats.cap : ""}</span>
            <span>{t.stats.completion_tokens} tokens, {t.stats.target_forwards} forwards</span><span>first after {number(1000 * t.stats.ttft_seconds, 0)} ms</span><span>{t.stats.prompt_tokens} read, {t.stats.cached_tokens} from cache</span></p>}
        </article>)}
        {running && prefill && <p class="dim" role="status">Reading the prompt: {prefill.processed} of {prefill.total} tokens</p>}
        <div ref={end} />
      </div>
      {open && <div class="options">
        <label class="wide">System prompt<textarea rows={2} {...option("system")} /></label>
        <label>Temperature<input inputMode="decimal" placeholder="model's" {...option("temperature")} /></label>
        <label>Top-p<input inputMode="decimal" placeholder="model's" {...option("top_p")} /></label>
        <label>Seed<input inputMode="numeric" placeholder="random" {...option("seed")} /></label>
        <label>Most tokens<input inputMode="numeric" placeholder="server's" {...option("max_tokens")} /></label>
        <label>Stop strings, one a line<textarea rows={1} {...option("stop")} /></label>
        <label>Thinking<select {...option("thinking")}><option value="">model's</option><option value="on">on</option><option value="off">off</option></select></label>
        {health?.supports_reasoning_effort && <label>Effort<select {...option("effort")}><option value="">server's</option>{["low", "medium", "high"].map((x) => <option key={x}>{x}</option>)}</select></label>}
      </div>}
      <form class="compose" onSubmit={(e) => { e.preventDefault(); send(); }}>
        <textarea ref={input} rows={2} aria-label="Message" placeholder={ready ? "Message" : "Load a model first"} value={draft} onInput={(e) => setDraft(e.currentTarget.value)}
          onKeyDown={(e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); } else if (e.key === "Escape") running?.abort(); }} />
        <div class="row">
          <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>Options</button>
          {!running && session.turns.some((t) => t.role === "assistant") && <button type="button" onClick={regenerate}>Regenerate</button>}
          {running ? <button type="button" class="danger" onClick={() => running.abort()}>Stop</button> : <button class="primary" disabled={!ready || !draft.trim()}>Send</button>}
        </div>
      </form>
    </section>
  </div>;
}
