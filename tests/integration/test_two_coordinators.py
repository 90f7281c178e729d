"""One broker has another directory as its coordinator: it is named, and no second cluster begins beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.coordination.identity import IDENTITY_NOTE
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from running_cluster import RunningCluster


def test_with_two_directories_no_two_clusters_begin_and_both_are_named(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()
    own_settings = [{"ha.coordinator": f"file:{directory}"} for directory in (one, one, two)]
    with RunningCluster(tmp_path, own_settings=own_settings) as cluster:
        for which in (0, 2):
            with pytest.raises(RequestRefused, match=f"two records .*file:{tmp_path}.*file:{tmp_path}"):
                cluster.promote(which)
            with pytest.raises(RequestRefused, match="two records"):
                cluster.promote(which, force=True)
        identities = [FileCoordinator(directory).read_note(IDENTITY_NOTE) for directory in (one, one, two)]
        assert [cluster.status(which)["coordinator_identity"] for which in range(3)] == identities
        assert FileCoordinator(two).read() == ClusterRecord()

        cluster.kill(2)
        cluster.promote(0, force=True)
        cluster.wait_until(lambda: cluster.state(1) == "ready", "the other one of that coordinator follows")
        cluster.restart(2)
        cluster.wait_whole()
        cluster.wait_until(
            lambda: f"file:{two}" in str(cluster.status(0)["problem"]), "the primary names who has another coordinator"
        )
