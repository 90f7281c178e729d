// Who is in the cluster besides the broker of this page, and a choice of them. All of them are asked through that broker.

import * as broker from "./broker.js";
import { el, setText } from "./dom.js";

const KEPT_MS = 12000;
const AT_ONCE = 4; // a token may have 8 requests under way
const known = { at: 0, rows: [], names: new Map() };

/** [{name, address, silence}] by name; who does not answer has the name that it had, or its address, and why as `silence`. */
export async function others() {
  if (Date.now() - known.at < KEPT_MS) return known.rows;
  const rows = await broker.call("status", { all: true });
  for (const row of rows) if (row.name && row.address) known.names.set(row.address, row.name);
  known.rows = rows.filter((row) => row.address && row.name !== broker.who.broker)
    .map((row) => ({ address: row.address, name: row.name ?? known.names.get(row.address) ?? row.address,
      silence: row.state === "unreachable" ? row.why : "" }))
    .sort((one, other) => one.name.localeCompare(other.name));
  known.at = Date.now();
  return known.rows;
}

/** Have `ask` done for each, some at a time, so that one that is silent holds up no other for long. */
export async function forEach(rows, ask) {
  const left = [...rows];
  const work = async () => {
    while (left.length) await ask(left.shift());
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
}

/** Which broker something is shown of; its `value` is an address, empty for the broker of this page. */
export class BrokerChoice {
  constructor(onChosen) {
    this.select = el("select", { id: "broker", onchange: onChosen }, el("option", { value: "" }));
    this.element = el("label", {}, "Broker", this.select);
  }

  get value() {
    return this.select.value;
  }

  /** What a request takes to be about it. */
  get params() {
    return this.value ? { broker: this.value } : {};
  }

  async refresh() {
    const rows = [{ address: "", name: broker.who.broker }, ...await others().catch(() => known.rows)];
    rows.forEach(({ address, name }, at) => {
      const option = this.select.options[at] ?? this.select.appendChild(el("option"));
      option.value = address;
      setText(option, name);
    });
    while (this.select.options.length > rows.length) this.select.lastChild.remove();
    this.element.hidden = rows.length === 1;
  }
}
