"""Whether this broker serves clients, and what they are told about the cluster if it does not: where the primary is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.clients.known_hosts import (
    HostNotices,
    NoticeHost,
    failover_entries,
    first_address,
    serving_brokers,
)
from qpid_ha_broker.server.clients.set_clients import ServingHost, SetClients


class ClientsHost(ServingHost, NoticeHost, Protocol):
    """What is needed of the broker to serve clients, or to end them."""

    def turn(self) -> None:
        """Make the broker's move, and write to everybody what came of it."""

    def end_clients(self, reason: AmqpError) -> None:
        """End all connections but those of other brokers and of administrators, who are let in everywhere."""


class ClientAccess(SetClients):
    """Of `default`, the set that clients come for: who is not served is told where the primary is.

    `announce`: tells those who listen to the cluster's events that somebody else leads, or nobody serves any more.
    """

    _broker: ClientsHost

    def __init__(
        self, broker: ClientsHost, member: Member, feed: Callable[[fx.Input], None], announce: Callable[[], None]
    ) -> None:
        super().__init__(broker, broker.container.default, lambda: member.status.serves_clients, feed, broker.turn)
        self._member = member
        self._notices = HostNotices(broker)
        self._announce = announce
        self._announced: tuple[object, ...] = ()

    def update(self) -> None:
        """Serve clients, or refuse them and name the primary: as it is now."""
        super().update()
        container, member = self._broker.container, self._member
        relays = self._broker.current().ha.clients == "proxy"
        every_broker = relays or bool(container.directory.has_many_sets)
        container.greeting.refusal = None if self.is_serving or every_broker else refusal(member)
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
        self._notices.update(serving.addresses, leads=self.is_serving)

    def status_changed(self) -> None:
        """The core told of it: if somebody else leads now, or serves no more, everybody else is told."""
        self.changed()
        status = self._member.status
        leader = (status.state, status.primary, status.primary_address, self.is_serving)
        if leader != self._announced:
            self._announced = leader
            self.update()
            self._announce()

    def _end(self) -> None:
        """In a cluster of many sets they may have something else here: else their connections end."""
        if self._broker.container.directory.has_many_sets:
            super()._end()
        else:
            self._broker.end_clients(refusal(self._member))


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
