"""`qpid-ha` about a cluster: who is what, who shall be primary, what backups hold, what happened."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from qpid_ha_agent.cli.invocation import (
    NO,
    UNREACHABLE,
    CliFailure,
    Invocation,
    common_options,
    completed,
    facts_of,
    rows_of,
)
from qpid_ha_agent.cli.output import (
    cell,
    print_comparison,
    print_document,
    print_facts,
    print_notes,
    print_rows,
    utc_time,
)
from qpid_ha_agent.cli.parameters import duration
from qpid_ha_agent.cli.questions import ask_first, known_before, yes_option
from qpid_ha_agent.cli.refreshing import watchable
from qpid_ha_agent.cli.set_tables import print_sets
from qpid_ha_broker.diagnosis.facts import AGENT_SILENT_S
from qpid_ha_broker.ha.history import PROMOTED_BY
from qpid_ha_broker.ha.states import LEADING, State
from qpid_ha_config.scalars import format_period, format_progress

STATES = tuple(state.value for state in State)
STATUS_COLUMNS = ("name", "address", "state", "phase", "generation", "lsn", "in-sync")
BACKUP_COLUMNS = ("name", "state", "in-sync", "lsn", "lag-messages", "lag-bytes", "lag-s")
HISTORY_COLUMNS = ("generation", "primary", "first-lsn", "started", "cause", "forced")
SETS_HISTORY_COLUMNS = ("at", "about", "text")
COPY_COLUMNS = ("queue", "from", "state", "primary", "messages", "lag-events", "problem")
REMOTE_NODE_COLUMNS = ("name", "node", "at", "from", "state", "links", "messages", "held", "problem")
UNREACHABLE_STATE = "unreachable"
WAIT_STEP_S = 0.5
SETS_TIMEOUT_S = 2.0
NAMED_SETS = 3
"""Of those in trouble; `status --all` has them all."""
ELSEWHERE_TIMEOUT_S = 3.0
"""For each of the brokers that are asked because the one of this machine is silent."""
CHANGE_TIMEOUT_S = 30.0
"""A change of primary waits for other brokers."""


@click.command()
@click.option(
    "--expect",
    type=click.Choice(STATES),
    multiple=True,
    metavar="STATE",
    help="Say nothing; 0 if it is in STATE, else 1. Repeatable: in one of them.",
)
@click.option("--is-primary", is_flag=True, help="Say nothing; 0 if it is the primary, else 1.")
@click.option(
    "--wait",
    "wait_s",
    type=duration,
    metavar="DURATION",
    help="Until it answers or, with --expect or --is-primary, until it is so; for so long at most, such as 10m."
    " A broker that cannot be reached may come; one that does not let us in ends the wait.",
)
@click.option("--all", "everyone", is_flag=True, help="Every broker of the cluster, a line for each.")
@common_options
@watchable("wait_s", "expect", "is_primary")
@click.pass_context
def status(
    context: click.Context, expect: tuple[str, ...], is_primary: bool, wait_s: float | None, everyone: bool
) -> None:
    """The state of the broker, on one line."""
    if bool(expect) + is_primary + everyone > 1:
        raise click.UsageError("--expect, --is-primary and --all are different questions: give one of them")
    invocation: Invocation = context.obj
    if everyone:
        if wait_s is not None:
            _await_state(invocation, (), wait_s)
        rows = status_rows(invocation)
        print_status_rows(rows, invocation.format)
        _print_problems(rows)
        if invocation.format == "table":
            _print_sets(invocation, rows)
        return
    wanted = ("primary",) if is_primary else expect
    if wait_s is not None:
        _await_state(invocation, wanted, wait_s)
        if wanted:
            return
    try:
        facts = facts_of(invocation.call("status"))
    except CliFailure as failure:
        if failure.exit_code == UNREACHABLE and not wanted and invocation.broker is None:
            _print_pause_noted_here()
        raise
    if wanted:
        context.exit(0 if facts.get("state") in wanted else NO)
    if invocation.format == "table":
        click.echo(_state_text(facts))
        if facts.get("observes"):
            click.echo(cell(f"{facts.get('name')}: it observes, because {facts['observes']}"), err=True)
        _print_problems([facts])
        _print_set_problems(facts)
    else:
        print_document(facts, invocation.format)


def print_status_rows(rows: Sequence[Mapping[str, Any]], format_name: str) -> None:
    """For people a broker that does not answer has the name that it had, and `in-sync` is unknown where it is; who said
    so, while nobody leads, goes to stderr."""
    if format_name != "table":
        print_document([dict(row) for row in rows], format_name)
        return
    shown = [
        {**row, "name": broker_label(row), "in-sync": row.get("in_sync_known", row.get("in_sync", ""))} for row in rows
    ]
    print_rows(shown, STATUS_COLUMNS, format_name)
    if rows and not any(row.get("state") in LEADING for row in rows):
        sources = dict.fromkeys(str(row["in_sync_by"]) for row in rows if row.get("in_sync_by"))
        for source in sources:
            click.echo(cell(f"in sync, as {source}"), err=True)


def broker_label(row: Mapping[str, Any]) -> str:
    """The name of the broker of a row; of one that does not answer, the one that it had, or else its address."""
    return str(row.get("name") or row.get("last_name") or row.get("address") or "")


def _print_problems(rows: Sequence[Mapping[str, Any]]) -> None:
    """On stderr: scripts read the state alone. A broker tells of its own only."""
    for row in rows:
        if row.get("problem"):
            click.echo(completed(cell(f"{row.get('name')}: {row['problem']}")), err=True)
        if row.get("store_problem"):
            text = f"its store cannot be written for {_period(row.get('unwritable_s'))}: {row['store_problem']}"
            click.echo(completed(cell(f"{row.get('name')}: {text}")), err=True)
        silent_s = row.get("agent_silent_s")
        if isinstance(silent_s, int | float) and silent_s > AGENT_SILENT_S:
            text = f"its agent has not asked it for its status for {_period(silent_s)}: see `qpid-ha diagnose`"
            click.echo(completed(cell(f"{row.get('name')}: {text}")), err=True)
        if row.get("uncommitted_why"):
            text = f"nothing is committed for {_period(row.get('uncommitted_s'))}: {row['uncommitted_why']}"
            click.echo(completed(cell(f"{row.get('name')}: {text}")), err=True)
        if row.get("refused"):
            click.echo(
                completed(cell(f"{row.get('address')} is there and refuses this broker: {row.get('why')}")), err=True
            )
        if row.get("controller_problem"):
            click.echo(completed(cell(f"{row.get('name')}: {row['controller_problem']}")), err=True)
        if paused := pause_text(row):
            click.echo(completed(cell(paused)), err=True)


def _period(seconds: object) -> str:
    """As a broker tells it; one of another version may not."""
    return format_period(seconds) if isinstance(seconds, int | float) else "a while"


def _print_set_problems(facts: Mapping[str, Any]) -> None:
    """What a cluster of many resource sets wants, as far as this broker knows; on stderr."""
    without = facts.get("sets_without_primary") or []
    if without:
        some = f"{', '.join(without[:NAMED_SETS])}{', ...' if len(without) > NAMED_SETS else ''}"
        text = (
            f"{len(without)} of {facts.get('sets')} resource sets have no primary ({some}): see `qpid-ha status --all`"
        )
        click.echo(completed(cell(text)), err=True)
    for group in facts.get("groups") or []:
        why = group.get("transport_problem") or group.get("record_problem") or group.get("store_problem")
        role = f"{group.get('role')} for {_period(group.get('for_s'))}"
        texts = [f"{role} ({group.get('reason')})", *([why] if why else [])]
        texts += [f"{queue.get('owner')} keeps {queue.get('queue')}" for queue in group.get("stuck_queues") or []]
        click.echo(completed(cell(f"its part in the group {group.get('set')}: {'; '.join(texts)}")), err=True)
    if facts.get("draining"):
        name = facts.get("name")
        click.echo(
            completed(cell(f"{name} is drained: it gets no replicas until somebody says `qpid-ha undrain {name}`")),
            err=True,
        )


def _print_sets(invocation: Invocation, rows: Sequence[Mapping[str, Any]]) -> None:
    """Sets beside `default`, if there are any, and a controller that tells of them in time; else why not."""
    asked = replace(invocation, timeout_s=invocation.timeout_s or SETS_TIMEOUT_S)
    try:
        print_sets(rows_of(asked.call("sets", action="list")))
    except CliFailure as failure:
        if any(row.get("sets") for row in rows):
            click.echo(cell(f"how the resource sets are is not known: {failure.message}"), err=True)


def pause_text(row: Mapping[str, Any]) -> str:
    """Why nobody is promoted or restarted now, as the broker of this row knows it; empty: nobody has paused that."""
    paused = row.get("paused")
    if not isinstance(paused, Mapping):
        return ""
    until = paused.get("until") or "somebody says `qpid-ha resume`"
    reason = f": {paused['reason']}" if paused.get("reason") else ""
    return (
        f"paused by {paused.get('by')} since {paused.get('since')} until {completed(until)}{reason}; "
        "meanwhile no agent promotes, restarts or kills a broker"
    )


def _print_pause_noted_here() -> None:
    """Why nobody starts the broker of this machine, which is dead; on stderr."""
    from qpid_ha_agent.cli.pause_note import pause_noted_here

    pause = pause_noted_here()
    if pause is not None:
        click.echo(cell(pause_text({"paused": pause.as_mapping()})), err=True)


def _state_text(facts: Mapping[str, Any]) -> str:
    state = str(facts.get("state"))
    if state != State.LOADING:
        return state
    return f"{state} {format_progress(int(facts.get('loaded_bytes', 0)), int(facts.get('store_bytes', 0)))}"


def _await_state(invocation: Invocation, wanted: tuple[str, ...], wait_s: float) -> None:
    """Come back when the broker is in one of those; if there are none, when it answers. Raises CliFailure: after
    `wait_s`, or for what no waiting mends."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            facts = facts_of(invocation.call("status"))
        except CliFailure as failure:
            if failure.exit_code != UNREACHABLE or time.monotonic() >= deadline_s:
                raise
        else:
            if not wanted or facts.get("state") in wanted:
                return
            if time.monotonic() >= deadline_s:
                state = f"{facts.get('state')}, not {' or '.join(wanted)}"
                raise CliFailure(f"{facts.get('name')} is {state}, after {wait_s:g} s", NO)
        time.sleep(min(WAIT_STEP_S, max(0.0, deadline_s - time.monotonic())))


