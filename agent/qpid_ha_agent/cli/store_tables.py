"""How stores and verdicts over them are printed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from qpid_ha_agent.cli.output import print_document, print_rows
from qpid_ha_broker.store.best import Admin, Equal, Verdict, Winner
from qpid_ha_broker.store.facts import StoreFacts, set_of

BEST_COLUMNS = ("broker", "is", "generation", "lsn", "epoch", "in-sync", "state", "why")


def row_of(facts: StoreFacts) -> dict[str, Any]:
    """A line about a store."""
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts.modified_ms / 1000)) if facts.modified_ms else "-"
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


def print_verdict(verdict: Verdict, stores: Sequence[StoreFacts], format_name: str) -> None:
    """What was found, why, and what to do next."""
    if format_name != "table":
        print_document(verdict_document(verdict), format_name)
        return
    rows = {each.where: row_of(each) for each in stores}
    lines = [
        {**rows.get(each.where, {}), "broker": each.broker, "is": str(each.standing), "why": each.text}
        for each in verdict.reasons
    ]
    print_rows(lines, BEST_COLUMNS, format_name)
    click.echo("")
    match verdict:
        case Winner():
            click.echo(f"WINNER: {verdict.store.label}. {verdict.text}")
            print_commands("Next:", verdict.next_commands)
        case Equal():
            click.echo(f"EQUAL: {', '.join(each.label for each in verdict.stores)}. {verdict.text}")
            print_commands("Next:", verdict.next_commands)
        case Admin():
            click.echo(f"ADMIN: {verdict.question}")
            for number, option in enumerate(verdict.options, start=1):
                print_commands(f"{number}. {option.text}:", option.commands)


def print_commands(heading: str, commands: Sequence[str]) -> None:
    """To be copied."""
    click.echo(heading)
    for command in commands:
        click.echo(f"  {command}")


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON and YAML have it."""
    reasons = [{**each._asdict(), "standing": str(each.standing)} for each in verdict.reasons]
    match verdict:
        case Winner():
            given = {"verdict": "winner", "store": verdict.store.to_json(), "safe": verdict.is_safe}
            return {**given, "text": verdict.text, "reasons": reasons, "next": list(verdict.next_commands)}
        case Equal():
            given = {"verdict": "equal", "stores": [each.to_json() for each in verdict.stores], "safe": True}
            return {**given, "text": verdict.text, "reasons": reasons, "next": list(verdict.next_commands)}
        case Admin():
            options = [{"text": each.text, "commands": list(each.commands)} for each in verdict.options]
            given = {"verdict": "admin", "doubt": str(verdict.doubt), "question": verdict.question}
            return {**given, "reasons": reasons, "options": options, "missing": list(verdict.missing)}
