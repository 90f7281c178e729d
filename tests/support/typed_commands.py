"""Commands as an operator types them, read as the tools would read them, without doing anything."""

from __future__ import annotations

import click


def parse(
    command: click.Command, words: list[str], parent: click.Context | None = None, obj: object | None = None
) -> None:
    """As the tool would, without doing anything; `obj` gets what options say. Raises click.UsageError."""
    name = command.name or ""
    if not isinstance(command, click.Group):
        command.make_context(name, list(words), parent=parent, obj=obj)
        return
    context = command.make_context(name, list(words), parent=parent, obj=obj)
    rest = [*context._protected_args, *context.args]
    if not rest:  # options alone
        return
    _, below, rest = command.resolve_command(context, rest)
    if below is not None:
        parse(below, rest, context, obj)
