"""The control socket lists the last events, and goes on with those that come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.model.exchanges.broker_events import KEPT, BrokerEvents, EventSubject
from qpid_ha_broker.server.control.control import ControlError, Stream
from qpid_ha_broker.server.control.event_methods import EventMethods


def told(*names: str) -> tuple[BrokerEvents, EventMethods]:
    events = BrokerEvents(lambda: 5)
    for name in names:
        events.tell(EventSubject.QUEUE_CREATED, name=name)
    return events, EventMethods(events, "node1")


def names(rows: Any) -> list[str]:
    return [str(row["name"]) for row in rows]


def test_the_last_events_are_listed_with_all_that_is_known_of_them() -> None:
    _, methods = told("a", "b", "c")
    assert names(methods.events({"count": 2})) == ["b", "c"]
    assert methods.events({"match": "queue.*", "count": 1}) == [
        {"number": 3, "at_ms": 5, "subject": "queue.created", "broker": "node1", "name": "c"}
    ]
    assert methods.events({"match": "alarm.*"}) == []


@pytest.mark.parametrize(
    "params",
    [{"count": -1}, {"count": KEPT + 1}, {"count": True}, {"count": "2"}, {"match": 1}, {"follow": "yes"}],
)
def test_what_makes_no_sense_is_refused_with_what_would(params: dict[str, object]) -> None:
    with pytest.raises(ControlError, match=r"from 0 to|such as queue|true or false"):
        told()[1].events(params)


def test_a_pattern_that_matches_nothing_is_refused_with_the_subjects() -> None:
    with pytest.raises(ControlError, match=r"queue\.created"):
        told()[1].events({"match": "nothing.*", "follow": True})


@in_event_loop
async def test_who_follows_hears_what_comes_and_how_much_is_lost_and_nothing_is_kept_for_who_has_gone() -> None:
    events, methods = told("before")
    stream = methods.events({"match": "queue.*", "follow": True})
    assert isinstance(stream, Stream)
    assert names(stream.answer) == ["before"]
    first = asyncio.ensure_future(anext(stream.notes))
    await asyncio.sleep(0)
    events.tell(EventSubject.ALARM_RAISED, alarm="memory")
    events.tell(EventSubject.QUEUE_DELETED, name="after")
    events.wake_readers()
    row: Any = await first
    assert row["name"] == "after"
    for number in range(KEPT + 2):
        events.tell(EventSubject.QUEUE_CREATED, name=str(number))
    late: Any = await anext(stream.notes)
    assert (late["name"], late["lost"]) == ("2", 2)
    stream.close()
    events.tell(EventSubject.QUEUE_DELETED, name="unheard")
    assert not events.has_due
    assert [note async for note in stream.notes] == []


def test_it_is_for_who_looks_and_the_table_has_its_parameters() -> None:
    row = OPERATIONS.find("events", {"match": "#"})
    assert row is not None
    assert {*row.known} == {"match", "count", "follow"}
