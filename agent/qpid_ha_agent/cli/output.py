"""Printing results: tables for people, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

_WIDE = 100_000
"""Columns when nobody looks: a pipe has no width, and a cut name is no name."""


def print_document(document: object, format_name: str) -> None:
    """As JSON or as YAML."""
    if format_name == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    import yaml

    click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), nl=False)


def print_facts(facts: Mapping[str, object], format_name: str) -> None:
    """One thing: a line for each of its facts."""
    if format_name != "table":
        print_document(dict(facts), format_name)
        return
    _print_table(("", ""), [(name, _cell(value)) for name, value in facts.items()], heading=False)


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], format_name: str) -> None:
    """Several things of one kind: a line for each, with the given facts."""
    if format_name != "table":
        print_document([dict(row) for row in rows], format_name)
        return
    _print_table(columns, [[_cell(row.get(column, "")) for column in columns] for row in rows])


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], heading: bool = True) -> None:
    """With rich, which is imported only here: it takes longer to import than a ping takes."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=heading, pad_edge=False, header_style="bold")
    rows = list(rows)
    for index, column in enumerate(columns):
        numeric = heading and bool(rows) and all(row[index].replace(".", "", 1).isdecimal() for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _cell(value: object) -> str:
    """Text for one cell; a name with control characters must not steer the terminal."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_cell(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_cell(inner) for inner in value)
    if isinstance(value, float):
        return f"{value:.1f}"
    text = str(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)
