import { RunningRequest, get, post } from "./api";
import { refresh, useStore } from "./store";
import { Bar, Empty, Plot, number, percent, useAction, useFetched } from "./ui";

type RoundStats = { rounds: number; position_acceptance: number[]; position_offered: number[]; accept_histogram: Record<string, number> };

const colors: Record<string, string> = { drafter: "var(--spark)", lookup: "var(--lookup)", plain: "var(--grey)" };

function Request(p: { r: RunningRequest }) {
  const [busy, act] = useAction(), r = p.r;
  return <li class="row"><code>{r.id}</code><span>{r.client}</span><span class="tag">{r.state}</span><span class="dim">{r.prompt_tokens} prompt tokens</span><span class="grow" />
    <button class="danger" disabled={busy} aria-label={"Stop " + r.id} onClick={() => act(async () => { await post(`/admin/requests/${encodeURIComponent(r.id)}/cancel`); await refresh(); })}>Stop</button></li>;
}

export function Live() {
  const rounds = useStore((s) => s.rounds), seen = useStore((s) => s.seen), requests = useStore((s) => s.requests), prefill = useStore((s) => s.prefill), health = useStore((s) => s.health);
  const stats = useFetched<{ stats: RoundStats }>((signal) => get("/rounds?limit=1", signal), [health?.model], 2000);
  const recent = rounds.slice(-120), s = stats.value?.stats;
  const positions = s?.position_offered.map((n, i) => ({ i, n, rate: s.position_acceptance[i] })).filter((p) => p.n >= Math.max(3, s.rounds / 50)) ?? [];
  const histogram = Object.entries(s?.accept_histogram ?? {}).map(([k, n]) => [Number(k), n] as const).sort((a, b) => a[0] - b[0]);
  const most = Math.max(1, ...histogram.map(([, n]) => n));
  return <div class="screen">
    <h1>Live</h1>
    <div class="tiles">
      <div><b>{number(seen.rounds ? seen.committed / seen.rounds : NaN, 2)}</b>tokens per round</div>
      <div><b>{percent(seen.accepted, seen.drafted)}</b>drafts accepted</div>
      <div><b>{number(seen.rounds, 0)}</b>rounds</div>
      <div><b>{number(seen.committed, 0)}</b>tokens</div>
      <div><b>{number(seen.lookup, 0)}</b>free lookup tokens</div>
    </div>
    <section class="card" aria-label="Requests"><h2>Requests</h2>
      {prefill && <div><p>Reading the prompt of <code>{prefill.req}</code>: {prefill.processed} of {prefill.total}</p><Bar label="Prompt read" value={prefill.processed} max={prefill.total} /></div>}
      {requests.length ? <ul>{requests.map((r) => <Request key={r.id} r={r} />)}</ul> : <p class="dim">None are running.</p>}</section>
    {rounds.length === 0 ? <Empty title="No rounds yet"><p>They appear here as soon as a client, or the <a href="#chat">chat</a>, asks something.</p></Empty> : <>
      <section class="card" aria-label="Rounds"><h2>Last rounds</h2>
        <div class="ribbon" role="img" aria-label={`The last ${recent.length} rounds committed ${recent.reduce((n, r) => n + r.committed, 0)} tokens`}>
          {recent.map((r) => <i key={r.seq} title={`round ${r.i}: ${r.accepted} of ${r.drafted} accepted, cap ${r.cap ?? "–"}, ${r.ms} ms, ${r.source}`} style={{ height: 8 * r.committed + "px", background: colors[r.source] ?? "var(--grey)" }} />)}</div>
        <p class="legend">{Object.entries(colors).map(([k, c]) => <span key={k}><i class="key" style={{ background: c }} />{k}</span>)}</p>
        <Plot label="Drafted and committed tokens, cap and milliseconds of the last rounds" xLabel="round" x={recent.map((_, i) => rounds.length - recent.length + i)}
          series={[{ label: "drafted", color: "#8a94a6", values: recent.map((r) => r.drafted) }, { label: "committed", color: "#4d6bfe", values: recent.map((r) => r.committed) }, { label: "cap", color: "#d08400", values: recent.map((r) => r.cap) }, { label: "ms", color: "#2e9e5b", values: recent.map((r) => r.ms), width: 1 }]} /></section>
      <div class="two">
        <section class="card" aria-label="Acceptance by position"><h2>Acceptance by draft position</h2>
          {positions.map((p) => <div class="hbar" key={p.i}><span>{p.i + 1}</span><Bar label={"Position " + (p.i + 1)} value={p.rate} max={1} /><span>{percent(p.rate, 1)}</span></div>)}{!positions.length && <p class="dim">Too few rounds yet.</p>}</section>
        <section class="card" aria-label="Tokens per round"><h2>Rounds by committed tokens</h2>
          {histogram.map(([k, n]) => <div class="hbar" key={k}><span>{k}</span><Bar label={`Rounds with ${k} tokens`} value={n} max={most} /><span>{n}</span></div>)}</section>
      </div></>}
  </div>;
}
