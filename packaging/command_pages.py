"""Man pages and shell completion of the programs, made from their click commands, and the page of all settings.

usage: command_pages.py DIRECTORY   (the root that a package installs; run by the interpreter that has qpid-ha)
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.agent import add_ocf_actions, agent
from qpid_ha_broker import __version__
from qpid_ha_broker.server.command_line import main as qpidd
from qpid_ha_config.reference import entries

COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/{}",
    "zsh": "usr/share/zsh/vendor-completions/_{}",
    "fish": "usr/share/fish/vendor_completions.d/{}.fish",
}
MANUAL = "usr/share/man/man1/{}.1"
SETTINGS_MANUAL = "usr/share/man/man5/qpid-ha.yaml.5"


def programs() -> dict[str, click.Command]:
    """The commands by the name of the program that runs each."""
    add_ocf_actions()
    return {"qpidd": qpidd, "qpid-ha": admin, "qpid-ha-agent": agent}


def contexts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[click.Context]:
    """A context for the command and for each below it, depth first; hidden ones have none."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=100)
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from contexts(found, below, context)


def page_name(context: click.Context) -> str:
    """`qpid-ha queue list` has its page under `qpid-ha-queue-list`."""
    return context.command_path.replace(" ", "-")


def roff(text: str) -> str:
    """The text as roff prints it: nothing in it is a request or an escape, and a `-` can be typed."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", escaped)


def paragraphs(text: str) -> Iterator[str]:
    r"""What click would show: `\f` ends the text, `\b` begins a paragraph whose lines stay as they are."""
    for paragraph in inspect.cleandoc(text).partition("\f")[0].split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield f".PP\n.nf\n{roff(paragraph[2:])}\n.fi"
        else:
            yield f".PP\n{roff(' '.join(paragraph.split()))}"


def manual_page(context: click.Context) -> str:
    """A page of section 1 as roff."""
    command = context.command
    parts = [
        f'.TH "{roff(page_name(context)).upper()}" "1" "" "qpid\\-ha {roff(__version__)}" "qpid\\-ha"',
        ".SH NAME",
        f"{roff(page_name(context))} \\- {roff(command.get_short_help_str(limit=200)).rstrip('.')}",
        ".SH SYNOPSIS",
        f".B {roff(context.command_path)}\n{roff(' '.join(command.collect_usage_pieces(context)))}",
        ".SH DESCRIPTION",
        *paragraphs(command.help or ""),
    ]
    options = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
    ]
    if options:
        parts.append(".SH OPTIONS")
        parts += [f".TP\n.B {roff(names)}\n{roff(' '.join(text.split()))}" for names, text in options]
    if isinstance(command, click.Group):
        parts.append(".SH COMMANDS")
        for below in list(contexts(command, context.info_name or "", context.parent))[1:]:
            if below.parent is not None and below.parent.command is command:
                parts.append(
                    f".TP\n.BR {roff(page_name(below))} (1)\n{roff(below.command.get_short_help_str(limit=200))}"
                )
    if context.parent is not None:
        parts += [".SH SEE ALSO", f".BR {roff(page_name(context.parent))} (1)"]
    return "\n".join(parts) + "\n"


def settings_page() -> str:
    """The page of section 5 about the configuration file, as roff."""
    parts = [
        f'.TH "QPID\\-HA.YAML" "5" "" "qpid\\-ha {roff(__version__)}" "qpid\\-ha"',
        ".SH NAME\nqpid\\-ha.yaml \\- settings of a broker and its agent",
        ".SH DESCRIPTION\nYAML: keys with a dot may be written as sections. A key that does not exist is an error.",
    ]
    for title, rows in entries():
        parts.append(f".SH {roff(title).upper()}")
        for row in rows:
            facts = f"Value: {row.kind}. Default: {row.default}. It changes {row.change}."
            parts.append(f".TP\n.B {roff(row.key)}\n{roff(row.summary)}\n{roff(facts)}")
    return "\n".join([*parts, ".SH SEE ALSO", ".BR qpidd (1), qpid\\-ha\\-config (1)"]) + "\n"


def completion(program: str, command: click.Command, shell: str) -> str:
    """The shell's script, which asks the program itself what can follow."""
    kind = get_completion_class(shell)
    if kind is None:
        raise LookupError(f"click has no completion for {shell}")
    # Not `source`: for bash it runs a bash to see its version, and here nothing is completed.
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    maker = kind(command, {}, program, variable)
    return maker.source_template % maker.source_vars()


def write_pages(root: Path) -> None:
    """All of them, under the root of a package."""
    for program, command in programs().items():
        files = {MANUAL.format(page_name(context)): manual_page(context) for context in contexts(command, program)}
        files |= {path.format(program): completion(program, command, shell) for shell, path in COMPLETIONS.items()}
        for path, text in files.items():
            _write(root / path, text)
    _write(root / SETTINGS_MANUAL, settings_page())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
