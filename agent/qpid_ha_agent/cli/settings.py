"""`qpid-ha config`: settings of the cluster and of the running broker.

`qpid-ha get` and `qpid-ha set KEY VALUE` are about this broker alone: qpid's tool has these names.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import copy
from typing import Final

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import USAGE, CliFailure, Invocation, common_options, facts_of, rows_of
from qpid_ha_agent.cli.output import print_document, print_facts, print_notes, print_rows, utc_time, value_text
from qpid_ha_agent.cli.parameters import read_changes
from qpid_ha_agent.control import METHOD_NOT_FOUND

_WORDS: Final = click.argument(
    "words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="KEY VALUE | KEY=VALUE ..."
)
_OPEN_ENDED: Final = {"ignore_unknown_options": True}


@click.group(cls=ListedGroup)
def config() -> None:
    """Settings of the cluster, and of the running broker."""


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


@config.command("set", context_settings=_OPEN_ENDED)
@_WORDS
@click.option("--here", is_flag=True, help="In this broker alone, until it restarts.")
@common_options
@click.pass_obj
def set_settings(invocation: Invocation, words: tuple[str, ...], here: bool) -> None:
    """Change settings, for all brokers of the cluster where that makes sense.

    What all have is kept, and counts above their configuration files: `config unset` takes it away, `config diff`
    shows it, `config describe` says which settings these are. Others are changed in this broker, until it restarts.

    `--KEY VALUE` works too, and `ha.` may be left out: `--public-url URL --backup-timeout 10s`.
    """
    for key, value in read_changes(words):
        if here or not _is_of_cluster(key) or not _set_for_cluster(invocation, key, value):
            _set_here(invocation, key, value)


def _is_of_cluster(key: str) -> bool:
    from qpid_ha_config.errors import SettingsError
    from qpid_ha_config.kinds import ChangeScope
    from qpid_ha_config.settings import find

    try:
        return find(key).setting.change is ChangeScope.CLUSTER
    except SettingsError:  # of a newer release, perhaps: the broker says
        return False


def _set_for_cluster(invocation: Invocation, key: str, value: str) -> bool:
    """Whether there is a cluster."""
    try:
        change = facts_of(invocation.call("settings", action="set", key=key, value=value))
    except CliFailure as failure:
        if failure.code != METHOD_NOT_FOUND:
            raise
        click.echo(f"{key}: the broker is in no cluster, or older: it has this until it restarts", err=True)
        return False
    _show_change(invocation, change, " for all brokers")
    return True


def _set_here(invocation: Invocation, key: str, value: str) -> None:
    _show_change(invocation, facts_of(invocation.call("set", key=key, value=value)), "")


def _show_change(invocation: Invocation, change: Mapping[str, object], whose: str) -> None:
    if invocation.format == "table":
        old, new = value_text(change.get("old")), value_text(change.get("new"))
        click.echo(f"{change.get('key')}: {old or 'none'} -> {new or 'none'}{whose}")
        print_notes(change)
    else:
        print_document(change, invocation.format)


@config.command("unset")
@click.argument("keys", metavar="KEY ...", nargs=-1, required=True)
@common_options
@click.pass_obj
def unset(invocation: Invocation, keys: tuple[str, ...]) -> None:
    """Take a setting of the cluster away: what the brokers' configuration files say counts again."""
    for key in keys:
        change = facts_of(invocation.call("settings", action="unset", key=key))
        _show_change(invocation, change, " here, and for each broker what its file says")


@config.command("diff")
@common_options
@click.pass_obj
def show_diff(invocation: Invocation) -> None:
    """What is not as by default: by this broker's file (or `config set --here`), and by the cluster above it."""
    rows = rows_of(invocation.call("settings"))
    columns = ("key", "default", "own", "cluster", "in_force", "problem")
    print_rows(rows, columns, invocation.format)


@config.command("history")
@common_options
@click.pass_obj
def show_history(invocation: Invocation) -> None:
    """The last changes of settings of the cluster: when, what, and who."""
    rows = rows_of(invocation.call("settings", action="history"))
    rows = [{**row, "at": utc_time(row.get("at_ms"))} for row in rows]
    print_rows(rows, ("at", "key", "value", "user"), invocation.format)


@click.command("set", context_settings=_OPEN_ENDED)
@_WORDS
@common_options
@click.pass_obj
def set_of_qpid(invocation: Invocation, words: tuple[str, ...]) -> None:
    """Change settings of the running broker, until it restarts."""
    if sys.stderr.isatty():
        click.echo("`qpid-ha config set` is the name of this; `qpid-ha set` is about resource sets", err=True)
    for key, value in read_changes(words):
        _set_here(invocation, key, value)


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

get_of_qpid: Final = copy(get_settings)
"""`qpid-ha get`."""
get_of_qpid.hidden = True
