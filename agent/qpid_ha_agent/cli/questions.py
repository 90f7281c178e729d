"""Questions before what cannot be taken back. Only somebody at a terminal is asked: a script has decided already, and
what is given up is printed for whoever reads its output later."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from qpid_ha_agent.cli.invocation import NO, CliFailure, Command
from qpid_ha_agent.cli.output import cell


def yes_option(command: Command) -> Command:
    """Add `--yes`."""
    return click.option("--yes", "is_sure", is_flag=True, help="Do not ask, at a terminal either.")(command)


def is_somebody_there() -> bool:
    """Whether there is a terminal to ask at, and to answer from."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_first(given_up: str, question: str, *, is_sure: bool) -> None:
    """Say what is given up, and ask whether to do it. Without a terminal, or with `--yes`, it is said on stderr and
    done. `given_up`: whole sentences; empty: nothing is, and nobody is asked.

    Raises CliFailure for a no.
    """
    if not given_up:
        return
    if is_sure or not is_somebody_there():
        click.echo(cell(given_up), err=True)
    elif not click.confirm(cell(f"{given_up} {question}"), err=True):
        raise CliFailure("nothing was done", NO)


def known_before(look: Callable[[], str], is_sure: bool) -> str:
    """What `look` finds out about what is given up. Raises CliFailure for somebody who is asked; where nobody is, that
    it is not known keeps nobody from what a script has decided. What is refused, as about a queue that is not there,
    says so when it is done."""
    try:
        return look()
    except CliFailure as failure:
        if not is_sure and is_somebody_there():
            raise
        return "" if failure.exit_code == NO else f"What is given up is not known: {failure.message}."
