"""Resource sets and brokers as people read them: a table that fits 80 columns with three sets and with five hundred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from qpid_ha_agent.cli.output import cell, print_rows
from qpid_ha_broker.events.types import GROUP

SET_COLUMNS: Final = ("set", "primary", "in-sync", "state", "queues", "messages")
BROKER_COLUMNS: Final = ("name", "state", "zone", "primaries", "replicas", "address")
SUMMARY_COLUMNS: Final = ("primary", "sets", "queues", "messages")
WHOLE: Final = "ok"
"""The state of a set that wants nothing."""
MOST_SHOWN: Final = 30
"""Sets that are listed one by one; of more, only those that want something are."""


def set_rows(sets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each, with SET_COLUMNS."""
    return [
        {
            "set": row.get("name"),
            "primary": _leader(row) or "-",
            "in-sync": _in_sync_text(row),
            "state": row.get("state"),
            "queues": row.get("queues"),
            "messages": row.get("messages"),
        }
        for row in sorted(sets, key=lambda row: str(row.get("name")))
    ]


def _in_sync_text(row: Mapping[str, Any]) -> str:
    """While nobody leads a set, the record has who was in sync last: the most that is known."""
    text = f"{len(row.get('in_sync') or ())} of {row.get('wanted')}"
    return text if row.get("primary") else f"{text}, recorded"


def _leader(row: Mapping[str, Any]) -> str:
    """A group that somebody serves has no primary: each of its brokers serves it."""
    return GROUP if row.get("primary") and row.get("strategy") == GROUP else str(row.get("primary") or "")


def in_need(sets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sets that are not as they should be."""
    return [row for row in sets if row.get("state") != WHOLE]


def summary_rows(sets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each broker that is primary of some that want nothing, and one for groups, with SUMMARY_COLUMNS."""
    whole = [row for row in sets if row.get("state") == WHOLE]
    counted = {name: Counter[str]() for name in sorted({_leader(row) for row in whole})}
    for row in whole:
        count = counted[_leader(row)]
        count["sets"] += 1
        for name in ("queues", "messages"):
            count[name] += int(row.get(name) or 0)
    figures = SUMMARY_COLUMNS[1:]
    return [{"primary": name, **{figure: count[figure] for figure in figures}} for name, count in counted.items()]


def print_sets(sets: Sequence[dict[str, Any]]) -> None:
    """As a table: each of a few; of many, those that want something, and how many there are of the others."""
    shown = sets if len(sets) <= MOST_SHOWN else in_need(sets)
    if len(shown) < len(sets):
        print_rows(summary_rows(sets), SUMMARY_COLUMNS, "table")
    if shown:
        print_rows(set_rows(shown), SET_COLUMNS, "table")
    print_problems(shown)


def print_problems(rows: Sequence[Mapping[str, Any]]) -> None:
    """A sentence for each that has one, on stderr: scripts read the table."""
    for row in rows:
        if row.get("problem"):
            click.echo(cell(f"{row.get('name')}: {row['problem']}"), err=True)
