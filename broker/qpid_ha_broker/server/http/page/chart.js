// A chart of some figures over time: lines with axes, the same in words, and as a table. Drawn as SVG, as wide as there is room.

import { el, setText, svg, Table } from "./dom.js";

const POINTS = 240; // of a line, once there were so many
const HEIGHT = 170;
const MARGIN = { left: 58, right: 10, top: 10, bottom: 22 };
const LABEL_PX = 64; // so much room a time takes below the axis
const MINUTE_MS = 60000;
const TIME_STEPS_MS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720].map((minutes) => minutes * MINUTE_MS);
const TABLE_ROWS = 24;
const STYLES = 6; // of lines, in page.css

export const SPANS = [["20m", "the last 20 minutes"], ["1h", "the last hour"], ["24h", "the last 24 hours"]];

/** A choice of how far charts go back; `onChosen` is called when it is another one. */
export function spanChoice(onChosen) {
  const choice = el("select", { id: "span", onchange: () => onChosen() },
    ...SPANS.map(([value, text]) => el("option", { value, selected: value === "1h" }, text)));
  return { choice, label: el("label", {}, "Show", choice) };
}

/**
 * `show`: a number as a text with its unit; `binary`: ticks are at 1, 2, 5 ... of KiB, MiB and so on, not of thousands.
 * `nears`: it is bad to come near the limit, so that is drawn once it does.
 * A line is {name, values, newestMs, stepMs, limit}: the values oldest first, null where nothing was noted; what the figure is
 * out of, if that is known. `style`: its number among the styles of lines, the same for the same thing in each chart.
 */
export class Chart {
  #lines = [];
  #at = null; // the place that is read, in steps back from the newest

