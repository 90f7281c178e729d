"""Producers that number their messages, and how far each has come: so that what is sent twice is queued once.

Of each producer the highest number is kept, and whatever comes with that number or a lower one is a duplicate, but for
numbers that were refused before a higher one was accepted: those are kept, too, and refused again.
docs/decisions/0008-producer-deduplication.md says what follows from keeping one number, and not all.

A producer is known by a *key*, in events and here: what a client says, behind its user (`client_producer`), and what a
proxy numbers for a client's link, behind the client's user (`relayed_producer`). Brokers' own producers, which hand on
what exchanges lead to another set, have a name as it is, which no client can say. The part of a key before the name is
its *owner*, and bounds are by owner, so that nobody's names push out another user's.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from qpid_ha_broker.events.types import NumbersRefused, ProducerAdvanced
from qpid_ha_broker.model.errors import LimitReached, NumberTooHigh, RefusedBefore
from qpid_ha_broker.model.transactions.transaction import Message, Publish

DEFAULT_PRODUCERS: Final = 10_000
MOST_PRODUCERS: Final = 100_000
"""Of all owners together, so that all of them fit into one frame to a backup."""
REFUSED_MOST: Final = 1000
"""Refused numbers that are kept of one producer, the highest: more than it may send before it hears of the first."""
ALL_REFUSED_MOST: Final = 20_000
"""Of all producers together: that they fit into one frame to a backup, too."""
LIVE_TENTHS_MOST: Final = 9
"""Of an owner's producers that are remembered, those that may be at work when a new one comes."""
NEVER: Final = -1
"""What a producer has come to that nobody knows."""
MOST_AHEAD: Final = 1 << 48
"""How far above its highest number the next one of a client's producer may be. Numbers need not be dense: some count
microseconds since the epoch, or come back after a broker that was restored from an older store. A million messages a
second take nine years for it; what is further ahead would leave the producer nothing to go on with."""

_CLIENT: Final = b"\x01"
_RELAYED: Final = b"\x02"
_DIGEST_BYTES: Final = 16
_OWNER_BYTES: Final = 1 + _DIGEST_BYTES
NOBODY: Final = b""
"""The owner of brokers' own producers, and of names that a release wrote in which they belonged to no user."""


def client_producer(user: str, name: bytes) -> bytes:
    """The key of a producer that a client of `user` names; `user` empty: of who has not logged in."""
    return _CLIENT + _user_digest(user) + name


def relayed_producer(user: str, name: bytes) -> bytes:
    """The key of a producer by which a proxy numbers what comes on a link of `user`'s."""
    return _RELAYED + _user_digest(user) + name


def owner_of(producer: bytes) -> bytes:
    """Whose the key is: names count for that owner alone."""
    return producer[:_OWNER_BYTES] if _has_owner(producer) else NOBODY


def name_of(producer: bytes) -> bytes:
    """What is said of the key: without its owner."""
    return producer[_OWNER_BYTES:] if _has_owner(producer) else producer


def _is_too_high(producer: bytes, sequence: int, highest: int) -> bool:
    """Only clients make mistakes with their numbers: those of proxies leap with each refusal."""
    return sequence - highest > MOST_AHEAD and highest != NEVER and producer[:1] == _CLIENT and _has_owner(producer)


def _has_owner(producer: bytes) -> bool:
    return producer[:1] in (_CLIENT, _RELAYED) and len(producer) > _OWNER_BYTES


def _user_digest(user: str) -> bytes:
    return sha256(user.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]


class Advance(NamedTuple):
    """How far a producer has come, and with which event."""

    lsn: int
    sequence: int


