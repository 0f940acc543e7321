// The node, drawn. Everything that comes from the kubelet is text to this page, never markup: names and messages are written
// by others. There is no work while the page is hidden.

import { WORDS } from "./words.js";

const EVERY = 2000, GIVE_UP = 10000, POINTS = 90, FEW = 24, GAP = 30000;
const $ = (id) => document.getElementById(id);
const kept = {
  get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
  set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* it is forgotten, then */ } },
};
const one = (value, all) => (all.includes(value) ? value : all[0]);
const ORDERS = ["byState", "byName", "byCpu", "byMemory"], KINDS = ["all", "warnings", "evictions"];
const own = navigator.language.toLowerCase().startsWith("zh") ? ["zh", "en"] : ["en", "zh"];
const view = {
  language: one(kept.get("language"), own),
  theme: one(kept.get("theme"), ["auto", "light", "dark"]),
  order: one(kept.get("order"), ORDERS),
  kind: "all", filter: "", held: false, open: new Set(),
};
let words = WORDS[view.language];
let last = null, troubled = "", history = new Map(), rows = new Map(), tiles = new Map(), timer = 0, asking = null;

// --- making elements ---

function make(tag, name, ...inner) {
  const it = document.createElement(tag);
  if (name) it.className = name;
  it.append(...inner);
  return it;
}

function say(it, text) {
  if (it.textContent !== text) it.textContent = text;
}

function draw(tag, name) {
  const it = document.createElementNS("http://www.w3.org/2000/svg", tag);
  if (name) it.setAttribute("class", name);
  return it;
}

function spark(...names) {
  const it = draw("svg", "spark");
  it.setAttribute("viewBox", "0 0 100 40");
  it.setAttribute("preserveAspectRatio", "none");
  it.setAttribute("aria-hidden", "true");
  for (const name of names) {
    const group = draw("g", name);
    group.append(draw("path", "area"), draw("path", "line"));
    it.append(group);
  }
  return it;
}

// A smooth way through the points, which grow from the right; the newest is at the edge.
function curve(it, at, values, most) {
  const [area, line] = it.children[at].children;
  if (values.length < 2) return;
  const x = (i) => 100 - (values.length - 1 - i) * (100 / (Math.max(FEW, values.length) - 1));
  const y = (i) => 38 - 34 * Math.min(1, values[i] / (most || 1));
  let path = `M${x(0).toFixed(2)} ${y(0).toFixed(2)}`;
  for (let i = 1; i < values.length; i++) {
    const middle = ((x(i - 1) + x(i)) / 2).toFixed(2);
    path += `C${middle} ${y(i - 1).toFixed(2)} ${middle} ${y(i).toFixed(2)} ${x(i).toFixed(2)} ${y(i).toFixed(2)}`;
  }
  line.setAttribute("d", path);
  area.setAttribute("d", `${path}L100 40L${x(0).toFixed(2)} 40Z`);
}

// --- figures as people read them ---

