"""Clients of a cluster with proxies: publishers, consumers, and browsers, each with moods of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import proton

from simulation.brokers.amqp_client import AmqpClient, Shop, Talk, take_message
from simulation.brokers.ledger import Handout, Ledger, Reading, Sent
from simulation.violations import Violation

DELETED = "deleted"
"""The queue that is deleted now and then."""
BUSY = "busy"
"""The queue whose consumers take credit back while messages are on their way to them."""
REOPENS = 0.01
"""How often, each time that it acts, a client ends a link and opens it again."""
DRAINS = 0.3
"""How often, each time that it acts, one who looks drains."""
DRAINED_MOST = 100_000
"""More than there is in any queue."""
DETACHES = 0.3
"""How many of these it ends with a detach."""


class LinkClient(AmqpClient):
    """Has one link at a time, and opens it again when it has ended."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw)
        self.ledger = ledger
        self.queue = queue
        self.link: Any = None
        self.is_attached = False
        self.is_quiet = False
        """It begins nothing new: the run comes to its end."""
        self._links = 0

    def make_link(self, talk: Talk, name: str) -> Any:
        """A link that is to be opened."""
        raise NotImplementedError

    def link_ended(self) -> None:
        """By either side, or with its connection; what was not answered is not known."""

    def begin(self, talk: Talk) -> None:
        self._links += 1
        self.link, self.is_attached = self.make_link(talk, f"{self.name}-{self._links}"), False
        self.link.open()

    def on_attached(self, talk: Talk, link: Any) -> None:
        terminus = link.remote_target if link.is_sender else link.remote_source
        if self._is_mine(link) and terminus.type != proton.Terminus.UNSPECIFIED:
            self.is_attached = True

    def on_detached(self, talk: Talk, link: Any, condition: str) -> None:
        if self._is_mine(link):
            self.note(f"has its link ended: {condition}")
            self._lose_link()
            self._begin_later(talk)
        link.free()

    def _is_mine(self, link: Any) -> bool:
        """Whether it is the link that there is now; names are never used twice."""
        return self.link is not None and link.name == self.link.name

    def end_link(self, talk: Talk) -> None:
        """Of our own will."""
        link = self.link
        self.note("ends its link")
        self._lose_link()
        if self.draw.random() < DETACHES:
            link.detach()
        else:
            link.close()
        self._begin_later(talk)

    def _begin_later(self, talk: Talk) -> None:
        def begin() -> None:
            if not talk.is_over and self.talk is talk and self.link is None and not self.is_stopped:
                self.begin(talk)
                talk.flush()

        self.shop.schedule.after(self.draw.uniform(0.01, 0.3), begin)

    def ended(self, talk: Talk) -> None:
        self._lose_link()

    def _lose_link(self) -> None:
        if self.link is not None:
            self.link, self.is_attached = None, False
            self.link_ended()

    def why_not_at_rest(self) -> str:
        return "" if self.is_attached else f"{self.name} is not attached to {self.queue}"


class PublishingClient(LinkClient):
    """Sends each message once, and remembers what it was told of it."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw, ledger, queue)
        self._unanswered: dict[str, tuple[Sent, Ledger]] = {}
        self._number = 0
        self._burst = draw.choice((1, 3, 30))
        self.is_durable = False
        """All that it sends survives a power cut of all brokers."""
        self._sizes: tuple[int, ...] = shop.sizes
        self.keys = 0
        """Of a queue that has last values: so many."""

    def make_link(self, talk: Talk, name: str) -> Any:
        link = talk.session.sender(name)
        link.target.address = self.queue
        self._number = 0
        return link

    def next_queue(self) -> tuple[str, Ledger]:
        """Where the next message goes."""
        return self.queue, self.ledger

    def act(self, talk: Talk) -> None:
        if not self.is_attached or self.is_quiet:
            return
        if self.draw.random() < REOPENS:
            self.end_link(talk)
            return
        count = self.draw.randint(0, self._burst)
        while count and self.link.credit > 0 and len(self._unanswered) < 100:
            count -= 1
            self._send()

    def _send(self) -> None:
        self._number += 1
        queue, ledger = self.next_queue()
        sent = Sent(self.link.name, self._number, queue)
        text = sent.text(self.draw.choice(self._sizes))
        is_durable = self.draw.random() < 0.5 or self.is_durable
        properties = {"key": str(self._number % self.keys)} if self.keys else None
        message = proton.Message(text, durable=is_durable, address=queue, properties=properties)
        delivery = self.link.delivery(str(self._number))
        self.link.send(message.encode())
        self.link.advance()
        ledger.sends(sent, is_durable=message.durable)
        is_settled = self.draw.random() < 0.03
        self.note(f"sends {self._number}{', settled' if is_settled else ''}")
        if is_settled:
            delivery.settle()
        else:
            self._unanswered[delivery.tag] = sent, ledger

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        if not self._is_mine(delivery.link) or not delivery.updated:
            return
        found = self._unanswered.get(delivery.tag)
        state = delivery.remote_state
        if found is None or not (state or delivery.settled):
            return
        del self._unanswered[delivery.tag]
        delivery.settle()
        sent, ledger = found
        if state == proton.Delivery.ACCEPTED:
            ledger.is_accepted(sent)
        elif state in (proton.Delivery.REJECTED, proton.Delivery.RELEASED):
            ledger.is_refused(sent)
        elif sent.queue != DELETED and not ledger.may_be_deleted(sent):
            # Else it is settled without a word by a link that ends, whose queue is gone.
            raise Violation(f"{sent} was answered with {state}")

    def link_ended(self) -> None:
        self._unanswered.clear()

    def why_not_at_rest(self) -> str:
        waits = f"{self.name} was not told of {len(self._unanswered)}" if self._unanswered else ""
        return super().why_not_at_rest() or waits


class BusyClient(PublishingClient):
    """Publishes so much that its queue is never empty."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw, ledger, queue)
        self._burst = 12
        self._sizes = shop.busy_sizes
        """So that what a consumer gets at once takes the primary several turns."""