def status_rows(invocation: Invocation) -> list[dict[str, Any]]:
    """Every broker of the cluster as the asked one sees it; one that says nothing is unreachable."""
    rows = _of_all(invocation, "status")
    return [row if row.get("state") else {**row, "state": UNREACHABLE_STATE} for row in rows]


def _of_all(invocation: Invocation, method: str) -> list[dict[str, Any]]:
    """Where the broker of this machine does not answer, the first of its `ha.brokers-url` that does is asked."""
    try:
        return _ask_for_all(invocation, method)
    except CliFailure as failure:
        if failure.exit_code != UNREACHABLE or invocation.broker is not None:
            raise
        return _ask_elsewhere_for_all(invocation, method, failure)


def _ask_for_all(invocation: Invocation, method: str) -> list[dict[str, Any]]:
    """A standalone broker is all there is."""
    own = facts_of(invocation.call("status"))
    if own.get("state") == "standalone":
        return [own if method == "status" else facts_of(invocation.call(method))]
    return rows_of(invocation.call(method, all=True))


def _ask_elsewhere_for_all(invocation: Invocation, method: str, failure: CliFailure) -> list[dict[str, Any]]:
    """`failure` is why the broker of this machine was not asked; raised if no other one answers either."""
    from qpid_ha_agent.login import listed_brokers

    for broker in listed_brokers(os.environ):
        elsewhere = replace(invocation, broker=str(broker), timeout_s=invocation.timeout_s or ELSEWHERE_TIMEOUT_S)
        with suppress(CliFailure):
            rows = _ask_for_all(elsewhere, method)
            click.echo(f"{failure.message}; this is what the broker at {broker} sees", err=True)
            return rows
    raise failure


