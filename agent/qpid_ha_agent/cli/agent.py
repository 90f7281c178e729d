"""`qpid-ha-agent`: what drives a broker. Each command imports what it needs, because monitors run often."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from qpid_ha_agent.cli.command_groups import ListedGroup


@click.group(cls=ListedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="qpid-ha", prog_name="qpid-ha-agent")
def agent() -> None:
    """Drive a qpid-ha broker: start it, promote it when it must, end it when it does not answer."""


@agent.command()
@click.option(
    "--config", required=True, type=click.Path(path_type=Path), help="The broker's configuration file (YAML)."
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Any setting of the broker; repeatable.")
@click.option("--qpidd", metavar="PROGRAM", help="The broker's program.  [default: the one of this installation]")
def run(config: Path, changes: tuple[str, ...], qpidd: str | None) -> None:
    """Be a small resource manager for one broker, for use without Pacemaker.

    Starts the broker (or takes care of one that runs), holds the lock of ha.coordinator while it is primary, and hands
    over and stops it on SIGTERM. If the agent itself dies, the broker lives on. `qpid-ha restart` and `upgrade` have it
    do that and begin anew, with the programs that are installed then.

    While the broker is primary the agent has ha.virtual-ip on this machine; it runs ha.on-promoted and ha.on-demoted.
    With `workers` it is that for each of the machine's brokers, in a process of its own, and restarts those that fail.
    With ha.failback: preferred a primary makes way for a broker of higher ha.priority. `qpid-ha pause` has all agents
    leave their brokers alone. docs/runbooks/virtual-ip.md, failback.md and maintenance.md have more about each.
    """
    import asyncio

    from qpid_ha_agent.broker_process import BrokerProcessError
    from qpid_ha_agent.run_settings import count_agents, read_run_settings
    from qpid_ha_agent.runner import Runner
    from qpid_ha_agent.service import default_binary
    from qpid_ha_agent.workers import become_worker
    from qpid_ha_broker.coordination.coordinator import CoordinatorError
    from qpid_ha_config.errors import SettingsError

    for change in changes:
        if "=" not in change:
            raise click.UsageError(f"--set takes KEY=VALUE, not {change!r}")
    program = [qpidd] if qpidd else default_binary()  # by its name: `pgrep qpidd`, `pidof -x qpidd`
    try:
        count, own = count_agents(config, changes), []
        for number in range(1, count + 1):
            read_run_settings(config, (*changes, f"worker={number}"), program)  # what is wrong is said once
        if count:
            _configure_logging("of this machine")
            own = [f"worker={become_worker(count)}"]
        settings = read_run_settings(config, (*changes, *own), program)
        _configure_logging(settings.name)
        _warn_of_other_settings(config)
        runner = Runner(settings)
        asyncio.run(runner.run())
    except (SettingsError, BrokerProcessError, CoordinatorError) as error:
        click.echo(f"qpid-ha-agent: {error}", err=True)
        sys.exit(1)
    if runner.begins_anew:
        _begin_anew(own)


def _begin_anew(own: Sequence[str]) -> None:
    """Go on as the same process, for whoever watches it, with the program that is on disk now. There is no broker, no
    lock and no virtual IP of ours at this moment. `own`: settings that the command line does not say yet."""
    try:
        changes = [word for change in own for word in ("--set", change)]
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *changes])
    except OSError as error:
        click.echo(f"qpid-ha-agent: cannot start {sys.executable} again: {error.strerror}", err=True)
        sys.exit(1)


def _warn_of_other_settings(config: Path) -> None:
    """Of a key that is not known, say. A broker that runs is cared for all the same; it would not start again."""
    import logging

    from qpid_ha_config.configuration import WrittenSettings
    from qpid_ha_config.errors import SettingsError

    try:
        WrittenSettings.read(config).check_each()
    except SettingsError as error:
        logging.getLogger("agent").warning("a broker will not start with this configuration: %s", error)


def _configure_logging(name: str) -> None:
    """One line each, as the broker writes them, on stderr."""
    import logging
    import time

    form = f"%(asctime)s.%(msecs)03dZ %(levelname)s agent {name}: %(message)s"
    formatter = logging.Formatter(form, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.addLevelName(logging.INFO, "info")
    logging.addLevelName(logging.WARNING, "warning")
    logging.addLevelName(logging.ERROR, "error")


@agent.command("force-promote")
@click.option("--resource", required=True, help="The primitive's name in Pacemaker, such as broker.")
def force_promote(resource: str) -> None:
    """Let Pacemaker promote this node's broker next, against the broker's own verdict.

    For the case that those who hold what was confirmed are lost for good: what this node lacks is given up.
    """
    from qpid_ha_agent.ocf.memory import MemoryFile, state_directory
    from qpid_ha_agent.pacemaker.attributes import ClusterAttributes, ClusterUnreachable, local_node
    from qpid_ha_agent.pacemaker.election import SCORES

    try:
        with MemoryFile(resource, state_directory()).changed() as memory:
            memory.is_forced = True
        ClusterAttributes(resource, local_node()).set_score(str(SCORES["better"]))
    except (ClusterUnreachable, OSError) as error:
        click.echo(f"qpid-ha-agent: {error}", err=True)
        sys.exit(1)
    click.echo(f"{resource} on this node has the highest score now, and its next promotion is forced")


def _script_action(kind: str, short: str) -> click.Command:
    """So that help lists it; `main` of `quick` is faster than this, and usually first."""

    @click.command(kind, help=short)
    @click.argument("action", metavar="start|stop|status|restart|try-restart")
    def script(action: str) -> None:
        from qpid_ha_agent.cli.lsb import run_action

        sys.exit(run_action(kind, action))

    return script


agent.add_command(_script_action("service", "The broker of this machine, with the exit codes of an init script."))
agent.add_command(_script_action("primary", "Its role: start promotes, stop demotes; called by rgmanager/."))


def _ocf_action(name: str) -> click.Command:
    """So that help lists it; `main` is faster than this, and usually first."""

    @click.command(name, help=f"OCF action, called by ocf/qpid-ha: parameters are in OCF_RESKEY_... ({name}).")
    def action() -> None:
        from qpid_ha_agent.ocf.main import run_action

        sys.exit(run_action(name))

    return action


def add_ocf_actions() -> None:
    """Have `agent` list the OCF actions, which its command line has beside its own."""
    from qpid_ha_agent.ocf.main import ACTIONS

    for name in ACTIONS:
        agent.add_command(_ocf_action(name))


def main() -> None:
    """The command line; OCF actions do not come here."""
    add_ocf_actions()
    agent(prog_name="qpid-ha-agent")


if __name__ == "__main__":
    main()