class AnonymousClient(PublishingClient):
    """Publishes to the queues of all sets by an anonymous relay."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledgers: Mapping[str, Ledger]) -> None:
        """`ledgers`: by queue."""
        queue, ledger = next(iter(ledgers.items()))
        super().__init__(shop, name, draw, ledger, queue)
        self._ledgers = ledgers

    def make_link(self, talk: Talk, name: str) -> Any:
        link = super().make_link(talk, name)
        link.target.address = None
        return link

    def next_queue(self) -> tuple[str, Ledger]:
        queue = self.draw.choice(list(self._ledgers))
        return queue, self._ledgers[queue]


class ConsumingClient(LinkClient):
    """Gives credit, takes it back, drains, and answers what it gets, sooner or later, in one way or another."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw, ledger, queue)
        self._held: dict[str, tuple[Any, Handout]] = {}
        self._answered: dict[str, Handout] = {}
        """What the broker is to settle, because the client wants to know."""
        self._reading: Reading | None = None
        self._withdrawn = 0
        self._is_draining = False
        self._most = draw.choice((1, 5, 50, 2000))
        self._answers_first = draw.random() < 0.5
        self._patience = draw.choice((0.02, 0.3, 0.9))
        self.begins_s = 0.0
        """Until then it takes nothing."""

    def make_link(self, talk: Talk, name: str) -> Any:
        link = talk.session.receiver(name)
        link.source.address = self.queue
        if self._answers_first:
            link.rcv_settle_mode = proton.Link.RCV_SECOND
        self._reading = Reading(talk.name, self.queue, self.shop.schedule.now_s)
        self._withdrawn, self._is_draining = 0, False
        return link

    def act(self, talk: Talk) -> None:
        if not self.is_attached or self.shop.schedule.now_s < self.begins_s:
            return
        draw = self.draw.random()
        if draw < REOPENS and not self.is_quiet:
            self.end_link(talk)
            return
        self._answer_some()
        self._change_credit()

    def on_attached(self, talk: Talk, link: Any) -> None:
        super().on_attached(talk, link)
        if self.is_attached and self._reading is not None:
            self._reading.attached_s = min(self._reading.attached_s, self.shop.schedule.now_s)

    def _change_credit(self) -> None:
        link, draw = self.link, self.draw.random()
        if self._is_draining or self.is_quiet or link.credit < 0:
            return
        if draw < 0.03:
            more = self.draw.randint(0, self._most)
            if link.credit + more == 0:
                return  # nothing to drain: no broker answers that
            self._is_draining = True
            self.note(f"drains {link.credit} and {more}")
            link.drain(more)
        elif draw < 0.05 and link.credit > 0:
            back = self.draw.randint(1, link.credit)
            self._withdrawn += back
            self.note(f"takes back {back} of {link.credit}")
            link.flow(-back)
        elif link.credit < self._most // 2 + 1:
            link.flow(self.draw.randint(1, self._most))

    def _answer_some(self) -> None:
        for tag in list(self._held):
            if self.is_quiet or self.draw.random() > self._patience:
                self._answer(*self._held.pop(tag))

    def _answer(self, delivery: Any, handout: Handout) -> None:
        draw = self.draw.random()
        if draw < 0.8 or self.is_quiet:
            handout.is_consumed, state = True, proton.Delivery.ACCEPTED
        elif draw < 0.83:
            handout.is_consumed = handout.is_rejected = True
            state = proton.Delivery.REJECTED
        elif draw < 0.93:
            handout.is_returned, state = True, proton.Delivery.RELEASED
        elif draw < 0.97:
            handout.is_returned, state = True, proton.Delivery.MODIFIED
            delivery.local.failed = self.draw.random() < 0.5
        else:
            handout.is_returned, state = True, proton.Delivery.MODIFIED
            delivery.local.undeliverable = True
        delivery.update(state)
        if self._answers_first:
            self._answered[delivery.tag] = handout
        else:
            delivery.settle()

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        link = self.link
        if not self._is_mine(delivery.link):
            return
        tag = delivery.tag
        if tag in self._answered and delivery.settled:
            self._answered.pop(tag).is_confirmed = True
            delivery.settle()
            return
        while (taken := take_message(link, self.name, self._withdrawn)) is not None:
            self._receive(*taken)
        self._look_whether_drained(link)

    def _receive(self, delivery: Any, message: proton.Message) -> None:
        sent, is_marked = Sent.read(str(message.body)), not message.first_acquirer
        self.note(f"gets {sent.publisher} {sent.number}{' again' if is_marked else ''}")
        if self._reading is not None:
            self._held[delivery.tag] = delivery, self.ledger.hands_out(sent, self._reading, is_marked)

    def on_flow(self, talk: Talk, link: Any) -> None:
        if self._is_mine(link):
            if self._is_draining and link.credit <= 0:
                self._withdrawn = 0  # the broker knows of all credit that was taken back
            self._look_whether_drained(link)

    def _look_whether_drained(self, link: Any) -> None:
        """Messages may have used up the credit: then no flow says so, and more may come for what was taken back."""
        if self._is_draining and link.credit <= 0:
            link.drained()
            link.drain_mode = False
            self._is_draining = False
            self.note("has drained")

    def link_ended(self) -> None:
        if self._reading is not None:
            self._reading.has_ended = True
        self._held.clear()
        self._answered.clear()

    def why_not_at_rest(self) -> str:
        drains = f"{self.name} waits for the end of its drain" if self._is_draining else ""
        waits = f"{self.name} waits for {len(self._answered)} to be settled" if self._answered else ""
        holds = f"{self.name} holds {len(self._held)}" if self._held else ""
        return super().why_not_at_rest() or drains or waits or holds


