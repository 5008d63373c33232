import { Finding, get } from "./api";
import { useStore } from "./store";
import { Bar, Empty, Plot, Trouble, bytes, number, useFetched } from "./ui";

type Point = { context: number; ceiling_tps: number | null };
type Machine = {
  chip: { name: string }; cores: number; os: string; arch: string; bandwidth: { gb_s: number | null; source: string; method?: string };
  memory: { total_bytes: number; pressure: string; free_percent: number | null; swap_used_bytes: number; swap_total_bytes: number; wired_limit_mb: number | null; allocator: { active_bytes: number; peak_bytes: number } };
  model: { target: string; mode: string; context_window: number; kv_bytes_per_token: number; target_weights: { total_bytes: number } } | null;
  roofline: { at_zero: Point; at_last_request: Point; at_context_window?: Point } | null;
  verdict: { level: string; headline: string; findings: unknown[]; levers: unknown[] } | null;
  guard: { enabled: boolean; level: string; sheds: number; last_shed: unknown };
};
type Calibration = { available: boolean; reason?: string; verify_ms?: Record<string, number>; round_overhead_ms?: number; recommendation?: unknown };

const text = (v: unknown) => (typeof v === "string" ? v : (v as { message?: string; text?: string; headline?: string })?.message ?? (v as { text?: string }).text ?? (v as { headline?: string }).headline ?? JSON.stringify(v));

export function MachineScreen() {
  const health = useStore((s) => s.health), last = useStore((s) => s.last);
  const m = useFetched<Machine>((signal) => get("/machine", signal), [health?.model], 5000);
  const cal = useFetched<Calibration>((signal) => get("/calibration", signal), [health?.model]);
  const doctor = useFetched<{ ok: boolean; findings: Finding[] }>((signal) => get("/doctor", signal), []);
  const v = m.value;
  if (!v) return <div class="screen"><h1>Machine</h1>{m.error ? <Trouble text={m.error} again={m.again} /> : <Empty title="Measuring…" />}</div>;
  const used = v.memory.free_percent == null ? null : (v.memory.total_bytes * (100 - v.memory.free_percent)) / 100;
  const curve = Object.entries(cal.value?.verify_ms ?? {}).map(([k, ms]) => [Number(k), ms] as const).sort((a, b) => a[0] - b[0]);
  const ratio = last?.roofline_ratio;
  return <div class="screen">
    <h1>Machine</h1>
    {v.verdict && <section class="card" aria-label="Verdict"><h2>{v.verdict.headline} <span class={"tag " + v.verdict.level}>{v.verdict.level}</span></h2>
      {v.verdict.findings.map((x, i) => <p key={i}>{text(x)}</p>)}{v.verdict.levers.length > 0 && <ul>{v.verdict.levers.map((x, i) => <li key={i}>{text(x)}</li>)}</ul>}</section>}
    <div class="two">
      <section class="card" aria-label="Hardware"><h2>{v.chip.name}</h2><dl>
        <dt>Cores</dt><dd>{v.cores} ({v.os}/{v.arch})</dd><dt>Bandwidth</dt><dd>{number(v.bandwidth.gb_s)} GB/s {v.bandwidth.source}</dd>
        <dt>Memory</dt><dd>{bytes(used)} of {bytes(v.memory.total_bytes)} in use</dd><dt>Pressure</dt><dd><span class={"tag " + (v.memory.pressure === "normal" ? "good" : "attention")}>{v.memory.pressure}</span></dd>
        <dt>Swap</dt><dd>{bytes(v.memory.swap_used_bytes)} of {bytes(v.memory.swap_total_bytes)}</dd>{v.memory.wired_limit_mb != null && <><dt>GPU limit</dt><dd>{v.memory.wired_limit_mb} MB</dd></>}
        <dt>This program</dt><dd>{bytes(v.memory.allocator.active_bytes)} for the model, at most {bytes(v.memory.allocator.peak_bytes)}</dd>
        <dt>Guard</dt><dd>{v.guard.enabled ? `on, ${v.guard.sheds} times active` : "off"}</dd></dl>
        <Bar label="Memory in use" value={used ?? 0} max={v.memory.total_bytes} tone={v.memory.pressure === "normal" ? "" : "attention"} /></section>
      <section class="card" aria-label="Ceiling"><h2>Plain decoding ceiling</h2>
        {v.roofline ? <><dl><dt>Empty context</dt><dd>{number(v.roofline.at_zero.ceiling_tps)} tok/s</dd><dt>Last request</dt><dd>{number(v.roofline.at_last_request.ceiling_tps)} tok/s</dd>
          {v.roofline.at_context_window && <><dt>Full context</dt><dd>{number(v.roofline.at_context_window.ceiling_tps)} tok/s</dd></>}</dl>
          {ratio != null ? <><p>The last answer came at {Math.round(100 * ratio)} % of the ceiling{ratio > 1 ? ": speculation beats plain decoding" : ""}.</p><Bar label="Share of the ceiling" value={Math.min(1, ratio)} max={1} tone={ratio >= 0.75 ? "good" : ratio >= 0.5 ? "attention" : "bad"} /></> : <p class="dim">No answer was measured yet.</p>}</> : <p class="dim">No model is loaded.</p>}</section>
    </div>
    <section class="card" aria-label="Calibration"><h2>What a round costs here</h2>
      {curve.length > 1 ? <Plot label="Milliseconds of a verification by rows" xLabel="rows" x={curve.map(([k]) => k)} series={[{ label: "verify ms", color: "#4d6bfe", values: curve.map(([, ms]) => ms) }]} /> : <p class="dim">{cal.value?.reason ?? (cal.error || "Not measured yet.")}</p>}</section>
    <section class="card" aria-label="Findings"><h2>Doctor <button class="small" onClick={doctor.again}>Check again</button></h2>
      {doctor.error && <Trouble text={doctor.error} again={doctor.again} />}{doctor.value?.findings.length === 0 && <p>Nothing is wrong.</p>}
      <ul>{doctor.value?.findings.map((f) => <li key={f.code + f.message}><span class={"tag " + f.level}>{f.level}</span> {f.message} <span class="dim">{f.fix}</span></li>)}</ul></section>
  </div>;
}
