"""Deleting a queue whose messages go to its alternate exchange: each is routed and written, so many take long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.sequence import Entry

MOVED_LENGTH: Final = 200
"""Messages that are moved together: a few milliseconds of work."""


class Deletion:
    """The deletion of a queue.

    `lsn`: None while it goes on; then what to wait for until it is certain. `failure`: why it was given up.
    """

    __slots__ = ("_rest", "_walk", "failure", "locked_before", "lsn", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.locked_before = queue.locked
        self.lsn: int | None = None
        self.failure: ModelError | None = None
        self._rest: list[Entry] = []
        self._walk: Iterator[list[Entry]] = queue.walk()

    def next_portion(self) -> list[Entry]:
        """What to move next, none of which anybody holds; empty: the queue has been gone through."""
        while True:
            portion = [entry for entry in self._rest[:MOVED_LENGTH] if entry.holder is None]
            del self._rest[:MOVED_LENGTH]
            if portion:
                return portion
            if not self._rest:
                block = next(self._walk, None)
                if block is None:
                    self._walk = self.queue.walk()
                    return []
                self._rest = block
