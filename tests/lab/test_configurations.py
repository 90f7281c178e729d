"""docs/pacemaker.md's other ways to configure a cluster: IPaddr2 in place of the agent's address, pcs for crmsh."""

from __future__ import annotations

import pytest

from doc_blocks import titled_blocks
from lab.cluster import Cluster
from lab.generations import wait_agreed
from lab.load import Load
from lab.plan import VIRTUAL_ADDRESS
from lab.stage import RESOURCES, Stage

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


PCS = """
cd "$(mktemp -d)"
pcs() { command pcs -f new.xml "$@"; }
cibadmin --query > old.xml
cp old.xml new.xml
COMMANDS
command pcs cluster cib-push new.xml diff-against=old.xml
"""


def test_a_cluster_that_was_configured_with_pcs_is_well(stage: Stage, empty_cluster: Cluster) -> None:
    blocks = titled_blocks("pacemaker.md", "pcs")
    commands = "\n".join(blocks[title] for title in RESOURCES).replace("10.0.0.100/24", f"{VIRTUAL_ADDRESS}/24")
    assert VIRTUAL_ADDRESS in commands

    stage.lab.shell(empty_cluster.lab.plan.members[0], PCS.replace("COMMANDS", commands), timeout_s=60)

    empty_cluster.wait_well()
    with Load(stage.lab) as load:
        load.wait_confirmed(100)
        assert load.finish().complaints() == []
