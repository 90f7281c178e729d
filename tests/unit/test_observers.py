"""A limit on the in-sync set: who is in it, who observes, and that nobody waits for an observer, and none leads.

The promise first, in every story: what is confirmed is held by every member of the recorded in-sync set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Shutdown
from qpid_ha_broker.ha.observers import Admit, FollowerStanding, InSyncView, Release, next_change
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from small_cluster import SmallCluster

FIVE = "abcde"
ZONES = {"a": "x", "b": "x", "c": "y", "d": "y", "e": "z"}


def view(*members: FollowerStanding, others: Iterable[FollowerStanding] = (), **facts: Any) -> InSyncView:
    """Of a primary in zone x."""
    plain = InSyncView(3, 1, "x", members, tuple(others), True, frozenset(), 0.0)
    return plain._replace(**facts)


def of(name: str, *, draining: bool = False, level: bool = True, lag: int = 0) -> FollowerStanding:
    """Of the zone that it has in `ZONES`."""
    return FollowerStanding(name, ZONES[name], draining, level, lag)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (view(of("b"), of("c"), of("d")), ("release", "d")),  # zone y has c, zone x the primary: by name
        (view(of("c"), of("d", lag=1), of("e")), ("release", "d")),
        (view(of("c", lag=1), of("d"), of("e")), ("release", "c")),
        (view(of("c"), of("d"), of("e", lag=9)), ("release", "d")),  # the only one of its zone stays
        (view(of("c"), of("d"), of("e", draining=True)), ("release", "e")),
        (view(of("b"), of("c"), of("d", level=False)), None),  # one is missing already
        (view(of("b"), of("c"), of("d"), is_settled=False), None),
        (view(of("c"), of("e"), others=[of("b")]), None),
        (view(of("c"), others=[of("b"), of("d", level=False)]), ("admit", "b")),
        (view(of("c"), others=[of("d"), of("e")]), ("admit", "e")),
        (view(of("c"), others=[of("b"), of("d", lag=1)]), ("admit", "b")),
        (view(of("c"), others=[of("d")], zones_up=frozenset("xyz")), None),  # e may come
        (view(of("c"), others=[of("d")], zones_up=frozenset("xyz"), short_for_s=1.0), ("admit", "d")),
        (view(of("c"), others=[of("d")], zones_up=frozenset("xyz"), min_in_sync=3), ("admit", "d")),
        (view(of("c"), others=[of("e", draining=True), of("d")]), ("admit", "d")),
        (view(of("c")), None),
        (view(of("c"), of("d"), others=[of("b")], awaited=frozenset("b")), ("admit", "b")),
        (view(of("c"), of("d"), others=[of("b", level=False)], awaited=frozenset("b")), None),
    ],
)
def test_the_table(given: InSyncView, expected: tuple[str, str] | None) -> None:
    change = next_change(given)
    kind = {Admit: "admit", Release: "release"}
    assert (None if change is None else (kind[type(change)], change.name)) == expected


def worker(name: str, machine: str, **facts: Any) -> FollowerStanding:
    """Of no zone."""
    return FollowerStanding(name, machine=machine, **facts)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (view(worker("b", "m1"), worker("c", "m2")), ("release", "b")),  # no more than the limit, but two of a machine
        (view(worker("b", "m2"), worker("c", "m2", lag=1)), ("release", "c")),
        (view(worker("b", "m1"), worker("c", "m2", is_level=False)), None),  # one is missing already
        (view(worker("b", "m1"), worker("c", "m2"), min_in_sync=3), None),  # publishers wait for all three
        (view(worker("b", "m2"), others=[worker("c", "m1"), worker("d", "m2")]), None),
        (view(worker("b", "m2"), others=[worker("c", "m1")], min_in_sync=3), None),
        (view(worker("b", "m2"), others=[worker("c", "m1"), worker("d", "m3")]), ("admit", "d")),
        (view(worker("b", "m2"), others=[worker("c", "m1")], awaited=frozenset("c")), ("admit", "c")),
        (view(worker("b", ""), others=[worker("c", "")]), ("admit", "c")),  # nothing is known of their machines
    ],
)
def test_of_the_workers_of_a_machine_one_is_in_sync(given: InSyncView, expected: tuple[str, str] | None) -> None:
    change = next_change(given._replace(primary_zone="", primary_machine="m1"))
    kind = {Admit: "admit", Release: "release"}
    assert (None if change is None else (kind[type(change)], change.name)) == expected


def test_a_limit_below_what_publishers_wait_for_is_none() -> None:
    with pytest.raises(ValueError, match="most_in_sync"):
        MemberSettings("a", "a-1", ("a:1",), min_in_sync=3, most_in_sync=2)


# --- stories


def five(**settings: float) -> SmallCluster:
    """Five brokers in sync, the first of them primary, with a limit of three that does not count yet."""
    cluster = SmallCluster(*FIVE, most_in_sync=3, **settings)
    cluster.run()
    assert cluster.promote("a").done
    cluster.settle()
    assert cluster["a"].member.status.members == tuple(FIVE)
    return cluster


def have_second_set(
    cluster: SmallCluster, by: str = "a", *, settle: bool = True, zones: Mapping[str, str] = ZONES
) -> None:
    """As the controller does when it is told to."""
    resource_set = cluster[by].resources.replicated
    for name, zone in zones.items():
        resource_set.write(ev.BrokerRegistered(name, "", f"{name}:5672", "", zone, ""))
        resource_set.write(ev.BrokerChanged(name, True, False, 0))
    resource_set.write(ev.SetPlaced("orders", ("a", "b"), (), "", 0, 0))
    cluster[by].want_turn()
    if settle:
        cluster.settle()


def limited(**settings: float) -> SmallCluster:
    """The same with a second set."""
    cluster = five(**settings)
    have_second_set(cluster)
    return cluster


def states(cluster: SmallCluster) -> dict[str, State]:
    """Of those that run."""
    return {name: node.state for name, node in cluster.nodes.items() if node.running}


@pytest.mark.parametrize("has_coordinator", [False, True])
def test_with_a_second_set_those_that_are_too_many_observe_and_one_of_each_zone_stays(has_coordinator: bool) -> None:
    cluster = limited(has_coordinator=has_coordinator)
    assert cluster["a"].member.status.members == ("a", "c", "e")
    observing = {name for name, state in states(cluster).items() if state is State.OBSERVER}
    assert observing == {"b", "d"}
    assert "3 are enough" in cluster["b"].member.status.observes
    facts = {fact["name"]: fact for fact in cluster["a"].member.backups()}
    assert (facts["d"]["state"], facts["e"]["state"]) == ("observer", "ready")
    assert "3 are enough" in str(facts["d"]["why"])
    assert cluster.record is None or cluster.record.members == ("a", "c", "e")


def test_of_each_machine_one_worker_is_in_sync_even_if_the_limit_leaves_room_and_another_one_takes_its_place() -> None:
    cluster = SmallCluster("a", "b", "c", "d", most_in_sync=3)
    cluster.run()
    assert cluster.promote("a").done
    cluster.settle()
    have_second_set(cluster, zones={"a": "/m1", "b": "/m1", "c": "rack/m2", "d": "rack/m2"})
    assert cluster["a"].member.status.members == ("a", "c")
    assert states(cluster) | {"a": State.PRIMARY} == {
        "a": State.PRIMARY, "b": State.OBSERVER, "c": State.READY, "d": State.OBSERVER
    }  # fmt: skip
    cluster.kill("c")
    cluster.wait(0.3)
    assert cluster["a"].member.status.members == ("a", "d")
    cluster.start("c")
    cluster.settle()
    assert cluster["c"].state is State.OBSERVER
    assert cluster["c"].member.status.observes == "another broker of machine m2 is in sync"


@pytest.mark.parametrize("takes_s", [0.3, 1.5])
def test_who_is_to_observe_stays_out_while_a_slow_coordinator_has_yet_to_answer(takes_s: float) -> None:
    cluster = five(has_coordinator=True)
    held = cluster.record_answers = deque()
    have_second_set(cluster, settle=False)
    sizes = []
    for _ in range(20):
        sizes.append(len(cluster["a"].member.status.members))
        cluster.wait(takes_s)
        if held:
            node, answer = held.popleft()
            node.feed(answer)
            cluster.run()
    assert sizes == sorted(sizes, reverse=True), "nobody joins again"
    assert cluster["a"].member.status.members == ("a", "c", "e")
    assert cluster.record is not None
    assert cluster.record.members == ("a", "c", "e")


def test_who_is_to_observe_joins_again_when_the_coordinator_goes_away_at_that_moment() -> None:
    cluster = five(has_coordinator=True)
    have_second_set(cluster, settle=False)
    cluster.record_is_reachable = False
    cluster.wait(1.0)
    assert cluster["a"].member.status.members == ("a", "b", "c", "e")
    cluster.settle()
    assert cluster["a"].member.status.members == tuple(FIVE)


def test_nobody_waits_for_an_observer_which_holds_all_that_is_committed_all_the_same() -> None:
    cluster = limited()
    a, b = cluster["a"], cluster["b"]
    a.declare("q")
    cluster.settle()
    b.paused = True
    lsn = a.publish("q", "1")
    cluster.run()
    assert a.committed >= lsn
    b.paused = False
    cluster.settle()
    assert b.state is State.OBSERVER
    assert b.bodies("q") == ["1"]


def test_an_observer_says_how_far_it_is_with_its_heartbeats_only() -> None:
    cluster = limited()
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    lsn = a.publish("q", "1")
    cluster.run()
    facts = {fact["name"]: fact["lsn"] for fact in a.member.backups()}
    assert facts["c"] == lsn
    assert facts["b"] != lsn
    cluster.wait(1.1)
    assert {fact["name"]: fact["lsn"] for fact in a.member.backups()}["b"] == lsn


@pytest.mark.parametrize("has_coordinator", [False, True])
def test_when_one_in_sync_is_lost_an_observer_of_its_zone_takes_its_place(has_coordinator: bool) -> None:
    cluster = limited(has_coordinator=has_coordinator)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    cluster.kill("c")
    cluster.wait(0.3)
    assert a.member.status.members == ("a", "d", "e")
    lsn = a.publish("q", "1")
    cluster.run()
    assert a.committed >= lsn
    cluster.settle()
    assert cluster["d"].state is State.READY
    cluster.start("c")
    cluster.settle()
    assert cluster["c"].state is State.OBSERVER
    assert a.member.status.members == ("a", "d", "e")


@pytest.mark.parametrize("has_coordinator", [False, True])
def test_after_a_failover_an_observer_joins_the_new_primary(has_coordinator: bool) -> None:
    cluster = limited(has_coordinator=has_coordinator)
    cluster["a"].declare("q")
    cluster["a"].publish("q", "1")
    cluster.settle()
    cluster.kill("a")
    cluster.run()
    assert cluster.promote("c", failover=True).done
    cluster.wait(2)
    assert cluster["c"].member.status.members == ("b", "c", "e")  # zone x has nobody else
    cluster.settle()
    assert states(cluster) == {"b": State.READY, "c": State.PRIMARY, "d": State.OBSERVER, "e": State.READY}
    assert all(node.bodies("q") == ["1"] for node in cluster.nodes.values() if node.running)


@pytest.mark.parametrize("has_coordinator", [False, True])
def test_an_observer_is_promoted_by_force_only(has_coordinator: bool) -> None:
    cluster = limited(has_coordinator=has_coordinator)
    a = cluster["a"]
    a.declare("q")
    a.publish("q", "1")
    cluster.settle()
    refused = cluster.promote("b")
    assert not refused.done
    assert "a, c, e" in refused.text
    assert cluster["b"].state is State.OBSERVER
    assert not cluster.switch_over("a", "b").done
    for name in "ace":
        cluster.kill(name)
    cluster.run()
    assert not cluster.promote("b").done
    assert cluster.promote("b", force=True).done
    cluster.settle()
    assert cluster["b"].bodies("q") == ["1"]
    assert states(cluster) == {"b": State.PRIMARY, "d": State.READY}


def test_nobody_is_let_go_while_one_is_missing() -> None:
    cluster = five(backup_timeout_s=5.0, has_coordinator=True)
    cluster["e"].paused = True
    cluster.kill("a")
    cluster.run()
    assert cluster.promote("b").done
    b = cluster["b"]
    b.resources.replicated.write(ev.SetPlaced("orders", ("a", "b"), (), "", 0, 0))
    b.want_turn()
    cluster.wait(3)
    assert "e" in b.member.status.members
    cluster.wait(4)
    assert b.member.status.members == ("b", "c", "d")
    cluster["e"].paused = False
    cluster.settle()
    assert cluster["e"].state is State.OBSERVER


def test_with_fewer_in_sync_than_wanted_publishes_are_confirmed_as_soon_as_an_observer_has_joined() -> None:
    cluster = limited(min_in_sync=3, has_coordinator=True)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    cluster.kill("e")  # nobody else is of its zone
    cluster.wait(0.3)
    assert len(a.member.status.members) == 3
    lsn = a.publish("q", "1")
    cluster.run()
    assert a.committed >= lsn


def test_when_the_last_other_set_is_gone_all_are_in_sync_again() -> None:
    cluster = limited()
    cluster["a"].resources.replicated.write(ev.SetDeleted("orders"))
    cluster["a"].want_turn()
    cluster.settle()
    assert cluster["a"].member.status.members == tuple(FIVE)
    assert all(state is not State.OBSERVER for state in states(cluster).values())


def test_no_more_than_the_limit_join_a_cluster_that_begins_again() -> None:
    cluster = limited(has_coordinator=True)
    cluster["a"].declare("q")
    cluster["a"].publish("q", "1")
    cluster.settle()
    for name in "bcde":
        cluster.kill(name)
        cluster.run()
        cluster.start(name)
        cluster.settle()
    assert len(cluster["a"].member.status.members) == 3
    assert sorted(states(cluster).values()) == ["observer", "observer", "primary", "ready", "ready"]
    assert all(node.bodies("q") == ["1"] for node in cluster.nodes.values())


def test_in_a_cluster_with_one_set_the_limit_counts_for_nothing() -> None:
    cluster = five()
    assert not any("observes" in notice for notice in cluster["a"].notices)
    assert set(states(cluster).values()) == {State.PRIMARY, State.READY}


def test_a_shutdown_marks_the_store_of_an_observer_that_holds_the_same_and_waits_for_none() -> None:
    cluster = SmallCluster(*FIVE, most_in_sync=3)
    cluster.run()
    assert cluster.promote("a").done
    cluster.settle()
    have_second_set(cluster)
    a, lagging = cluster["a"], cluster["d"]
    a.declare("q")
    a.publish("q", "1")
    cluster.settle()
    cluster.cut("a", "d")
    lsn = a.publish("q", "2")
    cluster.run()
    assert a.committed >= lsn
    a.feed(fx.ShutdownAsked(77, "u-1"))
    cluster.run()
    assert a.answers[77].done
    assert {name: node.clean_end for name, node in cluster.nodes.items()} == {
        "a": "u-1", "b": "u-1", "c": "u-1", "d": None, "e": "u-1",
    }  # fmt: skip

    # What was on its way comes now, without the last event.
    lagging.feed(fx.FrameReceived(cluster.link("d", "a"), Shutdown(a.member.status.generation, lsn, "u-1")))
    cluster.run()
    assert lagging.clean_end == ""


def test_who_never_left_the_record_is_waited_for_again_although_the_coordinator_is_away() -> None:
    """Another one has joined in its place meanwhile, and until the departure is recorded it counts all the same."""
    cluster = limited(has_coordinator=True)
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    (_, one, other) = a.member.status.members
    cluster.record_is_reachable = False
    cluster.disconnect("a", one)
    cluster.cut("a", one)
    cluster.wait(5)
    lsn = a.publish("q", "meanwhile")
    cluster.wait(2)
    assert a.committed < lsn, "nobody knows that it has left"
    assert one not in a.member.status.members
    assert a.member.primary is not None
    assert len(a.member.primary.in_sync.members) == 3, "another one has joined"

    cluster.heal()
    cluster.wait(5)

    assert a.committed >= lsn
    assert cluster[one].is_in(State.READY)
    assert other in a.member.status.members
    cluster.record_is_reachable = True
    cluster.wait(10)
    assert len(a.member.status.members) == 3, "and again no more than there should be"
