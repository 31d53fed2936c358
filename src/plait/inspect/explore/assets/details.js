"use strict";
// What is known about the selected place.

const LINKS = 24; // that are listed
const details = document.getElementById("details");
const letterOf = (letter) => element("span", { class: `letter ${letter}` }, letter.toUpperCase());
const both = (node) => node.sides.map((side, i) => [side, LETTERS[i]]).filter(([side]) => side);

function showDetails(node) {
  const parts = [crumbs(node), heading(node), facts(node)];
  if (node.role === "link") parts.push(linksCard(node));
  if (node.role === "leaf") parts.push(statisticsCard(node), histogramCard(node), ...shardings(node), attributesCard(node, "Metadata"), linksCard(node), mapCard(node));
  if (node.role === "node") parts.push(mapCard(node), callsCard(node), kindsCard(node), linksCard(node), attributesCard(node, "Attributes"));
  details.replaceChildren(...parts.filter(Boolean));
  details.scrollTop = 0;
}

function crumbs(node) {
  const path = [...ancestors(node)].reverse();
  const links = path.map((each) => element("button", { onclick: () => select(each) }, labelOf(each)));
  return element("nav", { class: "crumbs", "aria-label": "Path" }, ...links.flatMap((link, i) => (i ? ["›", link] : [link])));
}

function heading(node) {
  const made = element("div", { class: "heading" }, element("h2", {}, node.path || labelOf(node)));
  const types = [...new Set(both(node).map(([side]) => side.type).filter((type) => type && type !== (node.path || labelOf(node))))];
  if (types.length) made.append(element("span", { class: "tag" }, dot(node), types.join(" / ")));
  const change = changeOf(node);
  if (change) {
    made.append(element("span", { class: `badge ${change}` }, ONLY[change] ?? `differs: ${node.changes.join(", ")}`));
  }
  return made;
}

const fact = (name, value, more) => element("div", { class: "fact" }, element("span", {}, name, more ? element("small", {}, ` · ${more}`) : null), element("b", {}, value));

function facts(node) {
  if (node.role === "link") return null;
  const pairs = both(node);
  const values = (f) => {
    const texts = pairs.map(([side]) => f(side, node.sums[node.sides.indexOf(side)]));
    return new Set(texts).size === 1 ? texts[0] : texts.join(" → ");
  };
  const share = inParts(sizeOf(node, "bytes"), sizeOf(ROOT, "bytes"));
  const bytes = fact("Size", values((_, sum) => inBytes(sum.bytes)), node.owner && share ? `${share}` : "");
  const costs = [...COSTS].filter((name) => node.sums.some((sum) => sum.costs[name]));
  const more = costs.map((name) => fact(name, values((_, sum) => inCost(name, sum.costs[name] ?? 0))));
  if (node.role === "leaf") {
    return element("div", { class: "facts" }, fact("Shape", values((side) => `[${(side.shape ?? []).join(", ")}]`)), fact("Dtype", values((side) => side.dtype ?? "–")), fact("Elements", values((side) => inWhole(side.count ?? 0))), bytes);
  }
  return element(
    "div",
    { class: "facts" },
    fact("Elements", values((_, sum) => inShort(sum.count))),
    bytes,
    fact("Variables", values((_, sum) => inWhole(sum.leaves))),
    fact(DATA.sides.some((side) => side.hasObjects) ? "Objects" : "Groups", values((_, sum) => inWhole(sum.nodes))),
    ...more,
  );
}

function card(title, ...inside) {
  return element("div", { class: "card" }, element("h3", {}, title), ...inside);
}

function pathLink(node) {
  return element("button", { class: "link", onclick: () => select(node) }, node.path || labelOf(node));
}

function linksCard(node) {
  const targets = [...new Set(node.sides.filter((side) => side?.to !== undefined).map((side) => NODES[side.to]))];
  const rows = [];
  for (const target of targets) {
    const what = node.side.isCycle ? "a cycle: this is the object above it, at" : "a shared object: shown at";
    rows.push(element("p", { class: "note" }, `This is ${what}`), pathLink(target));
  }
  if (node.linked.length) rows.push(element("p", { class: "note" }, "The same object is also at"), ...node.linked.slice(0, LINKS).map(pathLink));
  if (node.linked.length > LINKS) rows.push(element("p", { class: "note" }, `and at ${inWhole(node.linked.length - LINKS)} more`));
  return rows.length ? card("Links", element("div", { class: "inside links" }, ...rows)) : null;
}

const NUMBERS = [["low", "Minimum"], ["high", "Maximum"], ["mean", "Mean"], ["std", "Standard deviation"], ["zeros", "Zeros"], ["nans", "NaNs"], ["infinities", "Infinities"]];

