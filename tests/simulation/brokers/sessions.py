"""Clients with sessions: they lose connections, come back at any broker, in time or too late, and at times twice.

Checked, beside what the ledger checks: all that a link holds comes again when it is attached again, first and in its
order, under the same ids and marked; what was confirmed does not come again; who was refused had been away too long;
nobody takes a session from its client's latest attempt to have it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

import proton

from qpid_ha_broker.amqp.nodes.session_links import TAKEN
from simulation.brokers.amqp_client import AmqpClient, Shop, Talk, take_message
from simulation.brokers.ledger import ClientSession, Handout, Ledger, Reading, Sent
from simulation.brokers.numbering import numbered
from simulation.violations import Violation

MESSAGE_ID = "qpid.message-id"
WINDOW = 20
"""Messages that a publisher has not been answered."""
DETACHES, CLOSES_LINK = 0.01, 0.005
CLOSES, RIVALS = 0.004, 0.01
"""How often, each time that it acts, a client does so."""
SESSION_IDLE_S = 1.0
"""Less than brokers have patience for: these are still connected to each other when their clients have given up."""
STAYS_AWAY = 0.15
"""How many of its breaks are longer: up to twice its session's timeout."""


class NumberedPublisher:
    """A publisher's link of a session: it stays, whatever becomes of connections."""

    def __init__(self, session: ClientSession, name: str, queue: str, ledger: Ledger) -> None:
        self.name = name
        self._queue = queue
        self._session = session
        self._ledger = ledger
        self._number = 0
        self._unanswered: dict[int, Sent] = {}
        self._due: list[int] = []
        """Of these, what has to be sent on the link as it is attached now."""
        self.link: Any = None
        self.is_attached = False

    def make_link(self, talk: Talk) -> None:
        """Attach it."""
        self.link, self.is_attached = talk.session.sender(self.name), False
        self.link.target.address = self._queue
        self.link.open()

    def attached(self, link: Any) -> None:
        """The broker says what it has accepted; the rest is sent again."""
        self.is_attached = True
        confirmed = _told(link, "qpid.session-confirmed")
        refused = _properties_of(link).get("qpid.session-refused", [])
        for number in [number for number in self._unanswered if number <= confirmed]:
            sent = self._unanswered.pop(number)
            if number in refused:
                self._ledger.is_refused(sent)
            else:
                self._ledger.is_accepted(sent)
        self._due = list(self._unanswered)

    def act(self, draw: random.Random, *, is_quiet: bool) -> None:
        """Send what is due, and then something new."""
        while self._due and self.link.credit > 0:
            self._send(self._unanswered[self._due.pop(0)])
        for _ in range(0 if is_quiet or self._due else draw.randint(0, 4)):
            if self.link.credit > 0 and len(self._unanswered) < WINDOW:
                self._number += 1
                sent = self._unanswered[self._number] = Sent(self.name, self._number, self._queue)
                self._ledger.sends(sent, is_durable=True)
                self._send(sent)

    def _send(self, sent: Sent) -> None:
        message = numbered(sent, f"{self._session.name}/{self.name}")
        self.link.delivery(str(sent.number))
        self.link.send(message.encode())
        self.link.advance()

    def delivery(self, delivery: Any) -> None:
        """What became of one."""
        state = delivery.remote_state
        sent = self._unanswered.get(int(delivery.tag))
        if sent is None or not state:
            return
        del self._unanswered[sent.number]
        delivery.settle()
        if state == proton.Delivery.ACCEPTED:
            self._ledger.is_accepted(sent)
        elif state == proton.Delivery.REJECTED or (state == proton.Delivery.RELEASED and self._session.may_end):
            self._ledger.is_refused(sent)
        else:
            raise Violation(f"{sent} was answered with {state}")

    def told(self, condition: str) -> None:
        """The broker ends the link, or refuses it, with that."""

    def lost(self) -> None:
        """The link is not attached any more."""
        self.link, self.is_attached = None, False
        self._due.clear()

    def why_not_at_rest(self) -> str:
        """What it waits for; empty: nothing."""
        return f"{self.name} was not told of {len(self._unanswered)}" if self._unanswered else ""


class HeldMessage:
    """A message that the session holds, as far as its client knows."""

    def __init__(self, handout: Handout, delivery: Any, place: int) -> None:
        self.handout = handout
        self.place = place
        """Among those that the link has got, in the order in which they came first."""
        self.delivery = delivery
        """None: it has not come on the link as it is attached now."""
        self.answer: Any = None


