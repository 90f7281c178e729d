"""Real brokers and real agents: who leads when an agent hangs or wakes up, and when a switchover has just ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from failover_load import FailoverLoad
from qpid_ha_broker.coordination.file import PRIMARY_LOCK_FILE, holder_of
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

SWITCHOVERS = 6
MESSAGES_BETWEEN = 100
LONGEST_GAP_S = 4.5
"""Between two confirmations; a hand-over that cannot be is given up after 5 s."""
LEASE_AND_MORE_S = 4.0
"""Longer than an agent waits for another one's renewal: nothing may happen in this time, so it has to go by."""


@contextmanager
def hanging_agent(broker: LocalBroker) -> Iterator[None]:
    """Its agent is stopped, the broker is not; the agent goes on in the end."""
    agent = broker.processes()[0]
    os.kill(agent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(agent, signal.SIGCONT)


def hand_over(cluster: RunningCluster) -> LocalBroker:
    """A switchover to the best backup; the new primary."""
    old = cluster.the_primary()
    old.ask("switchover")
    cluster.wait_until(lambda: cluster.primary() not in (None, old), "another primary")
    return cluster.the_primary()


def wait_lock(directory: Path, primary: LocalBroker, cluster: RunningCluster) -> None:
    """Until the primary's own agent has the lock: by then every other one has decided about the last change."""
    path = directory / "coordinator" / PRIMARY_LOCK_FILE
    cluster.wait_until(lambda: holder_of(path).startswith(f"{primary.name} "), "the lock follows the primary")


def test_nobody_is_promoted_behind_a_switchover_that_has_just_ended(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        first = cluster.status(cluster.the_primary())["generation"]
        with FailoverLoad(cluster.urls, rate=400) as load:
            for done in range(1, SWITCHOVERS + 1):
                load.wait_confirmed(MESSAGES_BETWEEN)
                new = hand_over(cluster)
                wait_lock(tmp_path, new, cluster)
                cluster.wait_whole()
                assert (cluster.the_primary(), cluster.status(new)["generation"]) == (new, first + done)
            audit = load.finish()
    assert audit.is_flawless, audit


@pytest.mark.parametrize("loss", ["dead", "frozen"])
def test_a_primary_is_replaced_though_its_agent_hangs_with_the_lock(tmp_path: Path, loss: str) -> None:
    """Frozen: the whole machine is, and goes on later; the old primary then follows the new one."""
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        with FailoverLoad(cluster.urls, rate=400) as load:
            load.wait_confirmed(MESSAGES_BETWEEN)
            old = cluster.the_primary()
            with ExitStack() as until_it_wakes:
                until_it_wakes.enter_context(hanging_agent(old))
                if loss == "dead":
                    lost_s = cluster.kill(old)
                else:
                    lost_s = time.monotonic()
                    until_it_wakes.enter_context(cluster.paused(old))
                load.recovered_after(lost_s)
                new = cluster.the_primary()
                assert new is not old
            wait_lock(tmp_path, new, cluster)
            cluster.wait_whole()
            assert cluster.the_primary() is new
            audit = load.finish()
    assert audit.is_flawless, audit


def test_whoever_took_over_stays_primary_though_the_old_ones_agent_hangs_with_the_lock(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        old = cluster.the_primary()
        with hanging_agent(old):
            time.sleep(LEASE_AND_MORE_S)
            assert cluster.the_primary() is old  # it serves: that its agent hangs is no reason to replace it
            new = hand_over(cluster)
            generation = cluster.status(new)["generation"]
            time.sleep(LEASE_AND_MORE_S)
            assert (cluster.the_primary(), cluster.status(new)["generation"]) == (new, generation)
        wait_lock(tmp_path, new, cluster)
        assert cluster.status(new)["generation"] == generation


@pytest.mark.alone("clients notice no gap")
def test_a_shared_directory_that_is_gone_does_not_end_the_primary(tmp_path: Path) -> None:
    """Nobody could be promoted without it. One who can read it shall lead, and nobody can: clients notice nothing."""
    with RunningCluster(tmp_path, count=2, agents=True) as cluster:
        cluster.wait_whole()
        primary = cluster.the_primary()
        generation = cluster.status(primary)["generation"]
        shared, away = tmp_path / "coordinator", tmp_path / "away"
        with FailoverLoad(cluster.urls, rate=200) as load:
            load.wait_confirmed(MESSAGES_BETWEEN)
            connected = len(load.publisher.recoveries)
            shared.rename(away)
            cluster.wait_until(lambda: "switchover failed" in primary.log(), "a hand-over was tried")
            assert "hand over: the record cannot be read here" in primary.log()
            assert cluster.the_primary() is primary
            load.wait_confirmed(MESSAGES_BETWEEN)
            away.rename(shared)
            wait_lock(tmp_path, primary, cluster)
            assert (cluster.the_primary(), cluster.status(primary)["generation"]) == (primary, generation)
            confirmed_s = sorted(load.ledger.confirmed_at_s.values())
            audit = load.finish()
            assert len(load.publisher.recoveries) == connected
            assert max(after - before for before, after in pairwise(confirmed_s)) < LONGEST_GAP_S
    assert audit.is_flawless, audit