function statisticsCard(node) {
  const pairs = both(node);
  if (!pairs.some(([side]) => side.statistics)) {
    const why = node.side.isKey ? "random keys" : node.side.why;
    return why ? card("Statistics", element("p", { class: "note inside" }, `None: ${why}.`)) : null;
  }
  const table = element("table");
  if (IS_PAIR) table.append(element("thead", {}, element("tr", {}, element("th"), ...pairs.map(([, letter]) => element("th", { class: "number" }, letterOf(letter))))));
  const body = element("tbody");
  for (const [name, label] of NUMBERS) {
    const found = pairs.map(([side]) => side.statistics?.[name]);
    const texts = pairs.map(([side], i) => {
      const counts = ["zeros", "nans", "infinities"].includes(name);
      const share = counts && found[i] ? ` (${inParts(found[i], side.statistics.count)})` : "";
      return `${counts ? inWhole(found[i] ?? 0) : inNumber(found[i])}${share}`;
    });
    const isBad = ["nans", "infinities"].includes(name) && found.some(Boolean);
    const differs = found.length === 2 && found[0] !== found[1];
    body.append(element("tr", { class: differs ? "differs" : "" }, element("th", {}, label, isBad ? element("span", { class: "badge bad" }, "!") : null), ...texts.map((text) => element("td", { class: "number" }, text))));
  }
  table.append(body);
  return element("div", { class: "pair-of-cards" }, differenceCard(node), card("Statistics", table));
}

function differenceCard(node) {
  const found = node.difference;
  if (!found) return null;
  if (!found.changed) return card("Difference", element("p", { class: "note inside" }, "All values are equal."));
  const rows = [
    ["Elements that differ", `${inWhole(found.changed)} (${inParts(found.changed, node.side.count)})`],
    ["Largest distance", inNumber(found.largest)],
    ["Mean distance", inNumber(found.mean)],
    ["Norm of the difference / larger norm", inNumber(found.relative)],
  ];
  return card("Difference", element("table", {}, element("tbody", {}, ...rows.map(([name, text]) => element("tr", {}, element("th", {}, name), element("td", { class: "number" }, text))))));
}

function shardings(node) {
  const pairs = both(node).filter(([side]) => side.layout !== undefined);
  const isSame = pairs.length === 2 && pairs[0][0].layout === pairs[1][0].layout;
  return (isSame ? pairs.slice(0, 1) : pairs).map(([side, letter]) => layoutCard(side, IS_PAIR && !isSame ? letter : ""));
}

function attributesCard(node, title) {
  const names = [...new Set(both(node).flatMap(([side]) => (side.attributes ?? []).map(([name]) => name)))];
  if (!names.length) return null;
  const body = element("tbody");
  for (const name of names) {
    const texts = both(node).map(([side]) => (side.attributes ?? []).find(([each]) => each === name)?.[1] ?? "–");
    const isSame = new Set(texts).size === 1;
    body.append(element("tr", { class: isSame ? "" : "differs" }, element("th", {}, name), element("td", {}, ...(isSame ? [element("code", {}, texts[0])] : texts.flatMap((text, i) => [letterOf(LETTERS[i]), " ", element("code", {}, text), " "])))));
  }
  return card(title, element("table", {}, body));
}

function callsCard(node) {
  const rows = both(node).flatMap(([side, letter]) => (side.calls ?? []).map((call) => [call, letter]));
  if (!rows.length) return null;
  const cells = (texts) => element("td", {}, ...texts.map((text) => element("div", {}, element("code", {}, text))));
  const head = element("thead", {}, element("tr", {}, ...["", "Inputs", "Outputs"].map((text) => element("th", {}, text))));
  const body = element("tbody", {}, ...rows.map(([call, letter]) => element("tr", {}, element("th", {}, IS_PAIR ? letterOf(letter) : null, element("code", {}, ` ${call.method}`), call.times > 1 ? ` × ${call.times}` : "", call.inside ? element("div", { class: "note" }, `inside ${call.inside}`) : null), cells(call.inputs), cells(call.outputs))));
  return element("div", { class: "card", id: "calls" }, element("h3", {}, "Calls"), element("table", {}, head, body));
}

function kindsCard(node) {
  const found = new Map();
  const waiting = [node];
  while (waiting.length) {
    const { side, sums, role, children } = waiting.pop();
    waiting.push(...children);
    if (role !== "leaf") continue;
    const kind = kindOf(side);
    const row = found.get(kind) ?? { leaves: 0, count: 0, bytes: 0, side };
    const sum = sums[sums.length - 1].leaves ? sums[sums.length - 1] : sums[0];
    for (const name of ["leaves", "count", "bytes"]) row[name] += sum[name];
    found.set(kind, row);
  }
  if (!found.size) return null;
  const head = element("thead", {}, element("tr", {}, element("th", {}, "Kind"), ...["Variables", "Elements", "Bytes"].map((text) => element("th", { class: "number" }, text))));
  const rows = [...found].sort((first, second) => second[1].bytes - first[1].bytes).map(([kind, row]) => {
    const dot = styled(element("i", { class: "swatch" }), { background: colorOf(row.side), display: "inline-block", "margin-right": "8px" });
    return element("tr", {}, element("td", {}, dot, kind), ...[inWhole(row.leaves), inShort(row.count), inBytes(row.bytes)].map((text) => element("td", { class: "number" }, text)));
  });
  return card("Kinds of variables", element("table", {}, head, element("tbody", {}, ...rows)));
}
