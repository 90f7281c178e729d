"""Messages on their way from exchanges to queues of other sets: to whom, as the records in the cluster map say."""

from __future__ import annotations

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.cluster_map import Changes, ClusterMap
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.sets.forward_links import ForwardArrivals, ForwardLinks
from qpid_ha_broker.server.sets.set_host import SetHost


class SetForwarding:
    """Both ends, at one broker. `producer`: a name of this process."""

    def __init__(self, broker: Host, hosts: SetHost, cluster_map: ClusterMap, name: str, producer: str) -> None:
        self._broker = broker
        self._hosts = hosts
        self._map = cluster_map
        self._name = name
        self._links = ForwardLinks(broker, producer, self._dial, self._serving, self._is_gone)
        self._arrivals: dict[str, ForwardArrivals] = {}
        self._primaries: dict[str, str] = {}
        hosts.arrivals = self._arrivals_of
        self.map_changed(Changes(sets=tuple(cluster_map.sets)))

    def map_changed(self, changes: Changes) -> None:
        """In a cluster of one set there is nobody to hand anything on to."""
        if self._map.sets:
            self._broker.container.publisher.forwarder = self._links.forwarder
        for name in changes.sets:
            entry = self._map.sets.get(name)
            primary = "" if entry is None else entry.record.primary
            if self._primaries.get(name, "") != primary:
                self._primaries[name] = primary
                self._links.primary_changed(name)

    def work(self) -> None:
        """At the end of a turn, and several times a second."""
        self._links.work()

    def tell_committed(self) -> None:
        """The sets had their turns."""
        self._links.tell_committed()
        for arrivals in self._arrivals.values():
            arrivals.tell_committed()

    def _arrivals_of(self, set_name: str) -> ForwardArrivals:
        if set_name not in self._arrivals:
            self._arrivals[set_name] = ForwardArrivals(self._broker, set_name, self._serving)
        return self._arrivals[set_name]

    def _serving(self, set_name: str) -> HostedSet | None:
        member = self._hosts.members.get(set_name)
        return member.hosted if member is not None and member.is_serving else None

    def _dial(self, set_name: str, listener: PeerListener) -> Channel | None:
        entry = self._map.sets.get(set_name)
        broker = None if entry is None else self._map.brokers.get(entry.record.primary)
        if broker is None or broker.name == self._name:  # which does not serve it yet, or any more
            return None
        return self._hosts.shared.open(broker.address, set_name, Purpose.FORWARD, listener)

    def _is_gone(self, queue_name: str) -> bool:
        queue = self._map.queues.get(queue_name)
        return queue is None or queue.deleting
