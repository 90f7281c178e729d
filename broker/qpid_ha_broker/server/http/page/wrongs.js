// A list of what is wrong: [{severity: "bad" | "warning" | "notice", text, help, commands}].

import { announce, el } from "./dom.js";

export function showWrongs(list, wrongs) {
  const id = JSON.stringify(wrongs);
  if (list.shownId === id) return;
  list.shownId = id;
  list.replaceChildren(...wrongs.map((line) => el("li", { class: `wrong ${line.severity === "bad" ? "" : line.severity}` },
    el("p", {}, line.text), line.help ? el("p", { class: "quiet" }, line.help) : null, ...(line.commands ?? []).map(commandLine))));
}

function commandLine(command) {
  const code = el("code", {}, command);
  return el("p", { class: "command" }, code,
    el("button", { type: "button", class: "plain copy", "aria-label": `Copy ${command}`, onclick: () => copy(command, code) }, "Copy"));
}

/** Without the right to, or over http, what is to be copied is selected: then the keys do it. */
async function copy(command, code) {
  try {
    await navigator.clipboard.writeText(command);
    announce(`Copied: ${command}`);
  } catch {
    getSelection().selectAllChildren(code);
    announce(`Selected: ${command}`);
  }
}
