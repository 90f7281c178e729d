"""`qpid-ha session`: clients' sessions, which outlive their connections."""

from __future__ import annotations

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import Invocation, common_options, facts_of, unexpected
from qpid_ha_agent.cli.output import print_outcome, print_rows
from qpid_ha_agent.cli.refreshing import watchable

COLUMNS = ("session", "user", "state", "for_s", "timeout_s", "client", "broker", "held")


@click.group(cls=ListedGroup)
def session() -> None:
    """Sessions of clients, which outlive their connections."""


@session.command("list")
@common_options
@watchable()
@click.pass_obj
def list_sessions(invocation: Invocation) -> None:
    """All sessions: whose, since when they are attached or wait, at which broker, and how many messages they hold."""
    rows = invocation.call("sessions", action="list")
    if not isinstance(rows, list):
        raise unexpected(rows)
    print_rows(rows, COLUMNS, invocation.format)


@session.command()
@click.argument("name", metavar="SESSION")
@common_options
@click.pass_obj
def end(invocation: Invocation, name: str) -> None:
    """End a session, and its connection: what it holds goes to others.

    SESSION: as `list` shows it, or its UUID.
    """
    answer = facts_of(invocation.call("sessions", action="end", name=name))
    print_outcome(answer, f"session {answer.get('session')} ended", invocation.format)
