"""A local transaction: what a client wants done all at once, or not at all (AMQP 1.0 part 4)."""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.model.exchanges import Exchange
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.sequence import Entry, Holder


class Message(NamedTuple):
    """What a publisher brought, as far as the broker needs to know. `expires_at_ms` 0: never."""

    payload: bytes
    durable: bool = False
    priority: int = 4
    expires_at_ms: int = 0


class Publish(NamedTuple):
    """Send `message` to `target`, under `key` where that is an exchange."""

    target: Queue | Exchange
    message: Message
    key: str


class Transaction(Holder):
    """Work that waits for the client's word. Messages it accepted are held by it, so nobody else gets them."""

    __slots__ = ("accepted", "published", "size")

    def __init__(self) -> None:
        self.published: list[Publish] = []
        self.accepted: list[tuple[Queue, Entry]] = []
        self.size = 0
        """Bytes of payload that wait: the driver bounds it."""

    def publish(self, publish: Publish) -> None:
        """Remember to send a message."""
        self.published.append(publish)
        self.size += len(publish.message.payload)

    def accept(self, queue: Queue, entry: Entry) -> None:
        """Remember to forget a message that its consumer has done with."""
        queue.hold(entry, self)
        self.accepted.append((queue, entry))
