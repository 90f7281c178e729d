"""The lab whose machines are those of vagrant/, which `vagrant up` has brought up and provisioned.

It does less than the lab in namespaces: disks cannot be wiped, so what needs a first start is skipped, and pulling the
plug takes seconds. Times of its client are converted, not shared.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from lab.cluster import Cluster, NotInTime
from lab.machines import Lab, MachineError
from lab.plan import Plan
from lab.restoring import restore
from lab.wheels import ROOT

_DIRECTORY: Final = ROOT / "vagrant"
_PLAN: Final = Plan(members=("node1", "node2", "node3"), has_fencing=False)
_TABLE: Final = "netdev qpid_ha_lab"
_VAGRANT_LIMIT_S: Final = 300.0


def what_is_missing() -> str:
    """Why the tests cannot use these machines; empty if they can."""
    if shutil.which("vagrant") is None or shutil.which("ssh") is None:
        return "vagrant and ssh are not installed"
    try:
        off = [machine for machine, state in _states().items() if state != "running"]
    except MachineError as problem:
        return str(problem)
    return f"{', '.join(off)} do not run: vagrant up, in vagrant/" if off else ""


def _vagrant(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["vagrant", *arguments],
            cwd=_DIRECTORY,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_VAGRANT_LIMIT_S,
        )
    except subprocess.TimeoutExpired as late:
        raise MachineError(f"vagrant {shlex.join(arguments)}: no end after {late.timeout:g} s") from late
    if done.returncode != 0:
        raise MachineError(f"vagrant {shlex.join(arguments)}: {(done.stderr or done.stdout).strip()[-1000:]}")
    return done.stdout


def _states() -> dict[str, str]:
    """Of each machine, Vagrant's word for it: running, poweroff (VirtualBox), shutoff (libvirt), not_created."""
    rows = (line.split(",") for line in _vagrant("status", "--machine-readable").splitlines())
    return {row[1]: row[3] for row in rows if len(row) > 3 and row[2] == "state"}


class VagrantLab(Lab):
    """Commands go through ssh, power through vagrant, cuts are filters in the machine that shall not hear."""

    def __init__(self) -> None:
        super().__init__(_PLAN)
        self._ssh_config = Path(tempfile.mkstemp(prefix="qpid-ha-ssh-")[1])
        self._ssh_config.write_text(_vagrant("ssh-config"), encoding="utf-8")

    def close(self) -> None:
        """The machines stay as they are."""
        self._ssh_config.unlink()

    def command(self, machine: str, *words: str) -> list[str]:
        """See Lab."""
        return ["ssh", "-F", str(self._ssh_config), machine, shlex.join(["sudo", "-n", "--", *words])]

    def power_on(self, machine: str) -> None:
        """See Lab."""
        _vagrant("up", "--no-provision", machine)

    def power_off(self, machine: str) -> None:
        """See Lab."""
        _vagrant("halt", "--force", machine)

    def reboot(self, machine: str) -> None:
        """See Lab."""
        self.power_off(machine)
        self.power_on(machine)

    def is_on(self, machine: str) -> bool:
        """See Lab."""
        return _states()[machine] == "running"

    def cut(self, source: str, target: str) -> None:
        """See Lab. Frames are known by their sender's hardware address: ARP and the virtual address are cut too."""
        sender = self._interface(source)
        hardware = self.read(source, f"/sys/class/net/{sender}/address").strip()
        self.shell(
            target,
            f"nft add table {_TABLE}\n"
            f"nft 'add chain {_TABLE} in {{ type filter hook ingress device {self._interface(target)} priority 0; }}'\n"
            f"nft add rule {_TABLE} in ether saddr {hardware} drop",
        )

    def heal(self) -> None:
        """See Lab."""
        for machine in self.plan.machines:
            if self.is_on(machine):
                self.run(machine, "nft", "delete", "table", *_TABLE.split(), check=False)

    def log(self, machine: str, path: str) -> str:
        """See Lab. A machine that is off keeps its logs to itself."""
        with suppress(MachineError):
            return self.read(machine, path)
        return ""

    def _interface(self, machine: str) -> str:
        shown = self.output(machine, "ip", "-o", "-4", "addr", "show", "to", self.plan.address(machine))
        return shown.split()[1]


class VagrantStage:
    """Puts the machines in order between two scenarios."""

    def __init__(self) -> None:
        self.lab = VagrantLab()
        self.cluster = Cluster(self.lab)

    def ready(self, *_: str) -> Cluster:
        """The cluster that vagrant/ has provisioned, in order. Raises NotInTime, MachineError."""
        try:
            restore(self.cluster, has_fencing=False)
        except NotInTime:
            for member in self.lab.plan.members:  # what no order cures, a new boot does
                self.lab.reboot(member)
            restore(self.cluster, has_fencing=False)
        return self.cluster

    def distrust(self) -> None:
        """`ready` looks at all of it anyway."""

    def close(self) -> None:
        """The machines stay as they are."""
        self.lab.close()
