"""Clients of brokers that relay their links (`ha.clients: proxy`): they are told nothing, and nothing is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from proton import Delivery, Message
from proton.reactor import Selector
from proton.utils import LinkDetached

from blocking_client import BlockingClient, LocalTransaction, SettleSecond, bodies
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

SETTINGS = {"ha": {"failure-timeout": "1s", "clients": "proxy"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """One set; the first broker leads."""
    with RunningCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.form()
        yield cluster


def relayed_links(cluster: RunningCluster, which: int) -> int:
    return int(cluster.status(which)["relayed_links"])


def test_a_backup_serves_publishers_consumers_and_browsers(cluster: RunningCluster) -> None:
    with BlockingClient(cluster.urls[1]) as one, BlockingClient(cluster.urls[2]) as other:
        outcomes = one.send("q", *[f"m{number}" for number in range(10)])
        assert {outcome.state for outcome in outcomes} == {Delivery.ACCEPTED}
        assert bodies(other.browse("q")) == [f"m{number}" for number in range(10)]
        assert bodies(other.consume("q")) == [f"m{number}" for number in range(10)]
        assert one.browse("q") == []
