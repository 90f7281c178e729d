"""`qpid-ha tls`: certificates of the running broker."""

from __future__ import annotations

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import Invocation, common_options, facts_of
from qpid_ha_agent.cli.output import print_document


@click.group(cls=ListedGroup)
def tls() -> None:
    """Certificates of the broker."""


@tls.command()
@common_options
@click.pass_obj
def reload(invocation: Invocation) -> None:
    """Read the certificate, its key and the CA again: connections made from now on use them."""
    answer = facts_of(invocation.call("reload-tls"))
    if invocation.format != "table":
        print_document(answer, invocation.format)
    elif answer.get("listeners"):
        click.echo(f"{answer.get('certificate')} is in use for new clients of {answer.get('listeners')} listeners")
    else:
        click.echo("no listener speaks TLS; connections to other brokers read the files each time")
