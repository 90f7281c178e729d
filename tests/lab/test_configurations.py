"""docs/pacemaker.md's other way to give a cluster its address: IPaddr2 in place of the agent's own."""

from __future__ import annotations

import pytest

from lab.cluster import Cluster
from lab.generations import wait_agreed
from lab.load import Load

BROKER_DIED = "broker_(monitor|asyncmon).* on n[123]: not running"


@pytest.mark.resources("properties", "ipaddr2")
@pytest.mark.explains(BROKER_DIED)
def test_an_address_that_is_a_resource_of_its_own_follows_the_primary(cluster: Cluster, load: Load) -> None:
    before = wait_agreed(cluster)
    (address,) = cluster.view().instances("broker-ip")
    assert (address.agent, address.node) == ("ocf:heartbeat:IPaddr2", before.primary)
    load.wait_confirmed(100)

    killed_at_s = cluster.kill_broker(before.primary)
    load.recovered_after(killed_at_s)
    cluster.wait_well()
    moved = wait_agreed(cluster)
    cluster.move(before.primary)
    cluster.wait_promoted(before.primary)
    cluster.unmove()
    cluster.wait_well()

    assert moved.primary != before.primary
    assert wait_agreed(cluster).primary == before.primary
    load.wait_confirmed(100)
