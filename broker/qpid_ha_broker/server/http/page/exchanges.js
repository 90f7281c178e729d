// Exchanges, and what is bound to one of them.

import { argumentsField, argumentsText, readArguments } from "./arguments.js";
import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { count, el, plural, setText, show, Table } from "./dom.js";

const ROWS_MAX = 200;
const KINDS = ["topic", "direct", "fanout", "headers"];

export class ExchangesView {
  title = "Exchanges";
  refreshMs = 12000;
  #rows = [];

  constructor() {
    this.filter = el("input", { type: "search", id: "exchange-filter", autocomplete: "off", spellcheck: "false", oninput: () => this.#show() });
    this.create = el("button", { type: "button", id: "create-exchange", onclick: () => this.#create() }, "Create an exchange…");
    this.said = el("p", { class: "quiet", role: "status" });
    this.table = new Table("Exchanges", [
      { title: "Exchange", long: true, value: (row) => el("a", { href: `#/exchange/${encodeURIComponent(row.name)}` }, row.name), id: (row) => row.name },
      { title: "Kind", value: (row) => row.kind },
      { title: "Bindings", number: true, value: (row) => count(row.bindings.length) },
      { title: "Arguments", long: true, value: (row) => argumentsText(row.arguments) },
    ]);
    this.element = el("div", {}, el("h2", { class: "unseen" }, "Exchanges"),
      el("div", { class: "tools" }, el("label", {}, "Filter", this.filter), this.create), this.said, this.table.element);
  }

  async refresh() {
    this.#rows = await broker.call("exchanges", { action: "list" });
    this.create.disabled = !broker.mayChange();
    this.#show();
    return null;
  }

  #show() {
    const part = this.filter.value.toLowerCase();
    const shown = this.#rows.filter((row) => row.name.toLowerCase().includes(part));
    const more = shown.length > ROWS_MAX ? `; the first ${ROWS_MAX} are shown: filter to see others` : "";
    setText(this.said, `${count(shown.length)} of ${plural(this.#rows.length, "exchange")}${more}`);
    this.table.update(shown.slice(0, ROWS_MAX));
  }

  async #create() {
    await confirmAction({
      title: "Create an exchange",
      does: ["A message that is published to it goes to the queues that are bound to it, by its kind and their keys."],
      loses: "Nothing.",
      verb: "Create",
      fields: [{ name: "name", label: "Name", maxlength: 255 }, { name: "kind", label: "Kind", options: KINDS.map((kind) => [kind, kind]) }, argumentsField({}, "qpid.replicate=none")],
      run: async ({ name, kind, arguments: text }) => {
        const made = await broker.call("exchanges", { action: "create", name, kind, arguments: readArguments(text) });
        return made.created === false ? `The ${kind} exchange ${name} was there already.` : `The ${kind} exchange ${name} was created.`;
      },
    });
    this.onDue?.();
  }
}

export class ExchangeView {
  refreshMs = 12000;

  constructor(name) {
    this.name = name;
    this.title = name;
    this.facts = el("p");
    this.problem = el("p", { class: "quiet", role: "status" });
    this.bind = el("button", { type: "button", id: "bind", disabled: true, onclick: () => this.#bind() }, "Bind a queue…");
    this.delete = el("button", { type: "button", id: "delete", class: "danger", disabled: true, onclick: () => this.#delete() }, "Delete…");
    this.bindings = new Bindings(() => this.onDue?.());
    this.element = el("div", {}, el("p", {}, el("a", { href: "#/exchanges" }, "All exchanges")), el("h2", {}, name),
      this.facts, this.problem, el("div", { class: "tools" }, this.bind, this.delete), this.bindings.element);
  }

  async refresh() {
    const row = await broker.call("exchanges", { action: "read", name: this.name });
    setText(this.facts, `Kind: ${row.kind}. Arguments: ${argumentsText(row.arguments)}.`);
    for (const button of [this.bind, this.delete]) button.disabled = !broker.mayChange();
    this.bindings.update(row.bindings.map((binding) => ({ exchange: this.name, ...binding })));
    return null;
  }

  async #bind() {
    await bindQueue({ exchange: this.name });
    this.onDue?.();
  }

  async #delete() {
    const isDone = await confirmAction({
      title: `Delete the exchange ${this.name}`,
      does: ["The exchange is deleted with its bindings. Who publishes to it is refused from then on."],
      loses: "The bindings. Messages that are in queues stay there.",
      verb: "Delete",
      danger: true,
      fields: [{ name: "when", label: "Delete it", options: [["unused", "only if nothing is bound to it"], ["always", "with its bindings"]] }],
      run: async ({ when }) => {
        await broker.call("exchanges", { action: "delete", name: this.name, if_unused: when === "unused" });
        return `The exchange ${this.name} was deleted.`;
      },
    });
    if (isDone) location.hash = "#/exchanges";
  }
}

/** A table of bindings, each of which may be taken away. `changed` is called when one was. */
export class Bindings {
  constructor(changed) {
    this.changed = changed;
    this.said = el("p", { class: "quiet", role: "status" });
    this.table = new Table("Bindings", [
      { title: "Exchange", long: true, value: (row) => row.exchange },
      { title: "Key", long: true, value: (row) => row.key },
      { title: "Queue", long: true, value: (row) => el("a", { href: `#/queue/${encodeURIComponent(row.queue)}` }, row.queue), id: (row) => row.queue },
      { title: "Arguments", long: true, value: (row) => argumentsText(row.arguments) },
      { title: "Actions", value: (row) => this.#button(row), id: (row) => [row.exchange, row.queue, row.key, broker.mayChange()] },
    ], { key: (row) => JSON.stringify([row.exchange, row.queue, row.key]) });
    this.element = el("section", { "aria-labelledby": "bindings-title" }, el("h2", { id: "bindings-title" }, "Bindings"), this.said, this.table.element);
  }

  update(rows) {
    const more = rows.length > ROWS_MAX ? `; the first ${ROWS_MAX} are shown` : "";
    setText(this.said, `${plural(rows.length, "binding")}${more}`);
    show(this.table.element, rows.length > 0);
    this.table.update(rows.slice(0, ROWS_MAX));
  }

  #button(row) {
    return el("button", { type: "button", class: "plain unbind", disabled: !broker.mayChange(), "aria-label": `Unbind ${row.queue} with the key ${row.key} from ${row.exchange}`,
      onclick: () => this.#unbind(row) }, "Unbind…");
  }

  async #unbind({ exchange, queue, key }) {
    await confirmAction({
      title: `Unbind ${queue} from ${exchange}`,
      does: [`Messages that are published to ${exchange} do not come into ${queue} any more by the key "${key}".`],
      loses: "No message that is in the queue. What is published from now on may go nowhere.",
      verb: "Unbind",
      danger: true,
      run: async () => {
        await broker.call("exchanges", { action: "unbind", name: exchange, queue, key });
        return `${queue} is not bound to ${exchange} with the key "${key}" any more.`;
      },
    });
    this.changed();
  }
}

/** A question, and the binding: of one exchange, or of one queue. */
export function bindQueue({ exchange = "", queue = "" }) {
  const other = exchange ? { name: "queue", label: "Queue", maxlength: 255 } : { name: "exchange", label: "Exchange", maxlength: 255 };
  return confirmAction({
    title: exchange ? `Bind a queue to ${exchange}` : `Bind ${queue} to an exchange`,
    does: ["Messages that are published to the exchange, with a subject that the key takes, come into the queue from now on. In topics a word may be *, and # stands for any words."],
    loses: "Nothing.",
    verb: "Bind",
    fields: [other, { name: "key", label: "Key", maxlength: 1024 }, argumentsField({}, "x-match=all")],
    run: async ({ key, arguments: text, ...given }) => {
      const names = { exchange, queue, ...given };
      await broker.call("exchanges", { action: "bind", name: names.exchange, queue: names.queue, key, arguments: readArguments(text) });
      return `${names.queue} is bound to ${names.exchange} with the key "${key}".`;
    },
  });
}
