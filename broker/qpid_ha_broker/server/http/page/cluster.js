// The cluster at a glance: what is wrong, who is what, who follows whom, and what an operator may have done.

import * as broker from "./broker.js";
import { confirmAction } from "./confirm.js";
import { announce, bytes, clock, count, el, seconds, setText, show, stateMark, Table } from "./dom.js";
import { inSyncText, lookedText, primaryText, setKind, shownReplica, stateKind, wrongsOf } from "./problems.js";
import { showWrongs } from "./wrongs.js";

const REFRESH_MS = 3000;
const FACTS_EVERY = 4; // figures of all brokers cost each of them a sum over its queues
export class ClusterView {
  title = "Cluster";
  refreshMs = REFRESH_MS;
  #round = 0;
  #facts = [];
  #isPauseHeeded = false;
  #names = new Map(); // by address: who cannot be reached does not say who it is
  #found = null; // by key and what it is about: what was wrong the last time
  #seen = { status: {}, brokers: [], backups: [], sets: [] };

  constructor() {
    this.wrongs = el("ul", { class: "wrongs", "aria-label": "What is wrong" });
    this.looked = el("p", { class: "looked", id: "looked" });
    this.notLooked = el("ul");
    this.notLookedPart = el("details", { hidden: true }, el("summary", {}, "Not looked at"), this.notLooked);
    this.summary = el("dl", { class: "summary" });
    this.brokers = new Table("Brokers", [
      { title: "Broker", long: true, value: (row) => row.name ?? row.address, classes: (row) => (row.follows ? "follows" : "") },
      { title: "State", value: (row) => stateMark(row.state, stateKind(row.state)), id: (row) => row.state },
      { title: "Follows", value: (row) => row.follows ?? "" },
      { title: "In sync", value: (row) => row.in_sync_known ?? "",
        classes: (row) => ({ no: "bad", unknown: "warn" })[row.in_sync_known] ?? "" },
      { title: "Lag", value: lagText },
      { title: "Generation", value: (row) => count(row.generation), number: true },
      { title: "LSN", value: (row) => count(row.lsn), number: true },
      { title: "Messages", value: (row) => count(row.messages), number: true },
      { title: "Connections", value: (row) => count(row.connections), number: true },
      { title: "Address", long: true, value: (row) => row.address ?? "" },
    ], { key: (row) => row.address ?? row.name });
    this.sets = new Table("Resource sets", [
      { title: "Set", long: true, value: (row) => el("a", { href: `#/set/${encodeURIComponent(row.name)}` }, row.name), id: (row) => row.name },
      { title: "State", value: (row) => stateMark(row.state, setKind(row)),
        id: (row) => row.state },
      { title: "Strategy", value: (row) => row.strategy },
      { title: "Primary", value: primaryText },
      { title: "In sync", value: (row) => inSyncText(row, row.in_sync.join(", ")) },
      { title: "Replicas", long: true, value: (row) => Object.entries(row.replicas).map(([name, state]) => replicaText(row, name, state)).join(", ") },
      { title: "Lag", value: (row) => Object.entries(row.lags).map(([name, lag]) => `${name}: ${count(lag)}`).join(", ") },
      { title: "Generation", value: (row) => count(row.generation), number: true },
      { title: "Queues", value: (row) => count(row.queues), number: true },
      { title: "Messages", value: (row) => count(row.messages), number: true },
    ]);
    this.setsPart = el("section", { "aria-labelledby": "sets-title", hidden: true },
      el("h2", { id: "sets-title" }, "Resource sets"), this.sets.element);
    this.#makeActions();
    this.element = el("div", {}, this.wrongs, this.looked, this.notLookedPart, this.summary,
      el("section", { "aria-labelledby": "brokers-title" }, el("h2", { id: "brokers-title" }, "Brokers"), this.brokers.element),
      this.setsPart, this.actions);
  }

