"""The lab's machines as rgmanager would have them: no Pacemaker, a broker on each, and what script.sh and ip.sh do."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from lab.cluster import Cluster
from lab.machines import Lab, MachineError
from lab.netns.namespace_lab import NamespaceLab
from lab.netns.places import IN_MACHINE
from lab.plan import SERVICE_URL, VIRTUAL_ADDRESS
from lab.rgmanager_conf import ClusterConf, Resource, Service, parse_conf

EXAMPLE: Final = Path(__file__).resolve().parents[2] / "rgmanager" / "cluster.conf"
ENVIRONMENT: Final = ("LC_ALL=C", "LANG=C", "PATH=/bin:/sbin:/usr/bin:/usr/sbin")
"""All that script.sh gives, beside the OCF variables: rgmanager's own environment is not handed on."""
NFT_TABLE: Final = "inet slow"
_LIMIT_S: Final = 120.0
_SOURCE: Final = IN_MACHINE / "source"


def furnish(lab: NamespaceLab) -> None:
    """Empty disks, configured as docs/rgmanager.md says, and booted; nothing of ours runs, nor does Pacemaker."""
    for machine in lab.plan.machines:
        lab.power_off(machine)
        lab.wipe(machine)
    lab.heal()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lab.power_on, lab.plan.machines))
        for machine in lab.plan.machines:
            await_boot(lab, machine)
        list(pool.map(lambda member: _configure(lab, member), lab.plan.members))


def await_boot(lab: Lab, machine: str) -> None:
    """Until a command can be run there."""
    Cluster(lab).wait(lambda: lab.run(machine, "true").returncode == 0, f"{machine} is up")


def _configure(lab: NamespaceLab, member: str) -> None:
    variables = {
        "KEYS": f"{_SOURCE}/keys",
        "NODE_NAME": member,
        "NODE_ADDRESS": lab.plan.address(member),
        "BROKERS_URL": lab.plan.brokers_url(),
        "PUBLIC_URL": SERVICE_URL,
        "COORDINATOR": "none",
        "MIN_IN_SYNC": "2",
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    lab.output(member, "env", *settings, f"{_SOURCE}/vagrant/provision/configure.sh")


class Step(NamedTuple):
    """One run of a script, and what it said."""

    node: str
    resource: str
    action: str
    code: int
    said: str
    took_s: float

    def __str__(self) -> str:
        return f"{self.node} {self.resource} {self.action}: {self.code} {self.said} ({self.took_s:.1f} s)"


def example_conf(lab: Lab) -> ClusterConf:
    """rgmanager/cluster.conf, with the lab's names in it: what its head tells people to change, and nothing else."""
    text = EXAMPLE.read_text(encoding="utf-8").replace("10.0.0.100", VIRTUAL_ADDRESS)
    for number, member in enumerate(lab.plan.members, start=1):
        text = text.replace(f'"node{number}"', f'"{member}"').replace(f"qpidd-node{number}", f"qpidd-{member}")
        text = text.replace(f"node{number}-", f"{member}-")
    return parse_conf(text)


class Site:
    """Runs what the model of rgmanager decides. `steps`: what was run since the last look, in the order of answers."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.steps: list[Step] = []
        self.told: list[Step] = []
        """All of them, for people."""

    def run(self, node: str, service: Service, resource: Resource, action: str, depth: int) -> int:
        """0 or not."""
        began_s = time.monotonic()
        if resource.kind == "ip":
            done = self.lab.run(node, "bash", "-c", _address_script(action, resource.name, depth), check=False)
        else:
            done = self.script(node, resource.attributes["file"], action, service.name)
        said = " ".join((done.stdout + done.stderr).split())
        step = Step(node, resource.name, action, done.returncode, said, time.monotonic() - began_s)
        self.steps.append(step)
        self.told.append(step)
        return 1 if done.returncode else 0

    def script(self, node: str, file: str, action: str, service: str) -> subprocess.CompletedProcess[str]:
        """As script.sh does it: one argument, its environment, nobody who types, and no limit (but ours)."""
        variables = {
            "OCF_RA_VERSION_MAJOR": "1",
            "OCF_RA_VERSION_MINOR": "0",
            "OCF_ROOT": "/usr/lib/ocf",
            "OCF_CHECK_LEVEL": "0",
            "OCF_RESOURCE_TYPE": "script",
            "OCF_RESOURCE_INSTANCE": Path(file).name,
            "OCF_RESKEY_name": Path(file).name,
            "OCF_RESKEY_file": file,
            "OCF_RESKEY_service_name": service,
        }
        environment = [*ENVIRONMENT, *(f"{name}={value}" for name, value in variables.items())]
        return self.lab.run(node, "env", "-i", *environment, file, action, timeout_s=_LIMIT_S, check=False)

    # --- looking

    def taken(self, *actions: str) -> list[str]:
        """What was run since the last look, as `node resource action`; only these actions, if some are named."""
        steps, self.steps = self.steps, []
        return [" ".join(step[:3]) for step in steps if not actions or step.action in actions]

    def pid(self, node: str) -> int:
        """Of the broker; 0 when there is none. Raises MachineError when there are two."""
        found = self.lab.run(node, "pgrep", "-f", "[q]pidd .*--control-socket", check=False).stdout.split()
        if len(found) > 1:
            raise MachineError(f"{node}: {len(found)} brokers run: {', '.join(found)}")
        return int(found[0]) if found else 0

    def signal(self, node: str, name: str) -> None:
        """To the broker."""
        self.lab.output(node, "kill", f"-{name}", str(self.pid(node)))

    # --- breaking

    def slow_down(self, node: str, bytes_per_s: int) -> None:
        """What comes in from brokers is dropped above that rate."""
        rule = f"tcp sport 5672 limit rate over {bytes_per_s} bytes/second burst {bytes_per_s} bytes drop"
        chain = "{ type filter hook input priority 0 ; }"
        commands = f"add table {NFT_TABLE}; add chain {NFT_TABLE} input {chain}; add rule {NFT_TABLE} input {rule}"
        self.lab.output(node, "nft", commands)

    def speed_up(self, node: str) -> None:
        """As it was."""
        self.lab.output(node, "nft", f"delete table {NFT_TABLE}")


def _address_script(action: str, address: str, depth: int) -> str:
    """What ip.sh does, in short; its waits (a ping for 2 s, two announcements a second apart) are shorter here."""
    is_here = f"ip -o -4 addr show dev eth0 | grep -q ' {address}/'"
    steps: Mapping[str, str] = {
        "start": f"{is_here} && exit 0; ping -q -c 1 -w 1 {address} && exit 1;"
        f" ip addr add {address}/24 dev eth0 && arping -q -c 1 -U -I eth0 {address}",
        "stop": f"{is_here} || exit 0; ip addr del {address}/24 dev eth0; ! {is_here}",
        "status": f"{is_here} && [ $(cat /sys/class/net/eth0/carrier) = 1 ]"
        + (f" && ping -q -c 1 -w 2 {address}" if depth else ""),
    }
    return f"{{ {steps[action]}; }} >/dev/null"
