"""Subscribers of an exchange: they detach, are cut off, come back at any broker under their names, and unsubscribe.

Checked, with a ledger of each queue that gets copies: once its attach was answered, a durable subscription gets all
that is accepted until it is closed, whoever leads and wherever its subscriber is meanwhile, in order, and nothing a
second time without a mark. One that was closed is gone. Who has one under a name gets no shared one under that name. A
queue that is bound to the exchange is what several consume from.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import proton

from simulation.brokers.amqp_client import Shop, Talk
from simulation.brokers.clients import ConsumingClient, LinkClient, PublishingClient
from simulation.brokers.ledger import Custodian, Ledger, Reading, Sent
from simulation.brokers.placed_sets import DefaultSet
from simulation.brokers.plan import BrokersPlan
from simulation.brokers.watch import queued
from simulation.machines.node import BrokerNode
from simulation.violations import Violation

PUBLISHED = "news"
"""What messages to the exchange call the queue that they are for."""
SHARED_QUEUE = "shared"
SHARED_CONSUMERS = 2
ADDRESSES = ("amq.fanout", "amq.topic/news.today")
LEAVES = 0.04
"""How often, each time that it acts, a subscriber ends its link."""
CLOSES = 0.25
"""How many of these it closes, which ends the subscription."""
ENDS_WITHOUT_SOURCE = 0.15
"""How often a subscriber that comes back only wants to end its subscription, as JMS does."""
ASKS_TO_SHARE = 0.05


class ExchangeLedger(Ledger):
    """What was published to an exchange, and what became of each copy."""

    def __init__(self, now_s: Callable[[], float], custodian: Custodian) -> None:
        super().__init__(now_s, custodian)
        self.copies: dict[str, Ledger] = {}
        """By queue."""

    def of_queue(self, queue: str) -> Ledger:
        """Of the copies that `queue` gets, to which no message was sent before."""
        return self.copies.setdefault(queue, Ledger(self._now_s, self._custodian))

    def sends(self, sent: Sent, *, is_durable: bool = False) -> None:
        super().sends(sent, is_durable=is_durable)
        for ledger in self.copies.values():
            ledger.sends(sent, is_durable=is_durable)

    def is_accepted(self, sent: Sent) -> None:
        super().is_accepted(sent)
        for ledger in self.copies.values():
            ledger.is_accepted(sent)

    def is_refused(self, sent: Sent) -> None:
        super().is_refused(sent)
        for ledger in self.copies.values():
            ledger.is_refused(sent)


class ExchangePublisher(PublishingClient):
    """Publishes to the exchange."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, address: str) -> None:
        super().__init__(shop, name, draw, ledger, address)
        self._burst = draw.choice((1, 3))

    def next_queue(self) -> tuple[str, Ledger]:
        return PUBLISHED, self.ledger