class ShrinkingClient(ConsumingClient):
    """Gives twice the credit that it wants, takes half of it back, and gives more: all in a moment."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw, ledger, queue)
        self._most = 8

    def _change_credit(self) -> None:
        link, talk = self.link, self.talk
        if self.is_quiet or self._is_draining or talk is None or link.credit > 0 or self.draw.random() < 0.5:
            return
        count = self.draw.randint(2, self._most)
        link.flow(2 * count)

        def change(by: int) -> None:
            if not (talk.is_over or self._is_draining or talk.is_asleep) and self._is_mine(link):
                more = by if by > 0 else -min(-by, max(link.credit, 0))
                self._withdrawn += max(-more, 0)
                link.flow(more)
                talk.flush()

        delay_s = self.draw.uniform(0.0, 2.0) * self.shop.streams.delay_s
        self.shop.schedule.after(delay_s, lambda: change(-count))
        for _ in range(3):
            delay_s += self.draw.uniform(0.0, 2.0) * self.shop.streams.delay_s
            self.shop.schedule.after(delay_s, lambda: change(self.draw.randint(1, 4)))


class BrowsingClient(LinkClient):
    """Looks, and takes nothing: what it sees is in the order of the queue, and what a drain brings is all there is."""

    drains = False
    """Now and then. Not where it may have few messages unsettled: then a drain is answered as soon as it has those."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw, ledger, queue)
        self._latest: dict[str, int] = {}
        self._seen: set[Sent] = set()
        """On this link."""
        self._wanted: set[Sent] | None = None
        """While it drains: what was accepted before that, and nobody has got; None: it does not."""
        self._own_draw = random.Random(f"{draw.getstate()[1][:3]}/drains")

    def make_link(self, talk: Talk, name: str) -> Any:
        link = talk.session.receiver(name)
        link.source.address = self.queue
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        self._latest, self._seen, self._wanted = {}, set(), None
        return link

    def act(self, talk: Talk) -> None:
        if self.is_attached and not self.is_quiet and self._wanted is None:
            if self.draw.random() < REOPENS:
                self.end_link(talk)
            elif self.drains and self._own_draw.random() < DRAINS:
                self._wanted = self.ledger.untouched(self.queue)
                self.note("drains")
                self.link.drain(DRAINED_MOST)
            elif self.link.credit < 5:
                self.link.flow(self.draw.randint(1, 50))

    def on_flow(self, talk: Talk, link: Any) -> None:
        if self._is_mine(link):
            self._look_whether_drained(link)

    def _look_whether_drained(self, link: Any) -> None:
        wanted = self._wanted
        if wanted is None or link.credit > 0:
            return
        link.drained()
        link.drain_mode = False
        self._wanted = None
        if self.talk is not None:
            self.ledger.check_drained(wanted, self._seen, self.queue, self.talk.name)

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        link = self.link
        if not self._is_mine(delivery.link):
            return
        while (taken := take_message(link, self.name)) is not None:
            current, message = taken
            current.settle()
            sent = Sent.read(str(message.body))
            if sent.number <= self._latest.get(sent.publisher, 0):
                raise Violation(f"{self.name} sees {sent} behind {self._latest[sent.publisher]}")
            self._latest[sent.publisher] = sent.number
            self._seen.add(sent)
        self._look_whether_drained(link)
