"""`qpid-ha acl`: who may do what at the running broker, and in its cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import USAGE, CliFailure, Invocation, common_options, facts_of, rows_of
from qpid_ha_agent.cli.output import print_change, print_document, print_rows
from qpid_ha_agent.cli.set_tables import print_problems
from qpid_ha_broker.events.counted import counted

RULES: Final = "acl.rules"


@click.group(cls=ListedGroup)
def acl() -> None:
    """Who may do what at the broker."""


@acl.command()
@common_options
@click.pass_obj
def reload(invocation: Invocation) -> None:
    """Read acl.file or acl.rules of the broker's files again; links that they do not allow any more end.

    Bad rules change nothing. Rules of the cluster (`qpid-ha acl set`) count above them, and need no reading.
    """
    answer = facts_of(invocation.call("reload-acl"))
    if invocation.format != "table":
        print_document(answer, invocation.format)
    elif not answer.get("file") and not answer.get("rules") and not answer.get("limits"):
        click.echo("there is no acl")
    else:
        where, limits, ended = answer.get("file") or "acl.rules", answer.get("limits", 0), answer.get("ended")
        rules = counted(answer.get("rules"), f"rule of {where} is", f"rules of {where} are")
        links = counted(ended, "link or connection was", "links and connections were")
        click.echo(f"{rules} in force, and {counted(limits, 'limit')}; {links} ended by the rules")


@acl.command("set")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@common_options
@click.pass_obj
def set_rules(invocation: Invocation, path: Path) -> None:
    """Have the rules of FILE in force at all brokers of the cluster, which keeps them.

    They count above acl.rules of the brokers' configuration files; a broker with an acl.file has them refused. Links
    that they do not allow any more end. `qpid-ha config unset acl.rules` takes them away.
    """
    from qpid_ha_config.access_rules import read_file
    from qpid_ha_config.errors import ConfigError

    try:
        read = read_file(path)
    except ConfigError as error:
        raise CliFailure(str(error), USAGE) from None
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    answer = facts_of(invocation.call("settings", action="set", key=RULES, value=lines))
    text = f"{counted(len(read.rules), 'rule')} and {counted(len(read.limits), 'limit')} in force at all brokers"
    print_change(answer, text, invocation.format)


@acl.command("show")
@common_options
@click.pass_obj
def show_rules(invocation: Invocation) -> None:
    """Print the rules that are in force, as `set` reads them: the cluster's, or those of the broker's files."""
    layers = rows_of(invocation.call("list-acl"))
    in_force = next((layer for layer in layers if layer["in_force"]), None)
    lines = [] if in_force is None else in_force["entries"] or [line["text"] for line in in_force["lines"]]
    if invocation.format != "table":
        print_document(lines, invocation.format)
        return
    click.echo("\n".join(lines), nl=bool(lines))
    if in_force is None:
        click.echo(
            "there are no rules: who connects from the broker's machine may do everything, others nothing", err=True
        )
    elif in_force["from"] != RULES:
        click.echo(f"these are the rules of {in_force['from']}", err=True)


@acl.command("list")
@common_options
@click.pass_obj
def list_rules(invocation: Invocation) -> None:
    """Show the rules of the cluster, and under them those of the broker's file: one of both is in force, whole.

    Line by line, with the place that `check` names. Rules of a cluster are changed by `set`, or on the web page.
    """
    layers = rows_of(invocation.call("list-acl"))
    if invocation.format != "table":
        print_document(layers, invocation.format)
        return
    rows = [
        {"layer": layer["layer"], "in-force": layer["in_force"], "place": line["place"], "line": line["text"]}
        for layer in layers
        for line in layer["lines"]
    ]
    print_rows(rows, ("layer", "in-force", "place", "line"), invocation.format)
    print_problems([{"name": layer["from"], "problem": layer["problem"]} for layer in layers])


@acl.command()
@click.argument("user")
@click.argument("action")
@click.argument("node", default="")
@click.option("--local", is_flag=True, help="As a client on the broker's own machine.")
@common_options
@click.pass_obj
def check(invocation: Invocation, user: str, action: str, node: str, local: bool) -> None:
    """Say which rule decides whether USER may do ACTION with NODE.

    USER may be `anonymous`. Exit code 1: it may not.
    """
    answer = facts_of(invocation.call("check-acl", user=user, action=action, node=node, local=local))
    if invocation.format != "table":
        print_document(answer, invocation.format)
    else:
        click.echo(f"{'allowed' if answer.get('allowed') else 'denied'}: {answer.get('reason')}")
    if not answer.get("allowed"):
        raise SystemExit(1)


@acl.command()
@click.argument("user")
@common_options
@click.pass_obj
def limits(invocation: Invocation, user: str) -> None:
    """Show what USER may have, by which line, and what USER has at this broker now.

    USER may be `anonymous`. Sizes are in bytes, rates in messages a second.
    """
    rows = invocation.call("user-limits", user=user)
    print_rows(rows if isinstance(rows, list) else [], ("kind", "limit", "used", "reason"), invocation.format)
