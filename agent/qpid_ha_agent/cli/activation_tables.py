"""How the activation sequence is printed: within 80 columns, reasons in lines of their own."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from qpid_ha_agent.cli.invocation import completed, completed_commands
from qpid_ha_agent.cli.output import cell, print_document, print_rows, utc_time
from qpid_ha_broker.coordination.changes import RecordChange
from qpid_ha_broker.diagnosis.activation import ActivationFacts, Assessment, NextStep, Standpoint, promote_command
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.store.facts import StoreFacts

COLUMNS = ("broker", "state", "generation", "epoch", "claimed", "recorded", "may-lead")
WIDTH = 80


class SetOutcome(NamedTuple):
    """What came of `activation set`."""

    change: RecordChange
    objections: Sequence[str]
    is_done: bool
    after: Assessment
    """Who may lead by the new record."""
    stores: Sequence[StoreFacts]


def print_assessment(
    url: str, facts: ActivationFacts, assessment: Assessment, changes: Sequence[RecordChange], format_name: str
) -> None:
    """Everything that `activation list` has found."""
    if format_name != "table":
        print_document(_document(url, facts, assessment, changes), format_name)
        return
    _say(f"coordinator {url}: {_coordinator_text(facts)}")
    click.echo("")
    print_rows([_row_of(standpoint) for standpoint in assessment.standpoints], COLUMNS, "table")
    click.echo("")
    for standpoint in assessment.standpoints:
        _say(completed(f"{standpoint.name} may {'' if standpoint.may_lead else 'not '}lead: {standpoint.why}"))
    if assessment.next_step is not None:
        click.echo("")
        _print_next(assessment.next_step)
    if changes:
        click.echo("\nSet by hand:")
    for change in changes:
        _say(_change_text(change))


def print_set(outcome: SetOutcome, format_name: str) -> None:
    """What was set, or would be, and what comes next."""
    change, leaders = outcome.change, outcome.after.leaders
    then = completed_commands(_then(outcome))
    if format_name != "table":
        document = {
            "done": outcome.is_done, "change": change.to_json(), "objections": list(outcome.objections),
            "may_lead": list(leaders), "next": list(then),
        }  # fmt: skip
        print_document(document, format_name)
        return
    for objection in outcome.objections:
        _say(f"objection: {objection}")
    if change.before == change.after:
        _say(f"the record says so already: {record_text(change.after)}")
    else:
        _say(f"{'the record was' if outcome.is_done else 'the record is'}: {record_text(change.before)}")
        _say(f"{'it is now' if outcome.is_done else 'it would be'}: {record_text(change.after)}")
    _say(f"with that may lead: {', '.join(leaders) or 'nobody of those that were looked at'}")
    if outcome.after.primary:
        _say(f"{outcome.after.primary} is primary: there is nothing left to do")
        return
    click.echo("Then:")
    for command in then:
        click.echo(f"  {command}")


def _then(outcome: SetOutcome) -> tuple[str, ...]:
    if outcome.after.primary:
        return ()
    members = outcome.change.after.members
    leaders = [store for store in outcome.stores if store.broker in outcome.after.leaders and store.broker in members]
    if leaders:
        furthest = max(leaders, key=lambda store: store.position)
        return (promote_command(furthest),)
    return ("qpid-ha activation list   # with all stores: it says what is still in the way",)


def record_text(record: ClusterRecord) -> str:
    """What a record says."""
    if not record.generation:
        return "empty"
    state = "claimed, not begun" if record.claimed else "committed"
    members = ", ".join(record.members)
    return f"generation {record.generation}, epoch {record.epoch}, {state}; led by {record.primary}; in sync {members}"


def _coordinator_text(facts: ActivationFacts) -> str:
    if not facts.has_coordinator:
        return "what is known is in the brokers' logs"
    return "cannot be read" if facts.record is None else record_text(facts.record)


def _row_of(standpoint: Standpoint) -> dict[str, Any]:
    claimed = f"{standpoint.claimed} {standpoint.claimed_by}".rstrip() if standpoint.claimed else "-"
    return {"broker": standpoint.name, "state": standpoint.state or "-", "generation": standpoint.generation,
            "epoch": standpoint.epoch, "claimed": claimed, "recorded": standpoint.is_recorded,
            "may-lead": standpoint.may_lead}  # fmt: skip


def _print_next(step: NextStep) -> None:
    _say(f"Nobody may lead. {step.text}")
    click.echo("Next:")
    for command in completed_commands(step.commands):
        click.echo(f"  {command}")
    if step.instead:
        click.echo("If that is lost for good (what only it has is given up):")
    for command in completed_commands(step.instead):
        click.echo(f"  {command}")


def _change_text(change: RecordChange) -> str:
    at = utc_time(change.at_ms)
    forced = ", by force" if change.is_forced else ""
    why = f": {change.reason}" if change.reason else ""
    before, after = (
        f"generation {record.generation}, epoch {record.epoch} ({', '.join(record.members)})"
        if record.generation
        else "empty"
        for record in (change.before, change.after)
    )
    return f"{at} {change.operator}{forced}: {before} became {after}{why}"


def _say(text: str) -> None:
    """Wrapped; what others wrote must not steer the terminal."""
    click.echo(textwrap.fill(cell(text), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _document(
    url: str, facts: ActivationFacts, assessment: Assessment, changes: Sequence[RecordChange]
) -> dict[str, Any]:
    record, step = facts.record, assessment.next_step
    state = None if record is None else "claimed" if record.claimed else "committed" if record.generation else "empty"
    return {
        "coordinator": {
            "url": url, "state": state, "problem": facts.problem or None,
            "record": None if record is None else {**record._asdict(), "members": list(record.members)},
        },
        "brokers": [{**broker._asdict(), "members": list(broker.members)} for broker in assessment.standpoints],
        "may_lead": list(assessment.leaders),
        "missing": list(assessment.missing),
        "next": None if step is None else {
            "text": step.text, "commands": completed_commands(step.commands),
            "instead": completed_commands(step.instead),
        },
        "history": [change.to_json() for change in changes],
    }  # fmt: skip
