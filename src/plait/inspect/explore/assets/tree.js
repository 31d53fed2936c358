"use strict";
// The tree. Only the rows in view are elements, so that its size does not matter.

const ROW = 28;
const AROUND = 12; // rows above and below those in view

const tree = {
  box: document.getElementById("tree"),
  rows: document.getElementById("rows"),
  open: new Set([0]),
  closed: new Set(), // while a search or filter opens everything that leads to a match
  words: [],
  filter: "all",
  kept: null, // place → 1 for a match, 2 for what leads to one; null shows everything
  shown: [],
  selected: 0,
  texts: null,
};

const FILTERS = {
  all: () => true,
  changed: (node) => node.changes.length > 0 && !["added", "removed"].includes(changeOf(node)),
  added: (node) => node.changes.includes("added"),
  removed: (node) => node.changes.includes("removed"),
};

function isOpen(node) {
  return tree.kept ? tree.kept[node.place] === 2 && !tree.closed.has(node.place) : tree.open.has(node.place);
}

function setOpen(node, open) {
  if (!node.children.length) return;
  if (tree.kept) {
    if (open) tree.closed.delete(node.place);
    else tree.closed.add(node.place);
  } else if (open) tree.open.add(node.place);
  else tree.open.delete(node.place);
}

function list() {
  const shown = [];
  const waiting = [ROOT];
  while (waiting.length) {
    const node = waiting.pop();
    if (tree.kept && !tree.kept[node.place]) continue;
    shown.push(node);
    if (isOpen(node)) for (let i = node.children.length - 1; i >= 0; i--) waiting.push(node.children[i]);
  }
  tree.shown = shown;
  tree.rows.style.height = `${shown.length * ROW}px`;
  draw();
}

function textOf(node) {
  tree.texts ??= NODES.map((each) => {
    const words = each.sides.map((side) => (side ? `${side.type ?? ""} ${side.role === "leaf" ? inShape(side) : ""}` : ""));
    return `${each.path} ${words.join(" ")}`.toLowerCase();
  });
  return tree.texts[node.place];
}

function search(query) {
  tree.words = query.toLowerCase().split(/(?<!,)\s+/).filter(Boolean); // "[8, 2]" is one word
  tree.closed.clear();
  if (!tree.words.length && tree.filter === "all") {
    tree.kept = null;
    for (const each of ancestors(NODES[tree.selected])) tree.open.add(each.place);
    list();
    return 0;
  }
  tree.kept = new Uint8Array(NODES.length);
  let found = 0;
  for (const node of NODES) {
    if (!FILTERS[tree.filter](node)) continue;
    const text = tree.words.length ? textOf(node) : "";
    if (!tree.words.every((word) => text.includes(word))) continue;
    found += 1;
    tree.kept[node.place] ||= 1;
    for (const each of ancestors(node)) {
      if (tree.kept[each.place] === 2) break;
      tree.kept[each.place] = 2;
    }
  }
  list();
  return found;
}

const isMatch = (node) => FILTERS[tree.filter](node) && tree.words.every((word) => textOf(node).includes(word));

function draw() {
  const first = Math.max(0, Math.floor(tree.box.scrollTop / ROW) - AROUND);
  const last = Math.min(tree.shown.length, Math.ceil((tree.box.scrollTop + tree.box.clientHeight) / ROW) + AROUND);
  tree.rows.replaceChildren(...tree.shown.slice(first, last).map((node, i) => styled(row(node), { top: `${(first + i) * ROW}px` })));
  tree.box.setAttribute("aria-activedescendant", `row-${tree.selected}`);
}

