"""What one action leaves for the next: a small file per resource that is gone after a restart of the machine.

Nothing here is a truth about the broker; that is asked for each time. It saves reading the configuration in every
monitor, and says what the watcher cannot see: that an end was asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

DIRECTORY = Path("/run/qpid-ha-agent")
"""Not below the broker's own /run/qpid-ha: its user could put links there, and we are root."""
HELD_BACK_S = 20.0
"""Pacemaker makes a demotion and a restart of a refusal, which takes a busy machine ten seconds; then it is another
one's turn. Who was refused for want of somebody who comes does not wait for this to end."""
DIRECTORY_VARIABLE = "QPID_HA_AGENT_STATE"


def state_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where these files are, unless the environment names another place."""
    return Path(environment.get(DIRECTORY_VARIABLE) or DIRECTORY)


class Memory(SimpleNamespace):
    """The fields, with what they are before anything was written.

    No dataclass: to import what makes one costs a monitor as much as a tenth of all else that it does.
    """

    control_socket: str = ""
    stops: int = 0
    """How often a stop was asked for. A watcher that finds more than it began with has no news: the death of its broker
    was wanted, or is being recovered from."""
    is_started: bool = False
    """A start has succeeded, and no stop was asked for since: a broker that is gone has failed."""
    failure: str = ""
    """What became of the broker that was started last, as the watcher saw it; empty: nothing, as far as is known."""
    is_failure_shown: bool = False
    """A failure is told beside the score, until somebody cleans up."""
    is_hanging: bool = False
    """The watcher has waited in vain for an answer: nobody has to wait for as long once more."""
    is_forced: bool = False
    """An operator wants a promotion here whatever the broker says."""
    may_lead: bool = False
    """The broker was asked to lead, and did not refuse, since it was demoted or stopped last."""
    handed_over: str = ""
    """Where the log of this broker ended when it was demoted, as generation:lsn, until the next promotion here."""
    position: str = ""
    """How far the broker was, as it was published last; empty: nothing is published."""
    position_told_at_s: float = 0.0
    """When that was, by the clock that starts with the machine; 0: never."""
    probe_pid: int = 0
    """The process that asked last whether another machine has the virtual IP, before a promotion; 0: none did."""
    probed_free_at_s: float = 0.0
    """When nobody answered it, by the same clock; 0: somebody always has, or it was not asked."""
    score: str = ""
    """The promotion score that was told last."""
    is_refused: bool = False
    """The broker would not be promoted: its score rises again with the next monitor, and not before."""
    refusal: str = ""
    """Why the broker would not be promoted when that was tried last, until there is a primary."""
    refused_at_s: float = 0.0
    """When that was, by the clock that starts with the machine; 0: never, or it is worth another attempt."""
    refused_among: Sequence[str] = ()
    """The brokers that answered then, as far as is known: one more attempt among them would be the same."""
    score_told_at_s: float = 0.0
    """By the clock that starts with the machine."""
    fell_at_s: float = 0.0
    """Since when the broker is worth less than was told, by the same clock; 0: it is not."""
    is_drain_note_gone: bool = False
    """There is no note that this node's broker was drained because of a standby."""
    hindrance: str = ""
    """The sentence that was told of why the broker cannot be promoted, while nobody else is."""
    hindered_since_s: float = 0.0
    """By the same clock; 0: it is not."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**{**_NEW, "refused_among": [], **values})

    @property
    def standing_refusal(self) -> Sequence[str] | None:
        """Who answered when it was refused, while that matters and is known, else None."""
        return (self.refused_among or None) if self.refused_at_s else None

    @property
    def is_held_back(self) -> bool:
        """The broker was refused so recently that it would be again, even if it was restarted or demoted since."""
        return bool(self.refused_at_s) and time.monotonic() - self.refused_at_s < HELD_BACK_S


_NEW: Final = {name: getattr(Memory, name) for name in Memory.__annotations__}


class MemoryFile:
    """The promise: a reader sees a whole one, the old or the new, and of two who change it neither undoes the other."""

    def __init__(self, instance: str, directory: Path) -> None:
        self.instance = instance
        self.directory = directory
        self._path = directory / f"{instance}.json"

    def read(self) -> Memory:
        """What was written last; what cannot be read counts as never written."""
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return Memory()
        if not isinstance(document, dict):
            return Memory()
        kinds = {name: list if isinstance(value, tuple) else type(value) for name, value in _NEW.items()}
        return Memory(**{name: document[name] for name, kind in kinds.items() if isinstance(document.get(name), kind)})

    def write(self, memory: Memory) -> None:
        """Raises OSError."""
        self._make_directory()
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(vars(memory)), encoding="utf-8")
        temporary.replace(self._path)

    @contextlib.contextmanager
    def changed(self) -> Iterator[Memory]:
        """Read it, change it in the block, and it is written when something is different. Raises OSError."""
        with self.one_at_a_time():
            memory = self.read()
            before = dict(vars(memory))
            yield memory
            if vars(memory) != before:
                self.write(memory)

    def note(self, **fields: Any) -> str:
        """Set these; what was not written, and why: empty when all is."""
        try:
            with self.changed() as memory:
                vars(memory).update(fields)
        except OSError as error:
            return f"cannot note {', '.join(fields)} in {self.directory}: {error.strerror or error}"
        return ""

    @contextlib.contextmanager
    def one_at_a_time(self, doing: str = "") -> Iterator[None]:
        """Who is `doing` this, as a part of a file's name; empty: who changes the memory. The watcher may be telling a
        score while an action notes that a stop is wanted. Raises OSError."""
        self._make_directory()
        suffix = f".{doing}.lock" if doing else ".lock"
        with self._path.with_suffix(suffix).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
