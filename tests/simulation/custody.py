"""Who holds a copy, as seen from outside: what processes received, what reached the platters, what was lost since.

Nothing here asks a broker for its in-sync set. Memory is told of each batch and chunk that a process took in, disks of
each write that a sync covered; deaths and lost disks are told by whoever caused them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from simulation.copies import payloads_in

Process = tuple[str, int]
"""A broker's name, and which of its processes."""


class Message(Protocol):
    """What is held."""

    @property
    def durable(self) -> bool:
        """Where there are stores, it counts where it is on a disk."""

    def payload(self) -> bytes:
        """Its bytes; they are part of no other payload."""


class Generation(NamedTuple):
    """A generation of one cluster: a cluster that has lost all memory may begin to count anew."""

    cluster: str
    number: int


class Holder(NamedTuple):
    """Somebody who has a record: a process in its memory, or, with `disk`, a machine on its disk of that number."""

    name: str
    process: int
    disk: int = 0

    def __str__(self) -> str:
        return f"disk {self.disk} of {self.name}" if self.disk else f"{self.name}#{self.process}"


class Loss(NamedTuple):
    """Why a holder has lost what it held since `since_s`; what it held before is there still.

    `is_silent`: nothing that brokers can ask tells of it.
    """

    cause: str
    since_s: float = 0.0
    is_silent: bool = False


class Custody:
    """Records who held what, and why whoever holds it no more does not.

    A holder is lost only by a death (of memory) or by damage (of a disk) that was reported here with its cause.
    """

    def __init__(
        self,
        names: Iterable[str],
        has_store: bool,
        now_s: Callable[[], float],
        payloads_in: Callable[[bytes], list[bytes]] = payloads_in,
    ) -> None:
        """`payloads_in`: the payloads of messages in the bytes of a frame or a file."""
        self._payloads_in = payloads_in
        self._has_store = has_store
        self._now_s = now_s
        self._disks: dict[str, int] = dict.fromkeys(names, 1)
        self._disk_of: dict[Process, int] = {}
        self._in_memory: dict[bytes, set[Process]] = {}
        self._on_disk: dict[bytes, set[tuple[str, int]]] = {}
        self._ends: dict[Generation, dict[Process, int]] = {}
        self._losses: dict[Holder, Loss] = {}
        self._began_s: dict[Holder, float] = {Holder(name, 0, 1): 0.0 for name in self._disks}
        """Of each disk."""
        self._is_on: dict[Holder, int] = {}
        """On which disk is what a disk still has, although it was lost; without an entry, on the next one."""
        self._synced_s: dict[str, float] = {}

    # --- what happens

    def started(self, process: Process) -> None:
        """A new process, with nothing in its memory that was not on its disk."""
        self._disk_of[process] = self._disks[process[0]]

    def died(self, process: Process, cause: str) -> None:
        """A process is gone, and its memory with it."""
        self._losses[Holder(*process)] = Loss(f"{cause} at {self._now_s():.1f} s")

    def disk_lost(self, name: str, cause: str, since_s: float = 0.0, *, is_silent: bool = False) -> None:
        """What came to the disk since then is not there any more."""
        loss = Loss(f"{cause} at {self._now_s():.1f} s", since_s, is_silent)
        self._losses[Holder(name, 0, self._disks[name])] = loss
        self._replace(name)

    def disk_put_back(self, name: str, cause: str, copied_s: float, *, is_silent: bool) -> None:
        """What came to the disk since then is not there any more; what an earlier disk had by then is there again."""
        self.disk_lost(name, cause, copied_s, is_silent=is_silent)
        newest = self._disks[name]
        copied = max(each for each in range(1, newest) if self._began_s[Holder(name, 0, each)] <= copied_s)
        for number in range(copied, newest - 1):
            self._losses[Holder(name, 0, number)] = self._losses[Holder(name, 0, newest - 1)]
        self._is_on[Holder(name, 0, copied)] = newest

    def _replace(self, name: str) -> None:
        self._disks[name] += 1
        self._began_s[Holder(name, 0, self._disks[name])] = self._now_s()

    def received(self, process: Process, data: bytes) -> None:
        """A process has taken messages into its memory."""
        for payload in self._payloads_in(data):
            self._in_memory.setdefault(payload, set()).add(process)

    def reached(self, process: Process, generation: Generation, lsn: int) -> None:
        """A process has the log of `generation` up to `lsn`, without a gap."""
        ends = self._ends.setdefault(generation, {})
        ends[process] = max(lsn, ends.get(process, 0))

    def synced(self, name: str, data: bytes) -> None:
        """Bytes have reached the disk of a machine."""
        self._synced_s[name] = self._now_s()
        for payload in self._payloads_in(data):
            self._on_disk.setdefault(payload, set()).add((name, self._disks[name]))

    # --- what follows

    def holders_of(self, copy: Message) -> tuple[Holder, ...]:
        """Whoever received it, or with stores, if it is durable, has synced it."""
        payload = copy.payload()
        if self._has_store and copy.durable:
            return tuple(sorted(Holder(name, 0, disk) for name, disk in self._on_disk.get(payload, ())))
        return tuple(sorted(Holder(*process) for process in self._in_memory.get(payload, ())))

    def holders_at(self, generation: Generation, lsn: int) -> tuple[Holder, ...]:
        """Whoever has the log of `generation` up to `lsn`; with stores their disks will, or lose it as a whole."""
        processes = [process for process, end in self._ends.get(generation, {}).items() if end >= lsn]
        if not self._has_store:
            return tuple(sorted(Holder(*process) for process in processes))
        return tuple(sorted({Holder(process[0], 0, self._disk_of[process]) for process in processes}))

    def synced_s(self, name: str) -> float:
        """When something reached the disk of a machine last."""
        return self._synced_s.get(name, 0.0)

    def loss(self, holder: Holder, at_s: float) -> Loss | None:
        """How it has lost what it held at that time; None: it has it still."""
        while holder in self._losses:
            loss = self._losses[holder]
            if at_s >= loss.since_s:
                return loss
            holder = holder._replace(disk=self._is_on.get(holder, holder.disk + 1))
        return None
