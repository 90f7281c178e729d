"""What an operator is told while nothing can be committed: since when, why, and not a line for each attempt."""

from __future__ import annotations

from qpid_ha_broker.ha.states import State
from small_cluster import SmallCluster, three


def without_coordinator() -> SmallCluster:
    """`c` has died since the coordinator is away, so that it left cannot be recorded."""
    cluster = three(has_coordinator=True, backup_timeout_s=4.0)
    cluster["a"].declare("q")
    cluster.settle()
    cluster.record_is_reachable = False
    cluster.kill("c")
    cluster["a"].publish("q", "waits")
    return cluster


def test_a_primary_that_commits_all_waits_for_nothing() -> None:
    cluster = three()
    cluster["a"].declare("q")
    cluster.wait(5)
    for node in cluster.nodes.values():
        assert node.member.commit_stall(cluster.now_s) is None


def test_it_says_since_when_it_commits_nothing_and_that_the_record_is_what_is_missing() -> None:
    cluster = without_coordinator()
    cluster.wait(0.5)
    assert cluster["a"].member.commit_stall(cluster.now_s) is None, "no wait that anybody would ask about"
    cluster.wait(7.5)
    stall = cluster["a"].member.commit_stall(cluster.now_s)
    assert stall is not None
    assert stall.why == "that c left the in-sync set is not recorded: unreachable"
    assert 7.0 < stall.stalled_s <= 8.0
    assert cluster["b"].member.commit_stall(cluster.now_s) is None, "a backup commits nothing itself"


def test_it_names_the_backup_that_does_not_acknowledge() -> None:
    cluster = three(backup_timeout_s=4.0)
    cluster["a"].declare("q")
    cluster.settle()
    cluster["b"].paused = True
    cluster["a"].publish("q", "waits")
    cluster.wait(2)
    stall = cluster["a"].member.commit_stall(cluster.now_s)
    assert stall is not None
    assert stall.why == "b, in sync, did not acknowledge it"


def test_the_reason_is_logged_once_and_then_seldom_and_that_it_is_over() -> None:
    cluster = without_coordinator()
    cluster.wait(20)
    lines = [text for text in cluster["a"].notices if "cannot be recorded" in text]
    assert lines == ["the in-sync set cannot be recorded, confirmations wait: unreachable"]
    cluster.wait(20)
    lines = [text for text in cluster["a"].notices if "cannot be recorded" in text]
    assert len(lines) == 2
    assert "cannot be recorded for 3" in lines[1]
    cluster.record_is_reachable = True
    cluster.wait(2)
    assert any("confirmations go on" in text for text in cluster["a"].notices)
    assert cluster["a"].is_in(State.PRIMARY)
    assert cluster["a"].member.commit_stall(cluster.now_s) is None
