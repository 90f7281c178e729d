"""Clients of a cluster with proxies that work in transactions, and whether each counts as a whole or not at all.

What a client was told of a discharge is in the ledger: a commit that was accepted is kept, of one that was rejected, or
rolled back, nothing is ever seen. Of a commit whose answer was never heard, nobody knows: all of it counts, or nothing.
"""

from __future__ import annotations

import random
from typing import Any

import proton

from simulation.brokers.amqp_client import AmqpClient, Shop, Talk, take_message
from simulation.brokers.ledger import Handout, Ledger, Reading, Sent
from simulation.violations import Violation

DECLARED, TRANSACTIONAL = 0x33, 0x34
ACCEPTED = proton.Described(proton.ulong(0x24), [])
CREDIT = 3
ROLLBACKS = 0.25
RELEASES = 0.2


class Work:
    """One transaction of a client."""

    def __init__(self) -> None:
        self.id: bytes | None = None
        """As the broker calls it; None: it has not answered."""
        self.published: list[Sent] = []
        self.consumed: list[tuple[Any, Handout]] = []
        """Deliveries that were accepted in it, and what they are."""
        self.is_discharged = False
        """The discharge was sent."""
        self.fails = False
        """It is a rollback."""
        self.refused: list[Sent] = []
        """Of `published` before."""


