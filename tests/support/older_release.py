"""qpidd that never reports to a controller, as a release does that knows no resource sets. It follows `default`."""

from __future__ import annotations

from qpid_ha_broker.cluster.messages import BrokerReport
from qpid_ha_broker.server.main import main
from qpid_ha_broker.server.sets.set_cluster import SetCluster


def _nothing(self: SetCluster, *, full: bool) -> BrokerReport | None:
    return None


if __name__ == "__main__":
    SetCluster.report = _nothing  # type: ignore[method-assign]
    main()
