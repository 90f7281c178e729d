"""When a member says how far it has the log on its disk: a multicast each, which every member has to take in.

| what the member has on its disk since it last said so | it says so |
| --- | --- |
| a unit of another member, or what that one finds to be there already | with this turn: that one waits |
| its own unit, with something for a queue from which another member hands out | with this turn |
| any other own unit | with its next batch, or at the next tick: nobody else waits, and itself it knows |
| that another member owns a queue now or has a link of a session, an epoch that has begun | with this turn |
| that it owns a queue itself, or nobody does | as an own unit |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group.ownership import Ownership

_UNOWNED = ev.ProducerAdvanced | ev.NumbersRefused
"""Nobody hands out what these are about, and nobody waits for it but their publisher."""


class Progress(NamedTuple):
    """How far a member has come."""

    lsn: int
    """Of the log, on its disk."""
    position: int
    """Of ownership."""


class Acknowledging:
    """The promise: whoever waits for this member's acknowledgement has it with the turn in which it became true."""

    def __init__(self) -> None:
        self._said: Progress | None = None
        """The last that was said in this lineage."""
        self._awaited = Progress(0, 0)
        self._is_overdue = False

    def begin(self) -> None:
        """It is another lineage, or one that waits for this member only now: what was said counts for nothing."""
        self._said = None

    def note_unit(self, lsn: int, *, is_awaited: bool) -> None:
        """A unit was delivered, and the log ends at `lsn`."""
        if is_awaited:
            self._awaited = self._awaited._replace(lsn=lsn)

    def note_position(self, position: int) -> None:
        """Something was delivered of ownership for which another member waits."""
        self._awaited = self._awaited._replace(position=position)

    def tick(self) -> None:
        """A while went by: the next turn says what there is."""
        self._is_overdue = True

    def say(self, progress: Progress, *, with_others: bool) -> bool:
        """The end of a turn: whether it is to be said, and then it counts as said.

        `with_others`: a batch goes anyway.
        """
        said, is_overdue, self._is_overdue = self._said, self._is_overdue, False
        if progress == said:
            return False
        is_awaited = said is None or any(
            before < now and before < awaited
            for before, now, awaited in zip(said, progress, self._awaited, strict=True)
        )
        if not (is_awaited or with_others or is_overdue):
            return False
        self._said = progress
        return True


def is_awaited(own: str, sender: str, events: Iterable[ev.Event], ownership: Ownership) -> bool:
    """Whether others wait until `own` has this unit on its disk; by the table above."""
    if sender != own:
        return True
    looked_at: tuple[int, ...] = ()
    for event in events:
        if isinstance(event, ev.Enqueued):
            queues = event.queues
        elif isinstance(event, ev.Dequeued | ev.Released | ev.SessionAcquired | ev.Annotated):
            queues = (event.queue,)
        elif isinstance(event, _UNOWNED):
            continue
        else:
            return True
        if queues != looked_at and any(ownership.owner(queue)[0] not in ("", own) for queue in queues):
            return True
        looked_at = queues
    return False
