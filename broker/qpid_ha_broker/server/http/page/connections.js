// Who is connected to which broker, and what each link waits for: those that wait come first.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { count, el, plural, setText, show, Table, time } from "./dom.js";
import { showWrongs } from "./wrongs.js";

const ROWS_MAX = 200;
// What a link waits for when all is well: a consumer for messages, and nobody for anything.
export const AT_REST = new Set(["", "no message", "no message that its selector takes"]);
// What a proxy says of a link that it has attached: the rest is known there.
const AT_SERVER = "the broker that it is relayed to";

export class ConnectionsView {
  title = "Connections";
  refreshMs = 5000;
  #rows = [];

  constructor() {
    this.table = new Table("Links", [
      { title: "Client", long: true, value: (row) => `${row.user ?? "nobody"} at ${row.address}` },
      { title: "Broker", value: (row) => row.broker },
      { title: "Container", long: true, value: (row) => row.container ?? "" },
      { title: "Kind", value: (row) => row.kind },
      { title: "Since", value: (row) => time(row.since_ms) },
      { title: "Direction", value: (row) => row.link.direction ?? "" },
      { title: "Node", long: true, value: (row) => row.link.node ?? "" },
      { title: "Relayed", long: true, value: (row) => relayedText(row.link) },
      { title: "Credit", value: (row) => count(row.link.credit), number: true },
      { title: "Unsettled", value: (row) => count(row.link.unsettled ?? row.unsettled), number: true },
      { title: "Waits for", value: (row) => row.link.waits_for ?? "", classes: (row) => (isWaiting(row) ? "warn" : "quiet") },
      { title: "Actions", value: (row) => this.#close(row), id: (row) => [row.broker, row.id, broker.mayChange()] },
    ], { key: (row) => `${row.broker}/${row.id}/${row.number}` });
    this.proxies = new Table("Proxies", [
      { title: "Proxy", value: (row) => row.broker },
      { title: "Relays to", value: (row) => row.to },
      { title: "Connections", number: true, value: (row) => count(row.connections) },
      { title: "Links", number: true, value: (row) => count(row.links) },
      { title: "Waiting", number: true, value: (row) => count(row.waiting), classes: (row) => (row.waiting ? "warn" : "") },
    ], { key: (row) => `${row.broker}/${row.to}` });
    this.proxiesPart = el("section", { "aria-labelledby": "proxies-title", hidden: true }, el("h2", { id: "proxies-title" }, "Proxies"),
      el("p", { class: "quiet" }, "Brokers whose clients are served by others through them, and which those are. A link that waits for more than messages is counted as waiting."),
      this.proxies.element);
    this.filter = el("input", { type: "search", id: "connection-filter", autocomplete: "off", spellcheck: "false",
      placeholder: "user, address, node", oninput: () => this.#show() });
    this.kind = el("select", { onchange: () => this.#show() }, el("option", { value: "" }, "all"),
      ...["client", "administrator", "broker", "proxy"].map((kind) => el("option", { value: kind, selected: kind === "client" }, kind)));
    this.silent = el("ul", { class: "wrongs", "aria-label": "Brokers whose connections are not shown" });
    this.said = el("p", { class: "quiet", role: "status" });
    this.element = el("div", {}, el("h2", { class: "unseen" }, "Connections and links"),
      el("div", { class: "tools" }, el("label", {}, "Filter", this.filter), el("label", {}, "Kind", this.kind)),
      this.silent, this.said, this.table.element, this.proxiesPart);
  }

  async refresh() {
    const { connections, silent } = await broker.call("connections", { all: true });
    showWrongs(this.silent, silent.map(({ address, problem }) => ({ severity: "warning", text: `Not all connections of the broker at ${address} are shown.`, help: problem })));
    this.#rows = linkRows(connections);
    this.#rows.sort((one, other) => isWaiting(other) - isWaiting(one));
    this.connections = connections.length;
    const proxies = proxiesOf(this.#rows);
    this.proxies.update(proxies);
    show(this.proxiesPart, proxies.length > 0);
    this.#show();
    return null;
  }

  #show() {
    const part = this.filter.value.toLowerCase();
    const found = this.#rows.filter((row) => (!this.kind.value || row.kind === this.kind.value) &&
      [row.user, row.address, row.container, row.link.node, row.link.relayed_to, row.link.relayed_for].some((text) => (text ?? "").toLowerCase().includes(part)));
    const more = found.length > ROWS_MAX ? `; the first ${ROWS_MAX} are shown: filter to see others` : "";
    const waiting = found.filter(isWaiting).length;
    setText(this.said, `${plural(found.length, "link")}; ${count(waiting)} waiting for something else than messages; ${plural(this.connections, "connection")} of all kinds${more}`);
    this.table.update(found.slice(0, ROWS_MAX));
  }

  #close(row) {
    if (row.number > 0) return null;
    return el("button", { type: "button", class: "plain close", disabled: !broker.mayChange(),
      "aria-label": `Close the connection of ${row.user ?? "nobody"} at ${row.address}`,
      onclick: () => this.#askToClose(row) }, "Close…");
  }

  async #askToClose(row) {
    await confirmAction({
      title: `Close the connection of ${row.user ?? "nobody"} at ${row.address}`,
      does: ["The client is told amqp:connection:forced with the reason. What it has not settled goes back into its queues. Most clients connect again."],
      loses: "No message. What it has acquired is delivered again, to it or to others.",
      verb: "Close it",
      danger: true,
      fields: [{ name: "reason", label: "Reason, which the client is told", maxlength: 200, value: "closed by an operator" }],
      run: async ({ reason }) => {
        await broker.call("connections", { action: "close", broker: row.broker, id: row.id, reason });
        return `The connection of ${row.user ?? "nobody"} at ${row.address} was closed.`;
      },
    });
    this.onDue?.();
  }
}

function isWaiting(row) {
  return Number(!AT_REST.has(row.link.waits_for ?? ""));
}

/** To which broker a link goes on, or for whom a proxy has it. */
function relayedText(link) {
  if (link.relayed_to) return `to ${link.relayed_to}`;
  return link.relayed_for ? `for ${link.relayed_for}` : "";
}

/**
 * A row for each link of connections: {...connection, link, number}, one without a link for a connection that has none. What a link
 * of a proxy waits for at the broker that serves it is taken from there.
 */
export function linkRows(connections) {
  const rows = connections.flatMap((row) => (row.links.length ? row.links : [{}]).map((link, number) => ({ ...row, link, number })));
  const served = new Map();
  for (const row of rows.filter((one) => one.link.relayed_for)) {
    const key = JSON.stringify([clientOf(row.link), row.link.node, row.link.direction]);
    served.set(key, [...(served.get(key) ?? []), row]);
  }
  return rows.map((row) => {
    if (row.link.waits_for !== AT_SERVER) return row;
    const there = served.get(JSON.stringify([`${row.address} by way of ${row.broker}`, row.link.node, row.link.direction])) ?? [];
    const { link } = there.find(isWaiting) ?? there[0] ?? row;
    return { ...row, link: { ...row.link, waits_for: link.waits_for } };
  });
}

/** Each link of a client once: not also as a proxy has it at the broker that serves it, if the client's own is there. */
export function clientLinks(rows) {
  const own = new Set(rows.filter((row) => row.link.relayed_to).map((row) => `${row.address} by way of ${row.broker}`));
  return rows.filter((row) => !own.has(clientOf(row.link)));
}

/** The client for whom a proxy has a link, by its address and that proxy. */
function clientOf(link) {
  return /\S+ by way of .*$/.exec(link.relayed_for ?? "")?.[0] ?? "";
}

/** Which brokers relay links, and where to: one row for each pair. `rows`: of links. */
export function proxiesOf(rows) {
  const pairs = new Map();
  for (const row of rows.filter((one) => one.link.relayed_to)) {
    const key = JSON.stringify([row.broker, row.link.relayed_to]);
    const pair = pairs.get(key) ?? { broker: row.broker, to: row.link.relayed_to, ids: new Set(), links: 0, waiting: 0 };
    pairs.set(key, pair);
    pair.ids.add(row.id);
    pair.links += 1;
    pair.waiting += isWaiting(row) ? 1 : 0;
  }
  const found = [...pairs.values()].map(({ ids, ...pair }) => ({ ...pair, connections: ids.size }));
  return found.sort((one, other) => `${one.broker} ${one.to}`.localeCompare(`${other.broker} ${other.to}`));
}