class HoldingConsumer:
    """A consumer's link of a session. It knows what it has by the messages' ids."""

    def __init__(self, session: ClientSession, name: str, queue: str, ledger: Ledger, now_s: float) -> None:
        self.name = name
        self._queue = queue
        self._session = session
        self._ledger = ledger
        self.reading = Reading(session.name, queue, now_s, session=session)
        self._held: dict[int, HeldMessage] = {}
        """By id, in the order in which they came first; until the broker has confirmed the answer."""
        self._done: set[Sent] = set()
        self._overtaken: list[str] = []
        """Tags of what was given back, and came again before the broker has settled that."""
        self._to_come = 0
        """Of what the broker said that it holds."""
        self._latest = -1
        """The place of what came again last."""
        self._places = 0
        self.link: Any = None
        self.is_attached = False

    def make_link(self, talk: Talk) -> None:
        """Attach it."""
        self.link, self.is_attached = talk.session.receiver(self.name), False
        self.link.source.address = self._queue
        self.link.rcv_settle_mode = proton.Link.RCV_SECOND
        self.link.open()

    def attached(self, link: Any) -> None:
        """The broker says how much it holds, which comes first."""
        self.is_attached = True
        self._to_come, self._latest = _told(link, "qpid.session-held"), -1
        self._look_what_did_not_come()

    def act(self, draw: random.Random, *, is_quiet: bool) -> None:
        """Answer some, and ask for more."""
        for held in list(self._held.values()):
            if held.delivery is not None and held.answer is None and (is_quiet or draw.random() < 0.3):
                chance = 0.0 if is_quiet else draw.random()
                held.answer = proton.Delivery.ACCEPTED
                if chance > 0.9:
                    held.answer = proton.Delivery.RELEASED if chance > 0.93 else proton.Delivery.REJECTED
                held.handout.is_returned = held.answer == proton.Delivery.RELEASED
                held.handout.is_consumed = not held.handout.is_returned
                held.handout.is_rejected = held.answer == proton.Delivery.REJECTED
                held.delivery.update(held.answer)
        if self.link.credit < self._to_come or (not is_quiet and self.link.credit < 3):
            self.link.flow(self._to_come + draw.randint(1, 10))

    def delivery(self, delivery: Any) -> None:
        """A message, or the confirmation of an answer."""
        if not (delivery.readable or delivery.partial):
            if delivery.settled:
                self._settled(delivery)
            return
        while (taken := take_message(self.link, self.name)) is not None:
            self._came(*taken)

    def _settled(self, delivery: Any) -> None:
        """By the broker, which may have used the tag again for a message that is here already."""
        if delivery.tag in self._overtaken:
            self._overtaken.remove(delivery.tag)
            delivery.settle()
            return
        found = [
            (number, held)
            for number, held in self._held.items()
            if held.delivery is not None and held.delivery.tag == delivery.tag
        ]
        answered = [number for number, held in found if held.answer is not None]
        if answered:
            self._confirm(answered[0])
        elif found:
            raise Violation(f"{found[0][1].handout.sent} was taken from {self.name}")
        delivery.settle()

    def _came(self, delivery: Any, message: proton.Message) -> None:
        sent, is_marked = Sent.read(str(message.body)), not message.first_acquirer
        number = int(cast(Any, message.instructions)[MESSAGE_ID])
        held, is_again = self._held.get(number), self._to_come > 0
        if sent in self._done:
            raise Violation(f"{sent} came again to {self.name}, which was told that it is consumed")
        if is_again and held is not None and not is_marked:
            raise Violation(f"{sent} came again to {self.name}, without a mark")
        if held is not None and not is_again and held.handout.is_returned:
            if held.delivery is not None:
                self._overtaken.append(held.delivery.tag)
            held = None  # given back, and handed out anew before that was confirmed
        if held is None:
            self._held.pop(number, None)
            handout = self._ledger.hands_out(sent, self.reading, is_marked)
            self._places += 1
            self._held[number] = HeldMessage(handout, delivery, self._places)
        else:
            self._came_again(number, held, sent, delivery, is_again=is_again)
        if is_again:
            self._to_come -= 1
            self._look_what_did_not_come()

    def _came_again(self, number: int, held: HeldMessage, sent: Sent, delivery: Any, *, is_again: bool) -> None:
        if held.handout.sent != sent:
            raise Violation(f"{sent} came to {self.name} as message {number}, which was {held.handout.sent}")
        if not is_again or held.delivery is not None:
            raise Violation(f"{sent} came twice to {self.name}")
        if held.place < self._latest and not held.handout.is_returned:
            raise Violation(f"{sent} came again to {self.name} behind what it had got later")
        self._latest = max(held.place, self._latest)
        held.delivery = delivery
        if held.answer is not None:
            delivery.update(held.answer)

    def _look_what_did_not_come(self) -> None:
        """All that the session holds has come: other answers were confirmed."""
        if self._to_come:
            return
        for number, held in list(self._held.items()):
            if held.delivery is None:
                if held.answer is None and not self._session.has_ended:
                    raise Violation(f"{held.handout.sent} was held for {self.name}, and did not come again")
                self._confirm(number)

    def _confirm(self, number: int) -> None:
        handout = self._held.pop(number).handout
        handout.is_confirmed = True
        if handout.is_consumed:
            self._done.add(handout.sent)

    def give_up(self, now_s: float) -> None:
        """What it holds is not its own any more: the client closes the link."""
        self.reading.has_ended = True
        self.reading = Reading(self._session.name, self._queue, now_s, session=self._session)
        self._held.clear()

    def told(self, condition: str) -> None:
        """The broker ends the link, or refuses it, with that."""

    def lost(self) -> None:
        """The link is not attached any more; what it holds it keeps."""
        self.link, self.is_attached, self._to_come = None, False, 0
        self._overtaken.clear()
        for held in self._held.values():
            held.delivery = None

    def why_not_at_rest(self) -> str:
        """What it waits for; empty: nothing."""
        return f"{self.name} holds {len(self._held)}, and {self._to_come} are to come" if self._held else ""


