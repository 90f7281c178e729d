"""How much of the log the store holds, as its answers come in.

Each batch gets a number when it is handed over, and the answer names that number. What was truncated in between is
taken off the batch's entry, so a late answer does not count it.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from qpid_ha_broker.events.codec import Record
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.ha.effects import BeginBase, DumpBase, Keep, TakeBack
from qpid_ha_broker.ha.frames import Store
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.ha.tail import Tail

EVERYTHING: Final = (1 << 64) - 1


class Keeping:
    """The promise: `kept_lsn` never passes what would be there after the process is killed. Without a store: all."""

    def __init__(self, around: Surroundings, kept_lsn: int) -> None:
        self._around = around
        self._has_store = around.settings.has_store
        self._kept_lsn = kept_lsn if self._has_store else EVERYTHING
        self._handed_over: deque[tuple[int, int]] = deque()
        """Number of the request, and up to which LSN it still counts."""
        self._base = 0
        """The base that is missing; without it nothing after it counts."""
        self._is_dump_due = False

    @property
    def kept_lsn(self) -> int:
        """The last LSN that is safe, with all before it."""
        return 0 if self._base else self._kept_lsn

    def keep(self, first_lsn: int, last_lsn: int, committed_lsn: int, transient: int, data: bytes) -> None:
        """Hand a batch over."""
        if self._has_store:
            number = self._around.number()
            self._handed_over.append((number, last_lsn))
            self._around.effects.append(Keep(number, first_lsn, last_lsn, committed_lsn, transient, data))
        if self._is_dump_due:
            self.dump_base()

    def kept(self, number: int) -> None:
        """The receipt for `number` and all before it."""
        while self._handed_over and self._handed_over[0][0] <= number:
            self._kept_lsn = self._handed_over.popleft()[1]

    def take_back(self, lsn: int) -> None:
        """The cluster does not have what lies after `lsn`."""
        if self._has_store:
            self._kept_lsn = min(self._kept_lsn, lsn)
            self._handed_over = deque((number, min(last_lsn, lsn)) for number, last_lsn in self._handed_over)
            self._around.effects.append(TakeBack(lsn))

    def begin_base(self, lsn: int) -> None:
        """The state as of `lsn` does not follow from the log: nothing is safe until it has been dumped."""
        if self._has_store:
            self._base, self._is_dump_due = self._around.number(), False
            self._kept_lsn = lsn
            self._handed_over.clear()
            self._around.effects.append(BeginBase(self._base, lsn))

    def dump_base(self) -> None:
        """The state is whole again, and all that is in it was handed over."""
        self._is_dump_due = False
        if self._base:
            self._around.effects.append(DumpBase(self._base))

    def dump_base_later(self) -> None:
        """The same, once what is about to be written has been handed over."""
        self._is_dump_due = bool(self._base)

    def base_kept(self, number: int) -> None:
        """The base is there; an older one counts for nothing."""
        if number == self._base:
            self._base = 0


class Held(NamedTuple):
    """A batch that is held and not applied."""

    last_lsn: int
    records: list[Record]


class Restored(NamedTuple):
    """What a broker has from its store, besides the state: that is in the resource set already."""

    store: Store
    held: tuple[Held, ...] = ()
    """Not applied: perhaps it was never committed."""
    lost_transient: int = 0
    """Messages that were not durable, and are not here any more."""
    promised: int = 0
    promised_to: str = ""
    tail: Tail | None = None
    """The end of the stream as it was written, for those who lack little of it."""
    is_chosen: bool = False
    """An operator, or a comparison of all stores, says that this one is to be led from."""


def transient_count(records: list[Record]) -> int:
    """As `model.log.Batch.transient`."""
    return sum(
        [len(event.queues) for _, event, part in records if type(event) is Enqueued and not (event.durable or part)]
    )
