"""Machines of namespaces as the provisioning scripts leave them: the same scripts that a virtual machine runs."""

from __future__ import annotations

import os
import shutil
import subprocess
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
    for name in ("vagrant/provision", "docs"):
        shutil.copytree(wheels.ROOT / name, source / name)
    lab.power_on(CLIENT)
    lab.output(CLIENT, str(_SCRIPTS / "keys.sh"), str(_KEYS))
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        _make_image(lab)
        return
    with wheels.one_at_a_time("images"):
        kept = wheels.CACHE / f"image-{run}"
        if not _take_image(lab, kept):
            _make_image(lab)
            _keep_image(lab, kept)


def _make_image(lab: NamespaceLab) -> None:
    """On the client, which is on; afterwards it is off."""
    wheels.build(lab.places.state / _SOURCE / "wheels")
    lab.output(CLIENT, str(_SCRIPTS / "install.sh"), str(IN_MACHINE / _SOURCE / "wheels"), timeout_s=_INSTALL_LIMIT_S)
    lab.push(CLIENT, _FENCE_AGENT, "/usr/sbin/fence_lab")
    lab.output(CLIENT, "chmod", "755", "/usr/sbin/fence_lab")
    lab.power_off(CLIENT)
    lab.bake(CLIENT)


def _keep_image(lab: NamespaceLab, kept: Path) -> None:
    """For the next lab of this test run. Where the file system cannot hold it, that one installs, too."""
    for old in wheels.CACHE.glob("image-*"):
        shutil.rmtree(old)
    unfinished = kept.with_suffix(".new")
    if _copy(lab.image(), unfinished):
        unfinished.rename(kept)
    else:
        shutil.rmtree(unfinished, ignore_errors=True)


def _take_image(lab: NamespaceLab, kept: Path) -> bool:
    """If there is one: there is no third lab, so it goes. The client is off then."""
    if not kept.exists():
        return False
    lab.power_off(CLIENT)
    lab.wipe(CLIENT)
    shutil.rmtree(lab.image(), ignore_errors=True)
    is_copied = _copy(kept, lab.image())
    shutil.rmtree(kept)
    if not is_copied:
        lab.power_on(CLIENT)
    return is_copied


def _copy(source: Path, target: Path) -> bool:
    """With all that an overlay's layer has: devices, owners, extended attributes."""
    return subprocess.run(["cp", "-a", str(source), str(target)], check=False, capture_output=True).returncode == 0


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
