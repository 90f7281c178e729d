"""Whether this broker serves clients, and what they are told about the cluster if it does not: where the primary is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import LEADING, State
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.server.clients.known_hosts import (
    HostNotices,
    NoticeHost,
    failover_entries,
    first_address,
    serving_brokers,
)
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters


class ClientsHost(NoticeHost, Protocol):
    """What is needed of the broker to serve clients, or to end them."""

    waiters: CommitWaiters

    def turn(self) -> None:
        """Make the broker's move, and write to everybody what came of it."""

    def end_clients(self, reason: AmqpError) -> None:
        """End all connections but those of other brokers and of administrators, who are let in everywhere."""


class ClientAccess:
    """The promise: clients are served by a primary, until it begins to hand over, and by nobody else.

    `announce`: tells those who listen to the cluster's events that somebody else leads, or nobody serves any more.
    """

    def __init__(
        self, broker: ClientsHost, member: Member, feed: Callable[[fx.Input], None], announce: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._member = member
        self._notices = HostNotices(broker)
        self._feed = feed
        self._announce = announce
        self._status = member.status
        """As the core told it last."""
        self._announced: tuple[object, ...] = ()
        self._is_leaving = False
        """Clients are about to be ended, because the core wants to be primary no more."""
        self._is_stopped = False

    @property
    def is_serving(self) -> bool:
        """Whether clients are served, and commands carried out."""
        status = self._member.status
        return status.state in LEADING and not self._is_leaving and not status.is_closing

    def update(self) -> None:
        """Serve clients, or refuse them and name the primary: as it is now."""
        container, member = self._broker.container, self._member
        relays = self._broker.current().ha.clients == "proxy"
        every_broker = relays or bool(container.directory.has_many_sets)
        container.greeting.refusal = None if self.is_serving or every_broker else refusal(member)
        container.default.read_only = not self.is_serving
        self._tell_who_serves(every_broker)

    def _tell_who_serves(self, every_broker: bool) -> None:
        """Clients that open from now on, and those who listen."""
        container, member = self._broker.container, self._member
        ha, cluster_map = self._broker.current().ha, container.default.resources.catalog.map
        serving = serving_brokers(ha, member, cluster_map, every_broker=every_broker)
        own = cluster_map.brokers.get(member.settings.name)
        itself = first_address(member.settings.own_address if own is None else own.clients_url or own.address)
        # Of brokers that serve alike, a client that loses this one should not try it first.
        others = [address for address in serving.addresses if not serving.alike or address != itself]
        last = [address for address in serving.addresses if address not in others]
        container.greeting.interchangeable = len(others) if serving.alike else 0
        container.greeting.failover_servers = failover_entries((*others, *last))
        self._notices.update(serving.addresses, leads=self.is_serving and not self._is_stopped)

    def status_changed(self, status: fx.MemberStatus) -> None:
        """The core told of it."""
        self._status = status
        self._update_and_announce()

    def _update_and_announce(self) -> None:
        """If somebody else leads now, or serves no more."""
        status = self._status
        leader = (status.state, status.primary, status.primary_address, self.is_serving)
        if leader != self._announced:
            self._announced = leader
            self.update()
            self._announce()

    def end_now(self) -> None:
        """This broker is primary no more: clients go before a turn confirms anything, and who waits for one is told."""
        self._end_clients()
        self._broker.waiters.refuse(self._broker.container.default.resources)

    def _end_clients(self) -> None:
        """In a cluster of many sets they may have something else here: then only their links to `default` end."""
        container = self._broker.container
        if container.directory.has_many_sets:
            container.default.end_links(ServedElsewhere(container.directory, DEFAULT_SET), browsers=False)
        else:
            self._broker.end_clients(refusal(self._member))

    def end_soon(self, _effect: fx.EndClients) -> None:
        """Not at once: what comes in through a client's connection may be what led to this. `ClientsEnded` follows."""
        self._is_leaving = True
        self._update_and_announce()
        asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        if self._is_stopped:
            return
        self._end_clients()
        self._broker.turn()
        self._feed(fx.ClientsEnded())
        self._is_leaving = False
        self._update_and_announce()

    def stop(self) -> None:
        """The broker ends its clients itself."""
        self._is_stopped = True
        self._notices.stop()


def refusal(member: Member) -> AmqpError:
    """Why this broker, which is not primary, does not serve a client; with the way to the one that does, if known."""
    name, state = member.settings.name, member.status.state
    if state is State.PRIMARY:
        return AmqpError(CONNECTION_FORCED, f"broker {name} hands over: another broker is about to be primary")
    primary = first_address(member.status.primary_address)
    if primary is None:
        text = f"broker {name} is {state}, not primary, and knows of no primary: try again, or another broker"
        return AmqpError(CONNECTION_FORCED, text)
    text = f"broker {name} is {state}; the primary is {member.status.primary} at {primary}"
    return AmqpError(CONNECTION_FORCED, text, {"network-host": primary.host, "port": primary.port})
