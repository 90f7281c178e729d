"""Where brokers of the cluster reach each other, by the cluster map and by what the member of `default` knows."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.logs.log import DEFAULT_SET


class BrokerAddresses:
    """As one broker knows them."""

    def __init__(self, name: str, cluster_map: ClusterMap, default: Member, serves: Callable[[], bool]) -> None:
        """Those that broker `name` knows. `serves`: whether it serves clients of `default`."""
        self._name, self._map, self._default, self._serves = name, cluster_map, default, serves

    def own(self) -> str | None:
        """Of this broker; None: that is not known yet."""
        own = self._map.brokers.get(self._name)
        return (own.address if own is not None else "") or self._default.settings.own_address or None

    def of_primary(self, set_name: str) -> str | None:
        """Of the broker that leads a set, which may be this one; None: nobody is known to."""
        if set_name == DEFAULT_SET:
            return self.own() if self._serves() else self._default.status.primary_broker_address or None
        entry = self._map.sets.get(set_name)
        primary = None if entry is None else self._map.brokers.get(entry.record.primary)
        return None if primary is None else primary.address or None
