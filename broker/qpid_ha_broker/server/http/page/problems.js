// What is wrong, the worst first: from what the brokers say of themselves. Pure.

const STATE_KIND = { primary: "good", standalone: "good", ready: "good", active: "good", observer: "good", unreachable: "bad" };

export function stateKind(state) {
  return STATE_KIND[state] ?? "warn";
}

/** As a shell takes it for one word, whatever is in it. */
export function shellWord(text) {
  return /^[A-Za-z0-9._][A-Za-z0-9._-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Whether anybody serves a resource set; in a group any member does. */
export function isServed(row) {
  return row.state !== "no primary" && row.state !== "no member serves";
}

/** [{severity: "bad" | "warning", text, help, command}], of what `cluster` has: {status, brokers, backups, facts, sets}. */
export function problemsOf({ status, brokers, backups, facts, sets }) {
  const found = [];
  const bad = (text, help = "", command = "") => found.push({ severity: "bad", text, help, command });
  const warn = (text, help = "", command = "") => found.push({ severity: "warning", text, help, command });
  const inCluster = status.state !== "standalone";
  const primary = brokers.find((row) => row.state === "primary");

  if (inCluster && !primary && status.state !== "primary") {
    bad("The cluster has no primary: no client is served.", "An agent promotes a backup by itself; else: Promote, below, or on the machine of the best one:", "qpid-ha promote");
  }
  const members = (primary ?? status).members ?? [];
  if (inCluster && status.min_in_sync && members.length < status.min_in_sync) {
    bad(`${members.length} of at least ${status.min_in_sync} brokers are in sync: nothing is confirmed to publishers.`,
      "Start the brokers that are missing, on their machines:", "systemctl start qpid-ha");
  }
  for (const row of facts) {
    if (row.store && row.store !== "off" && row.health && row.health !== "ok") bad(`${row.name}: its store is ${row.health}.`, `On the machine of ${row.name}:`, "qpid-ha diagnose");
  }
  for (const row of brokers) {
    if (row.state === "unreachable") bad(`${row.name ?? "The broker"} at ${row.address} cannot be reached.`, "On that machine:", "systemctl status qpid-ha");
  }
  for (const row of [status, ...facts.filter((row) => row.name !== status.name)]) {
    if (row.problem) bad(`${row.name}: ${row.problem}`);
    if (row.controller_problem) bad(`${row.name}: ${row.controller_problem}`, "", "qpid-ha diagnose");
    if (row.login_problem) bad(`${row.name}: ${row.login_problem}`, "", "qpid-ha diagnose");
  }
  for (const row of sets) {
    if (row.state === "no member serves") bad(`No member of the group ${row.name} serves.`, row.problem);
    else if (!isServed(row)) bad(`The resource set ${row.name} has no primary.`, row.problem, `qpid-ha set show ${shellWord(row.name)}`);
    else if (row.state === "too few in sync") warn(`The resource set ${row.name} has too few replicas in sync.`, row.problem);
    else if (row.problem) warn(`The resource set ${row.name}: ${row.problem}`);
  }
  for (const group of status.groups ?? []) {
    const why = group.transport_problem || group.record_problem || group.store_problem || group.reason;
    if (group.role !== "serving" || group.transport_problem) warn(`${status.name} has no full part in the group ${group.set}: it is ${group.role}.`, why);
    for (const queue of group.stuck_queues) warn(`${queue.owner || "Nobody"} keeps the queue ${queue.queue} of the group ${group.set}.`);
  }
  if (status.paused) {
    const until = status.paused.until ?? "somebody resumes";
    const reason = status.paused.reason ? ` (${status.paused.reason})` : "";
    warn(`Agents are paused by ${status.paused.by} until ${until}${reason}: a primary that dies is not replaced.`, "", "qpid-ha resume");
  }
  for (const row of backups) {
    if (row.state === "expected") warn(`The primary waits for ${row.name}, which is in the in-sync set and not connected.`);
    else if (row.state === "catchup") warn(`${row.name} catches up: ${row.lag_messages} events to go.`);
    else if (row.lag_s >= 5) warn(`${row.name} has owed an acknowledgement for ${row.lag_s} s.`);
  }
  if (inCluster && brokers.length > 1 && primary && members.length === 1) {
    warn(`Only ${members[0]} is in sync: if it is lost, there is nobody to fail over to without loss.`);
  }
  if (status.draining) warn(`${status.name} is drained: it gets no replicas.`, "", `qpid-ha undrain ${shellWord(status.name)}`);
  return [...found.filter((one) => one.severity === "bad"), ...found.filter((one) => one.severity !== "bad")];
}