class RefusedNumbers:
    """Numbers that were refused, by producer. There is room for `ALL_REFUSED_MOST`; then the owner that has most loses
    those of its producer that was noted longest ago. So it follows from what was put and taken, in that order."""

    __slots__ = ("_by_owner", "_counts", "_total")

    def __init__(self) -> None:
        self._by_owner: dict[bytes, OrderedDict[bytes, tuple[int, ...]]] = {}
        self._counts: Counter[bytes] = Counter()
        self._total = 0

    def __bool__(self) -> bool:
        return bool(self._total)

    def __contains__(self, producer: bytes) -> bool:
        return bool(self.get(producer))

    def items(self) -> Iterator[tuple[bytes, tuple[int, ...]]]:
        """Of each owner's producers those first that were noted longest ago."""
        for producers in self._by_owner.values():
            yield from producers.items()

    def get(self, producer: bytes) -> tuple[int, ...]:
        """Its numbers."""
        producers = self._by_owner.get(owner_of(producer))
        return producers.get(producer, ()) if producers else ()

    def put(self, producer: bytes, numbers: tuple[int, ...]) -> None:
        """Note all numbers of a producer, as the last; the first of more than `REFUSED_MOST` are forgotten."""
        self.take(producer)
        if not numbers:
            return
        owner, kept = owner_of(producer), numbers[-REFUSED_MOST:]
        self._by_owner.setdefault(owner, OrderedDict())[producer] = kept
        self._counts[owner] += len(kept)
        self._total += len(kept)
        while self._total > ALL_REFUSED_MOST:
            _, most = max((count, owner) for owner, count in self._counts.items())
            self.take(next(iter(self._by_owner[most])))

    def take(self, producer: bytes) -> tuple[int, ...]:
        """Forget its numbers, and return them."""
        owner = owner_of(producer)
        producers = self._by_owner.get(owner)
        numbers = producers.pop(producer, ()) if producers else ()
        if numbers:
            self._total -= len(numbers)
            self._counts[owner] -= len(numbers)
            if not producers:
                del self._by_owner[owner], self._counts[owner]
        return numbers

    def clear(self) -> None:
        """None was refused."""
        self._by_owner.clear()
        self._counts.clear()
        self._total = 0

    def check_invariants(self) -> None:
        """Raise AssertionError where the counts are not those of the numbers."""
        counts = Counter({owner: sum(map(len, numbers.values())) for owner, numbers in self._by_owner.items()})
        if counts != self._counts or counts.total() != self._total:
            raise AssertionError(f"{self._total} numbers should be refused, of {self._counts}, found {counts}")


