import { useEffect, useRef, useState } from "preact/hooks";
import { FileChange, Integration, Stats, Step, get, post } from "./api";
import { useStore } from "./store";
import { Ask, Copy, Empty, Trouble, number, useAction, useFetched, wanted } from "./ui";

export function snippet(s: Step): string {
  if (s.command) return s.command;
  if (s.content) return s.content;
  if (s.env) return Object.entries(s.env).map(([k, v]) => `export ${k}='${v.replaceAll("'", "'\\''")}'`).join("\n");
  return Object.entries(s.fields ?? {}).map(([k, v]) => `${k}: ${v}`).join("\n");
}

/** trip asks the server something small the way the client would. */
async function trip(x: Integration): Promise<string> {
  const began = performance.now(), ask = "Say hello.";
  let stats: Stats | undefined;
  if (x.protocol === "anthropic") stats = (await post<{ x_mlx_dspark?: Stats }>("/v1/messages", { model: "", max_tokens: 16, messages: [{ role: "user", content: ask }] }, undefined, { "anthropic-version": "2023-06-01" })).x_mlx_dspark;
  else if (x.id === "codex") stats = (await post<{ x_mlx_dspark?: Stats }>("/v1/responses", { input: ask, max_output_tokens: 16 })).x_mlx_dspark;
  else stats = (await post<{ x_mlx_dspark?: Stats }>("/v1/chat/completions", { messages: [{ role: "user", content: ask }], max_tokens: 16 })).x_mlx_dspark;
  return `answered in ${number(performance.now() - began, 0)} ms` + (stats ? `, ${number(stats.decode_tokens_per_sec)} tok/s, first token after ${number(1000 * stats.ttft_seconds, 0)} ms` : "");
}

function Card(p: { x: Integration }) {
  const x = p.x, [busy, act] = useAction(), [result, setResult] = useState(""), [change, setChange] = useState<FileChange | null>(null);
  const box = useRef<HTMLElement>(null);
  useEffect(() => { if (wanted("agents") === x.id) box.current!.scrollIntoView(); }, []);
  const file = x.setup.find((s) => s.kind === "file" && s.path?.startsWith("~/"));
  return <section class="card" aria-label={x.name} ref={box}>
    <div class="row"><h2>{x.name}</h2><span class="tag">{x.protocol}</span><span class="grow" />
      {file && <button disabled={busy} onClick={() => act(async () => { const c = await post<FileChange>(`/admin/integrations/${x.id}/write`, { apply: false }); if (c.diff) setChange(c); else return `${c.path} is as it should be`; })}>Write file…</button>}
      <button disabled={busy} onClick={() => act(async () => { setResult("asking…"); try { setResult(await trip(x)); } catch (e) { setResult("failed: " + (e instanceof Error ? e.message : e)); } })}>Test</button></div>
    <p class="dim">{x.summary}</p>
    {result && <p role="status">{result}</p>}
    {x.setup.map((s) => <div key={s.label}><div class="row"><span>{s.label}{s.path ? <> <code>{s.path}</code></> : null}</span><span class="grow" /><Copy text={snippet(s)} /></div><pre tabIndex={0} aria-label={s.label}>{snippet(s)}</pre></div>)}
    {x.note && <p class="dim">{x.note}</p>}
    {change && <Ask title={(change.created ? "Create " : "Change ") + change.path + "?"} action="Write" onDone={(yes) => { setChange(null); if (yes) act(async () => { const c = await post<FileChange>(`/admin/integrations/${x.id}/write`, { apply: true }); return `Wrote ${c.path}` + (c.backup ? `; the old file is kept as ${c.backup}` : ""); }); }}>
      <pre class="diff" tabIndex={0}>{change.diff}</pre></Ask>}
  </section>;
}

export function Agents() {
  const health = useStore((s) => s.health);
  const all = useFetched<{ base_url: string; integrations: Integration[] }>((signal) => get("/admin/integrations", signal), [health?.model]);
  return <div class="screen"><h1>Agents</h1>
    {health && !health.model ? <Empty title="No model is loaded"><p>The snippets name the model: <a href="#models">load one</a> first.</p></Empty> : all.error ? <Trouble text={all.error} again={all.again} /> : null}
    {health?.model && all.value && <><p class="row">Address <code>{all.value.base_url}</code><Copy text={all.value.base_url} label="Copy address" /></p>{all.value.integrations.map((x) => <Card key={x.id} x={x} />)}</>}
  </div>;
}
