"""The control socket's `events` of what happens at the broker: the last ones, and from then on each as it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.model.exchanges.broker_events import KEPT, BrokerEvent, BrokerEvents, EventSubject, subjects_of
from qpid_ha_broker.model.exchanges.topic_trie import ANY_WORDS
from qpid_ha_broker.server.control.administration import Params
from qpid_ha_broker.server.control.control import INVALID_PARAMS, ControlError, Stream

MOST_EVENTS: Final = KEPT
"""That are listed at a time."""


class FollowedEvents:
    """An endless iteration over events that are still to come, until it is closed. It holds none of them."""

    def __init__(
        self, events: BrokerEvents, subjects: frozenset[EventSubject], row: Callable[..., dict[str, object]]
    ) -> None:
        self._is_due = asyncio.Event()
        self._reader = events.read(subjects, self._is_due.set)
        self._row = row
        self._is_closed = False

    def __aiter__(self) -> FollowedEvents:
        return self

    async def __anext__(self) -> dict[str, object]:
        while not self._is_closed:
            event = self._reader.next()
            if event is not None:
                return self._row(event, self._reader.take_lost())
            self._is_due.clear()
            await self._is_due.wait()
        raise StopAsyncIteration

    def close(self) -> None:
        """Nobody listens any more."""
        self._is_closed = True
        self._reader.close()
        self._is_due.set()


class EventMethods:
    """`events`, with `match`, `count` or `follow`; without, it is about this broker's part in its cluster alone."""

    def __init__(self, events: BrokerEvents, broker: str) -> None:
        self._events = events
        self._broker = broker

    def events(self, params: Params) -> object:
        """The last of those whose subjects match. Raises ControlError."""
        count, follow = params.get("count"), params.get("follow", False)
        if count is None:
            count = MOST_EVENTS
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_EVENTS:
            raise ControlError(INVALID_PARAMS, f"count is how many of the last events to list, from 0 to {MOST_EVENTS}")
        if not isinstance(follow, bool):
            raise ControlError(INVALID_PARAMS, "follow is true or false")
        match = params.get("match", ANY_WORDS)
        if not isinstance(match, str):
            raise ControlError(INVALID_PARAMS, "match is a pattern of subjects, such as queue.*")
        try:
            subjects = subjects_of(match)
        except ValueError as error:
            raise ControlError(INVALID_PARAMS, str(error)) from None
        rows = [self._row(event) for event in self._events.last(subjects, count)]
        if not follow:
            return rows
        followed = FollowedEvents(self._events, subjects, self._row)
        return Stream(rows, "event", followed, followed.close)

    def _row(self, event: BrokerEvent, lost: int = 0) -> dict[str, object]:
        of_all = {"number": event.number, "at_ms": event.at_ms, "subject": str(event.subject), "broker": self._broker}
        return {**of_all, **({"lost": lost} if lost else {}), **event.facts}
