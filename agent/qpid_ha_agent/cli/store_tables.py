"""How stores and verdicts over them are printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from qpid_ha_agent.cli.invocation import completed_commands
from qpid_ha_agent.cli.output import print_document, print_rows, utc_time
from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.store.best import Admin, Equal, Verdict, Winner
from qpid_ha_broker.store.best_sets import Nothing, SetVerdict
from qpid_ha_broker.store.facts import StoreFacts, set_of

BEST_COLUMNS = ("broker", "is", "generation", "lsn", "epoch", "in-sync", "state", "why")


def row_of(facts: StoreFacts) -> dict[str, Any]:
    """A line about a store."""
    written = utc_time(facts.modified_ms)
    return {
        "store": facts.where, "set": set_of(facts), "broker": facts.broker or "-", "state": _state(facts),
        "generation": facts.generation,
        "lsn": facts.last_lsn, "epoch": facts.epoch, "in-sync": ", ".join(facts.members) or "-",
        "messages": facts.messages, "bytes": facts.bytes, "written": written,
    }  # fmt: skip


def _state(facts: StoreFacts) -> str:
    if facts.is_running:
        return "running"
    if not facts.is_readable:
        return str(facts.integrity)
    if facts.is_empty:
        return "empty"
    state = f"clean {facts.clean}" if facts.clean else "dirty"
    return state if facts.integrity == "ok" else f"{state}, {facts.integrity}"


def print_verdict(set_verdict: SetVerdict, stores: Sequence[StoreFacts], format_name: str) -> None:
    """What was found, why, and what to do next."""
    if format_name != "table":
        print_document(verdict_document(set_verdict), format_name)
        return
    verdict = set_verdict.verdict
    rows = {store.where: row_of(store) for store in stores}
    lines = [
        {**rows.get(reason.where, {}), "broker": reason.broker, "is": str(reason.standing), "why": reason.text}
        for reason in verdict.reasons
    ]
    print_rows(lines, BEST_COLUMNS, format_name)
    click.echo("")
    if set_verdict.record is not None:
        click.echo(_record_text(set_verdict.record, set_verdict))
    match verdict:
        case Nothing():
            click.echo(f"NOTHING: {verdict.text}")
        case Winner():
            click.echo(f"WINNER: {verdict.store.label}. {verdict.text}")
            print_commands("Next:", verdict.next_commands)
        case Equal():
            click.echo(f"EQUAL: {', '.join(store.label for store in verdict.stores)}. {verdict.text}")
            print_commands("Next:", verdict.next_commands)
        case Admin():
            click.echo(f"ADMIN: {verdict.question}")
            for number, option in enumerate(verdict.options, start=1):
                print_commands(f"{number}. {option.text}:", option.commands)


def print_commands(heading: str, commands: Sequence[str]) -> None:
    """To be copied."""
    click.echo(heading)
    for command in completed_commands(commands):
        click.echo(f"  {command}")


def _record_text(record: SetRecorded, verdict: SetVerdict) -> str:
    """What the cluster map says of a set, and whether the best copy is one of those."""
    if not record.generation:
        return "RECORD: in the cluster map: it was never led."
    text = f"RECORD: in the cluster map: generation {record.generation}, epoch {record.epoch}, led by {record.primary}"
    whether = (
        "" if verdict.best is None else f"; {verdict.best.label} is {'' if verdict.is_recorded else 'not '}one of those"
    )
    return f"{text}; in sync {', '.join(record.members)}{whether}."


def facts_document(facts: StoreFacts) -> dict[str, Any]:
    """Of one store, without what it tells of other sets."""
    return {name: value for name, value in facts.to_json().items() if name != "set_records"}


def verdict_document(verdict: SetVerdict) -> dict[str, Any]:
    """The verdict as JSON and YAML have it; of a set in the cluster map with its record."""
    document = _document(verdict.verdict)
    if verdict.record is None:
        return document
    record = {**verdict.record._asdict(), "members": list(verdict.record.members)}
    return {**document, "record": record, "recorded": verdict.is_recorded}


def _document(verdict: Verdict | Nothing) -> dict[str, Any]:
    reasons = [{**reason._asdict(), "standing": str(reason.standing)} for reason in verdict.reasons]
    match verdict:
        case Nothing():
            return {"verdict": "nothing", "text": verdict.text, "reasons": reasons}
        case Winner():
            given = {"verdict": "winner", "store": facts_document(verdict.store), "safe": verdict.is_safe}
            return {
                **given,
                "text": verdict.text,
                "reasons": reasons,
                "next": completed_commands(verdict.next_commands),
            }
        case Equal():
            given = {"verdict": "equal", "stores": [facts_document(store) for store in verdict.stores], "safe": True}
            return {
                **given,
                "text": verdict.text,
                "reasons": reasons,
                "next": completed_commands(verdict.next_commands),
            }
        case Admin():
            options = [
                {"text": option.text, "commands": completed_commands(option.commands)} for option in verdict.options
            ]
            given = {"verdict": "admin", "doubt": str(verdict.doubt), "question": verdict.question}
            return {**given, "reasons": reasons, "options": options, "missing": list(verdict.missing)}
