// Arguments of queues, exchanges and bindings as people write them: NAME=VALUE on a line each, as qpid-ha takes them.

export function argumentsField(given = {}, examples = "qpid.max_count=10000") {
  return { name: "arguments", label: `Arguments, NAME=VALUE on a line each, such as ${examples}`, kind: "textarea",
    value: Object.entries(given).map(([name, value]) => `${name}=${value}`).join("\n") };
}

/** {name: value}: numbers, true and false as such, the rest as text. */
export function readArguments(text) {
  const found = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`${line} is not NAME=VALUE`);
    found[line.slice(0, at).trim()] = scalar(line.slice(at + 1).trim());
  }
  return found;
}

/** What makes `before` into `after`: null takes one away. */
export function changedArguments(before, after) {
  const changes = Object.fromEntries(Object.entries(after).filter(([name, value]) => before[name] !== value));
  for (const name of Object.keys(before)) if (!(name in after)) changes[name] = null;
  return changes;
}

export function argumentsText(given) {
  return Object.entries(given).map(([name, value]) => `${name}=${value}`).join(", ") || "none";
}

function scalar(text) {
  if (text === "true" || text === "false") return text === "true";
  const number = Number(text);
  return /^-?[0-9]+(\.[0-9]+)?$/.test(text) && (Number.isSafeInteger(number) || text.includes(".")) ? number : text;
}
