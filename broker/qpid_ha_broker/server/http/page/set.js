// One resource set: its members, who leads it or hands out from which of its queues, and what it waits for.

import * as broker from "./broker.js";
import { count, el, plural, rate, seconds, setText, show, stateMark, Table } from "./dom.js";
import { inSyncText, primaryText, setKind, shownReplica } from "./problems.js";
import { showWrongs } from "./wrongs.js";

const QUEUES_MAX = 100;
const LEVEL = new Set(["primary", "ready"]); // states of a replica that lacks nothing
const SERVES = new Set(["primary", "ready", "serves"]);

export class SetView {
  refreshMs = 3000;

  constructor(name) {
    this.name = name;
    this.title = name;
    this.state = el("p");
    this.problem = el("p", { class: "problem", role: "alert" });
    this.facts = el("dl", { class: "summary" });
    this.waits = el("ul", { class: "wrongs", "aria-label": "What it waits for" });
    this.waitsSaid = el("p", { class: "quiet", role: "status" });
    this.members = new Table("Members", [
      { title: "Broker", long: true, value: (row) => row.name },
      { title: "State", value: (row) => stateMark(row.state, SERVES.has(row.state) ? "good" : row.state === "away" ? "bad" : "warn"), id: (row) => row.state },
      { title: "In sync", value: (row) => row.inSyncText, classes: (row) => (row.inSync ? "" : "bad") },
      { title: "Lag", number: true, value: (row) => (row.lag === undefined ? "" : count(row.lag)) },
      { title: "Hands out from", value: (row) => row.handsOut },
      { title: "Waits for", value: (row) => row.waitsFor },
      { title: "Notes", long: true, value: (row) => row.notes },
    ]);
    this.queues = new Table("Queues", [
      { title: "Queue", long: true, value: (row) => el("a", { href: `#/queue/${encodeURIComponent(row.name)}${row.address ? `/${encodeURIComponent(row.address)}` : ""}` }, row.name), id: (row) => [row.name, row.address] },
      { title: "Messages", number: true, value: (row) => count(row.messages) },
      { title: "Consumers", number: true, value: (row) => count(row.consumers) },
      { title: "In", number: true, value: (row) => rate(row.in_rate) },
      { title: "Out", number: true, value: (row) => rate(row.out_rate) },
      { title: "Handed out by", value: (row) => row.handedOutBy },
      { title: "Waiting for it", value: (row) => (row.waiting ?? []).join(", ") },
      { title: "Moves in the last minute", number: true, value: (row) => (row.moves_last_minute === undefined ? "" : count(row.moves_last_minute)) },
    ]);
    this.queuesSaid = el("p", { class: "quiet", role: "status" });
    this.parts = el("div", { hidden: true },
      this.state, this.facts,
      el("section", { "aria-labelledby": "waits-title" }, el("h2", { id: "waits-title" }, "What it waits for"), this.waitsSaid, this.waits),
      el("section", { "aria-labelledby": "members-title" }, el("h2", { id: "members-title" }, "Members"), this.members.element),
      el("section", { "aria-labelledby": "queues-title" }, el("h2", { id: "queues-title" }, "Queues"), this.queuesSaid, this.queues.element));
    this.element = el("div", {}, el("p", {}, el("a", { href: "#/cluster" }, "The cluster")), el("h2", {}, name), this.problem, this.parts);
  }

  async refresh() {
    const status = await broker.call("status");
    let row;
    let plan;
    try {
      [row, plan] = await Promise.all([broker.call("sets", { action: "show", name: this.name }), broker.call("replicas", { action: "plan" })]);
    } catch (error) {
      if (!(error instanceof broker.Refused) || error.status >= 0) throw error;
      setText(this.problem, status.state === "standalone" ? "This broker is in no cluster: it has no resource sets." : error.message);
      show(this.parts, false);
      return status;
    }
    setText(this.problem, "");
    const queues = await this.#askQueues(status, row);
    this.#showFacts(status, row);
    this.#showWaits(status, row, plan);
    this.members.update(membersOf(row, queues.rows));
    this.#showQueues(row, queues);
    show(this.parts, true);
    return status;
  }

