// All queues, of which the rows in sight are asked for and no others: there may be ten thousand.

import * as broker from "./broker.js";
import { BrokerChoice } from "./brokers.js";
import { argumentsField, readArguments } from "./arguments.js";
import { confirmAction } from "./confirm.js";
import { bytes, count, el, fillCell, rate, seconds, setText, spark } from "./dom.js";

const ROWS_MORE = 15; // above and below what is in sight
const ROWS_MAX = 100; // the broker answers with no more
const SETTLE_MS = 120; // after the last scroll, or key

const COLUMNS = [
  { title: "Queue", sort: "name", value: (row) => el("a", { href: placeOf(row), title: row.name }, row.name), id: (row) => placeOf(row) },
  { title: "Messages", sort: "messages", number: true, value: (row) => count(row.messages) },
  { title: "Trend", trend: true, value: (row) => spark(row.depths, sampleS), id: (row) => row.depths },
  { title: "Consumers", sort: "consumers", number: true, value: (row) => count(row.consumers),
    classes: (row) => (row.messages > 0 && row.consumers === 0 ? "warn" : "") },
  { title: "In", sort: "in", number: true, wide: true, value: (row) => rate(row.in_rate) },
  { title: "Out", sort: "out", number: true, wide: true, value: (row) => rate(row.out_rate) },
  { title: "Oldest", sort: "age", number: true, wide: true, value: (row) => (row.messages ? seconds(row.age_s) : "") },
  { title: "Acquired", sort: "acquired", number: true, wide: true, value: (row) => count(row.acquired) },
  { title: "Bytes", sort: "bytes", number: true, wide: true, value: (row) => bytes(row.bytes) },
  { title: "Set", sort: "set", wide: true, value: (row) => row.set },
];
const NARROW_COLUMNS = COLUMNS.filter((column) => !column.wide).length; // a cell over more would make columns where there are none
let sampleS = 5;

export class QueuesView {
  title = "Queues";
  refreshMs = 3000;
  #sort = "messages";
  #descending = true;
  #offset = 0;
  #rows = [];
  #matching = 0;
  #lines = new Map();
  #settle = 0;
  #asked = 0;

