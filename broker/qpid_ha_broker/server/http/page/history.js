// Who was primary since when, and why: the last first. Where there are several resource sets, also what the controller did.

import * as broker from "./broker.js";
import { count, el, seconds, time } from "./dom.js";

export class HistoryView {
  title = "History";
  refreshMs = 10000;

  constructor() {
    this.generations = el("ol", { class: "timeline", reversed: true });
    this.controller = el("ol", { class: "timeline", reversed: true });
    this.controllerPart = el("section", { "aria-labelledby": "controller-title", hidden: true },
      el("h2", { id: "controller-title" }, "What the controller did about resource sets"), this.controller);
    this.element = el("div", {},
      el("section", { "aria-labelledby": "history-title" }, el("h2", { id: "history-title" }, "Primaries of the cluster"), this.generations),
      this.controllerPart);
  }

  async refresh() {
    const status = await broker.call("status");
    if (status.state === "standalone") {
      this.#fill(this.generations, [{ title: "A standalone broker has no failovers.", text: "", at: "", forced: false }]);
      return status;
    }
    const generations = (await broker.call("history")).toSorted((one, other) => other.generation - one.generation);
    this.#fill(this.generations, generations.map((row, at) => ({
      at: time(row.started_at_ms) || "time not known",
      title: `Generation ${count(row.generation)}: ${row.primary}`,
      text: `${row.cause || "cause not known"}${row.forced ? ", by force: confirmed messages may have been lost" : ""}; from LSN ${count(row.first_lsn)}${reign(row, generations[at - 1])}`,
      forced: row.forced,
    })));
    if (status.sets) {
      const entries = await broker.call("history", { sets: true });
      this.#fill(this.controller, entries.toReversed().map((row) => ({ at: time(row.at_ms), title: row.about, text: row.text })));
      this.controllerPart.hidden = false;
    }
    return status;
  }

  #fill(list, items) {
    const id = JSON.stringify(items);
    if (list.shownId === id) return;
    list.shownId = id;
    list.replaceChildren(...items.map((item) => el("li", { class: item.forced ? "forced" : null },
      el("p", { class: "quiet" }, item.at), el("h3", {}, item.title), el("p", {}, item.text))));
  }
}

function reign(row, next) {
  if (!next) return "";
  return row.started_at_ms && next.started_at_ms ? `; for ${seconds((next.started_at_ms - row.started_at_ms) / 1000)}` : "";
}
