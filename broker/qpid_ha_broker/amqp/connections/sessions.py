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

from functools import partial
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import proton

from qpid_ha_broker.access.rules import Subject
from qpid_ha_broker.access.user_limits import UserLimits
from qpid_ha_broker.amqp.nodes.directory import SetDirectory
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.live_producers import LiveProducers
from qpid_ha_broker.amqp.nodes.session_attachment import SessionAttachment
from qpid_ha_broker.amqp.nodes.session_links import TAKEN, SessionLinks
from qpid_ha_broker.amqp.relaying.relayed_sessions import RelayedSession
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    CONNECTION_REDIRECT,
    LINK_STOLEN,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
    as_amqp,
)
from qpid_ha_broker.amqp.wire.session_request import EPOCH, SESSIONS_CAPABILITY
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.budget import Clock
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sessions import Session, SessionPart
from qpid_ha_broker.model.sets.session_messages import give_back_held

NEW: Final = "new"
NOT_ANSWERED: Final = "the broker that leads the set default, which keeps sessions, does not answer: try again"
RESUMED: Final = "resumed"


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
    def limits(self) -> UserLimits:
        """What each user may have."""

    @property
    def settings(self) -> SessionLimits:
        """Those in force."""


class ClientSessions:
    """The promise: a session is one connection's at a time, and nobody is told what it has before that is committed.

    A client that numbers its attempts (`SessionRequest.attempt`) loses its session to none of its own that it has given
    up: such an open may be carried out long after the next one, where a broker or its network was frozen. Its number is
    the epoch that it gets, so the log says it, and whoever leads next knows it:

    | number | the session is, by its epoch | |
    | --- | --- | --- |
    | 0 | anybody's | the open takes it, in the next epoch |
    | higher | an earlier attempt's, or somebody else's | it takes it, in the epoch of its number |
    | the same | its own: its proxy asks again, of whoever leads now | it goes on |
    | lower | a later attempt's, or somebody else's | it is refused, and told the epoch: who hears that can ask again |

    A proxy numbers how often it has asked for one connection of a client, for the same reason: an ask on a connection
    that it has given up may come in behind the next one, which has the session by then.
    """

    def __init__(self, container: SessionContainer) -> None:
        self._container = container
        self._attached: dict[int, SessionAttachment] = {}
        """By the session's id."""
        self._opening: dict[SessionAttachment, None] = {}
        self.links = SessionLinks(container)
        self.producers = LiveProducers(container)
        self._leads = False
        """This broker led `default` when it was looked at last."""
        self._checked: WeakKeyDictionary[HostedSet, int] = WeakKeyDictionary()
        """Sets that this broker leads: how many sessions had ended when their holdings were looked at."""

    @property
    def _default(self) -> HostedSet:
        return self._container.default

    def capabilities(self, *, relays: bool) -> tuple[str, ...]:
        """What every connection is offered. `relays`: those that another broker keeps can be had here, too."""
        settings = self._container.settings
        can = settings.producers and settings.max_client_sessions and (relays or not self._default.read_only)
        return (SESSIONS_CAPABILITY,) if can else ()

    def attachment_of(self, session: int) -> SessionAttachment | None:
        """The connection that has the session, while this broker leads `default`; None: it waits for one."""
        return self._attached.get(session)

    def count_of(self, user: str) -> int:
        """How many sessions the user has, with those that wait; empty: who has not logged in."""
        owners = [session.user for session in self._default.resources.replicated.state.sessions.by_id.values()]
        return sum(Subject.logged_in(owner, is_local=False).user == user for owner in owners)

    # --- an open

    def begin(self, asking: SessionAttachment) -> None:
        """The client has opened with a session: its open is answered, or its connection ended, now or later."""
        refusal = self.take(asking)
        if refusal is not None:
            asking.end(refusal)

    def begin_relayed(self, asking: SessionAttachment, relayed: RelayedSession) -> None:
        """The same, where the broker that leads `default` is asked."""
        refusal = self._unavailable()
        if refusal is not None:
            asking.end(refusal)
            return
        asking.relayed = relayed
        self._await_answer(asking)
        relayed.begin()

    def take(self, asking: SessionAttachment) -> AmqpError | None:
        """Have the session be this connection's, and answer once that is committed; or why not.

        That the session is over is told when it is committed, too: another broker may lead, where it lives.
        """
        refusal = self._attach(asking)
        if refusal is not None and refusal.name != NOT_FOUND:
            return refusal
        token = self._default.resources.written
        if token.is_committed:
            if refusal is None:
                asking.grant()
            return refusal
        self._await_answer(asking)

        def told(error: AmqpError | None) -> None:
            if self._opening.pop(asking, self) is None and not asking.has_left:
                problem = error or refusal
                if problem is None:
                    asking.grant()
                else:
                    asking.end(problem)

        self._default.await_commit(token, "what becomes of the session is being replicated").add(told)
        return None

    def _await_answer(self, asking: SessionAttachment) -> None:
        asking.until_s = self._container.clock() + self._container.settings.attach_timeout_s
        self._opening[asking] = None

    def _unavailable(self) -> AmqpError | None:
        """Why there are no sessions here at all, if so."""
        settings = self._container.settings
        if settings.producers and settings.max_client_sessions:
            return None
        key = "sessions.max" if settings.producers else "deduplication.producers"
        return AmqpError(NOT_IMPLEMENTED, f"there are no sessions here: {key} is 0 in this broker's settings")

    def _attach(self, asking: SessionAttachment) -> AmqpError | None:
        """Let the session be this connection's; or why not, and then nothing has changed."""
        refusal = self._unavailable()
        if refusal is not None:
            return refusal
        if self._default.read_only:
            return self._elsewhere()
        self._look_who_waits()
        registry, request, now_ms = self._default.resources.replicated.state.sessions, asking.request, self._now_ms
        session = registry.by_name.get(request.name)
        if session is not None and session.user != asking.user:
            return AmqpError(UNAUTHORIZED_ACCESS, "the session cannot be had by this user")
        if session is not None and session.is_over(now_ms):
            self.end(session, failed=True)
            session = None
        settings = self._container.settings
        asked_ms, most_ms = request.timeout_ms, settings.max_session_timeout_ms
        asking.timeout_ms = most_ms if asked_ms is None else min(asked_ms, most_ms)
        holder = None if session is None else self._attached.get(session.id)
        if holder is not None and holder.outdates(asking):
            return AmqpError(LINK_STOLEN, "its broker has asked for the session again meanwhile")
        if asking.epoch and (session is None or (session.id, session.epoch) != (asking.id, asking.epoch)):
            is_taken = session is not None and session.id == asking.id and session.epoch > asking.epoch
            return AmqpError(LINK_STOLEN, TAKEN) if is_taken else _gone()
        if session is not None and not asking.epoch and self._is_outdated(request.attempt, session):
            text = f"the session is in its epoch {session.epoch}, and this is the attempt {request.attempt} to have it"
            return AmqpError(PRECONDITION_FAILED, text, {EPOCH: proton.ulong(session.epoch)})
        if session is not None:
            self._end_older(session)
            is_same = request.attempt == session.epoch
            epoch = asking.epoch or (session.epoch if is_same else max(session.epoch + 1, request.attempt))
            asking.id, asking.epoch, asking.status = session.id, epoch, RESUMED
            self._write(ev.SessionResumed(session.id, asking.epoch, asking.timeout_ms, now_ms))
        elif request.must_resume:
            return _gone()
        elif len(registry) >= settings.max_client_sessions:
            return AmqpError(RESOURCE_LIMIT, f"there are {len(registry)} sessions, as many as sessions.max allows")
        else:
            user = Subject.logged_in(asking.user, is_local=False).user
            try:
                self._container.limits.check_session(user, partial(self.count_of, user))
            except ModelError as error:
                return as_amqp(error)
            event = ev.SessionStarted(request.name, asking.user, asking.timeout_ms, now_ms)
            asking.id, asking.epoch, asking.status = self._write(event), max(1, request.attempt), NEW
            if asking.epoch > 1:
                self._write(ev.SessionResumed(asking.id, asking.epoch, asking.timeout_ms, now_ms))
        self._attached[asking.id] = asking
        return None

    def _is_outdated(self, attempt: int, session: Session) -> bool:
        """Whether that number is none with which the session can be had: see the class."""
        if attempt != session.epoch:
            return 0 < attempt < session.epoch
        holder = self._attached.get(session.id)
        return holder is not None and holder.request.attempt != attempt  # it came to this epoch without a number

    def _elsewhere(self) -> AmqpError:
        """Another broker leads `default`, which has the sessions."""
        primary = self._container.directory.primary_of(DEFAULT_SET)
        if primary is None:
            return AmqpError(RESOURCE_LOCKED, "sessions are at the primary of the set default, which is not known here")
        text = f"sessions are at the primary of the set default, {primary.broker} at {primary.host}:{primary.port}"
        info = {"hostname": primary.broker, "network-host": primary.host, "port": primary.port}
        return AmqpError(CONNECTION_REDIRECT, text, info)

    def _end_older(self, session: Session) -> None:
        """Whoever has it, has it no more: another connection, or another broker's link for the same one."""
        older = self._attached.pop(session.id, None)
        if older is not None:
            older.has_left = True
            older.end(AmqpError(CONNECTION_FORCED, TAKEN))

    # --- the end of a connection

    def left(self, attachment: SessionAttachment, *, ends: bool) -> None:
        """Its connection has ended. `ends`: and the session with it; else it waits."""
        self._opening.pop(attachment, None)
        attachment.wait.forget_all()
        relayed, attachment.relayed = attachment.relayed, None
        if relayed is not None:
            relayed.left(ends=ends)
        if attachment.has_left:
            return
        attachment.has_left = True
        if self._attached.get(attachment.id) is not attachment:
            return  # it never had it
        del self._attached[attachment.id]
        if self._default.read_only:
            return  # for the next primary it waits, as all do
        session = self._default.resources.replicated.state.sessions.by_id[attachment.id]
        if ends:
            self.end(session, failed=False)
        else:
            self._write(ev.SessionDetached(session.id, self._now_ms))

    # --- the end of a session

    def end(self, session: Session, *, failed: bool) -> None:
        """It is over; `failed`: what its consumers hold counts as delivered in vain. Its connection, if any, stays."""
        self._write(ev.SessionEnded(session.id, failed))
        self.links.end_those_of(session.id)
        self._give_back(self._default)  # the other sets' logs must not be ahead of this one: see `tick`

    def end_by_hand(self, name: str) -> Session | None:
        """End a session, and its connection; None: there is none with that UUID or label. Raises NotPrimary."""
        self._default.resources.replication.check_writable()
        session = self._default.resources.replicated.state.sessions.called(name)
        if session is not None:
            attachment = self._attached.pop(session.id, None)
            if attachment is not None:
                attachment.has_left = True
                attachment.end(AmqpError(CONNECTION_FORCED, "an operator has ended the session"))
            self.end(session, failed=True)
        return session

    def _give_back(self, hosted: HostedSet) -> None:
        """What is held in this set, which this broker leads, for sessions that are no more; in a group its first
        member does it."""
        if hosted.read_only or not hosted.resources.replication.is_first():
            return
        holdings, resources = hosted.resources.catalog.holdings, hosted.resources
        default = self._default.resources.replicated
        registry, lsn = default.state.sessions, default.log.last_lsn
        for link in holdings if len(holdings) else ():
            session = registry.by_id.get(link.session)
            is_unknown = session is None and link.session > lsn  # this broker has not heard of it yet
            if not is_unknown and (session is None or session.name != link.name):
                give_back_held(resources, link, ev.EVERYTHING, registry.ended.get(link.session, True))
                hosted.touch()

    def release_of_other_nodes(self, part: SessionPart, queue: Queue) -> None:
        """A link has been attached to `queue`: what it holds of others goes back, marked, where this broker leads."""
        for hosted in self._container.sets.values():
            holdings = hosted.resources.catalog.holdings
            for link in holdings if len(holdings) and not hosted.read_only else ():
                if link.owner == part.owner and link.queue is not queue:
                    give_back_held(hosted.resources, link, part.epoch, failed=False)
                    hosted.touch()

    # --- time

    def look(self) -> None:
        """In each turn: attaches that wait for the registry here may go on."""
        if self.links.awaits_registry:
            self.links.look()

    def tick(self) -> None:
        """Several times a second, where there may be sessions."""
        if self._opening:
            self._end_late()
        registry = self._default.resources.replicated.state.sessions
        if self._default.read_only:
            self._leads_no_more()
        else:
            self._look_who_waits()
            now_ms = self._now_ms
            for session in [each for each in registry.waiting.values() if each.is_over(now_ms)]:
                self.end(session, failed=True)
        self.links.look()
        # Also where this broker led `default` a moment ago: its successor may not know of an end, and keep the session.
        may_give_back = self._default.resources.replicated.is_committed
        for hosted in self._container.sets.values():
            if hosted.read_only:
                self._checked.pop(hosted, None)
            elif may_give_back and hosted.resources.replication.counts_later:
                self._give_back(hosted)  # who was to do it may have gone
            elif may_give_back and self._checked.get(hosted) != registry.ended_total:
                self._checked[hosted] = registry.ended_total
                self._give_back(hosted)

    def _look_who_waits(self) -> None:
        """A broker that begins to lead has no client of any session."""
        if not self._leads:
            self._leads = True
            registry = self._default.resources.replicated.state.sessions
            for session in list(registry.by_id.values()):
                if session.is_attached and session.id not in self._attached:
                    self._write(ev.SessionDetached(session.id, self._now_ms))

    def _leads_no_more(self) -> None:
        """Clients whose sessions were kept here go to where they are kept now. Those that are relayed stay."""
        if self._leads:
            self._leads = False
            attached, self._attached = self._attached, {}
            for attachment in attached.values():
                attachment.has_left = True
                attachment.end(self._elsewhere())

    def _end_late(self) -> None:
        now_s = self._container.clock()
        self._opening = {each: None for each in self._opening if not each.is_granted}
        for asking in [each for each in self._opening if now_s >= each.until_s]:
            text = "not enough brokers have heard of the session, which takes too long: try again"
            asking.end(AmqpError(RESOURCE_LOCKED, text if asking.relayed is None else NOT_ANSWERED))

    @property
    def _now_ms(self) -> int:
        return self._default.now_ms

    def _write(self, event: ev.SessionEvent) -> int:
        lsn = self._default.resources.replicated.write(event)
        self._default.touch()
        return lsn


def _gone() -> AmqpError:
    return AmqpError(NOT_FOUND, "there is no such session, or it has waited too long: begin anew")
