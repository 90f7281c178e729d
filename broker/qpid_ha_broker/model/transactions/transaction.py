"""A local transaction: what a client wants done all at once, or not at all (AMQP 1.0 part 4)."""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.model.exchanges.exchange import NOBODY, Exchange, Origin
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, Holder


class Message(NamedTuple):
    """What a publisher brought, as far as the broker needs to know. `expires_at_ms` 0: never."""

    payload: bytes
    durable: bool = False
    priority: int = 4
    expires_at_ms: int = 0
    producer: bytes = b""
    """Who numbers its messages, so that one which is sent twice is known; empty: nobody does."""
    sequence: int = 0
    due_at_ms: int = 0
    """Nobody gets it before; 0: whoever comes does."""


class Publish(NamedTuple):
    """Send `message` to `target`, under `key` where that is an exchange; `origin`: who publishes it."""

    target: Queue | Exchange
    message: Message
    key: str
    origin: Origin = NOBODY


class Transaction(Holder):
    """Work that waits for the client's word. Messages it accepted are held by it, so nobody else gets them."""

    __slots__ = ("_consumers", "accepted", "published", "size")

    def __init__(self) -> None:
        self.published: list[Publish] = []
        self.accepted: list[tuple[Queue, Entry]] = []
        self._consumers: dict[Entry, Holder] = {}
        self.size = 0
        """Bytes of payload that wait: the driver bounds it."""

    @property
    def length(self) -> int:
        """Messages published and accepted."""
        return len(self.published) + len(self.accepted)

    def publish(self, publish: Publish) -> None:
        """Remember to send a message."""
        self.published.append(publish)
        self.size += len(publish.message.payload)

    def withdraw(self) -> None:
        """Take back the last publish."""
        self.size -= len(self.published.pop().message.payload)

    def accept(self, queue: Queue, entry: Entry, consumer: Holder | None) -> None:
        """Remember to forget a message that is done with; after a rollback `consumer` has it again, if it is given."""
        if entry.holder is self:
            return  # Accepted twice; a log that dequeues it twice could not be replayed.
        queue.messages.hold(entry, self)
        self.accepted.append((queue, entry))
        if consumer is not None:
            self._consumers[entry] = consumer

    def abandon(self, entry: Entry) -> None:
        """The consumer of `entry` is gone or has settled: after a rollback the queue has it again."""
        self._consumers.pop(entry, None)

    def consumer_of(self, entry: Entry) -> Holder | None:
        """Who has `entry` again after a rollback; None: the queue."""
        return self._consumers.get(entry)
