"""`qpid-ha` about a cluster: who is what, who shall be primary, what backups hold, what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from qpid_ha_agent.cli.invocation import NO, Invocation, common_options, facts_of, rows_of
from qpid_ha_agent.cli.output import cell, print_comparison, print_document, print_facts, print_notes, print_rows

STATES = ("standalone", "connecting", "catchup", "ready", "primary", "stopping")
STATUS_COLUMNS = ("name", "address", "state", "phase", "generation", "lsn", "in-sync")
BACKUP_COLUMNS = ("name", "state", "in-sync", "lsn", "lag-messages", "lag-bytes", "lag-s")
HISTORY_COLUMNS = ("generation", "primary", "first-lsn", "started", "cause", "forced")
COPY_COLUMNS = ("queue", "from", "state", "primary", "messages", "lag-events", "problem")
UNREACHABLE_STATE = "unreachable"
CHANGE_TIMEOUT_S = 30.0
"""A change of primary waits for other brokers."""


@click.command()
@click.option("--expect", type=click.Choice(STATES), metavar="STATE", help="Say nothing; 0 if it is in STATE, else 1.")
@click.option("--is-primary", is_flag=True, help="Say nothing; 0 if it is the primary, else 1.")
@click.option("--all", "everyone", is_flag=True, help="Every broker of the cluster, a line for each.")
@common_options
@click.pass_context
def status(context: click.Context, expect: str | None, is_primary: bool, everyone: bool) -> None:
    """The state of the broker, on one line."""
    if (expect is not None) + is_primary + everyone > 1:
        raise click.UsageError("--expect, --is-primary and --all are different questions: give one of them")
    invocation: Invocation = context.obj
    if everyone:
        print_rows(status_rows(invocation), STATUS_COLUMNS, invocation.format)
        return
    facts = facts_of(invocation.call("status"))
    wanted = "primary" if is_primary else expect
    if wanted is not None:
        context.exit(0 if facts.get("state") == wanted else NO)
    if invocation.format == "table":
        click.echo(facts.get("state"))
    else:
        print_document(facts, invocation.format)


def status_rows(invocation: Invocation) -> list[dict[str, Any]]:
    """Every broker of the cluster as the asked one sees it; one that says nothing is unreachable."""
    rows = _of_all(invocation, "status")
    return [row if row.get("state") else {**row, "state": UNREACHABLE_STATE} for row in rows]


def _of_all(invocation: Invocation, method: str) -> list[dict[str, Any]]:
    """A standalone broker is all there is."""
    own = facts_of(invocation.call("status"))
    if own.get("state") == "standalone":
        return [own if method == "status" else facts_of(invocation.call(method))]
    return rows_of(invocation.call(method, all=True))


@click.command()
@click.option("--all", "everyone", is_flag=True, help="Every broker of the cluster, a column for each.")
@common_options
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
    print_comparison({str(row.get("name") or row.get("address") or number): row for number, row in enumerate(rows)})


@click.command()
@click.option(
    "--force", is_flag=True, help="Even if confirmed messages may be lost. It is logged, and kept in the log."
)
@common_options
@click.pass_obj
def promote(invocation: Invocation, force: bool) -> None:
    """Make the broker the primary. A live primary is asked to hand over first."""
    _say(invocation, invocation.call("promote", usual_timeout_s=CHANGE_TIMEOUT_S, force=force))


@click.command()
@common_options
@click.pass_obj
def demote(invocation: Invocation) -> None:
    """Make the primary a backup; it keeps running and follows the next one."""
    _say(invocation, invocation.call("demote", usual_timeout_s=CHANGE_TIMEOUT_S))


@click.command()
@click.argument("to", required=False)
@common_options
@click.pass_obj
def switchover(invocation: Invocation, to: str | None) -> None:
    """Let the primary hand over to broker TO, or to the best backup: nothing is lost."""
    _say(invocation, invocation.call("switchover", usual_timeout_s=CHANGE_TIMEOUT_S, to=to))


@click.command()
@common_options
@click.pass_obj
def backups(invocation: Invocation) -> None:
    """The backups of the primary, and how far each is behind."""
    print_rows(rows_of(invocation.call("backups")), BACKUP_COLUMNS, invocation.format)


@click.command()
@common_options
@click.pass_obj
def history(invocation: Invocation) -> None:
    """Who was primary since when, and why."""
    rows = rows_of(invocation.call("history"))
    if invocation.format == "table":
        rows = [{**row, "started": _local_time(row.get("started_at_ms"))} for row in rows]
    print_rows(rows, HISTORY_COLUMNS, invocation.format)


@click.command()
@click.argument("queue", required=False)
@click.argument("remote_broker", metavar="REMOTE-BROKER", required=False)
@click.option("--stop", is_flag=True, help="End the copy of QUEUE; it stays as a normal queue.")
@common_options
@click.pass_obj
def replicate(invocation: Invocation, queue: str | None, remote_broker: str | None, stop: bool) -> None:
    """Keep a copy here of QUEUE of another cluster, whose addresses are REMOTE-BROKER. Alone: show all copies."""
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


@click.command()
@click.option("--cluster", is_flag=True, help="All brokers: level, and their stores marked as closed together.")
@common_options
@click.pass_obj
def shutdown(invocation: Invocation, cluster: bool) -> None:
    """End the broker in good order; with --cluster, asked of the primary, the whole cluster."""
    _say(invocation, invocation.call("shutdown", usual_timeout_s=CHANGE_TIMEOUT_S, cluster=cluster or None))


@click.command()
@common_options
@click.pass_obj
def events(invocation: Invocation) -> None:
    """What happens to the broker, as it happens, until you interrupt it."""
    with suppress(KeyboardInterrupt):
        for event in invocation.stream("events"):
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
    shutdown,
    events,
)


def _say(invocation: Invocation, answer: object) -> None:
    """What came of a command: in a sentence if the broker has one, else as facts."""
    if invocation.format != "table":
        print_document(answer, invocation.format)
        return
    if isinstance(answer, Mapping):
        facts = {name: value for name, value in answer.items() if name not in ("text", "notes")}
        if answer.get("text"):
            click.echo(cell(answer["text"]))
        elif facts:
            print_facts(facts, invocation.format)
        print_notes(answer)


def _local_time(wall_ms: object) -> str:
    if not isinstance(wall_ms, int | float) or wall_ms <= 0:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ms / 1000))


def _print_event(event: object, format_name: str) -> None:
    """On one line in JSON too: whoever reads this reads line by line."""
    if format_name == "json":
        click.echo(json.dumps(event, ensure_ascii=False))
    elif format_name == "yaml":
        click.echo("---")
        print_document(event, format_name)
    elif isinstance(event, Mapping):
        click.echo(f"{_local_time(event.get('at_ms', time.time() * 1000))} {_event_text(event)}")
    else:
        click.echo(cell(event))


def _event_text(event: Mapping[str, object]) -> str:
    """A change of state in a few words; programs, and people who want all of it, take JSON."""
    name, before, after = (cell(event.get(each)) for each in ("name", "before", "after"))
    if "before" in event and "after" in event:
        return f"{name}: {before} -> {after} ({cell(event.get('reason'))})"
    if event.get("event") == "primary":
        return f"{name}: the primary is {cell(event.get('primary') or 'not known')}"
    return cell({fact: value for fact, value in event.items() if fact not in ("at_ms", "members", "epoch")})
