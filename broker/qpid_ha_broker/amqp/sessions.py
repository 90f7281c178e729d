"""Sessions of clients at the broker that leads `default`: who may have one, on which connection, and how long it waits.

What lasts is in the log (`model.sessions`); here is what a broker does about it. A session is

1. *asked for* by the open of a connection, which is answered when it is committed that the session is that one's;
2. *attached* until that connection ends, or another one resumes the session, which ends the first;
3. *waiting* for its client until its timeout is over, counted by this broker's clock;
4. *over*: what its consumers hold goes back. In sets that this broker leads it does so at once, or, where the end was
   not seen, with the next tick.

A broker that begins to lead knows no connection: every session that was attached waits from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import proton

from qpid_ha_broker.amqp.conditions import (
    CONNECTION_FORCED,
    CONNECTION_REDIRECT,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
)
from qpid_ha_broker.amqp.directory import SetDirectory
from qpid_ha_broker.amqp.hosted_set import HostedSet
from qpid_ha_broker.amqp.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.node_wait import NodeWait
from qpid_ha_broker.amqp.session_request import SESSIONS_CAPABILITY, SessionRequest, granted_properties
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.budget import Clock
from qpid_ha_broker.model.dispatcher import SessionOwner
from qpid_ha_broker.model.log import DEFAULT_SET, CommitToken
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.resources import release_held
from qpid_ha_broker.model.sessions import Session

NEW: Final = "new"
RESUMED: Final = "resumed"
LINK_STOLEN: Final = "amqp:link:stolen"


class SessionLimits(Protocol):
    """What of the container's settings is about sessions."""

    @property
    def producers(self) -> int:
        """How many producers that number their messages are remembered."""

    @property
    def max_client_sessions(self) -> int:
        """Of clients; 0: there are none."""

    @property
    def max_session_timeout_ms(self) -> int:
        """How long one may wait for its client."""

    @property
    def attach_timeout_s(self) -> float:
        """How long an open may wait."""


class SessionContainer(Protocol):
    """What is needed of the container."""

    clock: Clock
    now_ms: int
    default: HostedSet
    sets: dict[str, HostedSet]
    directory: SetDirectory

    @property
    def settings(self) -> SessionLimits:
        """Those in force."""


class SessionConnection(Protocol):
    """The connection of a client with a session."""

    peer: str

    def touch(self) -> None:
        """There is something to write."""

    def session_opened(self, session: proton.Session) -> None:
        """The client has begun one of AMQP's sessions."""

    def session_closed(self, session: proton.Session) -> None:
        """The client has ended it."""

    def end(self, error: AmqpError) -> None:
        """Close it."""

    def end_link(self, endpoint: LinkEndpoint, error: AmqpError) -> None:
        """Detach one of its links."""


class SessionAttachment:
    """A session on one connection."""

    def __init__(
        self, connection: SessionConnection, request: SessionRequest, user: str, answer: Callable[[], None]
    ) -> None:
        """`answer`: answers the client's open."""
        self.connection = connection
        self.answer = answer
        self.request = request
        self.user = user
        self.id = 0
        """Of the session, since it is this connection's."""
        self.epoch = 0
        self.timeout_ms = 0
        self.status = ""
        self.is_granted = False
        """The client has been told."""
        self.has_left = False
        """The connection has ended, or another one has the session."""
        self.until_s = 0.0
        """By the container's clock: until then the client waits for an answer to its open."""
        self.wait = NodeWait("the session is being resumed")
        """What attaches wait for that came with the open."""
        self.links: dict[tuple[str, bool], LinkEndpoint] = {}
        """By name, and whether they consume."""
        self._tokens: dict[Any, CommitToken] = {}
        """Of links whose attach waits until all is committed that was written before."""

    @property
    def name(self) -> str:
        """The session's UUID."""
        return self.request.name

    @property
    def properties(self) -> Mapping[str, Any]:
        """Of our open."""
        return granted_properties(self.name, self.timeout_ms, self.status)

    def owner(self, link: str) -> SessionOwner:
        """For whom the log holds what goes out on that link."""
        return SessionOwner(self.id, self.name, link)

    def begin_later(self, session: proton.Session) -> None:
        """The client has begun one of AMQP's sessions, and its open is not answered."""

        def told(error: AmqpError | None) -> None:
            self.connection.session_opened(session)
            if session.state & proton.Endpoint.REMOTE_CLOSED:
                self.connection.session_closed(session)

        self.wait.add(told)

    def commit_wait(self, key: Any, hosted: HostedSet) -> NodeWait | None:
        """What an attach has to wait for, which tells of what is confirmed; None: nothing more.

        What is told must not be taken back by a failover: the client forgets what it had for that.
        """
        token = self._tokens.pop(key, None) or hosted.resources.written
        if token.is_committed:
            return None
        self._tokens[key] = token
        return hosted.await_commit(token, "what was written before the session was resumed is being replicated")

    def attached(self, link: str, *, consumes: bool, endpoint: LinkEndpoint) -> None:
        """A link; one of that name before is no more."""
        older = self.links.get((link, consumes))
        self.links[link, consumes] = endpoint
        if older is not None:
            self.connection.end_link(older, AmqpError(LINK_STOLEN, f"the link {link} was attached again"))


