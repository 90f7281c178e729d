"""`qpid-ha config`: settings of the running broker.

`qpid-ha get` and `qpid-ha set KEY VALUE` are the same: qpid's tool has these names.
"""

from __future__ import annotations

import sys
from copy import copy
from typing import Final

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import USAGE, CliFailure, Invocation, common_options, facts_of
from qpid_ha_agent.cli.output import print_document, print_facts, print_notes, value_text
from qpid_ha_agent.cli.parameters import read_changes


@click.group(cls=ListedGroup)
def config() -> None:
    """Settings of the running broker."""


@click.command("get")
@click.argument("key", required=False)
@common_options
@click.pass_obj
def get_settings(invocation: Invocation, key: str | None) -> None:
    """Settings of the running broker: all of them, or the bare value of KEY."""
    settings = facts_of(invocation.call("get", key=key))
    if key is not None and invocation.format == "table":
        click.echo(value_text(next(iter(settings.values()), None)))
    else:
        print_facts(settings, invocation.format)


@click.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="KEY VALUE | KEY=VALUE ...")
@common_options
@click.pass_context
def set_settings(context: click.Context, words: tuple[str, ...]) -> None:
    """Change settings of the running broker, until it restarts.

    `--KEY VALUE` works too, and `ha.` may be left out: `--brokers-url URL --public-url URL --backup-timeout 10s`.
    """
    invocation: Invocation = context.obj
    if context.parent is not None and context.parent.info_name != config.name and sys.stderr.isatty():
        click.echo("`qpid-ha config set` is the name of this; `qpid-ha set` is about resource sets", err=True)
    for key, value in read_changes(words):
        change = facts_of(invocation.call("set", key=key, value=value))
        if invocation.format == "table":
            old, new = value_text(change.get("old")), value_text(change.get("new"))
            click.echo(f"{change.get('key')}: {old or 'none'} -> {new or 'none'}")
            print_notes(change)
        else:
            print_document(change, invocation.format)


@config.command()
@click.argument("key", required=False)
def describe(key: str | None) -> None:
    """What settings there are, with kind, default and what each does; nothing is asked of a broker."""
    from qpid_ha_config.errors import SettingsError
    from qpid_ha_config.reference import entries, entry
    from qpid_ha_config.settings import find

    if key is None:
        for title, rows in entries():
            click.echo(f"{title}:")
            for row in rows:
                click.echo(f"  {row.key}: {row.summary}")
        return
    try:
        row = entry(find(key).setting.key)
    except SettingsError as error:
        raise CliFailure(str(error), USAGE) from None
    click.echo(f"{row.key}: {row.summary}\n  value: {row.kind}\n  default: {row.default}\n  changes: {row.change}")


config.add_command(get_settings)
config.add_command(set_settings)

get_of_qpid: Final = copy(get_settings)
"""`qpid-ha get`."""
get_of_qpid.hidden = True
