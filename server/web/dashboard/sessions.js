// The list of sessions, of which only the rows in view exist, and the timeline of one.

import {html, legend, stack, svg} from "./charts.js";
import {ago, count, plural, seconds, share, shortName, SOURCES} from "./words.js";

const ROW = 44, SPARE = 6;

export class SessionList {
  constructor(element, open) {
    this.element = element;
    this.open = open;
    this.all = [];
    this.shown = [];
    this.selected = null;
    this.filter = "";
    this.height = html("div");
    this.height.setAttribute("role", "presentation");
    element.append(this.height);
    element.addEventListener("scroll", () => this.draw(), {passive: true});
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.choose(row.dataset.session, true);
    });
  }

  update(sessions) {
    this.all = sessions;
    this.apply();
  }

  find(text) {
    this.filter = text.trim().toLowerCase();
    this.apply();
  }

  apply() {
    this.shown = this.filter ? this.all.filter((one) => `${one.session} ${one.tenant}`.toLowerCase().includes(this.filter)) : this.all;
    this.height.style.height = `${this.shown.length * ROW}px`;
    this.draw();
  }

  key(event) {
    const step = {ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -1e9, End: 1e9}[event.key];
    if (step) {
      event.preventDefault();
      const at = this.shown.findIndex((one) => one.session === this.selected);
      const next = Math.min(this.shown.length - 1, Math.max(0, at + step));
      if (this.shown[next]) this.choose(this.shown[next].session, false);
    } else if (event.key === "Enter" && this.selected) {
      event.preventDefault();
      this.open(this.selected);
    }
  }

  choose(session, opens) {
    this.selected = session;
    const at = this.shown.findIndex((one) => one.session === session) * ROW;
    if (at < this.element.scrollTop) this.element.scrollTop = at;
    if (at + ROW > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = at + ROW - this.element.clientHeight;
    this.draw();
    if (opens) this.open(session);
  }

  draw() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - SPARE);
    const last = Math.min(this.shown.length, Math.ceil((this.element.scrollTop + this.element.clientHeight) / ROW) + SPARE);
    if (!this.shown.length) {
      this.height.replaceChildren(html("p", "empty", this.filter ? "No session of that name." : "No session yet: they appear with their first turn."));
      this.height.firstChild.setAttribute("role", "option");
      this.height.style.height = "auto";
      this.element.removeAttribute("aria-activedescendant");
      return;
    }
    const rows = [];
    for (let index = first; index < last; index += 1) rows.push(this.row(this.shown[index], index));
    this.height.replaceChildren(...rows);
    const chosen = rows.find((row) => row.dataset.session === this.selected);
    if (chosen) this.element.setAttribute("aria-activedescendant", chosen.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  row(one, index) {
    const row = html("div", "row");
    row.id = `session-${index}`;
    row.dataset.session = one.session;
    row.style.top = `${index * ROW}px`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", one.session === this.selected);
    row.setAttribute("aria-setsize", this.shown.length);
    row.setAttribute("aria-posinset", index + 1);
    const name = html("span", "name", `${one.parent ? "↳ " : ""}${one.session}`);
    if (one.tenant) name.append(html("small", "", one.tenant));
    const tier = html("span", "tier");
    tier.append(html("span", `dot ${one.tier}`), document.createTextNode(one.tier || "–"));
    const mini = svg("svg", {class: "mini wide", viewBox: "0 0 120 20", preserveAspectRatio: "none", "aria-hidden": "true"});
    one.recent.forEach((hit, at) => {
      mini.append(svg("rect", {class: "computed", x: at * 10, y: 0, width: 8, height: 20}), svg("rect", {class: "device", x: at * 10, y: 20 - 20 * hit, width: 8, height: 20 * hit}));
    });
    const turns = html("span", "right wide", plural(one.num_turns, "turn"));
    const last = html("span", one.running ? "right running" : "right wide", one.running ? "running" : ago(one.last_at));
    row.append(name, tier, turns, mini, html("span", "right", share(one.hit_rate)), last);
    return row;
  }
}

const PHASES = [["queue", "waiting"], ["load", "loading"], ["prefill", "prompt"], ["decode", "answer"]];