class ClientSessions:
    """The promise: a session is one connection's at a time, and nobody is told what it has before that is committed."""

    def __init__(self, container: SessionContainer) -> None:
        self._container = container
        self._attached: dict[int, SessionAttachment] = {}
        """By the session's id."""
        self._opening: dict[SessionAttachment, None] = {}
        self._leads = False
        """This broker led `default` when it was looked at last."""
        self._checked: WeakKeyDictionary[HostedSet, int] = WeakKeyDictionary()
        """Sets that this broker leads: how many sessions had ended when their holdings were looked at."""

    @property
    def _default(self) -> HostedSet:
        return self._container.default

    @property
    def capabilities(self) -> tuple[str, ...]:
        """What every connection is offered."""
        settings = self._container.settings
        can = settings.producers and settings.max_client_sessions and not self._default.read_only
        return (SESSIONS_CAPABILITY,) if can else ()

    def client_of(self, session: int) -> str:
        """Where the client of a session is connected from; empty: not to this broker."""
        attachment = self._attached.get(session)
        return "" if attachment is None else attachment.connection.peer

    # --- an open

    def begin(self, asking: SessionAttachment) -> None:
        """The client has opened with a session: its open is answered, or its connection ended, now or later."""
        refusal = self._attach(asking)
        if refusal is not None:
            asking.connection.end(refusal)
            return
        token = self._default.resources.written
        if token.is_committed:
            self._grant(asking)
            return
        asking.until_s = self._container.clock() + self._container.settings.attach_timeout_s
        self._opening[asking] = None

        def told(error: AmqpError | None) -> None:
            if self._opening.pop(asking, self) is None and not asking.has_left:
                if error is None:
                    self._grant(asking)
                else:
                    asking.connection.end(error)

        self._default.await_commit(token, "the session is being replicated").add(told)

    def _grant(self, asking: SessionAttachment) -> None:
        asking.is_granted = True
        asking.answer()
        asking.connection.touch()
        asking.wait.ready()

    def _attach(self, asking: SessionAttachment) -> AmqpError | None:
        """Let the session be this connection's; or why not, and then nothing has changed."""
        settings = self._container.settings
        if not settings.producers or not settings.max_client_sessions:
            key = "sessions.max" if settings.producers else "deduplication.producers"
            return AmqpError(NOT_IMPLEMENTED, f"there are no sessions here: {key} is 0 in this broker's settings")
        if self._default.read_only:
            return self._elsewhere()
        self._look_who_waits()
        registry, request, now_ms = self._default.resources.default.state.sessions, asking.request, self._now_ms
        session = registry.by_name.get(request.name)
        if session is not None and session.user != asking.user:
            return AmqpError(UNAUTHORIZED_ACCESS, f"the session {request.name} cannot be had by this user")
        if session is not None and session.is_over(now_ms):
            self.end(session, failed=True)
            session = None
        asked_ms, most_ms = request.timeout_ms, settings.max_session_timeout_ms
        asking.timeout_ms = most_ms if asked_ms is None else min(asked_ms, most_ms)
        if session is not None:
            self._end_older(session)
            asking.id, asking.epoch, asking.status = session.id, session.epoch + 1, RESUMED
            self._write(ev.SessionResumed(session.id, asking.epoch, asking.timeout_ms, now_ms))
        elif request.must_resume:
            return AmqpError(NOT_FOUND, f"there is no session {request.name}, or it has waited too long: begin anew")
        elif len(registry) >= settings.max_client_sessions:
            return AmqpError(RESOURCE_LIMIT, f"there are {len(registry)} sessions, as many as sessions.max allows")
        else:
            event = ev.SessionStarted(request.name, asking.user, asking.timeout_ms, now_ms)
            asking.id, asking.epoch, asking.status = self._write(event), 1, NEW
        self._attached[asking.id] = asking
        return None

    def _elsewhere(self) -> AmqpError:
        """Another broker leads `default`, which has the sessions."""
        primary = self._container.directory.primary_of(DEFAULT_SET)
        if primary is None:
            return AmqpError(RESOURCE_LOCKED, "sessions are at the primary of the set default, which is not known here")
        text = f"sessions are at the primary of the set default, {primary.broker} at {primary.host}:{primary.port}"
        info = {"hostname": primary.broker, "network-host": primary.host, "port": primary.port}
        return AmqpError(CONNECTION_REDIRECT, text, info)

    def _end_older(self, session: Session) -> None:
        older = self._attached.pop(session.id, None)
        if older is not None:
            older.has_left = True
            older.connection.end(AmqpError(CONNECTION_FORCED, "the session was resumed on another connection"))

    # --- the end of a connection

    def left(self, attachment: SessionAttachment, *, ends: bool) -> None:
        """Its connection has ended. `ends`: and the session with it; else it waits."""
        self._opening.pop(attachment, None)
        if attachment.has_left:
            return
        attachment.has_left = True
        if self._attached.get(attachment.id) is not attachment:
            return  # it never had it
        del self._attached[attachment.id]
        if self._default.read_only:
            return  # for the next primary it waits, as all do
        session = self._default.resources.default.state.sessions.by_id[attachment.id]
        if ends:
            self.end(session, failed=False)
        else:
            self._write(ev.SessionDetached(session.id, self._now_ms))

    # --- the end of a session

    def end(self, session: Session, *, failed: bool) -> None:
        """It is over; `failed`: what its consumers hold counts as delivered in vain. Its connection, if any, stays."""
        self._write(ev.SessionEnded(session.id, failed))
        for hosted in self._container.sets.values():
            self._give_back(hosted)

    def end_by_hand(self, name: str) -> Session | None:
        """End a session, and its connection; None: there is none of that name. Raises NotPrimary."""
        self._default.resources.default.check_writable()
        session = self._default.resources.default.state.sessions.by_name.get(name)
        if session is not None:
            attachment = self._attached.pop(session.id, None)
            if attachment is not None:
                attachment.has_left = True
                attachment.connection.end(AmqpError(CONNECTION_FORCED, "an operator has ended the session"))
            self.end(session, failed=True)
        return session

    def _give_back(self, hosted: HostedSet) -> None:
        """What is held in this set, which this broker leads, for sessions that are no more."""
        if hosted.read_only:
            return
        holdings, resources = hosted.resources.catalog.holdings, hosted.resources
        default = self._default.resources.default
        registry, lsn = default.state.sessions, default.log.last_lsn
        for link in holdings if len(holdings) else ():
            session = registry.by_id.get(link.session)
            is_unknown = session is None and link.session > lsn  # this broker has not heard of it yet
            if not is_unknown and (session is None or session.name != link.name):
                release_held(resources, link, registry.ended.get(link.session, True))
                hosted.touch()

    def release_of_other_nodes(self, owner: SessionOwner, queue: Queue) -> None:
        """A link has been attached to `queue`: what it holds of others goes back, marked, where this broker leads."""
        for hosted in self._container.sets.values():
            holdings = hosted.resources.catalog.holdings
            for link in holdings if len(holdings) and not hosted.read_only else ():
                if (link.session, link.name, link.link) == owner and link.queue is not queue:
                    release_held(hosted.resources, link, failed=False)
                    hosted.touch()

    # --- time

    def tick(self) -> None:
        """Several times a second, where there may be sessions."""
        if self._opening:
            self._end_late()
        registry = self._default.resources.default.state.sessions
        if self._default.read_only:
            self._leads = False
        else:
            self._look_who_waits()
            now_ms = self._now_ms
            for session in [each for each in registry.waiting.values() if each.is_over(now_ms)]:
                self.end(session, failed=True)
        for hosted in self._container.sets.values():
            if hosted.read_only:
                self._checked.pop(hosted, None)
            elif self._checked.get(hosted) != registry.ended_total:
                self._checked[hosted] = registry.ended_total
                self._give_back(hosted)

    def _look_who_waits(self) -> None:
        """A broker that begins to lead has no client of any session."""
        if not self._leads:
            self._leads = True
            registry = self._default.resources.default.state.sessions
            for session in list(registry.by_id.values()):
                if session.is_attached and session.id not in self._attached:
                    self._write(ev.SessionDetached(session.id, self._now_ms))

    def _end_late(self) -> None:
        now_s = self._container.clock()
        for asking in [each for each in self._opening if now_s >= each.until_s]:
            text = "not enough brokers have heard of the session, which takes too long: try again"
            asking.connection.end(AmqpError(RESOURCE_LOCKED, text))

    @property
    def _now_ms(self) -> int:
        return self._container.now_ms

    def _write(self, event: ev.SessionEvent) -> int:
        lsn = self._default.resources.default.write(event)
        self._default.touch()
        return lsn
