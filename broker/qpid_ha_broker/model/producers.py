"""Producers that number their messages, and how far each has come: so that what is sent twice is queued once.

Of each producer only the highest number is kept, and whatever comes with that number or a lower one is a duplicate.
docs/decisions/0008-producer-deduplication.md says what follows from keeping one number, and not all.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from qpid_ha_broker.events.types import ProducerAdvanced
from qpid_ha_broker.model.transaction import Message, Publish

DEFAULT_PRODUCERS: Final = 10_000
MOST_PRODUCERS: Final = 100_000
"""So that all of them fit into one frame to a backup."""
NEVER: Final = -1
"""What a producer has come to that nobody knows."""


class Advance(NamedTuple):
    """How far a producer has come, and with which event."""

    lsn: int
    sequence: int


class Producers:
    """The promise: what is remembered follows from the events that were applied, whoever applies them."""

    __slots__ = ("_advances",)

    def __init__(self) -> None:
        self._advances: dict[bytes, Advance] = {}
        """In the order of the events: who has been idle longest comes first."""

    def __len__(self) -> int:
        return len(self._advances)

    def items(self) -> list[tuple[bytes, Advance]]:
        """All of them, who was idle longest first."""
        return list(self._advances.items())

    def events(self) -> Iterator[tuple[int, ProducerAdvanced]]:
        """What has to be applied to an empty table to come to this one, each with its LSN."""
        kept = len(self._advances)
        for producer, (lsn, sequence) in self._advances.items():
            yield lsn, ProducerAdvanced(producer, sequence, kept)

    def sequence_of(self, producer: bytes) -> int:
        """The highest number that was accepted; NEVER for one who is not known."""
        found = self._advances.get(producer)
        return NEVER if found is None else found.sequence

    def advanced(self, lsn: int, event: ProducerAdvanced) -> None:
        """Apply the event."""
        producer, sequence, kept = event
        advances = self._advances
        advances.pop(producer, None)  # it goes to the end
        advances[producer] = Advance(lsn, sequence)
        if len(advances) > kept:
            for idle in list(islice(advances, len(advances) - kept)):
                del advances[idle]

    def forget_after(self, lsn: int) -> None:
        """What came after `lsn` is given up: what these producers had come to before, nobody knows any more."""
        for producer in [producer for producer, advance in self._advances.items() if advance.lsn > lsn]:
            del self._advances[producer]

    def clear(self) -> None:
        """Know nobody."""
        self._advances.clear()

    def check_invariants(self, last_lsn: int) -> None:
        """Raise AssertionError unless the table is in the order of the events of a log that ends at `last_lsn`."""
        lsns = [advance.lsn for advance in self._advances.values()]
        if lsns != sorted(set(lsns)) or (lsns and lsns[-1] > last_lsn):
            raise AssertionError(f"producers should be in the order of LSNs up to {last_lsn}, found {lsns[-5:]}")


class Deduplication:
    """The promise: a number that was accepted of a producer is accepted once; the next times it is counted, no more."""

    def __init__(self, replicated: Producers, local: Producers) -> None:
        self._replicated = replicated
        self._local = local
        self.producers = DEFAULT_PRODUCERS
        """How many are remembered by what is written from now on; 0: nobody is looked for."""
        self.dropped_total = 0

    def knows(self, message: Message) -> bool:
        """Whether it was accepted before."""
        sequence, producer = message.sequence, message.producer
        if not producer or not self.producers:
            return False
        return sequence <= self._replicated.sequence_of(producer) or sequence <= self._local.sequence_of(producer)

    def highest(self, producer: bytes) -> int:
        """The highest number that was accepted of it; 0: none is known."""
        return max(0, self._replicated.sequence_of(producer), self._local.sequence_of(producer))

    def new_among(self, published: list[Publish]) -> list[Publish]:
        """What was not accepted before, and comes in the order of its numbers: what a transaction has to bring."""
        new: list[Publish] = []
        highest: dict[bytes, int] = {}
        for publish in published:
            message = publish.message
            if message.producer and self.producers:
                if self.knows(message) or message.sequence <= highest.get(message.producer, NEVER):
                    continue
                highest[message.producer] = message.sequence
            new.append(publish)
        return new