  /** Of this broker, or, if it has no replica, of a member that has. */
  async #askQueues(status, row) {
    const asked = { set: this.name, sort: "messages", descending: "true", count: String(QUEUES_MAX) };
    if (status.name in row.replicas) return broker.get("/queues", asked);
    try {
      const brokers = await broker.call("status", { all: true });
      const member = brokers.find((one) => one.name in row.replicas && row.in_sync.includes(one.name));
      if (!member) return { rows: [], matching: row.queues, problem: "no broker that has them answers" };
      const told = await broker.get("/queues", { ...asked, broker: member.address });
      return { ...told, rows: told.rows.map((one) => ({ ...one, address: member.address })), of: member.name };
    } catch (error) {
      if (!(error instanceof broker.Refused)) throw error;
      return { rows: [], matching: row.queues, problem: error.message };
    }
  }

  #showFacts(status, row) {
    const facts = [
      ["Strategy", row.strategy], ["Primary", primaryText(row) || "none"], ["Generation", count(row.generation)],
      ["In sync", inSyncText(row, `${row.in_sync.length} of ${row.wanted} (at least ${row.min_in_sync || status.min_in_sync || 1})`)], ["Queues", count(row.queues)],
      ["Messages", count(row.messages)], ["Messages a second", row.rate === null ? "" : rate(row.rate)],
      ...(row.preferred ? [["Preferred", row.preferred]] : []),
      ...(row.moving_to ? [["Moving to", row.moving_to]] : []),
    ];
    facts.forEach(([title, value], at) => {
      const part = this.facts.children[at] ?? this.facts.appendChild(el("div", {}, el("dt"), el("dd")));
      setText(part.children[0], title);
      setText(part.children[1], value);
    });
    while (this.facts.children.length > facts.length) this.facts.lastChild.remove();
    const id = JSON.stringify([row.state, row.why]);
    if (this.state.shownId === id) return;
    this.state.shownId = id;
    this.state.replaceChildren(stateMark(row.state, setKind(row)), ` It is to have ${plural(row.wanted, "member")}: ${row.why}.`);
  }

  #showWaits(status, row, plan) {
    const severity = setKind(row) === "bad" ? "bad" : "warning";
    const own = (status.groups ?? []).find((group) => group.set === this.name);
    const lacking = Object.entries(row.replicas).filter(([name, state]) => !LEVEL.has(state) && !row.problem.includes(`${name}: `));
    const wrongs = [
      ...lacking.map(([name, state]) => ({ severity, text: `${name} is ${state || "not there yet"}.` })),
      ...(row.problem ? [{ severity, text: row.problem }] : []),
      ...(own ? ownWaits(status.name, own).map((text) => ({ severity: "warning", text })) : []),
      ...plan.filter((one) => one.set === this.name).map((one) => ({ severity: "notice", text: [one.step, one.broker, one.why].filter(Boolean).join(": ") })),
    ];
    showWrongs(this.waits, wrongs);
    setText(this.waitsSaid, wrongs.length ? "" : row.state === "ok" ? "Nothing." : `It is ${row.state}, and nobody says why.`);
  }

  #showQueues(row, told) {
    const more = told.matching > told.rows.length ? `; the ${plural(told.rows.length, "queue")} with the most messages are shown` : "";
    const of = told.of ? `, as ${told.of} has them` : "";
    setText(this.queuesSaid, told.problem ? `They are not shown: ${told.problem}.` : `${plural(told.matching, "queue")}${of}${more}.`);
    show(this.queues.element, told.rows.length > 0);
    this.queues.update(told.rows.map((one) => ({ ...one, handedOutBy: handingOut(row, one) || "nobody" })));
  }
}

/** Which broker hands out from a queue: of a group it is another one for each. */
function handingOut(row, queue) {
  return row.strategy === "group" ? queue.owner : row.primary;
}

function membersOf(row, queues) {
  return Object.entries(row.replicas).map(([name, state]) => ({
    name,
    state: shownReplica(row, state) || "not there yet",
    inSync: row.in_sync.includes(name),
    inSyncText: inSyncText(row, row.in_sync.includes(name) ? "yes" : "no"),
    lag: row.lags[name],
    handsOut: queuesText(queues.filter((queue) => handingOut(row, queue) === name)),
    waitsFor: queuesText(queues.filter((queue) => (queue.waiting ?? []).includes(name))),
    notes: [
      ...(row.primary === name ? [row.strategy === "group" ? "keeps the directory" : "leads it"] : []),
      ...(row.preferred === name ? ["preferred"] : []),
      ...(row.leaving.includes(name) ? ["is to leave"] : []),
      ...(row.extras.includes(name) ? ["more than is wanted"] : []),
    ].join(", "),
  }));
}

function queuesText(queues) {
  if (!queues.length) return "";
  return queues.length === 1 ? queues[0].name : plural(queues.length, "queue");
}

/** What a broker says of its own part in a group. */
function ownWaits(name, group) {
  const since = `for ${seconds(group.for_s)}`;
  const missing = group.missing?.length ? `; it is without ${group.missing.join(", ")}` : "";
  return [
    ...(group.role === "serving" ? [] : [`${name} is ${group.role} ${since}: ${group.reason}${missing}`]),
    ...["record_problem", "transport_problem", "store_problem"].filter((problem) => group[problem]).map((problem) => `${name}: ${group[problem]}`),
    ...(group.stuck_queues ?? []).map((queue) => `${queue.queue} is kept by ${queue.owner} for ${seconds(queue.for_s)}, and others wait for it`),
  ];
}
