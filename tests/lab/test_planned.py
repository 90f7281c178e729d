"""What an administrator does on an ordinary day: standby, moves, a restart of one node after the other."""

from __future__ import annotations

import re
import time

import pytest

from lab.cluster import Cluster
from lab.generations import history, wait_agreed
from lab.load import Load

MOVES = 2
_HANDED_OVER = re.compile(r'host="(\w+)" value="\S+ (\d+):(\d+)"')


def problems(load: Load) -> list[str]:
    """What brokers told the clients, but that they should connect again."""
    return [str(problem) for problem in load.ask("report")["problems"]]


def away(cluster: Cluster, node: str) -> None:
    """It runs nothing, and the others have a primary."""
    cluster.standby(node)
    cluster.wait(lambda: cluster.state(node) == "down", f"{node}'s broker is stopped")
    cluster.wait_promoted(*(other for other in cluster.lab.plan.members if other != node))


def handed_over(cluster: Cluster, node: str) -> tuple[int, int]:
    """Generation and position where this node's log ended when it was demoted, as it told the others."""
    told = cluster.lab.output(node, "attrd_updater", "--name", "qpid-ha-position-broker", "--query", "--all")
    return {host: (int(generation), int(lsn)) for host, generation, lsn in _HANDED_OVER.findall(told)}[node]


def test_a_planned_move_takes_over_at_the_last_position_and_clients_only_connect_again(
    cluster: Cluster, load: Load
) -> None:
    load.wait_confirmed(100)
    for _ in range(MOVES):
        before = wait_agreed(cluster)
        target = cluster.backups()[-1]

        at_s = time.monotonic()
        cluster.move(target)
        cluster.wait_promoted(target)
        load.recovered_after(at_s)
        cluster.unmove()
        cluster.wait_well()

        after = wait_agreed(cluster)
        assert after.primary == target, "it stays there when the move is cleared"
        assert after.generation == before.generation + 1
        began = {each["generation"]: each["first_lsn"] for each in history(cluster, target)}
        assert handed_over(cluster, before.primary) == (before.generation, began[after.generation] - 1)
    assert problems(load) == []
    assert load.finish().facts["refused"] == 0


def test_one_node_after_the_other_is_restarted_under_load(cluster: Cluster, load: Load) -> None:
    generation = wait_agreed(cluster).generation
    load.wait_confirmed(100)

    primary = cluster.primary()
    with Load(cluster.lab, rate=20, consume=False, durable=False) as kept:  # in memory alone, and yet nothing goes
        kept.wait_confirmed(20)
        for node in (*cluster.backups(), primary):  # as docs/pacemaker.md advises: the primary's last, so one failover
            away(cluster, node)
            load.wait_confirmed(50)
            cluster.unstandby(node)
            cluster.wait_well()
        assert kept.finish().complaints() == []

    assert wait_agreed(cluster).generation == generation + 1
    load.wait_confirmed(100)
    assert problems(load) == []


SWITCHED_BEHIND_ITS_BACK = "broker_monitor.* on n[123]: (ok|promoted|unpromoted)"


@pytest.mark.explains(SWITCHED_BEHIND_ITS_BACK)
def test_a_switchover_behind_pacemakers_back_is_noticed_by_the_monitors_and_loses_nothing(
    cluster: Cluster, load: Load
) -> None:
    before = wait_agreed(cluster)
    target = cluster.backups()[0]
    load.wait_confirmed(100)

    at_s = time.monotonic()
    cluster.lab.output(before.primary, "qpid-ha", "switchover", target)
    cluster.wait(lambda: cluster.state(target) == "primary", "the broker is primary, and Pacemaker does not know it")

    load.recovered_after(at_s)
    cluster.wait_well()
    assert wait_agreed(cluster).generation > before.generation
