"""The first day: nodes with empty disks, and a configuration from the documentation."""

from __future__ import annotations

from lab.cluster import Cluster
from lab.load import Load
from lab.stage import RESOURCES, Stage


def test_an_empty_cluster_comes_up_by_itself(stage: Stage, empty_cluster: Cluster) -> None:
    stage.load(*RESOURCES)

    empty_cluster.wait_well()

    view = empty_cluster.view()
    assert len(view.promoted()) == 1
    assert len(view.unpromoted()) == 2
    assert empty_cluster.holders() == view.promoted()
    with Load(stage.lab) as load:
        load.wait_confirmed(200)
        account = load.finish()
    assert account.complaints() == []
    assert account.facts["received"] >= 200
