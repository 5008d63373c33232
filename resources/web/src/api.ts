// The way to the server: every call of the dashboard goes through this file.

export type Health = {
  status: string; state: string; model: string | null; mode: string | null; target?: string | null; drafter?: string | null;
  context_window?: number; max_output_tokens?: number; backend?: string; architecture?: string; version?: string;
  in_flight?: number; queued?: number; thinking_default?: string; supports_reasoning_effort?: boolean; max_draft?: string;
  warnings?: { code: string; level: string; message: string }[]; error?: string | null; weight_bytes?: number; drafter_bytes?: number;
  progress?: LoadProgress | null; download?: Download | null;
};
export type LoadProgress = { phase?: string; model?: string; bytes_done?: number; bytes_total?: number; eta_seconds?: number | null };
export type Round = { req: string; mode: string; i: number; drafted: number; accepted: number; committed: number; cap: number | null; source: string; ms: number; seq: number; t: number };
export type Prefill = { req: string; processed: number; total: number; done: boolean };
export type Stats = {
  mode: string; accept_len: number; tokens_per_sec: number; decode_tokens_per_sec: number; target_forwards: number; cap: number | null;
  prompt_tokens: number; cached_tokens: number; completion_tokens: number; ttft_seconds: number; roofline_ratio?: number;
};
export type RequestEvent = { id: string; state: string; model: string; prompt_tokens: number; client?: string; stats?: Stats; error?: string };
export type RunningRequest = { id: string; client?: string; state: string; model?: string | null; prompt_tokens: number; tokens?: number; completion_tokens?: number };
export type Download = {
  id: string; model: string; repo: string; state: string; bytes_done: number; bytes_total: number | null;
  bytes_per_second: number; eta_seconds: number | null; error: string | null;
};
export type Status = { ready: boolean; loading: boolean; model: string | null; error: string | null; phase?: string; download?: Download | null; progress?: LoadProgress | null; downloads?: Download[] };
export type Fit = { verdict: string; need_bytes: number; available_bytes: number; context: number; max_context: number; max_context_need_bytes: number; reason: string };
export type Installed = {
  repo: string; path: string; size_bytes: number; size: string; kind: string; source: string; complete: boolean; reason: string | null;
  architecture: string | null; quantization: string | null; context: number | null; fit: Fit | null;
};
export type Pair = {
  id: string; target: string; mode: string; dspark_drafter: string | null; dflash_drafter: string | null; ram: string; speedup: string;
  fits: boolean | null; target_installed: boolean; drafter_installed: boolean; ready: boolean; ceiling_tps: number | null;
};
export type Inventory = { models: Pair[]; installed: Installed[]; disk: { total: string }; loaded: string | null; model_dirs: string[] };
export type Step = { kind: string; label: string; command?: string; env?: Record<string, string>; path?: string; content?: string; fields?: Record<string, string> };
export type Integration = { id: string; name: string; protocol: string; summary: string; setup: Step[]; note?: string };
export type Finding = { code: string; level: string; message: string; fix: string };
export type FileChange = { path: string; diff: string; created: boolean; written: boolean; backup: string };
export type LogLine = { n: number; time: string; level: string; text: string };

/** Failure is an answer other than success, or none at all (status 0). */
export class Failure extends Error {
  constructor(readonly status: number, message: string) { super(message); }
}

const token = document.querySelector<HTMLMetaElement>('meta[name="sparkbar-token"]')?.content ?? "";
const keyName = "sparkbar.key";

// The app opens the page as #/SCREEN?key=…; the key must not stay there.
const behind = new URLSearchParams(location.hash.split("?")[1] ?? "");
if (behind.get("key")) sessionStorage.setItem(keyName, behind.get("key")!);
/** menuHidden: the system hides the app's menu bar item, so this window stands in for it. */
export const menuHidden = behind.get("menubar") === "hidden";
if (location.hash.includes("?")) history.replaceState(null, "", location.pathname + location.hash.split("?")[0]);

export const apiKey = () => sessionStorage.getItem(keyName) ?? "";
export function setKey(key: string) {
  if (key) sessionStorage.setItem(keyName, key);
  else sessionStorage.removeItem(keyName);
}

function headers(extra?: Record<string, string>): Record<string, string> {
  const h: Record<string, string> = { "X-Sparkbar-Token": token, ...extra };
  if (apiKey()) h.Authorization = "Bearer " + apiKey();
  return h;
}

async function ask(method: string, path: string, body?: unknown, signal?: AbortSignal, extra?: Record<string, string>): Promise<Response> {
  let r: Response;
  try {
    r = await fetch(path, {
      method, signal, cache: "no-store",
      headers: headers(body === undefined ? extra : { "Content-Type": "application/json", ...extra }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (e) {
    if (signal?.aborted) throw e;
    throw new Failure(0, "The server does not answer.");
  }
  if (!r.ok) {
    let message = r.statusText || "status " + r.status;
    try {
      const v = await r.json();
      message = typeof v.error === "string" ? v.error : v.error?.message ?? message;
    } catch { /* the status says it */ }
    throw new Failure(r.status, message);
  }
  return r;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> { return (await ask("GET", path, undefined, signal)).json(); }
export async function post<T>(path: string, body: unknown = {}, signal?: AbortSignal, extra?: Record<string, string>): Promise<T> {
  return (await ask("POST", path, body, signal, extra)).json();
}
export async function patch<T>(path: string, body: unknown): Promise<T> { return (await ask("PATCH", path, body)).json(); }

export type ServerEvent = { event: string; data: string };

/** stream yields the server-sent events of an answer until it ends. */
export async function* stream(method: string, path: string, body: unknown, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  const r = await ask(method, path, body, signal);
  const reader = r.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    const frames = rest.split("\n\n");
    rest = frames.pop()!;
    for (const frame of frames) {
      let event = "message", data = "";
      for (const line of frame.split("\n")) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) data += (data ? "\n" : "") + line.slice(6);
      }
      if (data) yield { event, data };
    }
  }
}
