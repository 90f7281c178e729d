// Settings that are not as by default: of this broker, and of the cluster above it; and how they were changed.

import * as broker from "./broker.js";
import { el, plural, setText, show, Table, time } from "./dom.js";

const UNKNOWN_METHOD = -32601;

export class SettingsView {
  title = "Settings";
  refreshMs = 12000;

  constructor() {
    this.said = el("p", { class: "quiet", role: "status" });
    this.settings = new Table("Settings that are not as by default", [
      { title: "Setting", long: true, value: (row) => row.key },
      { title: "In force", long: true, value: (row) => valueText(row.in_force) },
      { title: "Of the cluster", long: true, value: (row) => valueText(row.cluster) },
      { title: "Of this broker", long: true, value: (row) => valueText(row.own) },
      { title: "By default", long: true, value: (row) => valueText(row.default) },
      { title: "Problem", long: true, value: (row) => row.problem, classes: () => "bad" },
    ], { key: (row) => row.key });
    this.changes = new Table("Changes for the cluster", [
      { title: "When", value: (row) => time(row.at_ms) },
      { title: "Setting", long: true, value: (row) => row.key },
      { title: "Value", long: true, value: (row) => (row.value === null ? "taken away" : valueText(row.value)) },
      { title: "By", long: true, value: (row) => row.user || "nobody" },
    ], { key: (row) => `${row.at_ms}/${row.key}` });
    this.history = el("section", { "aria-labelledby": "changes-title", hidden: true }, el("h2", { id: "changes-title" }, "Changes for the cluster"), this.changes.element);
    this.element = el("div", {}, el("h2", {}, "Settings"),
      el("p", { class: "quiet" }, "What is not as by default. An administrator changes one for all brokers: ", el("code", {}, "qpid-ha config set KEY=VALUE"), "."),
      this.said, this.settings.element, this.history);
  }

  async refresh() {
    try {
      const [rows, changes] = await Promise.all([broker.call("settings", { action: "list" }), broker.call("settings", { action: "history" })]);
      setText(this.said, `${plural(rows.length, "setting")} of ${broker.who.broker}`);
      this.settings.update(rows);
      this.changes.update([...changes].reverse());
      show(this.history, changes.length > 0);
    } catch (error) {
      if (!(error instanceof broker.Refused) || error.status !== UNKNOWN_METHOD) throw error;
      setText(this.said, "This broker is in no cluster: qpid-ha config get shows what is in force.");
      show(this.settings.element, false);
    }
    return null;
  }
}

function valueText(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
