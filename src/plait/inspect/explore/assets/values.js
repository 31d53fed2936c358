"use strict";
// Numbers as text, and elements. Text reaches the page only as text nodes, so no name can be HTML.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function drawn(tag, properties = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function styled(made, styles) {
  for (const [name, value] of Object.entries(styles)) made.style.setProperty(name, value);
  return made;
}

const inBytes = (count) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let place = 0;
  let amount = count;
  while (amount >= 1024 && place < units.length - 1) [amount, place] = [amount / 1024, place + 1];
  return `${place ? amount.toFixed(amount < 10 ? 2 : amount < 100 ? 1 : 0) : amount} ${units[place]}`;
};

const inCost = (name, amount) => (/bytes/i.test(name) ? inBytes(amount) : inShort(amount));
const inWhole = (count) => (typeof count === "string" ? count : count.toLocaleString("en-US"));

const inShort = (count) => {
  for (const [size, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (count >= size) return `${(count / size).toFixed(count / size < 10 ? 2 : 1)} ${letter}`;
  }
  return String(count);
};

const inNumber = (value) => {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (value === 0 || (Number.isInteger(value) && Math.abs(value) < 1e7)) return inWhole(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
};

const inParts = (part, whole) => (whole ? `${Number(((100 * part) / whole).toPrecision(3))}%` : "");
const inWords = (count, one, many) => `${inWhole(count)} ${count === 1 ? one : many ?? `${one}s`}`;
const inShape = (side) => `${side.dtype ?? ""}[${(side.shape ?? []).join(", ")}]`;