SessionPart = NumberedPublisher | HoldingConsumer


class SessionClient(AmqpClient):
    """Publishes to queues of all sets and consumes from them, in one session after the other."""

    idle_s = SESSION_IDLE_S
    consumer_kind: type[HoldingConsumer] = HoldingConsumer

    def __init__(
        self,
        shop: Shop,
        name: str,
        draw: random.Random,
        ledgers: Mapping[str, Ledger],
        began: Callable[[ClientSession], None],
    ) -> None:
        """`ledgers`: by queue. `began`: told of each session."""
        super().__init__(shop, name, draw)
        self._ledgers = ledgers
        self._began = began
        self.is_quiet = False
        self.resumed = self.lost = 0
        """How often it came back to its session in time, and too late."""
        self._numbers = 0
        self._rivals: list[Talk] = []
        """Connections that were left open when another one resumed the session."""
        self._new_session()

    def _new_session(self) -> None:
        name = str(uuid.UUID(int=self.draw.getrandbits(128)))
        self.session = ClientSession(name, self.draw.choice((1.0, 4.0)))
        self._is_granted = self._keeps = False
        self._attempts = 0
        self._began(self.session)
        queues = self.draw.sample(list(self._ledgers), min(2, len(self._ledgers)))
        now_s = self.shop.schedule.now_s
        self._parts: dict[str, SessionPart] = {}
        for queue in queues:
            self._numbers += 2
            sender, receiver = f"{self.name}-{self._numbers}", f"{self.name}-{self._numbers + 1}"
            self._parts[sender] = NumberedPublisher(self.session, sender, queue, self._ledgers[queue])
            self._parts[receiver] = self.consumer_kind(self.session, receiver, queue, self._ledgers[queue], now_s)

    # --- connections

    def open_properties(self) -> dict[Any, Any]:
        """See `AmqpClient`."""
        self._keeps = self.draw.random() < 0.3
        self._attempts += 1
        given = {
            "qpid.session": self.session.name,
            "qpid.session-attempt": self._attempts,
            "qpid.session-timeout": self.session.timeout_s,
            "qpid.session-resume": self._is_granted,
            "qpid.keep-session": self._keeps,
        }
        return {proton.symbol(key): value for key, value in given.items()}

    def on_open(self, talk: Talk) -> None:
        properties = {str(key): value for key, value in (talk.connection.remote_properties or {}).items()}
        status = properties.get("qpid.session-status")
        if talk is not self.talk or status is None:
            return  # it is refused: the close follows
        if self._is_granted and status != "resumed":
            raise Violation(f"{self.name} resumes its session, and has a {status} one")
        self.resumed += self._is_granted
        self._is_granted = True
        # An end that nobody had confirmed was lost with its primary; an operator may have ended it behind this answer.
        if self.session.has_ended and not self.session.may_end:
            for part in self._parts.values():
                if isinstance(part, HoldingConsumer):
                    part.give_up(self.shop.schedule.now_s)
            self.session.has_ended = False
        super().on_open(talk)

    def begin(self, talk: Talk) -> None:
        for part in self._parts.values():
            part.make_link(talk)

    def on_gone(self, talk: Talk, reason: str) -> None:
        condition: Any = talk.connection.remote_condition
        if talk in self._rivals:
            self._rivals.remove(talk)
        if talk is self.talk and condition is not None and condition.name == "amqp:not-found":
            if not (self.session.has_ended or self.session.may_end):
                raise Violation(f"{self.name} is refused its session {self.session.name}, which nobody has ended")
            self.lost += 1
            self._begin_anew()
        if talk is self.talk and condition is not None and condition.description == TAKEN:
            raise Violation(f"{self.name} is told that its session was taken, and has tried nothing later")
        super().on_gone(talk, reason)

    def _begin_anew(self) -> None:
        self.session.has_ended = True
        self._new_session()

    def away_s(self) -> float:
        """See `AmqpClient`."""
        if not self.is_quiet and self.draw.random() < STAYS_AWAY:
            return self.draw.uniform(0.0, 2 * self.session.timeout_s)
        return super().away_s()

    def ended(self, talk: Talk) -> None:
        for part in self._parts.values():
            part.lost()

    def _tick(self) -> None:
        for talk in list(self._rivals):
            talk.tick(self.shop.now_ms())
        super()._tick()

    def stop(self) -> None:
        self.session.may_end = True
        for talk in list(self._rivals):
            talk.drop("the client dies")
        super().stop()

    # --- what it does

    def act(self, talk: Talk) -> None:
        chance = 1.0 if self.is_quiet else self.draw.random()
        if not self._is_granted:
            return
        if chance < CLOSES:
            self.note("closes")
            if not self._keeps:
                self._begin_anew()
            talk.close()
        elif chance < CLOSES + RIVALS:
            self.note("connects once more")
            self.ended(talk)
            self._rivals.append(talk)
            self.talk = None
            self._connect()
        else:
            self._act_on_links(talk)

    def _act_on_links(self, talk: Talk) -> None:
        for part in self._parts.values():
            if part.link is None:
                part.make_link(talk)
            elif part.is_attached:
                chance = 1.0 if self.is_quiet else self.draw.random()
                if chance < CLOSES_LINK:
                    self._leave(part, "close")
                elif chance < CLOSES_LINK + DETACHES:
                    self._leave(part, "detach")
                else:
                    part.act(self.draw, is_quiet=self.is_quiet)

    def _leave(self, part: SessionPart, how: str) -> None:
        self.note(f"will {how} {part.name}")
        if how == "close" and isinstance(part, HoldingConsumer):
            part.give_up(self.shop.schedule.now_s)
        link = part.link
        part.lost()
        getattr(link, how)()

    def _part_of(self, talk: Talk, link: Any) -> SessionPart | None:
        part = self._parts.get(link.name) if talk is self.talk else None
        return part if part is not None and part.link is not None and part.link == link else None

    def on_attached(self, talk: Talk, link: Any) -> None:
        part = self._part_of(talk, link)
        terminus = link.remote_target if link.is_sender else link.remote_source
        if part is not None and terminus.type != proton.Terminus.UNSPECIFIED:
            part.attached(link)

    def on_detached(self, talk: Talk, link: Any, condition: str) -> None:
        part = self._part_of(talk, link)
        if part is not None:
            self.note(f"has {part.name} ended: {condition}")
            part.told(condition)
            part.lost()
        link.free()

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        part = self._part_of(talk, delivery.link)
        if part is not None:
            part.delivery(delivery)

    def why_not_at_rest(self) -> str:
        if self._rivals:
            return f"{self.name} has {len(self._rivals)} connections more than one"
        if not self._is_granted or not all(part.is_attached for part in self._parts.values()):
            return f"{self.name} has links that are not attached, or no session"
        return next(filter(None, [part.why_not_at_rest() for part in self._parts.values()]), "")


def _told(link: Any, name: str) -> int:
    """A number in the properties of the broker's attach. Raises Violation where there is none."""
    properties = _properties_of(link)
    if name not in properties:
        raise Violation(f"the broker's attach of {link.name} has no {name}")
    return int(properties[name])


def _properties_of(link: Any) -> dict[str, Any]:
    return {str(key): value for key, value in (link.remote_properties or {}).items()}