function row(node) {
  const { side, role } = node;
  const siblings = node.owner?.children ?? [node];
  const made = element(
    "div",
    {
      class: `row is-${role} is-${changeOf(node) || "same"}`, id: `row-${node.place}`, role: "treeitem", "data-place": node.place,
      "aria-level": node.depth + 1, "aria-selected": String(node.place === tree.selected),
      "aria-expanded": node.children.length ? String(isOpen(node)) : undefined,
      "aria-setsize": siblings.length, "aria-posinset": siblings.indexOf(node) + 1, title: node.path,
    },
    styled(element("span", { class: "name" }, caret(node), dot(node), element("span", { class: "label" }, ...marked(labelOf(node))), ...badges(node)), {
      "padding-left": `${node.depth * 14}px`,
    }),
    element("span", { class: "type" }, ...marked(side.type ?? "")),
    element("span", { class: "array" }, ...(role === "leaf" ? marked(inShape(side)) : role === "link" ? [`→ ${targetOf(node).path || "root"}`] : [countOf(node)])),
    element("span", { class: "spark-cell" }, IS_PAIR ? changeBadge(node) : spark(side)),
    sizeCell(node),
  );
  return made;
}

const countOf = (node) => (sizeOf(node, "count") ? inShort(sizeOf(node, "count")) : "");

function caret(node) {
  const arrow = drawn("svg", { viewBox: "0 0 8 8", "aria-hidden": "true" }, drawn("path", { d: "M2 0.5 6.5 4 2 7.5z" }));
  return element("button", { class: node.children.length ? "caret" : "caret none", tabindex: "-1", "aria-label": "Open or close" }, arrow);
}

function dot(node) {
  if (node.role === "leaf") return styled(element("i", { class: "dot" }), { background: colorOf(node.side) });
  return element("i", { class: "dot square" });
}

function badges(node) {
  const found = [];
  if (node.role === "link") found.push(element("span", { class: "badge" }, node.side.isCycle ? "cycle" : "shared"));
  else if (node.linked.length) found.push(element("span", { class: "badge" }, "shared"));
  if (node.bad && (node.role === "leaf" || !isOpen(node))) found.push(element("span", { class: "badge bad", title: "NaNs or infinities" }, "NaN/inf"));
  return found;
}

function changeBadge(node) {
  const change = changeOf(node);
  if (change) return element("span", { class: `badge ${change}`, title: node.changes.join(", ") }, change === "change" ? changeText(node) : ONLY[change]);
  return node.changed && !isOpen(node) ? element("span", { class: "badge" }, `${inWhole(node.changed)} below`) : "";
}

const ONLY = { added: "only in B", removed: "only in A" };

function changeText(node) {
  const words = node.changes.filter((word) => word !== "values");
  if (node.changes.includes("values")) {
    const relative = node.difference?.relative;
    words.push(typeof relative === "number" ? `values ${inParts(relative, 1)}` : "values");
  }
  return words.join(", ");
}

function marked(text) {
  if (!tree.words.length) return [text];
  const places = [];
  for (const word of tree.words) {
    const place = text.toLowerCase().indexOf(word);
    if (place >= 0) places.push([place, place + word.length]);
  }
  places.sort((first, second) => first[0] - second[0]);
  const parts = [];
  let end = 0;
  for (const [from, to] of places) {
    if (from < end) continue;
    parts.push(text.slice(end, from), element("mark", {}, text.slice(from, to)));
    end = to;
  }
  return [...parts, text.slice(end)];
}

function sizeCell(node) {
  if (node.role === "link") return element("span", { class: "size" });
  const bytes = sizeOf(node, "bytes");
  const part = bytes / (sizeOf(ROOT, "bytes") || 1);
  const meter = element("span", { class: "meter" }, styled(element("i"), { width: `${100 * part}%` }));
  return element("span", { class: "size" }, bytes ? inBytes(bytes) : "", meter);
}

function reveal(node) {
  let listed = true;
  for (const each of ancestors(node)) if (!isOpen(each)) listed = false;
  if (tree.kept && !tree.kept[node.place]) leaveSearch();
  for (const each of ancestors(node)) setOpen(each, true);
  if (!listed || !tree.shown.includes(node)) list();
  const top = tree.shown.indexOf(node) * ROW;
  const { scrollTop, clientHeight } = tree.box;
  if (top < scrollTop) tree.box.scrollTop = top;
  else if (top + ROW > scrollTop + clientHeight) tree.box.scrollTop = top + ROW - clientHeight;
}

function toggle(node) {
  setOpen(node, !isOpen(node));
  list();
}
