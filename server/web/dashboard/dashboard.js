// Asks the server once a second what is new, and draws it. All state of the page is here.

import {html, legend, shares, spark, stack, tree} from "./charts.js";
import {SessionList, drawTimeline, turnRows} from "./sessions.js";
import {ago, bytes, count, plural, seconds, share, SOURCES} from "./words.js";

const EVERY_MS = 1000, KEPT = 120, HISTORY_MINUTES = 5, SESSIONS_EVERY = 2, TREE_EVERY = 5, MOST_SESSIONS = 1000;
const at = (id) => document.getElementById(id);
const past = {reused: [], possible: [], ttft: [], itl: [], running: []};
let latest = null, ticks = 0, opened = null, seenChanges = -1;

const list = new SessionList(at("session-list"), openSession);

async function ask(path) {
  const key = sessionStorage.getItem("key");
  const answer = await fetch(path, key ? {headers: {authorization: `Bearer ${key}`}} : {});
  if (answer.status === 401 || answer.status === 403) { await askForKey(); return ask(path); }
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

let keyAsked = null;
function askForKey() {
  keyAsked ??= new Promise((done) => {
    const dialog = at("key-dialog");
    dialog.showModal();
    dialog.addEventListener("close", () => { sessionStorage.setItem("key", at("key").value); keyAsked = null; done(); }, {once: true});
  });
  return keyAsked;
}

async function tick() {
  try {
    const wanted = ticks % SESSIONS_EVERY === 0 ? MOST_SESSIONS : 0;
    const state = await ask(`/dashboard/state?sessions=${wanted}`);
    remember(state);
    draw(state, wanted > 0);
    if (opened && state.changes !== seenChanges) await drawSession();
    if (ticks % TREE_EVERY === 0 && (ticks === 0 || state.changes !== seenChanges)) drawTree();
    seenChanges = state.changes;
    say("live", "live");
  } catch (error) {
    say("lost", error instanceof TypeError ? "the server does not answer" : `error ${error.message}`);
  }
  ticks += 1;
}

function say(kind, text) {
  if (at("status").className !== kind) { at("status").className = kind; at("status-text").textContent = text; }
}

function remember(state) {
  const points = state.history;
  past.reused = points.map((point) => (point.prompt_tokens ? point.cached_tokens / point.prompt_tokens : null));
  past.possible = points.map((point) => (point.prompt_tokens ? point.reusable_tokens / point.prompt_tokens : null));
  past.ttft = points.map((point) => point.ttft_s);
  past.itl = points.map((point) => point.itl_s);
  past.running.push(state.engine.running);
  if (past.running.length > KEPT) past.running.shift();
  latest = state;
}

function draw(state, withSessions) {
  at("model").textContent = state.model;
  document.title = state.reuse["5m"].hit_rate === null ? "Sessile" : `${share(state.reuse["5m"].hit_rate)} · Sessile`;
  drawReuse(state);
  drawTiles(state);
  drawMisses(state.misses, state.misses_by_rule);
  drawTiers(state);
  if (withSessions) {
    list.update(state.sessions);
    at("sessions-count").textContent = state.num_sessions > state.sessions.length ? `${state.sessions.length} of ${state.num_sessions}` : `${state.num_sessions}`;
  }
}

function drawReuse(state) {
  const chosen = document.querySelector("input[name=window]:checked").value, reuse = state.reuse[chosen], all = reuse.prompt_tokens;
  at("hit").textContent = all ? share(reuse.hit_rate) : "–";
  at("hit-of").textContent = all ? `${share(reuse.reusable_rate)} was possible, of ${count(all)} tokens` : "no prompts in this time";
  const missed = reuse.reusable_tokens - reuse.cached_tokens, fresh = all - reuse.reusable_tokens;
  const parts = SOURCES.filter(([kind]) => kind !== "computed").map(([kind, name]) => ({kind, name, value: reuse.by_source[kind]}));
  parts.push({kind: "missed", name: "could have been reused", value: missed}, {kind: "computed", name: "new", value: fresh});
  const told = parts.map((part) => ({...part, shown: all ? share(part.value / all) : "–"}));
  stack(at("reuse-bar"), told, all, told.filter((part) => part.value).map((part) => `${part.name} ${part.shown}`).join(", ") || "no prompts yet");
  legend(at("reuse-legend"), told.filter((part) => part.value || ["device", "missed", "computed"].includes(part.kind)));
  shares(at("reuse-chart"), past.reused, past.possible, HISTORY_MINUTES);
}

function drawTiles(state) {
  for (const name of ["ttft", "itl"]) {
    const times = state.times[name];
    at(name).textContent = seconds(times.p50);
    at(`${name}-sub`).textContent = times.count ? `median; 9 of 10 under ${seconds(times.p90)}` : "no turn yet";
    spark(at(`${name}-chart`), past[name]);
  }
  const {engine} = state, queue = state.times.queue;
  at("turns").textContent = `${engine.running}`;
  at("turns-sub").textContent = `${engine.waiting} waiting${queue.count ? `, for ${seconds(queue.p50)} in the median` : ""}`;
  spark(at("turns-chart"), past.running);
  const {drafted_tokens: drafted, accepted_tokens: accepted, generated_tokens: made} = engine;
  at("spec").textContent = made && accepted ? `×${(made / Math.max(1, made - accepted)).toFixed(2)}` : "–";
  at("spec-sub").textContent = drafted ? `tokens a step; ${share(accepted / drafted)} of ${count(drafted)} drafts were right` : "no drafts yet";
  const told = drafted ? `${accepted} of ${drafted} drafted tokens accepted` : "no drafts yet";
  stack(at("spec-bar"), [{kind: "device", value: accepted}, {kind: "computed", value: drafted - accepted}], drafted, told);
}

function drawMisses(misses, byRule) {
  const rules = Object.entries(byRule).sort((a, b) => b[1] - a[1]).slice(0, 8);
  at("rules").replaceChildren(...rules.map(([rule, times]) => {
    const item = html("li");
    item.append(html("span", "badge", rule), document.createTextNode(count(times)));
    return item;
  }));
  const groups = groupMisses(misses).slice(0, 5), list = at("misses");
  const drawn = JSON.stringify(groups.map((group) => [group.key, group.times, group.tokens, group.sessions]));
  if (list.dataset.drawn !== drawn) {  // else what has the keyboard's focus would lose it each second
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.session : null;
    list.dataset.drawn = drawn;
    list.replaceChildren(...groups.map(missItem));
    if (focused) list.querySelector(`[data-session="${CSS.escape(focused)}"]`)?.focus();
    if (!groups.length) list.append(html("li", "sub", "None: every prompt reused what it could."));
  }
  list.querySelectorAll("small.when").forEach((when, index) => { when.textContent = missCost(groups[index]); });
}

function groupMisses(misses) {
  const groups = new Map();
  for (const miss of misses) {
    const key = [miss.rule, miss.path, miss.explanation, miss.was, miss.now].join("|");
    const group = groups.get(key) ?? {key, miss, times: 0, tokens: 0, sessions: []};
    groups.set(key, group);
    group.times += 1;
    group.tokens += miss.lost_tokens;
    if (miss.session && !group.sessions.includes(miss.session) && group.sessions.length < 4) group.sessions.push(miss.session);
  }
  return [...groups.values()];
}

function missCost(group) {
  const often = group.times > 1 ? ` in ${group.times} turns` : "";
  return `${count(group.tokens)} tokens${often} · ${ago(group.miss.at)}`;
}

function missItem({miss, sessions}) {
  const item = html("li"), head = html("div", "head"), title = html("p");
  title.append(html("span", "badge", miss.rule), html("b", "", miss.name.replaceAll("-", " ")));
  head.append(title, html("small", "when"));
  item.append(head);
  if (miss.explanation && miss.explanation !== miss.name.replaceAll("-", " ")) item.append(html("p", "", miss.explanation));
  const place = [miss.path && `${miss.path}${miss.char === null ? "" : ` at ${miss.char}`}`, miss.first_divergent_token !== null && `token ${miss.first_divergent_token}`].filter(Boolean);
  if (place.length) item.append(html("code", "", place.join(" · ")));
  if (miss.was !== null || miss.now !== null) {
    const diff = html("span", "diff");
    diff.append(html("del", "", `− ${miss.was ?? ""}`), html("br"), html("ins", "", `+ ${miss.now ?? ""}`));
    item.append(diff);
  }
  if (miss.remedy) item.append(html("p", "fix", miss.remedy));
  const links = html("p", "sub who");
  for (const session of sessions) {
    const link = html("button", "link", session);
    link.type = "button";
    link.dataset.session = session;
    link.addEventListener("click", () => openSession(session));
    links.append(link);
  }
  if (sessions.length) item.append(links);
  return item;
}

function drawTiers(state) {
  const {blocks} = state.engine, lines = [];
  lines.push(tierLine("device", blocks.total - blocks.free, blocks.total, `${count(blocks.total - blocks.free)} of ${count(blocks.total)} blocks`, `${count(blocks.used)} in use now, ${count(state.engine.evicted_blocks)} evicted since the start`));
  for (const tier of state.tiers) {
    const speed = tier.read_bandwidth ? `reads ${bytes(tier.read_bandwidth)}/s` : "not read yet";
    lines.push(tierLine(tier.tier, tier.used_bytes, tier.capacity_bytes, `${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)}`, tier.unavailable || `${speed}, ${count(tier.events.hits ?? 0)} hits`));
  }
  at("tiers").replaceChildren(...lines);
  const events = [...state.events].reverse().slice(0, 9).map((event) => {
    const item = html("li");
    item.append(html("b", "", event.kind), document.createTextNode(`${count(event.tokens)} tokens · ${event.tier}${event.session ? ` · ${event.session}` : ""}`));
    return item;
  });
  at("events").replaceChildren(...(events.length ? events : [html("li", "", "nothing moved yet")]));
}

function tierLine(name, used, whole, text, more) {
  const line = html("div", "tierline"), bar = html("div", "stack");
  bar.setAttribute("role", "img");
  stack(bar, [{kind: name, value: used}, {kind: "", value: Math.max(0, whole - used)}], whole, `${name}: ${text}`);
  line.append(html("span", "", name), bar, html("span", "", text), html("small", "", more));
  return line;
}

async function drawTree() {
  try {
    const top = await ask("/v1/cache/tree?limit=160");
    at("tree-sub").textContent = `${count(top.tree_blocks)} blocks of ${top.block_tokens} tokens${top.pinned_blocks ? `, ${count(top.pinned_blocks)} pinned` : ""}; the deeper the colour, the later the use`;
    tree(at("tree"), top.nodes);
  } catch { /* the engine restarts: the next picture comes with it */ }
}

async function openSession(name) {
  opened = name;
  at("detail-title").textContent = name;
  at("detail").hidden = false;
  await drawSession();
  if (opened !== name) return;  // closed meanwhile, or another one is open
  at("detail").scrollIntoView({block: "nearest"});
  at("detail-title").focus({preventScroll: true});
}

async function drawSession() {
  const name = opened;
  let session;
  try { session = await ask(`/dashboard/session?name=${encodeURIComponent(name)}`); } catch { return; }
  if (opened !== name) return;
  const from = session.parent ? `, a branch of ${session.parent}` : "";
  at("detail-sub").textContent = `${plural(session.num_turns, "turn")}${from}, ${count(session.tokens)} tokens, ${share(session.hit_rate)} of its prompts reused; its KV lies in: ${session.tier || "nowhere yet"}`;
  drawTimeline(at("timeline"), at("timeline-legend"), session);
  turnRows(at("turn-rows"), session);
  drawBranches(session);
}

function drawBranches(session) {
  if (!session.branches.length) { at("branches").replaceChildren(); return; }
  const title = html("h3", "", "Branches"), items = session.branches.map((one) => {
    const link = html("button", "link", `${one.session} (${plural(one.turns, "turn")})`);
    link.type = "button";
    link.addEventListener("click", () => openSession(one.session));
    const item = html("p", "sub");
    item.append(link);
    return item;
  });
  at("branches").replaceChildren(title, ...items);
}

function close() {
  if (!opened) return;
  opened = null;
  at("detail").hidden = true;
  at("session-list").focus();
}

at("close-detail").addEventListener("click", close);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
at("find").addEventListener("input", (event) => list.find(event.target.value));
for (const input of document.querySelectorAll("input[name=window]")) input.addEventListener("change", () => latest && drawReuse(latest));
window.addEventListener("resize", () => latest && draw(latest, false));

async function run() {
  for (;;) {
    if (!document.hidden) await tick();
    await new Promise((done) => setTimeout(done, EVERY_MS));
  }
}
run();
