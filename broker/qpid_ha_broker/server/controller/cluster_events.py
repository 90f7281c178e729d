"""What happens to a broker's part in the cluster, told to whoever listens on the control socket."""

from __future__ import annotations

import asyncio
import time

QUEUE_LENGTH = 1000
"""Events that may wait for one listener; who reads so slowly is let go."""


class Subscription:
    """An endless iteration over events, until it is closed."""

    def __init__(self, events: ClusterEvents) -> None:
        self._events = events
        self._queue: asyncio.Queue[dict[str, object] | None] = asyncio.Queue()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> dict[str, object]:
        event = await self._queue.get()
        if event is None:
            raise StopAsyncIteration
        return event

    def put(self, event: dict[str, object]) -> None:
        """Let the listener have `event`, or let it go."""
        if self._queue.qsize() < QUEUE_LENGTH:
            self._queue.put_nowait(event)
        else:
            self.close()

    def close(self) -> None:
        """No more events."""
        self._events.remove(self)
        self._queue.put_nowait(None)


class ClusterEvents:
    """Who listens."""

    def __init__(self) -> None:
        self._subscriptions: dict[Subscription, None] = {}

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._subscriptions)

    def subscribe(self) -> Subscription:
        """All that is published from now on."""
        subscription = Subscription(self)
        self._subscriptions[subscription] = None
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """Nobody listens there any more."""
        self._subscriptions.pop(subscription, None)

    def publish(self, kind: str, facts: dict[str, object]) -> None:
        """Tell everybody. `kind`: state, phase or primary."""
        event = {"event": kind, "at_ms": int(time.time() * 1000), **facts}
        for subscription in list(self._subscriptions):
            subscription.put(event)

    def close(self) -> None:
        """Nothing more will happen."""
        for subscription in list(self._subscriptions):
            subscription.close()