@click.command()
@click.option("--all", "everyone", is_flag=True, help="Every broker of the cluster, a column for each.")
@common_options
@watchable()
@click.pass_obj
def query(invocation: Invocation, everyone: bool) -> None:
    """Facts and figures of the broker."""
    if not everyone:
        print_facts(facts_of(invocation.call("query")), invocation.format)
        return
    rows = _of_all(invocation, "query")
    if invocation.format != "table":
        print_document(rows, invocation.format)
        return
    print_comparison({broker_label(row) or str(number): row for number, row in enumerate(rows)})


@click.command()
@click.option(
    "--force", is_flag=True, help="Even if confirmed messages may be lost. It is logged, and kept in the log."
)
@yes_option
@common_options
@click.pass_obj
def promote(invocation: Invocation, force: bool, is_sure: bool) -> None:
    """Make the broker the primary. A live primary is asked to hand over first."""
    if force:

        def look() -> str:
            given_up = what_force_gives_up(facts_of(invocation.call("status")), _of_all(invocation, "status"))
            return f"{'. '.join(given_up) or 'No other broker is known to have more'}."

        ask_first(known_before(look, is_sure), "Promote this broker all the same?", is_sure=is_sure)
    cause = f"{PROMOTED_BY}{operator_text()}"
    _say(invocation, invocation.call("promote", usual_timeout_s=CHANGE_TIMEOUT_S, force=force, cause=cause))


