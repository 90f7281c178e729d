"""Queues that were written and do not count yet: where many write a log, what one has written has no place at first."""

from __future__ import annotations

from collections.abc import Mapping

from qpid_ha_broker.model.errors import BeingMade
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.queue import Queue


class PendingQueues:
    """The promise: nobody has a queue written a second time as long as it is open what becomes of the first."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues
        self._written: dict[str, CommitToken] = {}

    def check(self, name: str) -> None:
        """Whether that one may be written, or is there. Raises BeingMade."""
        written = self._written.get(name)
        if written is None:
            return
        if name not in self._queues and written.failure is None and not written.is_committed:
            raise _about_to_be_there(name)
        del self._written[name]

    def made(self, name: str, written: CommitToken) -> Queue:
        """The queue that was just written. Raises BeingMade."""
        queue = self._queues.get(name)
        if queue is None:
            self._written[name] = written
            raise _about_to_be_there(name)
        return queue


def _about_to_be_there(name: str) -> BeingMade:
    return BeingMade(f"queue {name} is about to be there: ask again")
