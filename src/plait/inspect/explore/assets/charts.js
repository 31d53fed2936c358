"use strict";
// Histograms, small and large, and arrays divided among devices.

function spark(side) {
  const counts = side?.histogram?.counts;
  if (!counts) return "";
  const most = Math.max(...counts);
  const points = counts.map((count, i) => `L${((60 * (i + 0.5)) / counts.length).toFixed(1)} ${(17 - (16 * Math.sqrt(count / most))).toFixed(1)}`);
  return drawn("svg", { viewBox: "0 0 60 18", class: "spark", "aria-hidden": "true" }, drawn("path", { d: `M0 18${points.join("")}L60 18Z` }));
}

// The histograms of one side or of two over the same range.
function chart(found, isLog) {
  const [width, height, left, bottom] = [640, 190, 44, 24];
  const { low, high } = found[0].histogram;
  const scale = (count) => (isLog ? Math.log10(1 + count) : count);
  const top = Math.max(...found.flatMap(({ histogram }) => histogram.counts.map(scale))) || 1;
  const x = (value) => left + ((value / 2 - low / 2) / (high / 2 - low / 2 || 1)) * (width - left);
  const y = (count) => (height - bottom) * (1 - scale(count) / top) + 4;
  const base = height - bottom + 4;
  const readout = element("div", { class: "readout" });
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": "Histogram" });
  picture.append(drawn("line", { class: "axis", x1: left, x2: width, y1: base, y2: base }));
  const wide = (width - left) / found[0].histogram.counts.length;
  const ends = (i) => [i, i + 1].map((end) => inNumber(low * (1 - end / found[0].histogram.counts.length) + high * (end / found[0].histogram.counts.length)));
  for (const { histogram, letter } of found) {
    if (found.length === 1) {
      histogram.counts.forEach((count, i) => {
        if (count) picture.append(drawn("rect", { class: "bar", x: left + i * wide + 0.5, width: wide - 1, y: y(count), height: base - y(count), rx: 1 }));
      });
    } else {
      const steps = histogram.counts.map((count, i) => `L${left + i * wide} ${y(count)}H${left + (i + 1) * wide}`);
      picture.append(drawn("path", { class: `area fill-${letter}`, d: `M${left} ${base}${steps.join("")}V${base}Z` }));
    }
  }
  if (low < 0 && high > 0) picture.append(drawn("line", { class: "zero", x1: x(0), x2: x(0), y1: 4, y2: base }));
  const labels = low === high ? [[(left + width) / 2, "middle", low]] : [[left, "start", low], [width, "end", high]];
  if (low < 0 && high > 0 && x(0) > left + 90 && x(0) < width - 90) labels.push([x(0), "middle", 0]);
  for (const [place, anchor, value] of labels) picture.append(drawn("text", { x: place, y: height - 4, "text-anchor": anchor }, inNumber(value)));
  const most = Math.max(...found.flatMap(({ histogram }) => histogram.counts));
  picture.append(drawn("text", { x: left - 6, y: 13, "text-anchor": "end" }, inShort(most)), drawn("text", { x: left - 6, y: base, "text-anchor": "end" }, "0"));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const i = Math.floor((((event.clientX - box.left) / box.width) * width - left) / wide);
    if (i < 0 || i >= found[0].histogram.counts.length) return;
    const counts = found.map(({ histogram, letter }) => `${letter ? `${letter.toUpperCase()}: ` : ""}${inWhole(histogram.counts[i])}`);
    readout.textContent = `${ends(i).join(" … ")}   ${counts.join("   ")}`;
  });
  picture.addEventListener("pointerleave", () => (readout.textContent = ""));
  return element("div", {}, picture, readout);
}

function histogramCard(node) {
  const found = node.sides
    .map((side, i) => ({ histogram: side?.histogram, letter: IS_PAIR ? LETTERS[i] : "" }))
    .filter(({ histogram }) => histogram);
  if (!found.length) return null;
  const inside = element("div", { class: "inside" });
  const show = (isLog) => {
    inside.replaceChildren(chart(found, isLog));
    chooser.replaceWith((chooser = segments(["linear", "log"], isLog ? "log" : "linear", (name) => show(name === "log"))));
  };
  let chooser = element("span");
  const made = element("div", { class: "card", id: "histogram" }, element("h3", {}, "Histogram", element("span", { class: "push" }, chooser)), inside);
  show(false);
  return made;
}

