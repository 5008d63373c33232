import { useEffect, useState } from "preact/hooks";
import { Download, Fit, Installed, Inventory, Pair, Status, get, post } from "./api";
import { refresh, useStore } from "./store";
import { Ask, Bar, Empty, Rows, Trouble, bytes, duration, number, useAction, useFetched, wanted } from "./ui";

const verdicts: Record<string, string> = { fits: "Fits", tight: "Tight", too_big: "Too large", unknown: "Memory unknown" };

export function FitText(p: { fit: Fit | null }) {
  if (!p.fit) return null;
  return <span class={"fit " + p.fit.verdict} title={p.fit.reason}>{verdicts[p.fit.verdict] ?? p.fit.verdict}: needs {bytes(p.fit.need_bytes)} of {bytes(p.fit.available_bytes)}</span>;
}

function DownloadRow(p: { d: Download }) {
  const [busy, act] = useAction(), d = p.d, to = (verb: string, body = {}) => act(async () => { await post(`/admin/downloads/${encodeURIComponent(d.id)}/${verb}`, body); await refresh(); });
  return <div class="card download" role="group" aria-label={"Download of " + d.model}>
    <div class="row"><b>{d.repo || d.model}</b><span class="dim">{d.state}</span><span>{bytes(d.bytes_done)}{d.bytes_total ? " of " + bytes(d.bytes_total) : ""}</span>
      {d.bytes_per_second > 0 && <span>{bytes(d.bytes_per_second)}/s</span>}{d.eta_seconds != null && <span>{duration(d.eta_seconds)} left</span>}
      <span class="grow" />{d.error ? null : d.state === "paused" ? <button disabled={busy} onClick={() => to("resume")}>Resume</button> : <button disabled={busy} onClick={() => to("pause")}>Pause</button>}
      {!d.error && <button class="danger" disabled={busy} onClick={() => to("cancel")}>Cancel</button>}</div>
    <Bar label={"Progress of " + d.model} value={d.bytes_done} max={d.bytes_total ?? 0} />
    {d.error && <p class="bad-text">{d.error}</p>}
  </div>;
}

function LoadCard(p: { status: Status }) {
  const [busy, act] = useAction(), g = p.status.progress, d = p.status.download;
  return <div class="card" role="status" aria-label="Loading"><div class="row"><b>{p.status.phase === "warming_up" ? "Warming up" : "Loading"} {g?.model ?? ""}</b>
    {d ? <span>fetching {d.repo}: {bytes(d.bytes_done)}{d.bytes_total ? " of " + bytes(d.bytes_total) : ""} {duration(d.eta_seconds)}</span> : g?.bytes_total ? <span>{bytes(g.bytes_done)} of {bytes(g.bytes_total)}</span> : null}
    <span class="grow" /><button class="danger" disabled={busy} onClick={() => act(async () => { await post("/admin/load/cancel"); await refresh(); })}>Cancel</button></div>
    <Bar label="Loading" value={(d ?? g)?.bytes_done ?? 0} max={(d ?? g)?.bytes_total ?? 0} /></div>;
}

function LoadForm(p: { model: Installed; onClose: () => void }) {
  const m = p.model, most = m.context ?? 131072;
  const [context, setContext] = useState(0), [mode, setMode] = useState("auto"), [kv, setKv] = useState("0"), [fit, setFit] = useState<Fit | null>(m.fit), [busy, act] = useAction();
  useEffect(() => {
    const abort = new AbortController();
    const timer = setTimeout(() => get<Fit>(`/admin/fit?model=${encodeURIComponent(m.repo)}&context=${context}`, abort.signal).then(setFit, () => {}), 120);
    return () => { clearTimeout(timer); abort.abort(); };
  }, [context]);
  return <form class="card" aria-label={"Load " + m.repo} onSubmit={(e) => { e.preventDefault(); act(async () => { const told = await load(m.repo, { mode, kv_bits: Number(kv), ...(context ? { context_window: context } : {}) }); p.onClose(); return told; }); }}>
    <label>Context: {context ? number(context, 0) + " tokens" : "the model's own"}{fit && fit.max_context > 0 ? `, up to ${number(fit.max_context, 0)} fit` : ""}
      <input type="range" min={0} max={most} step={1024} value={context} onInput={(e) => { const n = Number(e.currentTarget.value); setContext(n < 1024 ? 0 : n); }} /></label>
    <div class="row"><FitText fit={fit} /><span class="grow" />
      <label>Mode <select value={mode} onChange={(e) => setMode(e.currentTarget.value)}>{["auto", "dspark", "dflash", "lookup", "draft", "baseline"].map((x) => <option key={x}>{x}</option>)}</select></label>
      <label>KV cache <select value={kv} onChange={(e) => setKv(e.currentTarget.value)}><option value="0">full</option><option value="8">8-bit</option><option value="4">4-bit</option></select></label>
      <button type="button" onClick={p.onClose}>Close</button><button class="primary" disabled={busy}>Load</button></div>
  </form>;
}

export async function load(model: string, more: object = {}): Promise<string> {
  await post("/admin/load", { model, wait: false, ...more });
  await refresh();
  return "Loading " + model;
}

type Row = { kind: "head"; text: string } | { kind: "local"; m: Installed } | { kind: "pair"; p: Pair };

