// Small parts that every screen uses.
import { ComponentChildren, createContext } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

export function bytes(n: number | null | undefined): string {
  if (n == null) return "–";
  for (const [unit, size] of [["GB", 2 ** 30], ["MB", 2 ** 20], ["kB", 2 ** 10]] as const) if (n >= size) return (n / size).toFixed(n >= 10 * size ? 0 : 1) + " " + unit;
  return n + " B";
}
export const number = (n: number | null | undefined, digits = 1) => (n == null || !isFinite(n) ? "–" : n.toLocaleString("en", { maximumFractionDigits: digits }));
export const percent = (a: number, b: number) => (b > 0 ? Math.round((100 * a) / b) + " %" : "–");
export function duration(s: number | null | undefined): string {
  if (s == null) return "";
  if (s < 90) return Math.ceil(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  return number(s / 3600) + " h";
}

/** wanted is what the address names on a screen: #/models/org/name → org/name. */
export const wanted = (screen: string) => decodeURIComponent(location.hash.split("/" + screen + "/")[1] ?? "");

export type Notice = { kind: "good" | "bad"; text: string };
export const Notices = createContext<(n: Notice) => void>(() => {});

/** useAction runs something that may fail and tells about it. */
export function useAction(): [boolean, (work: () => Promise<string | void>) => Promise<void>] {
  const [busy, setBusy] = useState(false);
  const tell = useContext(Notices);
  return [busy, async (work) => {
    setBusy(true);
    try {
      const text = await work();
      if (text) tell({ kind: "good", text });
    } catch (e) {
      tell({ kind: "bad", text: e instanceof Error ? e.message : String(e) });
    }
    setBusy(false);
  }];
}

/** useFetched keeps the result of a call and asks again when deps change. */
export function useFetched<T>(work: (signal: AbortSignal) => Promise<T>, deps: unknown[], period = 0): { value: T | null; error: string; again: () => void } {
  const [value, setValue] = useState<T | null>(null), [error, setError] = useState(""), [turn, setTurn] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async () => {
      try {
        setValue(await work(abort.signal));
        setError("");
      } catch (e) {
        if (abort.signal.aborted) return;
        setError(e instanceof Error ? e.message : String(e));
      }
      if (period && !abort.signal.aborted) timer = setTimeout(run, period);
    };
    run();
    return () => { abort.abort(); clearTimeout(timer); };
  }, [...deps, turn]);
  return { value, error, again: () => setTurn((n) => n + 1) };
}

export function Empty(p: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><h2>{p.title}</h2>{p.children}</div>;
}

export function Trouble(p: { text: string; again?: () => void }) {
  return <div class="banner bad" role="alert"><span>{p.text}</span>{p.again && <button onClick={p.again}>Try again</button>}</div>;
}

export function Bar(p: { value: number; max: number; label: string; tone?: string }) {
  return <div class={"bar " + (p.tone ?? "")} role="progressbar" aria-label={p.label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={p.max > 0 ? Math.round((100 * p.value) / p.max) : undefined}>
    <div style={{ width: p.max > 0 ? Math.min(100, (100 * p.value) / p.max) + "%" : "0" }} /></div>;
}

export function Copy(p: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  return <button class="small" onClick={async () => {
    await copy(p.text);
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  }}>{done ? "Copied" : p.label ?? "Copy"}</button>;
}

export async function copy(text: string) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // pages of plain http on other hosts have no clipboard
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Ask is a dialog with one action. */
export function Ask(p: { title: string; action: string; danger?: boolean; onDone: (yes: boolean) => void; children?: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => { ref.current!.showModal(); }, []);
  return <dialog ref={ref} aria-label={p.title} onClose={() => p.onDone(false)}>
    <h2>{p.title}</h2>{p.children}
    <div class="row end"><button onClick={() => p.onDone(false)}>Cancel</button><button class={p.danger ? "danger" : "primary"} onClick={() => p.onDone(true)}>{p.action}</button></div>
  </dialog>;
}

export type Series = { label: string; color: string; values: (number | null)[]; width?: number };

/** Plot draws lines over x; it keeps one canvas and changes its data. */
export function Plot(p: { x: number[]; series: Series[]; label: string; height?: number; xLabel?: string }) {
  const box = useRef<HTMLDivElement>(null), plot = useRef<uPlot | null>(null);
  const data = [p.x, ...p.series.map((s) => s.values)] as uPlot.AlignedData;
  const latest = useRef(data);
  latest.current = data;
  const names = p.series.map((s) => s.label).join();
  useEffect(() => {
    const el = box.current!, style = getComputedStyle(el);
    const axis = { stroke: style.color, grid: { stroke: style.getPropertyValue("--line"), width: 1 }, ticks: { show: false } };
    const size = () => ({ width: Math.max(200, el.clientWidth), height: p.height ?? 180 });
    const u = new uPlot({
      ...size(), scales: { x: { time: false } }, cursor: { show: false }, legend: { show: false },
      axes: [{ ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100] }, { ...axis, size: 44 }],
      series: [{}, ...p.series.map((s) => ({ label: s.label, stroke: s.color, width: s.width ?? 2, points: { show: false } }))],
    }, latest.current, el);
    plot.current = u;
    const watch = new ResizeObserver(() => u.setSize(size()));
    watch.observe(el);
    return () => { watch.disconnect(); u.destroy(); plot.current = null; };
  }, [names]);
  useEffect(() => { plot.current?.setData(data); });
  return <figure><div class="plot" ref={box} role="img" aria-label={p.label} />
    <figcaption>{p.series.map((s) => <span key={s.label}><i class="key" style={{ background: s.color }} />{s.label}</span>)}{p.xLabel && <span>by {p.xLabel}</span>}</figcaption></figure>;
}

/** Rows shows a long list and renders only what is in sight. */
export function Rows<T>(p: { items: T[]; height: number; row: (item: T) => ComponentChildren; label: string }) {
  const [top, setTop] = useState(0), box = useRef<HTMLDivElement>(null), [tall, setTall] = useState(600);
  useEffect(() => {
    const el = box.current!, watch = new ResizeObserver(() => setTall(el.clientHeight));
    watch.observe(el);
    return () => watch.disconnect();
  }, []);
  const from = Math.max(0, Math.floor(top / p.height) - 5), to = Math.min(p.items.length, Math.ceil((top + tall) / p.height) + 5);
  return <div class="rows" ref={box} tabIndex={0} role="group" aria-label={p.label} onScroll={(e) => setTop((e.target as HTMLElement).scrollTop)}>
    <div style={{ height: from * p.height + "px" }} />
    <ul>{p.items.slice(from, to).map(p.row)}</ul>
    <div style={{ height: (p.items.length - to) * p.height + "px" }} />
  </div>;
}
