"""Brokers that take clients, and those that lead `default` one after the other, joined in memory, with one clock.

What goes wrong here: connections between brokers break, or are silent until somebody notices; a primary is replaced,
dead or alive; a broker is killed with its clients. Clients ask to be the only one with their container id.
"""

from __future__ import annotations

from typing import Any

import proton

from paired_engines import START_MS, PairedBroker, PairedClient
from paired_proxy import SILENCE_S, PairedProxy
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.sole_connection import ENFORCEMENT_POLICY
from qpid_ha_broker.amqp.wire.conditions import ESTABLISHMENT_FAILED, SOLE_CONNECTION
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.lead_proof import LeadProof

TICK_MS = 250
_ROUNDS = 4


class ReservingProxy(PairedProxy):
    """A broker whose connection to the primary may be silent, until one of both notices."""

    def __init__(self, name: str, primary: PairedBroker, now_ms: int) -> None:
        self.is_silent = False
        """Nothing that was said on the connection arrives."""
        proxy = PairedBroker(ContainerSettings(name, "0", reserves_container_ids=True))
        proxy.container.now_ms = now_ms
        super().__init__(primary=primary, proxy=proxy)
        self.name = name
        self.silence_clock = lambda: proxy.container.now_ms / 1000
        self.reach(primary)

    def _exchange(self) -> bool:
        return not self.is_silent and super()._exchange()

    def notices(self) -> None:
        """This broker gives the connection up."""
        upstream, self.upstream = self.upstream, None
        if upstream is not None:
            upstream.lost("silent")
            upstream.engine.close()
        self.settle_down()

    def primary_notices(self) -> None:
        """The primary does."""
        accepted, self.accepted = self.accepted, None
        if accepted is not None:
            self.is_silent = True
            accepted.lost()
            self.primary.settle_down()

    def reach(self, primary: PairedBroker) -> None:
        """Have a connection to whoever leads now."""
        self.primary_notices()
        self.notices()
        self.primary, self.is_silent = primary, False
        self.connect_upstream()


class ReservingCluster:
    """Some of those, and who leads."""

    def __init__(self, count: int = 2) -> None:
        self.now_ms = START_MS
        self.primary = self._new_primary()
        self.old: list[PairedBroker] = []
        self.proxies = [ReservingProxy(f"node{number}", self.primary, self.now_ms) for number in range(count)]
        self.clients: list[PairedClient] = []

    def _new_primary(self) -> PairedBroker:
        primary = PairedBroker(ContainerSettings("leads", "0"))
        primary.container.now_ms = self.now_ms
        return primary

    # --- clients

    def connect(self, at: int, container: str = "shop", *, asks: bool = True, closes: bool = False) -> PairedClient:
        """A client of the broker with that number, whose open is answered as soon as that may be."""
        properties: dict[Any, Any] | None = {proton.symbol(ENFORCEMENT_POLICY): proton.uint(1)} if closes else None
        desired = (SOLE_CONNECTION,) if asks else ()
        client = PairedClient(self.proxies[at].proxy, properties, desired, container=container)
        self.clients.append(client)
        self.settle_down()
        return client

    def told(self) -> list[PairedClient]:
        """Those who live, and were told to be the only one."""
        return [client for client in self.clients if is_told(client) and not client.peer.has_ended]

    # --- what goes wrong

    def replace_primary(self, *, doubts_ms: int = 0) -> None:
        """Another broker begins to lead, which reaches nobody yet; `doubts_ms`: the one before has known for so long
        that it may not lead any more. It is not told."""
        self.primary.container.default.prove_lead = lambda: LeadProof.MISSING
        self.advance(doubts_ms)
        self.old.append(self.primary)
        self.primary = self._new_primary()
        self.primary.container.led(self.primary.container.default)

    def step_down(self) -> None:
        """All who led before hear of it, if they did not."""
        for primary in self.old:
            default = primary.container.default
            default.read_only = True
            default.end_links(ServedElsewhere(primary.container.directory, DEFAULT_SET), browsers=False)
        self.settle_down()

    def kill(self, at: int) -> None:
        """The broker dies with its clients; the primary has not noticed. A new one has its place, and its name."""
        dead = self.proxies[at]
        dead.is_silent = True
        self.clients = [client for client in self.clients if client.broker is not dead.proxy]
        self.proxies[at] = ReservingProxy(dead.name, self.primary, self.now_ms)

    # --- time

    def settle_down(self) -> None:
        """All that is under way arrives."""
        for _ in range(_ROUNDS):  # what one broker says is for another one, which answers
            for proxy in self.proxies:
                proxy.settle_down()
            for primary in (self.primary, *self.old):
                primary.settle_down()

    def advance(self, ms: int) -> None:
        """Time goes by, as brokers look at it."""
        for _ in range(ms // TICK_MS):
            self.now_ms += TICK_MS
            for proxy in self.proxies:
                proxy.proxy.container.now_ms = self.now_ms
                if proxy.upstream is not None and not proxy.is_silent:
                    proxy.upstream.silence.heard()
                elif proxy.upstream is not None and proxy.upstream.silence.is_too_long:
                    proxy.notices()
                proxy.proxy.container.tick()
                if proxy.again and not proxy.is_silent:
                    proxy.attach_those_left()
            for primary in (self.primary, *self.old):
                primary.container.now_ms = self.now_ms
                primary.container.tick()
            self.settle_down()


SILENCE_MS = int(SILENCE_S * 1000)


def is_told(client: PairedClient) -> bool:
    """Whether its broker has said that it is the only one."""
    return SOLE_CONNECTION in list(client.connection.remote_offered_capabilities or ())


def refusal(client: PairedClient) -> str | None:
    """The condition with which its connection was closed; None: it was not."""
    condition = client.connection.remote_condition
    return None if condition is None else str(condition.name)


def told_on_refusal(client: PairedClient) -> tuple[str, Any]:
    """The description and the information of that condition. Raises LookupError where it was not closed."""
    condition = client.connection.remote_condition
    if condition is None:
        raise LookupError("the connection was not closed by its broker")
    return str(condition.description), condition.info


def is_refused_as_second(client: PairedClient) -> bool:
    """Whether it hears what makes an InvalidClientIDException in Qpid JMS."""
    condition, properties = client.connection.remote_condition, client.connection.remote_properties or {}
    is_marked = properties.get(ESTABLISHMENT_FAILED) is True and not is_told(client)
    return is_marked and condition is not None and condition.info == {"invalid-field": "container-id"}


def is_open(client: PairedClient) -> bool:
    """Whether its open is answered, and its connection lives."""
    state = client.connection.state
    return bool(state & proton.Endpoint.REMOTE_ACTIVE) and not client.peer.has_ended
