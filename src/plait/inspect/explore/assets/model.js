"use strict";
// The nodes of the description with what follows from them: paths, children, sums over what is below, links back.

const DATA = JSON.parse(document.getElementById("data").textContent);
const NODES = DATA.nodes;
const IS_PAIR = DATA.sides.length === 2;
const ROOT = NODES[0];
const KINDS = new Map(); // kind of variable → its colour
const LETTERS = ["a", "b"];
const COSTS = new Set();

function prepare() {
  NODES.forEach((node, place) => {
    const owner = place ? NODES[node.parent] : null;
    Object.assign(node, { place, owner, children: [], depth: owner ? owner.depth + 1 : 0, linked: [], changes: node.changes ?? [] });
    node.path = owner ? (owner.path + node.step).replace(/^\./, "") : "";
    node.side = node.sides[node.sides.length - 1] ?? node.sides[0];
    node.role = node.side.role;
    owner?.children.push(node);
    node.sums = node.sides.map((side) => sums(side));
    for (const side of node.sides) {
      if (side?.role === "leaf" && !KINDS.has(kindOf(side))) KINDS.set(kindOf(side), `var(--k${Math.min(KINDS.size, 7)})`);
      for (const name of Object.keys(side?.costs ?? {})) COSTS.add(name);
    }
    node.changed = node.changes.length ? 1 : 0;
    node.bad = node.sides.some((side) => side?.statistics && (side.statistics.nans || side.statistics.infinities)) ? 1 : 0;
  });
  for (let place = NODES.length - 1; place > 0; place--) {
    const { owner, sums: own, changed, bad } = NODES[place];
    own.forEach((sum, side) => {
      const { costs, ...rest } = sum;
      for (const name of Object.keys(rest)) owner.sums[side][name] += rest[name];
      for (const name of Object.keys(costs)) owner.sums[side].costs[name] = (owner.sums[side].costs[name] ?? 0) + costs[name];
    });
    owner.changed += changed;
    owner.bad += bad;
  }
  for (const node of NODES) {
    for (const target of new Set(node.sides.filter((side) => side?.to !== undefined).map((side) => side.to))) {
      NODES[target].linked.push(node);
    }
  }
}

const sums = (side) => ({
  bytes: side?.bytes ?? 0,
  count: side?.count ?? 0,
  leaves: side?.role === "leaf" ? 1 : 0,
  nodes: side?.role === "node" ? 1 : 0,
  costs: { ...side?.costs }, // of the module's own operations; sums count those below too
});

const kindOf = (side) => side.type || "array";
const colorOf = (side) => KINDS.get(kindOf(side)) ?? "var(--k7)";
const labelOf = (node) => (node.owner ? node.step.replace(/^\./, "") : DATA.sides.length === 2 ? "root" : DATA.sides[0].name);
const sizeOf = (node, name) => Math.max(...node.sums.map((sum) => sum[name]));
const targetOf = (node) => (node.side.to === undefined ? null : NODES[node.side.to]);

function* ancestors(node) {
  for (let each = node.owner; each; each = each.owner) yield each;
}

const changeOf = (node) => {
  for (const word of ["added", "removed"]) if (node.changes.includes(word)) return word;
  return node.changes.length ? "change" : "";
};

prepare();
