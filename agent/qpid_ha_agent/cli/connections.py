"""`qpid-ha connections`: who is connected to a broker, what links wait for, and closing a connection."""

from __future__ import annotations

import time
from typing import Any

import click

from qpid_ha_agent.cli.invocation import Invocation, common_options, facts_of, rows_of
from qpid_ha_agent.cli.output import print_outcome, print_rows

COLUMNS = ("id", "kind", "user", "address", "for_s", "links", "unsettled", "waits_for")
LINK_COLUMNS = ("id", "direction", "node", "credit", "unsettled", "waits_for")


@click.group()
def connections() -> None:
    """Connections of clients and of other brokers to the broker."""


@connections.command("list")
@click.option("--links", "shows_links", is_flag=True, help="A line for each link, with what it waits for.")
@click.option("--node", metavar="NAME", help="Only what is attached to this queue or exchange.")
@common_options
@click.pass_obj
def list_connections(invocation: Invocation, shows_links: bool, node: str | None) -> None:
    """All connections of this broker, the oldest first: whose, since when, and what they wait for."""
    rows = rows_of(invocation.call("connections", action="list"))
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


def _link(row: dict[str, Any], link: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], **link}


def _summary(row: dict[str, Any], now_s: float) -> dict[str, Any]:
    """With how many links there are, and each thing once that one of them waits for."""
    waits = dict.fromkeys(link["waits_for"] for link in row["links"] if link["waits_for"])
    for_s = max(round(now_s - row["since_ms"] / 1000), 0)
    return {**row, "for_s": for_s, "links": len(row["links"]), "waits_for": list(waits)}


@connections.command()
@click.argument("number", type=click.IntRange(min=1), metavar="ID")
@click.option("--reason", metavar="TEXT", help="What its client is told.")
@common_options
@click.pass_obj
def close(invocation: Invocation, number: int, reason: str | None) -> None:
    """Close a connection: what its client holds goes back to its queues. The client may connect again."""
    answer = facts_of(invocation.call("connections", action="close", id=number, reason=reason))
    print_outcome(answer, f"connection {number} of {answer.get('address')} closed", invocation.format)
