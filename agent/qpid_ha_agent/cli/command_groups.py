"""How commands are listed in a help text, and what ends a program that the operating system stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import click

from qpid_ha_agent.cli.invocation import MAY_NOT, NO, CliFailure

OTHERS = "Other commands"


class ListedGroup(click.Group):
    """Each command has the whole first sentence of its help, and stands in a section with those that it goes with."""

    sections: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Names of commands by title, in the order in which they are shown; those of none come last. Empty: one section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        for title, names in self._titled(ctx):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, _first_sentence(command)) for name, command in commands if command and not command.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _titled(self, ctx: click.Context) -> Iterator[tuple[str, list[str]]]:
        there = self.list_commands(ctx)
        if not self.sections:
            yield "Commands", there
            return
        for title, names in self.sections.items():
            yield title, [name for name in names if name in there]
        listed = {name for names in self.sections.values() for name in names}
        yield OTHERS, [name for name in there if name not in listed]


def _first_sentence(command: click.Command) -> str:
    text = " ".join((command.help or "").split("\n\n")[0].split())
    end = text.find(". ")
    return text if end < 0 else text[: end + 1]


class CommandGroup(ListedGroup):
    """What the operating system does not let a command do ends it with one line and an exit code, and no traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Carry out the command."""
        try:
            return super().invoke(ctx)
        except PermissionError as error:
            raise CliFailure(f"{error.filename or 'a file'}: we may not: do this as root", MAY_NOT) from None
        except BrokenPipeError:  # whoever read our output has seen enough
            raise
        except OSError as error:
            raise CliFailure(f"{error.filename or 'a file'}: {error.strerror or error}", NO) from None
