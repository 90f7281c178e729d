// Sessions of clients that outlive their connections, and nodes of brokers elsewhere.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { count, el, plural, seconds, setText, show, Table } from "./dom.js";

const ROWS_MAX = 200;

export class SessionsView {
  title = "Sessions";
  refreshMs = 5000;

  constructor() {
    this.said = el("p", { class: "quiet", role: "status" });
    this.table = new Table("Sessions", [
      { title: "Session", value: (row) => row.session },
      { title: "User", long: true, value: (row) => row.user ?? "nobody" },
      { title: "State", value: (row) => row.state, classes: (row) => (row.state === "waiting" ? "warn" : "") },
      { title: "For", number: true, value: (row) => seconds(row.for_s) },
      { title: "Ends after", number: true, value: (row) => seconds(row.timeout_s) },
      { title: "Connections", number: true, value: (row) => count(row.connections) },
      { title: "Held", number: true, value: (row) => count(row.held) },
      { title: "Client", long: true, value: (row) => row.client ?? "" },
      { title: "Broker", value: (row) => row.broker ?? "" },
      { title: "Actions", value: (row) => this.#button(row), id: (row) => [row.session, broker.mayChange()] },
    ], { key: (row) => row.session });
    this.element = el("div", {}, el("h2", { class: "unseen" }, "Sessions"), this.said, this.table.element);
  }

  async refresh() {
    const rows = await broker.call("sessions", { action: "list" });
    rows.sort((one, other) => other.held - one.held);
    const more = rows.length > ROWS_MAX ? `; the first ${ROWS_MAX} are shown, those that hold most` : "";
    setText(this.said, `${plural(rows.length, "session")} of clients, which outlive their connections${more}`);
    show(this.table.element, rows.length > 0);
    this.table.update(rows.slice(0, ROWS_MAX));
    return null;
  }

  #button(row) {
    return el("button", { type: "button", class: "plain end", disabled: !broker.mayChange(), "aria-label": `End the session ${row.session}`,
      onclick: () => this.#end(row) }, "End…");
  }

  async #end({ session, user, held }) {
    await confirmAction({
      title: `End the session ${session} of ${user ?? "nobody"}`,
      does: [`What it holds goes back into its queues: ${plural(held, "message")} at this moment. Its connection is closed, if it has one.`],
      loses: "No message. What it had acquired is delivered again; what the client remembers of it counts no more.",
      verb: "End it",
      danger: true,
      run: async () => {
        await broker.call("sessions", { action: "end", name: session });
        return `The session ${session} was ended.`;
      },
    });
    this.onDue?.();
  }
}

export class RemoteNodesView {
  title = "Remote nodes";
  refreshMs = 5000;

  constructor() {
    this.said = el("p", { class: "quiet", role: "status" });
    this.table = new Table("Nodes of other brokers", [
      { title: "Node here", long: true, value: (row) => row.name },
      { title: "There", long: true, value: (row) => row.node ?? "" },
      { title: "At", long: true, value: (row) => row.at ?? "" },
      { title: "From", value: (row) => row.from ?? "" },
      { title: "State", value: (row) => row.state, classes: (row) => (["missing", "failing", "refused"].includes(row.state) ? "bad" : "") },
      { title: "Links", number: true, value: (row) => count(row.links) },
      { title: "Messages", number: true, value: (row) => count(row.messages) },
      { title: "Problem", long: true, value: (row) => row.problem ?? "" },
    ]);
    this.element = el("div", {}, el("h2", { class: "unseen" }, "Nodes of other brokers"), this.said, this.table.element);
  }

  async refresh() {
    const rows = await broker.call("remote-nodes");
    setText(this.said, rows.length ? `${plural(rows.length, "node")} of brokers outside of this cluster` : "There are no nodes of brokers outside of this cluster.");
    show(this.table.element, rows.length > 0);
    this.table.update(rows.slice(0, ROWS_MAX));
    return null;
  }
}
