"""What happens at a broker, for who watches it: the last events of each subject, and readers that come and go.

An event of this kind is in no log and is confirmed by nobody: it is news, kept in memory for a while. Who has to know
for certain asks for the state itself. `EventSubject` says what there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Final, NamedTuple

from qpid_ha_broker.model.exchanges.topic_trie import TopicTrie

EVENTS_ADDRESS: Final = "qpid.events"
"""Where clients read them, with a pattern of subjects behind a `/`, or in a filter."""
KEPT: Final = 1000
"""Events of one subject: so thousands of connections take the place of no change of state."""
TEXT_LENGTH: Final = 256
"""Characters of a fact: clients choose some of them, such as their container ids."""
LONGEST_PATTERN: Final = 255

Fact = str | int | bool


class EventSubject(StrEnum):
    """What an event is about."""

    QUEUE_CREATED = "queue.created"
    QUEUE_CHANGED = "queue.changed"
    QUEUE_DELETED = "queue.deleted"
    EXCHANGE_CREATED = "exchange.created"
    EXCHANGE_DELETED = "exchange.deleted"
    BINDING_CREATED = "binding.created"
    BINDING_DELETED = "binding.deleted"
    CONNECTION_OPENED = "connection.opened"
    CONNECTION_CLOSED = "connection.closed"
    BROKER_STATE = "broker.state"
    SET_STATE = "set.state"
    PRIMARY_CHANGED = "primary.changed"
    IN_SYNC_CHANGED = "in-sync.changed"
    SETTING_CHANGED = "setting.changed"
    ALARM_RAISED = "alarm.raised"
    ALARM_CLEARED = "alarm.cleared"


class BrokerEvent(NamedTuple):
    """`number`: the how manyth it is since the broker's start. `at_ms`: since the Unix epoch, by the time of day."""

    number: int
    at_ms: int
    subject: EventSubject
    facts: Mapping[str, Fact]


def is_for_events(node: str) -> bool:
    """Whether the name of a node, or an address, is that of the events or has it before a pattern."""
    return node == EVENTS_ADDRESS or node.startswith(f"{EVENTS_ADDRESS}/")


def subjects_of(pattern: str) -> frozenset[EventSubject]:
    """Those that `pattern` matches, as the key of a binding to a topic exchange matches topics.

    Raises ValueError where there are none: it would wait for ever.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ValueError(f"a pattern of subjects has at most {LONGEST_PATTERN} characters")
    trie = TopicTrie()
    trie.add(pattern, 0)
    subjects = frozenset(subject for subject in EventSubject if trie.match(subject))
    if not subjects:
        raise ValueError(f"no event has a subject like {pattern!r}: there are {', '.join(EventSubject)}")
    return subjects


class _Kept:
    """The last events of one subject."""

    __slots__ = ("events", "total")

    def __init__(self, limit: int) -> None:
        self.events: deque[BrokerEvent] = deque(maxlen=limit)
        self.total = 0
        """How many there were, with those that are not there any more."""

    @property
    def gone(self) -> int:
        return self.total - len(self.events)


class EventReader:
    """Reads events of some subjects, from when it was made on.

    The promise: it gets each of them once and in their order, or is told how many it was too late for. It holds none.
    """

    def __init__(self, events: BrokerEvents, subjects: Iterable[EventSubject], wake: Callable[[], None]) -> None:
        """`wake`: called, when `BrokerEvents.wake_readers` is, if there is something to read."""
        self.wake = wake
        self._events = events
        self._read = {subject: events.kept[subject].total for subject in subjects}
        """Of each subject, how many are read or lost."""
        self._lost = 0

    def wants(self, subject: EventSubject) -> bool:
        """Whether it reads events of that kind."""
        return subject in self._read

    def next(self) -> BrokerEvent | None:
        """The oldest that it has not read; None: it has read all."""
        oldest: BrokerEvent | None = None
        for subject, read in self._read.items():
            kept = self._events.kept[subject]
            if read < kept.gone:
                self._lost += kept.gone - read
                self._read[subject] = read = kept.gone
            if read < kept.total:
                event = kept.events[read - kept.gone]
                if oldest is None or event.number < oldest.number:
                    oldest = event
        if oldest is not None:
            self._read[oldest.subject] += 1
        return oldest

    def take_lost(self) -> int:
        """How many it was too late for since this was asked last."""
        lost, self._lost = self._lost, 0
        return lost

    def read_later(self) -> None:
        """It has not read all that there is, and is to be woken again."""
        self._events.awaken(self)

    def close(self) -> None:
        """It reads no more."""
        self._events.forget(self)


class BrokerEvents:
    """The promise: telling of an event costs the same whoever reads, and however slowly; of each subject the last KEPT
    are there.

    Who reads is woken later, once for many events: `due` is called when `wake_readers` has something to do.
    """

    def __init__(self, wall_ms: Callable[[], int], limit: int = KEPT) -> None:
        self.due: Callable[[], None] = lambda: None
        self.kept = {subject: _Kept(limit) for subject in EventSubject}
        self._wall_ms = wall_ms
        self._limit = limit
        self._number = 0
        self._readers: dict[EventReader, None] = {}
        self._to_wake: dict[EventReader, None] = {}

    @property
    def has_due(self) -> bool:
        """Whether readers are to be woken."""
        return bool(self._to_wake)

    def tell(self, subject: EventSubject, **facts: Fact) -> None:
        """It has happened. Texts are cut."""
        self._number += 1
        cut = {name: fact[:TEXT_LENGTH] if isinstance(fact, str) else fact for name, fact in facts.items()}
        kept = self.kept[subject]
        kept.events.append(BrokerEvent(self._number, self._wall_ms(), subject, cut))
        kept.total += 1
        for reader in self._readers:
            if reader.wants(subject):
                self.awaken(reader)

    def awaken(self, reader: EventReader) -> None:
        """Have `reader` woken."""
        self._to_wake[reader] = None
        self.due()

    def wake_readers(self) -> None:
        """Those that have something to read."""
        to_wake, self._to_wake = self._to_wake, {}
        for reader in to_wake:
            reader.wake()

    def read(self, subjects: Iterable[EventSubject], wake: Callable[[], None]) -> EventReader:
        """All of these subjects from now on, until the reader is closed."""
        reader = EventReader(self, subjects, wake)
        self._readers[reader] = None
        return reader

    def forget(self, reader: EventReader) -> None:
        """It is woken no more."""
        self._readers.pop(reader, None)
        self._to_wake.pop(reader, None)

    def last(self, subjects: Iterable[EventSubject], count: int) -> list[BrokerEvent]:
        """The last so many of these subjects that are kept, the oldest first."""
        kept = [event for subject in subjects for event in self.kept[subject].events]
        return sorted(kept, key=attrgetter("number"))[-count:] if count else []

    def check_invariants(self) -> None:
        """Raise AssertionError where more is kept than may be, or somebody is woken who has gone."""
        for subject, kept in self.kept.items():
            if not len(kept.events) == min(self._limit, kept.total):
                raise AssertionError(f"{len(kept.events)} of {kept.total} events {subject} are kept")
        if not self._to_wake.keys() <= self._readers.keys():
            raise AssertionError("somebody is woken who has gone")
