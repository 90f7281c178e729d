"""Printing results: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from qpid_ha_agent.cli.invocation import completed

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 100_000
"""Columns when nobody looks: a pipe has no width, and a cut name is no name."""


def print_document(document: object, format_name: str) -> None:
    """As JSON or as YAML."""
    if format_name == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    click.echo(yaml_text(document), nl=False)


def yaml_text(document: object) -> str:
    """As YAML, that whoever reads it gets the same back: where a line ends in Unicode alone, PyYAML would write it as
    it is, and read a space."""
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    is_same = not any(end in text for end in "\x85\u2028\u2029")
    return text if is_same else yaml.safe_dump(document, sort_keys=False)


def print_facts(facts: Mapping[str, object], format_name: str) -> None:
    """One thing: a line for each of its facts."""
    if format_name != "table":
        print_document(dict(facts), format_name)
        return
    _print_table(("", ""), [(name, cell(value)) for name, value in facts.items()], heading=False)


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], format_name: str) -> None:
    """Several things of one kind: a line for each, with the given facts."""
    if format_name != "table":
        print_document([dict(row) for row in rows], format_name)
        return
    _print_table(columns, cells_of(rows, columns))


def print_comparison(facts: Mapping[str, Mapping[str, object]]) -> None:
    """A line for each fact, a column for each of the things that have it."""
    names = dict.fromkeys(name for thing in facts.values() for name in thing)
    rows = [[name, *(cell(thing.get(name, "")) for thing in facts.values())] for name in names]
    _print_table(("", *facts), rows)


def cells_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[list[str]]:
    """The text of each cell; a column `in-sync` shows the fact `in-sync` or `in_sync`."""
    return [[cell(row.get(column, row.get(column.replace("-", "_"), ""))) for column in columns] for row in rows]


def value_text(value: object) -> str:
    """A setting's value, as `qpid-ha config set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(value_text(element) for element in value)
    if isinstance(value, Mapping) and set(value) == {"pattern", "replicate"}:
        return cell(f"{value['pattern']}={value['replicate']}")
    return "none" if value is None else cell(value)


def print_outcome(answer: object, text: str, format_name: str) -> None:
    """What came of a command: in a sentence for people, as the broker answered for programs."""
    if format_name == "table":
        click.echo(completed(cell(text)))
    else:
        print_document(answer, format_name)


def print_creation(thing: str, answer: Mapping[str, object], format_name: str) -> None:
    """Whether `thing`, such as `queue orders`, was made or was there; a broker of an older version does not say.

    Or that it is pending: it is recorded, and will be made by a broker that is not known to have done it yet.
    """
    if answer.get("pending"):
        print_outcome(answer, str(answer.get("text", f"{thing} is pending")), format_name)
        return
    how = {True: "created", False: "exists already, with the same arguments: nothing was changed"}
    created = answer.get("created")
    is_told = isinstance(created, bool)
    print_outcome(answer, f"{thing} {how[created is True] if is_told else 'is there'}", format_name)


def print_notes(answer: object) -> None:
    """What the broker has to say about what it did, on lines of their own."""
    notes = answer.get("notes") if isinstance(answer, Mapping) else None
    for note in notes if isinstance(notes, list) else []:
        click.echo(completed(cell(note)))


def print_change(answer: Mapping[str, Any], text: str, format_name: str) -> None:
    """What was changed at all brokers of a cluster, which `text` says to people, and what they had to say of it."""
    if format_name == "table":
        click.echo(text)
        print_notes(answer)
    else:
        print_document(answer, format_name)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], heading: bool = True) -> None:
    """With rich, which is imported only when a table is printed: it takes longer to import than a ping takes."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    with console.capture() as captured:
        console.print(table_of(columns, rows, heading))
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def table_of(columns: Sequence[str], rows: Sequence[Sequence[str]], heading: bool = True) -> Table:
    """Numbers to the right, everything else to the left."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=heading, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = heading and bool(rows) and all(row[index].replace(".", "", 1).isdecimal() for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    return table


def cell(value: object) -> str:
    """Text for one cell; a name with control characters must not steer the terminal."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={cell(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(cell(inner) for inner in value)
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def utc_time(wall_ms: object) -> str:
    """A time in ms since 1970 as the logs of all machines have it, with its zone; of what is none, a dash."""
    if not isinstance(wall_ms, int | float) or wall_ms <= 0:
        return "-"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ms / 1000))


def utc_time_of_day(now_s: float) -> str:
    """The same of now, in seconds since 1970, for who looks on."""
    return time.strftime("%H:%M:%SZ", time.gmtime(now_s))
