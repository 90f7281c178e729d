"""What clients of a group were promised, and whether it was kept: by its log, by what its members hand out, and by what
clients get.

A member that is not of the record any more, and does not know it yet, may hand out what others do (docs/groups.md). So
what a member gives is judged where that happens, by the record of that moment; and of what one has given that was not
of the record, it is not judged whether it comes marked, and in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from simulation.brokers.ledger import ClientSession, Custodian, Handout, Ledger, Reading, Sent
from simulation.groups.guarantees import Check
from simulation.violations import Violation

STILL_ON_ITS_WAY_S: Final = 3.0
"""So long after a broker has lost the member from which it relayed, what came before may come to its client."""


class GroupLog:
    """What members were told to be committed, of one log."""

    def __init__(self, read: Callable[[bytes], Sent]) -> None:
        """`read`: what a message is."""
        self._read = read
        self._log: dict[int, LogRecord] = {}
        self._messages: dict[int, ev.Enqueued] = {}
        """By their LSNs."""
        self.displaced: set[Sent] = set()
        """What has left for newer messages."""
        self.has_unread = False
        """Of something that has left for newer messages it is not known what it was: who told of the log was shown it
        in the middle."""
        self._outdated: list[tuple[int, int, ev.Enqueued]] = []
        """Of last values that have left for newer ones: where the log says so, their ids, and they themselves."""

    def committed(self, member: str, record: LogRecord) -> None:
        """A member was told that this record of its log is committed. Raises Violation."""
        there = self._log.get(record.lsn)
        if there is None:
            self._log[record.lsn] = record
            self._note(record.lsn, record.event)
        elif there != record:
            raise Check.OTHER_EVENT.broken(who=member, lsn=record.lsn)

    def _note(self, lsn: int, event: ev.Event) -> None:
        if isinstance(event, ev.Enqueued):
            self._messages[lsn] = event
        elif isinstance(event, ev.Dequeued) and event.reason is ev.DequeueReason.DISPLACED:
            for number in event.ids:
                dropped = self._messages.get(number)
                if dropped is None:
                    self.has_unread = True
                    continue
                self.displaced.add(self._read(dropped.payload))
                self._outdated += [(lsn, number, dropped)] if dropped.key else []

    def check_last_values(self) -> None:
        """Where all of the log in between is known: that of a member that joined begins late. Raises Violation."""
        for lsn, number, dropped in self._outdated:
            later = range(number + 1, lsn)
            newer = [self._messages[between] for between in later if between in self._messages]
            is_known = all(between in self._log for between in later)
            if is_known and not any(other.queues == dropped.queues and other.key == dropped.key for other in newer):
                raise Check.LAST_VALUE.broken(payload=self._read(dropped.payload), key=dropped.key)


class GroupLedger(Ledger):
    """The promise: as the header of this module says."""

    def __init__(self, now_s: Callable[[], float], custodian: Custodian, read: Callable[[bytes], Sent]) -> None:
        super().__init__(now_s, custodian)
        self.log = GroupLog(read)
        self._links: dict[Sent, list[object]] = {}
        """To which a member has handed it out."""
        self._unsure: set[Sent] = set()
        """What a member has handed out that was not of the record."""
        self._parted_s: dict[tuple[str, str], float] = {}
        """By client and queue: when a broker that relays lost the member from which the client got messages."""

    # --- what members hand out

    def leaves_member(
        self,
        member: str,
        sent: Sent,
        link: object,
        session: str,
        others: Sequence[str] | None,
    ) -> None:
        """A member hands it out on `link`, of the client's session of that name. `others`: members at which a consumer
        has it; None: this one is not of the record any more. Raises Violation."""
        self._links.setdefault(sent, []).append(link)
        if others is None:
            self._unsure.add(sent)
            return
        again = self._answered_for_good(sent)
        if again is not None:
            raise again.broken(who=member, payload=sent)
        if sent in self.log.displaced:
            raise Check.DISPLACED.broken(who=member, payload=sent)
        if others:
            raise Check.OUT_TWICE.broken(who=member, payload=sent, other=others[0])
        for handout in self.handouts.get(sent, ()):
            other = handout.reading.session
            if other is not None and other.name != session and _is_held(handout, other):
                raise Check.OF_SESSION.broken(who=member, payload=sent, other=other.name)

    def _answered_for_good(self, sent: Sent) -> Check | None:
        """Somebody has accepted it, or rejected it, and that was confirmed."""
        for handout in self.handouts.get(sent, ()):
            if handout.is_consumed and handout.is_confirmed and not self._was_parted(handout):
                return Check.REJECTED_AGAIN if handout.is_rejected else Check.ACCEPTED_AGAIN
        return None

    def is_parted(self, client: str, queue: str) -> None:
        """The broker that relays its link has lost the member: of what it has said meanwhile nobody may know, and it is
        settled all the same (docs/cluster.md, "Proxies")."""
        self._parted_s[client, queue] = self._now_s()

    def _was_parted(self, handout: Handout) -> bool:
        """Since it had that, or before: then what had not come may have been on its way."""
        parted_s = self._parted_s.get((handout.reading.client, handout.reading.queue), -math.inf)
        return handout.reading.session is None and handout.at_s < parted_s + STILL_ON_ITS_WAY_S

    def deletes(self, queue: str) -> None:
        """An operator has asked for that: what is sent until `queue_deleted` may be gone, too."""
        self._deleted_s[queue] = math.inf

    def has_alone(self, member: str, queue: str, other: str) -> None:
        """A member hands out from an exclusive queue that a client of `other` has. Raises Violation."""
        raise Check.EXCLUSIVE.broken(who=member, queue=queue, other=other)

    # --- what consumers get

    def hands_out(self, sent: Sent, reading: Reading, is_marked: bool) -> Handout:
        if sent not in self._sent_s:
            raise Violation(f"{sent} came, and nobody has sent it")
        if sent in self.refused:
            raise Violation(f"{sent} was refused, and came")
        handout = Handout(sent, reading, 0, is_marked=is_marked, at_s=self._now_s())
        earlier = self.handouts.setdefault(sent, [])
        if not is_marked and sent not in self._unsure:
            if any(not each.is_marked for each in earlier):
                raise Check.UNMARKED.broken(who=reading.client, payload=sent)
            if len(self._links.get(sent, ())) == 1:  # else it may have come back unseen, as its link had ended
                self._check_order(handout)
        earlier.append(handout)
        self.handed_out += 1
        return handout

    def _check_order(self, handout: Handout) -> None:
        sent, latest = handout.sent, handout.reading.latest
        before = latest.get(sent.publisher)
        if before is not None and before.sent.number >= sent.number and before.sent not in self._unsure:
            raise Check.OUT_OF_ORDER.broken(who=handout.reading.client, payload=sent, number=before.sent.number)
        latest[sent.publisher] = handout

    # --- at rest

    def check_rest(self, left: dict[str, list[Sent]]) -> None:
        self.log.check_last_values()
        present: set[Sent] = set()
        for queue, messages in left.items():
            latest: dict[str, int] = {}
            for sent in messages:
                if sent.queue != queue or sent in present:
                    raise Violation(f"{sent} is in {queue}, perhaps for the second time")
                if sent.number < latest.get(sent.publisher, 0):
                    raise Violation(f"{sent} is behind {latest[sent.publisher]} in {queue}")
                present.add(sent)
                latest[sent.publisher] = sent.number
        for sent in present:
            if sent in self.refused:
                raise Violation(f"{sent} was refused, and is there")
            again = self._answered_for_good(sent)
            if again is not None:
                raise again.broken(who=f"queue {sent.queue}", payload=sent)
        for sent in self.accepted:
            has_left = sent in self.log.displaced or self.log.has_unread or self.may_be_deleted(sent)
            if not (has_left or self.was_consumed(sent) or sent in present):
                raise self._lost(sent).broken(payload=sent)

    def _lost(self, sent: Sent) -> Check:
        """By who had it last."""
        for handout in self.handouts.get(sent, [])[-1:]:
            return Check.RELEASED_LOST if handout.is_returned else Check.BROKEN_LOST
        return Check.LOST


def _is_held(handout: Handout, session: ClientSession) -> bool:
    """By that session, as far as its client knows."""
    is_over = handout.is_returned or handout.is_consumed or handout.reading.has_ended
    return not (is_over or session.has_ended or session.may_end)
