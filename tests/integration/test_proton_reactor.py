"""Proton's event-driven client: many messages in flight, both ways at once."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from proton import Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container

from proxied_broker import Served


class Story(MessagingHandler):
    """Sends `count` numbers while it receives them; ends when all are there and all are confirmed."""

    def __init__(self, url: str, address: str, count: int, *, prefetch: int = 100) -> None:
        super().__init__(prefetch=prefetch)
        self._url, self._address, self._count = url, address, count
        self.sent = self.confirmed = 0
        self.received: list[int] = []
        self.problems: list[str] = []

    def on_start(self, event: Any) -> None:
        """Connect."""
        self._connection = event.container.connect(self._url, reconnect=False)
        event.container.create_receiver(self._connection, self._address)
        event.container.create_sender(self._connection, self._address)

    def on_sendable(self, event: Any) -> None:
        """Send as far as the credit goes."""
        while event.sender.credit and self.sent < self._count:
            event.sender.send(Message(self.sent))
            self.sent += 1

    def on_accepted(self, event: Any) -> None:
        """The broker has one."""
        self.confirmed += 1
        self._finish_when_done()

    def on_message(self, event: Any) -> None:
        """One came."""
        self.received.append(event.message.body)
        self._finish_when_done()

    def on_rejected(self, event: Any) -> None:
        """None should be."""
        self.problems.append(f"rejected: {event.delivery.remote.condition}")

    def on_transport_error(self, event: Any) -> None:
        """The broker should stay."""
        self.problems.append(f"transport: {event.transport.condition}")

    def _finish_when_done(self) -> None:
        if len(self.received) == self._count and self.confirmed == self._count:
            self._connection.close()


@pytest.mark.parametrize("prefetch", [2, 10, 1000])
def test_ten_thousand_numbers_come_back_in_order_and_each_is_confirmed(
    broker: Served, address: str, prefetch: int
) -> None:
    count = 10_000 if prefetch > 2 else 1_000
    story = Story(broker.url, address, count, prefetch=prefetch)
    Container(story).run()
    assert story.problems == []
    assert story.received == list(range(count))
    assert story.confirmed == count


class Transfers(MessagingHandler, TransactionHandler):
    """Sends numbers in batches, each in a transaction of its own; every third batch is rolled back."""

    def __init__(self, url: str, address: str, batches: int, size: int) -> None:
        super().__init__()
        self._url, self._address, self._size = url, address, size
        self._batches = deque(range(batches))
        self._transaction: Any = None
        self._sender: Any = None
        self.kept: list[int] = []
        self.problems: list[str] = []

    def on_start(self, event: Any) -> None:
        """Connect."""
        self._container = event.container
        self._connection = event.container.connect(self._url, reconnect=False)
        event.container.create_sender(self._connection, self._address)

    def on_sendable(self, event: Any) -> None:
        """Begin: Proton sends a discharge before messages that have no credit yet."""
        if self._sender is None:
            self._sender = event.sender
            self._next()

    def _next(self) -> None:
        if self._batches:
            self._container.declare_transaction(self._connection, handler=self)
        else:
            self._connection.close()

    def on_transaction_declared(self, event: Any) -> None:
        """Send one batch."""
        batch = self._batches.popleft()
        numbers = range(batch * self._size, (batch + 1) * self._size)
        for number in numbers:
            event.transaction.send(self._sender, Message(number))
        if batch % 3 == 2:
            event.transaction.abort()
        else:
            self.kept += numbers
            event.transaction.commit()

    def on_transaction_committed(self, event: Any) -> None:
        """The next one."""
        self._next()

    def on_transaction_aborted(self, event: Any) -> None:
        """The next one."""
        self._next()

    def on_transaction_commit_failed(self, event: Any) -> None:
        """None should."""
        self.problems.append(str(event.delivery.remote.condition))
        self._connection.close()

    def on_transaction_declare_failed(self, event: Any) -> None:
        """None should."""
        self.on_transaction_commit_failed(event)


class Collect(MessagingHandler):
    """Receives `count` messages."""

    def __init__(self, url: str, address: str, count: int) -> None:
        super().__init__()
        self._url, self._address, self._count = url, address, count
        self.received: list[int] = []

    def on_start(self, event: Any) -> None:
        """Connect."""
        event.container.create_receiver(event.container.connect(self._url, reconnect=False), self._address)

    def on_message(self, event: Any) -> None:
        """One came."""
        self.received.append(event.message.body)
        if len(self.received) == self._count:
            event.connection.close()


def test_batches_in_transactions_arrive_whole_or_not_at_all(broker: Served, address: str) -> None:
    transfers = Transfers(broker.url, address, batches=20, size=10)
    Container(transfers).run()
    assert transfers.problems == []
    collected = Collect(broker.url, address, len(transfers.kept))
    Container(collected).run()
    assert collected.received == transfers.kept


def test_many_links_on_one_connection_do_not_mix(broker: Served, address: str) -> None:
    class Many(MessagingHandler):
        links = 50

        def __init__(self) -> None:
            super().__init__()
            self.received: dict[str, list[str]] = {}

        def on_start(self, event: Any) -> None:
            self.connection = event.container.connect(broker.url, reconnect=False)
            for n in range(self.links):
                event.container.create_receiver(self.connection, f"{address}-{n}")
                event.container.create_sender(self.connection, f"{address}-{n}")

        def on_sendable(self, event: Any) -> None:
            name = event.sender.target.address
            if name not in self.received:
                self.received[name] = []
                for n in range(10):
                    event.sender.send(Message(f"{name}/{n}"))

        def on_message(self, event: Any) -> None:
            self.received[event.receiver.source.address].append(event.message.body)
            if sum(map(len, self.received.values())) == 10 * self.links:
                self.connection.close()

    many = Many()
    Container(many).run()
    assert many.received == {f"{address}-{n}": [f"{address}-{n}/{k}" for k in range(10)] for n in range(50)}
