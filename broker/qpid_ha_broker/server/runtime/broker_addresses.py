"""Where brokers of the cluster reach each other, by the cluster map and by what the member of `default` knows."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.cluster_map import ClusterMap, SetEntry
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
        """Of the broker that leads a set, or serves it as one of a group, which may be this one; None: nobody is known
        to."""
        if set_name == DEFAULT_SET:
            return self.own() if self._serves() else self._default.status.primary_broker_address or None
        entry = self._map.sets.get(set_name)
        broker = None if entry is None else self._map.brokers.get(who_serves(self._map, entry, self._name))
        return None if broker is None else broker.address or None


def who_serves(cluster_map: ClusterMap, entry: SetEntry, own: str, *, others_only: bool = False) -> str:
    """The broker to which clients of a set are to go from broker `own`: its primary; of a group, where each member
    serves, `own` if it is one, then one that is up on its machine, then in its zone, then any that is. Empty: nobody is
    known to serve.

    `others_only`: not `own`, which has just said that it does not.
    """
    if not entry.is_group:
        return entry.record.primary
    brokers, here = cluster_map.brokers, cluster_map.brokers.get(own)
    up = [name for name in entry.record.members if name in brokers and brokers[name].up]
    if own in up and not others_only:
        return own
    others = [name for name in up if name != own]
    if here is not None:
        place = here.place
        others.sort(
            key=lambda name: (brokers[name].place.machine != place.machine, brokers[name].place.zone != place.zone)
        )
    return next(iter(others), "")
