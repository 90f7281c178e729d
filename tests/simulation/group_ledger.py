"""What clients of a group were promised, and whether it was kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode
from simulation.node import Violation


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
        self.accepted: set[bytes] = set()
        """That was confirmed: it is gone."""
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
            raise Violation(f"{member} has another event at LSN {lsn} than the one that was committed there")

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
            raise Violation(f"{member} hands out {payload!r}, whose acceptance was confirmed")
        if payload in self.displaced and member in recorded:
            raise Violation(f"{member} hands out {payload!r}, which has left for newer messages")
        others = [name for name in self.out[payload] if name != member and name in recorded]
        if others and member in recorded:
            raise Violation(f"{member} hands out {payload!r}, which is out at {others[0]}")
        if payload in self.was_out and not marked and member in recorded:
            raise Violation(f"{member} hands out {payload!r} for the second time without saying so")
        copy = self.of_sessions.get(payload)
        if copy is not None and member in recorded and copy.queue not in self.deleted:
            raise Violation(f"{member} hands out {payload!r}, which session {copy.session} holds")
        publisher, number, attempt = payload.split(b"/")[:3]
        key = (consumer, publisher)
        if not marked and attempt == b"0":
            if self.latest.get(key, -1) > int(number):
                raise Violation(f"{payload!r} comes to a consumer of {member} behind number {self.latest[key]}")
            self.latest[key] = int(number)
        self.was_out.add(payload)
        self.out[payload][member] = consumer

    def returned(self, member: str, payload: bytes) -> None:
        """A consumer has it no more: it was given back, or is gone, or the member has ended it."""
        self.out[payload].pop(member, None)

    def has_alone(self, member: str, queue: int) -> None:
        """Consumers of that member are given messages of an exclusive queue."""
        recorded = self._recorded()
        other = self.alone.get(queue, member)
        if member in recorded:
            if other != member and other in recorded:
                raise Violation(f"{member} hands out from the exclusive queue {queue}, which a client of {other} has")
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
            raise Violation(f"{member} gives a session {payload!r}, whose acceptance was confirmed")
        if others:
            raise Violation(f"{member} gives a session {payload!r}, which is out at {others[0]}")
        there = self.of_sessions.get(payload)
        if there is not None and there.queue not in self.deleted:
            raise Violation(f"{member} gives session {copy.session} {payload!r}, which session {there.session} holds")
        self.of_sessions[payload] = copy

    def session_resumed(self, member: str, session: int, queue: int, copies: dict[bytes, SessionCopy]) -> None:
        """It is told what it holds. What it held and does not any more it has accepted, and that counts."""
        for payload, copy in copies.items():
            there = self.of_sessions.setdefault(payload, copy)
            self.was_out.add(payload)
            if payload in self.accepted:
                raise Violation(f"{member} tells session {session} of {payload!r}, whose acceptance was confirmed")
            if there.session != session and there.queue not in self.deleted:
                raise Violation(f"{member} tells session {session} of {payload!r}, which session {there.session} holds")
            self.of_sessions[payload] = copy
        for payload, copy in list(self.of_sessions.items()):
            if copy == (session, queue) and payload not in copies:
                if payload not in self.accepting:
                    raise Violation(f"{member} does not know that session {session} holds {payload!r}")
                self.session_accepted(payload)

    def session_accepted(self, payload: bytes) -> None:
        """That is confirmed."""
        self.of_sessions.pop(payload, None)
        self.accepted.add(payload)

    def session_gives_back(self, payload: bytes) -> None:
        """It says so: whoever gets it next may do so before that is confirmed."""
        self.of_sessions.pop(payload, None)

    def session_ended(self, session: int) -> None:
        """What it held goes to others."""
        self.of_sessions = {payload: copy for payload, copy in self.of_sessions.items() if copy.session != session}

    def node_lost(self, member: str) -> None:
        """Nobody is connected to it any more."""
        self.alone = {queue: other for queue, other in self.alone.items() if other != member}
        for holders in self.out.values():
            holders.pop(member, None)

    def check_nothing_lost(self, there: dict[int, set[bytes]]) -> None:
        """`there`: payloads by queue, in the end."""
        self._check_last_values()
        everything = set[bytes]().union(*there.values())
        for payload, queues in self.confirmed.items():
            if payload in self.displaced or not queues.isdisjoint(self._unread):
                continue
            if payload not in self.accepting and queues.isdisjoint(self.deleted) and payload not in everything:
                raise Violation(f"{payload!r} was confirmed, nobody has accepted it, and it is not there")
        for queue, payloads in there.items():
            again = payloads & self.accepted
            if again:
                raise Violation(f"queue {queue} has {min(again)!r}, whose acceptance was confirmed")

    def _check_last_values(self) -> None:
        """Where all of the log in between is known: that of a member that joined begins late."""
        for lsn, number, dropped in self._outdated:
            later = range(number + 1, lsn)
            newer = [self._messages[between] for between in later if between in self._messages]
            is_known = all(between in self._log for between in later)
            if is_known and not any(other.queues == dropped.queues and other.key == dropped.key for other in newer):
                raise Violation(f"the last value {dropped.payload!r} of {dropped.key} was dropped")
