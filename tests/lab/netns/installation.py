"""Machines of namespaces as the provisioning scripts leave them: the same scripts that a virtual machine runs."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from lab import first_cib, wheels
from lab.netns.namespace_lab import NamespaceLab
from lab.netns.places import IN_MACHINE, SERVICES
from lab.plan import CLIENT, SERVICE_URL, VIRTUAL_ADDRESS

_SOURCE: Final = "source"
"""Below the state directory: what a machine would get from its synced folder."""
_SCRIPTS: Final = IN_MACHINE / _SOURCE / "vagrant" / "provision"
_KEYS: Final = IN_MACHINE / _SOURCE / "keys"
_FENCE_AGENT: Final = Path(__file__).with_name("fence_lab.py")
_INSTALL_LIMIT_S: Final = 180.0


def install(lab: NamespaceLab) -> None:
    """Once per lab: into the image that all its machines share. They are off before and after."""
    source = lab.places.state / _SOURCE
    shutil.rmtree(source, ignore_errors=True)
    wheels.build(source / "wheels")
    for name in ("vagrant/provision", "docs"):
        shutil.copytree(wheels.ROOT / name, source / name)
    lab.power_on(CLIENT)
    lab.output(CLIENT, str(_SCRIPTS / "keys.sh"), str(_KEYS))
    lab.output(CLIENT, str(_SCRIPTS / "install.sh"), str(IN_MACHINE / _SOURCE / "wheels"), timeout_s=_INSTALL_LIMIT_S)
    lab.push(CLIENT, _FENCE_AGENT, "/usr/sbin/fence_lab")
    lab.output(CLIENT, "chmod", "755", "/usr/sbin/fence_lab")
    lab.power_off(CLIENT)
    lab.bake(CLIENT)


def furnish(lab: NamespaceLab) -> None:
    """Empty disks for all, configured as on a first day; then boot: a cluster that knows no resource yet."""
    for machine in lab.plan.machines:
        lab.power_off(machine)
        lab.wipe(machine)
    lab.heal()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda member: _furnish_member(lab, member), lab.plan.members))
        list(pool.map(lab.power_on, lab.plan.machines))
    _script(lab, CLIENT, "client.sh", CLUSTER_NODES=_nodes(lab), CLIENT_URL=SERVICE_URL)


def _furnish_member(lab: NamespaceLab, member: str) -> None:
    lab.power_on(member)
    _script(lab, member, "cluster.sh", CLUSTER_NODES=_nodes(lab), TOKEN=str(lab.plan.token_ms))
    _script(
        lab,
        member,
        "configure.sh",
        NODE_NAME=member,
        NODE_ADDRESS=lab.plan.address(member),
        BROKERS_URL=lab.plan.brokers_url(),
        PUBLIC_URL=SERVICE_URL,
        COORDINATOR=lab.plan.coordinator,
    )
    lab.write(member, first_cib.PATH, first_cib.first_cib(lab.plan))
    lab.shell(member, f"chown hacluster:haclient {first_cib.PATH}; chmod 600 {first_cib.PATH}")
    lab.write(member, str(SERVICES), "corosync\npacemaker\n")
    lab.power_off(member)


def load_resources(lab: NamespaceLab, *titles: str) -> None:
    """Configurations of docs/pacemaker.md, by their titles, once the cluster has formed."""
    environment = [f"VIRTUAL_IP={VIRTUAL_ADDRESS}/24", f"NODES={len(lab.plan.members)}"]
    script = str(_SCRIPTS / "resources.sh")
    lab.output(lab.plan.members[0], "env", *environment, script, *titles, timeout_s=150)


def _nodes(lab: NamespaceLab) -> str:
    return " ".join(f"{member}={lab.plan.address(member)}" for member in lab.plan.members)


def _script(lab: NamespaceLab, machine: str, name: str, **environment: str) -> None:
    values = [f"{key}={value}" for key, value in environment.items()]
    lab.output(machine, "env", f"KEYS={_KEYS}", *values, str(_SCRIPTS / name), timeout_s=60)
