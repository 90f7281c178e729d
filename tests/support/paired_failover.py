"""A primary in memory and its heir, which knows of it what is in the log alone; clients of both, and of a proxy.

What a promise looks like after a failover is shown here without a process: the heir has followed the log of a primary
that is gone. Clients of that one come back; those of a proxy stay, and their links are attached again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import proton

from paired_engines import PairedBroker, PairedClient
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.queues.queue import Queue

WITNESS = "witness"
GRACE_MS = 10_000
"""So long an heir keeps for clients of proxies what was theirs."""


class Leading(PairedBroker):
    """A primary whose log an heir follows; what it writes is committed at the end of a turn, unless `is_cut_off`."""

    def __init__(self, settings: ContainerSettings | None = None) -> None:
        super().__init__(settings)
        self.is_cut_off = False
        self._records: list[LogRecord] = []
        self.container.default.resources.replicated.log.add_witness(WITNESS)

    def lead(self, records: list[LogRecord], grace_ms: int = 0) -> None:
        """Go on where these end."""
        default = self.container.default.resources.replicated
        for record in records:
            default.follow([record])
        self._records = list(records)
        default.state.marks.inherit(is_next=True)
        default.take_over(self.container.now_ms, grace_ms)
        default.begin_marks()
        self.settle_down()

    def turn(self) -> None:
        super().turn()
        log = self.container.default.resources.replicated.log
        if not self.is_cut_off and log.committed_lsn < log.last_lsn and not log.pending:
            log.acknowledge(WITNESS, log.last_lsn)
            self.container.default.touch()

    def records(self) -> list[LogRecord]:
        """All that it has told."""
        found = [record for batch in self.batches for record in decode(batch.data).records]
        return [*self._records, *found]

    def declare(self, name: str, **arguments: Scalar) -> Queue:
        """A queue; `arguments` without their prefix."""
        configuration = self.container.default.configuration
        return configuration.declare_queue(name, {f"qpid.{key}": value for key, value in arguments.items()})


def heir_of(broker: Leading, grace_ms: int = 0) -> Leading:
    """Who leads after `broker`."""
    heir = Leading(broker.container.settings)
    heir.container.now_ms = broker.container.now_ms
    heir.lead(broker.records(), grace_ms)
    return heir


class FailingOver(PairedProxy):
    """A primary, and a proxy in front of it, until `fail_over`: then the next primary, and the same proxy."""

    def __init__(self, settings: ContainerSettings | None = None) -> None:
        self.leader = Leading(settings or ContainerSettings("primary", "0"))
        self.leader.lead([])
        self._visits: list[Visit] = []
        super().__init__(primary=self.leader)

    def visit(self, way: str, attach: Callable[[PairedClient], Any], **who: str) -> Visit:
        """A client that counts on something over the failover."""
        visit = Visit(self, way, attach, **who)
        self._visits.append(visit)
        return visit

    def fail_over(self, *, at_once: bool = False, away_ms: int = 0) -> None:
        """The primary is gone, with its clients' connections. Its heir leads, and the proxy has found it.

        `at_once`: what is on its way to the primary has not come. `away_ms`: so long nobody was there for the proxy.
        """
        if not at_once:
            self.settle_down()
        gone, self.leader = self.leader, heir_of(self.leader, GRACE_MS)
        self.cut()
        for client in gone.clients:
            client.vanish()
        self.primary = self.leader
        self.container, self.queue = self.leader.container, self.leader.queue
        self.check_invariants = self.leader.check_invariants
        self.pass_time(away_ms)
        self.connect_upstream()
        for visit in self._visits:
            visit.go_on()

    def direct(self, container: str = "client", user: str = "") -> PairedClient:
        """A client of whoever leads now."""
        client = PairedClient(cast(PairedBroker, self.leader), container=container, user=user)
        self.settle_down()
        return client

    def pass_time(self, by_ms: int) -> None:
        """Where it is led."""
        self.container.now_ms += by_ms
        self.container.tick()
        self.settle_down()

    def queues(self) -> list[str]:
        """Names of all there are."""
        return list(self.container.default.resources.catalog.queues)


class Visit:
    """A client with a link that is to outlive the primary: one of a proxy stays, one of the primary comes back, and
    attaches it again."""

    def __init__(self, world: FailingOver, way: str, attach: Callable[[PairedClient], Any], **who: str) -> None:
        """`way`: `direct` or `proxied`. `who`: the client's container and user."""
        self._way, self._attach, self._world = way, attach, world
        self._who = {"container": "shop", **who}
        self.has_left = False
        """It has no link any more."""
        self._come()

    def _come(self) -> None:
        connect = self._world.direct if self._way == "direct" else self._world.client
        self.client: PairedClient = connect(**self._who)
        if not self.has_left:
            self.link = self._attach(self.client)
            self._world.settle_down()

    def go_on(self) -> None:
        """Another broker leads."""
        if self._way == "direct":
            self._come()

    def leave(self, *, closes: bool = False) -> None:
        """Detach the link, or close it."""
        if closes:
            self.link.close()
        else:
            self.link.detach()
        self._world.settle_down()
        self.link.free()
        self.has_left = True

    def bodies(self, credit: int = 100) -> list[Any]:
        """What comes for so much credit, each accepted."""
        return [message.body for message in self.take(credit)]

    def take(self, credit: int = 100) -> list[Any]:
        """The same, whole."""
        self.link.flow(credit)
        self._world.settle_down()
        found = self.client.received(self.link)
        for delivery, _ in found:
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
        self._world.settle_down()
        return [message for _, message in found]
