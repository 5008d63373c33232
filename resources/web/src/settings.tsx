import { useState } from "preact/hooks";
import { get, patch } from "./api";
import { useStore } from "./store";
import { Trouble, useAction, useFetched } from "./ui";

type Kind = "truth" | "number" | "text" | "list" | string[];
/** A setting: key, what it is for, its kind, and when a change holds. */
type Setting = [key: string, about: string, kind: Kind, when: "now" | "next load" | "restart"];

const groups: [string, Setting[]][] = [
  ["General", [["ui.appearance", "Appearance", ["system", "light", "dark"], "now"], ["ui.text_zoom", "Text size", ["0.8", "0.9", "1", "1.1", "1.25", "1.4", "1.6"], "now"], ["ui.detail", "Detail", ["simple", "advanced", "developer"], "now"],
    ["login.enabled", "Start at login", "truth", "now"], ["log.level", "Log level", ["debug", "info", "warn", "error"], "now"]]],
  ["Server", [["server.host", "Address to listen on", "text", "now"], ["server.port", "Port, 0 = any free one", "number", "now"], ["server.allowed_hosts", "Names accepted in the Host header", "list", "now"], ["server.allowed_origins", "Web origins whose pages may call the API", "list", "now"],
    ["server.queue_limit", "Requests that may wait", "number", "restart"], ["server.autostart", "Start the server with the app", "truth", "now"]]],
  ["Models", [["model.autoload", "Loaded at the start", "text", "restart"], ["model.dirs", "Folders with models", "list", "now"], ["model.pinned", "Never unloaded when idle", "list", "now"], ["model.switch", "Requests may switch the model", "truth", "now"],
    ["model.idle_unload", "Minutes without a request until it is unloaded, 0 = never", "number", "now"], ["model.context_window", "Context in tokens, 0 = the model's own", "number", "next load"], ["model.kv_bits", "KV cache bits, 0 = full", ["0", "4", "8"], "next load"]]],
  ["Decoding", [["decode.mode", "Mode", ["auto", "dspark", "dflash", "lookup", "draft", "baseline"], "next load"], ["decode.max_draft", "Drafted tokens per round, a number or auto", "text", "next load"], ["decode.lookup_drafts", "Lookup beside a drafter", "truth", "next load"],
    ["decode.confidence_threshold", "Cut drafts below this confidence", "number", "next load"], ["decode.drafter_window", "Context of a draft block, 0 = all", "number", "next load"]]],
  ["Answers", [["generate.temperature", "Temperature", "number", "now"], ["generate.top_p", "Top-p", "number", "now"], ["generate.top_k", "Top-k", "number", "now"], ["generate.max_tokens", "Longest answer", "number", "now"],
    ["generate.thinking", "Thinking", "truth", "next load"], ["generate.reasoning_effort", "Reasoning effort", ["low", "medium", "high", "xhigh"], "next load"]]],
  ["Memory and power", [["memory.guard", "Give memory back under pressure", "truth", "next load"], ["power.prevent_sleep", "Keep the machine awake", ["never", "requests", "always"], "now"], ["quit.grace", "Seconds for running answers at quit", "number", "now"], ["prefix_cache.slots", "Conversations kept for reuse", "number", "restart"]]],
  ["Downloads", [["hub.offline", "Never use the network for models", "truth", "restart"], ["hub.hosts", "Further hosts for downloads", "list", "restart"]]],
  ["Menu bar", [["menubar.text", "Text", ["auto", "none", "rate+accept", "memory"], "now"], ["menubar.ribbon", "Rounds in the menu", "truth", "now"]]],
];

type Reply = { path: string; values: Record<string, unknown> };

function read(kind: Kind, text: string): unknown {
  if (text.trim() === "") return null;
  if (kind === "number" || (Array.isArray(kind) && kind.every((k) => !isNaN(Number(k))))) return Number(text);
  if (kind === "list") return text.split(/[\n,]/).map((s) => s.trim()).filter(Boolean);
  if (kind === "text" && /^\d+$/.test(text)) return Number(text);
  return text;
}
const shown = (v: unknown) => (v == null ? "" : Array.isArray(v) ? v.join(", ") : String(v));

function Row(p: { s: Setting; value: unknown; save: (key: string, v: unknown) => Promise<void> }) {
  const [key, about, kind, when] = p.s, [text, setText] = useState<string | null>(null), [busy, act] = useAction(), id = "set-" + key.replaceAll(".", "-");
  const save = (v: unknown) => act(async () => { await p.save(key, v); setText(null); return about + (when === "now" ? " is saved" : when === "restart" ? " is saved and holds after a restart" : " is saved and holds from the next load on"); });
  return <div class="setting"><label for={id}>{about}<span class="dim"> <code>{key}</code> {when === "now" ? "" : when}</span></label>
    {kind === "truth" ? <select id={id} disabled={busy} value={p.value == null ? "" : String(p.value)} onChange={(e) => save(e.currentTarget.value === "" ? null : e.currentTarget.value === "true")}><option value="">default</option><option value="true">on</option><option value="false">off</option></select>
      : Array.isArray(kind) ? <select id={id} disabled={busy} value={shown(p.value)} onChange={(e) => save(read(kind, e.currentTarget.value))}><option value="">default</option>{kind.map((k) => <option key={k}>{k}</option>)}</select>
        : <span class="row"><input id={id} value={text ?? shown(p.value)} placeholder="default" onInput={(e) => setText(e.currentTarget.value)} onKeyDown={(e) => { if (e.key === "Enter" && text != null) save(read(kind, text)); }} />
          {text != null && <button class="primary small" disabled={busy} onClick={() => save(read(kind, text))}>Save</button>}</span>}
  </div>;
}

export function Settings(p: { onChange: (values: Record<string, unknown>) => void }) {
  const s = useFetched<Reply>((signal) => get("/admin/settings", signal), []), [now, setNow] = useState<Reply | null>(null);
  const health = useStore((x) => x.health), value = now ?? s.value;
  const save = async (key: string, v: unknown) => { const r = await patch<Reply>("/admin/settings", { [key]: v }); setNow(r); p.onChange(r.values); };
  return <div class="screen"><h1>Settings</h1>
    {s.error && <Trouble text={s.error} again={s.again} />}
    {value && <>{groups.map(([name, list]) => <section class="card" key={name} aria-label={name}><h2>{name}</h2>{list.map((x) => <Row key={x[0]} s={x} value={value.values[x[0]]} save={save} />)}</section>)}
      <section class="card" aria-label="About"><h2>About</h2><p>Sparkbar {health?.version}, {health?.backend} backend. Settings are in <code>{value.path}</code>; edits of the file hold at once.</p></section></>}
  </div>;
}