  #makeActions() {
    this.switchover = el("button", { type: "button", id: "switchover", onclick: () => this.#switchover() }, "Switch over…");
    this.promote = el("button", { type: "button", id: "promote", onclick: () => this.#promote() }, "Promote…");
    this.pause = el("button", { type: "button", id: "pause", onclick: () => this.#pause() }, "Pause agents…");
    this.why = el("p", { class: "quiet" });
    this.switchoverWhy = el("p");
    this.promoteWhy = el("p");
    this.pauseWhy = el("p");
    const action = (title, text, why, button) => el("div", { class: "action" }, el("h3", {}, title), el("p", {}, text), why, button);
    this.actions = el("section", { "aria-labelledby": "actions-title" }, el("h2", { id: "actions-title" }, "Actions"), this.why,
      el("div", { class: "actions" },
        action("Switchover", "The primary hands over to a backup, without loss.", this.switchoverWhy, this.switchover),
        action("Promotion", "This broker becomes the primary.", this.promoteWhy, this.promote),
        action("Pause", "No agent promotes, restarts or kills a broker meanwhile.", this.pauseWhy, this.pause)));
  }

  async refresh(isNews) {
    const [status, brokers] = await Promise.all([broker.call("status"), broker.call("status", { all: true }).catch(onlyRefused)]);
    const isPrimary = status.state === "primary";
    const askFacts = isNews || this.#round % FACTS_EVERY === 0;
    this.#round += 1;
    const [found, backups, sets, facts, ownLag] = await Promise.all([
      broker.get("/findings").catch(onlyNotFound),
      isPrimary ? broker.call("backups").catch(onlyRefused) : [],
      status.sets ? broker.call("sets", { action: "list" }).catch(onlyRefused) : [],
      askFacts ? this.#askFacts(status) : this.#facts,
      status.state === "standalone" || isPrimary ? null : broker.ownLag(),
    ]);
    this.#facts = facts;
    for (const row of brokers) if (row.name && row.address) this.#names.set(row.address, row.name);
    const named = brokers.map((row) => ({ ...row, name: row.name ?? row.last_name ?? this.#names.get(row.address) }));
    const rows = rowsOf(status, named.length ? named : [status], backups, facts, ownLag);
    const said = [...this.#changes(rows), ...this.#newFindings(found)];
    if (said.length) announce(said.join(". ")); // at once: another text would take the place of the first
    this.#seen = { status, brokers: rows, backups, sets };
    this.#showFindings(found);
    this.#show(status, rows, backups, sets);
    return status;
  }

  async #askFacts(status) {
    this.#isPauseHeeded = (await broker.call("pause").catch(() => ({}))).heeded === true;
    if (status.state === "standalone") return broker.call("query").then((row) => [row]);
    return broker.call("query", { all: true }).catch(onlyRefused);
  }

  #changes(rows) {
    const before = new Map(this.#seen.brokers.map((row) => [row.name ?? row.address, row.state]));
    const changed = rows.filter((row) => before.size && before.get(row.name ?? row.address) !== row.state);
    return changed.map((row) => `${row.name ?? row.address} is ${row.state}`);
  }

  #newFindings(found) {
    if (found.problem) return [];
    const before = this.#found;
    this.#found = new Set(found.findings.map((one) => `${one.key} ${one.about}`));
    const fresh = found.findings.filter((one) => before && !before.has(`${one.key} ${one.about}`));
    if (fresh.length) return fresh.map((one) => `${one.severity}: ${one.text}`);
    return before?.size && !found.findings.length ? ["Nothing found any more"] : [];
  }

  #show(status, rows, backups, sets) {
    this.#showSummary(status, rows, backups);
    this.brokers.update(rows);
    this.sets.update(sets);
    show(this.setsPart, sets.length > 0);
    this.#showActions(status, backups);
  }

  #showFindings(found) {
    if (found.problem) {
      setText(this.looked, `What is wrong is not known: ${found.problem}.`);
      showWrongs(this.wrongs, []);
      return;
    }
    showWrongs(this.wrongs, wrongsOf(found));
    setText(this.looked, lookedText(found, clock(found.at_ms)));
    const lines = found.not_looked_at.map(({ what, why }) => `${what}: ${why}`);
    if (this.notLooked.shownId !== JSON.stringify(lines)) {
      this.notLooked.shownId = JSON.stringify(lines);
      this.notLooked.replaceChildren(...lines.map((line) => el("li", {}, line)));
    }
    show(this.notLookedPart, lines.length > 0);
  }

  #showSummary(status, rows, backups) {
    const own = this.#facts.find((row) => row.name === status.name) ?? {};
    const lags = backups.map((row) => row.lag_messages).filter((lag) => lag !== undefined);
    const primary = rows.find((row) => row.state === "primary");
    const sure = rows.filter((row) => row.in_sync_known === "yes").length;
    const inSync = primary?.members ? `${primary.members.length} of ${rows.length}` : `${sure} of ${rows.length} known to be, nobody leads`;
    const facts = status.state === "standalone"
      ? [["Cluster", "none: it is standalone"]]
      : [
          ["Primary", primary?.name ?? "none"],
          ["In sync", `${inSync} (at least ${status.min_in_sync ?? 1})`],
          ["Generation", count((primary ?? status).generation)],
          ["Most lag", lags.length ? `${count(Math.max(...lags))} events` : status.state === "primary" ? "no backups" : "ask the primary"],
        ];
    facts.push(["Queues here", count(own.queues)], ["Messages here", count(own.messages)], ["Up for", seconds(own.uptime_s)]);
    facts.forEach(([name, value], at) => {
      const part = this.summary.children[at] ?? this.summary.appendChild(el("div", {}, el("dt"), el("dd")));
      setText(part.children[0], name);
      setText(part.children[1], value);
    });
    while (this.summary.children.length > facts.length) this.summary.lastChild.remove();
  }

  #showActions(status, backups) {
    const isOperator = broker.mayChange();
    setText(this.why, isOperator ? "" : `The token ${broker.who.token} has the role ${broker.who.role}: what changes something takes operator.`);
    const inCluster = status.state !== "standalone";
    show(this.actions, inCluster);
    const isPrimary = status.state === "primary";
    const able = (button, why, problem) => {
      button.disabled = !isOperator || problem !== "";
      setText(why, problem);
    };
    const where = status.primary ? `It is asked of the primary: open the page of ${status.primary}.` : "There is no primary.";
    able(this.switchover, this.switchoverWhy, !isPrimary ? where : backups.some((row) => row.state === "ready") ? "" : "No backup is ready.");
    able(this.promote, this.promoteWhy, isPrimary ? `${status.name} is the primary already.` : "");
    setText(this.pause, status.paused ? "Let agents go on…" : "Pause agents…");
    able(this.pause, this.pauseWhy, this.#isPauseHeeded ? "" : "No agents heed a pause here: without a coordinator there is nothing to pause, and Pacemaker has a maintenance mode.");
  }

  async #switchover() {
    const { status, backups } = this.#seen;
    const ready = backups.filter((row) => row.state === "ready").map((row) => [row.name, row.name]);
    await confirmAction({
      title: `Switch over from ${status.name}`,
      does: [
        `${status.name} waits until the new primary holds everything, hands over, and becomes its backup.`,
        "Clients are disconnected once, and connect again to the new primary; this usually takes less than a second.",
      ],
      loses: "No confirmed message. Clients send again what was not confirmed when they were disconnected; without producer numbers such a message may arrive twice.",
      verb: "Switch over",
      fields: [{ name: "to", label: "To", options: [["", "the best backup"], ...ready] }],
      run: async ({ to }) => {
        const params = { cause: causeText("a switchover") };
        if (to) params.to = to;
        return (await broker.call("switchover", params)).text;
      },
    });
  }

  async #promote() {
    const { status } = this.#seen;
    await confirmAction({
      title: `Promote ${status.name}`,
      does: [
        `${status.name} becomes the primary. A primary that lives is asked to hand over first; clients are disconnected once.`,
        "It is refused when confirmed messages might be lost.",
      ],
      loses: "No confirmed message: what would lose some is refused here, and takes qpid-ha promote --force.",
      verb: "Promote",
      run: async () => (await broker.call("promote", { cause: causeText("promoted") })).text,
    });
  }

  async #pause() {
    const { status } = this.#seen;
    if (status.paused) {
      await confirmAction({
        title: "Let agents go on",
        does: ["Agents promote, restart and hand over by themselves again, at once if there is a reason to."],
        loses: "Nothing.",
        verb: "Resume",
        run: async () => (await broker.call("pause", { action: "end", by: causeText("") })).text,
      });
      return;
    }
    await confirmAction({
      title: "Pause all agents of the cluster",
      does: ["Until it ends, no agent promotes, kills, restarts or hands over by itself. Brokers go on serving."],
      loses: "No message. But a primary that dies meanwhile is not replaced: clients are then served by nobody until you promote a broker, or resume.",
      verb: "Pause",
      fields: [
        { name: "minutes", label: "For so many minutes", kind: "number", min: 1, max: 10080, value: "60" },
        { name: "reason", label: "Reason, shown to whoever asks for the status", maxlength: 200 },
      ],
      run: async ({ minutes, reason }) =>
        (await broker.call("pause", { action: "begin", for_s: Math.round(Number(minutes) * 60), reason, by: causeText("") })).text,
    });
  }
}

function causeText(what) {
  const by = `${broker.who.token} on the web page of ${broker.who.broker}`;
  return (what ? `${what} by ${by}` : by).slice(0, 200);
}

/** What a broker refuses leaves the rest to be shown; that nobody answers does not. */
function onlyRefused(error) {
  if (error instanceof broker.Refused && error.status < 0) return [];
  throw error;
}

/** A diagnosis that the broker cannot have yet leaves the rest to be shown. */
function onlyNotFound(error) {
  if (error instanceof broker.Refused && ![401, 403].includes(error.status)) return { problem: error.message };
  throw error;
}

/** One row for each broker: the primary first, then who follows it, then the others. */
function rowsOf(status, brokers, backups, facts, ownLag) {
  const rows = brokers.map((row) => {
    const figures = (row.state !== "unreachable" && facts.find((one) => one.name && one.name === row.name)) || {}; // of before, else
    const backup = backups.find((one) => one.name === row.name && one.state !== "expected");
    const isOwn = row.name === status.name;
    const follows = row.state === "primary" ? "" : isOwn ? status.primary : backup ? status.name : row.state === "unreachable" ? "" : figures.primary;
    const lag = backup ?? (isOwn && typeof ownLag === "number" ? { heard_s: ownLag } : {});
    const { connections, messages } = figures;
    return { connections, messages, ...row, follows: follows === row.name ? "" : follows, lag };
  });
  const rank = (row) => (row.state === "primary" ? 0 : row.state === "unreachable" ? 2 : 1);
  return rows.sort((one, other) => rank(one) - rank(other) || String(one.name).localeCompare(String(other.name)));
}

function lagText({ lag }) {
  if (!lag) return "";
  if (lag.heard_s !== undefined) return `heard ${seconds(lag.heard_s)} ago`;
  if (lag.lag_messages === undefined) return "";
  return lag.lag_messages || lag.lag_bytes ? `${count(lag.lag_messages)} events, ${bytes(lag.lag_bytes)}, ${seconds(lag.lag_s)}` : "none";
}

function replicaText(row, name, state) {
  const shown = shownReplica(row, state);
  return shown ? `${name} (${shown})` : name;
}
