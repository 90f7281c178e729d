// Who may do what: the rules of the cluster, those of this broker's file under them, and which one decides.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { count, el, plural, setText, show, Table } from "./dom.js";

const ROWS_MAX = 500;
const KEY = "acl.rules";
const ACTIONS = ["publish", "consume", "browse", "create", "delete", "purge", "bind", "manage", "monitor", "replicate", "administer"];
const ENDS = "Links and connections of clients that the rules do not allow any more end at once, at all brokers: also your own.";
const LOSES = "No message. Who may not do something any more is refused it from then on.";
const LINE = { name: "line", label: "Line, such as allow alice publish,consume orders.*", maxlength: 4000 };

export class RulesView {
  title = "Rules";
  refreshMs = 12000;
  #layers = [];
  #decides = "";

  constructor() {
    this.said = el("p", { class: "quiet", role: "status" });
    this.cluster = new Layer("cluster-rules", "Rules of the cluster", (line) => this.#decides === line, (row) => this.#lineButtons(row));
    this.file = new Layer("file-rules", "Rules of this broker's file", (line) => this.#decides === line);
    this.append = el("button", { type: "button", id: "append-rule", onclick: () => this.#append() }, "Append a line…");
    this.edit = el("button", { type: "button", id: "edit-rules", onclick: () => this.#edit() }, "Change all lines…");
    this.unset = el("button", { type: "button", id: "unset-rules", class: "danger", onclick: () => this.#unset() }, "Take them away…");
    this.buttons = [this.append, this.edit, this.unset];
    this.cluster.said.after(el("div", { class: "tools" }, ...this.buttons));
    this.#makeQuestion();
    this.lists = el("div", { hidden: true }, this.question, this.cluster.element, this.file.element);
    this.element = el("div", {}, el("h2", { class: "unseen" }, "Access rules"), this.said, this.lists);
  }

  #makeQuestion() {
    const text = (id, placeholder) => el("input", { id, autocomplete: "off", spellcheck: "false", autocapitalize: "none", maxlength: 4000, placeholder });
    this.user = text("rule-user", "anonymous");
    this.action = el("select", { id: "rule-action" }, ...ACTIONS.map((action) => el("option", { value: action }, action)));
    this.node = text("rule-node", "the broker itself");
    this.local = el("input", { type: "checkbox", id: "rule-local" });
    this.ask = el("button", { type: "submit", id: "rule-ask" }, "Which rule decides?");
    this.answer = el("p", { id: "rule-answer", role: "status" });
    this.problem = el("p", { class: "problem", role: "alert" });
    this.form = el("form", {},
      el("div", { class: "tools" }, el("label", {}, "May the user", this.user), el("label", {}, "do", this.action), el("label", {}, "on", this.node), this.ask),
      el("p", {}, this.local, " ", el("label", { for: "rule-local" }, "as a client on the broker's own machine")),
      this.problem, this.answer);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#ask();
    });
    this.question = el("section", { "aria-labelledby": "may-title" }, el("h2", { id: "may-title" }, "Who may do what"),
      el("p", { class: "quiet" }, "The first rule that matches decides, for an address as clients write it; topics are EXCHANGE/KEY. What no rule allows is denied."), this.form);
  }

  async refresh() {
    let status = null;
    try {
      [status, this.#layers] = await Promise.all([broker.call("status"), broker.call("list-acl")]);
    } catch (error) {
      if (!(error instanceof broker.Refused)) throw error;
      setText(this.said, error.message);
      show(this.lists, false);
      return null;
    }
    const { cluster, file } = this.#found();
    const inForce = this.#layers.find((layer) => layer.in_force);
    const may = broker.mayAdminister();
    const takes = may ? "" : " To ask, and to change something, takes the role admin.";
    setText(this.said, (inForce
      ? `In force at ${broker.who.broker}: ${plural(inForce.lines.length, "line")} of ${inForce.layer === "cluster" ? "the cluster" : `its file (${inForce.from})`}.`
      : `There are no rules at ${broker.who.broker}: clients of its own machine may do everything, and others nothing.`) + takes);
    for (const element of [...this.buttons, this.ask]) element.disabled = !may;
    for (const button of [this.append, this.unset]) show(button, cluster !== undefined);
    setText(this.edit, cluster ? "Change all lines…" : "Have the cluster keep rules…");
    this.cluster.update(cluster, cluster ? inUse(cluster) : "The cluster keeps none: what the file of each broker says counts there.", may);
    this.file.update(file, !file ? "There are none." : file.in_force ? `In force, from ${file.from}.` : `From ${file.from}: none of them counts as long as the cluster has rules.`, false);
    show(this.cluster.element, status.state !== "standalone"); // one by itself has rules in files alone
    show(this.lists, true);
    return status;
  }

  #found() {
    return { cluster: this.#layers.find((layer) => layer.layer === "cluster"), file: this.#layers.find((layer) => layer.layer === "file") };
  }

  async #ask() {
    setText(this.problem, "");
    this.user.removeAttribute("aria-invalid");
    const asked = { user: this.user.value.trim(), action: this.action.value, node: this.node.value, local: this.local.checked };
    try {
      const { allowed, reason } = await broker.call("check-acl", asked);
      setText(this.answer, `${asked.user || "anonymous"} ${allowed ? "may" : "may not"} ${asked.action} ${asked.node || "the broker"}: ${reason}`);
      this.#decides = reason;
    } catch (error) {
      setText(this.answer, "");
      setText(this.problem, error.message);
      this.#decides = "";
    }
    this.onDue?.();
  }

  #lineButtons({ number, text }) {
    const disabled = !broker.mayAdminister();
    return el("span", {},
      el("button", { type: "button", class: "plain change", disabled, "aria-label": `Change line ${number}: ${text}`, onclick: () => this.#change(number) }, "Change…"),
      el("button", { type: "button", class: "plain remove", disabled, "aria-label": `Remove line ${number}: ${text}`, onclick: () => this.#remove(number) }, "Remove…"));
  }

  /** `change`: [line] -> [line], of all entries as they were when it was asked for. */
  async #replace(before, change) {
    const now = (await broker.call("list-acl")).find((layer) => layer.layer === "cluster")?.entries ?? null;
    if (JSON.stringify(now) !== JSON.stringify(before)) throw new Error("somebody has changed the rules meanwhile: copy what you typed, cancel, and look at them again");
    const entries = change([...(before ?? [])]);
    const told = await broker.call("settings", { action: "set", key: KEY, value: entries });
    const notes = told.notes?.length ? ` ${told.notes.join("; ")}.` : "";
    return `${plural(entries.length, "line")} of rules are kept by the cluster, and in force at all brokers.${notes}`;
  }

  async #append() {
    const { entries } = this.#found().cluster;
    await confirmAction({
      title: "Append a line to the rules of the cluster",
      does: ["It comes last, and decides where no line before it does."],
      loses: "Nothing, unless it denies something, or is a limit.",
      verb: "Append",
      fields: [LINE],
      run: ({ line }) => this.#replace(entries, (lines) => [...lines, read(line)]).catch(beside("line")),
    });
    this.onDue?.();
  }

  async #change(number) {
    const { entries } = this.#found().cluster;
    await confirmAction({
      title: `Change line ${number} of the rules of the cluster`,
      does: ["The first rule that matches decides: its place counts.", ENDS],
      loses: LOSES,
      verb: "Change",
      danger: true,
      fields: [{ ...LINE, value: entries[number - 1] }, { name: "place", label: "Place among the lines", kind: "number", min: 1, max: entries.length, value: String(number) }],
      run: ({ line, place }) => {
        const at = Number(place);
        if (!Number.isInteger(at) || at < 1 || at > entries.length) return Promise.reject(Object.assign(new Error(`there are the places 1 to ${count(entries.length)}`), { field: "place" }));
        return this.#replace(entries, (lines) => {
          lines.splice(number - 1, 1);
          lines.splice(at - 1, 0, read(line));
          return lines;
        }).catch(beside("line"));
      },
    });
    this.onDue?.();
  }

  async #remove(number) {
    const { entries, lines } = this.#found().cluster;
    const isLast = lines.length === 1;
    await confirmAction({
      title: `Remove line ${number} of the rules of the cluster`,
      does: [entries[number - 1], ENDS, ...(isLast ? ["It is the last one. Rules that are empty deny everything to everybody: take the rules of the cluster away instead."] : [])],
      loses: LOSES,
      verb: "Remove",
      danger: true,
      run: async () => {
        if (isLast) throw new Error("the last line stays: take the rules of the cluster away instead");
        return this.#replace(entries, (all) => all.filter((_, at) => at !== number - 1));
      },
    });
    this.onDue?.();
  }

  async #edit() {
    const { cluster, file } = this.#found();
    const before = cluster?.entries ?? null;
    const text = (before ?? file?.entries ?? file?.lines.map((line) => line.text) ?? []).join("\n");
    await confirmAction({
      title: cluster ? "Change all lines of the rules of the cluster" : "Have the cluster keep rules",
      does: ["One rule, group or limit in a line, in their order. They count at all brokers, above the rules in files: of those none counts then.", ENDS],
      loses: LOSES,
      verb: "Put in force",
      danger: true,
      fields: [{ name: "lines", label: "Lines", kind: "textarea", rows: 12, value: text }],
      run: ({ lines }) => {
        const given = lines.replace(/\s+$/, "").split("\n");
        if (!given.some((line) => line.trim())) return Promise.reject(Object.assign(new Error("there is no line: nobody might do anything then"), { field: "lines" }));
        return this.#replace(before, () => given).catch(beside("lines"));
      },
    });
    this.onDue?.();
  }

  async #unset() {
    const { file } = this.#found();
    await confirmAction({
      title: "Take the rules of the cluster away",
      does: [`From then on what the file of each broker says counts there. That of this one has ${file ? plural(file.lines.length, "line") : "no rules: clients of its own machine may do everything then, and others nothing"}.`, ENDS],
      loses: "The rules: to have them again they are typed again. No message.",
      verb: "Take away",
      danger: true,
      run: async () => {
        await broker.call("settings", { action: "unset", key: KEY });
        return "The cluster keeps no rules any more: those in the files of its brokers count.";
      },
    });
    this.onDue?.();
  }
}

/** One of the two lists; what decides is marked. */
class Layer {
  constructor(id, title, isDecisive, buttons) {
    const decides = (row) => row.in_force && isDecisive(`${row.place}: ${row.text}`);
    this.said = el("p", { class: "quiet", id: `${id}-said` });
    this.problem = el("p", { class: "problem", role: "alert" });
    this.table = new Table(title, [
      { title: "Line", number: true, value: (row) => count(row.number) },
      { title: "Rule", value: (row) => row.kind },
      { title: "Who", long: true, value: (row) => row.whom },
      { title: "What", long: true, value: (row) => row.what },
      { title: "On", long: true, value: (row) => row.node || (ON_NODES.has(row.kind) ? "everything" : "") },
      { title: "Decides", value: (row) => (decides(row) ? "this one" : ""), classes: (row) => (decides(row) ? "good" : "") },
      ...(buttons ? [{ title: "Actions", value: buttons, id: (row) => [row.number, row.text, row.may] }] : []),
    ], { key: (row) => row.number });
    this.element = el("section", { "aria-labelledby": id }, el("h2", { id }, title), this.said, this.problem, this.table.element);
  }

  update(layer, said, may) {
    const lines = layer?.lines ?? [];
    const more = lines.length > ROWS_MAX ? ` The first ${ROWS_MAX} lines are shown.` : "";
    setText(this.said, said + more);
    setText(this.problem, layer?.problem ?? "");
    this.table.update(lines.slice(0, ROWS_MAX).map((line) => ({ ...line, in_force: layer.in_force, may })));
    show(this.table.element, lines.length > 0);
  }
}

const ON_NODES = new Set(["allow", "allow-log", "deny"]);

function inUse(layer) {
  return layer.in_force ? "In force at all brokers that can have them, above the rules of files." : "Not in force at this broker:";
}

function read(line) {
  const text = line.trim();
  if (!text || text.startsWith("#")) throw new Error("a line is a rule, a group or a limit");
  return text;
}

/** What the broker says of a value is shown beside the field that it was typed into. */
function beside(field) {
  return (error) => {
    throw Object.assign(error, { field });
  };
}
