"""`qpid-ha connections`: who is connected to which broker, what links wait for, and closing a connection."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import (
    NO,
    UNREACHABLE,
    CliFailure,
    Invocation,
    common_options,
    facts_of,
    rows_of,
)
from qpid_ha_agent.cli.output import cell, print_outcome, print_rows
from qpid_ha_agent.cli.refreshing import watchable
from qpid_ha_agent.control import INVALID_PARAMS

COLUMNS = ("broker", "id", "kind", "user", "address", "for_s", "links", "unsettled", "waits")
LINK_COLUMNS = ("broker", "id", "direction", "node", "credit", "unsettled", "waits_for")


class Shown(NamedTuple):
    """Connections, and why those of some brokers are not among them, or not all."""

    rows: list[dict[str, Any]]
    problems: list[str]
    is_older: bool = False
    """The broker knows of no others' connections."""


@click.group(cls=ListedGroup)
def connections() -> None:
    """Connections of clients and of other brokers to the brokers of a cluster."""


@connections.command("list")
@click.option("--links", "shows_links", is_flag=True, help="A line for each link, with what it waits for.")
@click.option("--node", metavar="NAME", help="Only what is attached to this queue or exchange.")
@click.option("--at", metavar="BROKER", help="Only those of this broker of the cluster; default: of all.")
@common_options
@watchable()
@click.pass_context
def list_connections(context: click.Context, shows_links: bool, node: str | None, at: str | None) -> None:
    """All connections, the oldest of each broker first: whose, since when, and what they wait for.

    Brokers that do not answer are named on stderr, and the exit code is 3.
    """
    invocation: Invocation = context.obj
    rows, problems, _ = _of_one(invocation, at) if at is not None else _of_all(invocation)
    if node is not None:
        rows = [{**row, "links": links} for row in rows if (links := [x for x in row["links"] if x["node"] == node])]
    if invocation.format != "table":
        print_rows(rows, COLUMNS, invocation.format)
    elif shows_links:
        links = [_link(row, link) for row in rows for link in row["links"]]
        extra = tuple(name for name in ("relayed_for", "relayed_to") if any(link[name] for link in links))
        print_rows(links, LINK_COLUMNS + extra, invocation.format)
    else:
        print_rows([_summary(row, time.time()) for row in rows], COLUMNS, invocation.format)
    for problem in problems:
        click.echo(cell(problem), err=True)
    if problems:
        context.exit(UNREACHABLE)


def _of_one(invocation: Invocation, broker: str) -> Shown:
    rows = rows_of(invocation.call("connections", action="list", broker=broker))
    return Shown([{"broker": broker, **row} for row in rows], [])


def _of_all(invocation: Invocation) -> Shown:
    try:
        answer = facts_of(invocation.call("connections", action="list", all=True))
    except CliFailure as failure:
        if failure.code != INVALID_PARAMS:
            raise
        rows = rows_of(invocation.call("connections", action="list"))
        return Shown(rows, ["this broker is of an older version, and tells of its own connections alone"], True)
    rows, silent = rows_of(answer.get("connections")), rows_of(answer.get("silent"))
    return Shown(rows, [f"the broker at {row.get('address')}: {row.get('problem')}" for row in silent])


def _link(row: dict[str, Any], link: dict[str, Any]) -> dict[str, Any]:
    return {"broker": row.get("broker", ""), "id": row["id"], **link}


def _summary(row: dict[str, Any], now_s: float) -> dict[str, Any]:
    """With how many links there are, and each thing once that one of them waits for."""
    waits = dict.fromkeys(link["waits_for"] for link in row["links"] if link["waits_for"])
    for_s = max(round(now_s - row["since_ms"] / 1000), 0)
    return {**row, "for_s": for_s, "links": len(row["links"]), "waits": list(waits)}


@connections.command()
@click.argument("place", metavar="[BROKER/]ID")
@click.option("--reason", metavar="TEXT", help="What its client is told.")
@common_options
@click.pass_obj
def close(invocation: Invocation, place: str, reason: str | None) -> None:
    """Close a connection: what its client holds goes back to its queues. The client may connect again.

    The numbers are those of each broker: BROKER may be left out where one broker alone has a connection ID.
    """
    broker, _, text = place.rpartition("/")
    if not text.isascii() or not text.isdecimal() or int(text) == 0:
        raise click.UsageError(f"{place} is no connection: give its number, or BROKER/NUMBER, as in node1/17")
    number = int(text)
    at = broker or _broker_of(invocation, number)
    answer = facts_of(invocation.call("connections", action="close", id=number, reason=reason, broker=at))
    where = f" at {answer['broker']}" if "broker" in answer else ""
    print_outcome(answer, f"connection {number} of {answer.get('address')}{where} closed", invocation.format)


def _broker_of(invocation: Invocation, number: int) -> str | None:
    """The broker that has a connection of this number; None: the one that is asked knows of no others."""
    shown = _of_all(invocation)
    if shown.is_older:
        return None
    rows = [row for row in shown.rows if row["id"] == number]
    if len(rows) == 1:
        return str(rows[0]["broker"])
    if rows:
        where = " and ".join(f"{row['broker']} ({row['kind']} of {row['address']})" for row in rows)
        text = f"there is a connection {number} at {where}: say which, as in {rows[0]['broker']}/{number}"
        raise CliFailure(text, NO)
    silent = "".join(f"; {problem}" for problem in shown.problems)
    raise CliFailure(f"there is no connection {number}: `qpid-ha connections list` shows them{silent}", NO)
