// What the whole page knows: one stream of events from the server, kept small.
import { useEffect, useState } from "preact/hooks";
import { Download, Failure, Health, Prefill, RequestEvent, Round, RunningRequest, Stats, Status, get, stream } from "./api";

/** window of rounds that the page keeps. */
export const roundsKept = 400;

export type Connection = "connecting" | "open" | "lost" | "key";

export type State = {
  connection: Connection;
  refused: number; // times that no connection came about
  health: Health | null;
  status: Status | null;
  downloads: Download[];
  requests: RunningRequest[];
  rounds: Round[];
  prefill: Prefill | null;
  last: Stats | null; // of the latest answer
  seen: { rounds: number; committed: number; drafted: number; accepted: number; lookup: number };
};

const nothing = { rounds: 0, committed: 0, drafted: 0, accepted: 0, lookup: 0 };
let state: State = { connection: "connecting", refused: 0, health: null, status: null, downloads: [], requests: [], rounds: [], prefill: null, last: null, seen: nothing };
const listeners = new Set<() => void>();
let scheduled = false;

function set(change: Partial<State>) {
  state = { ...state, ...change };
  if (scheduled) return;
  scheduled = true;
  // Many events make one rendering, at most 15 a second.
  setTimeout(() => { scheduled = false; listeners.forEach((f) => f()); }, 66);
}

export const current = () => state;

/** useStore renders its component anew when the chosen part has changed. */
export function useStore<T>(choose: (s: State) => T): T {
  const [value, update] = useState(() => choose(state));
  useEffect(() => {
    const f = () => update(() => choose(state));
    listeners.add(f);
    f();
    return () => { listeners.delete(f); };
  }, []);
  return value;
}

export function addRound(r: Round) {
  const rounds = state.rounds.length >= roundsKept ? state.rounds.slice(1 - roundsKept) : state.rounds.slice();
  rounds.push(r);
  const s = state.seen;
  set({
    rounds,
    seen: {
      rounds: s.rounds + 1, committed: s.committed + r.committed, drafted: s.drafted + r.drafted, accepted: s.accepted + r.accepted,
      lookup: s.lookup + (r.source === "lookup" ? r.accepted : 0),
    },
  });
}

let asking: Promise<void> | null = null, overtaken = false;

/** refresh asks for what events do not carry. An answer that something has overtaken is asked for again, so that the latest one counts; of what changes without a pause the third is shown, and soon the next. */
export function refresh(): Promise<void> {
  overtaken = true;
  return asking ??= (async () => {
    for (let tries = 1; overtaken && tries <= 3; tries++) {
      overtaken = false;
      try {
        const [status, running] = await Promise.all([get<Status>("/admin/status"), get<{ requests: RunningRequest[] }>("/admin/requests")]);
        if (!overtaken || tries === 3) set({ status, requests: running.requests, downloads: status.downloads ?? [] });
      } catch (e) {
        if (e instanceof Failure && e.status === 401) set({ connection: "key" });
      }
    }
    asking = null;
    if (overtaken) setTimeout(refresh, 200);
  })();
}

function onRequest(e: RequestEvent) {
  const others = state.requests.filter((r) => r.id !== e.id);
  if (e.state === "queued" || e.state === "running") others.push({ id: e.id, client: e.client, state: e.state, model: e.model, prompt_tokens: e.prompt_tokens });
  else if (state.prefill?.req === e.id) set({ prefill: null });
  set(e.stats ? { requests: others, last: e.stats } : { requests: others });
}

function onEvent(name: string, data: string) {
  const v = JSON.parse(data);
  switch (name) {
    case "state": {
      const before = state.health;
      set({ health: v });
      if (before?.model !== v.model) set({ rounds: [], seen: nothing, prefill: null, last: null });
      refresh();
      break;
    }
    case "round": addRound(v); break;
    case "prefill": set({ prefill: v.done ? null : v }); break;
    case "request":
      overtaken = true;
      onRequest(v);
      break;
    case "download": {
      overtaken = true;
      const others = state.downloads.filter((d) => d.id !== v.id);
      // One that failed stays, with its reason; what somebody has cancelled goes.
      set({ downloads: v.state === "cancelled" || ["done", "failed"].includes(v.state) && !v.error ? others : [...others, v] });
      break;
    }
  }
}

/** connect follows the server's events for as long as the page lives. */
export async function connect() {
  for (;;) {
    try {
      for await (const e of stream("GET", "/admin/events", undefined, new AbortController().signal)) {
        if (state.connection !== "open") set({ connection: "open" });
        onEvent(e.event, e.data);
      }
      set({ connection: "lost" });
    } catch (e) {
      set({ connection: e instanceof Failure && e.status === 401 ? "key" : "lost", refused: state.refused + 1 });
    }
    // Without the right key there is nothing to try again.
    await new Promise((done) => { wake = done as () => void; if (state.connection !== "key") setTimeout(done, 1000); });
  }
}

let wake = () => {};

/** reconnect begins again at once, with a new key. */
export function reconnect() { wake(); }
