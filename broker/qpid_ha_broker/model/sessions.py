"""Sessions of clients, which outlive their connections: who they are, and which messages their consumers hold.

A session is a client's, under a UUID that it has made (decision 0013); AMQP's own sessions are another thing. The
registry of all sessions is state of `default`. What their consumers hold is state of the set in whose log the messages
are, so it fails over with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken
from qpid_ha_broker.model.queues.queue import NOTHING_HELD, Queue, SessionLink
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.replication import has_replicated_messages

ENDED_KEPT: Final = 10_000
LABEL_DIGITS: Final = 12
HELD_LENGTH: Final = 65_536
"""Ids in one event at most."""


def session_label(name: str) -> str:
    """How people are shown the session with that UUID: who has the UUID may resume the session."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:LABEL_DIGITS]


class SessionPart(NamedTuple):
    """A link of a session, on one of the connections that the session has had."""

    id: int
    """Of the session."""
    name: str
    """Its UUID."""
    epoch: int
    """Which connection."""
    link: str

    @property
    def owner(self) -> SessionOwner:
        """For whom messages are held."""
        return SessionOwner(self.id, self.name, self.link)


class Session(NamedTuple):
    """A session, as the log tells. Times are milliseconds since the Unix epoch."""

    id: int
    """The LSN of its SessionStarted."""
    name: str
    """Its UUID."""
    user: str
    timeout_ms: int
    epoch: int
    """Higher with each connection that it has had."""
    is_attached: bool
    since_ms: int
    """When its client came, or was lost."""

    def is_over(self, now_ms: int) -> bool:
        """Whether the session has waited for its client for as long as it may."""
        return not self.is_attached and now_ms - self.since_ms >= self.timeout_ms


class SessionRegistry:
    """The promise: a UUID is that of one session at most, and what is known of it follows from the log of `default`."""

    def __init__(self) -> None:
        self.by_id: dict[int, Session] = {}
        self.by_name: dict[str, Session] = {}
        self.waiting: dict[int, Session] = {}
        """By id: those whose client is not connected."""
        self.ended: dict[int, bool] = {}
        """By id: those that ended last, and whether what they held counts as delivered in vain."""
        self.ended_total = self.changes_total = 0
        """How many have ended; how often one has ended or has come to another connection."""

    def __len__(self) -> int:
        return len(self.by_id)

    def apply(self, lsn: int, event: ev.SessionEvent) -> None:
        """Raises KeyError for a session that is not there, and ValueError for one whose UUID is taken."""
        if isinstance(event, ev.SessionStarted):
            if event.name in self.by_name:
                raise ValueError(f"the session {event.name} is there already")
            self._put(Session(lsn, event.name, event.user, event.timeout_ms, 1, True, event.since_ms))
            return
        session = self.by_id[event.session]
        self.changes_total += not isinstance(event, ev.SessionDetached)
        if isinstance(event, ev.SessionResumed):
            self._put(
                session._replace(
                    epoch=event.epoch, timeout_ms=event.timeout_ms, is_attached=True, since_ms=event.since_ms
                )
            )
        elif isinstance(event, ev.SessionDetached):
            self._put(session._replace(is_attached=False, since_ms=event.since_ms))
        else:
            del self.by_id[session.id], self.by_name[session.name]
            self.waiting.pop(session.id, None)
            self.ended_total += 1
            self.ended[session.id] = event.failed
            if len(self.ended) > ENDED_KEPT:
                del self.ended[next(iter(self.ended))]

    def called(self, text: str) -> Session | None:
        """The session with that UUID or label."""
        session = self.by_name.get(text)
        if session is None and len(text) == LABEL_DIGITS:
            return next((session for session in self.by_name.values() if session_label(session.name) == text), None)
        return session

    def _put(self, session: Session) -> None:
        self.by_id[session.id] = self.by_name[session.name] = session
        if session.is_attached:
            self.waiting.pop(session.id, None)
        else:
            self.waiting[session.id] = session

    def events(self, lsn: int) -> Iterator[tuple[int, ev.SessionEvent]]:
        """What has to be applied to an empty registry to come to this one, as of `lsn`; each with its LSN."""
        for session in sorted(self.by_id.values()):
            started, timeout_ms, since_ms = session.id, session.timeout_ms, session.since_ms
            yield started, ev.SessionStarted(session.name, session.user, timeout_ms, since_ms)
            if session.epoch > 1:
                yield lsn, ev.SessionResumed(started, session.epoch, timeout_ms, since_ms)
            if not session.is_attached:
                yield lsn, ev.SessionDetached(started, since_ms)

    def replace(self, other: SessionRegistry) -> None:
        """Be as `other`."""
        self.by_id, self.by_name, self.waiting = dict(other.by_id), dict(other.by_name), dict(other.waiting)
        self.ended_total += 1
        self.changes_total += 1

    def clear(self) -> None:
        """Know none: whoever comes back begins anew."""
        self.replace(SessionRegistry())

    def forget_after(self, lsn: int) -> None:
        """What began after `lsn` is given up; what became of the others is for whoever comes next to say."""
        for session in [session for session in self.by_id.values() if session.id > lsn]:
            del self.by_id[session.id], self.by_name[session.name]
            self.waiting.pop(session.id, None)

    def check_invariants(self) -> None:
        """Raise AssertionError where the tables disagree."""
        if sorted(self.by_id.values()) != sorted(self.by_name.values()):
            raise AssertionError("the sessions by id are not those by UUID")
        if self.waiting != {session.id: session for session in self.by_id.values() if not session.is_attached}:
            raise AssertionError("the sessions that wait are not those whose client is away")


