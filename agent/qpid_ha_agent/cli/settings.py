"""`qpid-ha set KEY VALUE`: settings of the running broker."""

from __future__ import annotations

import click

from qpid_ha_agent.cli.invocation import Invocation, common_options, facts_of
from qpid_ha_agent.cli.output import print_document, print_notes, value_text
from qpid_ha_agent.cli.parameters import read_changes


@click.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="KEY VALUE | KEY=VALUE ...")
@common_options
@click.pass_obj
def set_settings(invocation: Invocation, words: tuple[str, ...]) -> None:
    """Change settings of the running broker, until it restarts.

    `--KEY VALUE` works too, and `ha.` may be left out: `--brokers-url URL --public-url URL --backup-timeout 10s`.
    """
    for key, value in read_changes(words):
        change = facts_of(invocation.call("set", key=key, value=value))
        if invocation.format == "table":
            old, new = value_text(change.get("old")), value_text(change.get("new"))
            click.echo(f"{change.get('key')}: {old or 'none'} -> {new or 'none'}")
            print_notes(change)
        else:
            print_document(change, invocation.format)
