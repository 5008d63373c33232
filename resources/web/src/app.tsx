// The frame around the screens: navigation, what the server does, and notices.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Agents } from "./agents";
import { get, menuHidden, setKey } from "./api";
import { Chat } from "./chat";
import { Live } from "./live";
import { Logs } from "./logs";
import { MachineScreen } from "./machine";
import { Models } from "./models";
import { Race } from "./race";
import { Settings } from "./settings";
import { connect, reconnect, useStore } from "./store";
import { Notice, Notices, number, percent } from "./ui";

const screens = ["chat", "models", "live", "machine", "race", "agents", "settings", "logs"] as const;
type Screen = (typeof screens)[number];
const names: Record<Screen, string> = { chat: "Chat", models: "Models", live: "Live", machine: "Machine", race: "Race", agents: "Agents", settings: "Settings", logs: "Logs" };
/** here is the screen that the address names, as #chat, #/lab/live or #/agents/codex. */
const here = (): Screen => screens.find((s) => location.hash.slice(1).split("/").slice(0, 3).includes(s)) ?? "chat";

function look(values: Record<string, unknown>) {
  const root = document.documentElement, appearance = values["ui.appearance"];
  root.dataset.look = appearance === "light" || appearance === "dark" ? appearance : "";
  root.style.setProperty("--zoom", String(typeof values["ui.text_zoom"] === "number" ? values["ui.text_zoom"] : 1));
}

function KeyForm() {
  const [text, setText] = useState(""), refused = useStore((s) => s.refused), [before] = useState(refused);
  return <main class="gate"><form class="card" onSubmit={(e) => { e.preventDefault(); setKey(text.trim()); setText(""); reconnect(); }}>
    <h1>This server needs its API key</h1><p>It was started with a key. Paste it here; this window keeps it until it is closed.</p>
    {refused > before && <p class="bad-text" role="alert">That is not its key.</p>}
    <label>API key<input type="password" autoComplete="off" value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>
    <div class="row end"><button class="primary" disabled={!text.trim()}>Continue</button></div></form></main>;
}

function Overview() {
  const h = useStore((s) => s.health), status = useStore((s) => s.status), requests = useStore((s) => s.requests), seen = useStore((s) => s.seen);
  const title = status?.loading ? "Loading" : h?.model ? (requests.length ? "Working" : "Ready") : h?.state === "asleep" ? "Asleep" : "No model";
  return <footer class="overview" aria-label="State">
    <span class={"dot " + (status?.loading ? "busy" : h?.model ? "good" : "")} /><b role="status">{title}</b><span>{h?.model ?? ""}</span><span class="dim">{h?.mode ?? ""}{h?.drafter ? " with " + h.drafter : ""}</span>
    <span class="grow" /><span>{requests.length ? requests.length + " running" : ""}</span>{seen.rounds > 0 && <span>{number(seen.committed / seen.rounds, 2)} per round, {percent(seen.accepted, seen.drafted)} accepted</span>}<code>{location.host}</code></footer>;
}

function App() {
  const [screen, go] = useState<Screen>(here), [notice, tell] = useState<Notice | null>(null);
  const connection = useStore((s) => s.connection), warnings = useStore((s) => s.health?.warnings ?? []);
  const [closed, close] = useState<string[]>([]);
  useEffect(() => {
    const moved = () => go(here());
    addEventListener("hashchange", moved);
    const key = (e: KeyboardEvent) => {
      const n = Number(e.key);
      if ((e.metaKey || e.ctrlKey) && !e.altKey && !e.shiftKey && n >= 1 && n <= screens.length) { e.preventDefault(); location.hash = screens[n - 1]; }
    };
    addEventListener("keydown", key);
    return () => { removeEventListener("hashchange", moved); removeEventListener("keydown", key); };
  }, []);
  useEffect(() => { document.title = names[screen] + " – Sparkbar"; }, [screen]);
  useEffect(() => { if (connection === "open") get<{ values: Record<string, unknown> }>("/admin/settings").then((r) => look(r.values), () => {}); }, [connection]);
  useEffect(() => { if (notice?.kind !== "good") return; const t = setTimeout(() => tell(null), 4000); return () => clearTimeout(t); }, [notice]);
  if (connection === "key") return <KeyForm />;
  const open = warnings.filter((w) => !closed.includes(w.code));
  return <Notices.Provider value={tell}>
    <header class="side"><p class="brand"><span aria-hidden="true">⚡︎</span> Sparkbar</p><nav aria-label="Screens"><ul>{screens.map((s, i) => <li key={s}><a href={"#" + s} aria-current={s === screen ? "page" : undefined} title={`Ctrl or ⌘ ${i + 1}`}>{names[s]}</a></li>)}</ul></nav></header>
    <main aria-label={names[screen]} tabIndex={0}>
      {connection === "lost" && <div class="banner bad" role="alert">The server does not answer. This page tries again every second.</div>}
      {menuHidden && !closed.includes("hidden") && <div class="banner attention" role="status"><span>The system hides Sparkbar's menu bar item. Everything that it does can be done here; System Settings › Menu Bar shows it again.</span><button class="small" onClick={() => close([...closed, "hidden"])}>Close</button></div>}
      {open.map((w) => <div key={w.code} class={"banner " + (w.level === "problem" ? "bad" : "attention")} role="status"><span>{w.message}</span><button class="small" onClick={() => close([...closed, w.code])}>Close</button></div>)}
      {notice && <div class={"banner " + notice.kind} role={notice.kind === "bad" ? "alert" : "status"}><span>{notice.text}</span><button class="small" onClick={() => tell(null)}>Close</button></div>}
      {screen === "chat" && <Chat />}{screen === "models" && <Models />}{screen === "live" && <Live />}{screen === "machine" && <MachineScreen />}
      {screen === "race" && <Race />}{screen === "agents" && <Agents />}{screen === "settings" && <Settings onChange={look} />}{screen === "logs" && <Logs />}
    </main>
    <Overview />
  </Notices.Provider>;
}

render(<App />, document.getElementById("app")!);
connect();
