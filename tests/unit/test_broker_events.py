"""What happens at a broker is kept for a while, and read by those who watch, each at its own pace."""

from __future__ import annotations

import random
from itertools import count

import pytest

from qpid_ha_broker.model.exchanges.broker_events import (
    EVENTS_ADDRESS,
    TEXT_LENGTH,
    BrokerEvents,
    EventReader,
    EventSubject,
    is_for_events,
    subjects_of,
)

LIMIT = 5
QUEUES = frozenset({EventSubject.QUEUE_CREATED, EventSubject.QUEUE_CHANGED, EventSubject.QUEUE_DELETED})


def told() -> BrokerEvents:
    """A clock that goes on by a second with each event."""
    seconds = count(1)
    return BrokerEvents(lambda: next(seconds) * 1000, LIMIT)


def names(reader: EventReader) -> list[object]:
    """Of all that it has not read yet."""
    found: list[object] = []
    while (event := reader.next()) is not None:
        found.append(event.facts["name"])
    return found


def ignore() -> None:
    """Nobody waits."""


@pytest.mark.parametrize(
    ("pattern", "subjects"),
    [
        ("queue.created", {EventSubject.QUEUE_CREATED}),
        ("queue.*", QUEUES),
        ("*.closed", {EventSubject.CONNECTION_CLOSED}),
        ("alarm.#", {EventSubject.ALARM_RAISED, EventSubject.ALARM_CLEARED}),
        ("#", set(EventSubject)),
    ],
)
def test_a_pattern_matches_subjects_as_it_matches_topics(pattern: str, subjects: set[EventSubject]) -> None:
    assert subjects_of(pattern) == subjects


@pytest.mark.parametrize("pattern", ["queues.*", "queue", "", "*", "x" * 300])
def test_a_pattern_that_matches_nothing_is_refused_and_not_waited_for(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"queue\.created|at most 255"):
        subjects_of(pattern)


def test_the_address_is_that_of_the_events_alone_or_has_a_pattern() -> None:
    assert is_for_events(EVENTS_ADDRESS)
    assert is_for_events(f"{EVENTS_ADDRESS}/queue.*")
    assert not is_for_events(f"{EVENTS_ADDRESS}.mine")


def test_a_reader_gets_what_it_asks_for_from_when_it_came_in_the_order_in_which_it_happened() -> None:
    events = told()
    events.tell(EventSubject.QUEUE_CREATED, name="before")
    reader = events.read(QUEUES, ignore)
    events.tell(EventSubject.QUEUE_DELETED, name="a")
    events.tell(EventSubject.EXCHANGE_CREATED, name="no queue")
    events.tell(EventSubject.QUEUE_CREATED, name="b")
    events.tell(EventSubject.QUEUE_DELETED, name="c")
    assert names(reader) == ["a", "b", "c"]
    assert reader.take_lost() == 0


def test_an_event_has_a_number_a_time_and_texts_of_a_bounded_length() -> None:
    events = told()
    events.tell(EventSubject.QUEUE_CREATED, name="x" * 1000)
    (event,) = events.last(QUEUES, 10)
    assert (event.number, event.at_ms) == (1, 1000)
    assert event.facts == {"name": "x" * TEXT_LENGTH}


def test_who_reads_slowly_loses_the_oldest_and_is_told_how_many() -> None:
    events = told()
    reader = events.read(QUEUES, ignore)
    for number in range(LIMIT + 3):
        events.tell(EventSubject.QUEUE_CREATED, name=number)
    assert names(reader) == list(range(3, LIMIT + 3))
    assert reader.take_lost() == 3
    assert reader.take_lost() == 0


def test_a_storm_of_one_kind_costs_nobody_events_of_another() -> None:
    events = told()
    reader = events.read(QUEUES, ignore)
    events.tell(EventSubject.QUEUE_CREATED, name="seldom")
    for _ in range(100):
        events.tell(EventSubject.CONNECTION_OPENED, name="often")
    assert names(reader) == ["seldom"]
    assert reader.take_lost() == 0
    assert [event.facts["name"] for event in events.last(EventSubject, 100)] == ["seldom", *["often"] * LIMIT]


def test_the_last_events_are_the_newest_of_all_that_are_asked_for_the_oldest_first() -> None:
    events = told()
    for name in "abc":
        events.tell(EventSubject.QUEUE_CREATED, name=name)
        events.tell(EventSubject.QUEUE_DELETED, name=name.upper())
    assert [event.facts["name"] for event in events.last(QUEUES, 3)] == ["B", "c", "C"]
    assert events.last(QUEUES, 0) == []
    assert events.last({EventSubject.ALARM_RAISED}, 3) == []


def test_telling_calls_nobody_and_who_reads_is_woken_once_for_all() -> None:
    events, woken, due = told(), [], []
    events.due = lambda: due.append(True)
    reader = events.read(QUEUES, lambda: woken.append(True))
    events.read({EventSubject.ALARM_RAISED}, lambda: woken.append(False))
    for _ in range(3):
        events.tell(EventSubject.QUEUE_CREATED, name="a")
    assert not woken
    assert due
    events.wake_readers()
    assert woken == [True]
    assert not events.has_due
    reader.close()
    events.tell(EventSubject.QUEUE_CREATED, name="b")
    assert not events.has_due


def test_where_nobody_reads_nobody_is_to_be_woken() -> None:
    events = told()
    events.due = lambda: pytest.fail("a turn for nobody")
    events.tell(EventSubject.QUEUE_CREATED, name="a")
    assert not events.has_due


@pytest.mark.parametrize("seed", range(20))
def test_each_event_is_read_once_or_counted_as_lost(seed: int) -> None:
    chance, events = random.Random(seed), told()
    readers = [events.read(chance.sample(list(EventSubject), 3), ignore) for _ in range(3)]
    wanted, read, lost = [0] * 3, [list[int]() for _ in range(3)], [0] * 3
    for number in range(1, 300):
        subject = chance.choice(list(EventSubject))
        events.tell(subject, name=number)
        for at, reader in enumerate(readers):
            wanted[at] += reader.wants(subject)
            if chance.random() < 0.05 * at:
                read[at] += [event.number for event in iter(reader.next, None)]
        events.check_invariants()
    for at, reader in enumerate(readers):
        read[at] += [event.number for event in iter(reader.next, None)]
        lost[at] = reader.take_lost()
        assert read[at] == sorted(set(read[at]))
        assert len(read[at]) + lost[at] == wanted[at]
