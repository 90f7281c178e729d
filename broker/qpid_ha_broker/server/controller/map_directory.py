"""Where queues and primaries are, as the map and the member of `default` know it: see `amqp.nodes.directory`."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.amqp.nodes.directory import ServerAddress
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.ha.effects import MemberStatus
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.server.runtime.broker_addresses import who_serves
from qpid_ha_config.addresses import Address


class MapDirectory:
    """A `Directory` of all sets, for the broker `own`, whose member of `default` has that status."""

    def __init__(self, own: str, cluster_map: ClusterMap, default: Callable[[], MemberStatus]) -> None:
        self._own = own
        self._map = cluster_map
        self._default = default

    @property
    def has_many_sets(self) -> bool:
        """There are sets beside `default`."""
        return bool(self._map.sets)

    def set_of(self, queue_name: str) -> str | None:
        """The set of a queue that does not belong to `default`, and is not about to go."""
        queue = self._map.queues.get(queue_name)
        return None if queue is None or queue.deleting else queue.set

    def primary_of(self, set_name: str) -> ServerAddress | None:
        """As recorded: a broker that was named only may not lead yet, and says so.

        Nobody asks where a set is that this broker serves. If it is recorded all the same, it is about to begin, or to
        hand over, and to whom the next record says.
        """
        if set_name == DEFAULT_SET:
            status = self._default()
            return self._address(status.primary, status.primary_address)
        entry = self._map.sets.get(set_name)
        name = "" if entry is None else who_serves(self._map, entry, self._own, others_only=True)
        broker = self._map.brokers.get(name)
        return None if broker is None else self._address(broker.name, broker.clients_url or broker.address)

    def _address(self, name: str, url: str) -> ServerAddress | None:
        return None if name == self._own else _address(name, url)


def _address(name: str, url: str) -> ServerAddress | None:
    try:
        address = Address.parse(url.partition(",")[0])
    except ValueError:  # nobody is known, or it is a peer's invention
        return None
    return ServerAddress(name, address.host, address.port)
