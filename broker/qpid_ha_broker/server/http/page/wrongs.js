// A list of what is wrong: [{severity: "bad" | "warning" | "fine", text, help}].

import { el } from "./dom.js";

export function showWrongs(list, wrongs) {
  const id = JSON.stringify(wrongs);
  if (list.shownId === id) return;
  list.shownId = id;
  list.replaceChildren(...wrongs.map((line) => el("li", { class: `wrong ${line.severity === "bad" ? "" : line.severity}` },
    el("p", {}, line.text), line.help ? el("p", { class: "quiet" }, line.help) : null)));
}