function segments(names, chosen, choose) {
  return element(
    "span",
    { class: "segments", role: "group" },
    ...names.map((name) => element("button", { "aria-pressed": String(name === chosen), onclick: () => choose(name) }, name)),
  );
}

const tileColor = (tile, tiles) => (tiles === 1 ? "var(--k7)" : `hsl(${Math.round((360 * tile) / tiles + 215) % 360} 52% ${tile % 2 ? 64 : 72}%)`);

function layoutCard(side, letter) {
  if (side?.layout === undefined) return null;
  const layout = DATA.layouts[side.layout];
  const tiles = layout.grid.reduce((product, parts) => product * parts, 1);
  const spec = layout.spec.map((axes) => (axes.length > 1 ? `(${axes.join(", ")})` : axes[0] ?? "–"));
  const copies = layout.tiles.length / tiles;
  const caption = `${inWords(tiles, "part")}, ${copies > 1 ? `each on ${inWords(copies, "device")}` : "one to a device"}; ${inBytes((side.bytes ?? 0) / tiles)} on a device`;
  const made = element("div", { class: "card sharding" }, element("h3", {}, "Sharding", letter ? letterOf(letter) : null, element("span", { class: "push" }, element("code", {}, `P(${spec.join(", ")})`))));
  const inside = element("div", { class: "inside" }, element("p", { class: "note" }, caption));
  inside.append(styled(element("div", { class: "grids" }, deviceGrid(layout, tiles), arrayGrid(side, layout, tiles)), { "margin-top": "12px" }));
  made.append(inside);
  return made;
}

// The devices of the mesh, its last axis as columns; devices of one colour hold the same part.
function deviceGrid(layout, tiles) {
  const columns = layout.mesh.length ? layout.mesh[layout.mesh.length - 1][1] : 1;
  const caption = `Mesh ${layout.mesh.map(([name, size]) => `${name}=${size}`).join(" × ")}`;
  const cells = layout.tiles.map((tile, i) => {
    const name = layout.devices[i] ?? i;
    return styled(element("i", { title: `device ${name}: part ${tile}` }, String(name)), { background: tileColor(tile, tiles) });
  });
  return gridFigure(caption, cells, columns, layout.tiles.length > 64 ? "dense" : "");
}

// The array, with its first two divided dimensions as rows and columns.
function arrayGrid(side, layout, tiles) {
  const divided = layout.grid.map((parts, i) => [parts, i]).filter(([parts]) => parts > 1);
  if (!divided.length || divided.length > 2) return null;
  const [rows, columns] = divided.length === 2 ? [divided[0][0], divided[1][0]] : side.shape.length > 1 && divided[0][1] === 0 ? [divided[0][0], 1] : [1, divided[0][0]];
  const cells = Array.from({ length: tiles }, (_, tile) => {
    const holders = layout.tiles.map((each, i) => (each === tile ? layout.devices[i] ?? i : null)).filter((each) => each !== null);
    const text = holders.length > 4 ? `${holders.slice(0, 3).join(",")}…` : holders.join(",");
    return styled(element("i", { title: `devices ${holders.join(", ")}` }, text), { background: tileColor(tile, tiles), padding: "0 8px" });
  });
  const caption = `Array ${inShape(side)}, dimension${divided.length > 1 ? "s" : ""} ${divided.map(([, i]) => i).join(" and ")} divided`;
  return gridFigure(caption, cells, columns, tiles > 64 ? "plain dense" : "plain");
}

function gridFigure(caption, cells, columns, kind) {
  const grid = styled(element("div", { class: `grid ${kind}` }, ...cells), { "grid-template-columns": `repeat(${columns}, minmax(${kind.includes("dense") ? 10 : 34}px, auto))` });
  return element("figure", {}, element("figcaption", {}, caption), grid);
}
