"""What works while nobody reaches the coordinator: the table of docs/coordinators.md, a story for each row."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from small_cluster import SmallCluster, three
from traced_cluster import TracedCluster

PAGE = (Path(__file__).parents[2] / "docs" / "coordinators.md").read_text(encoding="utf-8")
ROWS = [
    line.split("|")[1].strip()
    for line in PAGE.partition("| while nobody can read or write it |")[2].partition("\n\n")[0].splitlines()[2:]
]


def away(**settings: float) -> SmallCluster:
    """Three in sync, and the coordinator cannot be reached any more."""
    cluster = three(has_coordinator=True, backup_timeout_s=4.0, **settings)
    cluster["a"].declare("q")
    cluster.settle()
    cluster.record_is_reachable = False
    return cluster


def is_confirmed(cluster: SmallCluster, seconds: float = 2.0) -> bool:
    lsn = cluster["a"].publish("q", "x")
    cluster.wait(seconds)
    return cluster["a"].committed >= lsn


def test_clients_are_served_and_messages_are_confirmed() -> None:
    cluster = away()
    assert is_confirmed(cluster)
    cluster.wait(60)
    assert is_confirmed(cluster)
    assert cluster["a"].is_in(State.PRIMARY)


def test_a_new_backup_catches_up_and_joins() -> None:
    cluster = three(has_coordinator=True, backup_timeout_s=4.0)
    cluster["a"].declare("q")
    cluster.kill("c")
    cluster.settle()
    cluster.record_is_reachable = False
    cluster.start("c")
    cluster.settle()
    assert cluster["c"].is_in(State.READY)
    assert is_confirmed(cluster)


def test_nothing_is_confirmed_once_a_backup_in_sync_is_lost_until_it_is_back() -> None:
    cluster = away()
    cluster.cut("a", "c")
    cluster.wait(6)
    assert not is_confirmed(cluster)
    cluster.heal()
    cluster.wait(3)
    assert is_confirmed(cluster)
    assert cluster["c"].is_in(State.READY)


def test_its_process_may_be_another_one_if_it_has_its_store() -> None:
    cluster = TracedCluster(("a", "b", "c"), has_coordinator=True, has_store=True, backup_timeout_s=4.0)
    for name in "abc":
        cluster.start(name)
    cluster.run()
    assert cluster.promote("a").done
    cluster["a"].declare("q")
    cluster.settle()
    cluster.record_is_reachable = False
    cluster.kill("c")
    cluster.wait(2)
    assert not is_confirmed(cluster)
    cluster.start("c")
    cluster.wait(3)
    assert is_confirmed(cluster)


def test_one_that_has_lost_what_it_held_is_no_way_out() -> None:
    """It cannot say whether it was promoted meanwhile: somebody else may reach the coordinator."""
    cluster = away()
    cluster.kill("c")
    cluster.wait(1)
    cluster.start("c")
    cluster.wait(5)
    assert not is_confirmed(cluster)
    cluster.record_is_reachable = True
    cluster.wait(2)
    assert is_confirmed(cluster)


def test_nobody_is_promoted_when_the_primary_is_lost() -> None:
    cluster = away()
    cluster.kill("a")
    cluster.settle()
    for name in "bc":
        for force in (False, True):
            assert "the coordinator cannot be reached" in cluster.promote(name, force=force).text
    cluster.record_is_reachable = True
    assert cluster.promote("b").done


def test_nor_does_the_primary_hand_over_and_it_goes_on() -> None:
    cluster = away()
    assert not cluster.switch_over("a", "b").done
    cluster.settle()
    assert cluster["a"].is_in(State.PRIMARY)
    assert is_confirmed(cluster)


@pytest.mark.parametrize("lost", [False, True])
def test_reads_are_answered_and_say_since_when_and_why_nothing_is_confirmed(lost: bool) -> None:
    cluster = away()
    if lost:
        cluster.kill("c")
        cluster["a"].publish("q", "x")
    cluster.wait(5)
    stall = cluster["a"].member.commit_stall(cluster.now_s)
    assert (stall is None) is not lost
    assert stall is None or "c left the in-sync set" in stall.why


def test_a_demotion_leaves_nobody_who_leads() -> None:
    cluster = away()
    assert cluster.demote("a").done
    cluster.wait(1)
    assert not [name for name, node in cluster.nodes.items() if node.is_in(State.PRIMARY)]


def test_the_whole_cluster_can_be_shut_down() -> None:
    cluster = away()
    cluster["a"].feed(fx.ShutdownAsked(77, "0" * 32))
    cluster.settle()
    assert cluster["a"].answers[77].done


def test_the_page_has_these_rows() -> None:
    assert len(ROWS) == 15, ROWS
