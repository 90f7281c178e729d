"""How far queues were handed out, as the log tells it ahead: for who leads after this broker.

What a consumer takes is in no log until it is answered, so a successor does not know who had what. It need not know
exactly: a `HandedOut` says up to which id a queue's messages may have been handed out, and is written in steps, ahead
of what is. After a promotion what lies below goes out marked as delivered before, and nothing else does.

The promise: whoever may lead next has, with each message that was handed out, a mark that covers it. So a message may
be handed out where

1. it is not above `settled`: that much everyone who may lead next knows, or knows nothing at all, or
2. its id is not above the newest mark, and that mark is committed, or
3. its id is not above the newest mark, and the mark lies before it in the log: who has the message has the mark.

Case 3 is why nobody waits for a mark: of a queue that is handed out as fast as it is filled the log says once that all
of it may be (`EVERYTHING`). A mark that is lower than the one before takes back what was said of messages that nobody
had; it never is below what was handed out.

A log says in each generation whether it has marks (`HandedOut` of the queue 0): an older primary writes none, and after
that one all that was queued may have been handed out. Likewise where a generation is not known that was between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qpid_ha_broker.events.types import EVERYTHING, HandedOut
from qpid_ha_broker.model.logs.log import Log


class QueueMark:
    """Of one queue. Invariant, while marks are told: `highest` is not above `upto`."""

    __slots__ = ("highest", "looked_at_total", "lsn", "renew_at", "settled", "upto")

    def __init__(self) -> None:
        self.highest = 0
        """No message with a larger id was handed out, by this broker or by those that led before."""
        self.upto = 0
        """What the log says: no message with a larger id was handed out. It may be above all ids that there are."""
        self.lsn = 0
        """Where it says so."""
        self.settled = 0
        """So much of `upto` is known to everyone who may lead next."""
        self.renew_at = 0
        """Once a message with that id was handed out, the next mark is due."""
        self.looked_at_total = 0
        """How many messages had come when it was seen last whether too many wait above `highest`."""

    def told(self, upto: int, lsn: int) -> None:
        """The log says it."""
        self.settled = min(self.settled, upto)
        self.upto, self.lsn, self.renew_at = upto, lsn, upto

    def settle(self, log: Log) -> int:
        """How far messages may be handed out, wherever the mark is in the log."""
        if self.settled != self.upto and self.lsn <= log.committed_lsn:
            self.settled = self.upto
        return self.settled

    def covers(self, message_id: int) -> bool:
        """Whether that message may be handed out now."""
        return message_id <= self.settled or self.lsn < message_id <= self.upto


class SetMarks:
    """Of one resource set: whether its log tells of queues, and what was handed out before it did."""

    def __init__(self) -> None:
        self.floor = EVERYTHING
        """Of any queue, messages up to this id may have been handed out; EVERYTHING: the log has no marks now."""
        self.last_lsn = 0
        """Of the last event about marks: an older release cannot read it."""
        self.inherited = EVERYTHING
        """Of a primary: `floor` as those before it have left it."""
        self._is_gating = False
        """Of a primary: nothing is handed out that no mark covers."""
        self._ends_lsn = 0
        """Where the log says that it has no marks from there on; 0: it does not."""
        self.why_no_delay = ""
        """Of a primary: why the log gets no message that is due later; empty: it does."""
        self.tells_annotations = True
        """Of a primary: the log gets what consumers say of messages when they give them back."""
        self.annotated_lsn = 0
        """Of the last event about that: an older release cannot read it."""

    @property
    def is_told(self) -> bool:
        """Whether the log has marks in its last generation."""
        return self.floor != EVERYTHING

    def forget(self) -> None:
        """Nothing is known: another primary begins, which has not said yet whether it writes marks; or what the log
        told is taken back."""
        self.floor = EVERYTHING

    def events(self, lsn: int, marks: Mapping[int, QueueMark]) -> Iterator[tuple[int, HandedOut]]:
        """What leads to what the log says at `lsn` of queues, by their ids, in an order in which it can be applied."""
        if self.is_told:
            yield lsn, HandedOut(0, self.floor)
            for queue_id, mark in marks.items():
                if mark.upto > self.floor:
                    yield lsn, HandedOut(queue_id, mark.upto)

    def inherit(self, *, is_next: bool) -> None:
        """This broker begins to lead. `is_next`: its generation follows the log's last one, so that nobody led in
        between of whom it knows nothing."""
        self.inherited = self.floor if is_next else EVERYTHING
        self._is_gating, self._ends_lsn = False, 0

    def begun(self) -> None:
        """From here on messages wait for marks."""
        self._is_gating, self._ends_lsn = True, 0

    def ended(self) -> None:
        """Messages wait for marks until all know that there are none any more."""
        self._ends_lsn = self.last_lsn

    def gates(self, log: Log) -> bool:
        """Whether a message has to be covered by a mark now."""
        if self._ends_lsn and self._ends_lsn <= log.committed_lsn:
            self._is_gating, self._ends_lsn = False, 0
        return self._is_gating
