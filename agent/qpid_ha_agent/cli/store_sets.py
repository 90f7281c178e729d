"""How verdicts over the stores of many resource sets are printed: in 80 columns, however many sets there are.

Sets that agree are one line; who needs a person is listed by what is in doubt, and the command that tells more follows.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Final

import click

from qpid_ha_agent.cli.output import cell, print_document
from qpid_ha_agent.cli.store_tables import print_commands, verdict_document
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.best import Admin, Equal, Winner
from qpid_ha_broker.store.best_sets import Nothing, SetVerdict

COLUMNS: Final = 80
_FIRST: Final = 26
"""Columns of what the sets of a line have in common."""
_NUMBER: Final = 5
_LEAST: Final = 20
"""Columns of a verdict, whatever names take."""


def print_verdicts(verdicts: Mapping[str, SetVerdict], sources: Sequence[str], format_name: str) -> None:
    """What came of each set; `sources`: as they were given, for the command that tells more of one."""
    if format_name != "table":
        print_document({"sets": {name: verdict_document(verdict) for name, verdict in verdicts.items()}}, format_name)
        return
    doubtful = {name: verdict.verdict for name, verdict in verdicts.items() if isinstance(verdict.verdict, Admin)}
    nothing = {name: verdict.verdict.text for name, verdict in verdicts.items() if isinstance(verdict.verdict, Nothing)}
    others = doubtful.keys() | nothing.keys()
    certain = {name: _beginning(verdict) for name, verdict in verdicts.items() if name not in others}
    if certain:
        _print_groups("begin with", certain)
        click.echo("")
    if nothing:
        _print_groups("nothing to begin with", nothing)
        click.echo("")
    if doubtful:
        _print_groups("in doubt", {name: _doubt(verdict) for name, verdict in doubtful.items()})
        click.echo("")
        asked = " ".join(map(quote, sources))
        commands = [f"qpid-ha store best --set {quote(name)} {asked}" for name in _first_of_each(doubtful)]
        text = f"ADMIN: {len(doubtful)} of {len(verdicts)} sets need a decision. What is known, set by set:"
        print_commands(text, commands)
    first = verdicts[DEFAULT_SET].verdict if DEFAULT_SET in verdicts else None
    if isinstance(first, Winner | Equal):
        if not doubtful:
            click.echo(f"Of none of the {len(verdicts)} sets anything that was confirmed is lost.")
        print_commands("Next, and the other sets follow by themselves:", first.next_commands)


def print_each(verdicts: Mapping[str, SetVerdict]) -> None:
    """A line for each set: its best copy, how far that goes, whether its broker is in sync by the record, and more."""
    rows = [
        (name, _copy(verdict), _position(verdict), _recorded(verdict), _outcome(verdict))
        for name, verdict in verdicts.items()
    ]
    titles = ("set", "best copy", "at", "recorded", "verdict")
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(4)]
    rest = max(_LEAST, COLUMNS - sum(widths) - 2 * len(widths))
    for *cells, outcome in (titles, *rows):
        text = "  ".join(f"{cell(text):<{width}}" for text, width in zip(cells, widths, strict=True))
        first, *more = textwrap.wrap(outcome, rest) or [""]
        click.echo(f"{text}  {first}".rstrip())
        for line in more:
            click.echo(f"{'':<{sum(widths) + 2 * len(widths)}}{line}")


def _copy(verdict: SetVerdict) -> str:
    return "-" if verdict.best is None else verdict.best.label


def _position(verdict: SetVerdict) -> str:
    return "-" if verdict.best is None else f"{verdict.best.generation}:{verdict.best.last_lsn}"


def _recorded(verdict: SetVerdict) -> str:
    """Whether the best copy is that of a broker that is in sync by the cluster map."""
    return {None: "-", True: "yes", False: "no"}[verdict.is_recorded]


def _outcome(verdict: SetVerdict) -> str:
    match verdict.verdict:
        case Admin():
            return f"ADMIN: {_doubt(verdict.verdict)}"
        case Nothing():
            return f"nothing: {verdict.verdict.text}"
        case Equal():
            others = len(verdict.verdict.stores) - 1
            return f"equal to {others} other{'s' if others != 1 else ''}"
    return "winner"


def _beginning(set_verdict: SetVerdict) -> str:
    """Whose store it is; and where it is so, that it is not in sync by the cluster map."""
    verdict = set_verdict.verdict
    if isinstance(verdict, Equal):
        return "any of " + ", ".join(store.label for store in verdict.stores)
    label = "" if set_verdict.best is None else set_verdict.best.label
    return f"{label} (not recorded)" if set_verdict.is_recorded is False else label


def _doubt(verdict: Admin) -> str:
    return f"{verdict.doubt}: {', '.join(verdict.missing)}" if verdict.missing else str(verdict.doubt)


def _first_of_each(doubtful: Mapping[str, Admin]) -> list[str]:
    """One set for each kind of doubt: what is to be done is alike for the others."""
    firsts: dict[str, str] = {}
    for name, verdict in doubtful.items():
        firsts.setdefault(_doubt(verdict), name)
    return list(firsts.values())


def _print_groups(heading: str, kinds: Mapping[str, str]) -> None:
    """A line for each kind, those with most sets first, with as many names as fit; `kinds`: by name of set."""
    groups: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        groups.setdefault(cell(kind), []).append(cell(name))
    width = min(_FIRST, max(map(len, [heading, *groups])))
    rest = COLUMNS - width - _NUMBER - 4
    click.echo(f"{heading:<{width}}  {'sets':>{_NUMBER}}  which")
    for kind, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        first, *more = textwrap.wrap(kind, width) or [""]
        click.echo(f"{first:<{width}}  {len(names):>{_NUMBER}}  {shortened(names, rest)}")
        for line in more:
            click.echo(line)


def shortened(names: Sequence[str], width: int) -> str:
    """As many as fit, and how many more there are; at least one."""
    text = ", ".join(names)
    shown = len(names)
    while len(text) > width and shown > 1:
        shown -= 1
        text = f"{', '.join(names[:shown])} and {len(names) - shown} more"
    return text