class Producers:
    """The promise: what is remembered follows from the events that were applied, whoever applies them.

    An event says how many are kept of the owner of its producer. Those of all owners together are at most `most`: then
    the owner that has most loses the one that was idle longest, so who has few keeps them whatever others do.
    """

    __slots__ = ("_advances", "_most", "_names", "_refused")

    def __init__(self, most: int = MOST_PRODUCERS) -> None:
        self._most = most
        self._advances: dict[bytes, Advance] = {}
        """In the order of the events: who has been idle longest comes first."""
        self._names: dict[bytes, OrderedDict[bytes, None]] = {}
        """The same keys by owner, in the same order."""
        self._refused = RefusedNumbers()
        """Numbers below the highest that were refused, ascending. All are of producers in `_advances`."""

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
        advance = self._advances.get(producer)
        return NEVER if advance is None else advance.sequence

    def refused(self, producer: bytes) -> tuple[int, ...]:
        """Numbers that were refused, though a higher one was accepted; ascending."""
        return self._refused.get(producer)

    def advanced(self, lsn: int, event: ProducerAdvanced) -> None:
        """Apply the event."""
        producer, sequence, kept = event
        advances = self._advances
        advances.pop(producer, None)  # it goes to the end
        advances[producer] = Advance(lsn, sequence)
        names = self._names.setdefault(owner_of(producer), OrderedDict())
        names[producer] = None
        names.move_to_end(producer)
        while len(names) > kept:
            self._forget(next(iter(names)))
        while len(advances) > self._most:
            self._forget(next(iter(self._names[self._largest({})])))

    def _largest(self, change: Mapping[bytes, int]) -> bytes:
        """The owner that has most, were there so many more of each."""
        sizes = {owner: len(names) for owner, names in self._names.items()}
        return max((sizes.get(owner, 0) + change.get(owner, 0), owner) for owner in {*sizes, *change})[1]

    def pushed_out_by(self, producers: Iterable[bytes], kept: int) -> Mapping[bytes, int]:
        """How many of each owner's, those that were idle longest, `advanced` would forget for `producers`, who come
        one after the other."""
        change: Counter[bytes] = Counter()
        forgotten: Counter[bytes] = Counter()
        total = len(self._advances)
        for producer in producers:
            owner = owner_of(producer)
            if producer not in self._advances:
                change[owner] += 1
                total += 1
            over = len(self._names.get(owner, ())) + change[owner] - kept
            while over > 0 or total > self._most:
                loser = owner if over > 0 else self._largest(change)
                forgotten[loser] += 1
                change[loser] -= 1
                total -= 1
                over -= 1
        return forgotten

    def have_room(self, producers: Iterable[bytes], kept: int) -> bool:
        """Whether they are all there, and push nobody out: nearly always, and cheaper than to ask who."""
        for producer in producers:
            if producer not in self._advances or len(self._names[owner_of(producer)]) > kept:
                return False
        return True

    def idle(self, owner: bytes) -> Iterator[bytes]:
        """The producers of `owner`, who was idle longest first."""
        return iter(self._names.get(owner, ()))

    def were_refused(self, event: NumbersRefused) -> None:
        """Apply the event. Raises KeyError for a producer that is not known."""
        producer, sequences = event
        highest = self._advances[producer].sequence
        known = self._refused.get(producer)
        refused = sorted({*known, *(sequence for sequence in sequences if sequence < highest)})
        self._refused.put(producer, tuple(refused))

    def _forget(self, producer: bytes) -> None:
        del self._advances[producer]
        owner = owner_of(producer)
        names = self._names[owner]
        del names[producer]
        if not names:
            del self._names[owner]
        self._refused.take(producer)

    def forget_after(self, lsn: int) -> None:
        """What came after `lsn` is given up: what these producers had come to before, nobody knows any more."""
        for producer in [producer for producer, advance in self._advances.items() if advance.lsn > lsn]:
            self._forget(producer)

    def clear(self) -> None:
        """Know nobody."""
        self._advances.clear()
        self._names.clear()
        self._refused.clear()

    def check_invariants(self, last_lsn: int) -> None:
        """Raise AssertionError unless the table is in the order of the events of a log that ends at `last_lsn`."""
        lsns = [advance.lsn for advance in self._advances.values()]
        if lsns != sorted(set(lsns)) or (lsns and lsns[-1] > last_lsn):
            raise AssertionError(f"producers should be in the order of LSNs up to {last_lsn}, found {lsns[-5:]}")
        by_owner: dict[bytes, list[bytes]] = {}
        for producer in self._advances:
            by_owner.setdefault(owner_of(producer), []).append(producer)
        if by_owner != {owner: list(names) for owner, names in self._names.items()}:
            raise AssertionError("the producers by owner are not those that have advanced, in that order")
        self._refused.check_invariants()
        for producer, sequences in self._refused.items():
            if list(sequences) != sorted(set(sequences)) or sequences[-1] >= self.sequence_of(producer):
                raise AssertionError(f"refused numbers of {producer!r} are not below its highest: {sequences[-5:]}")


