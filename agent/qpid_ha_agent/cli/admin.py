"""`qpid-ha`: asking and administering a broker from the command line."""

from __future__ import annotations

from typing import ClassVar

import click

from qpid_ha_agent.cli.acl import acl
from qpid_ha_agent.cli.activation import activation
from qpid_ha_agent.cli.cluster import commands
from qpid_ha_agent.cli.command_groups import CommandGroup
from qpid_ha_agent.cli.connections import connections
from qpid_ha_agent.cli.coordinator import coordinator
from qpid_ha_agent.cli.definitions import definitions
from qpid_ha_agent.cli.diagnose import diagnose_command
from qpid_ha_agent.cli.exchange import exchange
from qpid_ha_agent.cli.invocation import Invocation, common_options, facts_of
from qpid_ha_agent.cli.messages import message_commands
from qpid_ha_agent.cli.output import print_document
from qpid_ha_agent.cli.pause import pause, resume
from qpid_ha_agent.cli.queue import queue
from qpid_ha_agent.cli.restart import restart, upgrade
from qpid_ha_agent.cli.session import session
from qpid_ha_agent.cli.sets import set_commands
from qpid_ha_agent.cli.settings import config, get_of_qpid
from qpid_ha_agent.cli.store import store
from qpid_ha_agent.cli.support_bundle import support_bundle
from qpid_ha_agent.cli.tls import tls
from qpid_ha_agent.cli.token import token
from qpid_ha_agent.cli.user import user
from qpid_ha_agent.cli.watch import watch


class _AdminGroup(CommandGroup):
    """As an operator looks for commands."""

    sections: ClassVar[dict[str, tuple[str, ...]]] = {
        "What is the matter": (
            "status", "diagnose", "watch", "brokers", "backups", "history", "events", "map", "query", "ping",
            "support-bundle",
        ),
        "Queues and clients": (
            "queue", "exchange", "send", "receive", "perf", "definitions", "connections", "session", "remote-nodes",
            "replicate",
        ),
        "Who leads": ("promote", "demote", "switchover", "activation", "coordinator"),
        "Resource sets": ("set", "replicas", "rebalance", "drain", "undrain"),
        "Maintenance": ("pause", "resume", "restart", "upgrade", "shutdown", "store"),
        "Settings, and who may what": ("config", "acl", "user", "token", "tls"),
    }  # fmt: skip


@click.group(cls=_AdminGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="qpid-ha", prog_name="qpid-ha")
@common_options
@click.pass_context
def admin(context: click.Context) -> None:
    """Ask and administer a qpid-ha broker.

    Exit codes: 0 yes or done, 1 no, not yet or refused, 2 usage, 3 the broker cannot be reached, 4 we may not (login or
    permission).
    """
    context.ensure_object(Invocation)


@admin.command()
@common_options
@click.pass_obj
def ping(invocation: Invocation) -> None:
    """Is the broker there?"""
    answer = facts_of(invocation.call("ping"))
    if invocation.format == "table":
        click.echo(f"{answer.get('name')} is alive")
    else:
        print_document(answer, invocation.format)


single = (
    pause,
    resume,
    restart,
    upgrade,
    watch,
    coordinator,
    queue,
    exchange,
    definitions,
    session,
    connections,
    config,
    get_of_qpid,
    store,
    activation,
    tls,
)
others = (acl, token, user, diagnose_command, support_bundle)
for command in (*commands, *set_commands, *message_commands, *single, *others):
    admin.add_command(command)


def main() -> None:
    """The console script."""
    admin(prog_name="qpid-ha")


if __name__ == "__main__":
    main()
