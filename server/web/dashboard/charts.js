// Small pictures, made of SVG elements. Nothing here keeps state or asks the server.

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  return element;
}

export function html(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

// parts: [{kind, value}]; widths are shares of total.
export function stack(element, parts, total, label) {
  if (element.children.length !== parts.length) element.replaceChildren(...parts.map((part) => html("i", part.kind)));
  parts.forEach((part, index) => {
    const piece = element.children[index];
    piece.className = part.kind;
    piece.style.flexGrow = total > 0 ? part.value / total : 0;
    piece.style.flexBasis = "0";
  });
  if (label) element.setAttribute("aria-label", label);
}

export function legend(element, parts) {
  element.replaceChildren(...parts.map((part) => {
    const item = html("li");
    item.append(html("i", part.kind), document.createTextNode(part.name), html("b", "", part.shown ?? ""));
    return item;
  }));
}

// values: numbers or null, oldest first; scaled between 0 and their largest.
export function spark(element, values) {
  const width = element.clientWidth || 200, height = element.clientHeight || 32;
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const known = values.filter((value) => value !== null);
  const most = Math.max(...known, 1e-9);
  const curve = path(values, width, height, most);
  element.replaceChildren(svg("path", {class: "curve", d: curve}));
}

// Two shares, from 0 to 1, over the same time: what was reused, and what could have been.
export function shares(element, reused, possible, minutes) {
  const width = element.clientWidth || 600, height = element.clientHeight || 104, left = 34, bottom = 16;
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const inner = svg("g", {transform: `translate(${left},4)`});
  const w = width - left, h = height - bottom - 4;
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    const y = 4 + h * (1 - share);
    parts.push(svg("line", {class: "grid", x1: left, x2: width, y1: y, y2: y}));
    parts.push(svg("text", {x: left - 6, y: y + 4, "text-anchor": "end"}, `${share * 100}%`));
  }
  parts.push(svg("text", {x: left, y: height - 2}, `${minutes} min ago`), svg("text", {x: width, y: height - 2, "text-anchor": "end"}, "now"));
  const line = path(reused, w, h, 1);
  if (line) {
    const first = reused.findIndex((value) => value !== null), last = reused.length - 1 - [...reused].reverse().findIndex((value) => value !== null);
    const x = (index) => (w * index) / Math.max(1, reused.length - 1);
    inner.append(svg("path", {class: "area", d: `${line}L${x(last)},${h}L${x(first)},${h}Z`}));
  }
  inner.append(svg("path", {class: "curve possible", d: path(possible, w, h, 1)}), svg("path", {class: "curve", d: line}));
  element.replaceChildren(...parts, inner);
}

function path(values, width, height, most) {
  let drawn = "", pen = "M";
  values.forEach((value, index) => {
    if (value === null) return;
    const x = (width * index) / Math.max(1, values.length - 1), y = height * (1 - value / most);
    drawn += `${pen}${x.toFixed(1)},${y.toFixed(1)}`;
    pen = "L";
  });
  return drawn;
}

// The tree lying down: to the right go the tokens, below each other lie the branches.
export function tree(element, nodes) {
  const rowHeight = 20, width = Math.max(element.parentElement.clientWidth, 320);
  const children = new Map(), end = Math.max(1, ...nodes.map((node) => node.start + node.tokens));
  nodes.forEach((node, index) => children.set(node.parent, [...(children.get(node.parent) ?? []), index]));
  const placed = [];
  let row = 0;
  const place = (index) => {
    const top = row;
    for (const child of children.get(index) ?? []) place(child);
    if (row === top) row += 1;
    placed.push({node: nodes[index], top, rows: row - top});
  };
  for (const first of children.get(-1) ?? []) place(first);
  const height = Math.max(row, 1) * rowHeight;
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  element.setAttribute("width", width);
  element.setAttribute("height", height);
  element.setAttribute("aria-label", `The radix tree: ${nodes.length} edges, up to ${end} tokens deep`);
  const scale = (tokens) => (width * Math.sqrt(tokens)) / Math.sqrt(end);
  element.replaceChildren(...placed.flatMap(({node, top, rows}) => {
    const x = scale(node.start), w = Math.max(2, scale(node.start + node.tokens) - x);
    const age = node.superseded ? "old" : `age${node.idle_s < 10 ? 0 : node.idle_s < 60 ? 1 : node.idle_s < 600 ? 2 : 3}`;
    const box = svg("rect", {class: `${age}${node.users > 0 ? " used" : ""}`, x, y: top * rowHeight, width: w, height: rows * rowHeight - 1, rx: 3});
    const owners = node.owners.length ? `, ends: ${node.owners.join(", ")}` : "";
    box.append(svg("title", {}, `${node.tokens} tokens behind ${node.start}, ${node.users} users, used ${Math.round(node.idle_s)} s ago${owners}`));
    const label = w > 54 ? [svg("text", {class: age === "age0" || age === "age1" ? "on-dark" : "", x: x + 6, y: top * rowHeight + 14}, `${node.tokens}`)] : [];
    return [box, ...label];
  }));
}
