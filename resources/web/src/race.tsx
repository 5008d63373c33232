import { useRef, useState } from "preact/hooks";
import { stream } from "./api";
import { useStore } from "./store";
import { Bar, Trouble, number } from "./ui";

type Lane = { label: string; text: string; tokens?: number; rate?: number; accept?: number; seconds?: number };
type Verdict = { identical?: boolean; verdict?: string; divergences?: { first_diff?: number }[] | null };

const presets = ["What is speculative decoding?", "Tell me a story", "Count from one to ten."];

export function Race() {
  const health = useStore((s) => s.health);
  const own = health?.mode && health.mode !== "baseline" ? health.mode : "lookup";
  const choices = ["baseline", ...new Set([own, "lookup"])];
  const [prompt, setPrompt] = useState(presets[0]), [most, setMost] = useState("200"), [picked, setPicked] = useState<string[]>([]);
  const [lanes, setLanes] = useState<Lane[]>([]), [verdict, setVerdict] = useState<Verdict | null>(null), [error, setError] = useState(""), [running, setRunning] = useState(false);
  const abort = useRef<AbortController | null>(null);
  const arms = ["baseline", ...(picked.length ? picked : [own])];

  async function run() {
    abort.current = new AbortController();
    setRunning(true);
    setError("");
    setVerdict(null);
    const l: Lane[] = arms.map((label) => ({ label, text: "" }));
    const show = () => setLanes(l.map((x) => ({ ...x })));
    let pending = 0;
    show();
    try {
      for await (const e of stream("POST", "/admin/race", { prompt, arms, max_tokens: Number(most) || 200, thinking: false }, abort.current.signal)) {
        const v = JSON.parse(e.data);
        if (e.event === "arm_start") l[v.index].label = v.label;
        else if (e.event === "token") l[v.index].text += v.text;
        else if (e.event === "arm_done") Object.assign(l[v.index], { tokens: v.tokens, rate: v.tokens_per_sec, accept: v.accept_len, seconds: v.seconds });
        else if (e.event === "verdict") setVerdict(v);
        else if (e.event === "error") setError(v.message);
        if (!pending) pending = window.setTimeout(() => { pending = 0; show(); }, 66);
      }
    } catch (e) {
      if (!abort.current.signal.aborted) setError(e instanceof Error ? e.message : String(e));
    }
    clearTimeout(pending);
    show();
    setRunning(false);
  }
  const fastest = Math.max(1, ...lanes.map((l) => l.rate ?? 0)), diff = verdict?.divergences?.find((d) => d.first_diff != null);
  return <div class="screen">
    <h1>Race</h1>
    <form class="card" onSubmit={(e) => { e.preventDefault(); run(); }}>
      <label>Prompt<textarea rows={2} value={prompt} onInput={(e) => setPrompt(e.currentTarget.value)} /></label>
      <div class="row">{presets.map((q) => <button type="button" class="small" key={q} onClick={() => setPrompt(q)}>{q}</button>)}</div>
      <fieldset class="row"><legend>Arms</legend>{choices.map((c) => <label key={c} class="chip"><input type="checkbox" checked={arms.includes(c)} disabled={c === "baseline" || running}
        onChange={(e) => { const now = arms.filter((x) => x !== "baseline" && x !== c); setPicked(e.currentTarget.checked ? [...now, c] : now); }} />{c}</label>)}
        <label>Most tokens <input class="short" inputMode="numeric" value={most} onInput={(e) => setMost(e.currentTarget.value)} /></label></fieldset>
      <div class="row end">{running ? <button type="button" class="danger" onClick={() => abort.current?.abort()}>Stop</button> : <button class="primary" disabled={!health?.model || !prompt.trim()}>Run</button>}</div>
    </form>
    {!health?.model && <p class="dim">No model is loaded. <a href="#models">Load one</a> to race.</p>}
    {error && <Trouble text={error} />}
    {verdict && <p class="card" role="status"><b>{verdict.identical ?? !diff ? "Identical output" : "Equally valid outputs"}</b>{diff ? `, the first difference is at token ${diff.first_diff}` : ""}</p>}
    <div class="lanes">{lanes.map((l, i) => <section key={i} class="card" aria-label={"Arm " + l.label}><h2>{l.label}</h2>
      {l.rate != null && <><Bar label={"Rate of " + l.label} value={l.rate} max={fastest} /><p>{number(l.rate)} tok/s · {number(l.accept, 2)} per round · {l.tokens} tokens · {number(l.seconds, 2)} s</p></>}
      <pre tabIndex={0}>{l.text}</pre></section>)}</div>
  </div>;
}
