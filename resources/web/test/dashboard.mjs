// Drives the dashboard in Chromium the way a person does. One argument: a JSON
// object with what the Go test has started. Prints one line per thing that was
// done; an error ends with status 1.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { mkdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";

const setup = JSON.parse(process.argv[2]); // base, keyed, empty, many, stopped, key, shots, home, modules, parts
const require = createRequire(join(setup.modules, "package.json"));
const { chromium } = require("playwright-core");
const axe = await readFile(require.resolve("axe-core/axe.min.js"), "utf8");

const browser = await chromium.launch({
  executablePath: "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
const faults = [];
const did = (text) => console.log("did " + text);

/** open returns a page whose errors and policy violations are noted. */
async function open(base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1120, height: 760 }, ...options });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await context.addInitScript(() => addEventListener("securitypolicyviolation", (e) => console.error("policy violation: " + e.violatedDirective + " " + e.blockedURI)));
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on("pageerror", (e) => faults.push(e.message));
  page.on("console", (m) => { if (m.text().includes("policy violation")) faults.push(m.text()); });
  await page.goto(base.includes("#") ? base : base + "/");
  return page;
}
const to = (page, screen) => page.click(`nav[aria-label=Screens] a[href="#${screen}"]`);
const button = (page, name, where = page) => where.getByRole("button", { name, exact: true });
const card = (page, name) => page.locator(`[aria-label="${name}"]`);
/** ready waits for the page to say so, and for the server to be done with loading and warming up. */
const ready = async (page) => {
  await page.waitForFunction(async () => (await (await fetch("/health")).json()).state === "ready", null, { polling: 100 });
  await page.locator(".overview b", { hasText: "Ready" }).waitFor();
};
/** unload clicks again while the server is still busy with the load before. */
const unload = async (page, name) => {
  const none = page.locator(".overview b", { hasText: "No model" }), click = card(page, name).getByRole("button", { name: "Unload", exact: true });
  for (let i = 0; i < 100 && !(await none.count()); i++) {
    if (await click.isEnabled({ timeout: 1000 }).catch(() => false)) await click.click({ timeout: 1000 }).catch(() => {});
    await page.waitForTimeout(300);
  }
  await none.waitFor();
  await page.waitForFunction(async () => (await (await fetch("/health")).json()).state === "idle", null, { polling: 100 });
};
const notice = (page, text) => page.locator(".banner", { hasText: text }).first().waitFor();

async function ask(page, text) {
  const before = await page.locator(".strip").count();
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await page.waitForFunction((n) => document.querySelectorAll(".strip").length > n, before);
  return page.locator(".turn.assistant .markdown").last().innerText();
}

const screens = ["chat", "models", "live", "machine", "race", "agents", "settings", "logs"];

/** scan looks for what keeps people out. */
async function scan(page, name) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const result = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const serious = result.violations.filter((v) => v.impact === "serious" || v.impact === "critical");
  assert.deepEqual(serious.map((v) => `${v.id}: ${v.nodes.map((n) => n.html).join(" ; ").slice(0, 400)}`), [], name);
}

