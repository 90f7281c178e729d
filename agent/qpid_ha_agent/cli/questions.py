"""Questions before what cannot be taken back. Only somebody at a terminal is asked: a script has decided already."""

from __future__ import annotations

import sys

import click

from qpid_ha_agent.cli.invocation import NO, CliFailure, Command


def yes_option(command: Command) -> Command:
    """Add `--yes`."""
    return click.option("--yes", "is_sure", is_flag=True, help="Do not ask, at a terminal either.")(command)


def is_somebody_there() -> bool:
    """Whether there is a terminal to ask at, and to answer from."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_first(question: str, *, is_sure: bool) -> None:
    """Raises CliFailure for a no."""
    if not is_sure and is_somebody_there() and not click.confirm(question, err=True):
        raise CliFailure("nothing was done", NO)