def what_force_gives_up(own: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What may be lost if the broker of the row `own` leads against the verdict, a sentence for each other broker."""
    sentences = []
    for row in rows:
        name, address = row.get("name"), row.get("address")
        if name == own.get("name"):
            continue
        if name is None:
            label = f"{row['last_name']} at {address}" if row.get("last_name") else address
            sentences.append(f"{label} does not answer: what it alone has confirmed is given up")
        elif (row.get("generation") or 0, row.get("lsn") or 0) > (own.get("generation") or 0, own.get("lsn") or 0):
            at = f"generation {row.get('generation')}, position {row.get('lsn')}"
            here = f"generation {own.get('generation')}, position {own.get('lsn')}"
            sentences.append(f"{name} is at {at}, this broker at {here}: what lies between is given up")
    return sentences


@click.command()
@common_options
@click.pass_obj
def demote(invocation: Invocation) -> None:
    """Make the primary a backup; it keeps running and follows the next one."""
    cause = f"demoted by {operator_text()}"
    _say(invocation, invocation.call("demote", usual_timeout_s=CHANGE_TIMEOUT_S, cause=cause))


@click.command()
@click.argument("to", required=False)
@common_options
@click.pass_obj
def switchover(invocation: Invocation, to: str | None) -> None:
    """Let the primary hand over to broker TO, or to the best backup: nothing is lost."""
    cause = f"a switchover by {operator_text()}"
    _say(invocation, invocation.call("switchover", usual_timeout_s=CHANGE_TIMEOUT_S, to=to, cause=cause))


@click.command()
@common_options
@watchable()
@click.pass_obj
def backups(invocation: Invocation) -> None:
    """The backups of the primary, and how far each is behind."""
    print_rows(rows_of(invocation.call("backups")), BACKUP_COLUMNS, invocation.format)


@click.command()
@click.argument("about", metavar="[SET|BROKER]", required=False)
@click.option("--sets", is_flag=True, help="Of all resource sets and brokers.")
@common_options
@click.pass_obj
def history(invocation: Invocation, about: str | None, sets: bool) -> None:
    """Who was primary since when, and why.

    With --sets, or the name of a resource set or of a broker: what the controller has done about them, and why. It
    begins with the controller: what the one before it did is in that broker's log, in lines of `controller`.
    """
    if sets or about:
        rows = rows_of(invocation.call("history", sets=sets or None, about=about))
        if invocation.format == "table":
            rows = [{**row, "at": utc_time(row.get("at_ms"))} for row in rows]
        print_rows(rows, SETS_HISTORY_COLUMNS, invocation.format)
        return
    rows = rows_of(invocation.call("history"))
    if invocation.format == "table":
        rows = [{**row, "started": utc_time(row.get("started_at_ms"))} for row in rows]
    print_rows(rows, HISTORY_COLUMNS, invocation.format)


@click.command()
@click.argument("queue", required=False)
@click.argument("remote_broker", metavar="REMOTE-BROKER", required=False)
@click.option("--stop", is_flag=True, help="End the copy of QUEUE; it stays as a normal queue.")
@common_options
@watchable("queue", "stop")
@click.pass_obj
def replicate(invocation: Invocation, queue: str | None, remote_broker: str | None, stop: bool) -> None:
    """Keep a copy here of QUEUE of another cluster, whose addresses are REMOTE-BROKER. Alone: show all copies.

    The addresses have to be in remote-brokers of the broker's configuration, which also says who it is there.
    """
    if queue is None:
        if stop:
            raise click.UsageError("--stop which copy? Name the queue")
        print_rows(rows_of(invocation.call("replicate")), COPY_COLUMNS, invocation.format)
    elif stop == (remote_broker is not None):
        raise click.UsageError("give either the address of the other cluster, or --stop")
    else:
        usual_timeout_s = CHANGE_TIMEOUT_S
        given = {"queue": queue, "address": remote_broker, "stop": stop or None}
        _say(invocation, invocation.call("replicate", usual_timeout_s=usual_timeout_s, **given))


@click.command("remote-nodes")
@common_options
@watchable()
@click.pass_obj
def remote_nodes(invocation: Invocation) -> None:
    """The nodes of other brokers that clients find here, by configuration or declaration, and how they are."""
    print_rows(rows_of(invocation.call("remote-nodes")), REMOTE_NODE_COLUMNS, invocation.format)


@click.command()
@click.option("--cluster", is_flag=True, help="All brokers: level, and their stores marked as closed together.")
@yes_option
@common_options
@click.pass_obj
def shutdown(invocation: Invocation, cluster: bool, is_sure: bool) -> None:
    """End the broker in good order; with --cluster, asked of the primary, the whole cluster."""
    if cluster:
        ask_first("No broker of the cluster serves clients then.", "End all of them?", is_sure=is_sure)
    _say(invocation, invocation.call("shutdown", usual_timeout_s=CHANGE_TIMEOUT_S, cluster=cluster or None))


@click.command()
@click.option("--match", metavar="PATTERN", help="Events whose subject is like it, such as 'queue.*' or '#' for all.")
@click.option("--count", type=click.IntRange(0), help="At most so many of the last ones; left out: all that are kept.")
@click.option("--follow", is_flag=True, help="Go on with what happens from now on, until you interrupt it.")
@common_options
@click.pass_obj
def events(invocation: Invocation, match: str | None, count: int | None, follow: bool) -> None:
    """What has happened at the broker: to queues, exchanges, bindings, connections, its state, in-sync sets, alarms.

    Without --match, --count and --follow: changes of its state and of its primary, as they happen, until you interrupt
    it. With one of them: the last events of the kinds that are asked for. docs/monitoring.md has all kinds.
    """
    if match is None and count is None and not follow:
        with suppress(KeyboardInterrupt):
            for event in invocation.stream("events"):
                _print_event(event, invocation.format)
        return
    params: dict[str, Any] = {"match": match or "#", "count": count}
    if not follow:
        for event in invocation.call("events", **params):
            _print_event(event, invocation.format)
        return
    with suppress(KeyboardInterrupt):
        answered = invocation.stream("events", **params, follow=True)
        for event in next(answered):
            _print_event(event, invocation.format)
        for event in answered:
            _print_event(event, invocation.format)


commands: tuple[click.Command, ...] = (
    status,
    query,
    promote,
    demote,
    switchover,
    backups,
    history,
    replicate,
    remote_nodes,
    shutdown,
    events,
)


def operator_text() -> str:
    """Who types this, and where, for the broker's log: with sudo, who called it."""
    import getpass
    import socket

    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # an id that this machine has no name for
        user = f"uid {os.getuid()}"
    return f"{user[:60]} on {socket.gethostname()[:60]}"


def _say(invocation: Invocation, answer: object) -> None:
    """What came of a command: in a sentence if the broker has one, else as facts."""
    if invocation.format != "table":
        print_document(answer, invocation.format)
        return
    if isinstance(answer, Mapping):
        facts = {name: value for name, value in answer.items() if name not in ("text", "notes")}
        if answer.get("text"):
            click.echo(completed(cell(answer["text"])))
        elif facts:
            print_facts(facts, invocation.format)
        print_notes(answer)


def _print_event(event: object, format_name: str) -> None:
    """On one line in JSON too: whoever reads this reads line by line."""
    if format_name == "json":
        click.echo(json.dumps(event, ensure_ascii=False))
    elif format_name == "yaml":
        click.echo("---")
        print_document(event, format_name)
    elif isinstance(event, Mapping):
        click.echo(f"{utc_time(event.get('at_ms', time.time() * 1000))} {_event_text(event)}")
    else:
        click.echo(cell(event))


def _event_text(event: Mapping[str, object]) -> str:
    """A change of state in a few words; programs, and people who want all of it, take JSON."""
    name, before, after = (cell(event.get(field)) for field in ("name", "before", "after"))
    if "subject" in event:
        facts = {fact: value for fact, value in event.items() if fact not in ("at_ms", "subject", "number", "broker")}
        return f"{cell(event['subject'])} {cell(facts)}"
    if "before" in event and "after" in event:
        return f"{name}: {before} -> {after} ({cell(event.get('reason'))})"
    if event.get("event") == "primary":
        return f"{name}: the primary is {cell(event.get('primary') or 'not known')}"
    return cell({fact: value for fact, value in event.items() if fact not in ("at_ms", "members", "epoch")})
