import { useEffect, useState } from "preact/hooks";
import { LogLine, get } from "./api";
import { Copy, Empty, Rows, Trouble, copy, useAction } from "./ui";

const linesKept = 1000;

export function Logs() {
  const [lines, setLines] = useState<LogLine[]>([]), [error, setError] = useState(""), [filter, setFilter] = useState(""), [busy, act] = useAction();
  useEffect(() => {
    let stop = false, last = 0, kept: LogLine[] = [], timer: ReturnType<typeof setTimeout>;
    const run = async () => {
      try {
        const r = await get<{ lines: LogLine[] }>("/admin/log?after=" + last);
        if (stop) return;
        setError("");
        if (r.lines.length) {
          last = r.lines[r.lines.length - 1].n;
          kept = [...kept, ...r.lines].slice(-linesKept);
          setLines(kept);
        }
      } catch (e) {
        setError(e instanceof Error ? e.message : String(e));
      }
      if (!stop) timer = setTimeout(run, 1000);
    };
    run();
    return () => { stop = true; clearTimeout(timer); };
  }, []);
  const shown = lines.filter((l) => (l.level + " " + l.text).toLowerCase().includes(filter.toLowerCase())).reverse();
  const text = (list: LogLine[]) => list.map((l) => `${l.time} ${l.level} ${l.text}`).join("\n");
  return <div class="screen column"><h1>Logs</h1>
    {error && <Trouble text={error} />}
    <div class="row"><input type="search" class="grow" aria-label="Find in the log" placeholder="Find" value={filter} onInput={(e) => setFilter(e.currentTarget.value)} /><Copy text={text(shown)} label="Copy lines" />
      <button disabled={busy} onClick={() => act(async () => { await copy(JSON.stringify(await get("/doctor"), null, 1) + "\n" + text(lines.slice(-200))); return "Diagnostics are copied; they hold no keys"; })}>Copy diagnostics</button></div>
    {shown.length ? <Rows items={shown} height={24} label="Log" row={(l) => <li key={l.n} class={"log " + l.level.toLowerCase()}><time>{l.time.slice(11, 19)}</time> <b>{l.level}</b> {l.text}</li>} /> : <Empty title={lines.length ? "Nothing is found" : "The log is empty"} />}
  </div>;
}
