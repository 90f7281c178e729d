"""Clients that send and take as fast as they may, on one connection, and do nothing about any error but note it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

PATIENCE_S = 60.0


class _SteadyClient(MessagingHandler):
    """A reactor in a thread. `errors` is what a client without a proxy would have to deal with."""

    def __init__(self, url: str, queue: str, **options: Any) -> None:
        super().__init__(**options)
        self.url = url
        self.queue = queue
        self.errors: list[str] = []
        self.news = threading.Condition()
        self._connection: Any = None
        self._is_stopping = False
        self._container = Container(self)
        self._thread = threading.Thread(target=self._container.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        self._container.wakeup()
        self._thread.join(PATIENCE_S)

    def wait(self, is_reached: Callable[[], bool], what: str) -> None:
        """Until it is so, or something went wrong."""
        with self.news:
            reached = self.news.wait_for(lambda: is_reached() or bool(self.errors), PATIENCE_S)
        assert not self.errors, (what, self.errors)
        assert reached, what

    def _tell(self) -> None:
        with self.news:
            self.news.notify_all()

    def on_start(self, event: Any) -> None:
        """Connect, once."""
        self._connection = event.container.connect(self.url, reconnect=False)
        event.container.schedule(0.05, self)

    def on_timer_task(self, event: Any) -> None:
        """Stop, if it is time to; and let those look again who wait for what two clients have together."""
        self._tell()
        if self._is_stopping:
            self._connection.close()
            event.container.stop()
        else:
            event.container.schedule(0.05, self)

    def _note(self, event: Any, endpoint: Any) -> None:
        if not self._is_stopping:
            self.errors.append(f"{event.type}: {endpoint and endpoint.remote_condition}")
            self._tell()

    def on_link_error(self, event: Any) -> None:
        """The broker ended the link."""
        self._note(event, event.link)

    def on_connection_error(self, event: Any) -> None:
        """The broker ended the connection."""
        self._note(event, event.connection)

    def on_transport_error(self, event: Any) -> None:
        """The socket is gone."""
        self._note(event, None)

    def on_disconnected(self, event: Any) -> None:
        """The socket is gone."""
        self._note(event, None)


class SteadyPublisher(_SteadyClient):
    """Sends the numbers from 0 to `count`."""

    def __init__(self, url: str, queue: str, count: int) -> None:
        super().__init__(url, queue)
        self.count = count
        self.sent = 0
        self.accepted: list[int] = []
        self._numbers: dict[str, int] = {}

    def on_start(self, event: Any) -> None:
        super().on_start(event)
        event.container.create_sender(self._connection, self.queue, handler=self)

    def on_sendable(self, event: Any) -> None:
        """There is credit."""
        while event.sender.credit and self.sent < self.count:
            delivery = event.sender.send(Message(self.sent))
            self._numbers[delivery.tag] = self.sent
            self.sent += 1

    def on_accepted(self, event: Any) -> None:
        """One is confirmed."""
        self.accepted.append(self._numbers.pop(event.delivery.tag))
        if len(self.accepted) % 100 == 0 or len(self.accepted) == self.count:
            self._tell()

    def on_rejected(self, event: Any) -> None:
        """One is refused, which nobody has asked for."""
        self.errors.append(f"{self._numbers.pop(event.delivery.tag)} was not accepted")
        self._tell()

    on_released = on_rejected


class SteadyConsumer(_SteadyClient):
    """Takes what comes, and accepts it."""

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(url, queue, prefetch=500)
        self.received: list[int] = []

    def on_start(self, event: Any) -> None:
        super().on_start(event)
        event.container.create_receiver(self._connection, self.queue, handler=self)

    def on_message(self, event: Any) -> None:
        """One came."""
        self.received.append(event.message.body)
        if len(self.received) % 100 == 0:
            self._tell()

    def wait_received(self, count: int) -> None:
        """Until so many have come."""
        self.wait(lambda: len(self.received) >= count, f"{count} messages")
