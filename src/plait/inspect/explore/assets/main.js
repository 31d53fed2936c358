"use strict";
// Selection, keys, search, theme, and the address: it names the selected path, so that a place can be linked to.

const field = document.getElementById("search");
const found = document.getElementById("found");
const BY_PATH = new Map(NODES.map((node) => [node.path, node]));

function select(node, { keepAddress = false } = {}) {
  tree.selected = node.place;
  reveal(node);
  draw();
  showDetails(node);
  if (!keepAddress) history.replaceState(null, "", `#${encodeURIComponent(node.path)}`);
}

function move(by) {
  const place = tree.shown.indexOf(NODES[tree.selected]);
  const next = tree.shown[Math.max(0, Math.min(tree.shown.length - 1, place + by))];
  if (next) select(next);
}

const nextMatch = (by) => {
  const matches = NODES.filter((node) => (tree.kept ? tree.kept[node.place] && isMatch(node) : node.changes.length));
  if (!matches.length) return;
  const order = inOrder(matches);
  const here = ranks[tree.selected];
  const after = by > 0 ? order.find((node) => ranks[node.place] > here) : order.findLast((node) => ranks[node.place] < here);
  select(after ?? (by > 0 ? order[0] : order[order.length - 1]));
};

// The order of the rows of a tree that is open everywhere; two models' nodes are listed one model after the other.
const ranks = new Uint32Array(NODES.length);
{
  const waiting = [ROOT];
  for (let rank = 0; waiting.length; rank++) {
    const node = waiting.pop();
    ranks[node.place] = rank;
    for (let i = node.children.length - 1; i >= 0; i--) waiting.push(node.children[i]);
  }
}
const inOrder = (nodes) => nodes.sort((first, second) => ranks[first.place] - ranks[second.place]);

const KEYS = {
  ArrowDown: () => move(1),
  ArrowUp: () => move(-1),
  PageDown: () => move(Math.max(1, Math.floor(tree.box.clientHeight / ROW) - 1)),
  PageUp: () => move(-Math.max(1, Math.floor(tree.box.clientHeight / ROW) - 1)),
  Home: () => move(-Infinity),
  End: () => move(Infinity),
  ArrowRight: (node) => {
    if (node.children.length && !isOpen(node)) toggle(node);
    else if (node.children.length) move(1);
  },
  ArrowLeft: (node) => {
    if (node.children.length && isOpen(node)) toggle(node);
    else if (node.owner) select(node.owner);
  },
  Enter: (node) => {
    const target = targetOf(node);
    if (target) select(target);
    else toggle(node);
  },
  "*": (node) => {
    for (const each of node.owner?.children ?? [node]) setOpen(each, true);
    list();
  },
  n: () => nextMatch(1),
  p: () => nextMatch(-1),
};

tree.box.addEventListener("keydown", (event) => {
  const act = KEYS[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(NODES[tree.selected]);
});

tree.box.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  const node = NODES[row.dataset.place];
  if (event.target.closest(".caret")) toggle(node);
  else select(node);
});

tree.box.addEventListener("dblclick", (event) => {
  const row = event.target.closest(".row");
  if (row && !event.target.closest(".caret")) KEYS.Enter(NODES[row.dataset.place]);
});

let waitingToDraw = false;
tree.box.addEventListener("scroll", () => {
  if (waitingToDraw) return;
  waitingToDraw = true;
  requestAnimationFrame(() => {
    waitingToDraw = false;
    draw();
  });
});
new ResizeObserver(draw).observe(tree.box);

// Search ---------------------------------------------------------------------------------------------------------------

function runSearch() {
  const count = search(field.value);
  found.textContent = tree.words.length ? inWords(count, "match", "matches") : "";
  document.getElementById("nothing").hidden = tree.shown.length > 0;
  tree.box.scrollTop = 0;
}

function leaveSearch() {
  field.value = "";
  tree.filter = "all";
  showFilters();
  runSearch();
}

field.addEventListener("input", runSearch);
field.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") {
    event.preventDefault();
    const [first] = inOrder(NODES.filter((node) => tree.kept?.[node.place] && isMatch(node)));
    if (first) select(first);
    if (first || event.key === "ArrowDown") tree.box.focus();
  }
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target === field;
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
  if (event.key === "Escape") {
    const here = NODES[tree.selected];
    leaveSearch();
    select(here);
    tree.box.focus();
  } else if (isTyping) return;
  else if (event.key === "/") {
    event.preventDefault();
    field.focus();
    field.select();
  } else if (event.key === "t") changeTheme();
  else if (event.key === "?") dialog.showModal();
});

// Theme, keys, width ---------------------------------------------------------------------------------------------------

