"""Producers that number their messages, and how far each has come: so that what is sent twice is queued once.

Of each producer the highest number is kept, and whatever comes with that number or a lower one is a duplicate, but for
numbers that were refused before a higher one was accepted: those are kept, too, and refused again.
docs/decisions/0008-producer-deduplication.md says what follows from keeping one number, and not all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from qpid_ha_broker.events.types import NumbersRefused, ProducerAdvanced
from qpid_ha_broker.model.errors import RefusedBefore
from qpid_ha_broker.model.transaction import Message, Publish

DEFAULT_PRODUCERS: Final = 10_000
MOST_PRODUCERS: Final = 100_000
"""So that all of them fit into one frame to a backup."""
REFUSED_MOST: Final = 1000
"""Refused numbers that are kept of one producer, the highest: more than it may send before it hears of the first."""
ALL_REFUSED_MOST: Final = 20_000
"""Of all producers together: that they fit into one frame to a backup, too."""
NEVER: Final = -1
"""What a producer has come to that nobody knows."""


class Advance(NamedTuple):
    """How far a producer has come, and with which event."""

    lsn: int
    sequence: int


class Producers:
    """The promise: what is remembered follows from the events that were applied, whoever applies them."""

    __slots__ = ("_advances", "_refused", "_refused_total")

    def __init__(self) -> None:
        self._advances: dict[bytes, Advance] = {}
        """In the order of the events: who has been idle longest comes first."""
        self._refused: dict[bytes, tuple[int, ...]] = {}
        """Numbers below the highest that were refused, ascending; in the order of events. All are of `_advances`."""
        self._refused_total = 0

    def __len__(self) -> int:
        return len(self._advances)

    def items(self) -> list[tuple[bytes, Advance]]:
        """All of them, who was idle longest first."""
        return list(self._advances.items())

    def events(self) -> Iterator[tuple[int, ProducerAdvanced | NumbersRefused]]:
        """What has to be applied to an empty table to come to this one, each with its LSN, or that of its producer."""
        kept = len(self._advances)
        for producer, (lsn, sequence) in self._advances.items():
            yield lsn, ProducerAdvanced(producer, sequence, kept)
        for producer, sequences in self._refused.items():
            yield self._advances[producer].lsn, NumbersRefused(producer, sequences)

    def sequence_of(self, producer: bytes) -> int:
        """The highest number that was accepted; NEVER for one who is not known."""
        found = self._advances.get(producer)
        return NEVER if found is None else found.sequence

    def refused(self, producer: bytes) -> tuple[int, ...]:
        """Numbers that were refused, though a higher one was accepted; ascending."""
        return self._refused.get(producer, ())

    def advanced(self, lsn: int, event: ProducerAdvanced) -> None:
        """Apply the event."""
        producer, sequence, kept = event
        advances = self._advances
        advances.pop(producer, None)  # it goes to the end
        advances[producer] = Advance(lsn, sequence)
        if len(advances) > kept:
            for idle in list(islice(advances, len(advances) - kept)):
                self._forget(idle)

    def were_refused(self, event: NumbersRefused) -> None:
        """Apply the event. Raises KeyError for a producer that is not known."""
        producer, sequences = event
        highest = self._advances[producer].sequence
        known = self._take_refused(producer)
        refused = sorted({*known, *(sequence for sequence in sequences if sequence < highest)})[-REFUSED_MOST:]
        if refused:
            self._refused[producer] = tuple(refused)  # it goes to the end
            self._refused_total += len(refused)
        while self._refused_total > ALL_REFUSED_MOST:
            self._take_refused(next(iter(self._refused)))

    def _take_refused(self, producer: bytes) -> tuple[int, ...]:
        refused = self._refused.pop(producer, ())
        self._refused_total -= len(refused)
        return refused

    def _forget(self, producer: bytes) -> None:
        del self._advances[producer]
        self._take_refused(producer)

    def forget_after(self, lsn: int) -> None:
        """What came after `lsn` is given up: what these producers had come to before, nobody knows any more."""
        for producer in [producer for producer, advance in self._advances.items() if advance.lsn > lsn]:
            self._forget(producer)

    def clear(self) -> None:
        """Know nobody."""
        self._advances.clear()
        self._refused.clear()
        self._refused_total = 0

    def check_invariants(self, last_lsn: int) -> None:
        """Raise AssertionError unless the table is in the order of the events of a log that ends at `last_lsn`."""
        lsns = [advance.lsn for advance in self._advances.values()]
        if lsns != sorted(set(lsns)) or (lsns and lsns[-1] > last_lsn):
            raise AssertionError(f"producers should be in the order of LSNs up to {last_lsn}, found {lsns[-5:]}")
        if sum(map(len, self._refused.values())) != self._refused_total:
            raise AssertionError(f"{self._refused_total} numbers should be refused, found {self._refused}")
        for producer, sequences in self._refused.items():
            if list(sequences) != sorted(set(sequences)) or sequences[-1] >= self.sequence_of(producer):
                raise AssertionError(f"refused numbers of {producer!r} are not below its highest: {sequences[-5:]}")


class Deduplication:
    """The promise: a number that was accepted of a producer is accepted once; the next times it is counted, no more.

    One that was refused is not taken for one that was accepted.
    """

    def __init__(self, replicated: Producers, local: Producers) -> None:
        self._replicated = replicated
        self._local = local
        self._refused_since: dict[bytes, list[int]] = {}
        """Numbers that were refused since their producer has had one accepted: above its highest. Not written yet."""
        self.producers = DEFAULT_PRODUCERS
        """How many are remembered by what is written from now on; 0: nobody is looked for."""
        self.dropped_total = 0

    def knows(self, message: Message) -> bool:
        """Whether it was accepted before. Raises RefusedBefore."""
        sequence, producer = message.sequence, message.producer
        if not producer or not self.producers:
            return False
        if sequence > self._highest(producer):
            return False
        if sequence in self.refused(producer):
            raise RefusedBefore(
                f"message {sequence} of its producer was refused when it came before, and a later one was taken: send"
                " it under a new number"
            )
        return True

    def highest(self, producer: bytes) -> int:
        """The highest number that was accepted of it; 0: none is known."""
        return max(0, self._highest(producer))

    def _highest(self, producer: bytes) -> int:
        return max(self._replicated.sequence_of(producer), self._local.sequence_of(producer))

    def refused(self, producer: bytes) -> tuple[int, ...]:
        """Numbers below the highest that were refused; ascending."""
        replicated, local = self._replicated.refused(producer), self._local.refused(producer)
        return tuple(sorted({*replicated, *local})) if replicated and local else replicated or local

    def note_refused(self, producer: bytes, sequence: int) -> None:
        """A message was refused. Nothing is written before a later one is accepted: till then it may be tried again."""
        if not producer or not self.producers or sequence <= self._highest(producer):
            return
        since = self._refused_since.setdefault(producer, [])
        if sequence not in since[-1:]:
            since.append(sequence)
        del since[:-REFUSED_MOST]
        if len(self._refused_since) > self.producers:
            del self._refused_since[next(iter(self._refused_since))]

    def has_noted(self, producer: bytes) -> bool:
        """Whether something of it was refused since it has had a message accepted: `take_refused` has it."""
        return producer in self._refused_since

    def take_refused(self, advances: Mapping[bytes, int]) -> list[NumbersRefused]:
        """What is to be written with these: the highest number of each producer that is about to be accepted."""
        events = []
        for producer, sequence in advances.items() if self._refused_since else ():
            highest = self._highest(producer)
            since = self._refused_since.pop(producer, [])
            later = [number for number in since if number > sequence]
            if later:
                self._refused_since[producer] = later
            refused = sorted({number for number in since if highest < number < sequence})
            if refused:
                events.append(NumbersRefused(producer, tuple(refused)))
        return events

    def forget_unwritten(self) -> None:
        """Somebody else decides from now on what is accepted."""
        self._refused_since.clear()

    def new_among(self, published: list[Publish]) -> list[Publish]:
        """What was not accepted before, and comes in the order of its numbers: what a transaction has to bring.

        Raises RefusedBefore.
        """
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
