"""The coordinator fails, or the network around it: three brokers with agents and three servers of ZooKeeper on machines
of their own (namespaces), under load.

What holds in each case: nothing that was confirmed is lost or comes twice unmarked, so never two confirm; whoever is
primary goes on while its in-sync set need not change; nobody is promoted without a majority of the servers; and when it
is over, all is well again without a person.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster_on_machines import ClusterOnMachines
from failover_load import FailoverLoad
from network_namespaces import why_not_here
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings
from qpid_ha_demo.cluster import LocalBroker
from qpid_ha_demo.zookeeper_ensemble import why_not_here as why_no_ensemble

pytestmark = pytest.mark.skipif(bool(why_not_here()), reason=why_not_here() or "-")

SESSION_S = 4.0
SOON_S = 20.0
"""On a machine that has a lot to do; else it takes a second or two."""
RATE = 100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOnMachines]:
    """Each test leaves it whole."""
    if why_no_ensemble():
        pytest.fail(why_no_ensemble())
    with ClusterOnMachines(tmp_path_factory.mktemp("cluster"), ha={"backup-timeout": "2s"}) as running:
        running.wait_whole()
        yield running


@contextmanager
def load_on(cluster: ClusterOnMachines, request: pytest.FixtureRequest) -> Iterator[FailoverLoad]:
    """Clients that work all the time. In the end the cluster is whole, and their account flawless."""
    cluster.wait_whole()
    load = FailoverLoad(cluster.urls, request.node.name, rate=RATE)
    with cluster.hub.inside():
        load.__enter__()  # its threads stay there
    try:
        load.wait_confirmed(RATE // 2)
        yield load
        load.wait_confirmed(RATE // 2)
        cluster.wait_whole()
        account = load.finish()
    except Exception as error:
        load.__exit__(type(error), error, error.__traceback__)
        raise
    load.__exit__(None, None, None)
    assert account.is_flawless, account
    assert not any("Traceback" in broker.log() for broker in cluster.brokers)


@pytest.fixture
def load(cluster: ClusterOnMachines, request: pytest.FixtureRequest) -> Iterator[FailoverLoad]:
    with load_on(cluster, request) as running:
        yield running


def record_of(cluster: ClusterOnMachines) -> ClusterRecord:
    """As an operator would see it. Raises CoordinatorError."""
    settings = CoordinatorSettings(url=CoordinatorUrl.parse(cluster.ensemble.url("clusters/one")))
    with cluster.hub.inside():
        coordinator = open_coordinator(settings)
        try:
            return coordinator.read()
        finally:
            coordinator.close()


def others_of(cluster: ClusterOnMachines, broker: LocalBroker) -> list[LocalBroker]:
    return [other for other in cluster.brokers if other is not broker]


def serves_for(load: FailoverLoad, cluster: ClusterOnMachines, duration_s: float) -> None:
    """Messages are confirmed all the time, and there is one primary."""
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        load.wait_confirmed(RATE // 4, timeout_s=SOON_S)
        assert cluster.states().count("primary") <= 1


def test_brokers_are_cut_from_each_other_but_not_from_the_coordinator(
    cluster: ClusterOnMachines, load: FailoverLoad
) -> None:
    primary = cluster.the_primary()
    with cluster.cut(primary, others_of(cluster, primary)):
        cluster.wait_until(lambda: record_of(cluster).members == (primary.name,), "it goes on alone", SOON_S)
        serves_for(load, cluster, 1.0)
        assert cluster.the_primary() is primary  # its agent has the lock
        assert cluster.states().count("connecting") == 2
    cluster.wait_whole()
    assert cluster.the_primary() is primary


def test_the_primary_is_cut_from_the_coordinator_but_not_from_the_others(
    cluster: ClusterOnMachines, load: FailoverLoad
) -> None:
    primary = cluster.the_primary()
    with cluster.cut(primary, ensemble=True):
        serves_for(load, cluster, SESSION_S + 4.0)
    cluster.wait_whole()


def test_a_backup_is_cut_from_the_coordinator_but_not_from_the_others(
    cluster: ClusterOnMachines, load: FailoverLoad
) -> None:
    primary = cluster.the_primary()
    with cluster.cut(others_of(cluster, primary)[0], ensemble=True):
        serves_for(load, cluster, 3.0)
    assert cluster.is_whole()
    assert cluster.the_primary() is primary


def test_without_a_majority_of_the_servers_the_primary_goes_on_and_nobody_is_promoted(
    cluster: ClusterOnMachines, load: FailoverLoad
) -> None:
    primary = cluster.the_primary()
    generation = primary.status()["generation"]
    for server in cluster.ensemble.followers:
        server.kill()
    serves_for(load, cluster, SESSION_S + 3.0)
    assert cluster.the_primary() is primary
    assert primary.status()["generation"] == generation

    primary.kill()
    end_s = time.monotonic() + 3.0
    while time.monotonic() < end_s:
        assert "primary" not in cluster.states()
        time.sleep(0.05)
    cluster.ensemble.start()
    cluster.wait_whole()
    assert record_of(cluster).generation > generation


def test_all_servers_are_gone_and_come_back_without_their_data(cluster: ClusterOnMachines, load: FailoverLoad) -> None:
    primary, before = cluster.the_primary(), record_of(cluster)
    cluster.ensemble.wipe()
    serves_for(load, cluster, 2.0)
    cluster.ensemble.start()
    assert record_of(cluster) in (ClusterRecord(), before)
    cluster.wait_until(lambda: record_of(cluster) == before, "the primary has put the record back", SOON_S)
    assert cluster.the_primary() is primary

    primary.kill()
    cluster.wait_until(lambda: cluster.primary() not in (None, primary), "another one is primary", SOON_S)


def test_the_session_ends_while_agent_and_broker_are_stopped(cluster: ClusterOnMachines, load: FailoverLoad) -> None:
    primary = cluster.the_primary()
    stopped = primary.processes()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        stopped_at_s = time.monotonic()
        others = others_of(cluster, primary)
        cluster.wait_until(lambda: "primary" in [other.status()["state"] for other in others], "a new primary", SOON_S)
        assert time.monotonic() - stopped_at_s < SOON_S
        load.wait_confirmed(RATE // 2)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    cluster.wait_whole()
    assert cluster.the_primary() is not primary
