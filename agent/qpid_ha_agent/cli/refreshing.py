"""`--watch`: what a command shows is kept up to date, until somebody interrupts it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import wraps
from typing import Any, Final, NamedTuple, cast

import click

from qpid_ha_agent.cli.invocation import NO, UNREACHABLE, CliFailure, Command, Invocation
from qpid_ha_agent.cli.output import utc_time_of_day
from qpid_ha_agent.cli.parameters import duration

INTERVAL_S: Final = 1.0
SHORTEST_S: Final = 0.1
"""A broker has better things to do than to answer more often."""


class Frame(NamedTuple):
    """What one look has shown; `problem`: why it has not shown all, or nothing. Both without a line's end."""

    text: str
    problem: str = ""


def watchable(*not_with: str) -> Callable[[Command], Command]:
    """Add `--watch` and `--interval` to a command that shows something. `not_with`: parameters that ask for something
    else than to be shown. It stands below the options of the command, and above `click.pass_obj`."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def maybe_again(*arguments: Any, is_watched: bool, interval_s: float | None, **options: Any) -> Any:
            if not is_watched:
                if interval_s is not None:
                    raise click.UsageError("--interval is for --watch")
                return command(*arguments, **options)
            context = click.get_current_context()
            _check(context, not_with)
            keep_showing(
                context.ensure_object(Invocation),
                lambda: frame_of(lambda: command(*arguments, **options)),
                INTERVAL_S if interval_s is None else interval_s,
            )
            return None

        return interval_option(
            click.option("--watch", "is_watched", is_flag=True, help="Keep it up to date, until you interrupt it.")(
                cast("Command", maybe_again)
            )
        )

    return decorate


def interval_option(command: Command) -> Command:
    """Add `--interval`."""
    help_text = f"Of --watch: how often; default {INTERVAL_S:g}s."
    return click.option("--interval", "interval_s", type=_interval, metavar="DURATION", help=help_text)(command)


def _interval(text: str) -> float:
    interval_s = duration(text)
    if interval_s < SHORTEST_S:
        raise click.BadParameter(f"{text} is too often: at least {SHORTEST_S:g}s")
    return interval_s


def _check(context: click.Context, not_with: tuple[str, ...]) -> None:
    for name in not_with:
        if context.params.get(name):
            option = next(parameter for parameter in context.command.params if parameter.name == name).opts[0]
            raise click.UsageError(f"--watch goes on until you interrupt it: leave it or {option} out")
    if context.invoked_subcommand is not None:
        raise click.UsageError(f"--watch shows, and {context.invoked_subcommand} does something")
    check_format(context.ensure_object(Invocation))


def check_format(invocation: Invocation) -> None:
    """Raises click.UsageError for programs, which ask when they want to know."""
    if invocation.format != "table":
        raise click.UsageError("only a table can be kept up to date; for programs leave --watch out")


def frame_of(show: Callable[[], object]) -> Frame:
    """What `show` prints, on both streams. A broker that cannot be reached may come back, and one that has nothing to
    show may have: that is when one watches. Raises other failures: a wrong login does not become right."""
    printed, complaints = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(complaints), suppress(click.exceptions.Exit):
            show()
    except CliFailure as failure:
        if failure.exit_code not in (NO, UNREACHABLE):
            raise
        complaints.write(failure.message)
    return Frame(printed.getvalue().rstrip("\n"), complaints.getvalue().rstrip("\n"))


def keep_showing(invocation: Invocation, look: Callable[[], Frame], interval_s: float) -> None:
    """Until it is interrupted: on a terminal in one place, else one block below the other."""
    show = _Screen() if sys.stdout.isatty() else _print_block
    with suppress(KeyboardInterrupt):
        try:
            while True:
                frame = look()
                show(utc_time_of_day(invocation.clock.now_s()), frame)
                invocation.clock.pause(interval_s)
        finally:
            if isinstance(show, _Screen):
                show.stop()


def _print_block(at: str, frame: Frame) -> None:
    click.echo("\n".join(filter(None, (at, frame.problem, frame.text))) + "\n")


class _Screen:
    """One place on a terminal; what does not fit is left out."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live = Live(auto_refresh=False)
        self._live.start()

    def __call__(self, at: str, frame: Frame) -> None:
        from rich.console import Group
        from rich.text import Text

        parts = [Text(at, style="dim")]
        if frame.problem:
            parts.append(Text(frame.problem, style="red"))
        parts.append(Text(frame.text, no_wrap=True, overflow="ellipsis"))
        self._live.update(Group(*parts), refresh=True)

    def stop(self) -> None:
        """Leave what was shown last."""
        self._live.stop()
