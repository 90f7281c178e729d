"""The client's core: one connection at a time to one of several brokers, a session, and links that outlive breaks.

It does no I/O and knows no clock and no chance: inputs come in, effects go out, and `now_s` and `draw` are arguments.
What becomes of messages is in `links`; here is decided which broker is tried, and what an end means:

1. The broker says where to go (`amqp:connection:redirect`, or a refusal with an address; `amqp:link:redirect` of a
   link): there, at once.
2. Another client has our session: the end, for whoever reconnects would fight over it. Our own earlier attempts cannot
   have it: brokers know them by their numbers.
3. The session is gone: the application is told what is in doubt, and decides.
4. The login, or what we ask for, is refused: the end, with the reason. Trying again would not change that. A broker
   that nobody gave us, and that refuses our login, is left out from then on.
5. Anything else: the next broker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from qpid_ha_client.core import events as ev
from qpid_ha_client.core.addresses import (
    Backoff,
    BrokerAddress,
    BrokerList,
    read_host,
    read_hosts,
    read_server_list,
)
from qpid_ha_client.core.errors import (
    ClientError,
    LinkUnusable,
    LoginRefused,
    SessionLost,
    SessionRefused,
    SessionsNotOffered,
    SessionTaken,
)
from qpid_ha_client.core.events import Effect, EndReason, Guarantee, OpenFacts
from qpid_ha_client.core.links import ClientLinks

SESSIONS: Final = "qpid.sessions"
KNOWN_HOSTS: Final = "qpid.known-hosts-of-broker"
"""Notices come from the broker alone. Without it, whoever may publish could have written them."""
DEDUPLICATION: Final = "qpid.producer-deduplication"
TAKEN_TEXT: Final = "the session was resumed on another connection"
CONNECTION_REDIRECT, CONNECTION_FORCED = "amqp:connection:redirect", "amqp:connection:forced"
LINK_REDIRECT, NOT_FOUND = "amqp:link:redirect", "amqp:not-found"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
PRECONDITION_FAILED: Final = "amqp:precondition-failed"
SESSION_EPOCH: Final = "qpid.session-epoch"
ATTEMPTS: Final = 1000
"""Who takes the session of another process over begins at a multiple of this: above all that the other has given up."""
REFUSALS: Final = ("amqp:unauthorized-access", "amqp:invalid-field", "amqp:not-allowed")
PASSING: Final = (
    "", "amqp:resource-locked", "amqp:internal-error", "amqp:link:detach-forced", "amqp:connection:forced",
)  # fmt: skip
"""Why a link ends that may be attached again a little later. Empty: a broker that said nothing."""
APART_S: Final = 10.0
"""For so long a link may belong to another broker than those that are attached: sets move, and not all at once."""


@dataclass(frozen=True)
class ClientSettings:
    """What a client wants. Times in seconds."""

    addresses: tuple[BrokerAddress, ...]
    session_timeout_s: float = 60.0
    """So long the brokers should keep the session while no broker can be reached."""
    require_session: bool = False
    keep_session: bool = False
    """The brokers keep the session also after a close."""
    resume: bool = False
    """The session is there already, and must be: of another process, or of an earlier life of this one."""
    first_attempt: int = 0
    """Attempts to have a session are numbered from above this on. Two processes with the same session have no number in
    common: brokers take the same number for the same attempt."""
    connect_timeout_s: float = 5.0
    link_retry_s: float = 0.2
    backoff: Backoff = field(default_factory=Backoff)
    listens_for_hosts: bool = True

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ValueError("name at least one broker")
        if min(self.connect_timeout_s, self.link_retry_s, self.backoff.first_s, self.backoff.most_s) <= 0:
            raise ValueError("times are above 0 s")
        if self.session_timeout_s < 0:
            raise ValueError("session_timeout_s is not below 0")


class ClientPhase(Enum):
    """Where the core is."""

    IDLE = "idle"
    PAUSING = "pausing"
    """Until the next broker is tried."""
    CONNECTING = "connecting"
    OPEN = "open"
    SESSION_GONE = "session gone"
    """The application has to say how to go on."""
    CLOSING = "closing"
    ENDED = "ended"


@dataclass
class SessionKnowledge:
    """What is known of the session."""

    id: str
    is_established: bool = False
    """A broker has said that it is there: from now on its end must not go unnoticed."""
    confirmed_at_s: float = 0.0
    """When we were last sure of that."""
    timeout_s: float = 0.0
    """As granted; 0: it was not yet."""
    is_unwanted: bool = False
    """A broker has said that it keeps no sessions, by not letting in who asks for one."""
    attempt: int = 0
    """The number with which it was asked for last: so brokers know what was given up, and is carried out late."""

    @property
    def was_granted(self) -> bool:
        """To this client, and not only to another process of which it is resumed."""
        return self.timeout_s > 0


@dataclass
class _ConnectionState:
    """Of the connection that is, or of the attempt at one."""

    attempt: int = 0
    broker: BrokerAddress | None = None
    deadline_s: float | None = None
    """Of the pause, or of the attempt."""
    opened_s: float = 0.0
    guarantee: Guarantee | None = None
    has_session: bool = False
    apart_since_s: dict[str, float] = field(default_factory=dict)
    """Since when a link belongs to another broker than the links that are attached here."""
    retries_s: dict[str, float] = field(default_factory=dict)
    """When links are to be attached again on this connection."""


class ClientCore:
    """The promise: with a session, a message is queued once and handed out once, whatever breaks, or `SessionGone` says
    which are in doubt; without one, `Connected` says what is promised instead."""

    def __init__(self, settings: ClientSettings, session: str, draw: Callable[[], float]) -> None:
        """`session`: new, or the one to resume. `draw`: numbers from 0 to 1."""
        self.settings = settings
        self.session = SessionKnowledge(session, settings.resume, attempt=settings.first_attempt)
        self.phase = ClientPhase.IDLE
        self.error: ClientError | None = None
        """Why it has ended."""
        self.links = ClientLinks(session)
        self.brokers = BrokerList(settings.addresses, settings.backoff, draw)
        self._connection = _ConnectionState()
        self._now_s = 0.0
        self._handlers: dict[type, Callable[[Any], list[Effect]]] = {
            ev.Begun: self._begun,
            ev.DeadlineReached: self._time_passed,
            ev.BrokerOpened: self._opened,
            ev.BrokerClosed: self._closed,
            ev.ConnectionLost: self._lost,
            ev.LinkAttached: self._link_attached,
            ev.LinkEnded: self._link_ended,
            ev.HostsTold: self._hosts_told,
            ev.SenderWanted: self._link_wanted,
            ev.ReceiverWanted: self._link_wanted,
            ev.LinkDropped: self._link_dropped,
            ev.BegunAnew: self._begun_anew,
            ev.CloseWanted: self._close_wanted,
            **self.links.handlers,
        }

    # --- what it is asked

    @property
    def guarantee(self) -> Guarantee | None:
        """With the broker that we are connected to, or were last; None: with none yet."""
        return self._connection.guarantee

    @property
    def deadline_s(self) -> float | None:
        """When `DeadlineReached` is due; None: nothing waits for it."""
        times_s = list(self._connection.retries_s.values()) if self.phase is ClientPhase.OPEN else []
        if self._connection.deadline_s is not None:
            times_s.append(self._connection.deadline_s)
        return min(times_s, default=None)

    def handle(self, event: ev.Input, now_s: float) -> list[Effect]:
        """What comes of `event`. Of a connection that is not there any more, nothing."""
        self._now_s = now_s
        attempt = getattr(event, "attempt", None)
        if self.phase is ClientPhase.ENDED or (attempt is not None and attempt != self._connection.attempt):
            return []
        return self._handlers[type(event)](event)

    def check_invariants(self) -> None:
        """Raise AssertionError where the parts disagree."""
        self.links.check_invariants()
        if self.links.is_any_attached and self.phase not in (ClientPhase.OPEN, ClientPhase.CLOSING):
            raise AssertionError(f"a link is attached while {self.phase}")
        if self.phase in (ClientPhase.PAUSING, ClientPhase.CONNECTING) and self._connection.deadline_s is None:
            raise AssertionError(f"nothing ends {self.phase}")

    # --- connecting

    def _begun(self, _: ev.Begun) -> list[Effect]:
        return self._connect_next()

    def _connect_next(self) -> list[Effect]:
        broker, pause_s = self.brokers.next()
        self._connection.broker = broker
        self.phase, self._connection.deadline_s = ClientPhase.PAUSING, self._now_s + pause_s
        return self._connect() if pause_s == 0 else []

    def _connect(self) -> list[Effect]:
        state = self._connection
        if state.broker is None:
            raise RuntimeError("no broker was chosen")
        state.attempt += 1
        state.has_session = False
        state.retries_s.clear()
        state.apart_since_s.clear()
        self.phase, state.deadline_s = ClientPhase.CONNECTING, self._now_s + self.settings.connect_timeout_s
        properties: dict[str, object] = {}
        if self.settings.session_timeout_s > 0 and not self.session.is_unwanted:
            self.session.attempt += 1
            properties = {
                "qpid.session": self.session.id,
                "qpid.session-attempt": self.session.attempt,
                "qpid.session-timeout": self.settings.session_timeout_s,
                "qpid.session-resume": self.session.is_established,
                "qpid.keep-session": self.settings.keep_session,
            }
        may_read_password = self.brokers.may_read_password(state.broker)
        return [ev.OpenConnection(state.attempt, state.broker, properties, may_read_password)]

    def _time_passed(self, _: ev.DeadlineReached) -> list[Effect]:
        state = self._connection
        if self.phase is ClientPhase.OPEN:
            due = [name for name, at_s in state.retries_s.items() if at_s <= self._now_s]
            for name in due:
                del state.retries_s[name]
            return self.links.attach(due)
        if state.deadline_s is None or self._now_s < state.deadline_s:
            return []
        if self.phase is ClientPhase.PAUSING:
            return self._connect()
        cut: list[Effect] = [ev.CutConnection(state.attempt)]
        if self.phase is ClientPhase.CLOSING:
            return cut + self._end(None)
        return cut + self._go_on("it did not answer in time")

    def _opened(self, event: ev.BrokerOpened) -> list[Effect]:
        facts, state = event.facts, self._connection
        if (
            self.phase is not ClientPhase.CONNECTING
            or facts.properties.get("amqp:connection-establishment-failed") is True
        ):
            return []  # the close that follows says why
        wants_session = self.settings.session_timeout_s > 0 and not self.session.is_unwanted
        offers_session = SESSIONS in facts.capabilities and wants_session
        if not offers_session:
            if self.settings.require_session:
                text = f"broker {facts.container} keeps no sessions, and one was demanded: {state.broker}"
                return [ev.CutConnection(state.attempt), *self._end(SessionsNotOffered(text))]
            if self.session.is_established:  # another broker may have it, as long as it can be there
                if self._now_s < self.session.confirmed_at_s + self.session.timeout_s:
                    return self._leave(f"broker {facts.container} keeps no sessions")
                return [ev.CutConnection(state.attempt), *self._session_gone()]
        elif self.session.is_established and facts.properties.get("qpid.session-status") != "resumed":
            return [ev.CutConnection(state.attempt), *self._session_gone()]
        return self._served(facts, offers_session)

    def _served(self, facts: OpenFacts, has_session: bool) -> list[Effect]:
        """The broker lets us in."""
        state = self._connection
        if state.broker is None:
            raise RuntimeError("no broker was chosen")
        self.phase, state.deadline_s, state.opened_s = ClientPhase.OPEN, None, self._now_s
        state.has_session = has_session
        state.guarantee = Guarantee.AT_LEAST_ONCE
        effects: list[Effect] = []
        if has_session:
            state.guarantee = Guarantee.EXACTLY_ONCE
            granted = facts.properties.get("qpid.session-timeout", self.settings.session_timeout_s)
            self.session.timeout_s = float(granted) if isinstance(granted, int | float) else 0.0
            self.session.is_established, self.session.confirmed_at_s = True, self._now_s
        elif DEDUPLICATION in facts.capabilities:
            state.guarantee = Guarantee.DEDUPLICATED
        named = read_server_list(facts.properties.get("failover-server-list"), state.broker.scheme)
        self.brokers.learn(named, over_tls=state.broker.is_tls)
        effects.append(ev.Connected(state.broker, state.guarantee))
        if self.settings.listens_for_hosts and KNOWN_HOSTS in facts.capabilities:
            effects.append(ev.ListenForHosts())
        return effects + self.links.attach(self.links.names)

    # --- the end of a connection

    def _closed(self, event: ev.BrokerClosed) -> list[Effect]:
        reason = event.reason
        if self.phase is ClientPhase.CLOSING:
            return self._end(None)
        if reason.name == CONNECTION_FORCED and TAKEN_TEXT in reason.description:
            return [ev.CutConnection(event.attempt), *self._end(SessionTaken(reason.description))]
        if reason.name == PRECONDITION_FAILED and (epoch := _epoch_in(reason)):
            return self._outnumbered(event, epoch)
        if reason.name == NOT_FOUND and self.session.is_established:
            return [ev.CutConnection(event.attempt), *self._session_gone()]
        if reason.name == NOT_IMPLEMENTED and self.phase is ClientPhase.CONNECTING:
            if self.settings.require_session:
                error = SessionsNotOffered(f"{self._connection.broker}: {reason.description}")
                return [ev.CutConnection(event.attempt), *self._end(error)]
            self.session.is_unwanted = not self.session.is_established
        if reason.name in REFUSALS:
            text = f"{self._connection.broker}: {reason.name}: {reason.description}"
            return [ev.CutConnection(event.attempt), *self._end(SessionRefused(text))]
        if reason.name in (CONNECTION_REDIRECT, CONNECTION_FORCED):
            self._redirect(reason)
        return self._leave(f"{reason.name}: {reason.description}")

    def _outnumbered(self, event: ev.BrokerClosed, epoch: int) -> list[Effect]:
        """Somebody else has had the session, up to that number: before us, so that we take it over, or from us."""
        session = self.session
        is_taken_over = epoch // ATTEMPTS > session.attempt // ATTEMPTS
        if session.was_granted and is_taken_over:
            return [ev.CutConnection(event.attempt), *self._end(SessionTaken(event.reason.description))]
        session.attempt = epoch if session.was_granted else (epoch // ATTEMPTS + 1) * ATTEMPTS
        return self._leave(f"{event.reason.name}: {event.reason.description}")

    def _address_in(self, reason: EndReason) -> BrokerAddress | None:
        broker = self._connection.broker
        return None if broker is None else read_host(reason.info, broker.scheme)

    def _redirect(self, reason: EndReason) -> None:
        """Go where the broker sends us, if it says where."""
        broker, there = self._connection.broker, self._address_in(reason)
        if broker is not None and there is not None:
            self.brokers.redirect(there, over_tls=broker.is_tls)

    def _lost(self, event: ev.ConnectionLost) -> list[Effect]:
        if self.phase is ClientPhase.CLOSING:
            return self._end(None)
        broker = self._connection.broker
        if event.is_login and not (broker is not None and self.brokers.refused(broker)):
            return self._end(LoginRefused(f"{broker}: {event.reason.description}"))
        return self._go_on(event.reason.description or event.reason.name or "the connection was lost")

    def _leave(self, reason: str) -> list[Effect]:
        return [ev.CutConnection(self._connection.attempt), *self._go_on(reason)]

    def _go_on(self, reason: str) -> list[Effect]:
        """At the next broker. One that let us in and nothing else does not count as one that serves."""
        effects: list[Effect] = []
        if self.phase is ClientPhase.OPEN:
            if self.links.is_any_attached or self._now_s >= self._connection.opened_s + self.settings.backoff.most_s:
                self.brokers.served()
            effects.append(ev.Disconnected(f"{self._connection.broker}: {reason}"))
        self._detach_all()
        self._connection.attempt += 1  # nothing that is still on its way counts
        return effects + self._connect_next()

    def _detach_all(self) -> None:
        if self.phase is ClientPhase.OPEN and self._connection.has_session:
            self.session.confirmed_at_s = self._now_s
        self.links.detach_all()

    def _session_gone(self) -> list[Effect]:
        self._detach_all()
        self.phase, self._connection.deadline_s = ClientPhase.SESSION_GONE, None
        self._connection.attempt += 1
        return [ev.SessionGone(SessionLost(self.session.id, self.links.doubts()))]

    def _begun_anew(self, event: ev.BegunAnew) -> list[Effect]:
        if self.phase is not ClientPhase.SESSION_GONE:
            return []
        self.session = SessionKnowledge(event.session, attempt=self.settings.first_attempt)
        effects = self.links.begin_anew(event.session, resend=event.resend)
        self.brokers.served()
        return effects + self._connect_next()

    def _close_wanted(self, event: ev.CloseWanted) -> list[Effect]:
        if self.phase is ClientPhase.OPEN and not event.keep_session:
            self.phase = ClientPhase.CLOSING
            self._connection.deadline_s = self._now_s + self.settings.connect_timeout_s
            return [ev.CloseConnection(self._connection.attempt)]
        is_there = self.phase in (ClientPhase.OPEN, ClientPhase.CONNECTING, ClientPhase.CLOSING)
        cut: list[Effect] = [ev.CutConnection(self._connection.attempt)] if is_there else []
        return cut + self._end(None)

    def _end(self, error: ClientError | None) -> list[Effect]:
        self._detach_all()
        self.phase, self.error, self._connection.deadline_s = ClientPhase.ENDED, error, None
        return [ev.ClientEnded(error)]

    # --- links

    def _link_wanted(self, event: ev.SenderWanted | ev.ReceiverWanted) -> list[Effect]:
        self.links.add(event)
        return self.links.attach([event.link]) if self.phase is ClientPhase.OPEN else []

    def _link_dropped(self, event: ev.LinkDropped) -> list[Effect]:
        if not self.links.drop(event.link) or self.phase is not ClientPhase.OPEN:
            return []
        self._connection.retries_s.pop(event.link, None)
        return [ev.DetachLink(event.link)]

    def _link_attached(self, event: ev.LinkAttached) -> list[Effect]:
        state = self._connection
        if self.phase is not ClientPhase.OPEN or state.guarantee is None:
            return []
        state.apart_since_s.pop(event.link, None)
        return self.links.attached(event, state.guarantee)

    def _link_ended(self, event: ev.LinkEnded) -> list[Effect]:
        """The broker has ended, or refused, a link."""
        reason, state = event.reason, self._connection
        if self.phase is not ClientPhase.OPEN or not self.links.detach(event.link):
            return []
        there = self._address_in(reason) if reason.name == LINK_REDIRECT else None
        if there is not None:
            if not self.links.is_any_attached:
                self._redirect(reason)
                return self._leave(f"{event.link} is at {there}")
            if self._now_s < state.apart_since_s.setdefault(event.link, self._now_s) + APART_S:
                return self._attach_later(event.link)
            text = (
                f"it is at {there}, and other links of this client are not: use a client for each, or ha.clients: proxy"
            )
            reason = EndReason(LINK_REDIRECT, text)
        elif reason.name in PASSING:
            return self._attach_later(event.link)
        self.links.drop(event.link)
        return [ev.LinkFailed(event.link, LinkUnusable(event.link, reason.name, reason.description))]

    def _attach_later(self, link: str) -> list[Effect]:
        self._connection.retries_s[link] = self._now_s + self.settings.link_retry_s
        return []

    def _hosts_told(self, event: ev.HostsTold) -> list[Effect]:
        if self._connection.broker is not None:
            self.brokers.learn_anew(read_hosts(event.hosts, self._connection.broker.scheme))
        return []


def _epoch_in(reason: EndReason) -> int:
    """Of the session that is asked for with too low a number; 0: the refusal is about something else."""
    epoch = {str(name): value for name, value in reason.info.items()}.get(SESSION_EPOCH)
    return int(epoch) if isinstance(epoch, int) else 0
