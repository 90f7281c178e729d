"""`qpid-ha watch`: a table of who is what, kept up to date."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from qpid_ha_agent.cli.cluster import BACKUP_COLUMNS, STATUS_COLUMNS, pause_text, status_rows
from qpid_ha_agent.cli.invocation import NO, CliFailure, Invocation, common_options, rows_of
from qpid_ha_agent.cli.output import cell, cells_of, print_document, print_rows, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_S = 0.5


class WatchView(NamedTuple):
    """What one look shows; `problem` is empty, or says why there is nothing in it."""

    brokers: list[dict[str, Any]]
    backups: list[dict[str, Any]]
    problem: str = ""


@click.command()
@click.option("--once", is_flag=True, help="Look once, print, end.")
@common_options
@click.pass_obj
def watch(invocation: Invocation, once: bool) -> None:
    """Who is what, and how far the backups are behind; refreshed until you interrupt it."""
    if once:
        _print(look(invocation), invocation.format)
        return
    if invocation.format != "table":
        raise click.UsageError("only a table can be kept up to date; for programs: qpid-ha events --format json")
    with suppress(KeyboardInterrupt):
        _keep_showing(invocation)


def look(invocation: Invocation) -> WatchView:
    """Ask the broker. Only a primary knows its backups, and is asked by others: without one there are none to show."""
    brokers = status_rows(invocation)
    try:
        return WatchView(brokers, rows_of(invocation.call("backups")))
    except CliFailure as failure:
        if failure.exit_code != NO:
            raise
        return WatchView(brokers, [])


def _keep_showing(invocation: Invocation) -> None:
    """A broker that cannot be reached may come back: that is when one watches."""
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        while True:
            try:
                view = look(invocation)
            except CliFailure as failure:
                view = WatchView([], [], failure.message)
            live.update(_rendered(view), refresh=True)
            time.sleep(REFRESH_S)


def _rendered(view: WatchView) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(time.strftime("%H:%M:%S"), style="dim")]
    if view.problem:
        parts.append(Text(view.problem, style="red"))
    for paused in filter(None, map(pause_text, view.brokers)):
        parts.append(Text(paused, style="yellow"))
    if view.brokers:
        parts.append(table_of(STATUS_COLUMNS, cells_of(view.brokers, STATUS_COLUMNS)))
    if view.backups:
        parts += [Text(""), table_of(BACKUP_COLUMNS, cells_of(view.backups, BACKUP_COLUMNS))]
    return Group(*parts)


def _print(view: WatchView, format_name: str) -> None:
    if format_name != "table":
        print_document({"brokers": view.brokers, "backups": view.backups}, format_name)
        return
    for paused in filter(None, map(pause_text, view.brokers)):
        click.echo(cell(paused))
    print_rows(view.brokers, STATUS_COLUMNS, format_name)
    if view.backups:
        click.echo()
        print_rows(view.backups, BACKUP_COLUMNS, format_name)
