"""What clients of a group were promised, and whether it was kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode
from simulation.group_guarantees import Check


class SessionCopy(NamedTuple):
    """A message that a session holds."""

    session: int
    queue: int


class GroupLedger:
    """Books of all messages, by their payloads: publisher, number, attempt."""

    def __init__(self, recorded: Callable[[], Collection[str]]) -> None:
        self._recorded = recorded
        """Whom the record names at the moment."""
        self.confirmed: dict[bytes, set[int]] = {}
        """The queues of which one has it, by payload."""
        self.accepting: set[bytes] = set()
        """Somebody wanted to accept it, or reject it: it may be gone."""
        self.accepted: dict[bytes, Check] = {}
        """That was confirmed, or that it was rejected: it is gone. And which guarantee is broken if it comes again."""
        self._given_back: dict[bytes, Check] = {}
        """Nobody has it any more, and which guarantee is broken if nobody gets it again."""
        self.out: dict[bytes, dict[str, object]] = defaultdict(dict)
        """Who has it, by member and consumer."""
        self.was_out: set[bytes] = set()
        self.of_sessions: dict[bytes, SessionCopy] = {}
        """What sessions know that they hold, or have accepted without hearing yet that this counts."""
        self.alone: dict[int, str] = {}
        """Of exclusive queues: the member of which consumers were given messages, and have not gone."""
        self.deleted: set[int] = set()
        """Queues that somebody wanted to delete."""
        self.latest: dict[tuple[object, bytes], int] = {}
        """By consumer and publisher: the last number that came without a mark."""
        self.handed_out = 0
        self.displaced: set[bytes] = set()
        """What the log says has left for newer messages."""
        self._log: dict[int, bytes] = {}
        """Of all committed records."""
        self._messages: dict[int, ev.Enqueued] = {}
        """Of all committed records, by their LSNs."""
        self._unread: set[int] = set()
        """Queues that messages have left for newer ones of which it is not known what they were: who told of the log
        was shown it in the middle."""
        self._outdated: list[tuple[int, int, ev.Enqueued]] = []
        """Of last values that have left for newer ones: where the log says so, their ids, and they themselves."""

    def committed(self, member: str, lsn: int, record: bytes) -> None:
        """A member was told that this record of its log is committed."""
        there = self._log.get(lsn)
        if there is None:
            self._log[lsn] = record
            for _, event, _ in decode(record).records:
                self._note(lsn, event)
        elif there != record:
            raise Check.OTHER_EVENT.broken(who=member, lsn=lsn)

    def _note(self, lsn: int, event: ev.Event) -> None:
        """Something is committed for the first time."""
        if isinstance(event, ev.Enqueued):
            self._messages[lsn] = event
        elif isinstance(event, ev.Dequeued) and event.reason is ev.DequeueReason.DISPLACED:
            for number in event.ids:
                dropped = self._messages.get(number)
                if dropped is None:
                    self._unread.add(event.queue)
                    continue
                self.displaced.add(dropped.payload)
                self._outdated += [(lsn, number, dropped)] if dropped.key else []

    def given(self, member: str, consumer: object, payload: bytes, marked: bool) -> None:
        """A message goes to a consumer."""
        self.handed_out += 1
        recorded = self._recorded()
        if payload in self.accepted and member in recorded:
            raise self.accepted[payload].broken(who=member, payload=payload)
        if payload in self.displaced and member in recorded:
            raise Check.DISPLACED.broken(who=member, payload=payload)
        others = [name for name in self.out[payload] if name != member and name in recorded]
        if others and member in recorded:
            raise Check.OUT_TWICE.broken(who=member, payload=payload, other=others[0])
        if payload in self.was_out and not marked and member in recorded:
            raise Check.UNMARKED.broken(who=member, payload=payload)
        copy = self.of_sessions.get(payload)
        if copy is not None and member in recorded and copy.queue not in self.deleted:
            raise Check.OF_SESSION.broken(who=member, payload=payload, other=copy.session)
        publisher, number, attempt = payload.split(b"/")[:3]
        key = (consumer, publisher)
        if not marked and attempt == b"0":
            if self.latest.get(key, -1) > int(number):
                raise Check.OUT_OF_ORDER.broken(who=member, payload=payload, number=self.latest[key])
            self.latest[key] = int(number)
        self.was_out.add(payload)
        self.out[payload][member] = consumer
        self._given_back.pop(payload, None)

    def returned(self, member: str, payload: bytes, lost: Check = Check.LOST) -> None:
        """A consumer has it no more: it was given back, or is gone, or the member has ended it. `lost`: what it is if
        nobody gets it again."""
        self.out[payload].pop(member, None)
        self._given_back[payload] = lost

    def is_accepted(self, member: str, payload: bytes, again: Check) -> None:
        """That is confirmed. `again`: what it is if somebody gets it again."""
        self.returned(member, payload)
        self.accepted[payload] = again

    def has_alone(self, member: str, queue: int) -> None:
        """Consumers of that member are given messages of an exclusive queue."""
        recorded = self._recorded()
        other = self.alone.get(queue, member)
        if member in recorded:
            if other != member and other in recorded:
                raise Check.EXCLUSIVE.broken(who=member, queue=queue, other=other)
            self.alone[queue] = member

    def leaves_alone(self, member: str, queue: int) -> None:
        """They have gone."""
        if self.alone.get(queue) == member:
            del self.alone[queue]

    # --- sessions

    def given_to_session(self, member: str, payload: bytes, copy: SessionCopy) -> None:
        """A session is given a message that it has not had, and that nobody else has."""
        self.handed_out += 1
        self.was_out.add(payload)
        others = [name for name in self.out[payload] if name in self._recorded()]
        if payload in self.accepted:
            raise self.accepted[payload].broken(who=member, payload=payload)
        if others:
            raise Check.OUT_TWICE.broken(who=member, payload=payload, other=others[0])
        there = self.of_sessions.get(payload)
        if there is not None and there.queue not in self.deleted:
            raise Check.OF_SESSION.broken(who=member, payload=payload, other=there.session)
        self.of_sessions[payload] = copy

    def session_resumed(self, member: str, session: int, queue: int, copies: dict[bytes, SessionCopy]) -> None:
        """It is told what it holds. What it held and does not any more it has accepted, and that counts."""
        for payload, copy in copies.items():
            there = self.of_sessions.setdefault(payload, copy)
            self.was_out.add(payload)
            if payload in self.accepted:
                raise self.accepted[payload].broken(who=member, payload=payload)
            if there.session != session and there.queue not in self.deleted:
                raise Check.OF_SESSION.broken(who=member, payload=payload, other=there.session)
            self.of_sessions[payload] = copy
        for payload, copy in list(self.of_sessions.items()):
            if copy == (session, queue) and payload not in copies:
                if payload not in self.accepting:
                    raise Check.FORGOTTEN.broken(who=member, payload=payload, other=session)
                self.session_accepted(payload)

    def session_accepted(self, payload: bytes) -> None:
        """That is confirmed."""
        self.of_sessions.pop(payload, None)
        self.accepted[payload] = Check.ACCEPTED_AGAIN

    def session_gives_back(self, payload: bytes) -> None:
        """It says so: whoever gets it next may do so before that is confirmed."""
        self.of_sessions.pop(payload, None)
        self._given_back[payload] = Check.RELEASED_LOST

    def session_ended(self, session: int) -> None:
        """What it held goes to others."""
        self.of_sessions = {payload: copy for payload, copy in self.of_sessions.items() if copy.session != session}

    def node_lost(self, member: str) -> None:
        """Nobody is connected to it any more."""
        self.alone = {queue: other for queue, other in self.alone.items() if other != member}
        for payload, holders in self.out.items():
            if holders.pop(member, None) is not None:
                self._given_back[payload] = Check.BROKEN_LOST

    def check_nothing_lost(self, there: dict[int, set[bytes]]) -> None:
        """`there`: payloads by queue, in the end."""
        self._check_last_values()
        everything = set[bytes]().union(*there.values())
        for payload, queues in self.confirmed.items():
            if payload in self.displaced or not queues.isdisjoint(self._unread):
                continue
            if payload not in self.accepting and queues.isdisjoint(self.deleted) and payload not in everything:
                raise self._given_back.get(payload, Check.LOST).broken(payload=payload)
        for queue, payloads in there.items():
            again = payloads & self.accepted.keys()
            if again:
                payload = min(again)
                raise self.accepted[payload].broken(who=f"queue {queue}", payload=payload)

    def _check_last_values(self) -> None:
        """Where all of the log in between is known: that of a member that joined begins late."""
        for lsn, number, dropped in self._outdated:
            later = range(number + 1, lsn)
            newer = [self._messages[between] for between in later if between in self._messages]
            is_known = all(between in self._log for between in later)
            if is_known and not any(other.queues == dropped.queues and other.key == dropped.key for other in newer):
                raise Check.LAST_VALUE.broken(payload=dropped.payload, key=dropped.key)
