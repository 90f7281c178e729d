// How the figures of the broker went.

import * as broker from "./broker.js";
import { Chart, spanChoice } from "./chart.js";
import { bytes, cores, count, duration, el, rate, setText, show } from "./dom.js";

const REFRESH_MS = 5000;
const LED = "Of the resource sets that a broker leads.";

const FIGURES = [
  ["in", "Messages in", { show: rate, about: LED }],
  ["out", "Messages out", { show: rate, about: LED }],
  ["depth", "Messages in queues", { show: count, about: LED }],
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

  constructor() {
    const { choice, label } = spanChoice(() => this.onDue?.());
    this.choice = choice;
    this.charts = new Map(FIGURES.map(([name, title, how]) => [name, new Chart(title, how)]));
    this.note = el("p", { class: "quiet" });
    setText(this.note, `Times are those of ${Intl.DateTimeFormat().resolvedOptions().timeZone}. The arrow keys read a chart that has the focus.`);
    this.element = el("div", {}, el("h2", {}, "Charts"), el("div", { class: "tools" }, label), this.note,
      el("div", { class: "charts" }, ...[...this.charts.values()].map((chart) => chart.element)));
  }

  async refresh() {
    const told = await broker.get("/charts", { span: this.choice.value });
    for (const [name, chart] of this.charts) chart.update([lineOf(told, name)], told.limits?.[name]);
    show(this.charts.get("disk_free").element, told.limits?.disk_free !== undefined); // without a store there is none
    return null;
  }
}

/** What the broker told of a figure, as a line. */
export function lineOf(told, figure, name = "") {
  return { name, values: told.figures[figure] ?? [], newestMs: told.newest_ms, stepMs: told.step_s * 1000 };
}