export function Models() {
  const status = useStore((s) => s.status), downloads = useStore((s) => s.downloads), health = useStore((s) => s.health);
  const inv = useFetched<Inventory>((signal) => get("/admin/models", signal), [health?.model, downloads.length], 10_000);
  const [name, setName] = useState(""), [filter, setFilter] = useState(() => wanted("models")), [busy, act] = useAction(), [removing, setRemoving] = useState<Installed | null>(null), [loading, setLoading] = useState("");
  const fits = (text: string) => text.toLowerCase().includes(filter.toLowerCase());
  const rows: Row[] = [];
  if (inv.value) {
    const local = inv.value.installed.filter((m) => fits(m.repo)), pairs = inv.value.models.filter((x) => fits(x.id + x.target));
    rows.push({ kind: "head", text: `On this machine (${inv.value.disk.total} in the cache)` }, ...local.map((m) => ({ kind: "local", m }) as const), { kind: "head", text: "Measured pairs" }, ...pairs.map((x) => ({ kind: "pair", p: x }) as const));
  }
  const chosen = inv.value?.installed.find((m) => m.repo === loading);
  const localRow = (m: Installed) => {
    const here = health?.target === m.repo || health?.target === m.path || health?.model === m.repo;
    return <li key={m.repo + m.path} class="model" aria-label={m.repo}>
      <div class="grow"><b>{m.repo}</b> {here && <span class="tag good">loaded</span>} {m.kind === "drafter" && <span class="tag">drafter</span>}
        <div class="dim">{[m.size, m.quantization, m.architecture, m.source].filter(Boolean).join(" · ")} {m.reason ? <span class="bad-text">{m.reason}</span> : <FitText fit={m.fit} />}</div></div>
      {m.kind === "model" && m.complete && !m.reason && !here && <button class="primary" disabled={busy} onClick={() => act(() => load(m.repo))}>{health?.model ? "Swap" : "Load"}</button>}
      {m.kind === "model" && m.complete && !m.reason && <button disabled={busy} aria-label={"Load " + m.repo + " with options"} onClick={() => setLoading(m.repo)}>Options…</button>}
      {here && <button disabled={busy} onClick={() => act(async () => { await post("/admin/unload"); await refresh(); return "Unloaded"; })}>Unload</button>}
      {m.source === "cache" && <button class="danger" disabled={busy || here} aria-label={"Remove " + m.repo} onClick={() => setRemoving(m)}>Remove</button>}
    </li>;
  };
  const pairRow = (x: Pair) => <li key={x.id} class="model" aria-label={x.id}>
    <div class="grow"><b>{x.id}</b> <span class="dim">{x.target}</span>
      <div class="dim">{x.speedup} with {x.mode} · {x.ram} · {x.fits == null ? "memory unknown" : x.fits ? "fits" : "too large for this machine"} · {x.ready ? "ready" : !x.target_installed ? "target missing" : "drafter missing"}{x.ceiling_tps ? ` · ~${number(x.ceiling_tps, 0)} tok/s plain ceiling here` : ""}</div></div>
    {x.ready ? <button class="primary" disabled={busy} onClick={() => act(() => load(x.target))}>Load</button>
      : <button disabled={busy || x.fits === false} onClick={() => act(async () => { await post("/admin/downloads", { model: x.target }); await refresh(); return "Downloading " + x.target; })}>Download</button>}
  </li>;
  return <div class="screen column">
    <h1>Models</h1>
    <form class="row" onSubmit={(e) => { e.preventDefault(); const m = name.trim(); if (m) act(async () => { await post("/admin/downloads", { model: m }); await refresh(); setName(""); return "Downloading " + m; }); }}>
      <input class="grow" aria-label="Model of the hub, or a path" placeholder="organisation/model, or a folder" value={name} onInput={(e) => setName(e.currentTarget.value)} />
      <button disabled={busy || !name.trim()}>Download</button>
      <button type="button" class="primary" disabled={busy || !name.trim()} onClick={() => act(() => load(name.trim()))}>Load</button></form>
    {status?.error && <Trouble text={status.error} />}
    {status?.loading && <LoadCard status={status} />}
    {downloads.map((d) => <DownloadRow key={d.id} d={d} />)}
    {chosen && <LoadForm key={chosen.repo} model={chosen} onClose={() => setLoading("")} />}
    {inv.error && <Trouble text={inv.error} again={inv.again} />}
    {!inv.value && !inv.error && <Empty title="Looking for models…" />}
    {inv.value && <><input type="search" aria-label="Find a model" placeholder="Find" value={filter} onInput={(e) => setFilter(e.currentTarget.value)} />
      <Rows items={rows} height={64} label="Models" row={(r) => (r.kind === "head" ? <li key={r.text} class="model head"><h2>{r.text}</h2></li> : r.kind === "local" ? localRow(r.m) : pairRow(r.p))} /></>}
    {removing && <Ask title={`Remove ${removing.repo}?`} action="Remove" danger onDone={(yes) => { const m = removing; setRemoving(null); if (yes) act(async () => { await post("/admin/models/remove", { model: m.repo }); inv.again(); return "Removed " + m.repo; }); }}>
      <p>{removing.size} are freed. It can be downloaded again.</p></Ask>}
  </div>;
}