  constructor(title, { show, binary = false, about = "", nears = false }) {
    this.title = title;
    this.show = show;
    this.binary = binary;
    this.nears = nears;
    this.legend = el("ul", { class: "legend" });
    this.picture = svg("svg", { height: HEIGHT, role: "img", tabindex: 0, "aria-label": title });
    this.plot = el("div", { class: "plot" }, this.picture);
    this.reading = el("p", { class: "quiet reading", role: "status" });
    this.table = el("div", { class: "rows" });
    this.details = el("details", { ontoggle: () => this.#fillTable() }, el("summary", {}, `${title} as a table`), this.table);
    this.element = el("figure", { class: "chart" },
      el("figcaption", {}, el("h3", {}, title), about ? el("p", { class: "quiet" }, about) : null), this.legend, this.plot, this.reading, this.details);
    new ResizeObserver(() => this.#draw()).observe(this.plot);
    this.plot.addEventListener("pointermove", (event) => this.#readAt(event.clientX));
    this.plot.addEventListener("pointerleave", () => this.#read(null));
    this.plot.addEventListener("focusout", () => this.#read(null));
    this.plot.addEventListener("keydown", (event) => this.#key(event));
  }

  update(lines) {
    this.#lines = lines.filter((line) => line.newestMs && line.values.length);
    this.#say();
    this.#draw();
    this.#fillTable();
  }

  // --- in words

  #say() {
    const many = this.#lines.length > 1;
    const lines = this.#lines.map((line, at) => {
      const noted = line.values.filter((value) => value !== null);
      const now = line.values[line.values.length - 1];
      const text = noted.length
        ? `${now === null ? "nothing now" : `now ${this.show(now)}`}, from ${this.show(Math.min(...noted))} to ${this.show(Math.max(...noted))}`
        : "nothing was noted";
      const of = line.limit ? ` (of ${this.show(line.limit)})` : "";
      return { text: `${line.name ? `${line.name}: ` : ""}${text}${of}`, style: line.style ?? at };
    });
    if (!lines.length) lines.push({ text: "Nothing was noted yet.", style: 0 });
    const shown = JSON.stringify([many, lines]);
    if (this.shown !== shown) {
      this.shown = shown;
      this.legend.replaceChildren(...lines.map(({ text, style }) => el("li", {}, many ? swatch(style) : null, el("span", {}, text))));
    }
    this.words = `${this.title}, ${this.#rangeText()}: ${lines.map((line) => line.text).join("; ")}`;
  }

  #rangeText() {
    const { from, to } = this.#range();
    return to ? `from ${clock(from)} to ${clock(to)}` : "no time";
  }

  #range() {
    const to = Math.max(0, ...this.#lines.map((line) => line.newestMs));
    const from = Math.min(to, ...this.#lines.map((line) => to - (POINTS - 1) * line.stepMs)); // also where nothing was noted yet
    return { from, to };
  }

  // --- as a picture

  #draw() {
    const width = this.plot.clientWidth;
    if (!width) return;
    const { from, to } = this.#range();
    const picture = svg("g");
    const most = Math.max(0, ...this.#lines.flatMap((line) => line.values.map((value) => value ?? 0)));
    const limits = this.nears ? [...new Set(this.#lines.map((line) => line.limit))].filter((limit) => limit && most > limit / 2) : [];
    const ticks = valueTicks(Math.max(most, ...limits), this.binary);
    const top = ticks[ticks.length - 1];
    const right = width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    const spanMs = Math.max(to - from, 1);
    const x = (ms) => MARGIN.left + ((ms - from) / spanMs) * (right - MARGIN.left);
    const y = (value) => bottom - (value / top) * (bottom - MARGIN.top);
    for (const value of ticks) {
      picture.append(svg("line", { class: "grid", x1: MARGIN.left, x2: right, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, this.show(value)));
    }
    for (const ms of to ? timeTicks(from, to, (right - MARGIN.left) / LABEL_PX) : []) {
      const at = x(ms);
      picture.append(svg("line", { class: "grid", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
      if (at > MARGIN.left + 12 && at < right - 12) picture.append(svg("text", { class: "tick time", x: at, y: HEIGHT - 5, "text-anchor": "middle" }, clock(ms)));
    }
    for (const limit of limits) picture.append(svg("line", { class: "limit", x1: MARGIN.left, x2: right, y1: y(limit), y2: y(limit) }));
    this.#lines.forEach((line, at) => picture.append(svg("path", { class: styleOf(line.style ?? at), d: path(line, x, y) })));
    this.cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: bottom, visibility: "hidden" });
    picture.append(this.cursor);
    this.x = x;
    for (const [name, value] of [["width", width], ["viewBox", `0 0 ${width} ${HEIGHT}`], ["aria-label", this.words]]) this.picture.setAttribute(name, value);
    this.picture.replaceChildren(picture);
    this.#read(this.#at);
  }

  // --- one moment of it

  #longest() {
    return this.#lines.reduce((one, other) => (other.values.length > (one?.values.length ?? 0) ? other : one), null);
  }

  #readAt(clientX) {
    const line = this.#longest();
    if (!line) return;
    const at = clientX - this.plot.getBoundingClientRect().left;
    const oldest = this.x(line.newestMs - (line.values.length - 1) * line.stepMs);
    const newest = this.x(line.newestMs);
    const share = newest > oldest ? (newest - at) / (newest - oldest) : 0;
    this.#read(Math.min(line.values.length - 1, Math.max(0, Math.round(share * (line.values.length - 1)))));
  }

  #key(event) {
    const line = this.#longest();
    const move = { ArrowLeft: 1, ArrowRight: -1, Home: Infinity, End: -Infinity }[event.key];
    if (!line || move === undefined) return;
    event.preventDefault();
    this.#read(Math.min(line.values.length - 1, Math.max(0, (this.#at ?? -1) + move)));
  }

  #read(at) {
    this.#at = at;
    const line = this.#longest();
    if (at === null || !line) {
      setText(this.reading, "");
      this.cursor?.setAttribute("visibility", "hidden");
      return;
    }
    const ms = line.newestMs - at * line.stepMs;
    for (const name of ["x1", "x2"]) this.cursor.setAttribute(name, this.x(ms));
    this.cursor.setAttribute("visibility", "visible");
    setText(this.reading, `${clock(ms, true)}: ${this.#lines.map((each) => withName(each, this.#valueText(each, ms))).join(", ")}`);
  }

  #valueText(line, ms) {
    const value = line.values[line.values.length - 1 - Math.round((line.newestMs - ms) / line.stepMs)];
    return value === null || value === undefined ? "nothing" : this.show(value);
  }

  // --- as a table

  #fillTable() {
    const longest = this.#longest();
    if (!this.details.open || !longest) return;
    const columns = [{ title: "Time", value: (row) => clock(row.ms, true) },
      ...this.#lines.map((line) => ({ title: line.name || this.title, number: true, value: (row) => this.#valueText(line, row.ms) }))];
    const names = JSON.stringify(columns.map((column) => column.title));
    if (this.tableNames !== names) {
      this.tableNames = names;
      this.rows = new Table(this.title, columns.map((column, at) => ({ ...column, value: (row) => row.cells[at] })), { classes: "figures", key: (row) => row.at });
      this.table.replaceChildren(this.rows.element);
    }
    const step = Math.max(1, Math.ceil(longest.values.length / TABLE_ROWS));
    const rows = [];
    for (let at = 0; at < longest.values.length; at += step) {
      const row = { at, ms: longest.newestMs - at * longest.stepMs };
      rows.push({ ...row, cells: columns.map((column) => column.value(row)) });
    }
    this.rows.update(rows);
  }
}

function swatch(style) {
  return svg("svg", { class: "swatch", viewBox: "0 0 24 8", "aria-hidden": "true" }, svg("path", { class: styleOf(style), d: "M1 4H23" }));
}

function styleOf(number) {
  return `line line${number % STYLES}`;
}

function withName(line, text) {
  return line.name ? `${line.name} ${text}` : text;
}

/** A line that is broken where nothing was noted; a number between two gaps is a dot. */
function path(line, x, y) {
  const first = line.newestMs - (line.values.length - 1) * line.stepMs;
  let isOpen = false;
  return line.values.map((value, at) => {
    if (value === null) {
      isOpen = false;
      return "";
    }
    const place = `${x(first + at * line.stepMs).toFixed(1)} ${y(value).toFixed(1)}`;
    const part = isOpen ? `L${place}` : `M${place}h0`;
    isOpen = true;
    return part;
  }).join("");
}

/** From 0 to what is no less than `most`: two to five of them. */
export function valueTicks(most, binary) {
  if (!(most > 0)) return [0, 1];
  const base = binary ? 1024 ** Math.floor(Math.log(most) / Math.log(1024) + 1e-9) : 1;
  const scaled = most / base / 4;
  const power = 10 ** Math.floor(Math.log10(scaled));
  const step = base * power * [1, 2, 5, 10].find((factor) => factor * power >= scaled * 0.999999);
  const ticks = [0];
  while (ticks[ticks.length - 1] < most * 0.999999) ticks.push(step * ticks.length);
  return ticks;
}

/** Whole times of the reader's own clock, at most so many. */
export function timeTicks(from, to, most) {
  const step = TIME_STEPS_MS.find((each) => (to - from) / each <= Math.max(most, 1)) ?? TIME_STEPS_MS[TIME_STEPS_MS.length - 1];
  const shift = new Date(to).getTimezoneOffset() * MINUTE_MS;
  const ticks = [];
  for (let ms = Math.ceil((from - shift) / step) * step + shift; ms <= to; ms += step) ticks.push(ms);
  return ticks;
}

function clock(ms, with_seconds = false) {
  const at = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${two(at.getHours())}:${two(at.getMinutes())}${with_seconds ? `:${two(at.getSeconds())}` : ""}`;
}
