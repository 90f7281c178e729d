// The messages of one queue: browse them, look at one, move one. What is in them is shown as text, whatever it is.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { bytes, count, el, plural, setText, show, Table, time } from "./dom.js";

const PAGE = 20;
const PREVIEW_BYTES = 120;
const LOOK_BYTES = 64 * 1024;

export class Messages {
  #after = "0";
  #starts = ["0"];

  /** `moved`: called when messages have gone. */
  constructor(queue, moved) {
    this.queue = queue;
    this.moved = moved;
    this.table = new Table("Messages", [
      { title: "Message", value: (row) => row.id },
      { title: "State", long: true, value: (row) => (row.acquired_by ? `${row.state} by ${row.acquired_by}` : row.state) },
      { title: "Came", value: (row) => time(row.enqueued_ms) || "not known" },
      { title: "Expires", value: (row) => time(row.expires_ms) },
      { title: "Deliveries", value: (row) => `${count(row.delivery_count)}${row.redelivered ? ", redelivered" : ""}` },
      { title: "Size", value: (row) => bytes(row.size), number: true },
      { title: "Body", long: true, value: (row) => preview(row) },
      { title: "Actions", value: (row) => this.#buttons(row), id: (row) => row.id },
    ], { key: (row) => row.id });
    this.problem = el("p", { class: "problem", role: "alert" });
    this.said = el("p", { class: "quiet", role: "status" });
    this.first = el("button", { type: "button", id: "browse", disabled: true, onclick: () => this.#page(["0"]) }, "Browse");
    this.next = el("button", { type: "button", hidden: true, onclick: () => this.#page([...this.#starts, this.#after]) }, "Next");
    this.before = el("button", { type: "button", hidden: true, onclick: () => this.#page(this.#starts.slice(0, -1)) }, "Previous");
    show(this.table.element, false);
    this.element = el("section", { "aria-labelledby": "messages-title" }, el("h2", { id: "messages-title" }, "Messages"),
      el("div", { class: "tools" }, this.first, this.before, this.next), this.said, this.problem, this.table.element);
  }

  /** A token that may not change the queue may not see what is in its messages either. */
  allow(may) {
    this.first.disabled = !may;
  }

  async browse() {
    await this.#page(this.#starts);
  }

  async #page(starts) {
    setText(this.problem, "");
    try {
      const told = await broker.call("queues", {
        action: "peek", name: this.queue, after: starts[starts.length - 1], count: PAGE, body_bytes: PREVIEW_BYTES,
      });
      this.#starts = starts;
      this.#after = told.last;
      this.table.update(told.messages);
      show(this.table.element, told.messages.length > 0);
      show(this.next, !told.whole);
      show(this.before, starts.length > 1);
      setText(this.first, "Browse from the first");
      const replica = told.replica ? ", as this broker's replica has them" : "";
      const none = told.taking_over ? "None is committed yet." : "There are no messages.";
      const more = told.taking_over ? " There may be more: this broker has not shown, or not received, all yet that was confirmed." : "";
      const shown = `${plural(told.messages.length, "message")}${replica}. Browsing changes nothing.`;
      setText(this.said, (told.messages.length ? shown : none) + more);
    } catch (error) {
      setText(this.problem, error.message);
    }
  }

  #buttons(row) {
    return el("span", { class: "buttons" },
      el("button", { type: "button", class: "plain", "aria-label": `Look at message ${row.id}`, onclick: () => this.#look(row.id) }, "Look"),
      el("button", { type: "button", class: "plain", "aria-label": `Move message ${row.id}`, onclick: () => this.#move(row.id) }, "Move…"));
  }

  async #look(id) {
    setText(this.problem, "");
    try {
      const told = await broker.call("queues", { action: "peek", name: this.queue, id, body_bytes: LOOK_BYTES, bytes: LOOK_BYTES });
      lookAt(told.messages[0]);
    } catch (error) {
      setText(this.problem, error.message);
    }
  }

  async #move(id) {
    if (await moveMessages(this.queue, { id })) {
      await this.browse();
      this.moved();
    }
  }
}

/** A question, and the move: of the message `id`, or of a number that is asked for. */
export function moveMessages(queue, { id = null, available = 0 }) {
  const fields = [{ name: "to", label: "To the queue", maxlength: 255 }];
  if (id === null) fields.push({ name: "count", label: "So many, the oldest first; empty: all", kind: "number", min: 1 });
  return confirmAction({
    title: id === null ? `Move messages of ${queue}` : `Move message ${id} of ${queue}`,
    does: [
      id === null
        ? `Messages that no consumer has acquired go to another queue of the same resource set: ${count(available)} at this moment.`
        : "The message goes to another queue of the same resource set, unless a consumer has acquired it.",
    ],
    loses: "Nothing: a message is in one of both queues at any time. The other queue's limits may drop older messages there.",
    verb: "Move",
    fields,
    run: async ({ to, count: most }) => {
      const params = { action: "move", name: queue, to };
      if (id !== null) params.id = id;
      else if (most) params.count = Number(most);
      const { moved, held } = await broker.call("queues", params);
      const stay = held ? `; ${plural(held, "message")} acquired by consumers stayed` : "";
      return `${plural(moved, "message")} moved to ${to}${stay}.`;
    },
  });
}

function preview(row) {
  if (row.unreadable) return `unreadable: ${row.unreadable}`;
  if (!row.body) return "none";
  const text = bodyText(row.body);
  return row.body.truncated ? `${text}…` : text;
}

function bodyText(body) {
  return body.encoding === "text" ? String(body.content) : body.encoding === "json" ? JSON.stringify(body.content) : `${body.encoding}: ${body.content}`;
}

function lookAt(row) {
  const dialog = document.getElementById("dialog");
  const facts = [
    ["State", row.acquired_by ? `${row.state} by ${row.acquired_by}` : row.state], ["Came", time(row.enqueued_ms) || "not known"],
    ["Expires", time(row.expires_ms) || "never"], ["Size", bytes(row.size)], ["Durable", row.durable ? "yes" : "no"],
    ["Priority", row.priority], ["Deliveries", row.delivery_count],
  ];
  const sections = [["Properties", row.properties], ["Application properties", row.application_properties], ["Annotations", row.annotations]]
    .filter(([, section]) => section && Object.keys(section).length)
    .flatMap(([title, section]) => [el("h3", {}, title), el("pre", { tabindex: "0" }, JSON.stringify(section, null, 2))]);
  const body = row.unreadable ? row.unreadable : row.body ? bodyText(row.body) : "none";
  const cut = row.body?.truncated ? `the first ${bytes(LOOK_BYTES)} of ${bytes(row.body.bytes)}` : "";
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(el("div", {}, el("h2", { id: "dialog-title" }, `Message ${row.id}`),
    el("dl", { class: "summary" }, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    ...sections, el("h3", {}, "Body"), cut ? el("p", { class: "quiet" }, cut) : null, el("pre", { tabindex: "0" }, body),
    el("div", { class: "buttons" }, close)));
  dialog.showModal();
  close.focus();
}
