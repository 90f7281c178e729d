"""What the broker has to know of a message to queue it, without its body."""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.events.types import Enqueued


class MessageHeader(NamedTuple):
    """An Enqueued without its payload. Messages that are alike share one object: a queue holds millions of them."""

    queues: tuple[int, ...]
    durable: bool
    priority: int
    expires_at_ms: int
    """0: never."""
    key: str
    """The last-value key; empty for any other queue."""
    due_at_ms: int = 0
    """Nobody gets it before; 0: whoever comes does."""


class MessageHeaders:
    """Makes headers, each once as long as there are few of them."""

    def __init__(self, at_most: int = 4096) -> None:
        self._known: dict[MessageHeader, MessageHeader] = {}
        self._last = MessageHeader((), False, 0, 0, "")
        self._at_most = at_most

    def of(self, event: Enqueued) -> MessageHeader:
        """The header of the message which `event` brings."""
        queues, _, durable, priority, expires_at_ms, key, due_at_ms = event
        last = self._last
        if last == (queues, durable, priority, expires_at_ms, key, due_at_ms):
            return last
        header = MessageHeader(queues, durable, priority, expires_at_ms, key, due_at_ms)
        # Times and last-value keys make as many headers as there are messages: no use to remember those.
        self._last = header if expires_at_ms or key or due_at_ms else self._shared(header)
        return self._last

    def _shared(self, header: MessageHeader) -> MessageHeader:
        known = self._known.get(header)
        if known is None:
            if len(self._known) >= self._at_most:
                self._known.clear()
            known = self._known[header] = header
        return known
