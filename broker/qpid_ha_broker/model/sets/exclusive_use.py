"""Who has exclusive queues by way of this broker, as the strategy of a set lets it be known.

| | who comes for a free queue | who comes for another's | that it is had is written |
| --- | --- | --- | --- |
| `ExclusiveUse`: one broker decides | has it | is refused | for who leads after this broker |
| `GroupedUse`: each member may be asked | has it when that has its place | is refused then | and so decided |
"""

from __future__ import annotations

from typing import Protocol

from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.logs.log import Commitment, CommitToken
from qpid_ha_broker.model.queues.queue import Queue


class SubmittedUse(Commitment, Protocol):
    """A unit with a QueueUsed."""

    lsn: int
    """0: it has no place yet."""

    @property
    def failure(self) -> ModelError | None:
        """Why it does not count."""


class ExclusiveUse:
    """Of a set that one broker leads: who has a queue is its `Queue.exclusive_owner`."""

    def user(self, queue: Queue) -> str:
        """Who has `queue` by way of this broker, as it was written: see `following.owner_name`; empty: nobody."""
        return queue.owner

    def awaited(self, queue: Queue) -> CommitToken | None:
        """What to wait for until it is known whether who has come for `queue` here gets it; None: it is known. It fails
        where somebody at another broker has it."""
        return None

    def forget(self, queue: Queue) -> None:
        """Who had come for `queue` here has gone, and there is nothing to be written of that: it is deleted, or
        somebody at another broker has it."""


class GroupedUse(ExclusiveUse):
    """The promise: of all who come, at all members, one at a time is given messages of a queue.

    Which member's client has it the log tells (`group.ownership`). Which client of this member that is, or hopes to be,
    is `Queue.exclusive_owner` here, too, and one at most.
    """

    def __init__(self) -> None:
        self._uses: dict[Queue, tuple[str, SubmittedUse]] = {}
        """Of queues for which somebody has come here, and has not gone: who, and the unit that says so."""

    def submitted(self, queue: Queue, owner: str, unit: SubmittedUse) -> None:
        """Somebody has come for `queue`; of an empty `owner`: has gone."""
        if owner and queue.arguments.exclusive:
            self._uses[queue] = owner, unit
        else:
            self._uses.pop(queue, None)

    def is_doubtful(self, queue: Queue) -> bool:
        """Somebody has come here for `queue` who does not have it, or not yet."""
        if not self._uses or queue not in self._uses:
            return False
        _, unit = self._uses[queue]
        return not unit.lsn or unit.failure is not None

    def user(self, queue: Queue) -> str:
        """As `ExclusiveUse.user`; also of who may turn out not to have it."""
        owner, unit = self._uses.get(queue, ("", None))
        return owner if unit is not None and unit.failure is None else ""

    def awaited(self, queue: Queue) -> CommitToken | None:
        """As `ExclusiveUse.awaited`."""
        _, unit = self._uses.get(queue, ("", None))
        return None if unit is None or unit.is_committed else CommitToken(queue.log, 0, unit)

    def forget(self, queue: Queue) -> None:
        """As `ExclusiveUse.forget`."""
        self._uses.pop(queue, None)

    def clear(self) -> None:
        """The group goes on without this member, and its clients are sent away."""
        self._uses.clear()
