// A question before something is done: what it does, what could be lost, and afterwards what came of it.

import { announce, el, setText } from "./dom.js";
import { copyLine } from "./wrongs.js";

/**
 * `action`: {title, does: [text], loses: text, verb, fields: [{name, label, kind, options, value, hint}], danger,
 * run: values -> text, or {text, secret}: that is shown once, to be copied}. What `run` throws is shown, beside the field that
 * its `field` names. Resolves when the dialog is closed; true: it was done.
 */
export function confirmAction(action) {
  const dialog = document.getElementById("dialog");
  const problem = el("p", { class: "problem", id: "dialog-problem", role: "alert" });
  const fields = new Map((action.fields ?? []).map((field) => [field.name, input(field)]));
  const doIt = el("button", { type: "submit", class: action.danger ? "danger" : null }, action.verb);
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  let isDone = false;

  const form = el("form", { method: "dialog" },
    el("h2", { id: "dialog-title" }, action.title),
    ...action.does.map((text) => el("p", {}, text)),
    el("h3", {}, "What could be lost"),
    el("p", {}, action.loses),
    ...[...fields.values()].map((field) => field.label),
    problem,
    el("div", { class: "buttons" }, cancel, doIt));

  /** Beside the field that it is about, or else below all of them. What was typed stays. */
  function showProblem(error) {
    const field = fields.get(error.field);
    if (field) {
      field.label.after(problem);
      field.input.setAttribute("aria-invalid", "true");
      field.input.setAttribute("aria-describedby", problem.id);
      field.input.focus();
    }
    setText(problem, error.message);
  }

  function clearProblem() {
    setText(problem, "");
    for (const { input } of fields.values()) {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (isDone) {
      dialog.close();
      return;
    }
    clearProblem();
    doIt.disabled = true;
    try {
      const values = Object.fromEntries([...fields].map(([name, field]) => [name, field.input.value]));
      const outcome = await action.run(values);
      const { text, secret } = typeof outcome === "string" ? { text: outcome } : outcome;
      isDone = true;
      announce(text);
      form.replaceChildren(el("h2", { id: "dialog-title" }, "Done"), el("p", { role: "status" }, text),
        ...(secret ? [copyLine(secret, "it")] : []), el("div", { class: "buttons" }, el("button", { type: "submit" }, "Close")));
      form.querySelector("button[type=submit]").focus();
    } catch (error) {
      showProblem(error);
      doIt.disabled = false;
    }
  });

  dialog.replaceChildren(form);
  return new Promise((resolve) => {
    dialog.showModal();
    dialog.addEventListener("close", function closed() {
      if (dialog.open) return; // the event of the dialog before comes late
      dialog.removeEventListener("close", closed);
      dialog.replaceChildren(); // passwords were typed into it, or a token was shown
      resolve(isDone);
    });
    (form.querySelector("select, input, textarea") ?? cancel).focus(); // what changes something is never a slip of Enter away
  });
}

function input(field) {
  const made = field.options
    ? el("select", { name: field.name }, ...field.options.map(([value, text]) => el("option", { value }, text)))
    : field.kind === "textarea"
    ? el("textarea", { name: field.name, rows: field.rows ?? 4, autocomplete: "off", spellcheck: "false" })
    : el("input", { name: field.name, type: field.kind ?? "text", min: field.min, max: field.max, maxlength: field.maxlength,
      autocomplete: "off", spellcheck: "false" });
  if (field.value !== undefined) made.value = field.value;
  if (field.suggestions) {
    const list = el("datalist", { id: `suggested-${field.name}` }, ...field.suggestions.map((value) => el("option", { value })));
    made.setAttribute("list", list.id);
    return { input: made, label: el("label", {}, field.label, made, list) };
  }
  return { input: made, label: el("label", {}, field.label, made) };
}
