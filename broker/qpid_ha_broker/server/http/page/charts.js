// How the figures of all brokers went, a line for each. Who does not answer is named, and holds up nobody.

import * as broker from "./broker.js";
import { forEach, others } from "./brokers.js";
import { Chart, spanChoice } from "./chart.js";
import { bytes, cores, count, duration, el, rate, setText, show } from "./dom.js";
import { showWrongs } from "./wrongs.js";

const REFRESH_MS = 5000;
const ALL = "all brokers";
const LED = "Of the resource sets that a broker leads.";

const FIGURES = [
  ["in", "Messages in", { show: rate, about: LED, adds: true }],
  ["out", "Messages out", { show: rate, about: LED, adds: true }],
  ["depth", "Messages in queues", { show: count, about: LED, adds: true }],
  ["confirm_s", "Time to confirm", { show: duration, about: "From writing a message until all who must have it do, on average." }],
  ["memory", "Memory of the process", { show: bytes, binary: true }],
  ["message_memory", "Memory of messages", { show: bytes, binary: true, nears: true, about: "At the limit publishers get no credit." }],
  ["disk_free", "Free disk space", { show: bytes, binary: true, about: "Where the data directory is." }],
  ["cpu", "Processor", { show: cores }],
  ["descriptors", "Open descriptors", { show: count, nears: true }],
  ["connections", "Connections", { show: count }],
];

export class ChartsView {
  title = "Charts";
  refreshMs = REFRESH_MS;
  #told = new Map(); // by address, that of the broker of this page is empty
  #problems = new Map();

  constructor() {
    const { choice, label } = spanChoice(() => {
      this.#told.clear();
      this.onDue?.();
    });
    this.choice = choice;
    this.charts = FIGURES.map(([name, title, how]) => ({ name, adds: how.adds, chart: new Chart(title, how) }));
    this.silent = el("ul", { class: "wrongs", "aria-label": "Brokers without figures" });
    this.note = el("p", { class: "quiet" });
    setText(this.note, `Times are those of ${Intl.DateTimeFormat().resolvedOptions().timeZone}. The arrow keys read a chart that has the focus.`);
    this.element = el("div", {}, el("h2", {}, "Charts"), el("div", { class: "tools" }, label), this.note, this.silent,
      el("div", { class: "charts" }, ...this.charts.map(({ chart }) => chart.element)));
  }

  async refresh() {
    const span = this.choice.value;
    const own = this.#ask({ address: "", name: broker.who.broker }, span);
    const rows = await others().catch(() => []);
    const asked = new Set(["", ...rows.map((row) => row.address)]);
    for (const address of this.#told.keys()) if (!asked.has(address)) this.#told.delete(address);
    for (const address of this.#problems.keys()) if (!asked.has(address)) this.#problems.delete(address);
    for (const row of rows) if (row.silence && !this.#told.has(row.address)) this.#cannotShow(row, row.silence);
    await Promise.all([own, forEach(rows, (row) => this.#ask(row, span))]);
    return null;
  }

  async #ask({ address, name }, span) {
    try {
      const told = await broker.get("/charts", address ? { span, broker: address } : { span });
      if (span !== this.choice.value) return;
      this.#told.set(address, { ...told, name });
      this.#problems.delete(address);
    } catch (error) {
      if (!address || !(error instanceof broker.Refused) || error.status === 401) throw error;
      this.#cannotShow({ address, name }, error.message);
    }
    this.#show();
  }

  #cannotShow({ address, name }, why) {
    this.#told.delete(address);
    this.#problems.set(address, { severity: "warning", text: `There are no figures of ${name}.`, help: why });
    showWrongs(this.silent, [...this.#problems.values()]);
  }

  #show() {
    showWrongs(this.silent, [...this.#problems.values()]);
    const all = [...this.#told.values()].sort((one, other) => one.name.localeCompare(other.name));
    for (const { name, adds, chart } of this.charts) {
      const lines = all.map((told, style) => ({ ...lineOf(told, name, all.length > 1 ? told.name : ""), style })).filter(hasSome);
      chart.update(adds ? [...lines, ...sumOf(lines, all.length)] : lines);
      // Without a store a broker has no disk.
      if (name === "disk_free") show(chart.element, all.some((told) => told.limits?.disk_free !== undefined));
    }
  }
}

/** What a broker told of a figure, as a line. */
export function lineOf(told, figure, name = "") {
  return { name, values: told.figures[figure] ?? [], newestMs: told.newest_ms, stepMs: told.step_s * 1000, limit: told.limits?.[figure] };
}

/** Who leads no set has none of the figures of those: that is no line. */
function hasSome(line) {
  return line.values.some((value) => value !== null);
}

/** A line for all together, where more than one has something: [], or [line]. */
function sumOf(noted, style) {
  if (noted.length < 2) return [];
  const { stepMs } = noted[0];
  const newestMs = Math.max(...noted.map((line) => line.newestMs));
  const most = Math.max(...noted.map((line) => line.values.length));
  const values = Array.from({ length: most }, (_, at) => {
    const parts = noted.map((line) => line.values[at - most + line.values.length + Math.round((newestMs - line.newestMs) / stepMs)])
      .filter((value) => value !== null && value !== undefined);
    return parts.length ? parts.reduce((sum, value) => sum + value, 0) : null;
  });
  return [{ name: ALL, values, newestMs, stepMs, style }];
}