class TransactingClient(AmqpClient):
    """Takes messages from one queue and publishes to another one of the same set; connects anew when any link ends."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queues: tuple[str, str]) -> None:
        """`queues`: where it takes from, and where it publishes to."""
        super().__init__(shop, name, draw)
        self.is_quiet = False
        self.is_hurried = False
        """It discharges at once, before it has heard what became of its messages."""
        self.unknown: list[Work] = []
        """Commits of which nobody has heard what became of them."""
        self.committed = 0
        self._ledger = ledger
        self._source, self._target = queues
        self._attached: set[str] = set()
        self._work: Work | None = None
        self._asked: dict[str, Work] = {}
        """What the coordinator has not answered, by tag."""
        self._unanswered: dict[str, Sent] = {}
        self._held: dict[str, tuple[Any, Handout]] = {}
        self._answered: dict[str, Handout] = {}
        """What the broker is to settle."""
        self._reading: Reading | None = None
        self._number = self._tags = self._links = 0

    def begin(self, talk: Talk) -> None:
        self._links += 1
        self._number = 0
        self._attached.clear()
        session = talk.session
        self._coordinator = session.sender(f"{self.name}-coordinator-{self._links}")
        self._coordinator.target.type = proton.Terminus.COORDINATOR
        self._out = session.sender(f"{self.name}-{self._links}")
        self._out.target.address = self._target
        self._in = session.receiver(f"{self.name}-in-{self._links}")
        self._in.source.address = self._source
        self._in.rcv_settle_mode = proton.Link.RCV_SECOND
        self._reading = Reading(talk.name, self._source, self.shop.schedule.now_s)
        for link in (self._coordinator, self._out, self._in):
            link.open()

    def on_attached(self, talk: Talk, link: Any) -> None:
        terminus = link.remote_target if link.is_sender else link.remote_source
        if terminus.type != proton.Terminus.UNSPECIFIED:
            self._attached.add(link.name)

    def on_detached(self, talk: Talk, link: Any, condition: str) -> None:
        self.note(f"has {link.name} ended: {condition}")
        talk.drop("a link has ended")

    # --- what it does

    def act(self, talk: Talk) -> None:
        if len(self._attached) < 3:
            return
        work = self._work
        if work is None and self.is_quiet:
            self._release_held()
        elif work is None:
            if self._in.credit < CREDIT:
                self._in.flow(CREDIT)
            self._work = self._ask(Work(), "declare", None)
            self.note("declares")
        elif work.id is not None and not work.is_discharged:
            self._go_on(work, work.id)

    def _go_on(self, work: Work, transaction_id: bytes) -> None:
        if self.draw.random() < 0.5 and not self.is_quiet:
            if self._out.credit > 0:
                self._publish(work, transaction_id)
            for tag in list(self._held)[: self.draw.randint(0, 2)]:
                delivery, handout = self._held.pop(tag)
                self.note(f"accepts {handout.sent.publisher} {handout.sent.number}")
                delivery.local.data = [transaction_id, ACCEPTED]
                delivery.update(TRANSACTIONAL)
                work.consumed.append((delivery, handout))
            if self.is_hurried:
                self._discharge(work, transaction_id)
        elif self.draw.random() < 0.5:
            self._discharge(work, transaction_id)

    def _discharge(self, work: Work, transaction_id: bytes) -> None:
        work.is_discharged, work.fails = True, self.draw.random() < ROLLBACKS
        self.note("rolls back" if work.fails else "commits")
        self._ask(work, "discharge", transaction_id, work.fails)

    def _ask(self, work: Work, what: str, *fields: Any) -> Work:
        body = proton.Described(proton.symbol(f"amqp:{what}:list"), list(fields))
        delivery = self._send(self._coordinator, proton.Message(body=body))
        self._asked[delivery.tag] = work
        return work

    def _publish(self, work: Work, transaction_id: bytes) -> None:
        self._number += 1
        sent = Sent(self._out.name, self._number, self._target)
        self._ledger.sends(sent, is_durable=True)
        self.note(f"publishes {sent.number}")
        delivery = self._send(self._out, proton.Message(sent.text(), durable=True))
        delivery.local.data = [transaction_id]
        delivery.update(TRANSACTIONAL)
        self._unanswered[delivery.tag] = sent
        work.published.append(sent)

    def _send(self, link: Any, message: proton.Message) -> Any:
        self._tags += 1
        delivery = link.delivery(f"t{self._tags}")
        link.send(message.encode())
        link.advance()
        return delivery

    def _release_held(self) -> None:
        for delivery, handout in self._held.values():
            self._release(delivery, handout)
        self._held.clear()

    def _release(self, delivery: Any, handout: Handout) -> None:
        handout.is_returned = True
        delivery.update(proton.Delivery.RELEASED)
        delivery.settle()

    # --- what it hears

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        name = delivery.link.name
        if name == self._in.name:
            self._hear_of_message(delivery)
        elif delivery.updated and (delivery.remote_state or delivery.settled):
            if name == self._out.name:
                self._hear_of_published(delivery)
            elif delivery.tag in self._asked:
                self._hear_of_work(self._asked.pop(delivery.tag), delivery)

    def _hear_of_message(self, delivery: Any) -> None:
        if delivery.tag in self._answered:
            if delivery.settled:
                self._answered.pop(delivery.tag).is_confirmed = True
                delivery.settle()
            return
        while (taken := take_message(self._in, self.name)) is not None:
            current, message = taken
            sent, is_marked = Sent.read(str(message.body)), not message.first_acquirer
            self.note(f"gets {sent.publisher} {sent.number}{' again' if is_marked else ''}")
            if self._reading is not None:
                handout = self._ledger.hands_out(sent, self._reading, is_marked)
                if self.draw.random() < RELEASES:
                    self._release(current, handout)
                else:
                    self._held[current.tag] = current, handout

    def _hear_of_published(self, delivery: Any) -> None:
        sent = self._unanswered.pop(delivery.tag, None)
        if sent is None:
            return
        # Refused, or released as it came when its link had ended: the transaction is rolled back.
        if delivery.remote_state in (proton.Delivery.REJECTED, proton.Delivery.RELEASED):
            self._ledger.is_refused(sent)
            work = self._work
            if work is not None and sent in work.published:
                work.published = [each for each in work.published if each != sent]
                work.refused.append(sent)
        elif delivery.remote_state != TRANSACTIONAL:
            raise Violation(f"{sent} was answered with {delivery.remote_state} in a transaction")
        delivery.settle()

    def _hear_of_work(self, work: Work, delivery: Any) -> None:
        state = delivery.remote_state
        if state == DECLARED:
            work.id = bytes(delivery.remote.data[0])
        elif not work.is_discharged:
            raise Violation(f"{self.name} was answered with {state} when it declared")
        elif state == proton.Delivery.ACCEPTED and not work.fails:
            self._committed(work)
        elif state in (proton.Delivery.ACCEPTED, proton.Delivery.REJECTED):
            self._rolled_back(work)
            for each, handout in work.consumed:
                self._release(each, handout)
        else:
            raise Violation(f"{self.name} was answered with {state} when it discharged")
        delivery.settle()

    def _committed(self, work: Work) -> None:
        if work.refused:
            raise Violation(f"{self.name} has committed, and of the same transaction {work.refused} were refused")
        self.note("has committed")
        self.committed += 1
        self._work = None
        for sent in work.published:
            self._ledger.is_accepted(sent)
        for delivery, handout in work.consumed:
            handout.is_consumed = True
            if delivery.settled:
                handout.is_confirmed = True
                delivery.settle()
            else:
                self._answered[delivery.tag] = handout

    def _rolled_back(self, work: Work) -> None:
        self.note("has rolled back")
        self._work = None
        for sent in work.published:
            self._ledger.is_refused(sent)
        self._unanswered = {tag: sent for tag, sent in self._unanswered.items() if sent not in work.published}

    def ended(self, talk: Talk) -> None:
        work, self._work = self._work, None
        if work is not None and work.is_discharged and not work.fails:
            self.note("does not know whether it has committed")
            self.unknown.append(work)
            for _, handout in work.consumed:
                handout.is_consumed = True  # perhaps
        elif work is not None:
            self._rolled_back(work)
        if self._reading is not None:
            self._reading.has_ended = True
        for pending in (self._attached, self._asked, self._unanswered, self._held, self._answered):
            pending.clear()

    def why_not_at_rest(self) -> str:
        if len(self._attached) < 3:
            return f"{self.name} has {len(self._attached)} links of 3"
        work = f"{self.name} has a transaction that is not over" if self._work is not None else ""
        waits = f"{self.name} waits for {len(self._answered)} to be settled" if self._answered else ""
        holds = f"{self.name} holds {len(self._held)}" if self._held else ""
        return work or waits or holds

    # --- at rest

    def check_unknown(self, left: set[Sent]) -> None:
        """`left`: what is in the queues when all clients have gone. Raises Violation for half a transaction."""
        for work in self.unknown:
            counts = {self._counts(sent, left) for sent in work.published}
            if len(counts) > 1:
                raise Violation(f"{self.name}: of a transaction only a part counts: {work.published}")
            for _, handout in work.consumed:
                is_back = handout.sent in left or self._ledger.was_consumed(handout.sent, but=handout)
                if True in counts and handout.sent in left:
                    raise Violation(f"{self.name} has committed {work.published}, and {handout.sent} is there still")
                if False in counts and not is_back:
                    raise Violation(f"{self.name} has not committed {work.published}, and {handout.sent} is gone")

    def _counts(self, sent: Sent, left: set[Sent]) -> bool:
        """Whether it was committed: nobody gets what is not."""
        return sent in left or self._ledger.was_consumed(sent)
