// One queue: its figures, and what an operator may do to it.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { Chart, spanChoice } from "./chart.js";
import { lineOf } from "./charts.js";
import { bytes, count, el, plural, rate, seconds, setText, show } from "./dom.js";
import { Messages, moveMessages } from "./messages.js";

export class QueueView {
  refreshMs = 3000;

  /** `address`: of another broker, whose replica is shown; empty: that of this page. */
  constructor(name, address = "") {
    this.name = name;
    this.address = address;
    this.of = address ? { broker: address } : {};
    this.title = name;
    const { choice, label } = spanChoice(() => this.onDue?.());
    this.span = choice;
    this.depth = new Chart("Messages in the queue", { show: count });
    this.rates = new Chart("Messages that come and go", { show: rate });
    this.chartsProblem = el("p", { class: "quiet", role: "status" });
    this.trend = el("section", { "aria-labelledby": "charts-title" }, el("h2", { id: "charts-title" }, "Charts"),
      el("div", { class: "tools" }, label), this.chartsProblem, el("div", { class: "charts" }, this.depth.element, this.rates.element));
    this.facts = el("dl", { class: "summary" });
    this.why = el("p", { class: "quiet" });
    this.purge = el("button", { type: "button", id: "purge", class: "danger", disabled: true, onclick: () => this.#purge() }, "Purge…");
    this.move = el("button", { type: "button", id: "move", disabled: true, onclick: () => this.#move() }, "Move messages…");
    this.messages = new Messages(name, () => this.onDue?.());
    this.element = el("div", {},
      el("p", {}, el("a", { href: "#/queues" }, "All queues")),
      el("h2", { id: "queue-title" }, name),
      this.facts, this.why, el("div", { class: "tools" }, this.move, this.purge),
      this.trend, this.messages.element);
  }

  async refresh() {
    const { rows } = await broker.get("/queues", { name: this.name, ...this.of });
    const row = rows[0];
    show(this.trend, row !== undefined);
    if (!row) {
      setText(this.why, "There is no such queue here. It may be gone, or in a set of which this broker has no replica.");
      for (const button of [this.purge, this.move]) button.disabled = true;
      this.messages.allow(false);
      return null;
    }
    this.row = row;
    const shown = [
      ["Messages", count(row.messages)], ["Bytes", bytes(row.bytes)], ["Acquired", count(row.acquired)],
      ["Consumers", count(row.consumers)], ["In", rate(row.in_rate)], ["Out", rate(row.out_rate)],
      ["Oldest message", row.messages ? seconds(row.age_s) : "none"], ["Resource set", row.set],
      ...(row.owner === undefined ? [] : [["Handed out by", row.owner || "nobody"], ["Waiting for it", row.waiting.join(", ") || "nobody"]]),
    ];
    shown.forEach(([title, value], at) => {
      const part = this.facts.children[at] ?? this.facts.appendChild(el("div", {}, el("dt"), el("dd")));
      setText(part.children[0], title);
      setText(part.children[1], value);
    });
    await this.#showCharts();
    const may = broker.mayChange() && !this.address;
    setText(this.why, may ? "" : this.address ? `This is how the broker at ${this.address} has it: open its page to change something.` : `The token ${broker.who.token} has the role ${broker.who.role}: what changes something takes operator.`);
    for (const button of [this.purge, this.move]) button.disabled = !may;
    this.messages.allow(may);
    return null;
  }

  async #showCharts() {
    const told = await broker.get("/charts", { queue: this.name, span: this.span.value, ...this.of });
    setText(this.chartsProblem, told.problem ? `This queue has no charts: ${told.problem}.` : "");
    this.depth.update([lineOf(told, "depth")]);
    this.rates.update([lineOf(told, "in", "In"), lineOf(told, "out", "Out")]);
  }

  async #move() {
    await moveMessages(this.name, { available: this.row.messages - this.row.acquired });
    this.onDue?.();
  }

  async #purge() {
    const { name, row } = this;
    await confirmAction({
      title: `Purge ${name}`,
      does: [`All messages that no consumer has acquired are removed: ${count(row.messages - row.acquired)} of ${count(row.messages)} at this moment.`],
      loses: "These messages, for good, on all brokers. They do not go to a dead letter queue.",
      verb: "Purge",
      danger: true,
      run: async () => {
        const { purged } = await broker.call("queues", { action: "purge", name });
        return `${plural(purged, "message")} removed from ${name}.`;
      },
    });
    this.onDue?.();
  }
}
