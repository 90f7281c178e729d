"""What is wrong, by the facts: one function for each part, each of which knows when a fact means nothing yet. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from shlex import quote
from typing import Final

from qpid_ha_broker.diagnosis.commands import COMMENT, ELSEWHERE, Reader, complete
from qpid_ha_broker.diagnosis.facts import (
    AGENT_SILENT_S,
    OUTSIDE,
    WITHHELD,
    BrokerState,
    CertificateEnd,
    DiagnosisFacts,
    GroupTrouble,
    LocalProcess,
    MachineState,
    QueueState,
    SetStanding,
    SilentBroker,
    Supervisor,
)
from qpid_ha_broker.diagnosis.findings import Finding
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha.other_coordinators import SHOWN_CHARACTERS
from qpid_ha_broker.ha.record_keeper import COORDINATOR
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.store.facts import set_of
from qpid_ha_config.scalars import format_period

LAG_S: Final = 5.0
NEAR_LIMIT: Final = 0.9
OFTEN, WITHIN_S = 3, 3600.0
LEAST_FREE, ENOUGH_FREE_BYTES = 0.1, 20 * 1024**3
"""Of a disk; so much is enough on any."""
EXPIRES_SOON_S: Final = 30 * 86_400.0
CLOCK_S: Final = 2.0
FULL: Final = 0.95
"""A queue of so much of its limit in bytes may refuse the next message."""
WITHHELD_S, OUTSIDE_S = 3.0, 30.0
"""Of a member of a group: in less, others are noticed to have gone, and somebody is let in."""
MOST_NAMED: Final = 10
"""Of one kind; the others are one finding together."""

ALL, BACKUPS = "qpid-ha status --all", "qpid-ha backups"
UNIT: Final = "qpid-ha"
"""Of systemd: the name that whichever of the two units is enabled has besides (docs/installing.md)."""
START: Final = f"systemctl start {UNIT}"
JOURNAL: Final = "journalctl -u qpidd -u qpid-ha-agent"
"""The journal knows units by their first names alone."""


def diagnose(facts: DiagnosisFacts) -> list[Finding]:
    """Everything that is wrong, the most urgent first."""
    findings = [finding for check in _CHECKS for finding in check(facts)]
    return sorted(findings, key=lambda finding: finding.urgency)


# --- who leads


def _leading(facts: DiagnosisFacts) -> Iterator[Finding]:
    if facts.is_cluster and not facts.brokers and facts.silent:
        where = ", ".join(broker.address for broker in facts.silent)
        yield Finding(
            "nobody-answers", "", f"none of {len(facts.silent)} brokers answers here: {where}",
            tuple(_start_elsewhere(broker) for broker in facts.silent),
        )  # fmt: skip
    if facts.is_cluster and facts.brokers and facts.primary is None:
        yield Finding("no-primary", "", _no_primary_text(facts), _who_may_lead(facts))
    clusters = {broker.cluster for broker in facts.primaries if broker.cluster}
    if len(clusters) > 1:
        of_each = ", ".join(f"{broker.name} of the cluster {broker.cluster or '?'}" for broker in facts.primaries)
        text = f"{len(facts.primaries)} brokers are primary, and not of one cluster: {of_each}"
        asks = (f"{_ask(broker)} history" for broker in facts.primaries)
        yield Finding("two-clusters", "", text, (*asks, *_ask_each(facts, "config get ha.coordinator")))
    elif len(facts.primaries) > 1:
        newest, *older = facts.primaries
        of_each = ", ".join(f"{broker.name} of generation {broker.generation}" for broker in facts.primaries)
        commands = (ALL, *(f"{_ask(broker)} demote" for broker in older if broker.generation < newest.generation))
        yield Finding("two-primaries", "", f"{len(facts.primaries)} brokers say that they are primary: {of_each}",
                      commands)  # fmt: skip


def _no_primary_text(facts: DiagnosisFacts) -> str:
    states = ", ".join(f"{broker.name} is {broker.state}" for broker in facts.brokers)
    silent = "".join(f"; {broker.label} does not answer" for broker in facts.silent)
    record = facts.coordinator.record
    recorded = ""
    if record is not None and record.generation:
        recorded = f"; the record names {record.primary} as primary of generation {record.generation}"
    return f"no broker that answers is primary: {states}{silent}{recorded}"


def _who_may_lead(facts: DiagnosisFacts) -> tuple[str, ...]:
    if facts.assessment is None:
        return (ALL, "qpid-ha activation list")
    if facts.assessment.next_step is not None:
        return facts.assessment.next_step.commands
    if facts.pause is not None:
        return ("qpid-ha resume",)
    able = [broker for name in facts.assessment.leaders if (broker := facts.broker(name)) is not None]
    return (ALL, *(f"{_ask(broker)} promote" for broker in able[:1]))


def _refusals(facts: DiagnosisFacts) -> Iterator[Finding]:
    if not facts.is_cluster or facts.primary is not None:
        return
    said = {broker.name: broker.problem for broker in facts.brokers if broker.problem}
    if facts.assessment is not None:
        said |= {
            standpoint.name: standpoint.why for standpoint in facts.assessment.standpoints if not standpoint.may_lead
        }
    commands = _who_may_lead(facts) if facts.assessment is not None else ("qpid-ha activation list",)
    for name, why in said.items():
        yield Finding("promotion-refused", name, f"{name} may not lead: {why}", commands)


def _waiting_commits(facts: DiagnosisFacts) -> Iterator[Finding]:
    for broker in facts.brokers:
        if broker.uncommitted_why:
            text = f"{broker.name} has committed nothing for {format_period(broker.uncommitted_s)}"
            yield Finding(
                "commits-wait", broker.name, f"{text}: {broker.uncommitted_why}", (BACKUPS, "qpid-ha coordinator check")
            )


# --- whether they are configured alike


def _differences(facts: DiagnosisFacts) -> Iterator[Finding]:
    for name, where in facts.twins:
        text = (
            f"{len(where)} brokers are called {name}, at {' and '.join(where)}: give each its own name, and restart it"
        )
        yield Finding("name-twice", name, text, tuple(
            f"qpid-ha -b {url} config get name" for url in where if "://" in url) or (ALL,))  # fmt: skip
    for login in facts.refused_logins:
        text = (
            f"the broker at {login.address} is there, and does not let {login.name} in ({login.why}): are ha.username"
            " and its password the same on both?"
        )
        asked = facts.broker(login.name)
        here = f"qpid-ha -b {quote(login.name)}" if asked is None else _ask(asked)
        commands = (f"{here} config get ha.username", f"qpid-ha -b {login.address} config get ha.username")
        yield Finding("login-refused", login.name, text, commands)
    yield from _coordinators(facts)
    yield from _differing(facts, "addresses-differ", "ha.brokers-url", lambda broker: ",".join(broker.addresses))


def _coordinators(facts: DiagnosisFacts) -> Iterator[Finding]:
    """Identities tell; a URL may be another one for the same place, and the same one for two."""
    users: dict[str, list[BrokerState]] = {}
    for broker in facts.brokers:
        users.setdefault(broker.coordinator_identity, []).append(broker)
    not_told = users.pop("", [])
    if len(users) > 1:
        of_each = "; ".join(
            f"{_places(brokers)} ({identity[:SHOWN_CHARACTERS]}): {', '.join(broker.name for broker in brokers)}"
            for identity, brokers in users.items()
        )
        text = f"{len(users)} coordinators, each with a record of its own: {of_each}; {COORDINATOR.same_record}"
        commands = (
            *_ask_each(facts, "config get ha.coordinator"),
            "qpid-ha coordinator show   # on each: its identity",
        )
        yield Finding("two-coordinators", "", text, commands)
    elif not_told or not users:
        yield from _differing(facts, "coordinators-differ", "ha.coordinator", lambda broker: broker.coordinator)


def _places(brokers: Iterable[BrokerState]) -> str:
    return " or ".join(sorted({broker.coordinator or "?" for broker in brokers}))


def _differing(
    facts: DiagnosisFacts, key: str, setting: str, value_of: Callable[[BrokerState], str]
) -> Iterator[Finding]:
    values = {broker.name: value for broker in facts.brokers if (value := value_of(broker))}
    if len(set(values.values())) > 1:
        text = f"{setting} is not the same on all brokers: " + "; ".join(f"{name}: {values[name]}" for name in values)
        yield Finding(key, "", text, tuple(_ask_each(facts, f"config get {setting}")))


# --- who follows


def _backups(facts: DiagnosisFacts) -> Iterator[Finding]:
    primary = facts.primary
    if primary is None or not facts.is_cluster:
        return
    needed, members = primary.min_in_sync, primary.members
    if len(members) < needed:
        text = f"{len(members)} of the {needed} brokers that a write needs are in sync ({', '.join(members)})"
        yield Finding("too-few-in-sync", "default", text, (BACKUPS, ALL))
    if members == (primary.name,):
        others = ", ".join(f"{broker.name} is {broker.state}" for broker in facts.brokers if broker is not primary)
        text = f"{primary.name} is primary and alone in the in-sync set ({others or 'no other broker answers'})"
        yield Finding("no-backup", primary.name, text, (BACKUPS, ALL))
    for backup in facts.backups:
        if backup.state == "expected":
            text = f"{backup.name} is in the in-sync set and is not connected to {primary.name}"
            yield Finding("backup-expected", backup.name, text, (BACKUPS,))
        elif backup.seconds > LAG_S:
            lag = f"{counted(backup.messages, 'message')}, {_size(backup.bytes)}"
            text = f"{backup.name} is {format_period(backup.seconds)} behind ({lag})"
            yield Finding("backup-lags", backup.name, text, (BACKUPS,))
    lags = {backup.name: backup.messages for backup in facts.backups}
    for broker in facts.brokers:
        if broker.state == State.CATCHUP:
            left = f", {counted(lags[broker.name], 'message')} to go" if broker.name in lags else ""
            yield Finding("backup-catches-up", broker.name, f"{broker.name} catches up{left}", (BACKUPS,))
        elif broker.state == State.CONNECTING:
            yield Finding("backup-not-following", broker.name, _not_following(broker), (f"{_ask(broker)} status",))


def _not_following(broker: BrokerState) -> str:
    why = broker.login_problem or broker.problem
    return f"{broker.name} follows nobody: {why}" if why else f"{broker.name} is connecting, and follows nobody yet"


# --- who answers


def _answering(facts: DiagnosisFacts) -> Iterator[Finding]:
    machine = facts.machine
    if machine.process is LocalProcess.ABSENT:
        end = f"; its log ends with: {' / '.join(machine.last_lines)}" if machine.last_lines else ""
        text = f"{machine.name}, the broker of this machine, does not run{end}"
        yield Finding("broker-not-running", machine.name, text, _start_here(machine))
    elif machine.process in (LocalProcess.SILENT, LocalProcess.HELD):
        is_held = machine.process is LocalProcess.HELD
        silence = "was stopped by a signal" if is_held else "does not answer"
        text = f"{machine.name}, the broker of this machine, {silence} (process {machine.pid})"
        helps = f"kill -CONT {machine.pid}" if is_held else f"ps -o pid,stat,wchan:30 -p {machine.pid}"
        yield Finding("broker-hangs", machine.name, text, (helps,))
    if facts.brokers:
        for silent in facts.silent:
            sights = (["here"] if silent.why else []) + list(silent.seen_by)
            why = f": {silent.why}" if silent.why else ""
            text = f"{silent.label} does not answer, seen from {', '.join(sights)}{why}"
            commands = (_start_elsewhere(silent),)
            yield Finding("broker-silent", silent.name or silent.address, text, commands)
    for link in facts.broken_links:
        who = ", ".join(link.seen_by)
        text = f"{link.name} at {link.address} answers here, but {who} cannot reach it"
        yield Finding("link-broken", link.name, text, (ALL, f"ping {_host(link.address)}   # on {who}"))


def _start_here(machine: MachineState) -> tuple[str, ...]:
    match machine.supervisor:
        case Supervisor.PACEMAKER:
            return ("crm_mon -1A",)
        case Supervisor.AGENT | Supervisor.SYSTEMD:
            return (START, f"{JOURNAL} -n 50")


def _start_elsewhere(silent: SilentBroker) -> str:
    where = silent.name or silent.address.rpartition("/")[2]
    return f"systemctl status {UNIT}   # on {where}"


# --- what agents and the coordinator do


def _coordination(facts: DiagnosisFacts) -> Iterator[Finding]:
    pause, coordinator, machine = facts.pause, facts.coordinator, facts.machine
    if pause is not None:
        yield Finding("paused", "", pause.text, ("qpid-ha resume",))
    if coordinator.problem:
        is_pacemaker = machine.supervisor is Supervisor.PACEMAKER
        commands = ("qpid-ha coordinator check", *(["crm_mon -1"] if is_pacemaker else []))
        yield Finding("coordinator-unusable", coordinator.url, coordinator.problem, commands)
    if coordinator.moved_to:
        text = f"{coordinator.url} has moved: set ha.coordinator to {coordinator.moved_to} on all machines"
        yield Finding("coordinator-moved", coordinator.url, text, ("qpid-ha coordinator show",))
    if machine.supervisor is Supervisor.AGENT and not machine.has_agent:
        text = f"no qpid-ha-agent runs here, though ha.coordinator is {coordinator.url}"
        yield Finding("agent-not-running", machine.name, text, (START,))
    for broker in facts.brokers:
        is_gone = broker.is_local and machine.supervisor is Supervisor.AGENT and not machine.has_agent
        if broker.agent_silent_s > AGENT_SILENT_S and not is_gone:
            where = "" if broker.is_local else f"{COMMENT}{ELSEWHERE}{broker.name}"
            silence = format_period(broker.agent_silent_s)
            text = f"the agent of {broker.name} has not asked it for its status for {silence}"
            looks = ("ps -o pid,stat,wchan:30,args -C qpid-ha-agent", f"systemctl status {UNIT}", f"{JOURNAL} -n 50")
            yield Finding("agent-silent", broker.name, text, tuple(f"{look}{where}" for look in looks))
    recent = [at_ms for at_ms in facts.failovers_ms if 0 <= facts.now_s - at_ms / 1000 <= WITHIN_S]
    if len(recent) > OFTEN:
        yield Finding("fails-over-often", "", f"{len(recent)} failovers within the last hour", ("qpid-ha history",))


# --- resource sets


def _sets(facts: DiagnosisFacts) -> Iterator[Finding]:
    yield from _lacking_primary(facts)
    if facts.sets_problem:
        yield Finding("sets-not-known", "", facts.sets_problem, (ALL,))
    led = [row for row in facts.sets if row.primary]
    for row in [row for row in led if len(row.in_sync) < row.min_in_sync][:MOST_NAMED]:
        text = f"{len(row.in_sync)} of the {row.min_in_sync} brokers that a write to the set {row.name} needs are"
        yield Finding("too-few-in-sync", row.name, f"{text} in sync ({', '.join(row.in_sync)})", (_show(row),))
    below = [row for row in led if (len(row.in_sync) < row.wanted or row.problem) and not row.moving_to]
    for row in below[:MOST_NAMED]:
        why = f": {row.problem}" if row.problem else ""
        text = f"{len(row.in_sync)} of {row.wanted} replicas of the set {row.name} are in sync{why}"
        yield Finding("set-below-replicas", row.name, text, (_show(row), "qpid-ha brokers"))
    if below[MOST_NAMED:]:
        more = counted(len(below) - MOST_NAMED, "more set has", "more sets have")
        text = f"{more} too few replicas in sync, or a problem"
        yield Finding("set-below-replicas", "others", text, ("qpid-ha set list",))
    for broker in facts.brokers:
        if broker.controller_problem:
            text = f"the controller on {broker.name} decides nothing: {broker.controller_problem}"
            yield Finding("controller-stopped", broker.name, text, ("qpid-ha switchover", ALL))
    for name in facts.draining:
        yield Finding("broker-draining", name, f"{name} is drained: it gets no replicas",
                      (f"qpid-ha undrain {quote(name)}",))  # fmt: skip


def _groups(facts: DiagnosisFacts) -> Iterator[Finding]:
    """What members of groups say of themselves: a controller may not know it, as of one that is cut off."""
    for broker in facts.brokers:
        for trouble in broker.groups[:MOST_NAMED]:
            yield from _group(broker, trouble)


def _group(broker: BrokerState, trouble: GroupTrouble) -> Iterator[Finding]:
    about, show = f"{trouble.set} at {broker.name}", f"qpid-ha set show {quote(trouble.set)}"
    if trouble.transport_problem:
        text = (
            f"Corosync does not answer {broker.name}, a member of the group {trouble.set}: {trouble.transport_problem}"
        )
        on = f"   # on {broker.name}"
        yield Finding("group-transport", about, text,
                      (f"systemctl status corosync{on}", f"corosync-cfgtool -s{on}",
                       f"systemctl start corosync{on}"))  # fmt: skip
    elif trouble.role == WITHHELD and trouble.for_s > WITHHELD_S:
        missing = f"; {', '.join(trouble.missing)} not there" if trouble.missing else ""
        record = f"; its record cannot be changed: {trouble.record_problem}" if trouble.record_problem else ""
        text = (
            f"{broker.name} has handed out and confirmed nothing of the group {trouble.set} for"
            f" {format_period(trouble.for_s)}"
        )
        starts = (f"{START}   # on {name}" for name in trouble.missing)
        yield Finding("group-withheld", about, f"{text}: {trouble.reason}{missing}{record}", (*starts, show, ALL))
    elif trouble.role == OUTSIDE and trouble.for_s > OUTSIDE_S:
        text = f"{broker.name} has been outside of the group {trouble.set} for"
        text += f" {format_period(trouble.for_s)}: {trouble.reason}"
        look = (f"{JOURNAL} -n 50   # on {broker.name}", "corosync-quorumtool -s   # on each")
        yield Finding("group-member-outside", about, text, (show, *look, f"qpid-ha history {quote(trouble.set)}"))
    for stuck in trouble.stuck:
        owner = stuck.owner or "nobody"
        text = (
            f"{broker.name} has waited for the queue {stuck.queue} of the group {trouble.set} for"
            f" {format_period(stuck.for_s)}, which {owner} has"
        )
        asks = (
            f"qpid-ha queue show {quote(stuck.queue)}",
            f"systemctl restart {UNIT}   # on {owner}: the others go on",
        )
        yield Finding("group-queue-stuck", stuck.queue, text, asks if stuck.owner else asks[:1])


def _lacking_primary(facts: DiagnosisFacts) -> Iterator[Finding]:
    """By the controller, else by the copy of the map that a broker has."""
    lacking = [standing for standing in facts.sets if not standing.is_served]
    reasons = {standing.name: standing.problem for standing in lacking}
    groups = {standing.name for standing in lacking if standing.is_group}
    if not facts.sets:
        reasons = {name: "" for broker in facts.brokers for name in broker.sets_without_primary}
    names = sorted(reasons)
    for name in names[:MOST_NAMED]:
        why = f": {reasons[name]}" if reasons[name] else ""
        text = f"no member of the group {name} serves" if name in groups else f"nobody leads the set {name}"
        yield Finding("set-without-primary", name, f"{text}{why}", (f"qpid-ha set show {quote(name)}", ALL))
    if names[MOST_NAMED:]:
        text = f"nobody leads {counted(len(names) - MOST_NAMED, 'more set')}"
        yield Finding("set-without-primary", "others", text, (ALL,))


def _show(standing: SetStanding) -> str:
    return f"qpid-ha set show {quote(standing.name)}"


# --- each broker


def _figures(facts: DiagnosisFacts) -> Iterator[Finding]:
    for broker in facts.brokers:
        figures, there = broker.figures, "" if broker.is_local else f"{COMMENT}{ELSEWHERE}{broker.name}"
        store = "full" if broker.store_problem else figures.store
        if store in ("full", "failed"):
            commands = {
                "full": (f"df -h   # on {broker.name}", f"{_ask(broker)} query", "qpid-ha queue list"),
                "failed": (f"{_ask(broker)} query", f"journalctl -k -p err   # on {broker.name}"),
            }[store]
            why = f" ({broker.store_problem})" if broker.store_problem else ""
            text = f"the store of {broker.name} {'is full' if store == 'full' else 'has failed'}{why}"
            yield Finding("store-cannot-write", broker.name, text, commands)
        if figures.unreadable:
            text = f"{broker.name} cannot read {counted(figures.unreadable, 'message')} from its disk"
            where = figures.data_dir or (facts.machine.data_dir if broker.is_local else "") or "/var/lib/qpid-ha"
            yield Finding("messages-unreadable", broker.name, text, (f"qpid-ha store check {quote(where)}{there}",))
        if figures.memory_limit_bytes and figures.memory_bytes > NEAR_LIMIT * figures.memory_limit_bytes:
            held, limit = _size(figures.memory_bytes), _size(figures.memory_limit_bytes)
            text = f"{broker.name} holds {held} of messages, and memory-limit is {limit}"
            yield Finding("memory-near-limit", broker.name, text, ("qpid-ha queue list",))
        for key, why in figures.left_out:
            text = f"{key} of the cluster is not in force on {broker.name}, which has what its own file says: {why}"
            commands = f"{_ask(broker)} config diff", f"qpid-ha config unset {quote(key)}"
            yield Finding("setting-not-in-force", broker.name, text, commands)
        outside = [address for address in figures.listening if not _is_loopback(address)]
        if figures.acl_rules == "none" and outside:
            text = f"{broker.name} listens at {outside[0]} and has no acl"
            commands = (f"systemctl restart {UNIT}   # on {broker.name}, with acl in its file: docs/security.md",)
            yield Finding("acl-missing", broker.name, text, commands)
        if figures.everybody_administers:
            text = f"whoever reaches {broker.name} may administer it, by {figures.everybody_administers}"
            yield Finding("everybody-administers", broker.name, text, (f"{_ask(broker)} acl reload",))
        if abs(figures.clock_ahead_s) > CLOCK_S:
            side = "ahead of" if figures.clock_ahead_s > 0 else "behind"
            text = f"the clock of {broker.name} is {format_period(abs(figures.clock_ahead_s))} {side} this machine's"
            yield Finding("clock-differs", broker.name, text, (f"timedatectl   # here, and on {broker.name}",))
        if abs(ahead_s := figures.message_clock_ahead_s) > CLOCK_S:
            side = "ahead of" if ahead_s > 0 else "behind"
            off = f"{format_period(abs(ahead_s))} {side}"
            text = f"messages expire by a clock that is {off} the time of day of {broker.name}"
            commands = (f"timedatectl   # on {broker.name}", f"{_ask(broker)} query")
            yield Finding("message-clock-differs", broker.name, text, commands)
        if figures.audit_lost:
            lines = counted(figures.audit_lost, "line is", "lines are")
            text = f"{lines} missing in the audit log of {broker.name}: its log says why"
            commands = (f"{JOURNAL} --grep audit{there}", f"{_ask(broker)} query")
            yield Finding("audit-lines-lost", broker.name, text, commands)
        if figures.discarded:
            text = f"{broker.name} has discarded {counted(figures.discarded, 'message')} since it was started"
            yield Finding("messages-discarded", broker.name, text, (f"{_discarded(figures.data_dir)}{there}",))
    versions = sorted({broker.figures.version for broker in facts.brokers if broker.figures.version})
    if len(versions) > 1:
        text = ", ".join(
            f"{broker.name} runs {broker.figures.version}" for broker in facts.brokers if broker.figures.version
        )
        yield Finding("versions-differ", "", text, ("qpid-ha query --all", "qpid-ha upgrade --all"))


def _queues(facts: DiagnosisFacts) -> Iterator[Finding]:
    full = sorted((queue for queue in facts.queues if _is_full(queue)), key=lambda queue: -queue.messages)
    unread = sorted((queue for queue in facts.queues if _is_unread(queue)), key=lambda queue: -queue.messages)
    for queue in full[:MOST_NAMED]:
        yield Finding("queue-is-full", queue.name, f"the queue {queue.name} is full: {_fill(queue)}", (_read(queue),))
    for queue in unread[:MOST_NAMED]:
        messages = counted(queue.messages, "message")
        text = f"the queue {queue.name} has {messages} and no consumer, and grew by {queue.grown}"
        yield Finding("queue-is-not-read", queue.name, text, (_read(queue),))
    for key, more in (("queue-is-full", full[MOST_NAMED:]), ("queue-is-not-read", unread[MOST_NAMED:])):
        if more:
            yield Finding(key, "others", f"the same of {counted(len(more), 'more queue')}", ("qpid-ha queue list",))


def _is_full(queue: QueueState) -> bool:
    if not queue.refuses:
        return False
    is_of_count = bool(queue.most_messages) and queue.messages >= queue.most_messages
    return is_of_count or (bool(queue.most_bytes) and queue.bytes >= FULL * queue.most_bytes)


def _is_unread(queue: QueueState) -> bool:
    return not queue.consumers and queue.messages > 0 and queue.grown > 0


def _fill(queue: QueueState) -> str:
    most = f" of {queue.most_messages}" if queue.most_messages else ""
    most_bytes = f" of {_size(queue.most_bytes)}" if queue.most_bytes else ""
    messages = f"{queue.messages}{most} messages" if most else counted(queue.messages, "message")
    return f"{messages}, {_size(queue.bytes)}{most_bytes}"


def _read(queue: QueueState) -> str:
    return f"qpid-ha queue show {quote(queue.name)}"


# --- this machine


def _machine(facts: DiagnosisFacts) -> Iterator[Finding]:
    for finding in _of_machine(facts):
        yield _named(finding, facts.machine.name) if facts.machine.is_elsewhere else finding


def _named(finding: Finding, name: str) -> Finding:
    """For who reads it elsewhere."""
    commands = (
        f"{complete(command.partition(COMMENT)[0], Reader(name))}{COMMENT}{ELSEWHERE}{name}"
        for command in finding.commands
    )
    return finding._replace(text=f"{name}: {finding.text}", commands=tuple(commands))


def _of_machine(facts: DiagnosisFacts) -> Iterator[Finding]:
    machine = facts.machine
    if machine.config_problem:
        command = f"qpidd --check --config {quote(machine.config)}"
        yield Finding("configuration-invalid", machine.config, machine.config_problem, (command,))
    if machine.acl_problem:
        yield Finding("acl-file-invalid", machine.name, machine.acl_problem, ("qpid-ha acl reload",))
    for certificate in machine.certificates:
        yield from _certificate(certificate, facts.now_s)
    yield from _disk(machine)
    for store in machine.stores:
        if not store.is_readable:
            text = f"the store of {set_of(store)} in {store.where} is {store.integrity}: {store.detail}"
            yield Finding("store-damaged", store.where, text, (f"qpid-ha store check {quote(store.where)}",))
    running = facts.broker(machine.name)
    if machine.discarded_files and (running is None or not running.figures.discarded):
        files = counted(machine.discarded_files, "file with discarded messages is", "files with discarded messages are")
        text = f"{files} in {machine.data_dir}/discarded"
        yield Finding("messages-discarded", machine.name, text, (_discarded(machine.data_dir),))


def _certificate(certificate: CertificateEnd, now_s: float) -> Iterator[Finding]:
    path, left_s = certificate.path, certificate.ends_s - now_s
    commands = (f"openssl x509 -noout -subject -dates -in {quote(path)}", "qpid-ha tls reload   # once it is renewed")
    if now_s < certificate.begins_s:
        text = f"{path} is not valid before {format_period(certificate.begins_s - now_s)} from now: is the clock right?"
        yield Finding("certificate-expired", path, text, commands)
    elif left_s <= 0:
        yield Finding("certificate-expired", path, f"{path} expired {format_period(-left_s)} ago", commands)
    elif left_s < EXPIRES_SOON_S:
        yield Finding("certificate-expires", path, f"{path} expires in {format_period(left_s)}", commands)


def _disk(machine: MachineState) -> Iterator[Finding]:
    if not machine.data_dir:
        return
    if machine.is_read_only:
        text = f"the file system of {machine.data_dir} is read-only"
        yield Finding("data-dir-read-only", machine.data_dir, text, ("journalctl -k -p err",))
    free, total = machine.free_bytes, machine.total_bytes
    if total and free < min(LEAST_FREE * total, ENOUGH_FREE_BYTES):
        text = f"{_size(free)} of {_size(total)} are free in {machine.data_dir}"
        commands = (f"du -xsh {quote(machine.data_dir)}/*", "qpid-ha queue list")
        yield Finding("disk-nearly-full", machine.data_dir, text, commands)


def _size(size_bytes: float) -> str:
    """For people, rounded."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def _discarded(data_dir: str) -> str:
    """Goes by the files, whichever broker of a machine is asked for by others."""
    return f"qpid-ha store discarded list{f' --data-dir {quote(data_dir)}' if data_dir else ''}"


def _ask_each(facts: DiagnosisFacts, command: str) -> Iterator[str]:
    return (f"{_ask(broker)} {command}" for broker in facts.brokers)


def _ask(broker: BrokerState) -> str:
    return "qpid-ha" if broker.is_local or not broker.address else f"qpid-ha -b {broker.address}"


def _host(address: str) -> str:
    return address.rpartition("://")[2].rpartition(":")[0].strip("[]")


def _is_loopback(address: str) -> bool:
    host = _host(address)
    return host in ("localhost", "::1") or host.startswith("127.")


_CHECKS: Final[tuple[Callable[[DiagnosisFacts], Iterator[Finding]], ...]] = (
    _leading,
    _refusals,
    _waiting_commits,
    _differences,
    _backups,
    _answering,
    _coordination,
    _sets,
    _groups,
    _figures,
    _queues,
    _machine,
)