class DurableSubscriber(ConsumingClient):
    """Has a durable subscription, under its own container id and one name of a link, or none for a while."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: ExchangeLedger, address: str) -> None:
        self.queue_name = f"subscription:{name}:{PUBLISHED}"
        super().__init__(shop, name, draw, ledger.of_queue(self.queue_name), address)
        self.is_subscribed = False
        """An attach was answered, and no link closed since: whatever is accepted now is to come."""
        self.has_no_faults = False
        """Nothing goes wrong in the run: what was closed is gone at once."""
        self._ends_at_rest = draw.random() < 0.5
        self._closed_s = 0.0
        """When it unsubscribed last."""
        self._closing: Any = None
        """A link that was closed, which the broker has not answered."""
        self._has_no_answer = False
        """The connection was lost before it was: nobody has heard that the subscription is to end, maybe."""
        self._only_ends = self._asks_to_share = False
        """What its link is there for, other than messages."""

    def container_id(self) -> str:
        return self.name

    def begin(self, talk: Talk) -> None:
        if self._closing is None and not (self._has_left and self.is_quiet):
            self.link, self.is_attached = self.make_link(talk, PUBLISHED), False
            self.link.open()

    def make_link(self, talk: Talk, name: str) -> Any:
        link, chance = super().make_link(talk, name), 1.0 if self.is_quiet else self.draw.random()
        self._only_ends = self.is_subscribed and chance < ENDS_WITHOUT_SOURCE
        self._asks_to_share = self.is_subscribed and ENDS_WITHOUT_SOURCE <= chance < ENDS_WITHOUT_SOURCE + ASKS_TO_SHARE
        self._reading = Reading(self.name, self.queue_name, self.shop.schedule.now_s)
        if self._only_ends:
            self.note("asks for its subscription without a source")
            link.source.type, link.source.address = proton.Terminus.UNSPECIFIED, None
            return link
        link.source.durability = proton.Terminus.DELIVERIES
        link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
        if self._asks_to_share:
            link.source.capabilities.put_object(proton.symbol("shared"))
        return link

    def _is_mine(self, link: Any) -> bool:
        return self.link is not None and link == self.link

    def on_attached(self, talk: Talk, link: Any) -> None:
        super().on_attached(talk, link)
        if not (self._is_mine(link) and self.is_attached):
            return
        if self._asks_to_share:
            raise Violation(f"{self.name} asked for a shared subscription under the name of its own, and has one")
        if not self.is_subscribed:
            self.note("has subscribed")
            self._has_no_answer = False
            self.is_subscribed = True
            self.ledger.queue_deleted(PUBLISHED)

    def on_detached(self, talk: Talk, link: Any, condition: str) -> None:
        if self._is_mine(link):
            if self.is_subscribed and condition in ("amqp:not-found", "amqp:resource-deleted"):
                raise Violation(f"{self.name} is told {condition} of its subscription, which it has not ended")
        elif self._closing is not None and link == self._closing:
            self.note("hears that its subscription has ended")
            self._closing = None
            self._begin_later(talk)
        super().on_detached(talk, link, condition)

    def act(self, talk: Talk) -> None:
        if not self.is_attached:
            return
        if self._only_ends or (self.is_quiet and self._ends_at_rest):
            self._leave(talk, closes=True)
        elif not self.is_quiet and self.draw.random() < LEAVES:
            self._leave(talk, closes=self.draw.random() < CLOSES)
        else:
            super().act(talk)

    def end_link(self, talk: Talk) -> None:
        self._leave(talk, closes=False)

    def _leave(self, talk: Talk, *, closes: bool) -> None:
        link = self.link
        self.note("unsubscribes" if closes else "detaches")
        self._lose_link()
        if closes:
            self.is_subscribed, self._closing = False, link
            self._closed_s = self.shop.schedule.now_s
            link.close()
        else:
            link.detach()
            self._begin_later(talk)

    def _receive(self, delivery: Any, message: proton.Message) -> None:
        sent = Sent.read(str(message.body))
        accepted_s = self.ledger.accepted.get(sent)
        if self.has_no_faults and accepted_s is not None and accepted_s < self._closed_s:
            raise Violation(f"{sent} came to {self.name}, which has unsubscribed since it was accepted")
        super()._receive(delivery, message)

    def ended(self, talk: Talk) -> None:
        self._has_no_answer, self._closing = self._has_no_answer or self._closing is not None, None
        super().ended(talk)

    @property
    def _has_left(self) -> bool:
        """It has unsubscribed for good."""
        return self._ends_at_rest and not self.is_subscribed and not self._has_no_answer

    def why_not_at_rest(self) -> str:
        if self._ends_at_rest:
            has_left = self._has_left and self._closing is None and self.link is None
            return "" if has_left else f"{self.name} has not unsubscribed"
        return super().why_not_at_rest()


class SubscribedExchange:
    """The exchange of a run, with those who publish to it and subscribe; nothing, where nobody does."""

    def __init__(self, shop: Shop, default: DefaultSet, draw: random.Random, plan: BrokersPlan) -> None:
        self._shop = shop
        self._default = default
        self._address = draw.choice(ADDRESSES)
        self._plan = plan
        self._was_declared = False
        self.ledger = ExchangeLedger(lambda: shop.schedule.now_s, default.watch)
        self._subscribers: list[DurableSubscriber] = []
        if plan.subscribers:
            self._shared = self.ledger.of_queue(SHARED_QUEUE)
            default.also_declares.append(self._declare)

    @property
    def handed_out(self) -> int:
        """Messages that those who subscribe, or share a queue, got."""
        return sum(ledger.handed_out for ledger in self.ledger.copies.values())

    def _declare(self, node: BrokerNode) -> None:
        """The queue that several consume from."""
        if SHARED_QUEUE in node.resources.catalog.queues:
            return
        if self._was_declared:
            self._shared.queue_deleted(PUBLISHED)
        exchange, _, key = self._address.partition("/")
        node.configuration.declare_queue(SHARED_QUEUE, {})
        node.configuration.bind(exchange, SHARED_QUEUE, key, {})
        self._was_declared = True

    def make_clients(self, draw: Callable[[str], random.Random]) -> list[LinkClient]:
        """A publisher, subscribers, and those who share a queue."""
        if not self._plan.subscribers:
            return []
        shop, ledger, address = self._shop, self.ledger, self._address
        for number in range(self._plan.subscribers):
            client = DurableSubscriber(shop, f"u{number}", draw(f"u{number}"), ledger, address)
            client.has_no_faults = not self._plan.has_faults
            self._subscribers.append(client)
        sharing = [
            ConsumingClient(shop, f"v{number}", draw(f"v{number}"), self._shared, SHARED_QUEUE)
            for number in range(SHARED_CONSUMERS)
        ]
        self._default.watch.ledgers_of = dict(ledger.copies)
        return [ExchangePublisher(shop, "x0", draw("x0"), ledger, address), *self._subscribers, *sharing]

    def why_somebody_is_there(self) -> str:
        """A subscription that was closed, at any broker; empty: there is none."""
        for client in self._subscribers:
            for node in [] if client.is_subscribed else self._default.brokers:
                if client.queue_name in node.resources.catalog.queues:
                    return f"{node.name} still has {client.queue_name}, which was closed"
        return ""

    def check_rest(self) -> None:
        """All clients have gone. Raises Violation."""
        primary = self._default.primary
        if primary is None or not self._plan.subscribers:
            return
        left = queued(primary)
        self._shared.check_rest({PUBLISHED: left[SHARED_QUEUE]})
        for client in self._subscribers:
            if client.is_subscribed:
                if client.queue_name not in left:
                    raise Violation(f"{client.queue_name} is gone, and nobody has ended it")
                client.ledger.check_rest({PUBLISHED: left[client.queue_name]})
