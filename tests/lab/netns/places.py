"""Where a lab keeps what: one state directory on the host, which every machine sees as /lab."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

IN_MACHINE: Final = Path("/lab")
"""The state directory, as a machine sees it: the fence agent finds the power switch there."""
SERVICES: Final = Path("/etc/lab-services")
"""On a machine's disk: what its PID 1 starts, a name in each line. Without it the machine boots bare."""
SOCKET: Final = "switch.sock"


@dataclass(frozen=True)
class Places:
    """Of one lab."""

    state: Path

    @property
    def socket(self) -> Path:
        """The switch answers here."""
        return self.state / SOCKET

    @property
    def plan(self) -> Path:
        """The lab's Plan as JSON."""
        return self.state / "plan.json"

    @property
    def switch_log(self) -> Path:
        """What the switch did, with times."""
        return self.state / "switch.log"

    @property
    def switch_pid(self) -> Path:
        """The switch's process id on the host, and when it started: ids are used again."""
        return self.state / "switch.pid"

    @property
    def disks(self) -> Path:
        """A tmpfs that only the switch and its machines see. An overlay's writable layer must not lie on `/` itself."""
        return self.state / "disks"

    @property
    def image(self) -> Path:
        """A read-only layer below every machine's disk: what was installed once, for all."""
        return self.disks / "image"

    def disk(self, machine: str) -> Path:
        """What a machine wrote; it outlives a power cycle."""
        return self.disks / machine

    def console(self, machine: str) -> Path:
        """What a machine's PID 1 prints."""
        return self.state / f"{machine}.console"

    def booted(self, machine: str) -> Path:
        """It exists once the machine sees its own file system: no command may enter before."""
        return self.state / f"{machine}.booted"