const parts = {
  // From the address to an answer: one click and a line of text.
  async chat() {
    const page = await open(setup.base);
    await ready(page);
    await page.getByRole("button", { name: "Tell me a story" }).click();
    await button(page, "Send").click();
    await page.locator(".strip").waitFor();
    did("an answer after 2 clicks");
    const first = await page.locator(".turn.assistant .markdown").innerText();
    assert.match(first, /Once upon a time/);
    await button(page, "Regenerate").click();
    await page.waitForFunction(() => document.querySelectorAll(".strip").length === 1 && !document.querySelector(".compose .danger"));
    assert.equal(await page.locator(".turn.assistant .markdown").innerText(), first);
    did("regenerated, with the same words");
    await button(page, "Options").click();
    await page.getByLabel("Most tokens").fill("5");
    await page.getByLabel("System prompt").fill("Be short.");
    await ask(page, "What day comes after Monday?");
    assert.match(await page.locator(".strip").last().innerText(), /\b5 tokens/);
    await page.getByLabel("Most tokens").fill("");
    await page.getByLabel("System prompt").fill("");
    await page.locator("label", { hasText: "Thinking" }).locator("select").selectOption("on");
    await ask(page, "What is 2 + 2?");
    if (await page.locator("details summary").count()) await page.locator("details summary").first().click();
    did("asked with options and with thinking");
    await button(page, "New chat").click();
    await page.locator(".empty").waitFor();
    assert.equal(await page.locator(".chats li").count(), 2);
    await page.reload();
    await ready(page);
    assert.equal(await page.locator(".chats li").count(), 2, "chats are kept");
    await page.getByRole("button", { name: "Delete chat Tell me a story" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".chats li").length === 1);
    did("chats begun, kept and deleted");
    // Markup of an answer stays text or becomes harmless.
    await page.route("**/v1/chat/completions", (r) => r.fulfill({ contentType: "text/event-stream", body:
      "data: " + JSON.stringify({ choices: [{ delta: { content: "# T\n```js\nlet a = 1\n```\n<img src=x onerror=alert(1)><script>alert(1)</script>[l](javascript:alert(1))" } }] }) + "\n\ndata: " + JSON.stringify({ choices: [], x_mlx_dspark: { mode: "lookup", ttft_seconds: 0 } }) + "\n\ndata: [DONE]\n\n" }));
    await ask(page, "x");
    await button(page, "Copy", page.locator(".markdown")).click();
    assert.equal((await page.evaluate(() => navigator.clipboard.readText())).trim(), "let a = 1");
    assert.equal(await page.locator(".markdown img, .markdown script, .markdown a[href^=javascript]").count(), 0);
    await page.unroute("**/v1/chat/completions");
    did("code copied, foreign markup made harmless");
    await page.route("**/v1/chat/completions", (r) => r.fulfill({ status: 503, contentType: "application/json", body: JSON.stringify({ error: { message: "busy just now" } }) }));
    await page.getByLabel("Message", { exact: true }).fill("y");
    await button(page, "Send").click();
    await page.locator("[role=alert]", { hasText: "busy just now" }).waitFor();
    did("an error is shown in place");
  },

  async stop() { // needs the real small model: the demo has answered before one can click
    const page = await open(setup.base);
    await ready(page);
    await to(page, "models");
    await card(page, setup.smollm2).getByRole("button", { name: "Swap", exact: true }).click();
    await page.locator(".overview span", { hasText: setup.smollm2 }).waitFor();
    await ready(page);
    did("swapped to SmolLM2");
    // An answer goes on until it is stopped, however fast the machine is.
    await page.route("**/v1/chat/completions", (r) => r.continue({ postData: JSON.stringify({ ...r.request().postDataJSON(), max_tokens: 8000, logit_bias: { 0: -100, 2: -100 } }) }));
    await to(page, "chat");
    await page.getByLabel("Message", { exact: true }).fill("Write a very long story about the sea.");
    await button(page, "Send").click();
    await page.locator(".turn.assistant .markdown", { hasText: /\w+ \w+/ }).waitFor();
    const live = await open(setup.base);
    await to(live, "live");
    await button(live, /^Stop /).waitFor();
    await live.locator(".ribbon i").first().waitFor();
    did("rounds seen as they happen");
    await live.screenshot({ path: join(setup.shots, "live-running.png") });
    await live.locator("section[aria-label=Requests] button.danger").first().click();
    await page.locator(".turn.assistant [role=alert]").waitFor();
    did("a request stopped from another window");
    await live.close();
    await page.getByLabel("Message", { exact: true }).fill("Write a very long story about the moon.");
    await button(page, "Send").click();
    await page.waitForFunction(() => /\w+ \w+/.test([...document.querySelectorAll(".turn.assistant .markdown")].at(-1)?.textContent ?? "") && document.querySelectorAll(".turn.assistant").length === 2);
    await button(page, "Stop").click();
    await page.locator(".turn", { hasText: "Stopped." }).waitFor();
    did("an answer stopped");
    await to(page, "models");
    await card(page, setup.smollm2).getByRole("button", { name: /with options/ }).click();
    await page.getByLabel(/^Context:/).fill("4096");
    await page.locator("label", { hasText: "4,096 tokens" }).waitFor();
    await page.locator("form.card label", { hasText: "Mode" }).locator("select").selectOption("lookup");
    await page.locator("form.card label", { hasText: "KV cache" }).locator("select").selectOption("8");
    await button(page, "Load", page.locator("form.card")).click();
    await notice(page, "Loading");
    await page.waitForFunction(async () => { const h = await (await fetch("/health")).json(); return h.context_window === 4096 && h.kv_bits === 8 && h.mode === "lookup"; }, null, { polling: 200 });
    did("loaded with 4096 tokens of context, lookup, 8-bit KV cache");
    await ready(page);
    await unload(page, setup.smollm2);
    await card(page, "demo").getByRole("button", { name: "Load", exact: true }).click();
    await ready(page);
    did("unloaded, and the demo loaded again");
  },

  // From no model to a downloaded one that answers.
  async download() {
    const page = await open(setup.empty);
    await page.locator(".overview b", { hasText: "No model" }).waitFor();
    for (const s of screens) { await to(page, s); await page.waitForTimeout(150); await scan(page, s + " without a model"); }
    await to(page, "chat");
    let clicks = 0;
    const click = async (l) => { await l.click(); clicks++; };
    await click(page.locator(".empty a[href='#models']"));
    await page.getByLabel("Model of the hub, or a path").fill("org/small");
    await click(button(page, "Load", page.locator("main form.row")));
    await ready(page);
    await click(page.locator("nav a[href='#chat']"));
    await page.getByLabel("Message", { exact: true }).fill("Tell me a story");
    await page.keyboard.press("Enter");
    await page.locator(".strip").waitFor();
    assert.ok(clicks <= 4, clicks + " clicks");
    did(`from no model to an answer of a downloaded one in ${clicks} clicks`);

    await to(page, "models");
    await page.getByLabel("Model of the hub, or a path").fill("org/slow");
    await button(page, "Download", page.locator("main form.row")).click();
    const row = card(page, "Download of org/slow");
    await button(page, "Pause", row).click();
    await row.getByText("paused").waitFor();
    await button(page, "Resume", row).click();
    await row.getByText("downloading").waitFor();
    await page.waitForFunction(() => Number(document.querySelector("[aria-label='Progress of org/slow']")?.getAttribute("aria-valuenow")) > 0);
    await page.screenshot({ path: join(setup.shots, "download.png") });
    await button(page, "Cancel", row).click();
    await row.waitFor({ state: "detached" });
    did("a download paused, resumed, cancelled");
    await page.getByLabel("Model of the hub, or a path").fill("org/nothing-here");
    await button(page, "Load", page.locator("main form.row")).click();
    await page.locator("[role=alert]").first().waitFor();
    await ready(page); // the model before goes on
    did("a load that fails is told, and the model before stays");
    await to(page, "models");
    await unload(page, "org/small");
    await page.getByRole("button", { name: "Remove org/small" }).click();
    await button(page, "Cancel", page.locator("dialog")).click();
    await page.getByRole("button", { name: "Remove org/small" }).click();
    await button(page, "Remove", page.locator("dialog")).click();
    await notice(page, "Removed org/small");
    await page.waitForFunction(() => !document.querySelector("[aria-label='org/small']"));
    did("a model removed after asking");
  },

  async race() {
    const page = await open(setup.base);
    await ready(page);
    await to(page, "race");
    await page.getByLabel("lookup").check();
    await page.getByLabel("Most tokens").fill("40");
    await button(page, "Tell me a story").click();
    await button(page, "Run").click();
    await page.getByText("Identical output").waitFor();
    assert.equal(await page.locator(".lanes section").count(), 3);
    const texts = await page.locator(".lanes pre").allInnerTexts();
    assert.ok(texts[0].length > 20 && texts.every((t) => t === texts[0]), texts.join("|"));
    did("three arms raced, with identical output");
  },

  async agents() {
    const page = await open(setup.base);
    await ready(page);
    await to(page, "agents");
    const cards = page.locator(".screen > section.card");
    await cards.first().waitFor();
    const n = await cards.count();
    assert.ok(n >= 5);
    for (let i = 0; i < n; i++) {
      const c = cards.nth(i);
      await button(page, "Test", c).click();
      await c.getByText(/answered in/).waitFor();
      const shown = await c.locator("pre").first().innerText();
      await c.getByRole("button", { name: "Copy", exact: true }).first().click();
      assert.equal((await page.evaluate(() => navigator.clipboard.readText())).trim(), shown.trim());
    }
    const linked = await open(setup.base + "/#/agents/aider");
    await linked.waitForFunction(() => document.querySelector("main").scrollTop > 500);
    did(n + " clients: snippet copied, a round trip made");
    const codex = card(page, "Codex CLI");
    await button(page, "Write file…", codex).click();
    assert.match(await page.locator("dialog pre").innerText(), /model_provider/);
    await button(page, "Cancel", page.locator("dialog")).click();
    const path = join(setup.home, ".codex/mlx-dspark.config.toml");
    await assert.rejects(readFile(path));
    await button(page, "Write file…", codex).click();
    await button(page, "Write", page.locator("dialog")).click();
    await notice(page, "Wrote");
    assert.match(await readFile(path, "utf8"), /model_provider = "mlx-dspark"/);
    await button(page, "Write file…", codex).click();
    await notice(page, "is as it should be");
    did("a client's file written after its change was shown");
  },

  async machine() {
    const page = await open(setup.base);
    await ready(page);
    await ask(page, "Tell me a story");
    await to(page, "machine");
    await card(page, "Hardware").getByText("GB/s").waitFor();
    await card(page, "Ceiling").getByText("of the ceiling").waitFor();
    await button(page, "Check again").click();
    await card(page, "Findings").locator("li, p").first().waitFor();
    did("machine, ceiling and findings shown");
  },

  async settings() {
    const page = await open(setup.base);
    await ready(page);
    await to(page, "settings");
    await page.getByLabel(/^Appearance/).selectOption("dark");
    await notice(page, "Appearance is saved");
    assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(20, 22, 26)");
    await page.reload();
    await page.waitForFunction(() => document.documentElement.dataset.look === "dark");
    await to(page, "settings");
    await page.getByLabel(/^Appearance/).selectOption("");
    await notice(page, "Appearance is saved");
    await page.getByLabel(/^Top-p/).fill("7");
    await page.keyboard.press("Enter");
    await page.locator(".banner.bad", { hasText: "generate.top_p" }).waitFor();
    await page.getByLabel(/^Top-p/).fill("0.9");
    await button(page, "Save").click();
    await notice(page, "Top-p is saved");
    assert.equal(await page.evaluate(async () => (await (await fetch("/admin/settings")).json()).values["generate.top_p"]), 0.9);
    await page.getByLabel(/^Top-p/).fill("");
    await page.keyboard.press("Enter");
    await notice(page, "Top-p is saved");
    // Every control has its key on the server.
    const keys = await page.locator(".setting code").allInnerTexts();
    assert.ok(keys.length > 25);
    await page.locator(".setting select").first().waitFor();
    for (const k of keys) {
      const status = await page.evaluate(async (key) => { const t = document.querySelector("meta[name=sparkbar-token]").content; return (await fetch("/admin/settings", { method: "PATCH", headers: { "X-Sparkbar-Token": t, "Content-Type": "application/json" }, body: JSON.stringify({ [key]: null }) })).status; }, k);
      assert.equal(status, 200, k);
    }
    did(keys.length + " settings known to the server; changed, kept, refused by name");
  },

  async logs() {
    const page = await open(setup.base);
    await ready(page);
    await to(page, "logs");
    await page.locator(".log").first().waitFor();
    await page.getByLabel("Find in the log").fill("no such line anywhere");
    await page.getByText("Nothing is found").waitFor();
    await page.getByLabel("Find in the log").fill("");
    await button(page, "Copy lines").click();
    assert.match(await page.evaluate(() => navigator.clipboard.readText()), /INFO/);
    await button(page, "Copy diagnostics").click();
    await notice(page, "Diagnostics are copied");
    const text = await page.evaluate(() => navigator.clipboard.readText());
    assert.match(text, /"findings"/);
    did("log found, filtered and copied");
  },

  async look() {
    await mkdir(setup.shots, { recursive: true });
    for (const colorScheme of ["light", "dark"]) {
      const page = await open(setup.base, { colorScheme });
      await ready(page);
      await ask(page, "Tell me a story");
      for (const s of screens) {
        await to(page, s);
        await page.waitForTimeout(400);
        if (s === "race") { await button(page, "Run").click(); await page.getByText("Identical output").waitFor(); }
        await scan(page, `${s}, ${colorScheme}`);
        await page.screenshot({ path: join(setup.shots, `${s}-${colorScheme}.png`) });
      }
      for (const [i, s] of screens.entries()) { // by key
        await page.keyboard.press("Control+" + (i + 1));
        await page.waitForFunction((hash) => location.hash === "#" + hash, s);
      }
      await page.setViewportSize({ width: 420, height: 800 });
      await to(page, "models");
      await scan(page, "narrow");
    }
    did("8 screens in light and dark: 0 serious findings");
  },

  // A page of another origin may do nothing here.
  async foreign() {
    const evil = createServer((_, w) => w.end("<!doctype html><title>x</title><body></body>")).listen(0, "127.0.0.1");
    await once(evil, "listening");
    const origin = "http://127.0.0.1:" + evil.address().port;
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(origin);
    const results = await page.evaluate(async (base) => {
      const out = {};
      const tries = {
        unload: () => fetch(base + "/admin/unload", { method: "POST", mode: "no-cors", headers: { "Content-Type": "text/plain" }, body: "{}" }),
        settings: () => fetch(base + "/admin/settings", { method: "PATCH", headers: { "Content-Type": "application/json" }, body: '{"generate.top_p":0.5}' }),
        chat: () => fetch(base + "/v1/chat/completions", { method: "POST", mode: "no-cors", body: '{"messages":[{"role":"user","content":"hi"}]}' }),
        read: () => fetch(base + "/").then((r) => r.text()),
        events: () => fetch(base + "/admin/events"),
      };
      for (const [name, f] of Object.entries(tries)) try { const r = await f(); out[name] = typeof r === "string" ? r : r.type + " " + r.status; } catch (e) { out[name] = "refused"; }
      for (const path of ["/admin/unload", "/admin/load/cancel"]) {
        const form = document.createElement("form");
        form.method = "post"; form.enctype = "text/plain"; form.action = base + path; form.target = "sink";
        const frame = document.createElement("iframe"); frame.name = "sink"; document.body.append(frame, form);
        form.submit();
        await new Promise((r) => { frame.onload = r; setTimeout(r, 2000); });
      }
      const frame = document.createElement("iframe");
      frame.src = base + "/";
      document.body.append(frame);
      await new Promise((r) => { frame.onload = r; setTimeout(r, 2000); });
      return out;
    }, setup.base);
    assert.deepEqual({ settings: results.settings, read: results.read, events: results.events }, { settings: "refused", read: "refused", events: "refused" });
    assert.match(results.unload, /^opaque/);
    const framed = page.frames().find((f) => f.url().startsWith(setup.base));
    assert.ok(!framed || !(await framed.locator(".brand").count()), "the dashboard can be framed");
    const h = await (await fetch(setup.base + "/health")).json();
    assert.equal(h.model, "demo", "a foreign page unloaded the model");
    // A page of the right origin without the token of this launch, and one with a wrong one.
    for (const token of [undefined, "0".repeat(64)]) {
      const r = await fetch(setup.base + "/admin/unload", { method: "POST", headers: { Origin: setup.base, ...(token ? { "X-Sparkbar-Token": token } : {}) }, body: "{}" });
      assert.equal(r.status, 403);
    }
    evil.close();
    did("a page of another origin could do nothing");
  },

  async key() {
    const page = await open(setup.keyed);
    await page.getByLabel("API key").fill("wrong");
    await page.keyboard.press("Enter");
    await page.getByText("That is not its key.").waitFor();
    await scan(page, "key");
    await page.getByLabel("API key").fill(setup.key);
    await button(page, "Continue").click();
    await ready(page);
    assert.match(await ask(page, "Tell me a story"), /Once/);
    await to(page, "models");
    await unload(page, "demo");
    await card(page, "demo").getByRole("button", { name: "Load", exact: true }).click();
    await ready(page);
    const second = await open(setup.keyed + "/#/lab/live?menubar=hidden&key=" + encodeURIComponent(setup.key));
    await ready(second);
    assert.equal(new URL(second.url()).hash, "#/lab/live");
    await second.getByRole("heading", { name: "Live" }).waitFor();
    await second.getByText("hides Sparkbar's menu bar item").waitFor();
    did("a wrong key is refused, the right one works, also from the app's link");
  },

  async offline() {
    const page = await open(setup.stopped);
    await ready(page);
    console.log("stop"); // the Go test ends that server now
    await page.getByText("The server does not answer.").waitFor();
    await scan(page, "offline");
    did("an ended server is told");
  },

  // Long lists and a long day.
  async long() {
    const page = await open(setup.many);
    await ready(page);
    await to(page, "models");
    await page.locator(".model").nth(5).waitFor();
    const rows = await page.locator(".model").count();
    assert.ok(rows < 60, rows + " rows are in the document");
    const timed = async (work) => {
      const times = [];
      let last = performance.now(), on = true;
      const tick = () => { const t = performance.now(); times.push(t - last); last = t; if (on) requestAnimationFrame(tick); };
      requestAnimationFrame(tick);
      await work();
      on = false;
      times.sort((a, b) => a - b);
      return { frames: times.length, median_ms: times[times.length >> 1], p99_ms: times[Math.floor(times.length * 0.99)] };
    };
    const frames = (p, work) => p.evaluate(`(${timed})(${work})`);
    const scroll = await frames(page, async () => {
      const box = document.querySelector(".rows");
      for (let y = 0; y <= box.scrollHeight; y += 400) { box.scrollTop = y; await new Promise((r) => requestAnimationFrame(r)); }
    });
    assert.ok(await page.evaluate(() => document.querySelector(".rows").scrollHeight) > 500 * 60);
    await page.getByLabel("Find a model").fill("number-499");
    await page.waitForFunction(() => document.querySelectorAll(".model:not(.head)").length === 1);
    console.log(`measured 500 models scrolled: ${JSON.stringify(scroll)}`);

    // 10 000 rounds in one go.
    const round = (i) => "event: round\ndata: " + JSON.stringify({ req: "r" + (i >> 6), mode: "dspark", i: i & 63, drafted: 7, accepted: i % 8, committed: (i % 8) + 1, cap: 7, source: i % 5 ? "drafter" : "lookup", ms: 10 + (i % 7), seq: i, t: i }) + "\n\n";
    const live = await open(setup.base);
    await ready(live);
    const first = await live.evaluate(async () => (await (await fetch("/health")).json()));
    let batch = 0;
    await live.route("**/admin/events", (r) => {
      let body = "event: state\ndata: " + JSON.stringify(first) + "\n\n";
      for (let i = 0; i < 10_000; i++) body += round(batch * 10_000 + i);
      batch++;
      return r.fulfill({ contentType: "text/event-stream", body });
    });
    const client = await live.context().newCDPSession(live);
    const heap = async () => { await client.send("HeapProfiler.collectGarbage"); return (await client.send("Runtime.getHeapUsage")).usedSize; };
    await live.reload();
    await to(live, "live");
    const sizes = [];
    for (let k = 1; k <= 6; k++) {
      await live.waitForFunction((n) => Number(document.querySelectorAll(".tiles b")[2]?.textContent.replace(/,/g, "")) >= n, k * 10_000);
      assert.ok((await live.locator(".ribbon i").count()) <= 120);
      sizes.push(await heap());
    }
    const grown = (sizes[5] - sizes[1]) / 4;
    console.log(`measured heap after 10 000 .. 60 000 rounds: ${sizes.map((s) => (s / 2 ** 20).toFixed(2) + " MB").join(", ")}; 2 hours of 20 rounds/s are 144 000 rounds: ${((grown * 14.4) / 2 ** 20).toFixed(2)} MB`);
    const drawn = await frames(live, async () => { for (let i = 0; i < 120; i++) await new Promise((r) => requestAnimationFrame(r)); });
    console.log(`measured while rounds stream in: ${JSON.stringify(drawn)}`);
    assert.ok(grown * 14.4 < 8 * 2 ** 20, "the live view grows");
    did("500 models and 60 000 rounds");
  },
};

let failed = false;
for (const part of setup.parts) {
  try {
    await parts[part]();
    assert.deepEqual(faults, [], "errors of the page");
    console.log("ok " + part);
  } catch (e) {
    failed = true;
    console.log("not ok " + part + ": " + (e.stack ?? e));
    for (const c of browser.contexts()) for (const p of c.pages()) await p.screenshot({ path: join(setup.shots, "failed-" + part + ".png") }).catch(() => {});
  }
  faults.length = 0;
  for (const c of browser.contexts()) await c.close();
}
await browser.close();
process.exit(failed ? 1 : 0);
