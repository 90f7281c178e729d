// One queue: its figures, and what an operator may do to it.

import { argumentsField, argumentsText, changedArguments, readArguments } from "./arguments.js";
import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { AT_REST, clientLinks, linkRows } from "./connections.js";
import { Chart, spanChoice } from "./chart.js";
import { lineOf } from "./charts.js";
import { bytes, count, el, plural, rate, seconds, setText, show, Table } from "./dom.js";
import { Bindings, bindQueue } from "./exchanges.js";
import { Messages, moveMessages } from "./messages.js";

const MORE_EVERY = 4;
const LINKS_MAX = 200;
const OF_ITSELF = new Set(["default", "local"]); // of the cluster, and of a broker: no view of their own

export class QueueView {
  refreshMs = 3000;
  round = 0;

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
    this.ofSet = el("p", { hidden: true }, el("a", {}));
    this.purge = el("button", { type: "button", id: "purge", class: "danger", disabled: true, onclick: () => this.#purge() }, "Purge…");
    this.move = el("button", { type: "button", id: "move", disabled: true, onclick: () => this.#move() }, "Move messages…");
    this.publish = el("button", { type: "button", id: "publish", disabled: true, onclick: () => this.#publish() }, "Publish a message…");
    this.change = el("button", { type: "button", id: "change", disabled: true, onclick: () => this.#change() }, "Change arguments…");
    this.bind = el("button", { type: "button", id: "bind", disabled: true, onclick: () => this.#bind() }, "Bind…");
    this.delete = el("button", { type: "button", id: "delete", class: "danger", disabled: true, onclick: () => this.#delete() }, "Delete…");
    this.buttons = [this.publish, this.move, this.change, this.bind, this.purge, this.delete];
    this.arguments = el("p");
    this.consumers = new Table("Consumers", [
      { title: "Client", long: true, value: (link) => link.relayed_for || `${link.user ?? "nobody"} at ${link.address}` },
      { title: "Broker", value: (link) => (link.relayed_to ? `${link.broker}, relayed to ${link.relayed_to}` : link.broker) },
      { title: "Container", long: true, value: (link) => link.container ?? "" },
      { title: "Credit", number: true, value: (link) => count(link.credit) },
      { title: "Unsettled", number: true, value: (link) => count(link.unsettled) },
      { title: "Waits for", value: (link) => link.waits_for || "nothing", classes: (link) => (AT_REST.has(link.waits_for) ? "quiet" : "warn") },
    ], { key: (link) => link.key });
    this.consumersSaid = el("p", { class: "quiet", role: "status" });
    this.bindings = new Bindings(() => this.#askBindings());
    this.more = el("div", {},
      el("section", { "aria-labelledby": "arguments-title" }, el("h2", { id: "arguments-title" }, "Arguments"), this.arguments),
      el("section", { "aria-labelledby": "consumers-title" }, el("h2", { id: "consumers-title" }, "Consumers"), this.consumersSaid, this.consumers.element),
      this.bindings.element);
    this.messages = new Messages(name, () => this.onDue?.());
    this.element = el("div", {},
      el("p", {}, el("a", { href: "#/queues" }, "All queues")),
      el("h2", { id: "queue-title" }, name),
      this.facts, this.ofSet, this.why, el("div", { class: "tools" }, ...this.buttons),
      this.trend, this.messages.element, this.more); // what grows by itself is below what is clicked
  }

  async refresh() {
    const { rows } = await broker.get("/queues", { name: this.name, ...this.of });
    const row = rows[0];
    show(this.trend, row !== undefined);
    if (!row) {
      setText(this.why, "There is no such queue here. It may be gone, or in a set of which this broker has no replica.");
      for (const button of this.buttons) button.disabled = true;
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
    const [link] = this.ofSet.children;
    link.href = `#/set/${encodeURIComponent(row.set)}`;
    setText(link, `The resource set ${row.set}`);
    show(this.ofSet, !OF_ITSELF.has(row.set));
    await this.#showCharts();
    const may = broker.mayChange() && !this.address;
    setText(this.why, may ? "" : this.address ? `This is how the broker at ${this.address} has it: open its page to change something.` : `The token ${broker.who.token} has the role ${broker.who.role}: what changes something takes operator.`);
    for (const button of this.buttons) button.disabled = !may;
    this.messages.allow(may);
    show(this.more, !this.address);
    if (!this.address) await this.#showMore();
    return null;
  }

  /** Who consumes, and what is bound, is asked for more seldom: there may be many connections and bindings. */
  async #showMore() {
    this.given = (await broker.call("queues", { action: "read", name: this.name })).arguments;
    setText(this.arguments, argumentsText(this.given));
    if (this.round % MORE_EVERY === 0) await Promise.all([this.#askConsumers(), this.#askBindings()]);
    this.round += 1;
  }

  async #askConsumers() {
    const { connections, silent } = await broker.call("connections", { all: true });
    const rows = linkRows(connections).filter((row) => row.link.node === this.name && row.link.direction === "to client");
    const links = clientLinks(rows).map((row) => ({ ...row, ...row.link, key: `${row.broker}/${row.id}/${row.number}` }));
    const missing = silent.length ? `; ${plural(silent.length, "broker")} did not answer` : "";
    setText(this.consumersSaid, `${plural(links.length, "link")} of consumers${missing}`);
    show(this.consumers.element, links.length > 0);
    this.consumers.update(links.slice(0, LINKS_MAX));
  }

  async #askBindings() {
    const exchanges = await broker.call("exchanges", { action: "list" });
    this.bindings.update(exchanges.flatMap((exchange) => exchange.bindings
      .filter((binding) => binding.queue === this.name).map((binding) => ({ exchange: exchange.name, ...binding }))));
  }

  async #showCharts() {
    const told = await broker.get("/charts", { queue: this.name, span: this.span.value, ...this.of });
    setText(this.chartsProblem, told.problem ? `This queue has no charts: ${told.problem}.` : "");
    this.depth.update([lineOf(told, "depth")]);
    this.rates.update([lineOf(told, "in", "In"), lineOf(told, "out", "Out")]);
  }

  async #publish() {
    await confirmAction({
      title: `Publish a message to ${this.name}`,
      does: ["The message comes into the queue behind the others, and a consumer gets it as any message of a client."],
      loses: "Nothing, unless the queue is full and drops older messages then, as its policy says.",
      verb: "Publish",
      fields: [
        { name: "body", label: "Body, a text", kind: "textarea" },
        { name: "subject", label: "Subject; empty: none", maxlength: 1024 },
        { ...argumentsField({}, "colour=red"), label: "Application properties, NAME=VALUE on a line each" },
        { name: "durable", label: "Kept", options: [["yes", "also when brokers start anew (durable)"], ["no", "in memory alone"]] },
      ],
      run: async ({ body, subject, arguments: text, durable }) => {
        const params = { action: "publish", name: this.name, body, properties: readArguments(text), transient: durable === "no" };
        if (subject) params.subject = subject;
        const told = await broker.call("queues", params);
        return `A message of ${bytes(told.bytes)} is in ${this.name}.`;
      },
    });
    this.onDue?.();
  }

  async #change() {
    const before = this.given;
    await confirmAction({
      title: `Change the arguments of ${this.name}`,
      does: ["Only what is another one here is changed; a line that is taken away takes the argument away. What fixes the order of messages (priorities, the key of last values) cannot change."],
      loses: "Under a lower limit the queue may drop messages, or take no more, as its policy says.",
      verb: "Change",
      fields: [argumentsField(before)],
      run: async ({ arguments: text }) => {
        const changes = changedArguments(before, readArguments(text));
        if (!Object.keys(changes).length) throw new Error("nothing is another one");
        const told = await broker.call("queues", { action: "update", name: this.name, arguments: changes });
        return `${this.name} has the arguments: ${argumentsText(told.arguments)}.`;
      },
    });
    this.onDue?.();
  }

  async #bind() {
    if (await bindQueue({ queue: this.name })) await this.#askBindings();
  }

  async #delete() {
    const { name, row } = this;
    const isDone = await confirmAction({
      title: `Delete ${name}`,
      does: [`The queue is deleted on all brokers, with its bindings. It has ${plural(row.messages, "message")} and ${plural(row.consumers, "consumer")} at this moment.`],
      loses: "Its messages, for good, unless it has an alternate exchange, to which they go.",
      verb: "Delete",
      danger: true,
      fields: [{ name: "when", label: "Delete it", options: [["empty", "only if it is empty and nobody consumes from it"], ["always", "with its messages, whoever consumes"]] }],
      run: async ({ when }) => {
        await broker.call("queues", { action: "delete", name, if_empty: when === "empty", if_unused: when === "empty" });
        return `The queue ${name} was deleted.`;
      },
    });
    if (isDone) location.hash = "#/queues";
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
