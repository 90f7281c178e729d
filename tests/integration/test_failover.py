"""Real brokers, real agents, real clients and real signals: nothing that was confirmed is lost, whatever is killed."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from failover_load import FailoverLoad
from limits import LIMIT_S
from qpid_ha_agent.control import RequestRefused
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

FAILOVERS = 20
MESSAGES_BETWEEN = 100


def another_primary_than(cluster: RunningCluster, old: LocalBroker) -> bool:
    primary = cluster.primary()
    return primary is not None and primary is not old


@pytest.mark.parametrize("failovers", [1, FAILOVERS])
def test_kills_of_the_primary_under_load_lose_nothing(tmp_path: Path, failovers: int) -> None:
    """Every other time a broker's agent dies with it: one that saw its broker die again and again would wait longer and
    longer before it starts it."""
    deaths: Counter[str] = Counter()
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        with FailoverLoad(cluster.urls, rate=400) as load:
            for _ in range(failovers):
                load.wait_confirmed(MESSAGES_BETWEEN)
                old = cluster.the_primary()
                deaths[old.name] += 1
                killed_s = cluster.kill(old) if deaths[old.name] % 2 else cluster.crash(old)
                load.recovered_after(killed_s)
                if not old.is_running:
                    old.start()
                cluster.wait_whole()
            audit = load.finish()
        generation = cluster.status(cluster.the_primary())["generation"]
    assert audit.confirmed >= failovers * MESSAGES_BETWEEN
    assert audit.is_flawless, audit
    assert generation >= failovers + 1


def test_a_paused_primary_is_replaced_under_load_and_rejoins_as_a_new_backup(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True) as cluster:
        cluster.wait_whole()
        with FailoverLoad(cluster.urls, rate=400) as load:
            load.wait_confirmed(MESSAGES_BETWEEN)
            old = cluster.the_primary()
            paused_s = cluster.pause(old)
            load.recovered_after(paused_s)
            cluster.wait_whole()  # its agent has ended it, and started it again
            audit = load.finish()
        assert another_primary_than(cluster, old)
    assert audit.is_flawless, audit


def test_a_primary_that_slept_while_another_was_promoted_steps_down_and_confirms_nothing(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form(0)
        with FailoverLoad(cluster.urls, rate=400) as load:
            load.wait_confirmed(MESSAGES_BETWEEN)
            with cluster.paused(0):
                cluster.promote(1)
                cluster.wait_state(1, "primary")
                load.wait_confirmed(MESSAGES_BETWEEN)
            cluster.wait_state(0, "ready")
            load.wait_confirmed(MESSAGES_BETWEEN)
            audit = load.finish()
        assert cluster.state(1) == "primary"
    assert audit.is_flawless, audit


def test_a_switchover_under_load_loses_nothing_and_the_old_primary_follows(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form(0)
        with FailoverLoad(cluster.urls, rate=400) as load:
            for _ in range(3):
                load.wait_confirmed(MESSAGES_BETWEEN)
                old = cluster.the_primary()
                old.ask("switchover")
                cluster.wait_state(old, "ready")
            audit = load.finish()
    assert audit.is_flawless, audit


def test_a_change_that_was_not_certain_when_the_primary_was_demoted_is_not_said_to_be_made(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, count=2) as cluster, ThreadPoolExecutor(1) as caller:
        cluster.form(0)
        with cluster.paused(1):
            made = caller.submit(cluster.broker(0).ask, "queues", timeout_s=LIMIT_S, action="create", name="q")
            wait_until_listed(cluster.broker(0), "q")
            cluster.demote(0)
            with pytest.raises(RequestRefused, match="stopped being primary"):
                made.result(timeout=LIMIT_S)


def wait_until_listed(broker: LocalBroker, name: str) -> None:
    deadline = time.monotonic() + 10
    while all(queue["name"] != name for queue in broker.ask("queues")["answer"]):
        assert time.monotonic() < deadline, f"{name} does not appear"


def owes_an_answer(cluster: RunningCluster) -> bool:
    """Not one that is on its way: the primary would have read it by now."""
    (row,) = cluster.broker(0).ask("backups")["answer"]
    return bool(row["lag_s"] > 0.2)


def test_a_primary_whose_cluster_could_not_be_shut_down_in_order_serves_clients_again(tmp_path: Path) -> None:
    settings = {"ha": {"min-in-sync": 2, "backup-timeout": "2s"}}
    with RunningCluster(tmp_path, count=2, settings=settings) as cluster:
        cluster.form(0)
        with FailoverLoad(cluster.urls, rate=400) as load:
            load.wait_confirmed(MESSAGES_BETWEEN)
            with cluster.paused(1):
                cluster.wait_until(lambda: owes_an_answer(cluster), "the backup owes an answer")
                with pytest.raises(RequestRefused, match="came level"):
                    cluster.broker(0).ask("shutdown", cluster=True)
            cluster.wait_whole()
            load.wait_confirmed(MESSAGES_BETWEEN)
            audit = load.finish()
    assert audit.is_flawless, audit