export function drawTimeline(element, legendElement, session) {
  const turns = session.turns, width = Math.max(element.parentElement.clientWidth, 320), left = 4;
  const branches = session.branches.filter((one) => one.first_at);
  const begin = turns.length ? turns[0].at : 0;
  const ends = [...turns.map((turn) => turn.at + turn.duration_s), ...branches.map((one) => one.last_at)];
  const scale = makeScale(turns, branches, begin, Math.max(begin + 0.001, ...ends), width - 2 * left);
  const height = 58 + branches.length * 18;
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  element.setAttribute("width", width);
  element.setAttribute("height", height);
  element.setAttribute("aria-label", `Timeline of ${session.session}: ${turns.length} turns, ${branches.length} branches`);
  const parts = turns.length ? [svg("line", {class: "gapline", x1: left, x2: width - left, y1: 26, y2: 26})] : [];
  turns.forEach((turn, index) => parts.push(...turnBox(turn, index, scale, left)));
  branches.forEach((one, index) => {
    const y = 62 + index * 18, x = left + scale(one.first_at), to = left + scale(one.last_at);
    parts.push(svg("path", {class: "branch", d: `M${x},40 V${y - 4} q0,4 4,4 H${Math.max(x + 6, to)}`}), svg("text", to > width * 0.7 ? {x: x - 6, y: y + 4, "text-anchor": "end"} : {x: Math.max(x + 10, to + 4), y: y + 4}, `${shortName(one.session)} · ${plural(one.turns, "turn")}`));
  });
  element.replaceChildren(...parts);
  legend(legendElement, PHASES.map(([kind, name]) => ({kind, name})));
}

// Tool gaps may last hours beside turns of a second: each is drawn at most as long as the turns around it.
function makeScale(turns, branches, begin, end, width) {
  const longest = Math.max(0.5, 3 * turns.reduce((sum, turn) => sum + turn.duration_s, 0) / Math.max(1, turns.length));
  const marks = [[begin, 0]];
  let drawn = 0, last = begin;
  const times = [...turns.flatMap((turn) => [turn.at, turn.at + turn.duration_s]), ...branches.flatMap((one) => [one.first_at, one.last_at]), end].sort((a, b) => a - b);
  for (const time of times) {
    drawn += Math.min(longest, Math.max(0, time - last));
    last = Math.max(last, time);
    marks.push([last, drawn]);
  }
  return (time) => {
    let index = marks.findIndex(([at]) => at >= time);
    if (index <= 0) index = index < 0 ? marks.length - 1 : 1;
    const [t0, d0] = marks[index - 1] ?? marks[0], [t1, d1] = marks[index] ?? marks[0];
    const inside = t1 > t0 ? d0 + ((d1 - d0) * (Math.min(time, t1) - t0)) / (t1 - t0) : d1;
    return (width * inside) / Math.max(drawn, 1e-6);
  };
}

function turnBox(turn, index, scale, left) {
  const parts = [], from = left + scale(turn.at), to = left + scale(turn.at + turn.duration_s);
  const known = turn.queue_s + turn.load_s + turn.prefill_s;
  const lengths = {queue: turn.queue_s, load: turn.load_s, prefill: turn.prefill_s, decode: Math.max(0, turn.duration_s - known)};
  const whole = Object.values(lengths).reduce((sum, one) => sum + one, 0) || 1;
  const group = svg("g", {});
  group.append(svg("title", {}, `turn ${index + 1}: ${turn.prompt_tokens} tokens in, ${turn.completion_tokens} out, ${seconds(turn.duration_s)}`));
  let x = from;
  const width = Math.max(3, to - from);
  for (const [kind] of PHASES) {
    const w = (width * lengths[kind]) / whole;
    if (w > 0.3) group.append(svg("rect", {class: kind, x, y: 14, width: w, height: 24}));
    x += w;
  }
  parts.push(group);
  if (turn.rule) parts.push(svg("circle", {class: "missed", cx: from + 3, cy: 8, r: 3}));
  return parts;
}

export function turnRows(body, session) {
  body.replaceChildren(...[...session.turns].reverse().map((turn, index) => {
    const row = html("tr");
    const bar = html("div", "stack small");
    stack(bar, SOURCES.map(([kind]) => ({kind, value: turn.by_source[kind]})), turn.prompt_tokens);
    const cells = [
      `${session.num_turns - index}`,
      turn.gap_s ? seconds(turn.gap_s) : "",
      count(turn.prompt_tokens),
      bar,
      turn.ttft_s === null ? "–" : seconds(turn.ttft_s),
      `${turn.completion_tokens} in ${seconds(turn.duration_s)}`,
      turn.rule || (turn.outcome === "error" ? "error" : ""),
    ];
    row.append(...cells.map((cell) => {
      const data = html("td", "", typeof cell === "string" ? cell : "");
      if (typeof cell !== "string") data.append(cell);
      return data;
    }));
    return row;
  }));
}
