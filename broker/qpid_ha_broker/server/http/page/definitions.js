// What is defined as one file, and a file as what is defined: what would be done is shown before anything is.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { count, el, plural, setText, show, Table } from "./dom.js";

const ROWS_MAX = 500;
const FILE_BYTES_MAX = 900000; // with the rest of the request below what the broker takes

export class DefinitionsView {
  title = "Definitions";
  refreshMs = 60000;
  #plan = null;

  constructor() {
    this.download = el("button", { type: "button", id: "download", onclick: () => this.#download() }, "Download as a file");
    this.file = el("input", { type: "file", id: "definitions-file", accept: ".yaml,.yml,.json", onchange: () => this.#forget() });
    this.update = el("input", { type: "checkbox", id: "definitions-update", onchange: () => this.#forget() });
    this.look = el("button", { type: "button", id: "dry-run", onclick: () => this.#look() }, "Show what would be done");
    this.apply = el("button", { type: "button", id: "apply", disabled: true, onclick: () => this.#apply() }, "Do it…");
    this.said = el("p", { role: "status" });
    this.problem = el("p", { class: "problem", role: "alert" });
    this.steps = new Table("What would be done", [
      { title: "Action", value: (row) => row.action, classes: (row) => (row.action === "cannot be had" ? "bad" : "") },
      { title: "What", long: true, value: (row) => row.thing },
      { title: "Details", long: true, value: (row) => row.details },
    ], { key: (row) => `${row.action} ${row.thing}` });
    show(this.steps.element, false);
    this.element = el("div", {},
      el("section", { "aria-labelledby": "export-title" }, el("h2", { id: "export-title" }, "Export"),
        el("p", {}, "Queues, exchanges, bindings, resource sets, policies and settings of the cluster. No messages, no users and tokens, and nothing that belongs to a client."),
        this.download),
      el("section", { "aria-labelledby": "import-title" }, el("h2", { id: "import-title" }, "Import"),
        el("p", {}, "What a file defines and what is not there yet is made. Nothing is ever deleted. Users and tokens in it are left out: ", el("code", {}, "qpid-ha definitions import --with-users"), "."),
        el("div", { class: "tools" }, el("label", {}, "File", this.file)),
        el("p", {}, this.update, " ", el("label", { for: "definitions-update" }, "Give what is there as something else the arguments that the file has")),
        el("div", { class: "tools" }, this.look, this.apply), this.problem, this.said, this.steps.element));
  }

  async refresh() {
    this.look.disabled = !broker.mayChange();
    if (!broker.mayChange()) setText(this.said, "An import takes the role operator, and admin for settings in the file.");
    return null;
  }

  #forget() {
    this.#plan = null;
    this.apply.disabled = true;
    setText(this.said, "");
    setText(this.problem, "");
    show(this.steps.element, false);
  }

  async #download() {
    setText(this.problem, "");
    try {
      const text = JSON.stringify(await broker.get("/definitions"), null, 2);
      const link = el("a", { href: URL.createObjectURL(new Blob([`${text}\n`], { type: "application/json" })), download: `definitions-${broker.who.broker}.json` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    } catch (error) {
      setText(this.problem, error.message);
    }
  }

  async #look() {
    this.#forget();
    const [file] = this.file.files;
    if (!file) {
      setText(this.problem, "choose a file first");
      this.file.focus();
      return;
    }
    if (file.size > FILE_BYTES_MAX) {
      setText(this.problem, `it has ${count(file.size)} bytes, and the page takes ${count(FILE_BYTES_MAX)}: qpid-ha definitions import takes more`);
      return;
    }
    try {
      const plan = await broker.post("/definitions", { text: await file.text(), update: this.update.checked });
      this.#plan = plan.conflicts.length ? null : plan;
      const rows = [...plan.conflicts.map(({ thing, problem }) => ({ action: "cannot be had", thing, details: problem })), ...plan.steps];
      const more = rows.length > ROWS_MAX ? `; the first ${ROWS_MAX} are shown` : "";
      const left = plan.left_out ? `; ${plural(plan.left_out, "user or token")} left out` : "";
      const outcome = plan.conflicts.length ? `${count(plan.conflicts.length)} cannot be had as the file has it: nothing can be done` : `${count(plan.steps.length)} to do`;
      setText(this.said, `${outcome}, ${count(plan.unchanged)} there as defined${left}${more}.`);
      this.steps.update(rows.slice(0, ROWS_MAX));
      show(this.steps.element, rows.length > 0);
      this.apply.disabled = !this.#plan || !plan.steps.length;
    } catch (error) {
      setText(this.problem, error.message);
    }
  }

  async #apply() {
    const { steps } = this.#plan;
    await confirmAction({
      title: `Import ${plural(steps.length, "definition")}`,
      does: ["Each is made or changed in the order that is shown. If one is refused, the ones before it stay, and the same file goes on from there."],
      loses: "No message. What is changed has other arguments from then on: a lower limit may drop or refuse what comes.",
      verb: "Import",
      danger: true,
      run: async () => {
        for (const [done, step] of steps.entries()) {
          const cause = ["sets", "replicas"].includes(step.method) ? { cause: `by ${broker.who.token} on the web page` } : {};
          await broker.call(step.method, { ...step.params, ...cause }).catch((error) => {
            error.message = `${step.thing}: ${error.message}; ${count(done)} done before, ${count(steps.length - done)} left`;
            throw error;
          });
        }
        return `${plural(steps.length, "definition")} imported.`;
      },
    });
    this.#forget();
  }
}