  constructor() {
    this.filter = el("input", { type: "search", id: "filter", placeholder: "part of a name, or a pattern such as orders.*",
      autocomplete: "off", spellcheck: "false", maxlength: "256", oninput: () => this.#settled(true) });
    this.only = el("select", { id: "only", onchange: () => this.#settled(true) },
      el("option", { value: "all" }, "all"), el("option", { value: "not-empty" }, "with messages"),
      el("option", { value: "no-consumers" }, "with messages, without consumers"));
    this.sortChoice = el("select", { onchange: () => this.#sortBy(this.sortChoice.value, this.sortChoice.value !== "name") },
      ...COLUMNS.filter((column) => column.sort).map((column) => el("option", { value: column.sort }, column.title)));
    this.create = el("button", { type: "button", id: "create-queue", onclick: () => this.#create() }, "Create a queue…");
    this.choice = new BrokerChoice(() => this.#settled(true));
    this.shown = el("p", { class: "quiet", role: "status" });
    this.heads = COLUMNS.map((column) => el("th", { scope: "col", class: classesOf(column) },
      column.sort ? el("button", { type: "button", onclick: () => this.#sortBy(column.sort) }, column.title) : column.title));
    this.above = el("tr", { class: "space", "aria-hidden": "true" }, el("td", { colspan: NARROW_COLUMNS }));
    this.below = el("tr", { class: "space", "aria-hidden": "true" }, el("td", { colspan: NARROW_COLUMNS }));
    this.body = el("tbody", {}, this.above, this.below);
    this.table = el("table", {}, el("caption", { class: "unseen" }, "Queues"),
      el("colgroup", {}, ...COLUMNS.map((column) => el("col", { class: `${column.trend ? "trend" : column.sort === "name" ? "" : "figure"} ${column.wide ? "wide" : ""}` }))),
      el("thead", {}, el("tr", { "aria-rowindex": "1" }, ...this.heads)), this.body);
    this.list = el("div", { class: "list", tabindex: "0", role: "region", "aria-label": "Queues", onscroll: () => this.#settled(false) }, this.table);
    this.element = el("div", {},
      el("h2", { class: "unseen" }, "Queues"),
      el("div", { class: "tools" }, el("label", {}, "Filter", this.filter), el("label", {}, "Show", this.only), this.choice.element, this.create,
        el("label", { class: "narrow" }, "Sort by", this.sortChoice)),
      this.shown, this.list);
    this.#showSort();
  }

  async refresh() {
    this.#asked += 1;
    const asked = this.#asked;
    const at = this.choice.value;
    this.choice.refresh();
    this.create.disabled = !broker.mayChange();
    const first = Math.floor(this.list.scrollTop / this.#height());
    const inSight = Math.ceil(this.list.clientHeight / this.#height());
    const offset = Math.max(0, first - ROWS_MORE);
    const told = await broker.get("/queues", {
      sort: this.#sort, descending: this.#descending, filter: this.filter.value, only: this.only.value,
      offset, count: Math.min(ROWS_MAX, inSight + 2 * ROWS_MORE), ...this.choice.params,
    });
    if (asked !== this.#asked) return null; // another question was asked meanwhile, and its answer counts
    sampleS = told.sample_interval_s ?? sampleS;
    this.#offset = offset;
    this.#rows = told.rows.map((row) => ({ ...row, broker: at }));
    this.#matching = told.matching;
    const elsewhere = told.elsewhere ? `; ${count(told.elsewhere)} more are in sets of which ${at ? "that" : "this"} broker has no replica` : "";
    setText(this.shown, `${count(told.matching)} of ${count(told.total)} queues${elsewhere}`);
    this.#show();
    return null;
  }

  #height() {
    return parseFloat(getComputedStyle(document.documentElement).fontSize) * 2.25;
  }

  #show() {
    const before = this.#lines;
    this.#lines = new Map();
    const height = this.#height();
    this.above.style.height = `${this.#offset * height}px`;
    this.below.style.height = `${Math.max(0, this.#matching - this.#offset - this.#rows.length) * height}px`;
    this.table.setAttribute("aria-rowcount", this.#matching + 1);
    this.#rows.forEach((row, at) => {
      const key = `${row.set}/${row.name}`;
      const line = before.get(key) ?? el("tr", {}, ...COLUMNS.map((column) => el("td", { class: classesOf(column) })));
      before.delete(key);
      this.#lines.set(key, line);
      line.setAttribute("aria-rowindex", this.#offset + at + 2);
      COLUMNS.forEach((column, number) => {
        fillCell(line.children[number], { ...column, classes: undefined }, row);
        if (column.classes) line.children[number].className = `${classesOf(column) ?? ""} ${column.classes(row)}`;
      });
      if (this.body.children[at + 1] !== line) this.body.insertBefore(line, this.body.children[at + 1]);
    });
    for (const line of before.values()) line.remove();
  }

  async #create() {
    let made = "";
    const isDone = await confirmAction({
      title: "Create a queue",
      does: ["It takes messages at once. Without arguments it is replicated to all backups, without limits."],
      loses: "Nothing.",
      verb: "Create",
      fields: [{ name: "name", label: "Name", maxlength: 255 }, argumentsField()],
      run: async ({ name, arguments: text }) => {
        const told = await broker.call("queues", { action: "create", name, arguments: readArguments(text) });
        made = name;
        return told.created === false ? `The queue ${name} was there already, with these arguments.` : `The queue ${name} was created.`;
      },
    });
    if (isDone) location.hash = `#/queue/${encodeURIComponent(made)}`;
  }

  #settled(isAnew) {
    clearTimeout(this.#settle);
    this.#settle = setTimeout(() => {
      if (isAnew) this.list.scrollTop = 0;
      this.onDue?.();
    }, SETTLE_MS);
  }

  #sortBy(name, descending = null) {
    this.#descending = descending ?? (name === this.#sort ? !this.#descending : name !== "name" && name !== "set");
    this.#sort = name;
    this.#showSort();
    this.#settled(true);
  }

  #showSort() {
    this.sortChoice.value = this.#sort;
    COLUMNS.forEach((column, at) => {
      if (!column.sort) return;
      const order = column.sort === this.#sort ? (this.#descending ? "descending" : "ascending") : "none";
      this.heads[at].setAttribute("aria-sort", order);
    });
  }
}

/** Where a queue is shown, as the broker that was asked has it. */
function placeOf(row) {
  return `#/queue/${encodeURIComponent(row.name)}${row.broker ? `/${encodeURIComponent(row.broker)}` : ""}`;
}

function classesOf(column) {
  return [column.number ? "number" : "", column.wide ? "wide" : ""].filter(Boolean).join(" ") || null;
}
