"""Which brokers serve clients: what each client is told at its open, and a notice to those who listen when it changes.

Where every broker serves (`ha.clients: proxy`, or more sets than `default`) these are the brokers of the cluster map
that are up and are not drained, or without a map those of `ha.brokers-url`. Elsewhere only the primary serves: it comes
first, and those behind it are where clients find the next one. `ha.public-url` takes the place of all addresses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

import proton

from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.notices import NOTICE_EXCHANGE
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_config.addresses import Address, parse_brokers
from qpid_ha_config.settings import HaSettings

log = logging.getLogger("cluster")

NOTICE_KEY: Final = "cluster"
HOSTS_PROPERTY: Final = "qpid.known.hosts"
NOTICE_TTL_MS: Final = 60_000
"""Nobody reads an old notice with profit: the open of the next connection tells the same."""
RETRY_S: Final = 1.0
"""After a notice that could not be published, because a queue was full or too few brokers were in sync."""


class ServingBrokers(NamedTuple):
    """Where clients are served. `alike`: at each of these; else at the first alone, and later perhaps at another."""

    addresses: tuple[Address, ...]
    alike: bool


def serving_brokers(ha: HaSettings, member: Member, cluster_map: ClusterMap, *, every_broker: bool) -> ServingBrokers:
    """As this member of `default` knows them; the same at each broker that knows the same, in the same order."""
    if not ha.cluster:
        return ServingBrokers((), alike=False)
    if every_broker:
        return ServingBrokers(ha.public_url or _on_map(cluster_map) or ha.brokers_url, alike=True)
    addresses = list(ha.public_url or ha.brokers_url)
    status = member.status
    primary = first_address(status.primary_address or member.settings.own_address)
    if (status.primary_address or status.primary) and primary in addresses:
        addresses.remove(primary)
        addresses.insert(0, primary)
    return ServingBrokers(tuple(addresses), alike=False)


def _on_map(cluster_map: ClusterMap) -> tuple[Address, ...]:
    """Those that are up, and are not drained. Empty where there is no map, or it says that of all."""
    addresses: list[Address] = []
    for broker in cluster_map.brokers.values():
        if broker.up and not broker.draining:
            try:
                addresses += parse_brokers(broker.clients_url or broker.address)
            except ValueError:  # of a release that writes addresses otherwise
                continue
    return tuple(addresses)


def first_address(url: str) -> Address | None:
    """Of a list of them; None for one that cannot be read."""
    try:
        return Address.parse(url.partition(",")[0])
    except ValueError:  # empty, or a peer's invention
        return None


def failover_entries(addresses: Iterable[Address]) -> list[dict[str, object]]:
    """As in the open property `failover-server-list`."""
    return [{"network-host": address.host, "port": address.port, "scheme": address.scheme} for address in addresses]


def notice_payload(addresses: Iterable[Address]) -> bytes:
    """The message that tells of them: no body, and the hosts as an application property, `host:port,host:port`."""
    hosts = ",".join(str(address).partition("://")[2] for address in addresses)
    message = proton.Message(properties={HOSTS_PROPERTY: hosts}, ttl=NOTICE_TTL_MS / 1000)
    return bytes(message.encode())


class NoticeHost(Host, Protocol):
    """What is needed of the broker to publish."""

    def set_time(self) -> None:
        """Let the container know what time it is."""


class HostNotices:
    """The promise: while this broker leads `default`, whoever is bound to `amq.qpid` gets each list of brokers once.

    A broker that begins to lead cannot know which one its predecessor has told of: it publishes the one of then.
    """

    def __init__(self, broker: NoticeHost) -> None:
        self._broker = broker
        self._addresses: tuple[Address, ...] = ()
        self._published: tuple[Address, ...] | None = None
        """The list that was published last, in this time of leading; None: none was."""
        self._due: asyncio.Handle | None = None

    def update(self, addresses: tuple[Address, ...], *, leads: bool) -> None:
        """These brokers serve now; `leads`: this broker leads `default`. May be called while an event is applied."""
        if not leads:
            self.stop()
            self._published = None
            return
        self._addresses = addresses
        if addresses and addresses != self._published and self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._publish)

    def stop(self) -> None:
        """Publish nothing any more."""
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _publish(self) -> None:
        self._due = None
        container = self._broker.container
        exchange = container.default.resources.catalog.exchanges.get(NOTICE_EXCHANGE)
        if exchange is None or self._addresses == self._published:
            return
        payload = notice_payload(self._addresses)
        if any(container.default.resources.catalog.destinations(exchange, NOTICE_KEY, payload)):
            self._broker.set_time()
            now_ms = container.default.now_ms
            notice = Message(payload, expires_at_ms=now_ms + NOTICE_TTL_MS)
            try:
                container.publisher.publish(exchange, notice, NOTICE_KEY, now_ms)
            except ModelError as error:
                log.warning("who listens to %s does not hear yet which brokers serve: %s", NOTICE_EXCHANGE, error)
                self._due = asyncio.get_running_loop().call_later(RETRY_S, self._publish)
                return
            container.default.touch()
            self._broker.schedule_turn()
        self._published = self._addresses
