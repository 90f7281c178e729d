"""What one action leaves for the next: a small file per resource that is gone after a restart of the machine.

Nothing here is a truth about the broker; that is asked for each time. It saves reading the configuration in every
monitor, and says what the watcher cannot see: that an end was asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

DIRECTORY = Path("/run/qpid-ha-agent")
"""Not below the broker's own /run/qpid-ha: its user could put links there, and we are root."""


@dataclass
class Memory:
    """The fields, with what they are before anything was written."""

    control_socket: str = ""
    is_stop_asked: bool = False
    """The broker's end is wanted: its death is no news."""
    is_forced: bool = False
    """An operator wants a promotion here whatever the broker says."""
    handed_over: str = ""
    """Where the log of this broker ended when it was demoted, as generation:lsn, until the next promotion here."""
    score: str = ""
    """The promotion score that was told last."""
    score_told_at_s: float = 0.0
    """By the clock that starts with the machine."""


class MemoryFile:
    """The promise: a reader sees a whole one, the old or the new."""

    def __init__(self, instance: str, directory: Path = DIRECTORY) -> None:
        self.directory = directory
        self._path = directory / f"{instance}.json"

    def read(self) -> Memory:
        """What was written last; what cannot be read counts as never written."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Memory()
        if not isinstance(found, dict):
            return Memory()
        known = {each.name: found[each.name] for each in fields(Memory) if each.name in found}
        return Memory(**known)

    def write(self, memory: Memory) -> None:
        """Raises OSError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(memory)), encoding="utf-8")
        temporary.replace(self._path)

    @contextlib.contextmanager
    def changed(self) -> Iterator[Memory]:
        """Read it, change it in the block, and it is written when something is different. Raises OSError."""
        memory = self.read()
        before = asdict(memory)
        yield memory
        if asdict(memory) != before:
            self.write(memory)