function bytes(n) {
  if (n == null) return "–";
  let unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (n >= 1000 && unit < 4) { n /= 1024; unit++; }
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toPrecision(2 + (n >= 10))} ${units[unit]}`;
}
const cores = (n) => (n == null ? "–" : n < 0.0005 ? "0" : n < 1 ? `${Math.max(1, Math.round(n * 1000))}m` : n.toFixed(2));
const percent = (n) => (n == null ? "–" : `${n > 0 && n < 0.095 ? (n * 100).toFixed(1) : Math.round(n * 100)} %`);
const flow = (n) => (n == null ? "–" : `${bytes(n)}/s`);

function span(seconds) {
  const { s, m, h, d } = words.ago;
  seconds = Math.max(0, seconds);
  if (seconds < 100) return `${Math.floor(seconds)}${s}`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)}${m}`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}${h}`;
  return `${Math.floor(seconds / 86400)}${d}`;
}

// --- what was before ---

// Counters become rates here: two looks that lie close enough together tell one.
function note(key, counters, levels, time) {
  let past = history.get(key);
  if (!past || time - past.time > GAP || time < past.time) history.set(key, past = { time, counters, series: {}, seen: 0 });
  const passed = (time - past.time) / 1000;
  const add = (name, value) => {
    if (value == null) return;
    const all = (past.series[name] ??= []);
    all.push(value);
    if (all.length > POINTS) all.shift();
  };
  if (passed > 0) for (const name in counters) {
    const [now, before] = [counters[name], past.counters[name]];
    if (now != null && before != null && now >= before) add(name, (now - before) / passed);
  }
  if (passed > 0 || !past.seen) for (const name in levels) add(name, levels[name]);
  Object.assign(past, { time, counters, seen: 1 });
}
const series = (key, name) => history.get(key)?.series[name] ?? [];
const now = (key, name) => series(key, name).at(-1);

function remember(look) {
  const { node, time } = look;
  const counters = (of) => ({ cpu: of.cpuNanos == null ? null : of.cpuNanos / 1e9, in: of.received, out: of.sent });
  note("node", counters(node), { memory: node.memoryUsed }, time);
  for (const pod of look.pods) {
    note(pod.uid, counters(pod), { memory: pod.memory }, time);
    for (const c of pod.containers) note(`${pod.uid}/${c.name}`, counters(c), {}, time);
  }
  for (const [key, past] of history) if (past.time !== time) history.delete(key);
}

// --- the node ---

const heroes = {};
function hero(name, ...sparks) {
  const title = make("span"), more = make("span", "more"), body = make("div", "big");
  const svg = sparks.length ? spark(...sparks) : "";
  const it = make("article", `hero ${name}`, make("h2", "", title, more), body, svg);
  $("heroes").append(it);
  return (heroes[name] = { title, more, body, svg });
}
hero("cpu", "cpu"); hero("memory", "memory"); hero("disk"); hero("network", "in", "out");
heroes.disk.body.className = "disks";
heroes.network.body.className = "pair";

function figure(it, text, small) {
  it.replaceChildren(text, make("small", "", small));
}

function showNode(node) {
  say($("name"), node.name);
  const up = node.booted ? `${words.up} ${span(last.time / 1000 - node.booted)}` : "";
  const many = `${node.processors} ${words.processors[node.processors === 1 ? 0 : 1]}`;
  say($("about"), [`Kubernetes ${node.version}`, node.os, many, up].filter(Boolean).join("  ·  "));
  $("pressures").replaceChildren(...node.pressures.map((p) => make("span", "chip bad", p)));
  const stalled = (i) => (node.stalled[i] == null ? "" : `${words.waitedFor} ${node.stalled[i].toFixed(1)} %`);
  const used = now("node", "cpu");
  figure(heroes.cpu.body, percent(used == null ? null : used / node.processors), `${cores(used)} ${words.of} ${node.processors}`);
  say(heroes.cpu.more, stalled(0));
  curve(heroes.cpu.svg, 0, series("node", "cpu"), node.processors);
  figure(heroes.memory.body, percent(node.memoryTotal ? node.memoryUsed / node.memoryTotal : null), `${bytes(node.memoryUsed)} ${words.of} ${bytes(node.memoryTotal)}`);
  say(heroes.memory.more, node.swapTotal ? `${words.swap} ${bytes(node.swapUsed)}` : `${words.cache} ${bytes(node.memoryCache)}`);
  curve(heroes.memory.svg, 0, series("node", "memory"), node.memoryTotal);
  showDisks(node.disks);
  say(heroes.disk.more, stalled(2));
  const [down, out] = [now("node", "in"), now("node", "out")];
  const way = (arrow, name, value) => make("span", "", make("span", name, arrow), ` ${flow(value)}`);
  heroes.network.body.replaceChildren(way("↓", "in-text", down), way("↑", "out-text", out));
  say(heroes.network.more, node.interface ?? "");
  const most = Math.max(1024, ...series("node", "in"), ...series("node", "out"));
  curve(heroes.network.svg, 0, series("node", "in"), most);
  curve(heroes.network.svg, 1, series("node", "out"), most);
}

function showDisks(disks) {
  const body = heroes.disk.body;
  while (body.children.length > disks.length) body.lastChild.remove();
  while (body.children.length < disks.length) {
    const line = make("div", "line", make("span"), make("span"));
    body.append(make("div", "", line, make("div", "track", make("i"))));
  }
  disks.forEach((disk, i) => {
    const [line, track] = body.children[i].children;
    const part = disk.capacity ? 1 - disk.available / disk.capacity : 0;
    say(line.children[0], `${disk.name} ${percent(part)}`);
    say(line.children[1], `${bytes(disk.available)} ${words.free}`);
    track.firstChild.style.width = `${part * 100}%`;
    track.firstChild.className = part > 0.85 ? "full" : "";
  });
}

// --- Pods ---

function stateOf(pod) {
  if (pod.status === "Terminating") return "leave";
  if (pod.phase === "Succeeded" || pod.status === "Completed") return "done";
  if (pod.status === "Running") return pod.ready === pod.total ? "ok" : "wait";
  if (/^(Pending|ContainerCreating|PodInitializing|NotReady|Init:\d+\/\d+)$/.test(pod.status)) return "wait";
  return "bad";
}

const WORST = ["bad", "wait", "leave", "ok", "done"];
function sorted(pods) {
  const name = (a, b) => a.namespace.localeCompare(b.namespace) || a.name.localeCompare(b.name);
  const by = {
    byName: name,
    byCpu: (a, b) => (now(b.uid, "cpu") ?? -1) - (now(a.uid, "cpu") ?? -1) || name(a, b),
    byMemory: (a, b) => (b.memory ?? -1) - (a.memory ?? -1) || name(a, b),
    byState: (a, b) => WORST.indexOf(stateOf(a)) - WORST.indexOf(stateOf(b)) || name(a, b),
  }[view.order];
  const wanted = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (pod) => `${pod.namespace}/${pod.name} ${pod.status} ${pod.class} ${pod.why?.reason ?? ""}`.toLowerCase();
  return pods.filter((pod) => wanted.every((w) => text(pod).includes(w))).sort(by);
}

function rowOf(pod) {
  let row = rows.get(pod.uid);
  if (row) return row;
  const gauge = (name) => ({ svg: spark(name), value: make("b"), name });
  row = { name: make("b"), under: make("small"), chip: make("span", "chip"), cpu: gauge("cpu"), memory: gauge("memory"), side: make("span", "side"),
    why: make("p", "why"), more: make("div", "more-of") };
  const shown = (g) => make("span", `gauge ${g.name}`, g.svg, g.value);
  row.button = make("button", "row", make("span", "title", make("i", "dot"), row.name, row.under), row.chip, shown(row.cpu), shown(row.memory), row.side);
  row.button.type = "button";
  row.button.onclick = () => {
    view.open.has(pod.uid) ? view.open.delete(pod.uid) : view.open.add(pod.uid);
    show();
  };
  row.it = make("li", "pod", row.button, row.why, row.more);
  rows.set(pod.uid, row);
  return row;
}

function showPod(pod) {
  const row = rowOf(pod), state = stateOf(pod), isOpen = view.open.has(pod.uid);
  row.it.className = `pod ${state}`;
  say(row.name, pod.name);
  say(row.under, `${pod.namespace}  ·  ${pod.ready}/${pod.total} ${words.ready}`);
  say(row.chip, pod.status);
  row.chip.title = pod.status;
  const used = now(pod.uid, "cpu");
  row.button.classList.toggle("still", used == null && pod.memory == null);
  say(row.cpu.value, cores(used));
  curve(row.cpu.svg, 0, series(pod.uid, "cpu"), Math.max(0.02, ...series(pod.uid, "cpu")));
  say(row.memory.value, bytes(pod.memory));
  const limit = pod.memoryAvailable != null && pod.memory != null ? pod.memory + pod.memoryAvailable : 0;
  curve(row.memory.svg, 0, series(pod.uid, "memory"), limit || 1.3 * Math.max(1, ...series(pod.uid, "memory")));
  const net = (now(pod.uid, "in") ?? 0) + (now(pod.uid, "out") ?? 0);
  const told = [pod.received == null ? "" : `⇅ ${flow(net)}`, pod.disk == null ? "" : `▤ ${bytes(pod.disk)}`].filter(Boolean);
  row.side.replaceChildren(...told.map((t) => make("div", "", t)));
  row.button.setAttribute("aria-expanded", String(isOpen));
  row.button.setAttribute("aria-label", `${pod.namespace}/${pod.name} ${pod.status} ${words.cpu} ${cores(used)} ${words.memory} ${bytes(pod.memory)}`);
  showWhy(row.why, pod, state);
  row.more.hidden = !isOpen;
  if (isOpen) row.more.replaceChildren(...moreOf(pod, limit));
  return row.it;
}

function showWhy(it, pod, state) {
  const hint = words.hints[pod.why?.reason] ?? words.hints[pod.status.replace(/^Init:/, "")] ?? "";
  it.hidden = state === "ok" || state === "done" || (!pod.why && !hint);
  if (it.hidden) return;
  const whose = pod.why?.container ? `${pod.why.container}: ` : "";
  const head = make("b", "", whose + (pod.why?.reason || pod.status));
  it.replaceChildren(head, hint ? `  ${hint}` : "", pod.why?.message ? make("span", "", pod.why.message) : "");
}

function moreOf(pod, limit) {
  const fact = (name, value) => make("span", "", `${name} `, make("b", "", String(value)));
  const facts = [fact(words.class, pod.class), fact(words.restarts, pod.restarts)];
  if (pod.since) facts.push(fact(words.age, span(last.time / 1000 - pod.since)));
  if (pod.ip) facts.push(fact(words.address, pod.ip));
  if (limit) facts.push(fact(`${words.memory} ${words.limit}`, bytes(limit)));
  if (pod.processes != null) facts.push(fact(words.processes, pod.processes));
  if (pod.received != null) facts.push(fact("↓", flow(now(pod.uid, "in"))), fact("↑", flow(now(pod.uid, "out"))));
  const inner = pod.containers.map((c) => {
    const state = c.state === "Running" ? (c.ready ? "ok" : "wait") : c.state === "Completed" ? "done" : /^(Waiting|ContainerCreating|PodInitializing)$/.test(c.state) ? "wait" : "bad";
    const figures = c.state === "Running" ? `${cores(now(`${pod.uid}/${c.name}`, "cpu"))}  ·  ${bytes(c.memory)}` : c.state;
    return make("div", `inner ${state}`, make("i", "dot"), make("span", "", c.name), make("span", "dim image", c.image), make("b", "", figures));
  });
  return [make("div", "facts", ...facts), ...inner];
}

// Only what moved is moved: focus and scrolling stay where they are.
function arrange(list, wanted) {
  wanted.forEach((it, i) => { if (list.children[i] !== it) list.insertBefore(it, list.children[i] ?? null); });
  while (list.children.length > wanted.length) list.lastChild.remove();
}

function showPods(pods) {
  const focused = document.activeElement;
  const shown = sorted(pods);
  arrange($("list"), shown.map(showPod));
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
  $("nothing").hidden = shown.length > 0;
  say($("nothing"), pods.length ? words.noMatch : words.noPods);
  const here = new Set(pods.map((p) => p.uid));
  for (const all of [rows, tiles]) for (const uid of all.keys()) if (!here.has(uid)) all.delete(uid);
  for (const uid of view.open) if (!here.has(uid)) view.open.delete(uid);
}

function showField(look) {
  const most = Math.max(0.05, ...look.pods.map((p) => now(p.uid, "cpu") ?? 0));
  const counts = {};
  const shown = look.pods.map((pod) => {
    const state = stateOf(pod);
    counts[state] = (counts[state] ?? 0) + 1;
    let tile = tiles.get(pod.uid);
    if (!tile) {
      tile = make("button", "tile", make("i"));
      tile.type = "button";
      tile.tabIndex = -1;
      tile.onclick = () => { view.filter = $("filter").value = ""; view.open.add(pod.uid); show(); focusOn(pod.uid); };
      tiles.set(pod.uid, tile);
    }
    tile.className = `tile ${state}`;
    tile.title = `${pod.namespace}/${pod.name}\n${pod.status}  ${cores(now(pod.uid, "cpu"))}  ${bytes(pod.memory)}`;
    tile.setAttribute("aria-label", `${pod.namespace}/${pod.name} ${pod.status}`);
    tile.firstChild.style.height = `${100 * Math.sqrt(Math.min(1, (now(pod.uid, "cpu") ?? 0) / most))}%`;
    return tile;
  });
  arrange($("field"), shown);
  $("counts").replaceChildren(...WORST.filter((s) => counts[s]).map((s) => make("span", s, `${counts[s]} ${words.state[s]}`)));
  const wrong = (counts.bad ?? 0) + (counts.wait ?? 0);
  document.title = `${wrong ? `(${wrong}) ` : ""}${look.node.name} · Longshore`;
}

function focusOn(uid) {
  const button = rows.get(uid)?.button;
  button?.scrollIntoView({ block: "center", behavior: "smooth" });
  button?.focus({ preventScroll: true });
}

// --- events ---

const EVICTING = new Set(["Evicted", "EvictionThresholdMet", "Preempting", "SystemOOM", "ExceededGracePeriod"]);
function showEvents(look) {
  const wanted = { all: () => true, warnings: (e) => e.warning, evictions: (e) => EVICTING.has(e.reason) }[view.kind];
  const shown = look.events.filter(wanted).map((e) => {
    const ago = span((look.time - e.time) / 1000);
    const count = e.count > 1 ? ` ×${e.count}` : "";
    const state = EVICTING.has(e.reason) ? "bad evicted" : e.warning ? "wait" : "done";
    const of = e.kind === "Node" ? `${e.kind} ${e.name}` : `${e.namespace}/${e.name}`;
    return make("li", `event ${state}`,
      make("div", "head", make("b", "", e.reason + count), make("time", "", look.time - e.time < 2000 ? words.ago.now : words.ago.ago(ago))),
      make("div", "of", of), make("div", "text", e.message));
  });
  const place = $("events").scrollTop;
  $("events").replaceChildren(...shown);
  $("events").scrollTop = place;
  $("quiet").hidden = shown.length > 0;
  say($("quiet"), words.noEvents);
}

// --- everything ---

function show() {
  if (!last) return;
  showNode(last.node);
  showField(last);
  showPods(last.pods);
  showEvents(last);
  alarm();
}

function alarm() {
  const text = troubled || (last?.blind ? words.blind : "");
  $("trouble").hidden = !text;
  say($("trouble"), text);
  $("live").className = `live ${troubled ? "off" : view.held ? "held" : "on"}`;
  say($("live"), troubled ? words.off : view.held ? words.held : words.live);
  say($("pause"), view.held ? words.go : words.pause);
}

function choices(it, names, chosen, choose) {
  it.replaceChildren(...names.map((name) => {
    const button = make("button", "", words[name]);
    button.type = "button";
    button.setAttribute("aria-pressed", String(name === chosen));
    button.onclick = () => choose(name);
    return button;
  }));
}

function order(name) { view.order = name; kept.set("order", name); speak(); }
function kind(name) { view.kind = name; speak(); }

// Writes all fixed words anew: the language or a choice has changed.
function speak() {
  words = WORDS[view.language];
  document.documentElement.lang = view.language === "zh" ? "zh-CN" : "en";
  if (view.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = view.theme;
  for (const it of document.querySelectorAll("[data-word]")) say(it, words[it.dataset.word]);
  for (const name of ["cpu", "memory", "disk", "network"]) say(heroes[name].title, words[name]);
  say($("language"), words.language);
  say($("theme"), { auto: "◐", light: "☀", dark: "☾" }[view.theme]);
  $("theme").title = $("theme").ariaLabel = words.theme;
  $("keys").title = $("keys").ariaLabel = words.help;
  $("filter").placeholder = $("filter").ariaLabel = words.filter;
  choices($("order"), ORDERS, view.order, order);
  choices($("which"), KINDS, view.kind, kind);
  $("shortcuts").replaceChildren(...words.keys.flatMap(([keys, what]) => [
    make("dt", "", ...keys.split(" ").flatMap((k) => [make("kbd", "", k), " "])), make("dd", "", what)]));
  alarm();
  show();
}

const next = (value, all) => all[(all.indexOf(value) + 1) % all.length];
const act = {
  "/": () => $("filter").focus(),
  o: () => order(next(view.order, ORDERS)),
  e: () => kind(next(view.kind, KINDS)),
  p: () => { view.held = !view.held; alarm(); plan(0); },
  t: () => { view.theme = next(view.theme, ["auto", "light", "dark"]); kept.set("theme", view.theme); speak(); },
  l: () => { view.language = next(view.language, ["en", "zh"]); kept.set("language", view.language); speak(); },
  "?": () => $("help").showModal(),
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
};

function step(by) {
  const all = [...document.querySelectorAll("#list .row")];
  const at = all.indexOf(document.activeElement);
  all[at < 0 ? 0 : Math.max(0, Math.min(all.length - 1, at + by))]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target === $("filter")) {
    if (event.key === "Escape") { view.filter = event.target.value = ""; event.target.blur(); show(); }
    if (event.key === "Enter") step(1);
    return;
  }
  const what = act[event.key];
  if (what) { event.preventDefault(); what(); }
});
$("filter").addEventListener("input", (event) => { view.filter = event.target.value; show(); });
for (const [id, key] of [["pause", "p"], ["theme", "t"], ["language", "l"], ["keys", "?"]]) $(id).onclick = act[key];

// --- asking ---

function plan(after) {
  clearTimeout(timer);
  timer = setTimeout(ask, after);
}

async function ask() {
  if (view.held || document.hidden || asking) return;
  asking = new AbortController();
  const late = setTimeout(() => asking.abort(), GIVE_UP);
  try {
    const answer = await fetch("look", { signal: asking.signal, cache: "no-store" });
    if (!answer.ok) throw answer.status;
    last = await answer.json();
    troubled = "";
    remember(last);
    show();
  } catch (error) {
    troubled = error === 401 || error === 403 ? words.refused : words.trouble;
    alarm();
  }
  clearTimeout(late);
  asking = null;
  plan(troubled ? 2 * EVERY : EVERY);
}

document.addEventListener("visibilitychange", () => plan(0));
speak();
plan(0);