class SessionHoldings:
    """The promise: a message is held by one link at most, and `queue.held` has each held message of a queue.

    Empty, and next to free, where no session holds anything. Ids are those of messages in the queue, but in the middle
    of a comparison, which brings the messages later.
    """

    def __init__(self) -> None:
        self._links: dict[tuple[int, str, str, Queue], SessionLink] = {}
        self.given_back: dict[Queue, CommitToken] = {}
        """What has to be committed before messages of a queue go to anybody who has no session: that a link has given
        back what it held of it. For a next primary that lacks this it is held still."""

    def __len__(self) -> int:
        """How many links hold something."""
        return len(self._links)

    def __iter__(self) -> Iterator[SessionLink]:
        """All links, also those that come to hold nothing meanwhile."""
        return iter(list(self._links.values()))

    def find(self, session: int, name: str, link: str, queue: Queue) -> SessionLink | None:
        """The link, where it holds something."""
        return self._links.get((session, name, link, queue))

    def acquire(self, queue: Queue, event: ev.SessionAcquired) -> SessionLink:
        """Let a link hold messages, the last of all that it holds; returns it. Where there are none, because those that
        were not durable did not come back with a store, it is remembered only if it holds others."""
        _, session, name, link_name, ids = event
        if not ids:
            return self.find(session, name, link_name, queue) or SessionLink(session, name, link_name, queue)
        if queue.held:
            self.drop(queue, ids)
        else:
            queue.held = {}
        key = session, name, link_name, queue
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = SessionLink(session, name, link_name, queue)
        new = dict.fromkeys(ids)
        link.ids |= new
        queue.held |= dict.fromkeys(new, link)
        return link

    def drop(self, queue: Queue, ids: Iterable[int]) -> None:
        """Let nobody hold those of `ids` that are held."""
        held = queue.held
        for message_id in ids:
            link = held.pop(message_id, None) if held else None
            if link is not None:
                del link.ids[message_id]
                if not link.ids:
                    del self._links[link.key]

    def awaited(self, queue: Queue) -> CommitToken:
        """See `given_back`, of which what is committed goes."""
        written = self.given_back.get(queue, COMMITTED)
        if written.is_committed:
            self.given_back.pop(queue, None)
        return written

    def drop_queue(self, queue: Queue) -> None:
        """Let nobody hold anything of `queue`."""
        self.given_back.pop(queue, None)
        for link in set(queue.held.values()):
            del self._links[link.key]
        queue.held = NOTHING_HELD

    def clear(self) -> None:
        """Nobody holds anything; the messages are for whoever comes."""
        for link in self:
            for entry in link.queue.messages.find_all(sorted(link.ids)):
                link.queue.messages.give_back(entry, failed=False)
            link.queue.held = NOTHING_HELD
        self._links.clear()

    def put_back(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """`entries`, held by nobody, are about to come into `queue`: those whose ids are held have that holder."""
        held = queue.held
        if held:
            for entry in entries:
                entry.holder = held.get(entry.id, entry.holder)

    def keep_only(self, queue: Queue, entries: Sequence[Entry]) -> None:
        """The same where these are all: what is held and not among them did not come back with a store."""
        there = {entry.id for entry in entries}
        self.drop(queue, [message_id for message_id in queue.held if message_id not in there])
        self.put_back(queue, entries)

    def events(self, *, is_local: bool, lsn: int) -> Iterator[tuple[int, ev.SessionAcquired]]:
        """What has to be applied, behind queues and messages, to come to this; `is_local`: of the broker's own log."""
        for link in self._links.values():
            if has_replicated_messages(link.queue) is not is_local:
                ids = list(link.ids)
                for at in range(0, len(ids), HELD_LENGTH):
                    yield lsn, link.acquired(ids[at : at + HELD_LENGTH])

    def check_invariants(self, queues: Iterable[Queue], *, in_comparison: bool = False) -> None:
        """Raise AssertionError where a message is held twice, by nobody, or is not there."""
        counted = 0
        for queue in queues:
            for message_id, link in queue.held.items():
                counted += 1
                entry = queue.messages.find(message_id)
                if message_id not in link.ids or link.queue is not queue or self._links.get(link.key) is not link:
                    raise AssertionError(f"{queue.name}: message {message_id} is held by a link that does not hold it")
                if not in_comparison and (entry is None or entry.holder is None):
                    raise AssertionError(f"{queue.name}: message {message_id} is held, and not there or anybody's")
        if counted != sum(len(link.ids) for link in self._links.values()):
            raise AssertionError("links hold messages that their queues do not know of")
        if not all(link.ids for link in self._links.values()):
            raise AssertionError("a link is remembered that holds nothing")
