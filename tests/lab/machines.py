"""What a scenario may do to the machines of a lab, whatever they are made of."""

from __future__ import annotations

import io
import itertools
import json
import shlex
import subprocess
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lab.plan import Plan

_GRACE_S: Final = 5.0
"""A command is ended inside its machine first; only when that fails, from outside."""
_TIMED_OUT: Final = (124, 137)
"""What coreutils' timeout answers."""


class MachineError(Exception):
    """A command in a machine failed, or the machine is off."""


class MachineProcess(NamedTuple):
    """One process of a machine, as `ps` shows it there."""

    pid: int
    state: str
    """R, S, D, T (stopped by a signal), Z (dead, and nobody has asked how it ended), ..."""
    name: str
    """Its first 15 characters."""
    arguments: str


class Lab(ABC):
    """Machines with names, one network, and a hand on the power switch of each."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    # --- what each kind of lab brings

    @abstractmethod
    def command(self, machine: str, *words: str) -> list[str]:
        """The command, on this host, that runs these words in the machine as root. Raises MachineError."""

    @abstractmethod
    def power_on(self, machine: str) -> None:
        """Press the button; it boots, and returns to the cluster by itself."""

    @abstractmethod
    def power_off(self, machine: str) -> None:
        """Pull the plug."""

    @abstractmethod
    def reboot(self, machine: str) -> None:
        """Pull the plug, and press the button a little later."""

    @abstractmethod
    def is_on(self, machine: str) -> bool:
        """Has it power? It may still be booting."""

    @abstractmethod
    def cut(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` any more; the other way stays open."""

    @abstractmethod
    def heal(self) -> None:
        """One network again."""

    @abstractmethod
    def log(self, machine: str, path: str) -> str:
        """A file of a machine, also of one that is off, where that can be had; empty if there is none."""

    def control_socket(self, machine: str) -> Path | None:
        """Where this host reaches the control socket of the machine's broker; None where only a command in the
        machine does. Raises MachineError when the machine is off."""
        return None

    def processes(self, machine: str) -> list[MachineProcess]:
        """All that run there. Raises MachineError."""
        lines = self.output(machine, "ps", "-eo", "pid=,stat=,ucomm=,args=").splitlines()
        parts = [line.split(maxsplit=3) for line in lines]
        return [
            MachineProcess(int(pid), state[0], name, arguments)
            for pid, state, name, arguments in parts
            if not arguments.startswith("ps -eo ")
        ]

    def addresses(self, machine: str) -> set[str]:
        """Of all its interfaces, IPv4. Raises MachineError."""
        links = json.loads(self.output(machine, "ip", "-j", "-4", "addr", "show", timeout_s=5))
        return {str(entry["local"]) for link in links for entry in link.get("addr_info", ())}

    # --- the network

    def partition(self, *groups: Sequence[str]) -> None:
        """Machines of one group reach only each other. Who is not named stays with the first group."""
        named = set(itertools.chain(*groups))
        first = [*groups[0], *(machine for machine in self.plan.machines if machine not in named)]
        for one, other in itertools.permutations([first, *groups[1:]], 2):
            for source, target in itertools.product(one, other):
                self.cut(source, target)

    def cut_off(self, machine: str) -> None:
        """From everybody, both ways."""
        self.partition([name for name in self.plan.machines if name != machine], [machine])

    # --- commands and files

    def run(
        self, machine: str, *command: str, timeout_s: float = 30.0, check: bool = True, stdin: str | bytes = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end. Raises MachineError when it fails (`check`), and when it takes too long."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        limited = self.command(machine, "timeout", "--kill-after=1", f"{timeout_s:g}", *command)
        try:
            done = subprocess.run(
                limited, input=data, check=False, capture_output=True, timeout=timeout_s + _GRACE_S, cwd="/"
            )
        except subprocess.TimeoutExpired as late:
            raise MachineError(f"{machine}: {shlex.join(command)}: no end after {late.timeout:g} s") from late
        answer = subprocess.CompletedProcess(
            command, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        )
        if check and answer.returncode != 0:
            raise MachineError(_complaint(machine, answer, timeout_s))
        return answer

    def output(self, machine: str, *command: str, timeout_s: float = 30.0) -> str:
        """What it prints. Raises MachineError when it fails."""
        return self.run(machine, *command, timeout_s=timeout_s).stdout

    def shell(self, machine: str, script: str, *, timeout_s: float = 30.0, check: bool = True) -> str:
        """What a few lines of bash print. Raises MachineError."""
        return self.run(machine, "bash", "-euc", script, timeout_s=timeout_s, check=check).stdout

    def spawn(self, machine: str, *command: str) -> subprocess.Popen[str]:
        """Start it, with pipes to its input and output. It should end with its input, or with the machine."""
        return subprocess.Popen(
            self.command(machine, *command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd="/",
        )

    def push(self, machine: str, source: Path, target: str) -> None:
        """Copy a file or a directory's content to the path `target`; its directories are made."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(source, arcname=Path(target).name if source.is_file() else ".")
        directory = str(Path(target).parent) if source.is_file() else target
        unpack = f"mkdir -p {shlex.quote(directory)} && tar -x --no-same-owner -C {shlex.quote(directory)}"
        self.run(machine, "bash", "-euc", unpack, stdin=packed.getvalue(), timeout_s=60)

    def write(self, machine: str, path: str, text: str) -> None:
        """Make a file of that content."""
        self.run(machine, "bash", "-euc", f"cat > {shlex.quote(path)}", stdin=text)

    def read(self, machine: str, path: str) -> str:
        """A file's content. Raises MachineError."""
        return self.output(machine, "cat", path)

    def members_on(self) -> list[str]:
        """The cluster's nodes that have power."""
        return [member for member in self.plan.members if self.is_on(member)]

    def power_on_all(self, machines: Iterable[str] | None = None) -> None:
        """Every one that is off."""
        for machine in machines or self.plan.machines:
            if not self.is_on(machine):
                self.power_on(machine)


def _complaint(machine: str, answer: subprocess.CompletedProcess[str], timeout_s: float) -> str:
    said = "\n".join(part for part in (answer.stderr.strip(), answer.stdout.strip()) if part)
    what = f"no end after {timeout_s:g} s" if answer.returncode in _TIMED_OUT else f"exit code {answer.returncode}"
    return f"{machine}: {shlex.join(answer.args)}: {what}: {said[-3000:]}"
