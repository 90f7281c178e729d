"""Server-sent events: that this broker's part in the cluster is another one, to a bounded number of pages.

Source: HTML Living Standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

LISTENERS_MAX: Final = 32
HEARTBEAT_S: Final = 5.0
"""A listener hears something at least so often."""
LOADING_LOOK_S: Final = 0.25
HEARTBEAT: Final = b": heartbeat\n\n"


class NewsListener:
    """What one page has not been sent yet: of each kind of news the last only, so it never is much."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, object]] = {}
        self._is_due = asyncio.Event()
        self._is_ended = False

    def put(self, kind: str, facts: dict[str, object]) -> None:
        """There is news."""
        self._pending[kind] = facts
        self._is_due.set()

    def end(self) -> None:
        """There will be no more."""
        self._is_ended = True
        self._is_due.set()

    async def texts(self) -> AsyncIterator[bytes]:
        """What to send, a heartbeat where there is nothing to tell."""
        while not self._is_ended:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._is_due.wait()
            except TimeoutError:
                yield HEARTBEAT
                continue
            self._is_due.clear()
            pending, self._pending = self._pending, {}
            for kind, facts in pending.items():
                yield event_text(kind, facts)


class StateNews:
    """The promise: at most LISTENERS_MAX listen, and none costs more than a few events, however slowly it reads."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._listeners: dict[NewsListener, None] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to hear of changes. The broker may load its store yet."""
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        """Tell nobody any more."""
        if self._task is not None:
            self._task.cancel()
        for listener in self._listeners:
            listener.end()

    def listen(self) -> NewsListener | None:
        """None: there are too many."""
        if len(self._listeners) >= LISTENERS_MAX:
            return None
        listener = NewsListener()
        self._listeners[listener] = None
        return listener

    def leave(self, listener: NewsListener) -> None:
        """`listener` listens no more."""
        self._listeners.pop(listener, None)

    async def _follow(self) -> None:
        while not self._broker.is_loaded:  # noqa: ASYNC110  # a poll of what has no event, over once it is loaded
            await asyncio.sleep(LOADING_LOOK_S)
        self._tell("state", self._broker.membership.summary())
        async for event in self._broker.membership.events.subscribe():
            self._tell(str(event["event"]), event)

    def _tell(self, kind: str, facts: dict[str, object]) -> None:
        for listener in self._listeners:
            listener.put(kind, facts)


def event_text(kind: str, facts: dict[str, object]) -> bytes:
    """One event, as it is sent: JSON has no line breaks, so no fact can pass for another event."""
    return f"event: {kind}\ndata: {json.dumps(facts)}\n\n".encode("ascii")
