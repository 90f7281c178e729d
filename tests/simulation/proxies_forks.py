"""An exchange that leads to queues of all sets, and who publishes to it: handed on to each set's primary, once each.

Checked, with a ledger of each queue: what its publisher was told is accepted is in every queue, once, in the order in
which it was sent, whoever led what meanwhile. Of what was refused, or not answered, a set may have it and another not.
Some publishers number their messages, and send again what they have no answer for; others leave that to their proxy,
or to nobody.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import proton

from qpid_ha_broker.model.logs.log import DEFAULT_SET
from simulation.amqp_client import Shop, Talk
from simulation.brokers_node import BrokerNode
from simulation.proxies_clients import ConsumingClient, LinkClient, PublishingClient
from simulation.proxies_ledger import Ledger, Sent
from simulation.proxies_plan import ProxiesPlan
from simulation.proxies_sessions import PRODUCER, SEQUENCE
from simulation.proxies_sets import DefaultSet, PlacedSet
from simulation.proxies_subscriptions import ExchangeLedger
from simulation.proxies_watch import queued

FORKS: Final = "forks"
"""The exchange, and what its messages call the queue that they are for."""
MOST_UNANSWERED: Final = 60


def fork_of(number: int) -> str:
    """The queue of the set of that number; 0: of `default`."""
    return f"{FORKS}_{number}"


class ForkLedger(ExchangeLedger):
    """Of a message that is refused each set knows for itself whether it has it."""

    def is_refused(self, sent: Sent) -> None:
        Ledger.is_refused(self, sent)


class ForkPublisher(PublishingClient):
    """Publishes to the exchange, each message once."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw, ledger, queue)
        self._burst = draw.choice((1, 3, 8))

    def next_queue(self) -> tuple[str, Ledger]:
        return FORKS, self.ledger


class NumberedForkPublisher(LinkClient):
    """Numbers its messages, and sends again what it has no answer for, in order, before anything new."""

    def __init__(self, shop: Shop, name: str, draw: random.Random, ledger: Ledger, queue: str) -> None:
        super().__init__(shop, name, draw, ledger, queue)
        self._number = 0
        self._unanswered: dict[int, Sent] = {}
        self._due: list[int] = []
        self._burst = draw.choice((1, 3, 8))

    def make_link(self, talk: Talk, name: str) -> Any:
        link = talk.session.sender(name)
        link.target.address = FORKS
        self._due = list(self._unanswered)
        return link

    def act(self, talk: Talk) -> None:
        if not self.is_attached:
            return
        while self._due and self.link.credit > 0:
            self._send(self._unanswered[self._due.pop(0)])
        for _ in range(0 if self.is_quiet or self._due else self.draw.randint(0, self._burst)):
            if self.link.credit > 0 and len(self._unanswered) < MOST_UNANSWERED:
                self._number += 1
                sent = self._unanswered[self._number] = Sent(f"{self.name}-0", self._number, FORKS)
                self.ledger.sends(sent)
                self._send(sent)

    def _send(self, sent: Sent) -> None:
        self.note(f"sends {sent.number}")
        message = proton.Message(sent.text(), durable=True)
        message.annotations = {
            proton.symbol(PRODUCER): self.name,
            proton.symbol(SEQUENCE): proton.ulong(sent.number),
        }
        self.link.delivery(str(sent.number))
        self.link.send(message.encode())
        self.link.advance()

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        state = delivery.remote_state
        if not self._is_mine(delivery.link) or not delivery.updated or not (state or delivery.settled):
            return
        sent = self._unanswered.pop(int(delivery.tag), None)
        delivery.settle()
        if sent is not None and state == proton.Delivery.ACCEPTED:
            self.note(f"hears of {sent.number} that it is accepted")
            self.ledger.is_accepted(sent)
        elif sent is not None:
            self.note(f"hears of {sent.number}: {state}")
            self.ledger.is_refused(sent)

    def why_not_at_rest(self) -> str:
        waits = f"{self.name} was not told of {len(self._unanswered)}" if self._unanswered else ""
        return super().why_not_at_rest() or waits


class Forks:
    """The exchange of a run, with its queues and who uses them; nothing, where nobody does."""

    def __init__(self, shop: Shop, default: DefaultSet, sets: Sequence[PlacedSet], plan: ProxiesPlan) -> None:
        self._shop = shop
        self._plan = plan
        self.ledger = ForkLedger(lambda: shop.schedule.now_s, default.watch)
        self._queues: dict[str, PlacedSet] = {}
        if not plan.forking:
            return
        for number, placed in enumerate(sets):
            queue = fork_of(number)
            self._queues[queue] = placed
            copies = Ledger(lambda: shop.schedule.now_s, placed.watch)
            self.ledger.copies[queue] = placed.watch.ledgers_of[queue] = copies
            placed.bound[queue] = {}
        default.also_declares.append(self._declare_exchange)

    @property
    def handed_out(self) -> int:
        """Copies that somebody got."""
        return sum(ledger.handed_out for ledger in self.ledger.copies.values())

    def _declare_exchange(self, node: BrokerNode) -> None:
        """With its bindings, once all its queues are there."""
        catalog = node.resources.catalog
        if FORKS in catalog.exchanges or not self._queues.keys() <= {*catalog.queues, *catalog.map.queues}:
            return
        node.configuration.declare_exchange(FORKS, "fanout", {})
        for queue in self._queues:
            node.configuration.bind(FORKS, queue, "", {})

    def make_clients(self, draw: Callable[[str], random.Random]) -> list[LinkClient]:
        """Publishers of both kinds, and a consumer for some of the queues."""
        kinds = draw("forks")
        clients: list[LinkClient] = []
        for number in range(self._plan.forking):
            name = f"f{number}"
            kind = kinds.choice((ForkPublisher, NumberedForkPublisher))
            clients.append(kind(self._shop, name, draw(name), self.ledger, FORKS))
        for number, (queue, ledger) in enumerate(self.ledger.copies.items()):
            if kinds.random() < 0.3:
                name = f"g{number}"
                clients.append(ConsumingClient(self._shop, name, draw(name), ledger, queue))
        return clients

    def why_not_at_rest(self) -> str:
        """What brokers do not have yet; empty: nothing."""
        for queue, placed in self._queues.items():
            for node in [node for node in placed.nodes if node.is_up]:
                if queue not in node.resources.catalog.queues:
                    return f"{node.name} has no {queue}"
                if placed.name == DEFAULT_SET and FORKS not in node.resources.catalog.exchanges:
                    return f"{node.name} has no {FORKS}"
        return ""

    def check_rest(self) -> None:
        """All clients have gone. Raises Violation."""
        for queue, placed in self._queues.items():
            primary = placed.primary
            if primary is not None:
                self.ledger.copies[queue].check_rest({FORKS: queued(primary)[queue]})
