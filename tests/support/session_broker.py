"""A broker for the client's core, in memory: one queue, sessions, numbered producers, and a wire that breaks.

What the client and the broker say is on its way until a test lets it arrive. When the connection breaks, all of that is
lost, and what the broker has done is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qpid_ha_client.core import events as ev
from qpid_ha_client.core.client_core import ClientCore, ClientSettings

MODES = {
    "sessions": frozenset({"qpid.sessions", "qpid.producer-deduplication"}),
    "numbers": frozenset({"qpid.producer-deduplication"}),
    "nothing": frozenset[str](),
}
TIMEOUT_S = 30.0


class QueuedBody(NamedTuple):
    id: int
    body: object
    redelivered: bool


@dataclass
class KeptSession:
    confirmed: int = 0
    refused: list[int] = field(default_factory=list)
    held: dict[int, QueuedBody] = field(default_factory=dict)
    left_s: float | None = None


class SessionBroker:
    """The client's other end, and the driver between them."""

    def __init__(self, mode: str, settings: ClientSettings, draw: Callable[[], float]) -> None:
        self.mode = mode
        self.core = ClientCore(settings, "the-session", draw)
        self.now_s = 0.0
        self.queue: deque[QueuedBody] = deque()
        self.bodies: list[object] = []
        """All that was ever queued, in order."""
        self.producers: dict[str, int] = {}
        self.sessions: dict[str, KeptSession] = {}
        self.told: list[ev.Effect] = []
        """What the application was told."""
        self.refuses: set[object] = set()
        """What it refuses to queue."""
        self.is_up = True
        self.attempts: list[Any] = []
        """The numbers with which a session was asked for."""
        self._attempt = 0
        self._session: KeptSession | None = None
        self._unanswered: dict[int, QueuedBody] = {}
        self._held: deque[QueuedBody] = deque()
        """What comes first on the consuming link."""
        self._credit = 0
        self._handles = 0
        self._to_broker: deque[Callable[[], None]] = deque()
        self._to_client: deque[ev.Input] = deque()

    # --- what a test does

    def feed(self, event: ev.Input) -> None:
        """Something happens to the client."""
        for effect in self.core.handle(event, self.now_s):
            self._carry_out(effect)
        self.core.check_invariants()

    def advance(self, seconds: float) -> None:
        """Time goes by, without anything else."""
        until_s = self.now_s + seconds
        while self.core.deadline_s is not None and self.core.deadline_s <= until_s:
            self.now_s = max(self.now_s, self.core.deadline_s)
            self.feed(ev.DeadlineReached())
        self.now_s = until_s

    def deliver(self) -> bool:
        """One thing that the client said reaches the broker; False: there is none."""
        if self._to_broker:
            self._to_broker.popleft()()
            return True
        return False

    def answer(self) -> bool:
        """One thing that the broker said reaches the client; False: there is none."""
        if self._to_client:
            self.feed(self._to_client.popleft())
            return True
        return False

    def settle_down(self) -> None:
        """Everything that is under way arrives, whatever comes of it."""
        for _ in range(10_000):
            if not (self.deliver() or self.answer()):
                if self.core.deadline_s is None:
                    return
                self.advance(max(0.0, self.core.deadline_s - self.now_s))
        raise AssertionError("it does not come to an end")

    def cut(self) -> None:
        """The connection breaks; both sides notice."""
        attempt = self._attempt
        self._drop()
        self.feed(ev.ConnectionLost(attempt, ev.EndReason(description="cut")))

    def expire_sessions(self) -> None:
        """As much time goes by as the broker keeps a session for."""
        for session in self.sessions.values():
            self._give_back(session.held)
        self.sessions.clear()

    # --- the driver

    def _carry_out(self, effect: ev.Effect) -> None:
        match effect:
            case ev.OpenConnection(attempt, _, properties):
                self._attempt = attempt
                self.attempts += [properties[name] for name in properties if name == "qpid.session-attempt"]
                self._to_broker.append(lambda: self._open(attempt, dict(properties)))
            case ev.CutConnection():
                self._drop()
            case ev.CloseConnection():
                self._to_broker.append(self._closed)
            case ev.AttachSender(link):
                self._to_broker.append(lambda: self._attach(link, is_publisher=True))
            case ev.AttachReceiver(link):
                self._to_broker.append(lambda: self._attach(link, is_publisher=False))
            case ev.SendMessage():
                self._to_broker.append(lambda: self._take(effect))
            case ev.GiveCredit(link, credit):
                self._to_broker.append(lambda: self._flow(link, credit))
            case ev.AnswerDelivery(link, handle, verdict):
                self._to_broker.append(lambda: self._answered(link, handle, verdict))
            case ev.SettleDelivery() | ev.ListenForHosts() | ev.DetachLink():
                pass
            case _:
                self.told.append(effect)

    # --- the broker

    def _say(self, event: ev.Input) -> None:
        self._to_client.append(event)

    def _open(self, attempt: int, properties: dict[str, Any]) -> None:
        if not self.is_up:
            self._say(ev.ConnectionLost(attempt, ev.EndReason(description="refused")))
            return
        answer: dict[str, Any] = {}
        if self.mode == "sessions":
            name = properties["qpid.session"]
            there = self.sessions.get(name)
            if there is None and properties["qpid.session-resume"]:
                self._say(ev.BrokerClosed(attempt, ev.EndReason("amqp:not-found", "there is no such session")))
                return
            self._session = self.sessions.setdefault(name, KeptSession())
            status = "new" if there is None else "resumed"
            answer = {"qpid.session": name, "qpid.session-timeout": TIMEOUT_S, "qpid.session-status": status}
        self._say(ev.BrokerOpened(attempt, ev.OpenFacts("broker", MODES[self.mode], answer)))

    def _attach(self, link: str, *, is_publisher: bool) -> None:
        if is_publisher:
            session, kept = self._session, dict[str, Any]()
            if session is not None:
                refused = [number for number in session.refused if number < session.confirmed]
                kept = {"qpid.session-confirmed": session.confirmed, "qpid.session-refused": refused}
            self._say(ev.LinkAttached(self._attempt, link, kept))
            self._say(ev.CreditGiven(self._attempt, link, 5))
            return
        held = {} if self._session is None else {"qpid.session-held": len(self._session.held)}
        self._say(ev.LinkAttached(self._attempt, link, held))
        self._credit, self._unanswered = 0, {}
        if self._session is not None:
            self._held = deque(message._replace(redelivered=True) for message in self._session.held.values())

    def _flow(self, link: str, credit: int) -> None:
        self._credit += credit
        self._hand_out(link)

    def _hand_out(self, link: str) -> None:
        while self._credit > 0 and self._held:
            self._send(link, self._held.popleft())
        while self._credit > 0 and self.queue:
            message = self.queue.popleft()
            if self._session is not None:
                self._session.held[message.id] = message
            self._send(link, message)

    def _send(self, link: str, message: QueuedBody) -> None:
        self._credit -= 1
        self._handles += 1
        self._unanswered[self._handles] = message
        key = message.id if self.mode != "nothing" else None
        self._say(ev.MessageArrived(self._attempt, link, self._handles, key, message.redelivered, message.body))

    def _take(self, sent: ev.SendMessage) -> None:
        if sent.message in self.refuses:
            if self._session is not None:
                self._session.refused.append(sent.number)
            self._say(ev.OutcomeTold(self._attempt, sent.link, sent.ticket, ev.PublishOutcome.REJECTED))
            return
        if sent.producer is None or sent.number > self.producers.get(sent.producer, 0):
            self.bodies.append(sent.message)
            self.queue.append(QueuedBody(len(self.bodies), sent.message, redelivered=False))
            if sent.producer is not None:
                self.producers[sent.producer] = sent.number
            if self._session is not None:
                self._session.confirmed = sent.number
        self._say(ev.OutcomeTold(self._attempt, sent.link, sent.ticket, ev.PublishOutcome.ACCEPTED))
        self._say(ev.CreditGiven(self._attempt, sent.link, 5))
        self._hand_out("in")

    def _answered(self, link: str, handle: int, verdict: ev.ConsumerVerdict) -> None:
        message = self._unanswered.pop(handle)
        if self._session is not None:
            del self._session.held[message.id]
        if verdict is ev.ConsumerVerdict.RELEASE:
            self.queue.appendleft(message._replace(redelivered=True))
        self._say(ev.AnswerSettled(self._attempt, link, handle))
        self._hand_out(link)

    def _closed(self) -> None:
        if self._session is not None:
            self._give_back(self._session.held)
            self.sessions.clear()
        self._say(ev.BrokerClosed(self._attempt, ev.EndReason()))

    def _drop(self) -> None:
        """Nothing that is under way arrives. What no session holds goes back."""
        self._to_broker.clear()
        self._to_client.clear()
        if self._session is None:
            self._give_back(self._unanswered)
        self._session, self._unanswered, self._credit = None, {}, 0
        self._held.clear()

    def _give_back(self, messages: dict[int, QueuedBody]) -> None:
        for message in reversed(list(messages.values())):
            self.queue.appendleft(message._replace(redelivered=True))
        messages.clear()
