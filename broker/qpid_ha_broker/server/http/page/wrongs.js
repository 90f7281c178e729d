// A list of what is wrong: [{severity: "bad" | "warning" | "notice", text, help, commands}].

import { announce, el } from "./dom.js";

export function showWrongs(list, wrongs) {
  const id = JSON.stringify(wrongs);
  if (list.shownId === id) return;
  list.shownId = id;
  list.replaceChildren(...wrongs.map((line) => el("li", { class: `wrong ${line.severity === "bad" ? "" : line.severity}` },
    el("p", {}, line.text), line.help ? el("p", { class: "quiet" }, line.help) : null, ...(line.commands ?? []).map((command) => copyLine(command)))));
}

/** A line to copy; `name`: what is said of it, where that is not to be the line itself. */
export function copyLine(text, name = text) {
  const code = el("code", {}, text);
  return el("p", { class: "command" }, code,
    el("button", { type: "button", class: "plain copy", "aria-label": `Copy ${name}`, onclick: () => copy(text, name, code) }, "Copy"));
}

/** Without the right to, or over http, what is to be copied is selected: then the keys do it. */
async function copy(text, name, code) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`Copied: ${name}`);
  } catch {
    getSelection().selectAllChildren(code);
    announce(`Selected: ${name}`);
  }
}
