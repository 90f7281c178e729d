// What is wrong, as the broker has found it, in the words of the page; and how states are coloured. Pure.

import { count } from "./dom.js";

const STATE_KIND = { primary: "good", standalone: "good", ready: "good", active: "good", observer: "good", unreachable: "bad" };
const SEVERITY = { critical: "bad", warning: "warning", notice: "notice" };

export function stateKind(state) {
  return STATE_KIND[state] ?? "warn";
}

/** Whether anybody serves a resource set; in a group any member does. */
function isServed(row) {
  return row.state !== "no primary" && row.state !== "no member serves";
}

export function setKind(row) {
  return row.state === "ok" ? "good" : isServed(row) ? "warn" : "bad";
}

/** Who leads a resource set. */
export function primaryText(row) {
  return row.strategy !== "group" ? row.primary : isServed(row) ? "each in sync serves" : "";
}

/** `words` on who is in sync: while nobody serves the set, it is what was recorded last. */
export function inSyncText(row, words) {
  return isServed(row) || !words ? words : `${words} (recorded)`;
}

/** The state of a replica: in a group each member that is level serves. */
export function shownReplica(row, state) {
  return row.strategy === "group" && (state === "primary" || state === "ready") ? "serves" : state;
}

/** Of what `/findings` has: the lines that `showWrongs` takes. */
export function wrongsOf(told) {
  return told.findings.map((one) => ({
    severity: SEVERITY[one.severity] ?? "bad",
    text: `${one.severity}: ${one.text} (${one.key})`,
    help: `${one.meaning[0].toUpperCase()}${one.meaning.slice(1)}. ${one.page}`,
    commands: one.commands,
  }));
}

/** That nothing was found means as much as what was looked at, and when. `clock`: the time as a person reads it. */
export function lookedText(told, clock) {
  const parts = Object.entries(told.looked_at);
  const things = parts.reduce((sum, [, number]) => sum + number, 0);
  const what = parts.map(([name, number]) => `${count(number)} ${number === 1 ? name.slice(0, -1) : name}`).join(", ");
  const outcome = told.findings.length ? `found ${count(told.findings.length)}` : "nothing found";
  return `Looked at ${count(things)} ${things === 1 ? "thing" : "things"} (${what}), at ${clock}; ${outcome}.`;
}
