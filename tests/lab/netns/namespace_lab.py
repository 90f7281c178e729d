"""The lab whose machines are namespaces on this host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from lab.machines import Lab, MachineError, MachineProcess
from lab.netns.commands import PATH
from lab.netns.control import SwitchClient, SwitchError, end_switch, start_switch
from lab.netns.places import Places
from lab.plan import Plan

STATE_VARIABLE: Final = "QPID_HA_LAB"
_TOOLS: Final = {
    "unshare": "util-linux",
    "ip": "iproute2",
    "nft": "nftables",
    "arping": "iputils-arping",
    "ping": "iputils-ping",
    "corosync": "corosync",
    "pacemakerd": "pacemaker",
    "crm_mon": "pacemaker-cli-utils",
    "xmllint": "libxml2-utils",
    "crm": "crmsh",
    "pcs": "pcs",
}
_LOCAL_ADDRESS: Final = re.compile(r"\|-- (\S+)\n +/32 host LOCAL\n")
"""In the kernel's table of routes."""
_AGENTS: Final = {
    "/usr/lib/ocf/resource.d/heartbeat/IPaddr2": "resource-agents",
    "/usr/lib/ocf/resource.d/pacemaker/Stateful": "pacemaker-resource-agents",
}


def what_is_missing() -> str:
    """Why there can be no lab on this host, and what to do about it; empty if there can."""
    if os.geteuid() != 0:
        return "namespaces take root: run ./dev lab as root"
    packages = {package for tool, package in _TOOLS.items() if shutil.which(tool, path=PATH) is None}
    packages |= {package for file, package in _AGENTS.items() if not Path(file).exists()}
    if packages:
        return f"these packages are missing: {' '.join(sorted(packages))}; ./dev lab installs them"
    tried = ["unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(tried, check=False, capture_output=True).returncode != 0:
        return "no namespaces may be made here: in a container, start it with --privileged"
    return ""


def default_places() -> Places:
    """Of the lab that is used by hand: the variable QPID_HA_LAB names its directory."""
    return Places(Path(os.environ.get(STATE_VARIABLE, "/run/qpid-ha-lab")))


class NamespaceLab(Lab):
    """Talks to a switch that runs; `up` starts one."""

    def __init__(self, places: Places, plan: Plan) -> None:
        super().__init__(plan)
        self.places = places
        self.switch = SwitchClient(places)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def attach(cls, places: Places) -> NamespaceLab:
        """To a lab that somebody else has started. Raises SwitchError."""
        SwitchClient(places).switch_pid()
        return cls(places, Plan.from_json(places.plan.read_text(encoding="utf-8")))

    @classmethod
    def up(cls, plan: Plan, places: Places | None = None, *, outlives_us: bool = False) -> NamespaceLab:
        """A new one, all its machines off. It ends with this process, unless it `outlives_us`."""
        places = places or Places(Path(tempfile.mkdtemp(prefix="qpid-ha-lab-")))
        with suppress(SwitchError):
            SwitchClient(places).switch_pid()
            raise FileExistsError(f"a lab is up in {places.state}; python -m lab down ends it")
        lab = cls(places, plan)
        lab._process = start_switch(places, plan, outlives_us=outlives_us)
        return lab

    def down(self) -> None:
        """Every process, interface, mount and file of it goes."""
        end_switch(self.places)
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait()

    # --- disks

    def bake(self, machine: str) -> None:
        """What was installed on this machine is installed on all, from their next boot on."""
        self.switch.ask("bake", machine=machine)

    def image(self) -> Path:
        """What `bake` made, as this host sees it."""
        return self.switch.root() / self.places.image.relative_to("/")

    def wipe(self, machine: str) -> None:
        """An empty disk; the machine must be off."""
        self.switch.ask("wipe", machine=machine)

    # --- what every lab can

    def command(self, machine: str, *words: str) -> list[str]:
        """See Lab."""
        return [*self.switch.entry(machine), *words]

    def power_on(self, machine: str) -> None:
        """See Lab."""
        self.switch.ask("power", machine=machine, action="on")

    def power_off(self, machine: str) -> None:
        """See Lab."""
        self.switch.ask("power", machine=machine, action="off")

    def reboot(self, machine: str) -> None:
        """See Lab."""
        self.switch.ask("power", machine=machine, action="reboot")

    def is_on(self, machine: str) -> bool:
        """See Lab."""
        return bool(self.switch.ask("status")["power"][machine] == "on")

    def cut(self, source: str, target: str) -> None:
        """See Lab."""
        self.switch.ask("cut", pairs=[(source, target)])

    def heal(self) -> None:
        """See Lab."""
        self.switch.ask("heal")

    def control_socket(self, machine: str) -> Path | None:
        """See Lab. A socket's path leads to it from every network namespace."""
        return Path("/proc", str(self.switch.init_pid(machine)), "root", "run", "qpid-ha", f"{machine}.sock")

    def processes(self, machine: str) -> list[MachineProcess]:
        """See Lab. From the machine's own /proc: `ps` in a machine takes four processes, and scenarios look often."""
        processes = Path("/proc", str(self.switch.init_pid(machine)), "root", "proc")
        found = []
        for directory in processes.glob("[0-9]*"):
            with suppress(OSError):  # it has just ended
                found.append(_read_process(directory))
        return found

    def addresses(self, machine: str) -> set[str]:
        """See Lab."""
        routes = Path("/proc", str(self.switch.init_pid(machine)), "net", "fib_trie")
        try:
            return set(_LOCAL_ADDRESS.findall(routes.read_text(encoding="ascii")))
        except OSError as problem:
            raise MachineError(f"{machine} is off: {problem}") from problem

    def log(self, machine: str, path: str) -> str:
        """See Lab."""
        if self.is_on(machine):
            with suppress(MachineError):
                return self.read(machine, path)
            return ""
        on_disk = self.switch.root() / self.places.disk(machine).relative_to("/") / "upper" / path.lstrip("/")
        return on_disk.read_text(encoding="utf-8", errors="replace") if on_disk.exists() else ""


def _read_process(directory: Path) -> MachineProcess:
    """From its directory in /proc. Raises OSError when it has ended."""
    name, _, rest = (directory / "stat").read_text(errors="replace").partition(" (")[2].rpartition(") ")
    words = (directory / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    return MachineProcess(int(directory.name), rest[0], name, " ".join(words) or f"[{name}]")
