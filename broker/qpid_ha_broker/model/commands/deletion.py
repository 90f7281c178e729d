"""Deleting a queue whose messages go to its alternate exchange: each is routed and written, so many take long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.logs.log import CommitToken, Log
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry

MOVED_LENGTH: Final = 200
"""Messages that are moved together: a few milliseconds of work."""


class Deletion:
    """The deletion of a queue.

    `written`: None while it goes on; then what to wait for until it is committed.
    """

    __slots__ = ("_given_up", "queue", "written")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.written: CommitToken | None = None
        self._given_up: ModelError | None = None

    @property
    def failure(self) -> ModelError | None:
        """Why it was given up; None: it goes on, or is done."""
        return self._given_up if self.written is None else self.written.failure

    @failure.setter
    def failure(self, failure: ModelError) -> None:
        self._given_up = failure

    @property
    def is_over(self) -> bool:
        """Whether nothing becomes of it any more, one way or the other."""
        return self.is_committed or self.failure is not None

    @property
    def is_committed(self) -> bool:
        """Whether it is over, and clients may hear of it."""
        return self.written is not None and self.written.is_committed

    def waits_for(self, log: Log) -> bool:
        """Whether it was written to `log`, or will be, and is not committed yet."""
        if self.written is None:
            return self.queue.log is log
        return self.written.waits_for(log)

    def portions(self) -> Iterator[list[Entry]]:
        """All messages, some at a time: what nobody has, until nothing comes back any more, and then what is still held
        (open transactions have accepted it, or it is on its way to a consumer)."""
        has_found = True
        while has_found or self.queue.dispatcher.returning:
            has_found = False
            for entries in self._walk():
                free = [entry for entry in entries if entry.is_free]
                has_found |= bool(free)
                yield free
        for entries in self._walk():
            yield [entry for entry in entries if entry.body is not None]

    def _walk(self) -> Iterator[list[Entry]]:
        for block in self.queue.messages.walk():
            for start in range(0, len(block), MOVED_LENGTH):
                yield block[start : start + MOVED_LENGTH]
