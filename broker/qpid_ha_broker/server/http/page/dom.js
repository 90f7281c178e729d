// Elements. All text goes in as text nodes: whatever a queue's name or a message has in it is shown, and never run.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `props` are its attributes, or `on...` listeners; children are elements, or text. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

/** The same of SVG. */
export function svg(tag, props = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Another text, if it is another one: a screen reader and a selection keep their place. */
export function setText(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function show(element, is_shown) {
  element.hidden = !is_shown;
}

/** Said by a screen reader when it has nothing else to say. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}

export function stateMark(text, kind) {
  return el("span", { class: `state ${kind}` }, text);
}

/**
 * A table whose rows stay the same elements as long as their keys do, so that focus and selection survive an update.
 * Columns: {title, value: row -> text or element, number, classes: row -> text, id: row -> what an element depends on}.
 */
export class Table {
  constructor(caption, columns, { classes = "cards", key = (row) => row.name } = {}) {
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    this.body = el("tbody", { role: "rowgroup" });
    const heads = columns.map((column) =>
      el("th", { scope: "col", role: "columnheader", class: column.number ? "number" : null }, column.title));
    this.element = el("table", { class: classes, role: "table" },
      el("caption", { class: "unseen" }, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads)), this.body);
  }

  update(rows) {
    const before = this.rows;
    this.rows = new Map();
    rows.forEach((row, at) => {
      const key = this.key(row);
      const line = before.get(key) ?? this.#line();
      before.delete(key);
      this.rows.set(key, line);
      this.#fill(line, row);
      if (this.body.children[at] !== line) this.body.insertBefore(line, this.body.children[at] ?? null);
    });
    for (const line of before.values()) line.remove();
  }

  #line() {
    return el("tr", { role: "row" }, ...this.columns.map((column) =>
      el("td", { role: "cell", "data-label": column.title, class: ownClass(column) })));
  }

  #fill(line, row) {
    this.columns.forEach((column, at) => fillCell(line.children[at], column, row));
  }
}

export function fillCell(cell, column, row) {
  const id = column.id ? JSON.stringify(column.id(row)) : null;
  if (id !== null) {
    if (cell.shownId === id) return;
    cell.shownId = id;
    cell.replaceChildren(column.value(row) ?? "");
  } else {
    setText(cell, column.value(row));
  }
  if (column.classes) cell.className = `${ownClass(column) ?? ""} ${column.classes(row) ?? ""}`;
}

/** `long`: it may be broken anywhere, because nobody knows how long it is. */
function ownClass(column) {
  return column.number ? "number" : column.long ? "long" : null;
}

/** How a depth went, oldest first. */
export function spark(depths, seconds) {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("class", "spark");
  made.setAttribute("viewBox", "0 0 100 24");
  made.setAttribute("preserveAspectRatio", "none");
  made.setAttribute("role", "img");
  if (depths.length < 2) {
    made.setAttribute("aria-label", "no trend yet");
    return made;
  }
  const most = Math.max(...depths);
  const least = Math.min(...depths);
  const minutes = Math.max(1, Math.round(((depths.length - 1) * seconds) / 60));
  made.setAttribute("aria-label", `in the last ${minutes} min from ${least} to ${most}, now ${depths[depths.length - 1]}`);
  const base = document.createElementNS(SVG, "line");
  for (const [name, value] of [["x1", 0], ["x2", 100], ["y1", 23], ["y2", 23]]) base.setAttribute(name, value);
  const line = document.createElementNS(SVG, "polyline");
  const step = 100 / 59;
  const start = 100 - (depths.length - 1) * step;
  const points = depths.map((depth, at) => `${(start + at * step).toFixed(1)},${(23 - (22 * depth) / Math.max(most, 1)).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
  made.append(base, line);
  return made;
}

const WHOLE = new Intl.NumberFormat("en");
const ONE_DIGIT = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function count(number) {
  return typeof number === "number" ? WHOLE.format(number) : "";
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

export function rate(number) {
  return typeof number === "number" ? `${ONE_DIGIT.format(number)}/s` : "";
}

export function bytes(number) {
  if (typeof number !== "number") return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at += 1;
  }
  return `${ONE_DIGIT.format(number)} ${units[at]}`;
}

/** A short time, in its own unit. */
export function duration(number) {
  if (typeof number !== "number") return "";
  if (number >= 1 || number === 0) return `${ONE_DIGIT.format(number)} s`;
  return number >= 0.001 ? `${ONE_DIGIT.format(number * 1000)} ms` : `${ONE_DIGIT.format(number * 1e6)} µs`;
}

/** Of a processor: 1 is one core that is busy all the while. */
export function cores(number) {
  return typeof number === "number" ? `${ONE_DIGIT.format(number * 100)} %` : "";
}

export function seconds(number) {
  if (typeof number !== "number") return "";
  if (number < 60) return `${ONE_DIGIT.format(number)} s`;
  if (number < 3600) return `${Math.floor(number / 60)} min`;
  if (number < 172800) return `${Math.floor(number / 3600)} h ${Math.floor((number % 3600) / 60)} min`;
  return `${Math.floor(number / 86400)} d`;
}

export function time(ms) {
  if (!ms) return "";
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

/** The time of that day. */
export function clock(ms) {
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

function two(number) {
  return String(number).padStart(2, "0");
}
