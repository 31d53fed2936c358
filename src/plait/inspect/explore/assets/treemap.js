"use strict";
// Sizes and costs below a node as areas: rectangles within rectangles, as near to squares as their order allows.
// (Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.)

const SMALLEST = 7; // pixels; what is narrower is not drawn
const MOST = 700; // cells
const MEASURES = { bytes: "Bytes", count: "Elements" };
const map = { measure: "bytes" };

function measures() {
  const costs = [...COSTS].map((name) => [name, name]);
  return [...Object.entries(MEASURES), ...costs];
}

function measureOf(node, name) {
  if (name in MEASURES) return sizeOf(node, name);
  return Math.max(...node.sums.map((sum) => sum.costs[name] ?? 0));
}

// Places items, largest first, in rows along the shorter side of what is left of a box.
function squarified(items, box) {
  const placed = [];
  let { x, y, width, height } = box;
  const total = items.reduce((sum, item) => sum + item.size, 0);
  const scale = total ? (width * height) / total : 0;
  const waiting = items.map((item) => ({ ...item, area: item.size * scale })).sort((first, second) => second.area - first.area);
  const worst = (row, sum, side) => Math.max((side * side * row[0].area) / (sum * sum), (sum * sum) / (side * side * row[row.length - 1].area));
  while (waiting.length) {
    const side = Math.min(width, height);
    const row = [waiting.shift()];
    let sum = row[0].area;
    while (waiting.length && worst([...row, waiting[0]], sum + waiting[0].area, side) <= worst(row, sum, side)) {
      sum += waiting[0].area;
      row.push(waiting.shift());
    }
    const thick = side ? sum / side : 0;
    let along = 0;
    for (const item of row) {
      const long = thick ? item.area / thick : 0;
      placed.push(width >= height ? { ...item, x, y: y + along, width: thick, height: long } : { ...item, x: x + along, y, width: long, height: thick });
      along += long;
    }
    if (width >= height) [x, width] = [x + thick, width - thick];
    else [y, height] = [y + thick, height - thick];
  }
  return placed;
}

function fillMap(box, root, here) {
  const cells = [];
  const waiting = [{ node: root, x: 0, y: 0, width: box.clientWidth, height: box.clientHeight }];
  while (waiting.length && cells.length < MOST) {
    const { node, x, y, width, height } = waiting.shift();
    const items = node.children.map((child) => ({ node: child, size: measureOf(child, map.measure) })).filter((item) => item.size > 0);
    for (const item of squarified(items, { x, y, width, height })) {
      if (item.width < SMALLEST || item.height < SMALLEST) continue;
      const inner = onlyOne(item.node);
      const isGroup = inner.children.some((child) => measureOf(child, map.measure) > 0);
      cells.push(cell(item, inner, isGroup, here));
      const head = item.height > 40 && item.width > 40 ? 17 : 0;
      if (isGroup && item.width > 14 && item.height > 14) {
        waiting.push({ node: inner, x: item.x + 2, y: item.y + 2 + head, width: item.width - 4, height: item.height - 4 - head });
      }
    }
  }
  box.replaceChildren(...cells);
}

// The last of a chain of groups with one group in each, so that a chain is one rectangle: ``opt_state[0]``.
function onlyOne(node) {
  const sized = node.children.filter((child) => measureOf(child, map.measure) > 0);
  return sized.length === 1 && sized[0].children.length ? onlyOne(sized[0]) : node;
}

function cell({ node, size, x, y, width, height }, inner, isGroup, here) {
  const made = element("div", {
    class: `cell ${isGroup ? "group" : "leaf"} ${node === here ? "here" : ""}`, "data-place": node.place,
    title: `${node.path}\n${inCost(map.measure, size)}${node.side.type ? `\n${node.side.type}` : ""}`,
  });
  if (width > 34 && height > 15 && (!isGroup || height > 40)) {
    made.append(element("span", {}, labelOf(node) + inner.path.slice(node.path.length)));
    if (!isGroup && height > 34) made.append(element("small", {}, inCost(map.measure, size)));
  }
  styled(made, { left: `${x + 1}px`, top: `${y + 1}px`, width: `${width - 2}px`, height: `${height - 2}px` });
  return isGroup ? made : styled(made, { background: mapColor(node) });
}

function mapColor(node) {
  if (!IS_PAIR) return node.role === "leaf" ? colorOf(node.side) : "var(--k7)";
  const change = changeOf(node);
  if (change === "added") return "var(--plus)";
  if (change === "removed") return "var(--minus)";
  if (!change) return "color-mix(in srgb, var(--k7) 70%, var(--panel))";
  const relative = node.difference?.relative;
  const strength = typeof relative === "number" && node.changes.length === 1 ? Math.min(1, 0.35 + 0.65 * Math.sqrt(relative)) : 1;
  return `color-mix(in srgb, var(--k1) ${Math.round(100 * strength)}%, var(--k7))`;
}

function mapCard(node) {
  const root = node.children.length ? node : node.owner;
  if (!root || !sizeOf(root, "bytes")) return null;
  const box = element("div", { id: "map", class: root === node ? "" : "small" });
  box.addEventListener("click", (event) => {
    const chosen = event.target.closest(".cell");
    if (chosen) select(NODES[chosen.dataset.place]);
  });
  const choose = (name) => {
    map.measure = name;
    const again = segmentsOf();
    chooser.replaceWith(again);
    chooser = again;
    fillMap(box, root, node);
  };
  const segmentsOf = () => segments(measures().map(([, label]) => label), measures().find(([name]) => name === map.measure)[1], (label) => choose(measures().find(([, each]) => each === label)[0]));
  let chooser = segmentsOf();
  const title = root === node ? "Sizes" : `Sizes in ${root.path || labelOf(root)}`;
  const made = element("div", { class: "card" }, element("h3", {}, title, element("span", { class: "push" }, chooser)), box, legend());
  new ResizeObserver(() => fillMap(box, root, node)).observe(box);
  return made;
}

function legend() {
  const rows = IS_PAIR
    ? [["color-mix(in srgb, var(--k7) 70%, var(--panel))", "equal"], ["var(--k1)", "differs"], ["var(--plus)", "added"], ["var(--minus)", "removed"]]
    : [...KINDS].map(([name, color]) => [color, name]);
  return element("div", { class: "legend" }, ...rows.map(([color, text]) => element("span", {}, styled(element("i", { class: "swatch" }), { background: color }), text)));
}
