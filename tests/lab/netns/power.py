"""The power of a lab's machines, and their disks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from lab.netns.cables import Cables
from lab.netns.places import Places
from lab.plan import Plan

_NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
_BOOT_LIMIT_S = 15.0
_GLANCE_S = 0.005


class Power:
    """`off` is pulling the plug: no process of the machine does anything after it. Disks keep what was written."""

    def __init__(self, places: Places, plan: Plan, cables: Cables, lock: threading.RLock) -> None:
        self._places = places
        self._plan = plan
        self._cables = cables
        self._lock = lock
        self._machines: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
        """Those that are on: who waits for its init, and the init's process id in the switch's namespace."""
        self._boots: dict[str, threading.Timer] = {}

    def processes(self) -> dict[str, int]:
        """Of each machine that is on, its init's process id."""
        return {machine: init for machine, (_, init) in self._machines.items()}

    def on(self, machine: str) -> None:
        """Boot it, unless it is on."""
        self._forget_boot(machine)
        if machine in self._machines:
            return
        self._places.booted(self._known(machine)).unlink(missing_ok=True)
        with self._places.console(machine).open("ab") as console:
            command = [sys.executable, "-m", "lab.netns.node_boot", str(self._places.state), machine]
            unshare = subprocess.Popen(
                ["unshare", *_NAMESPACES, *command], stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
        init = first_child(unshare)
        self._machines[machine] = (unshare, init)
        self._cables.plug_in(machine, init)
        self._wait_until_booted(machine, unshare)

    def off(self, machine: str) -> None:
        """Pull the plug, unless it is off."""
        self._forget_boot(self._known(machine))
        if machine not in self._machines:
            return
        self._cables.pull_out(machine)
        unshare, init = self._machines.pop(machine)
        with suppress(ProcessLookupError):  # it has died by itself
            os.kill(init, signal.SIGKILL)
        unshare.wait()

    def reboot(self, machine: str) -> None:
        """Off, and on again after the plan's delay."""
        self.off(machine)
        timer = threading.Timer(self._plan.boot_delay_s, self._boot, [machine])
        timer.daemon = True
        self._boots[machine] = timer
        timer.start()

    def _boot(self, machine: str) -> None:
        with self._lock:
            if machine in self._boots:
                self.on(machine)

    def _wait_until_booted(self, machine: str, init: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _BOOT_LIMIT_S
        while not self._places.booted(machine).exists():
            if init.poll() is not None or time.monotonic() > deadline:
                self.off(machine)
                raise RuntimeError(f"{machine} does not boot; see {self._places.console(machine)}")
            time.sleep(_GLANCE_S)

    def wipe(self, machine: str) -> None:
        """An empty disk."""
        self._must_be_off(machine)
        shutil.rmtree(self._places.disk(machine), ignore_errors=True)

    def bake(self, machine: str) -> None:
        """What was written on this machine becomes the layer below every machine's disk."""
        if self._machines:
            raise ValueError(f"an image changes while no machine is on; these are: {', '.join(self._machines)}")
        shutil.rmtree(self._places.image, ignore_errors=True)
        (self._places.disk(self._known(machine)) / "upper").rename(self._places.image)
        self.wipe(machine)

    def _must_be_off(self, machine: str) -> None:
        if self._known(machine) in self._machines:
            raise ValueError(f"{machine} is on")

    def _known(self, machine: str) -> str:
        if machine not in self._plan.machines:
            raise ValueError(f"no machine {machine}")
        return machine

    def _forget_boot(self, machine: str) -> None:
        timer = self._boots.pop(machine, None)
        if timer is not None:
            timer.cancel()


def first_child(parent: subprocess.Popen[bytes], timeout_s: float = 10.0) -> int:
    """The process id of the one child that `unshare` forks, as seen here. Raises RuntimeError."""
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if parent.poll() is not None:
            raise RuntimeError(f"unshare ended with exit code {parent.returncode}")
        if found := children.read_text(encoding="ascii").split():
            return int(found[0])
        time.sleep(_GLANCE_S)
    raise RuntimeError("unshare forked nothing")
