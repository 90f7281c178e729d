"""Starting, asking and ending a lab's switch, from the host."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from lab.machines import MachineError
from lab.netns.commands import ENVIRONMENT
from lab.netns.places import Places
from lab.netns.power import first_child
from lab.plan import Plan

_TESTS: Final = Path(__file__).resolve().parents[2]
_NAMESPACES: Final = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")
_START_LIMIT_S: Final = 15.0
_FIND_LIMIT_S: Final = 1.0
_GLANCE_S: Final = 0.01


class SwitchError(Exception):
    """The switch refused, or does not answer."""


class SwitchClient:
    """Talks to the switch of the lab in that state directory, whoever started it."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._inits: dict[str, tuple[int, int]] = {}

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        """The switch's state after that operation. Raises SwitchError."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(60)
                connection.connect(str(self._places.socket))
                connection.sendall(json.dumps({"op": op, **request}).encode() + b"\n")
                with connection.makefile(encoding="utf-8") as lines:
                    reply: dict[str, Any] = json.loads(lines.readline())
        except (OSError, ValueError) as problem:
            raise SwitchError(f"no lab answers in {self._places.state}: {problem}") from problem
        if not reply["ok"]:
            raise SwitchError(reply["error"])
        return reply

    def entry(self, machine: str) -> list[str]:
        """The command that runs what is appended to it in a machine. Raises MachineError when it is off."""
        process_id = self.init_pid(machine)
        environment = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
        return ["nsenter", "-t", str(process_id), "-m", "-n", "-p", "-i", "-u", "--", "env", "-i", *environment]

    def init_pid(self, machine: str) -> int:
        """The host's id of a machine's first process. Raises MachineError when it is off."""
        init = self.ask("status")["init"].get(machine)
        if init is None:
            raise MachineError(f"{machine} is off")
        known = self._inits.get(machine)
        if known is None or known[0] != init:
            known = self._inits[machine] = (init, _find(self.switch_pid(), init))
        return known[1]

    def root(self) -> Path:
        """The switch's file system, disks of machines among it."""
        return Path(f"/proc/{self.switch_pid()}/root")

    def switch_pid(self) -> int:
        """Raises SwitchError when there is none."""
        try:
            process_id, started = self._places.switch_pid.read_text(encoding="ascii").split()
            if _start_time(int(process_id)) == started:
                return int(process_id)
        except (OSError, ValueError):
            pass
        raise SwitchError(f"no lab runs in {self._places.state}")


def start_switch(places: Places, plan: Plan, *, outlives_us: bool = False) -> subprocess.Popen[bytes]:
    """Start it, and wait until it answers. It ends when the standard input that it gets from us does, unless it
    `outlives_us`: then `end_switch` is the way. Raises SwitchError."""
    places.state.mkdir(parents=True, exist_ok=True)
    places.state.chmod(0o755)
    places.plan.write_text(plan.to_json(), encoding="utf-8")
    own_end, other_end = os.pipe()
    with places.switch_log.open("ab") as log:
        process = subprocess.Popen(
            ["unshare", *_NAMESPACES, sys.executable, "-m", "lab.netns.switch", str(places.state)],
            stdin=own_end if outlives_us else subprocess.PIPE,
            pass_fds=(other_end,) if outlives_us else (),  # it holds its own input open
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(_TESTS)},
            start_new_session=True,
        )
    os.close(own_end)
    os.close(other_end)
    process_id = first_child(process)
    places.switch_pid.write_text(f"{process_id} {_start_time(process_id)}", encoding="ascii")
    _wait_for_answer(places, process)
    return process


def end_switch(places: Places) -> None:
    """Whoever started it; whether it runs or not. Nothing is left."""
    with suppress(SwitchError):
        process_id = SwitchClient(places).switch_pid()
        os.kill(process_id, signal.SIGKILL)
        while Path(f"/proc/{process_id}").exists():
            time.sleep(_GLANCE_S)
    shutil.rmtree(places.state, ignore_errors=True)


def _wait_for_answer(places: Places, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while True:
        try:
            SwitchClient(places).ask("status")
            return
        except SwitchError:
            if process.poll() is not None or time.monotonic() > deadline:
                log = places.switch_log.read_text(encoding="utf-8", errors="replace")
                raise SwitchError(f"the lab's switch does not start: {log[-2000:]}") from None
            time.sleep(_GLANCE_S)


def _start_time(process_id: int) -> str:
    """In clock ticks since the host booted; with it a process id names one process for ever."""
    after_name = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    return after_name.split()[19]


def _find(ancestor: int, inner_id: int) -> int:
    """As `_descendant`, but again when it was not seen: the kernel may skip a child while another one ends."""
    deadline = time.monotonic() + _FIND_LIMIT_S
    while (found := _descendant(ancestor, inner_id)) is None:
        if time.monotonic() > deadline:
            raise MachineError(f"the switch's process {inner_id} is gone")
        time.sleep(_GLANCE_S)
    return found


def _descendant(ancestor: int, inner_id: int) -> int | None:
    """The host's id of the process that the ancestor's namespace knows as `inner_id`."""
    waiting = [ancestor]
    while waiting:
        process_id = waiting.pop()
        with suppress(OSError):
            status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8", errors="replace")
            names = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
            if len(names) == 3 and names[1] == str(inner_id):
                return process_id
            waiting += _children(process_id)
    return None


def _children(process_id: int) -> list[int]:
    """Of every thread: the switch starts machines from threads of its own."""
    tasks = Path(f"/proc/{process_id}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text(encoding="ascii").split()]
