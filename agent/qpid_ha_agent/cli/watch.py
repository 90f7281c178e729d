"""`qpid-ha watch`: a table of who is what, kept up to date."""

from __future__ import annotations

from typing import Any, NamedTuple

import click

from qpid_ha_agent.cli.cluster import BACKUP_COLUMNS, pause_text, print_status_rows, status_rows
from qpid_ha_agent.cli.invocation import NO, CliFailure, Invocation, common_options, rows_of
from qpid_ha_agent.cli.output import cell, print_document, print_rows
from qpid_ha_agent.cli.refreshing import INTERVAL_S, frame_of, interval_option, keep_showing


class WatchView(NamedTuple):
    """What one look shows."""

    brokers: list[dict[str, Any]]
    backups: list[dict[str, Any]]


@click.command()
@click.option("--once", is_flag=True, help="Look once, print, end.")
@interval_option
@common_options
@click.pass_obj
def watch(invocation: Invocation, once: bool, interval_s: float | None) -> None:
    """Who is what, and how far the backups are behind; refreshed until you interrupt it."""
    if once:
        _print(look(invocation), invocation.format)
        return
    if invocation.format != "table":
        raise click.UsageError("only a table can be kept up to date; for programs: qpid-ha events --format json")
    keep_showing(
        invocation, lambda: frame_of(lambda: _print(look(invocation), invocation.format)), interval_s or INTERVAL_S
    )


def look(invocation: Invocation) -> WatchView:
    """Ask the broker. Only a primary knows its backups, and is asked by others: without one there are none to show."""
    brokers = status_rows(invocation)
    try:
        return WatchView(brokers, rows_of(invocation.call("backups")))
    except CliFailure as failure:
        if failure.exit_code != NO:
            raise
        return WatchView(brokers, [])


def _print(view: WatchView, format_name: str) -> None:
    if format_name != "table":
        print_document({"brokers": view.brokers, "backups": view.backups}, format_name)
        return
    for paused in filter(None, map(pause_text, view.brokers)):
        click.echo(cell(paused))
    print_status_rows(view.brokers, format_name)
    if view.backups:
        click.echo()
        print_rows(view.backups, BACKUP_COLUMNS, format_name)
