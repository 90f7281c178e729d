"""`qpid-ha exchange`: list, show, create, delete, bind, unbind."""

from __future__ import annotations

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import Invocation, common_options, facts_of, unexpected
from qpid_ha_agent.cli.output import print_creation, print_facts, print_outcome, print_rows
from qpid_ha_agent.cli.parameters import read_arguments

COLUMNS = ("name", "kind", "bindings")
KINDS = ("direct", "topic", "fanout", "headers")

_argument_option = click.option(
    "--argument", "texts", multiple=True, metavar="NAME=VALUE", help="An argument, such as x-match=any for headers."
)


@click.group(cls=ListedGroup)
def exchange() -> None:
    """Exchanges of the broker, and what is bound to them."""


@exchange.command("list")
@common_options
@click.pass_obj
def list_exchanges(invocation: Invocation) -> None:
    """All exchanges, one per line."""
    rows = invocation.rows("exchanges")
    ordered = sorted(rows, key=lambda row: str(row.get("name")))
    if invocation.format == "table":
        ordered = [{**row, "bindings": _count(row.get("bindings"))} for row in ordered]
    print_rows(ordered, COLUMNS, invocation.format)


def _count(bindings: object) -> object:
    return len(bindings) if isinstance(bindings, list) else bindings


@exchange.command()
@click.argument("name")
@common_options
@click.pass_obj
def show(invocation: Invocation, name: str) -> None:
    """One exchange and its bindings."""
    facts = invocation.call("exchanges", action="read", name=name)
    if not isinstance(facts, dict):
        raise unexpected(facts)
    bindings = facts.get("bindings")
    if invocation.format != "table" or not isinstance(bindings, list):
        print_facts(facts, invocation.format)
        return
    print_facts({**facts, "bindings": len(bindings)}, "table")
    if bindings:
        print_rows(bindings, ("queue", "key", "arguments"), "table")


@exchange.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="topic", show_default=True)
@_argument_option
@common_options
@click.pass_obj
def create(invocation: Invocation, name: str, kind: str, texts: tuple[str, ...]) -> None:
    """Create an exchange."""
    arguments = read_arguments(texts) or None
    answer = facts_of(invocation.call("exchanges", action="create", name=name, kind=kind, arguments=arguments))
    print_creation(f"{kind} exchange {name}", answer, invocation.format)


@exchange.command()
@click.argument("name")
@common_options
@click.pass_obj
def delete(invocation: Invocation, name: str) -> None:
    """Delete an exchange and its bindings."""
    answer = invocation.call("exchanges", action="delete", name=name)
    print_outcome(answer, f"exchange {name} deleted", invocation.format)


@exchange.command()
@click.argument("name")
@click.argument("queue")
@click.argument("key", default="")
@_argument_option
@common_options
@click.pass_obj
def bind(invocation: Invocation, name: str, queue: str, key: str, texts: tuple[str, ...]) -> None:
    """Let QUEUE have what is sent to the exchange NAME with a subject that KEY matches."""
    arguments = read_arguments(texts) or None
    answer = invocation.call("exchanges", action="bind", name=name, queue=queue, key=key, arguments=arguments)
    print_outcome(answer, f"{_binding(name, queue, key)} is there", invocation.format)


@exchange.command()
@click.argument("name")
@click.argument("queue")
@click.argument("key", default="")
@common_options
@click.pass_obj
def unbind(invocation: Invocation, name: str, queue: str, key: str) -> None:
    """Take a binding away."""
    answer = invocation.call("exchanges", action="unbind", name=name, queue=queue, key=key)
    print_outcome(answer, f"{_binding(name, queue, key)} is gone", invocation.format)


def _binding(exchange: str, queue: str, key: str) -> str:
    return f"the binding of queue {queue} to exchange {exchange}{f' with key {key}' if key else ''}"
