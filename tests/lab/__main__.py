"""`python -m lab`: bring up a lab by hand, look around in it, break it. See tests/lab/README.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import click

from lab.cluster import Cluster, NotInTime
from lab.machines import MachineError
from lab.netns import installation
from lab.netns.commands import CommandFailed
from lab.netns.control import SwitchError, end_switch
from lab.netns.namespace_lab import NamespaceLab, default_places, what_is_missing
from lab.plan import Plan
from lab.stage import RESOURCES
from lab.wheels import NoWheels

_Result = TypeVar("_Result")
_PROBLEMS: Final = (MachineError, SwitchError, CommandFailed, NoWheels, NotInTime, FileExistsError)


def told(act: Callable[[], _Result]) -> _Result:
    """What it returns; a problem in one sentence rather than a stack."""
    try:
        return act()
    except _PROBLEMS as problem:
        raise click.ClickException(str(problem)) from problem


def running() -> NamespaceLab:
    """The lab that is up."""
    return told(lambda: NamespaceLab.attach(default_places()))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A real Corosync and Pacemaker cluster in namespaces; QPID_HA_LAB names its directory (one lab each)."""


@main.command()
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True)
@click.option("--token", type=click.IntRange(100), default=1000, show_default=True, help="Corosync's, in ms.")
@click.option("--coordinator", default=Plan.coordinator, show_default=True, help="ha.coordinator of the brokers.")
@click.option("--no-fencing", is_flag=True, help="stonith-enabled=false.")
@click.option(
    "--resources", default="", help="Titles of blocks of docs/pacemaker.md to load; default: as the tests do."
)
@click.option("--bare", is_flag=True, help="No resources.")
@click.option("--machines-only", is_flag=True, help="Nothing installed, all of them off.")
def up(
    nodes: int, token: int, coordinator: str, no_fencing: bool, resources: str, bare: bool, machines_only: bool
) -> None:
    """Bring one up, and leave it running."""
    if problem := what_is_missing():
        raise click.ClickException(problem)
    plan = Plan(tuple(f"n{number}" for number in range(1, nodes + 1)), token, not no_fencing, coordinator)
    lab = told(lambda: NamespaceLab.up(plan, default_places(), outlives_us=True))
    if not machines_only:
        told(lambda: bring_up(lab, () if bare else resources.split() or RESOURCES))


@main.command()
@click.option("--resources", default="", help="As for up.")
@click.option("--bare", is_flag=True, help="No resources.")
def renew(resources: str, bare: bool) -> None:
    """Install the checkout as it is now, on empty disks."""
    lab = running()
    told(lambda: bring_up(lab, () if bare else resources.split() or RESOURCES))


def bring_up(lab: NamespaceLab, titles: Sequence[str]) -> None:
    """From a lab whose machines are off, or shall be."""
    cluster = Cluster(lab)
    for machine in lab.plan.machines:
        lab.power_off(machine)
    installation.install(lab)
    installation.furnish(lab)
    click.echo(f"formed after {cluster.wait_formed():.1f} s")
    if titles:
        installation.load_resources(lab, *titles)
        click.echo(f"all well after {cluster.wait_well():.1f} s")


@main.command()
def down() -> None:
    """End it; nothing is left."""
    end_switch(default_places())


@main.command()
def status() -> None:
    """Machines, the cluster, the brokers."""
    lab = running()
    for machine in lab.plan.machines:
        click.echo(f"{machine}  {lab.plan.address(machine)}  {'on' if lab.is_on(machine) else 'off'}")
    cluster = Cluster(lab)
    click.echo(cluster.text())
    click.echo(f"brokers: {cluster.states()}; virtual address: {cluster.holders() or 'nobody'}")


@main.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("machine")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def execute(machine: str, command: tuple[str, ...]) -> None:
    """Run COMMAND in MACHINE (n1 ..., client); default: a shell."""
    argv = told(lambda: running().command(machine, *(command or ("bash", "-i"))))
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@main.command()
@click.argument("machine")
@click.argument("action", type=click.Choice(["on", "off", "reboot"]))
def power(machine: str, action: str) -> None:
    """Press the button, or pull the plug."""
    told(lambda: running().switch.ask("power", machine=machine, action=action))


@main.command()
@click.argument("groups", nargs=-1, required=True)
def partition(groups: tuple[str, ...]) -> None:
    """Each of GROUPS is a list such as n1,n2; who is not named stays with the first."""
    told(lambda: running().partition(*(group.split(",") for group in groups)))


@main.command()
@click.argument("source")
@click.argument("target")
def cut(source: str, target: str) -> None:
    """Drop what SOURCE sends to TARGET, and only that."""
    told(lambda: running().cut(source, target))


@main.command()
def heal() -> None:
    """One network again."""
    told(lambda: running().heal())


@main.command()
@click.argument("machine")
@click.argument("which", type=click.Choice(["broker", "pacemaker", "corosync", "console"]))
def log(machine: str, which: str) -> None:
    """Print a log, also of a machine that is off."""
    places = {
        "broker": f"qpid-ha/{machine}.log",
        "pacemaker": "pacemaker/pacemaker.log",
        "corosync": "corosync/corosync.log",
    }
    click.echo(running().log(machine, f"/var/log/{places.get(which, 'console.log')}"))


if __name__ == "__main__":
    main(prog_name="python -m lab")
