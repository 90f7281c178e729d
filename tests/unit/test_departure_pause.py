"""When a primary has it recorded that a backup left: at once if somebody waits for that, else a moment later."""

from __future__ import annotations

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from small_cluster import SmallCluster, three

PAUSE_S = 2.0
GRACE_S = 0.5


@pytest.fixture
def cluster() -> SmallCluster:
    """`a` leads, everybody is in sync, and all is confirmed."""
    cluster = three(has_coordinator=True, departure_pause_s=PAUSE_S)
    cluster["a"].declare("orders")
    cluster.settle()
    return cluster


def members(cluster: SmallCluster) -> tuple[str, ...]:
    """Who is recorded as in sync."""
    assert cluster.record is not None
    return cluster.record.members


def asked_since(cluster: SmallCluster) -> int:
    """How many requests the primary has made so far, of whomever."""
    return cluster["a"].member._ctx._last_number


def test_one_for_which_nobody_waits_is_recorded_after_the_pause_and_costs_nothing_before(cluster: SmallCluster) -> None:
    before = asked_since(cluster)
    cluster.kill("c")
    cluster.wait(PAUSE_S - GRACE_S)
    assert (members(cluster), asked_since(cluster)) == (("a", "b", "c"), before)

    cluster.wait(2 * GRACE_S)

    assert members(cluster) == ("a", "b")
    assert cluster["a"].committed == cluster["a"].resources.default.log.last_lsn


def test_what_is_published_meanwhile_has_it_recorded_at_once(cluster: SmallCluster) -> None:
    cluster.kill("c")
    cluster.run()
    assert members(cluster) == ("a", "b", "c")

    lsn = cluster["a"].publish("orders", "one")
    cluster.run()

    assert members(cluster) == ("a", "b")
    assert cluster["a"].committed >= lsn


def test_what_waits_for_the_backup_when_it_is_lost_has_it_recorded_at_once(cluster: SmallCluster) -> None:
    cluster["c"].paused = True
    lsn = cluster["a"].publish("orders", "one")
    cluster.run()
    assert cluster["a"].committed < lsn

    cluster.kill("c")
    cluster.run()

    assert members(cluster) == ("a", "b")
    assert cluster["a"].committed >= lsn


def test_a_second_backup_that_is_lost_in_the_pause_may_wait_too(cluster: SmallCluster) -> None:
    cluster.kill("c")
    cluster.run()
    cluster.kill("b")
    cluster.wait(PAUSE_S - GRACE_S)
    assert members(cluster) == ("a", "b", "c")

    lsn = cluster["a"].publish("orders", "one")
    cluster.run()

    assert members(cluster) == ("a",)
    assert cluster["a"].committed >= lsn


def test_nothing_is_confirmed_before_it_is_recorded(cluster: SmallCluster) -> None:
    """Who was lost may be asked to lead, as the record says that it was in sync: it must have what was confirmed."""
    cluster.kill("c")
    cluster.run()
    cluster.record_is_reachable = False
    lsn = cluster["a"].publish("orders", "one")
    cluster.settle()
    assert cluster["a"].committed < lsn

    cluster.record_is_reachable = True
    cluster.settle()

    assert members(cluster) == ("a", "b")
    assert cluster["a"].committed >= lsn


def test_one_that_is_back_within_the_pause_is_recorded_as_in_sync_at_once(cluster: SmallCluster) -> None:
    cluster.disconnect("a", "c")
    cluster.run()
    cluster.wait(PAUSE_S - GRACE_S)

    assert cluster["c"].state is State.READY
    assert members(cluster) == ("a", "b", "c")
    assert cluster.record is not None
    assert cluster.record.epoch == cluster["a"].resources.default.state.in_sync.epoch


def test_a_cluster_that_is_shut_down_in_the_pause_ends_level(cluster: SmallCluster) -> None:
    cluster.kill("c")
    cluster.run()
    cluster["a"].feed(fx.ShutdownAsked(77, "end-1"))
    cluster.wait(2 * PAUSE_S)

    assert members(cluster) == ("a", "b")
    assert cluster["a"].answers[77].done
