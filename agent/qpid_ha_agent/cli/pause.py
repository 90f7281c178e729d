"""`qpid-ha pause` and `resume`: for maintenance, all agents of a cluster leave their brokers alone."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qpid_ha_agent.cli.cluster import operator_text, pause_text
from qpid_ha_agent.cli.invocation import NO, UNREACHABLE, USAGE, CliFailure, Invocation, common_options
from qpid_ha_agent.cli.output import cell, print_document
from qpid_ha_agent.cli.parameters import duration
from qpid_ha_agent.cli.pause_note import find_coordinator

if TYPE_CHECKING:
    from qpid_ha_broker.coordination.pause import Pause

HEEDED_AFTER_S = 1.0
"""Agents that work have heard of it by then, so whoever waits for this command may pull a plug."""
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration of a broker of the cluster.  [default: the one of this machine]",
)


@click.command()
@click.option("--for", "length_s", type=duration, metavar="DURATION", help="End by itself after so long, such as 2h.")
@click.option(
    "--until",
    "end",
    metavar="TIME",
    help="End by itself at 17:30, at '2026-03-01 17:30', or at 2026-03-01T16:30Z; without a zone it is local time.",
)
@click.option("--reason", default="", metavar="TEXT", help="Shown to whoever asks for the status.")
@config_option
@common_options
@click.pass_obj
def pause(invocation: Invocation, length_s: float | None, end: str | None, reason: str, config: Path | None) -> None:
    """Let no agent of the cluster promote, kill, restart or hand over by itself.

    For maintenance: brokers go on serving, and what operators do (promote, switchover, starting and stopping agents)
    works as ever. A primary that dies meanwhile is not replaced. The coordinator keeps it, so it outlives agents and
    machines. Without --for or --until it lasts until `qpid-ha resume`; again, it replaces what was said before.
    Each machine judges the end by its own clock. When the command is done, all agents that work have heard of it.
    """
    from qpid_ha_broker.coordination.pause import Pause, encode_pause

    invocation.config = str(config or "")
    if length_s is not None and end is not None:
        raise click.UsageError("--for and --until are two ways to say when it ends: give one of them")
    now = datetime.now(UTC)
    until = _read_time(end, now) if end is not None else None
    if length_s is not None:
        until = now + timedelta(seconds=length_s)
    if until is not None and until <= now:
        raise CliFailure(f"it would end at {until:%Y-%m-%d %H:%M:%S} UTC, which is over", USAGE)
    since, until = now.replace(microsecond=0), until and _next_second(until)
    wanted = Pause(operator_text(), since, until, reason)
    try:
        note = encode_pause(wanted)
    except ValueError as error:
        raise CliFailure(str(error), USAGE) from None
    _replace(invocation, config, note)
    time.sleep(HEEDED_AFTER_S)
    _say(invocation, wanted)


@click.command()
@config_option
@common_options
@click.pass_obj
def resume(invocation: Invocation, config: Path | None) -> None:
    """Let agents do their work again, after `qpid-ha pause`."""
    invocation.config = str(config or "")
    before = _replace(invocation, config, "")
    if invocation.format != "table":
        print_document({"paused": None, "was": None if before is None else before.as_mapping()}, invocation.format)
    elif before is None:
        click.echo("it was not paused")
    else:
        click.echo(cell(f"agents go on; it was {before.text}"))


def _say(invocation: Invocation, pause: Pause) -> None:
    facts = {"paused": pause.as_mapping()}
    if invocation.format != "table":
        print_document(facts, invocation.format)
    else:
        click.echo(cell(pause_text(facts)))


def _next_second(at: datetime) -> datetime:
    """The note has whole ones, and a pause shall not be shorter than it was to be."""
    whole = at.replace(microsecond=0)
    return whole if whole == at else whole + timedelta(seconds=1)


def _read_time(text: str, now: datetime) -> datetime:
    """A time of day is the next one. Raises CliFailure."""
    try:
        if len(text) <= len("17:30:00") and ":" in text:
            at = datetime.combine(now.astimezone(), time_of_day.fromisoformat(text)).astimezone()
            return (at if at > now else at + timedelta(days=1)).astimezone(UTC)
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        examples = "write 17:30, '2026-03-01 17:30', or 2026-03-01T16:30Z"
        raise CliFailure(f"--until: {text!r:.80} is no time; {examples}", USAGE) from None


def _replace(invocation: Invocation, config: Path | None, note: str) -> Pause | None:
    """Write the note; what it was. Raises CliFailure."""
    from qpid_ha_broker.coordination.coordinator import CoordinatorError
    from qpid_ha_broker.coordination.pause_change import PauseContended, replace_pause
    from qpid_ha_broker.coordination.registry import open_coordinator
    from qpid_ha_config.errors import SettingsError

    if invocation.broker is not None:
        raise click.UsageError("the coordinator keeps a pause, no broker does: leave -b out, see --config")
    try:
        with closing(open_coordinator(find_coordinator(config))) as coordinator:
            return replace_pause(coordinator, note)
    except PauseContended as error:
        raise CliFailure(str(error), NO) from None
    except SettingsError as error:
        raise CliFailure(str(error), USAGE) from None
    except CoordinatorError as error:
        raise CliFailure(str(error), UNREACHABLE) from None
