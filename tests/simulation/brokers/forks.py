"""An exchange that leads to queues of all sets, and who publishes to it: handed on to each set's primary, once each.

Checked, with a ledger of each queue: what its publisher was told is accepted is in every queue, once, in the order in
which it was sent, whoever led what meanwhile. Of what was refused, or not answered, a set may have it and another not.
Some publishers number their messages, and send again what they have no answer for; others leave that to their proxy,
or to nobody.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from qpid_ha_broker.model.logs.log import DEFAULT_SET
from simulation.brokers.amqp_client import Shop
from simulation.brokers.clients import ConsumingClient, LinkClient, PublishingClient
from simulation.brokers.ledger import Ledger, Sent
from simulation.brokers.numbering import NumberingPublisher
from simulation.brokers.placed_sets import DefaultSet, PlacedSet
from simulation.brokers.plan import BrokersPlan
from simulation.brokers.subscriptions import ExchangeLedger
from simulation.brokers.watch import queued
from simulation.machines.node import BrokerNode

FORKS: Final = "forks"
"""The exchange, and what its messages call the queue that they are for."""


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


class Forks:
    """The exchange of a run, with its queues and who uses them; nothing, where nobody does."""

    def __init__(self, shop: Shop, default: DefaultSet, sets: Sequence[PlacedSet], plan: BrokersPlan) -> None:
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
            kind = kinds.choice((ForkPublisher, NumberingPublisher))
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