class Deduplication:
    """The promise: a number that was accepted of a producer is accepted once; the next times it is counted, no more.

    One that was refused is not taken for one that was accepted.
    """

    def __init__(self, tables: Sequence[Producers]) -> None:
        """`tables`: of each log, how far producers have come in it."""
        self._tables = tables
        self._refused_since = RefusedNumbers()
        """Numbers that were refused since their producer has had one accepted: above its highest. Not written yet."""
        self.producers = DEFAULT_PRODUCERS
        """How many are remembered of each owner by what is written from now on; 0: nobody is looked for."""
        self.is_live: Callable[[bytes], bool] = lambda producer: False
        """Whether a link, or a session that lives, numbers by that producer: then it is not forgotten for new ones."""
        self.dropped_total = 0

    def knows(self, message: Message) -> bool:
        """Whether the message was accepted before. Raises RefusedBefore; of a new one NumberTooHigh, LimitReached."""
        sequence, producer = message.sequence, message.producer
        if not producer or not self.producers:
            return False
        highest = self._highest(producer)
        if sequence > highest:
            self._check_new(producer, sequence, highest)
            return False
        if sequence in self.refused(producer):
            raise RefusedBefore(
                f"message {sequence} of its producer was refused when it came before, and a later one was taken: send"
                " it under a new number"
            )
        return True

    def _check_new(self, producer: bytes, sequence: int, highest: int) -> None:
        if highest == NEVER:
            for table in self._tables:
                if table.pushed_out_by((producer,), self.producers).get(owner_of(producer)):
                    self._check_room(table, owner_of(producer))
        elif _is_too_high(producer, sequence, highest):
            raise NumberTooHigh(
                f"message {sequence} is further ahead of the last one of its producer, {highest}, than {MOST_AHEAD}:"
                " give each message a number a little above that of the one before, or name another producer"
            )

    def _check_room(self, table: Producers, owner: bytes) -> None:
        """Raises LimitReached where nearly all of the owner's producers are at work: each of them is written again
        before it would be forgotten, which must stay little for each new one."""
        most = self.producers * LIVE_TENTHS_MOST // 10
        for count, idle in enumerate(table.idle(owner)):
            if not self.is_live(idle):
                return
            if count >= most:
                break
        raise LimitReached(
            f"{self.producers} producers of this user are remembered, as many as deduplication.producers allows, and"
            " nearly all of them are those of links that are attached and sessions that live: end some first"
        )

    def room_for(self, advances: Mapping[bytes, int], table: Producers) -> list[ProducerAdvanced]:
        """What is to be written before these producers advance in the log of `table`: that those are not idle which
        they would push out, and which number for a link that is there, or for a session that lives. Others are pushed
        out in their place."""
        room: list[ProducerAdvanced] = []
        if table.have_room(advances, self.producers):
            return room
        for owner, count in table.pushed_out_by(advances, self.producers).items():
            missing = count
            for idle in table.idle(owner):
                if not missing:
                    break
                if idle in advances or self.is_live(idle):
                    room.append(ProducerAdvanced(idle, table.sequence_of(idle), self.producers))
                else:
                    missing -= 1
        return room

    def highest(self, producer: bytes) -> int:
        """The highest number that was accepted of it; 0: none is known."""
        return max(0, self._highest(producer))

    def _highest(self, producer: bytes) -> int:
        """As its owner's; where that has none, as a release wrote it in which names belonged to no user."""
        highest = NEVER
        for table in self._tables:
            highest = max(highest, table.sequence_of(producer))
        if highest != NEVER:
            return highest
        name = name_of(producer)
        return max(table.sequence_of(name) for table in self._tables)

    def refused(self, producer: bytes) -> tuple[int, ...]:
        """Numbers below the highest that were refused; ascending."""
        refusals = [
            numbers
            for name in {producer, name_of(producer)}
            for table in self._tables
            if (numbers := table.refused(name))
        ]
        return (
            refusals[0] if len(refusals) == 1 else tuple(sorted({number for numbers in refusals for number in numbers}))
        )

    def note_refused(self, producer: bytes, sequence: int) -> None:
        """A message was refused. Nothing is written before a later one is accepted: till then it may be tried again."""
        highest = self._highest(producer)
        if not producer or not self.producers or sequence <= highest or _is_too_high(producer, sequence, highest):
            return
        since = self._refused_since.get(producer)
        if sequence not in since[-1:]:
            self._refused_since.put(producer, (*since, sequence))

    def has_noted(self, producer: bytes) -> bool:
        """Whether something of it was refused since it has had a message accepted: `take_refused` has it."""
        return producer in self._refused_since

    def take_refused(self, advances: Mapping[bytes, int]) -> list[NumbersRefused]:
        """What is to be written with these: the highest number of each producer that is about to be accepted."""
        events = []
        for producer, sequence in advances.items() if self._refused_since else ():
            highest = self._highest(producer)
            since = self._refused_since.take(producer)
            self._refused_since.put(producer, tuple(number for number in since if number > sequence))
            refused = sorted({number for number in since if highest < number < sequence})
            if refused:
                events.append(NumbersRefused(producer, tuple(refused)))
        return events

    def forget_unwritten(self) -> None:
        """Somebody else decides from now on what is accepted."""
        self._refused_since.clear()

    def new_among(self, published: list[Publish]) -> list[Publish]:
        """What was not accepted before, and comes in the order of its numbers: what a transaction has to bring.

        Raises as `knows`.
        """
        new: list[Publish] = []
        highest: dict[bytes, int] = {}
        for publish in published:
            message = publish.message
            producer = message.producer
            if producer and self.producers:
                if self.knows(message) or message.sequence <= highest.get(producer, NEVER):
                    continue
                if producer in highest:
                    self._check_new(producer, message.sequence, highest[producer])
                highest[producer] = message.sequence
            new.append(publish)
        return new
