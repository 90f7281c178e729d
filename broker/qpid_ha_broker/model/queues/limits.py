"""What a queue may hold, and what has to go so that something newer fits.

A ring refuses nothing that fits into it alone. It drops the oldest that nobody holds; where all that is left is held it
goes over its limits, by the newest message and what consumers get beyond them. That is bounded: who holds something
while a ring is over its limits by what is held gets one message more, and the next for an answer (see `is_held_up` and
`Dispatcher`). So a ring has at most its limits, one message for each consumer, and the newest; besides what open
transactions have accepted, which have limits of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from qpid_ha_broker.model.errors import QueueFull
from qpid_ha_broker.model.queues.orders import OrderCursor
from qpid_ha_broker.model.queues.queue_arguments import FullPolicy, QueueArguments
from qpid_ha_broker.model.queues.queued_messages import QueuedMessages
from qpid_ha_broker.model.queues.sequence import DISPLACED, Entry

DISPLACED_LENGTH: Final = 500
"""Messages that a ring drops at once: its limit may have been lowered, or one message take the place of many."""


class QueueLimits:
    """Decides what fits into one queue. What it drops is held by DISPLACED from then on; the caller dequeues it."""

    __slots__ = ("_arguments", "_displacing", "_messages", "_name", "is_bounded")

    def __init__(self, name: str, messages: QueuedMessages, arguments: QueueArguments) -> None:
        self._name = name
        self._messages = messages
        self._displacing: OrderCursor | None = None
        """Of a ring: before the message that goes first."""
        self.change_arguments(arguments)

    def change_arguments(self, arguments: QueueArguments) -> None:
        """Other limits for the same messages; a ring that is over them drops the rest with the next that comes."""
        self._arguments = arguments
        self.is_bounded = bool(arguments.max_count or arguments.max_size)
        """There is a limit of any kind."""
        if arguments.policy_type is FullPolicy.RING and self._displacing is None:
            self._displacing = self._messages.open_cursor(displacing=True)

    def displaced_by(self, size: int, priority: int, coming_count: int = 0, coming_size: int = 0) -> list[Entry] | None:
        """What a ring drops so that a message of `size` bytes fits, besides what is already planned to come (net).

        None: the message itself is what has to go, because all that it could take the place of has a higher priority.
        No more than DISPLACED_LENGTH, and nothing that is held or comes in the same unit: then the ring is over its
        limits, see `excess`. Raises QueueFull where it does not fit.
        """
        limits, messages = self._arguments, self._messages
        if limits.policy_type is FullPolicy.SELF_DESTRUCT and messages.count + coming_count == 0:
            return []  # its consumer has read all: one large message is no sign that it does not
        dropped: list[Entry] = []
        over_count = messages.count + coming_count + 1 - limits.max_count if limits.max_count else 0
        over_size = messages.size + coming_size + size - limits.max_size if limits.max_size else 0
        most = max(DISPLACED_LENGTH + min(coming_count, 0), 1)  # messages of a transaction come together
        while (over_count > 0 or over_size > 0) and len(dropped) < most:
            if not self.is_ring_for(size):
                raise QueueFull(self._full_text(size))
            entry = self._next_displaced()
            if entry is None:
                break
            if messages.level_of(entry.header.priority) > messages.level_of(priority):
                self.undo_displacing(dropped)
                return None
            messages.hold(entry, DISPLACED)
            dropped.append(entry)
            over_count -= 1
            over_size -= entry.size
        return dropped

    def goes_over(self, coming_count: int, coming_size: int) -> bool:
        """Whether a ring does not keep its limits with what comes (net), though it drops what it may for that."""
        limits, messages = self._arguments, self._messages
        if limits.policy_type is not FullPolicy.RING:
            return False
        if messages.count + coming_count > limits.max_count > 0:
            return True
        return messages.size + coming_size > limits.max_size > 0

    def excess(self, leaving: Sequence[Entry] = ()) -> list[Entry]:
        """Up to DISPLACED_LENGTH messages that a ring has to drop to keep its limits; nobody gets them any more.
        `leaving`: what is about to leave it anyway.

        None where it is no ring any more: its arguments may change between two portions."""
        if not self.has_excess(leaving):
            return []
        limits, messages = self._arguments, self._messages
        leaving_size = sum(entry.size for entry in leaving)
        over_count = messages.count - len(leaving) - limits.max_count if limits.max_count else 0
        over_size = messages.size - leaving_size - limits.max_size if limits.max_size else 0
        dropped: list[Entry] = []
        while (over_count > 0 or over_size > 0) and len(dropped) < DISPLACED_LENGTH and self._has_several_free:
            entry = self._next_displaced()
            if entry is None:
                break
            messages.hold(entry, DISPLACED)
            dropped.append(entry)
            over_count -= 1
            over_size -= entry.size
        return dropped

    def has_excess(self, leaving: Sequence[Entry] = ()) -> bool:
        """Whether a ring is over its limits, and not only by what is held: `excess` may find something."""
        if not (self._has_several_free and self.goes_over(0, 0)):
            return False
        return not leaving or self.goes_over(-len(leaving), -sum(entry.size for entry in leaving))

    @property
    def is_held_up(self) -> bool:
        """Whether a ring has no room but for one message because of what is held."""
        limits, messages = self._arguments, self._messages
        if limits.policy_type is not FullPolicy.RING or not messages.acquired:
            return False
        return messages.acquired >= limits.max_count > 0 or messages.size > limits.max_size > 0

    @property
    def _has_several_free(self) -> bool:
        """Whether something is left that nobody holds when one more is dropped: the newest stays, whatever is held."""
        return self._messages.count - self._messages.acquired > 1

    def available_value(self, key: str) -> Entry | None:
        """The available older value of `key`, whose room is free for the newer one."""
        older = self._messages.latest(key)
        return older if older is not None and older.is_free else None

    def displace(self, entries: Iterable[Entry]) -> None:
        """Nobody gets them any more."""
        for entry in entries:
            self._messages.hold(entry, DISPLACED)

    def undo_displacing(self, dropped: Iterable[Entry]) -> None:
        """Nothing came after all."""
        for entry in dropped:
            self._messages.give_back(entry, failed=False)

    def is_ring_for(self, size: int) -> bool:
        """Whether the queue is a ring, into which a message of that size fits alone."""
        limits = self._arguments
        return limits.policy_type is FullPolicy.RING and not 0 < limits.max_size < size

    def _next_displaced(self) -> Entry | None:
        return None if self._displacing is None else self._displacing.peek()

    def _full_text(self, size: int) -> str:
        limits, messages = self._arguments, self._messages
        return (
            f"queue {self._name} is full: it holds {messages.count} messages of {messages.size} bytes, a message of"
            f" {size} bytes goes over its limit (qpid.max_count={limits.max_count}, qpid.max_size={limits.max_size})"
        )