const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = stored("plait-theme");
function showTheme() {
  document.documentElement.dataset.theme = theme ?? (dark.matches ? "dark" : "light");
}
function stored(name, value) {
  try {
    if (value !== undefined) localStorage.setItem(name, value);
    return localStorage.getItem(name);
  } catch {
    return value ?? null; // a browser that keeps nothing
  }
}
function changeTheme() {
  theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  stored("plait-theme", theme);
  showTheme();
}
dark.addEventListener("change", showTheme);
document.getElementById("theme").addEventListener("click", changeTheme);

const dialog = document.getElementById("keys");
const HELP = [
  [["↑", "↓"], "move"], [["→", "←"], "open, close, go to the owner"], [["Enter"], "open or close; follow a link"], [["*"], "open all beside it"],
  [["/"], "search"], [["Enter"], "in the search: first match"], [["n", "p"], IS_PAIR ? "next, previous match or difference" : "next, previous match"],
  [["Esc"], "leave the search"], [["t"], "light or dark"], [["?"], "these keys"],
];
dialog.append(
  element("h2", {}, "Keys"),
  element("dl", {}, ...HELP.flatMap(([keys, text]) => [element("dt", {}, ...keys.map((key) => element("kbd", {}, key))), element("dd", {}, text)])),
);
dialog.addEventListener("click", () => dialog.close());
document.getElementById("help").addEventListener("click", () => dialog.showModal());

const splitter = document.getElementById("splitter");
const setWidth = (part) => document.getElementById("main").style.setProperty("--left", `${Math.min(75, Math.max(20, part))}%`);
splitter.addEventListener("pointerdown", (event) => {
  splitter.setPointerCapture(event.pointerId);
  splitter.onpointermove = (moved) => setWidth((100 * moved.clientX) / innerWidth);
  splitter.onpointerup = () => (splitter.onpointermove = null);
});
splitter.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
  if (by) setWidth((100 * splitter.getBoundingClientRect().left) / innerWidth + by);
});

// What stands at the top -----------------------------------------------------------------------------------------------

function showHead() {
  const title = document.getElementById("title");
  const totals = document.getElementById("totals");
  if (IS_PAIR) title.append("Comparison");
  else title.append(DATA.sides[0].name, element("span", { class: "origin" }, DATA.sides[0].origin));
  const [sum] = ROOT.sums;
  const total = (text, name) => totals.append(element("span", {}, element("b", {}, text), ` ${name}`));
  if (!IS_PAIR) {
    total(inShort(sum.count), "elements");
    total(inBytes(sum.bytes), "");
    total(inWhole(sum.leaves), "variables");
    for (const [name, value] of Object.entries(DATA.sides[0].facts).slice(0, 4)) total(inNumber(Number.isFinite(Number(value)) ? Number(value) : value), name);
  }
}

function showCompare() {
  document.getElementById("fourth").textContent = IS_PAIR ? "Difference" : "";
  const bar = document.getElementById("compare");
  bar.hidden = !IS_PAIR;
  if (!IS_PAIR) return;
  DATA.sides.forEach((side, i) => {
    const facts = Object.entries(side.facts).slice(0, 3).map(([name, value]) => `${name} ${value}`);
    bar.append(element("span", { class: "who" }, letterOf(LETTERS[i]), element("b", {}, side.name), element("span", { class: "note" }, [side.origin, inBytes(ROOT.sums[i].bytes), ...facts].join(" · "))));
  });
  const chips = element("span", { class: "push", id: "filters" });
  bar.append(chips);
  showFilters();
}

function showFilters() {
  const labels = { all: "All", changed: "Differ", added: "Only in B", removed: "Only in A" };
  document.getElementById("filters")?.replaceChildren(
    ...Object.entries(labels).map(([name, label]) => {
      const press = () => {
        tree.filter = name;
        showFilters();
        runSearch();
      };
      return element("button", { class: "chip", "data-filter": name, "aria-pressed": String(tree.filter === name), onclick: press }, label, element("b", {}, inWhole(NODES.filter(FILTERS[name]).length)));
    }),
  );
}

// A chain of only children is opened down to where there is something to choose.
function openStart() {
  let node = ROOT;
  tree.open.add(0);
  while (node.children.filter((child) => child.children.length).length === 1 && node.children.length < 4) {
    node = node.children.find((child) => child.children.length);
    tree.open.add(node.place);
  }
}

function fromAddress() {
  let path = "";
  try {
    path = decodeURIComponent(location.hash.slice(1));
  } catch {
    return ROOT; // no address that this page wrote
  }
  return BY_PATH.get(path) ?? ROOT;
}

if (IS_PAIR) document.documentElement.dataset.pair = "";
showTheme();
showHead();
showCompare();
openStart();
list();
select(fromAddress(), { keepAddress: true });
addEventListener("hashchange", () => select(fromAddress(), { keepAddress: true }));
tree.box.focus();
