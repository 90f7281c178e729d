"""What the controller answers to what it cannot do, where replicas go, and who counts as failed: case by case."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from controller_bench import SETTINGS, Bench, report
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.context import Orders
from qpid_ha_broker.cluster.controller import Controller
from qpid_ha_broker.cluster.liveness import FIRST_REPORTS_S, BrokerLife, Liveness
from qpid_ha_broker.cluster.messages import OrderKind
from qpid_ha_broker.cluster.placement import (
    Placement,
    PlacementBroker,
    PlacementSet,
    Ranked,
    rank,
    ring,
    spread,
    static,
)
from qpid_ha_broker.cluster.promotion_turns import FIRST_AT_ONCE, FIRST_S, PROMOTED_AT_ONCE
from qpid_ha_broker.cluster.replicas import ReplicaStep, check, wanted_replicas
from qpid_ha_broker.cluster.shutdown import LIMIT_S, RESUME_S
from qpid_ha_broker.cluster_map import BrokerPlace, SetEntry
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.types import Scalar


def test_a_cluster_of_one_set_has_nothing_in_its_map() -> None:
    bench = Bench("a", "b", "c")

    bench.feed(ms.BrokerDisconnected("b"))
    bench.now_s = 0.9
    bench.wait()

    assert bench.map.is_empty


def test_the_first_set_brings_all_brokers_into_the_map() -> None:
    bench = Bench("a", "b", "c")

    assert bench.ask(ms.CreateSet("orders")).done
    assert sorted(bench.map.brokers) == ["a", "b", "c"]
    assert len(bench.map.sets["orders"].replicas) == 3


@pytest.mark.parametrize(
    ("request_", "needs"),
    [
        (ms.CreateSet("orders"), "already"),
        (ms.CreateSet("default"), "already"),
        (ms.CreateSet("x", ("a", "z")), "no broker z"),
        (ms.CreateSet("x", ("a", "a")), "at most one replica"),
        (ms.CreateSet("x", min_replicas=4), "there are 3 brokers"),
        (ms.CreateSet("x", ("a",), preferred="b"), "should lead"),
        (ms.CreateSet(""), "1 to 64"),
        (ms.CreateSet("Orders/new"), "lower-case"),
        (ms.CreateSet("x", min_in_sync=4), "there are 3 brokers"),
        (ms.DeleteSet("x"), "no resource set x"),
        (ms.TransferPrimary("x"), "no resource set x"),
        (ms.TransferPrimary("orders", "b"), "no primary"),
        (ms.TransferPrimary("orders", "z"), "no broker z"),
        (ms.PromoteReplica("x", "b"), "no resource set x"),
        (ms.PromoteReplica("orders", "z", force=True), "no broker z"),
        (ms.PromoteReplica("orders", "b", force=True), "start it first"),
        (ms.AddReplica("orders"), "each open broker"),
        (ms.AddReplica("orders", "b"), "already"),
        (ms.AddReplica("orders", "z"), "no broker z"),
        (ms.AddReplica("x"), "no resource set x"),
        (ms.RemoveReplica("x", "b"), "no resource set x"),
        (ms.TrimReplicas("x"), "no resource set x"),
        (ms.RemoveReplica("orders", "z"), "no replica"),
        (ms.RemoveReplica("orders", "b"), "wants 3"),
        (ms.DrainBroker("b"), "--force"),
        (ms.DrainBroker("z"), "no broker z"),
        (ms.ForgetBroker("b"), "is up"),
        (ms.ForgetBroker("z"), "no broker z"),
        (ms.FailBroker("a"), "is the controller"),
        (ms.SetPolicies((("*", 0),)), "no policy"),
        (ms.SetPolicies((("*", 2), ("*", 3))), "two policies"),
        (ms.SettleQueue("q", {}, "x"), "no resource set x"),
        (ms.SettleQueue("q", {}, "x", missing=True, preferred="z"), "no broker z"),
        (ms.SettleQueue("q", {}, "../x", missing=True), "../x"),
        (ms.DeleteQueue("q"), "no queue q"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason_and_changes_nothing(
    request_: ms.ClusterRequest, needs: str
) -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    before = list(bench.map.events(1))

    answer = bench.ask(request_)

    assert not answer.done
    assert needs in answer.text
    assert list(bench.map.events(1)) == before


def test_a_broker_that_is_being_drained_gets_no_replica_and_leads_no_new_set() -> None:
    bench = Bench("a", "b", "c", "d")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c")))
    assert bench.ask(ms.DrainBroker("d")).done

    for request in (
        ms.CreateSet("x", ("a", "d")), ms.CreateSet("x", preferred="d"), ms.AddReplica("orders", "d")
    ):  # fmt: skip
        answer = bench.ask(request)
        assert not answer.done
        assert "d is being drained: `qpid-ha undrain d`" in answer.text
    assert sorted(bench.map.sets) == ["orders"]


def test_an_older_broker_keeps_the_cluster_at_one_set() -> None:
    bench = Bench("a", "b")
    backups = (ms.BackupReport("b", True, 0), ms.BackupReport("old", True, 0))
    bench.hosts("a", ms.ReplicaReport("default", "primary", generation=1, backups=backups))

    bench.feed(ms.RequestReceived(7, ms.CreateSet("orders")))
    bench.now_s = SETTINGS.failure_timeout_s
    bench.wait()

    (answer,) = bench.answers()
    assert not answer.done
    assert "old" in answer.text
    assert "upgrade" in answer.text
    assert bench.map.is_empty


def test_who_asks_for_a_set_before_all_brokers_have_reported_waits_for_those() -> None:
    bench = Bench("a", "b")
    backups = (ms.BackupReport("b", True, 0), ms.BackupReport("c", True, 0))
    bench.hosts("a", ms.ReplicaReport("default", "primary", generation=1, backups=backups))

    assert bench.feed(ms.RequestReceived(7, ms.CreateSet("orders"))) == []
    bench.hosts("c")
    bench.wait()
    bench.feed(ms.MapCommitted(bench.lsn))

    (answer,) = bench.answers()
    assert answer.done
    assert sorted(bench.map.brokers) == ["a", "b", "c"]


def test_a_broker_under_a_name_that_lives_is_refused_and_taken_in_once_that_one_has_failed() -> None:
    bench = Bench("a", "b")
    bench.ask(ms.CreateSet("orders"))
    other = report("b", uuid="another", instance="b/other")

    (refused,) = [each for each in bench.feed(ms.ReportReceived(other)) if isinstance(each, ms.RefuseBroker)]
    assert "uuid-b" in refused.text
    bench.now_s = 0.5
    bench.feed(ms.BrokerDisconnected("b", "b/1"))
    bench.wait(0.4)
    bench.feed(ms.ReportReceived(other))

    assert bench.map.brokers["b"].uuid == "another"


def test_a_broker_that_comes_back_without_its_data_waits_for_the_process_before_it_to_count_as_gone() -> None:
    bench = Bench("a", "b")
    bench.ask(ms.CreateSet("orders"))
    other = report("b", uuid="another", instance="b/other")
    bench.feed(ms.BrokerDisconnected("b", "b/1"))

    assert bench.feed(ms.ReportReceived(other)) == []
    bench.wait(0.4)
    bench.feed(ms.ReportReceived(other))

    assert bench.map.brokers["b"].uuid == "another"
    told = "broker b is back with another UUID: what it held is gone, and is copied again"
    assert told in bench.controller_history("b")


def test_a_broker_whose_connection_is_reset_and_who_takes_no_other_one_has_failed_at_once() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    bench.feed(ms.BrokerDisconnected("b", "b/1"))
    bench.wait()
    assert bench.map.brokers["b"].up

    bench.feed(ms.BrokerRefuses("b", "b/1"))
    bench.wait()

    assert not bench.map.brokers["b"].up


def test_a_refusal_counts_only_for_the_process_whose_connection_was_reset_and_until_it_is_heard_of() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    bench.feed(ms.BrokerRefuses("b", "b/1"))
    bench.feed(ms.BrokerDisconnected("b", "b/1"))
    bench.feed(ms.BrokerRefuses("b", "b/another"))
    bench.wait()
    assert bench.map.brokers["b"].up

    bench.feed(ms.BrokerRefuses("b", "b/1"))
    bench.hosts("b")
    bench.feed(ms.BrokerDisconnected("b", "b/1"))
    bench.wait()

    assert bench.map.brokers["b"].up


def test_a_controller_that_slept_gives_one_that_refused_its_time_too() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    bench.feed(ms.BrokerDisconnected("b", "b/1"))
    bench.feed(ms.BrokerRefuses("b", "b/1"))
    bench.now_s += 60.0
    bench.wait()
    bench.wait()

    assert bench.map.brokers["b"].up


def test_a_new_controller_asks_at_once_who_is_gone_and_has_others_lead_what_the_one_before_it_led() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c")))
    hosted = [ms.ReplicaReport("orders", "ready", generation=1, lsn=5) for _ in range(3)]
    for name, replica in zip("abc", hosted, strict=True):
        bench.hosts(name, replica)
    bench.lead("a", "orders", members=("a", "b", "c"), epoch=1)
    bench.controller = Controller(SETTINGS)
    bench.said.clear()
    bench.now_s += 10.0
    bench.feed(ms.ControllerBegan(bench.map, "b", 2, 0))
    looked_for = [effect for effect in bench.said if isinstance(effect, ms.LookForBroker)]
    assert [(each.name, each.address) for each in looked_for] == [("a", "a:1"), ("c", "c:1")], "who leads most first"
    bench.feed(ms.ReportReceived(report("b", hosted[1])))
    bench.feed(ms.ReportReceived(report("c", hosted[2])))
    assert not bench.given(), "it may be there"

    bench.feed(ms.BrokerRefuses("a", ""))
    bench.feed(ms.BrokerRefuses("c", ""))
    bench.wait()

    assert {(each.set, each.kind) for each in bench.given()} >= {("orders", OrderKind.PROMOTE)}
    assert not bench.map.brokers["a"].up
    assert bench.map.brokers["c"].up, "it has reported since it was looked for"


def anew(bench: Bench, name: str) -> None:
    """The controller is on another broker now, and has heard of nobody."""
    bench.controller = Controller(SETTINGS)
    bench.said.clear()
    bench.now_s += 10.0
    bench.feed(ms.ControllerBegan(bench.map, name, 2, 0))


def led_by_three(bench: Bench) -> list[ms.ReplicaReport]:
    """Twelve sets, four led by each of a, b and c; what a backup has of them all."""
    names = [f"s{number:02}" for number in range(12)]
    led_sets(bench, **{name: "abc"[number % 3] for number, name in enumerate(names)})
    return [ms.ReplicaReport(name, "connecting", "", 1, 5) for name in names]


def promoted(bench: Bench) -> Counter[str]:
    return Counter(order.broker for order in bench.given() if order.kind is OrderKind.PROMOTE)


def leaders_and(replicas: list[ms.ReplicaReport], *numbers: int) -> list[ms.ReplicaReport]:
    """A broker's report, which leads those."""
    return [
        ms.ReplicaReport(replica.set, "primary", "active", 1, 5) if number in numbers else replica
        for number, replica in enumerate(replicas)
    ]


def test_a_new_controller_spreads_what_the_one_before_it_led_over_those_that_are_about_to_report() -> None:
    bench = Bench("a", "b", "c")
    replicas = led_by_three(bench)
    anew(bench, "b")
    bench.hosts("b", *leaders_and(replicas, 1, 4, 7, 10))
    bench.feed(ms.BrokerRefuses("a", ""))
    bench.wait()
    assert promoted(bench) == {"b": 2}, "those that it would lead in any case are not kept waiting"

    bench.hosts("c", *leaders_and(replicas, 2, 5, 8, 11))

    assert promoted(bench) == {"b": 2, "c": 2}, "at once, and without another tick"


@pytest.mark.parametrize("is_gone", [False, True])
def test_it_leads_all_itself_where_the_others_are_silent_for_a_moment_or_gone(is_gone: bool) -> None:
    bench = Bench("a", "b", "c")
    replicas = led_by_three(bench)
    anew(bench, "b")
    bench.hosts("b", *leaders_and(replicas, 1, 4, 7, 10))
    bench.feed(ms.BrokerRefuses("a", ""))
    if is_gone:
        bench.feed(ms.BrokerRefuses("c", ""))
    bench.wait(0.0 if is_gone else FIRST_REPORTS_S + 0.1)
    assert promoted(bench)["b"] == (8 if is_gone else 4)


def test_default_does_not_wait_for_a_broker_that_has_failed_or_no_record_could_be_committed() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    bench.feed(ms.BrokerDisconnected("b"))
    bench.said.clear()
    bench.wait(0.5)

    assert [(each.broker, each.set, each.kind, each.to) for each in bench.given()] == [
        ("a", "default", OrderKind.DROP, "b")
    ]


def test_a_set_with_queues_is_not_deleted() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    assert bench.ask(ms.SettleQueue("q", {}, "orders")).result == {"set": "orders", "created": True}
    assert bench.ask(ms.SettleQueue("q", {}, "orders")).result == {"set": "orders", "created": False}
    assert "--lost" in bench.ask(ms.DeleteSet("orders")).text, "nobody leads it"
    bench.lead("a", "orders", members=("a",))
    bench.hosts("a", ms.ReplicaReport("orders", "primary", generation=1))

    assert bench.ask(ms.LocateQueue("q")).result == {"set": "orders"}
    assert bench.ask(ms.DeleteSet("orders")).text == "set orders has 1 queue (q): delete them first"
    bench.feed(ms.RequestReceived(900, ms.DeleteQueue("q")))
    again = bench.ask(ms.SettleQueue("q", {}, "orders"))
    assert ("being deleted" in again.text, again.result) == (True, {"reason": "in-use"})
    bench.feed(ms.ReportReceived(report("a")._replace(deleted_queues=(bench.map.queues["q"].id,))))
    bench.feed(ms.MapCommitted(bench.lsn))
    assert bench.answers()[-1][:3] == (900, True, "queue q is deleted from orders")
    assert bench.ask(ms.LocateQueue("q")).result == {"set": ""}
    assert bench.ask(ms.DeleteSet("orders")).done


def test_a_set_that_is_lost_is_deleted_with_its_queues_and_their_names_are_free() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b")
    bench.ask(ms.SettleQueue("q", {}, "orders"))

    assert bench.ask(ms.DeleteSet("orders", lost=True)).text == (
        "set orders is not lost: b leads it; delete its queues"
    )
    bench.ask(ms.FailBroker("b"))
    assert "set delete --lost orders" in bench.ask(ms.ForgetBroker("b")).text
    assert bench.ask(ms.DeleteSet("orders", lost=True)).done
    assert not bench.map.queues
    assert bench.ask(ms.ForgetBroker("b")).done


def test_sets_that_are_missing_are_made_once_and_their_primaries_spread_over_brokers() -> None:
    bench = Bench("a", "b", "c")

    for number in range(6):
        name = f"shard-{number % 3 + 1}"
        assert bench.ask(ms.SettleQueue(f"q{number}", {}, name, missing=True)).result["set"] == name

    assert {entry.preferred for entry in bench.map.sets.values()} == {"a", "b", "c"}
    assert [len(bench.map.queues_of(name)) for name in bench.map.sets] == [2, 2, 2]


def test_a_queue_of_a_brokers_own_set_has_that_made_with_its_preferred_primary() -> None:
    bench = Bench("a", "b", "c")
    for name in ("q1", "q2"):
        assert bench.ask(ms.SettleQueue(name, {}, "primary-b", missing=True, preferred="b")).done
    assert [(entry.name, entry.preferred) for entry in bench.map.sets.values()] == [("primary-b", "b")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"qpid.max_count": "5", "own": 1}, {"set": "orders", "created": False}),
        ({"qpid.max_count": 6, "own": 1}, {"reason": "already-exists"}),
        ({"qpid.max_count": 5}, {"reason": "already-exists"}),
        ({"qpid.max_count": "few"}, {"reason": "invalid-argument"}),
    ],
)
def test_a_queue_that_is_there_is_found_with_the_same_arguments_only_and_keeps_its_set(
    arguments: dict[str, Scalar], expected: dict[str, object]
) -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    bench.ask(ms.CreateSet("other"))
    bench.ask(ms.SettleQueue("q", {"qpid.max_count": 5, "own": 1}, "orders"))

    assert bench.ask(ms.SettleQueue("q", arguments, "other")).result == expected
    assert bench.map.queues["q"].set == "orders"


def test_a_record_is_answered_when_it_is_committed_and_not_before() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c")))
    empty = bench.map.sets["orders"].record
    wanted = ev.SetRecorded("orders", "c", 1, "b", 1, ("b",), True)

    at_once = bench.feed(ms.RecordRequested("b", 1, "orders", empty, wanted))
    too_late = bench.feed(ms.RecordRequested("c", 2, "orders", empty, wanted._replace(primary="c")))
    assert not any(isinstance(effect, ms.AnswerRecord) for effect in [*at_once, *too_late])

    answers = [each for each in bench.feed(ms.MapCommitted(bench.lsn)) if isinstance(each, ms.AnswerRecord)]
    assert [(each.broker, each.written, each.record) for each in answers] == [("b", True, wanted), ("c", False, wanted)]


def test_records_that_are_asked_for_together_are_written_together_and_of_two_for_one_set_the_first_counts() -> None:
    bench = Bench("a", "b", "c")
    requests = []
    for number, name in enumerate(("one", "two", "three")):
        bench.ask(ms.CreateSet(name, ("a", "b", "c")))
        wanted = ev.SetRecorded(name, "c", 1, "b", 1, ("b",), True)
        requests.append(ms.RecordRequested("b", number, name, bench.map.sets[name].record, wanted))
    rival = requests[0].wanted
    assert rival is not None
    requests.append(requests[0]._replace(broker="c", number=9, wanted=rival._replace(primary="c")))

    at_once = bench.feed(ms.HeardTogether(tuple(requests)))

    (written,) = [effect for effect in at_once if isinstance(effect, ms.WriteMap)]
    assert [event.name for event in written.events if isinstance(event, ev.SetRecorded)] == ["one", "two", "three"]
    answers = [each for each in bench.feed(ms.MapCommitted(bench.lsn)) if isinstance(each, ms.AnswerRecord)]
    assert [(each.broker, each.number, each.written) for each in answers] == [
        ("b", 0, True), ("b", 1, True), ("b", 2, True), ("c", 9, False)
    ]  # fmt: skip


def led(bench: Bench, name: str, primary: str, *backups: str) -> None:
    """Have the set made, and led there, with these in sync."""
    members = (primary, *backups)
    bench.ask(ms.CreateSet(name, members))
    bench.lead(primary, name, epoch=1, members=members, claimed=True)
    leading = ms.ReplicaReport(
        name, "primary", "active", 1, 5, backups=tuple(ms.BackupReport(each, True, 0) for each in backups),
        load=ms.SetLoad(messages=7),
    )  # fmt: skip
    bench.hosts(primary, leading)
    for each in backups:
        bench.hosts(each, ms.ReplicaReport(name, "ready", "", 1, 5))


def orders(bench: Bench, kind: ms.OrderKind) -> list[tuple[str, str, str]]:
    """Of that kind, as (broker, set, to)."""
    return [(each.broker, each.set, each.to) for each in bench.given() if each.kind is kind]


def test_a_broker_that_is_about_to_stop_hands_over_what_it_leads_and_gets_nothing() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")

    assert bench.ask(ms.LeaveBroker("b")).result == {"left": 1}
    assert orders(bench, ms.OrderKind.SWITCH_OVER) == [("b", "orders", "c")]

    assert bench.ask(ms.LeaveBroker("c")).result == {"left": 0}, "it leads nothing yet"
    assert bench.ask(ms.LeaveBroker("b")).result == {"left": 0}, "nobody else stays who could lead"
    bench.now_s = 6.0
    bench.hosts("b")
    bench.hosts("c")
    assert bench.ask(ms.LeaveBroker("b")).result == {"left": 1}, "the other one thought better of it"


LOOKS_S = 1.2
"""The controller looks at all sets once a second; less than after what a broker that is silent counts as failed."""


def cannot_write(bench: Bench, name: str, primary: str, *backups: str) -> None:
    """That primary of the set, which has these in sync, says that its store takes nothing."""
    told = tuple(ms.BackupReport(each, True, 3) for each in backups)
    leading = ms.ReplicaReport(name, "primary", "active", 1, 5, problem="no room", backups=told, unwritable=True)
    bench.hosts(primary, leading)


def test_a_set_whose_primary_cannot_write_goes_to_who_is_in_sync() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    cannot_write(bench, "orders", "b", "c")
    (order,) = [each for each in bench.given() if each.kind is ms.OrderKind.SWITCH_OVER]
    assert (order.broker, order.set, order.to) == ("b", "orders", "c")
    assert order.cause == "the store of b cannot be written"


def test_it_stays_where_nobody_else_is_in_sync() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.hosts("c", ms.ReplicaReport("orders", "catchup", "", 1, 5, problem="no room", unwritable=True))
    cannot_write(bench, "orders", "b")
    bench.wait(LOOKS_S)
    assert orders(bench, ms.OrderKind.SWITCH_OVER) == []


def test_a_controller_that_cannot_write_itself_begins_no_move_that_it_could_not_record() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.hosts("a", ms.ReplicaReport("default", "primary", "active", 1, 5, problem="no room", unwritable=True))
    cannot_write(bench, "orders", "b", "c")
    bench.wait(LOOKS_S)
    assert orders(bench, ms.OrderKind.SWITCH_OVER) == []
    bench.hosts("a", ms.ReplicaReport("default", "primary", "active", 1, 6))
    cannot_write(bench, "orders", "b", "c")
    bench.hosts("c", ms.ReplicaReport("orders", "ready", "", 1, 5))
    bench.wait(LOOKS_S)
    assert orders(bench, ms.OrderKind.SWITCH_OVER) == [("b", "orders", "c")]


def test_a_set_is_not_transferred_to_a_broker_without_a_ready_replica() -> None:
    bench = Bench("a", "b", "c", "d")
    led(bench, "orders", "b", "c")
    refused = bench.ask(ms.TransferPrimary("orders", "d"))
    assert (refused.done, refused.text) == (False, "d has no replica of orders that is ready; ready are: c")


def test_a_broker_that_has_stopped_and_is_back_at_once_gets_back_what_prefers_it() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.ask(ms.TransferPrimary("orders", "c"))
    bench.ask(ms.LeaveBroker("c"))
    bench.ask(ms.FailBroker("c"))

    bench.hosts("c", ms.ReplicaReport("orders", "ready", "", 1, 5), instance="c/2")

    moves = bench.ask(ms.Rebalance(plan_only=True)).result["moves"]
    assert isinstance(moves, list)
    assert [(each["set"], each["to"]) for each in moves] == [("orders", "c")]


def test_a_broker_that_is_about_to_stop_gets_a_new_set_only_where_nobody_else_is_left_and_is_not_to_lead_it() -> None:
    bench = Bench("a", "b", "c", "d")
    bench.ask(ms.CreateSet("first"))  # so that `d` has fewest
    assert bench.map.sets["first"].replicas == ("a", "b", "c")
    bench.ask(ms.LeaveBroker("d"))

    bench.ask(ms.CreateSet("second", min_replicas=2))
    bench.ask(ms.CreateSet("third", min_replicas=4))
    for number in range(1, 5):
        bench.ask(ms.SettleQueue(f"q{number}", {}, f"shard-{number}", missing=True))

    assert "d" not in bench.map.sets["second"].replicas
    assert bench.map.sets["third"].replicas[-1] == "d"
    assert {bench.map.sets[f"shard-{number}"].preferred for number in range(1, 5)} == {"a", "b", "c"}
    bench.now_s = 6.0
    for name in "abcd":
        bench.hosts(name)
    bench.ask(ms.CreateSet("fourth", min_replicas=2))
    assert "d" in bench.map.sets["fourth"].replicas, "it thought better of it"


def test_while_a_primary_hands_over_nobody_else_is_told_to_lead_unless_the_next_one_fails() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.feed(ms.RequestReceived(99, ms.TransferPrimary("orders", "c")))
    number = bench.given()[-1].number
    told = len(orders(bench, OrderKind.PROMOTE))

    bench.now_s = 5.0
    bench.feed(ms.OrderAnswered("b", number, True, "c takes over"))
    handed = ms.ReplicaReport("orders", "connecting", "", 1, 5)
    bench.hosts("b", handed)
    assert len(orders(bench, OrderKind.PROMOTE)) == told

    bench.wait()  # it was asleep until now
    bench.wait(0.3)
    bench.feed(ms.BrokerDisconnected("c"))
    for _ in range(6):
        bench.now_s += 0.1
        bench.hosts("b", handed)
        bench.wait()
    assert orders(bench, OrderKind.PROMOTE)[told:] == [("b", "orders", "")]


def test_the_history_says_who_leads_what_since_when_and_why() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.now_s = 0.5
    bench.feed(ms.RequestReceived(99, ms.FailBroker("b", "its rack burns")))
    bench.lead("c", "orders", members=("c",))

    told = bench.ask(ms.ShowHistory("orders")).result["entries"]
    assert isinstance(told, list)
    assert [(each["at_ms"], each["text"]) for each in told] == [
        (0, "b leads from generation 1: its brokers agreed on it"),
        (500, "c leads instead of b from generation 2: b has failed"),
    ]
    (failed,) = bench.controller_history("b")
    assert failed == "broker b has failed: its rack burns; it leads 1 set"


def facts(bench: Bench) -> tuple[object, ...]:
    """Failures, and of the last one the broker, the sets that it led, and how long it was felt."""
    told = bench.controller.facts
    return tuple(told.get(f"last_failure_{each}") for each in ("broker", "sets", "s"))


def test_a_failure_lasts_from_when_the_broker_was_there_until_each_of_its_sets_is_led_again() -> None:
    bench = Bench("a", "b", "c")
    assert bench.controller.facts == {}, "a cluster of one set has none"
    led(bench, "orders", "b", "c")
    assert bench.controller.facts["controller_map_events"] == bench.lsn
    before = len(orders(bench, OrderKind.PROMOTE)) + len(orders(bench, OrderKind.DROP))
    assert bench.controller.facts["controller_orders"] == before
    bench.now_s = 10.0
    for name in ("a", "c"):
        bench.hosts(name, ms.ReplicaReport("orders", "ready", "", 1, 5))
    bench.wait()  # it was asleep until now
    bench.wait(0.3)
    bench.feed(ms.BrokerDisconnected("b"))
    bench.wait(0.3)
    assert facts(bench) == ("b", 1, None)

    bench.now_s = 10.8
    bench.lead("c", "orders", members=("c",))
    assert facts(bench) == ("b", 1, None), "it has not begun"
    bench.hosts("c", ms.ReplicaReport("orders", "primary", "active", 2, 6))
    assert facts(bench) == ("b", 1, 0.5)

    bench.feed(ms.ControllerBegan(bench.map, "a", 2, 0))
    assert bench.controller.facts["controller_failures"] == 0
    (begun,) = bench.controller_history("a")
    assert begun == "a is the controller: it leads default, generation 2"


def test_a_set_that_is_made_again_under_its_name_is_another_one() -> None:
    bench = Bench("a", "b", "c")
    uuids = []
    for _ in range(3):
        bench.ask(ms.CreateSet("orders"))
        record = bench.map.sets["orders"].record
        assert record == ev.SetRecorded("orders", record.cluster, 0, "", 0, (), False)
        uuids.append(record.cluster)
        bench.ask(ms.DeleteSet("orders"))
    bench.feed(ms.ControllerBegan(bench.map, "a", 2, 0))
    bench.ask(ms.CreateSet("orders"))
    uuids.append(bench.map.sets["orders"].record.cluster)

    assert len(set(uuids)) == 4
    assert all(len(uuid) == 32 for uuid in uuids)


def test_who_has_no_replica_records_nothing() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b")))

    bench.lead("c", "orders")

    assert bench.map.sets["orders"].record.generation == 0


def test_an_order_goes_out_once_all_replicas_of_a_new_set_are_there() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c"), preferred="b"))
    hosted = ms.ReplicaReport("orders", "connecting")

    for name in ("a", "b"):
        bench.hosts(name, hosted)
    assert bench.given() == []
    bench.hosts("c", hosted)

    assert [(order.broker, order.kind) for order in bench.given()] == [("b", ms.OrderKind.PROMOTE)]


EMPTY = ms.ReplicaReport("orders", "connecting")
CANNOT_BEGIN = ms.ReplicaReport("orders", "failed", problem="its directory cannot be written")


def test_a_new_set_does_not_wait_for_a_replica_that_cannot_begin() -> None:
    bench = Bench("a", "b", "c", "d")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c")))

    for name, replica in (("c", CANNOT_BEGIN), ("a", EMPTY), ("b", EMPTY)):
        bench.hosts(name, replica)
    bench.wait()
    assert bench.map.sets["orders"].replicas == ("a", "b", "d")
    assert "c: it has failed (its directory cannot be written)" in "".join(bench.controller_history("orders"))
    bench.hosts("d", EMPTY)

    assert orders(bench, OrderKind.PROMOTE) == [("a", "orders", "")]


def test_a_replica_that_cannot_begin_is_tried_again_once_the_set_is_led_where_there_is_no_other_broker() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c")))
    for name, replica in (("c", CANNOT_BEGIN), ("a", EMPTY), ("b", EMPTY)):
        bench.hosts(name, replica)
    assert orders(bench, OrderKind.PROMOTE) == [("a", "orders", "")], "without it"

    bench.lead("a", "orders", members=("a", "b"))
    bench.hosts("a", ms.ReplicaReport("orders", "primary", "active", 1, 5))
    bench.hosts("b", ms.ReplicaReport("orders", "ready", "", 1, 5))
    bench.hosts("c")
    bench.stay(SETTINGS.check_interval_s + 2)
    assert bench.map.sets["orders"].replicas == ("a", "b", "c")
    bench.hosts("c", CANNOT_BEGIN)
    bench.stay(SETTINGS.check_interval_s + 2)
    assert bench.map.sets["orders"].replicas == ("a", "b", "c"), "it stays, and is shown"


def bench_of_a_new_controller(*, was_forced: bool) -> Bench:
    """The one before it has made a set that nobody has led yet."""
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c")))
    bench.feed(ms.ControllerBegan(bench.map, "a", 2, 0, was_forced=was_forced))
    return bench


@pytest.mark.parametrize("is_of_a_new_controller", [False, True])
def test_a_new_set_does_not_wait_for_a_broker_that_is_lost(is_of_a_new_controller: bool) -> None:
    if is_of_a_new_controller:
        bench = bench_of_a_new_controller(was_forced=False)
    else:
        bench = Bench("a", "b", "c", was_forced=True)
        bench.ask(ms.CreateSet("orders", ("a", "b", "c")))  # so it is known to be new
    for name in "ab":
        bench.hosts(name, EMPTY)
    assert orders(bench, OrderKind.PROMOTE) == []

    for _ in range(6):
        bench.wait(1.0)
        for name in "ab":
            bench.hosts(name, EMPTY)

    assert bench.map.sets["orders"].replicas == ("a", "b")
    assert orders(bench, OrderKind.PROMOTE)[:1] == [("a", "orders", "")]


def test_a_new_set_all_of_whose_brokers_are_lost_begins_with_others() -> None:
    bench = Bench("a", "b")
    bench.ask(ms.CreateSet("orders", ("b",)))

    for _ in range(8):
        bench.wait(1.0)
        bench.hosts("a", *[EMPTY] * ("a" in bench.map.sets["orders"].replicas))

    assert bench.map.sets["orders"].replicas == ("a",)
    assert orders(bench, OrderKind.PROMOTE)[:1] == [("a", "orders", "")]


@pytest.mark.parametrize("problem", ["failed", "lost"])
def test_a_set_whose_record_may_have_been_lost_waits_for_all_and_says_what_an_operator_can_do(problem: str) -> None:
    """Who is missing may be the only one who has its messages."""
    bench = bench_of_a_new_controller(was_forced=True)

    for _ in range(6):
        bench.wait(1.0)
        bench.hosts("a", EMPTY)
        bench.hosts("b", EMPTY)
        if problem == "failed":
            bench.hosts("c", CANNOT_BEGIN)

    assert bench.map.sets["orders"].replicas == ("a", "b", "c")
    assert orders(bench, OrderKind.PROMOTE) == []
    assert "`qpid-ha set promote orders a --force`" in bench.controller._leadership.problems["orders"]


def test_a_drained_replica_of_a_set_whose_record_may_have_been_lost_stays_until_others_are_in_sync() -> None:
    bench = bench_of_a_new_controller(was_forced=True)

    assert bench.ask(ms.DrainBroker("b", force=True)).done
    bench.stay(2)

    assert bench.map.sets["orders"].leaving == ("b",)
    assert "b" in bench.map.sets["orders"].replicas


def test_nothing_leaves_a_new_set_of_which_nobody_is_there() -> None:
    entry = SetEntry("orders", ("a",))
    away = {"a": PlacementBroker("a", up=False, away_s=100.0)}
    assert check(entry, away, 1, SETTINGS, spread, is_led=False, is_new=True).replicas == ("a",)


@pytest.mark.parametrize(("phase", "expected"), [("recovering", [("b", "orders", "c")]), ("active", [])])
def test_a_primary_that_has_just_begun_does_not_wait_for_a_replica_that_was_taken_away(
    phase: str, expected: list[tuple[str, str, str]]
) -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    entry = bench.map.sets["orders"]
    bench.map.apply(99, ev.SetPlaced("orders", ("a", "b"), (), "", entry.min_replicas, entry.min_in_sync))

    leading = ms.ReplicaReport("orders", "primary", phase, 1, 5)
    bench.hosts("b", leading)

    assert orders(bench, OrderKind.DROP) == expected


@pytest.mark.parametrize(
    ("phase", "connected", "expected"),
    [
        ("recovering", (), [("b", "orders", "c")]),
        ("active", (ms.BackupReport("c", True, 1),), [("b", "orders", "c")]),
        ("active", (ms.BackupReport("c", True, 0),), []),
        ("active", (ms.BackupReport("a", True, 0),), []),
    ],
)
def test_a_primary_that_waits_for_a_failed_backup_no_more_is_not_told_to(
    phase: str, connected: tuple[ms.BackupReport, ...], expected: list[tuple[str, str, str]]
) -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    leading = ms.ReplicaReport("orders", "primary", phase, 1, 5, backups=connected)
    bench.hosts("b", leading)

    bench.feed(ms.BrokerDisconnected("c"))
    bench.wait(0.4)

    assert orders(bench, OrderKind.DROP) == [("a", "default", "c"), *expected]


def test_a_primary_that_does_not_notice_by_itself_that_a_backup_is_gone_is_told_after_a_while() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    leading = ms.ReplicaReport("orders", "primary", "active", 1, 5, backups=(ms.BackupReport("c", True, 0),))
    bench.hosts("b", leading)
    bench.feed(ms.BrokerDisconnected("c"))
    bench.wait(1.5)
    assert orders(bench, OrderKind.DROP) == [("a", "default", "c")]

    bench.hosts("b", leading)
    bench.wait(1.9)

    assert orders(bench, OrderKind.DROP) == [("a", "default", "c"), ("b", "orders", "c")]


@pytest.mark.parametrize("lsn", [7, 5], ids=["it goes further", "it was not restarted"])
def test_a_replica_that_is_not_in_the_record_is_asked_once_those_that_are_have_refused(lsn: int) -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.lead("b", "orders", generation=1, epoch=2, members=("b",))
    bench.now_s = 10.0  # all have crashed before the record had `c` again
    for name, held_lsn in (("b", 6), ("c", lsn)):
        bench.hosts(name, ms.ReplicaReport("orders", "connecting", "", 1, held_lsn))
    assert orders(bench, OrderKind.PROMOTE)[-1] == ("b", "orders", "")

    number = bench.given()[-1].number
    bench.feed(ms.OrderAnswered("b", number, False, "promote c"))

    assert orders(bench, OrderKind.PROMOTE)[-1] == ("c", "orders", "")


def left_behind(bench: Bench) -> None:
    """`c` was dropped from the in-sync set of `orders`, then everybody who was in it was lost for good."""
    led(bench, "orders", "b", "c")
    bench.lead("b", "orders", generation=1, epoch=2, members=("b",))
    bench.hosts("c", ms.ReplicaReport("orders", "connecting", "", 1, 4))
    bench.now_s = 10.0
    for name in ("a", "c"):
        bench.hosts(name)
    bench.hosts("c", ms.ReplicaReport("orders", "connecting", "", 1, 4))
    bench.ask(ms.FailBroker("b"))


def wanted_of(bench: Bench, set_name: str, broker: str, *, force: bool) -> ms.GiveOrder:
    """The order that comes of such a request, which is not answered yet."""
    said = len(bench.said)
    bench.feed(ms.RequestReceived(1_000 + said, ms.PromoteReplica(set_name, broker, force)))
    assert not bench.answers(said)
    return bench.given(said)[-1]


def test_who_is_not_in_sync_is_promoted_by_force_only_and_it_is_said_what_that_gives_up() -> None:
    bench = Bench("a", "b", "c")
    left_behind(bench)

    refused = bench.ask(ms.PromoteReplica("orders", "c"))

    assert not refused.done
    for part in ("up to LSN 4 of generation 1", "in sync were b ", "`qpid-ha set promote orders c --force`"):
        assert part in refused.text
    assert not [order for order in bench.given() if order.force]

    order = wanted_of(bench, "orders", "c", force=True)

    assert (order.broker, order.set, order.kind, order.force) == ("c", "orders", OrderKind.PROMOTE, True)
    lost = "what only b confirmed after LSN 4 of generation 1 is given up"
    assert [each for each in bench.said if isinstance(each, ms.ControllerNote)][-1].text.endswith(lost)
    assert lost in order.cause
    bench.lead("c", "orders", members=("c",))
    said = len(bench.said)
    bench.feed(ms.OrderAnswered("c", order.number, True, "primary of generation 2"))
    bench.feed(ms.MapCommitted(bench.lsn))
    (answer,) = bench.answers(said)
    assert answer.done
    assert lost in answer.text
    assert any(text.startswith("c leads instead of b") and lost in text for text in bench.controller_history("orders"))


def test_nobody_is_promoted_by_force_beside_a_primary_or_one_that_is_about_to_lead() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    for force in (False, True):
        assert "set transfer orders c" in bench.ask(ms.PromoteReplica("orders", "c", force)).text
    assert bench.ask(ms.PromoteReplica("orders", "b")).text == "b leads orders already"
    order = wanted_of(bench, "orders", "b", force=True)  # `default` may have lost its record: it writes that anew
    assert (order.broker, order.kind, order.force) == ("b", OrderKind.PROMOTE, True)
    bench.feed(ms.OrderAnswered("b", order.number, True, "already primary of generation 1"))

    bench.ask(ms.FailBroker("b"))
    assert orders(bench, OrderKind.PROMOTE)[-1] == ("c", "orders", "")
    assert "c is told to lead" in bench.ask(ms.PromoteReplica("orders", "c", force=True)).text


def test_who_waits_for_a_promotion_hears_of_it_also_when_the_broker_refuses_fails_or_is_silent() -> None:
    bench = Bench("a", "b", "c")
    left_behind(bench)

    order, said = wanted_of(bench, "orders", "c", force=True), len(bench.said)
    bench.feed(ms.OrderAnswered("c", order.number, False, "two brokers are called c"))
    assert [(each.done, each.text) for each in bench.answers(said)] == [
        (False, "c does not lead orders, not even by force: two brokers are called c")
    ]
    assert wanted_of(bench, "orders", "c", force=True).number > order.number, "the pause after a refusal is not for him"
    said = len(bench.said)
    bench.ask(ms.FailBroker("c"))
    assert "has failed meanwhile" in bench.answers(said)[0].text

    bench.hosts("c", ms.ReplicaReport("orders", "connecting", "", 1, 4))
    order, said = wanted_of(bench, "orders", "c", force=True), len(bench.said)
    while not bench.answers(said):
        bench.now_s += 1.0
        assert bench.now_s < 60.0
        bench.hosts("c", ms.ReplicaReport("orders", "connecting", "", 1, 4))
        bench.wait()
        bench.feed(ms.MapCommitted(bench.lsn))
    assert "nothing was heard of it within 20 s" in bench.answers(said)[0].text


# --- placement

BROKERS = {
    "a": PlacementBroker("a", "one", replicas=1, room_bytes=10),
    "b": PlacementBroker("b", "one", room_bytes=10),
    "c": PlacementBroker("c", "two", replicas=5, room_bytes=10),
    "d": PlacementBroker("d", "two", replicas=5, room_bytes=20),
    "e": PlacementBroker("e", "three", draining=True),
    "f": PlacementBroker("f", "three", up=False),
}
PLACED = PlacementSet("orders", ("a",), "a")


def test_spread_takes_another_zone_then_the_fewest_replicas_then_the_most_room() -> None:
    assert [each.broker for each in spread(PLACED, BROKERS)] == ["d", "c", "b"]


def test_ring_takes_those_after_the_primary_and_static_those_first_by_name() -> None:
    placed = PlacementSet("orders", ("c",), "c")
    assert [each.broker for each in ring(placed, BROKERS)] == ["d", "a", "b"]
    assert [each.broker for each in static(placed, BROKERS)] == ["a", "b", "d"]


def test_a_broker_without_room_for_the_set_comes_last() -> None:
    two = {
        "c": PlacementBroker("c", replicas=5, room_bytes=20),
        "d": PlacementBroker("d", room_bytes=10),
    }
    placed = PlacementSet("orders", (), "")

    assert [each.broker for each in spread(placed, two)] == ["d", "c"]
    assert [each.broker for each in spread(placed._replace(bytes=15), two)] == ["c", "d"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (["b"], "no sequence of Ranked"),
        ([Ranked("z", "")], "cannot have"),
        ([Ranked("e", "")], "cannot have"),
        ([Ranked("a", "")], "cannot have"),
        ([Ranked("b", ""), Ranked("b", "")], "twice"),
        ([], "nobody"),
        (None, "TypeError"),
    ],
)
def test_a_placement_that_answers_nonsense_is_replaced_by_spread_and_it_is_said(answer: object, problem: str) -> None:
    def odd(placed: PlacementSet, brokers: object) -> object:
        return answer

    ranking = rank(odd, PLACED, BROKERS)  # type: ignore[arg-type]

    assert problem in ranking.problem
    assert [each.broker for each in ranking.ranked] == ["d", "c", "b"]


def test_a_placement_that_raises_is_said_in_the_log_and_replicas_are_placed_all_the_same() -> None:
    def broken(placed: PlacementSet, brokers: object) -> list[Ranked]:
        raise RuntimeError("no such zone")

    ranking = rank(broken, PLACED, BROKERS)

    assert "no such zone" in ranking.problem
    assert ranking.ranked


# --- machines with several brokers

WORKERS = {
    "a": PlacementBroker("a", room_bytes=10, machine="m1"),
    "b": PlacementBroker("b", room_bytes=90, machine="m1"),
    "c": PlacementBroker("c", room_bytes=10, machine="m2"),
    "d": PlacementBroker("d", room_bytes=10, machine="m2"),
    "e": PlacementBroker("e", room_bytes=10),
}


@pytest.mark.parametrize("placement", [spread, ring, static])
def test_no_placement_is_asked_about_a_machine_that_has_a_replica_already(placement: Placement) -> None:
    assert {each.broker for each in rank(placement, PLACED, WORKERS).ranked} == {"c", "d", "e"}
    assert {each.broker for each in rank(placement, PLACED._replace(replicas=("a", "d")), WORKERS).ranked} == {"e"}


def test_a_placement_that_would_put_two_replicas_on_a_machine_all_the_same_is_replaced_by_spread() -> None:
    ranking = rank(lambda placed, brokers: [Ranked("b", "it likes it")], PLACED, WORKERS)

    assert "cannot have" in ranking.problem
    assert "b" not in {each.broker for each in ranking.ranked}


def test_zones_go_on_to_count_among_machines() -> None:
    zoned = {name: broker._replace(zone="two" if broker.host == "m2" else "one") for name, broker in WORKERS.items()}

    assert next(iter(rank(spread, PLACED, zoned).ranked)).broker in ("c", "d"), "e is of zone one, as a is"


def test_what_a_broker_says_of_its_place_is_read_back_and_one_that_is_alone_has_its_machine_for_itself() -> None:
    for place in (BrokerPlace("rack", "m1"), BrokerPlace("", "m1")):
        assert BrokerPlace.read("anything", place.text) == place
    assert BrokerPlace.read("a", "rack") == BrokerPlace("rack", "a")
    assert BrokerPlace.read("a", "") == BrokerPlace("", "a")


def test_of_two_replicas_on_one_machine_one_counts_and_the_other_is_made_up_for_and_leaves() -> None:
    entry = ENTRY._replace(record=ENTRY.record._replace(primary="b"))
    decision = check(entry, WORKERS, 3, SETTINGS, spread, is_led=True)

    assert decision.counted == ("b", "c", "e")
    assert [(each.step, each.broker) for each in decision.actions] == [(ReplicaStep.ADD, "e"), (ReplicaStep.LEAVE, "a")]
    done = entry._replace(
        replicas=decision.replicas, leaving=decision.leaving, record=entry.record._replace(members=("b", "c", "e", "a"))
    )
    assert check(done, WORKERS, 3, SETTINGS, spread).replicas == ("b", "c", "e")


def test_a_replica_that_leaves_does_not_stay_beside_another_one_of_its_machine() -> None:
    record = ENTRY.record._replace(primary="b", members=("a", "b"))
    entry = ENTRY._replace(replicas=("a", "b", "c"), leaving=("a",), record=record)
    without_e = {name: broker for name, broker in WORKERS.items() if name != "e"}

    decision = check(entry, without_e, 3, SETTINGS, spread)

    assert decision.leaving == ("a",)
    assert [each.step for each in decision.actions] == [ReplicaStep.LACK], "it is not kept and told to leave in turn"


def workers(*names: str) -> Bench:
    """A controller on broker `a`; of each machine, two brokers report, all of no zone."""
    bench = Bench(*names)
    for number, name in enumerate(names):
        told = report(name)
        identity = told.broker._replace(zone=BrokerPlace("", f"m{number // 2}").text)
        bench.feed(ms.ReportReceived(told._replace(broker=identity)))
    return bench


def test_a_set_has_as_many_replicas_as_there_are_machines_and_operators_cannot_put_two_on_one() -> None:
    bench = workers("a", "b", "c", "d")

    assert bench.ask(ms.CreateSet("orders")).done
    first, second = bench.map.sets["orders"].replicas
    assert {first, second} & {"a", "b"}
    assert {first, second} & {"c", "d"}
    for request, needs in (
        (ms.AddReplica("orders"), "each machine with an open broker has a replica of orders; there are 2"),
        (ms.AddReplica("orders", next(iter({"a", "b"} - {first, second}))), "choose another machine"),
        (ms.CreateSet("more", ("a", "b")), "choose another machine"),
        (ms.CreateSet("more", min_in_sync=3), "there are 2 machines"),
    ):
        answer = bench.ask(request)
        assert not answer.done
        assert needs in answer.text


def test_a_drained_worker_gives_its_replicas_to_another_one_of_its_machine() -> None:
    bench = workers("a", "b", "c", "d")
    assert bench.ask(ms.CreateSet("orders", ("a", "c"))).done

    assert bench.ask(ms.DrainBroker("c")).done
    bench.wait(1.0)

    assert "d" in bench.map.sets["orders"].replicas


# --- how many

ENTRY = SetEntry("orders", ("a", "b", "c"), record=ev.SetRecorded("orders", "c", 1, "a", 1, ("a", "b", "c"), False))


def test_the_sets_own_number_counts_before_a_policy_and_that_before_the_default() -> None:
    policies = (("ord*", 2), ("*", 5))
    assert wanted_replicas(ENTRY._replace(min_replicas=4), policies, SETTINGS, 9, 9).number == 4
    assert wanted_replicas(ENTRY, policies, SETTINGS, 9, 9).number == 2
    assert wanted_replicas(ENTRY._replace(name="x"), policies, SETTINGS, 9, 9).number == 5
    assert wanted_replicas(ENTRY, (), SETTINGS, 9, 9).number == 3
    assert wanted_replicas(ENTRY, (), SETTINGS, 2, 2).number == 2
    few = wanted_replicas(ENTRY, (), SETTINGS, 8, 2)
    assert few.number == 2
    assert "8 brokers on 2 machines" in few.why


def brokers(**changes: PlacementBroker) -> dict[str, PlacementBroker]:
    return {name: PlacementBroker(name, room_bytes=1) for name in "abcd"} | changes


@pytest.mark.parametrize(
    ("away_s", "steps"), [(59.0, []), (60.0, [(ReplicaStep.ADD, "d")])], ids=["before the interval", "after it"]
)
def test_a_broker_may_be_away_for_the_recovery_interval(away_s: float, steps: list[tuple[ReplicaStep, str]]) -> None:
    there = brokers(c=PlacementBroker("c", up=False, away_s=away_s))
    entry = ENTRY._replace(record=ENTRY.record._replace(members=("a", "b")))

    decision = check(entry, there, 3, SETTINGS, spread)

    assert [(action.step, action.broker) for action in decision.actions] == steps


def test_a_replica_whose_store_has_failed_is_made_up_for_at_once_and_goes_when_enough_are_in_sync() -> None:
    failed = {"c": "its disk is broken"}

    decision = check(ENTRY, brokers(), 3, SETTINGS, spread, failed=failed)
    assert [(action.step, action.broker) for action in decision.actions] == [(ReplicaStep.ADD, "d")]

    added = ENTRY._replace(replicas=("a", "b", "c", "d"))
    assert check(added, brokers(), 3, SETTINGS, spread, failed=failed).replicas == added.replicas
    synced = added._replace(record=ENTRY.record._replace(members=("a", "b", "c", "d")))
    decision = check(synced, brokers(), 3, SETTINGS, spread, failed=failed)
    assert decision.replicas == ("a", "b", "d")
    assert "its disk is broken" in decision.actions[0].why


def test_a_failed_replica_stays_where_there_is_no_broker_to_make_up_for_it() -> None:
    three = {name: broker for name, broker in brokers().items() if name != "d"}
    decision = check(ENTRY, three, 3, SETTINGS, spread, failed={"c": "its disk is broken"})
    assert decision.replicas == ENTRY.replicas
    assert [action.step for action in decision.actions] == [ReplicaStep.LACK]


def test_who_has_not_given_up_an_earlier_replica_gets_the_next_one_when_it_has() -> None:
    decision = check(ENTRY, brokers(), 3, SETTINGS, spread, failed={"c": "its disk is broken"}, parting={"d"})
    assert [action.step for action in decision.actions] == [ReplicaStep.WAIT]
    assert "d has not given up an earlier one yet" in decision.actions[0].why


def bench_with_a_replica_that_failed() -> Bench:
    """On `c`, which has been made up for by `d`; `c` has not heard of it yet."""
    bench = Bench("a", "b", "c", "d")
    bench.ask(ms.CreateSet("orders", ("b", "a", "c")))
    bench.lead("b", "orders", members=("b", "a"))
    bench.hosts("a", ms.ReplicaReport("orders", "ready", generation=1))
    bench.hosts("b", ms.ReplicaReport("orders", "primary", generation=1))
    bench.hosts("c", ms.ReplicaReport("orders", "failed", problem="its journal is damaged"))
    bench.stay(1)
    bench.hosts("d", ms.ReplicaReport("orders", "ready", generation=1))
    bench.lead("b", "orders", generation=1, members=("b", "a", "d"))
    bench.stay(1)
    assert set(bench.map.sets["orders"].replicas) == {"a", "b", "d"}
    return bench


def test_a_replica_that_is_wanted_again_is_placed_when_its_broker_has_given_up_the_one_that_failed() -> None:
    bench = bench_with_a_replica_that_failed()
    bench.said.clear()

    bench.feed(ms.RequestReceived(1, ms.AddReplica("orders", "c")))
    bench.wait()
    assert not bench.answers(), "its report is of the one that is gone"
    assert "c" not in bench.map.sets["orders"].replicas

    bench.hosts("c")
    bench.wait()
    bench.feed(ms.MapCommitted(bench.lsn))
    assert [answer.done for answer in bench.answers()] == [True]
    bench.stay(2 * SETTINGS.check_interval_s)
    assert "c" in bench.map.sets["orders"].staying


def test_a_replica_is_not_wanted_again_for_ever_where_its_broker_does_not_give_up_the_earlier_one() -> None:
    bench = bench_with_a_replica_that_failed()
    bench.said.clear()

    bench.feed(ms.RequestReceived(1, ms.AddReplica("orders", "c")))
    bench.feed(ms.RequestReceived(2, ms.AddReplica("orders")))
    bench.stay(2 * SETTINGS.failure_timeout_s)
    bench.feed(ms.MapCommitted(bench.lsn))

    assert [answer.done for answer in bench.answers()] == [False, False]
    assert "c has not given up its earlier replica of orders yet" in bench.answers()[0].text
    assert "c has not given up" in bench.answers()[1].text, "nobody else could have one"


def test_a_set_of_the_name_of_one_that_was_deleted_is_made_when_its_brokers_have_given_up_that() -> None:
    bench = bench_with_a_replica_that_failed()
    assert bench.ask(ms.DeleteSet("orders")).done
    bench.said.clear()

    bench.feed(ms.RequestReceived(1, ms.CreateSet("orders", ("a", "c"))))
    bench.hosts("c")
    bench.wait()
    assert not bench.answers()

    bench.hosts("a")
    bench.wait()
    bench.feed(ms.MapCommitted(bench.lsn))
    assert [answer.done for answer in bench.answers()] == [True]

    assert bench.ask(ms.DeleteSet("orders")).done
    assert bench.ask(ms.CreateSet("orders")).done
    assert set(bench.map.sets["orders"].replicas) == {"a", "c"}, "the two others have not given it up"


def test_a_primary_that_says_it_has_failed_is_replaced_at_once_and_shown_with_its_reason() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c")))
    bench.lead("b", "orders", members=("b", "c"))
    bench.hosts("b", ms.ReplicaReport("orders", "primary", generation=1, lsn=5))
    bench.hosts("c", ms.ReplicaReport("orders", "connecting", generation=1, lsn=5))
    bench.said.clear()

    bench.hosts("b", ms.ReplicaReport("orders", "failed", problem="its disk is broken"))

    assert [(order.broker, order.kind) for order in bench.given()] == [("c", ms.OrderKind.PROMOTE)]
    bench.hosts("c", ms.ReplicaReport("orders", "connecting", generation=1))
    bench.lead("c", "orders", members=("b", "c"))
    bench.said.clear()
    bench.hosts("c", ms.ReplicaReport("orders", "primary", generation=2, lsn=6))
    assert [(order.broker, order.to) for order in bench.given()] == [("c", "b")], "nobody waits for it"
    rows = bench.ask(ms.ShowCluster()).result["sets"]
    assert isinstance(rows, list)
    assert [row["problem"] for row in rows] == ["b: its disk is broken"]


def test_a_broker_that_catches_up_with_enough_gets_no_more() -> None:
    there = brokers(c=PlacementBroker("c", up=False, away_s=99), d=PlacementBroker("d", catching_up=2))

    decision = check(ENTRY, there, 3, SETTINGS, spread)

    assert [action.step for action in decision.actions] == [ReplicaStep.WAIT]
    assert decision.replicas == ENTRY.replicas


def test_a_broker_that_is_about_to_stop_begins_with_nothing_new_and_is_waited_for_where_it_is_the_only_one() -> None:
    stopping = PlacementBroker("d", stopping=True, room_bytes=1)
    there = brokers(c=PlacementBroker("c", up=False, away_s=99), d=stopping)

    decision = check(ENTRY, there, 3, SETTINGS, spread)
    assert [action.step for action in decision.actions] == [ReplicaStep.WAIT]
    assert "d is about to stop" in decision.actions[0].why

    decision = check(ENTRY, {**there, "e": PlacementBroker("e", replicas=9)}, 3, SETTINGS, spread)
    assert [(action.step, action.broker) for action in decision.actions] == [(ReplicaStep.ADD, "e")]


def test_a_set_that_lacks_a_replica_gets_it_elsewhere_than_at_a_broker_that_said_that_it_stops() -> None:
    bench = Bench("a", "b", "c", "d")
    led(bench, "orders", "b", "a")
    bench.ask(ms.LeaveBroker("c"))
    bench.wait()
    assert bench.map.sets["orders"].replicas == ("b", "a", "d")


def test_an_order_of_which_nothing_is_heard_is_given_again_and_each_time_later() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders", ("a", "b", "c"), preferred="b"))
    given_s: list[float] = []
    for number in range(2, 60):
        before = len(orders(bench, OrderKind.PROMOTE))
        bench.now_s += 0.5
        for name in ("a", "b", "c"):
            hosted = () if number > 2 else (ms.ReplicaReport("orders", "connecting"),)
            changed = report(name, *hosted)._replace(number=number, full=False)
            bench.feed(ms.ReportReceived(changed))
        bench.wait()
        given_s += [bench.now_s] * (len(orders(bench, OrderKind.PROMOTE)) - before)

    assert [later - earlier for earlier, later in pairwise(given_s)] == [2.0, 4.0, 8.0, 8.0]


def test_what_was_told_on_a_channel_that_was_lost_is_told_again_as_soon_as_the_first_time() -> None:
    pending = Orders()
    order = ms.GiveOrder(1, "b", "orders", OrderKind.PROMOTE)
    for number, now_s in ((1, 0.0), (2, 2.0), (3, 6.0)):
        pending.given(order._replace(number=number), now_s)
    assert pending.pending("orders", OrderKind.PROMOTE, 8.0)

    pending.reconnected("c")
    assert pending.pending("orders", OrderKind.PROMOTE, 8.0), "that is another broker"
    pending.reconnected("b")
    assert pending.pending("orders", OrderKind.PROMOTE, 8.0) is None
    pending.given(order._replace(number=4, broker="c"), 8.0)
    assert pending.pending("orders", OrderKind.PROMOTE, 10.0) is None, "another one was told, once"


def test_a_replica_that_leaves_goes_when_the_rest_in_sync_is_enough_and_somebody_leads() -> None:
    entry = ENTRY._replace(replicas=("a", "b", "c", "d"), leaving=("b",))
    synced = entry._replace(record=entry.record._replace(members=("a", "b", "c", "d")))

    assert check(entry, brokers(), 3, SETTINGS, spread).replicas == entry.replicas
    assert check(synced, brokers(), 3, SETTINGS, spread, is_led=False).replicas == entry.replicas
    assert check(synced, brokers(), 3, SETTINGS, spread).replicas == ("a", "c", "d")


def test_extras_are_shown_and_with_auto_trim_they_leave_but_never_who_leads() -> None:
    entry = ENTRY._replace(record=ENTRY.record._replace(primary="c"))

    assert [action.step for action in check(entry, brokers(), 1, SETTINGS, spread).actions] == [ReplicaStep.EXTRA] * 2
    trimmed = check(entry, brokers(), 1, SETTINGS._replace(auto_trim=True), spread)
    assert trimmed.replicas == ("c",)


# --- liveness


def test_who_was_reset_and_is_not_back_soon_is_gone_and_who_is_silent_for_long_is_lost() -> None:
    live = Liveness()
    live.began("a", ("a", "b", "c"), 0.0)
    live.heard("b", 0.0)
    live.heard("c", 0.0)
    live.disconnected("b", 0.5)

    assert live.losses(0.6, 0.2, 2.0) == []
    assert [loss.name for loss in live.losses(0.75, 0.2, 2.0)] == ["b"]
    assert live.losses(1.5, 0.2, 2.0) == []
    assert [loss.name for loss in live.losses(2.0, 0.2, 2.0)] == ["c"]
    assert live.life("a") is BrokerLife.ALIVE


def test_who_connects_again_at_once_is_not_gone() -> None:
    live = Liveness()
    live.began("a", ("a", "b"), 0.0)
    live.disconnected("b", 0.0)
    live.heard("b", 0.1)

    assert live.losses(0.5, 0.2, 2.0) == []


def test_a_controller_that_slept_judges_nobody() -> None:
    live = Liveness()
    live.began("a", ("a", "b"), 0.0)
    live.heard("b", 0.0)
    live.losses(0.1, 0.2, 2.0)

    assert live.losses(9.0, 0.2, 2.0) == []
    assert live.losses(9.1, 0.2, 2.0) == []


def test_a_reset_just_after_the_controller_slept_is_no_sign_of_a_death() -> None:
    live = Liveness()
    live.began("a", ("a", "b", "c"), 0.0)
    for name in "bc":
        live.heard(name, 0.0)
    live.losses(9.0, 0.2, 2.0)
    for name in "bc":
        live.disconnected(name, 9.01)
    live.refuses("c", 9.02)

    assert [loss.name for loss in live.losses(9.5, 0.2, 2.0)] == ["c"], "nobody listens there any more"
    assert [loss.name for loss in live.losses(10.4, 0.2, 2.0)] == []
    assert [loss.name for loss in live.losses(11.1, 0.2, 2.0)] == ["b"]


# --- a primary that lives, and of which the controller does not hear


def asked(bench: Bench) -> list[tuple[str, str]]:
    """Whom the controller has asked itself, and about which set."""
    return [(effect.name, effect.set) for effect in bench.said if isinstance(effect, ms.AskBroker)]


def lose_the_primary_of_orders(bench: Bench) -> None:
    """The connection to B, which leads `orders`, that C has, too."""
    led(bench, "orders", "b", "c")
    bench.said.clear()
    bench.feed(ms.BrokerDisconnected("b", "b/1"))


@pytest.mark.parametrize(("generation", "is_up"), [(1, True), (0, False)], ids=["it leads", "nothing"])
def test_a_primary_whose_connection_was_reset_is_not_gone_as_long_as_a_question_to_it_is_under_way(
    generation: int, is_up: bool
) -> None:
    """Its answer comes over a new connection, for which 0.2 s are not enough where a message takes 15 ms: seed
    8001180."""
    bench = Bench("a", "b", "c")
    bench.answers_questions = False
    lose_the_primary_of_orders(bench)

    bench.wait(0.8)
    assert asked(bench) == [("b", "orders")]
    assert bench.map.brokers["b"].up
    bench.feed(ms.BrokerAnswered("b", "orders", generation))
    bench.wait(0.1)

    assert bench.map.brokers["b"].up is is_up


def hear_of_c_alone(bench: Bench, for_s: float) -> None:
    """Time passes in which `c` reports that it follows the primary of `orders`."""
    for _ in range(round(for_s * 10)):
        bench.hosts("c", ms.ReplicaReport("orders", "ready", "", 1, 5))
        bench.wait(0.1)


def just_begun(bench: Bench) -> None:
    """`a` is a new controller; `c` has reported to it, and `b`, which leads `orders`, has not."""
    led(bench, "orders", "b", "c")
    anew(bench, "a")
    bench.hosts("a")
    bench.hosts("c", ms.ReplicaReport("orders", "ready", "", 1, 5))
    bench.said.clear()


def test_a_new_controller_asks_a_primary_of_which_it_has_not_heard_and_one_that_answers_is_not_replaced() -> None:
    """Its channel to a controller that has just begun may take longer than that."""
    bench = Bench("a", "b", "c")
    just_begun(bench)
    for _ in range(4):
        hear_of_c_alone(bench, 1.2)
        assert set(asked(bench)) == {("b", "orders")}
        bench.feed(ms.BrokerAnswered("b", "orders", 1))
        bench.said.clear()

    assert bench.map.brokers["b"].up
    assert not bench.given()

    hear_of_c_alone(bench, 2.1)
    assert not bench.map.brokers["b"].up, "it has not answered again"


def test_a_primary_that_answers_and_never_reports_is_to_hand_over_in_the_end_to_one_that_does() -> None:
    bench = Bench("a", "b", "c")
    just_begun(bench)
    for _ in range(15):
        hear_of_c_alone(bench, 1.0)
        bench.feed(ms.BrokerAnswered("b", "orders", 1))

    assert orders(bench, OrderKind.PROMOTE)[0] == ("c", "orders", "b"), "asked to step down, and not passed over"


@pytest.mark.parametrize(("generation", "set_name"), [(0, "orders"), (1, "others")])
def test_the_answer_of_one_that_does_not_lead_what_is_recorded_keeps_nobody_waiting(
    generation: int, set_name: str
) -> None:
    bench = Bench("a", "b", "c")
    just_begun(bench)
    hear_of_c_alone(bench, 1.5)
    bench.feed(ms.BrokerAnswered("b", set_name, generation))
    hear_of_c_alone(bench, 0.6)

    assert orders(bench, OrderKind.PROMOTE) == [("c", "orders", "b")]


def test_only_who_leads_something_is_asked() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.said.clear()
    for _ in range(15):
        bench.wait(0.1)
        bench.hosts("b", ms.ReplicaReport("orders", "primary", "active", 1, 5))

    assert not asked(bench), "b reports, and c leads nothing"


@pytest.mark.parametrize(("answers", "promoted"), [(True, []), (False, [("c", "orders", "")])])
def test_one_whose_connection_is_lost_is_asked_at_once_and_is_not_gone_if_it_answers(
    answers: bool, promoted: list[tuple[str, str, str]]
) -> None:
    """A reset says what became of a connection. That a process is gone a refusal says."""
    bench = Bench("a", "b", "c")
    lose_the_primary_of_orders(bench)
    assert asked(bench) == [("b", "orders")]
    bench.wait(0.1)
    if answers:
        bench.feed(ms.BrokerAnswered("b", "orders", 1))
    bench.wait(0.9)

    assert orders(bench, OrderKind.PROMOTE) == promoted


def test_one_that_does_not_lead_all_that_is_recorded_is_asked_about_what_it_has_said_it_leads() -> None:
    """It was restarted, and cannot lead what it led before: the answer to that is none, and it leads others."""
    bench = Bench("a", "b", "c")
    led(bench, "zebra", "b", "c")
    led(bench, "orders", "b", "c")
    for number in range(9):
        led(bench, f"others-{number}", "b", "c")
    others = [ms.ReplicaReport(f"others-{number}", "connecting", "", 1, 5) for number in range(9)]
    bench.hosts("b", ms.ReplicaReport("orders", "primary", "active", 1, 5), *others)
    bench.said.clear()
    bench.feed(ms.BrokerDisconnected("b", "b/1"))

    assert ("b", "orders") in asked(bench)
    assert 1 < len(asked(bench)) <= 3


def test_one_that_lost_its_channel_and_answered_and_fell_silent_then_may_live() -> None:
    bench = Bench("a", "b", "c")
    lose_the_primary_of_orders(bench)
    bench.feed(ms.BrokerAnswered("b", "orders", 1))
    hear_of_c_alone(bench, 2.1)

    assert orders(bench, OrderKind.PROMOTE) == [("c", "orders", "b")]


def test_one_that_answered_before_its_process_ended_is_gone_as_soon_as_nobody_listens_there() -> None:
    bench = Bench("a", "b", "c")
    lose_the_primary_of_orders(bench)
    bench.feed(ms.BrokerAnswered("b", "orders", 1))
    bench.feed(ms.BrokerRefuses("b", "b/1"))
    bench.wait(0.1)

    assert orders(bench, OrderKind.PROMOTE) == [("c", "orders", "")], "nobody is there who could hand over"


def test_a_frozen_primary_is_replaced_after_its_time_out_however_often_it_is_asked() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.said.clear()
    hear_of_c_alone(bench, 2.0)

    assert len(asked(bench)) in (2, 3)
    assert orders(bench, OrderKind.PROMOTE) == [("c", "orders", "b")]


def test_a_fenced_primary_is_not_asked_to_step_down() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.said.clear()
    hear_of_c_alone(bench, 2.0)
    bench.ask(ms.FailBroker("b"))
    number = bench.given()[-1].number
    assert bench.given()[-1].to == "b"
    bench.feed(ms.OrderAnswered("c", number, False, "not now"))
    hear_of_c_alone(bench, 1.5)

    assert orders(bench, OrderKind.PROMOTE)[-1] == ("c", "orders", "")


@pytest.mark.parametrize(("state", "minded"), [("connecting", ""), ("ready", "b")])
def test_once_all_have_refused_who_has_no_channel_to_a_silent_primary_leaves_it_to_nobody(
    state: str, minded: str
) -> None:
    """Who still follows it may be out of the controller's reach; it confirms nothing without one who is in sync."""
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.said.clear()
    hear_of_c_alone(bench, 2.0)
    assert orders(bench, OrderKind.PROMOTE) == [("c", "orders", "b")]
    bench.feed(ms.OrderAnswered("c", bench.given()[-1].number, False, "d still follows b"))
    for _ in range(12):
        bench.hosts("c", ms.ReplicaReport("orders", state, "", 1, 5))
        bench.wait(0.1)

    assert orders(bench, OrderKind.PROMOTE) == [("c", "orders", "b"), ("c", "orders", minded)]


def test_an_operator_who_has_a_broker_lead_what_a_silent_one_led_has_that_one_asked_first() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    hear_of_c_alone(bench, 2.1)
    number = bench.given()[-1].number
    bench.feed(ms.OrderAnswered("c", number, False, "not now"))
    bench.said.clear()
    bench.feed(ms.RequestReceived(7, ms.PromoteReplica("orders", "c")))

    assert orders(bench, OrderKind.PROMOTE) == [("c", "orders", "b")]


# --- a cluster that is shut down


def led_sets(bench: Bench, **primaries: str) -> None:
    """Sets by name, each led by that broker."""
    for name, broker in primaries.items():
        bench.ask(ms.CreateSet(name, ("a", "b", "c")))
        bench.lead(broker, name, members=("a", "b", "c"))
        bench.hosts(broker, ms.ReplicaReport(name, "primary", generation=1))


def test_hundreds_of_sets_are_led_anew_in_turn_and_the_first_do_not_wait_for_the_last() -> None:
    bench = Bench("a", "b", "c")
    names = [f"s{number}" for number in range(5 * PROMOTED_AT_ONCE)]
    led_sets(bench, **dict.fromkeys(names, "b"))
    for name in ("a", "c"):
        replicas = [ms.ReplicaReport(each, "connecting", "", 1, 5) for each in names]
        bench.hosts(name, *replicas)
    bench.said.clear()
    bench.feed(ms.RequestReceived(1, ms.FailBroker("b")))
    given = [order for order in bench.given() if order.kind is OrderKind.PROMOTE]
    assert Counter(each.broker for each in given) == dict.fromkeys("ac", FIRST_AT_ONCE)

    begun = 0
    while begun < len(given):
        order = given[begun]
        begun += 1
        bench.lead(order.broker, order.set, members=("a", "c"))
        bench.feed(ms.OrderAnswered(order.broker, order.number, True, "leads"))
        given = [order for order in bench.given() if order.kind is OrderKind.PROMOTE]
        under_way = Counter(each.broker for each in given[begun:])
        assert max(under_way.values(), default=0) <= PROMOTED_AT_ONCE

    assert sorted(each.set for each in given) == sorted(names)
    assert Counter(each.broker for each in given) == dict.fromkeys("ac", len(names) // 2)


@pytest.mark.parametrize("answers", [True, False], ids=["one of the first is led", "the first take long"])
def test_the_first_sets_that_a_broker_is_to_lead_are_few_and_then_it_gets_as_many_as_it_may(answers: bool) -> None:
    bench = Bench("a", "b")
    names = [f"s{number}" for number in range(2 * PROMOTED_AT_ONCE)]
    for name in names:
        bench.ask(ms.CreateSet(name, ("a", "b"), "b"))
    bench.said.clear()
    ready = [ms.ReplicaReport(each, "connecting") for each in names]
    for name in "ab":
        bench.hosts(name, *ready)
    given = bench.given()
    assert len(given) == FIRST_AT_ONCE

    if answers:
        bench.lead("b", given[0].set, members=("a", "b"))
        bench.feed(ms.OrderAnswered("b", given[0].number, True, "leads"))
    else:
        bench.now_s += FIRST_S
        bench.wait(0.0)

    assert len(bench.given()) == PROMOTED_AT_ONCE + answers


def test_a_broker_that_answers_nothing_is_told_to_lead_the_rest_all_the_same() -> None:
    bench = Bench("a", "b")
    names = [f"s{number}" for number in range(PROMOTED_AT_ONCE + 1)]
    for name in names:
        bench.ask(ms.CreateSet(name, ("a", "b"), "b"))
    ready = [ms.ReplicaReport(each, "connecting") for each in names]
    for name in "ab":
        bench.hosts(name, *ready)
    bench.now_s += FIRST_S
    bench.wait(0.0)
    assert len(orders(bench, OrderKind.PROMOTE)) == PROMOTED_AT_ONCE

    bench.said.clear()
    for _ in range(25):
        bench.now_s += 0.1
        bench.hosts("b", *ready)
        bench.wait()

    assert {name for _, name, _ in orders(bench, OrderKind.PROMOTE)} == set(names)


def test_sets_end_before_the_cluster_does_and_nobody_is_told_to_lead_them_again() -> None:
    bench = Bench("a", "b", "c")
    led_sets(bench, orders="b", bills="c")
    bench.ask(ms.CreateSet("lost", ("a", "b", "c")))

    effects = bench.feed(ms.RequestReceived(77, ms.ShutDownSets("u1")))

    given = {each.set: each for each in effects if isinstance(each, ms.GiveOrder)}
    assert {(each.broker, each.set, each.kind, each.to) for each in given.values()} == {
        ("b", "orders", ms.OrderKind.SHUT_DOWN, "u1"), ("c", "bills", ms.OrderKind.SHUT_DOWN, "u1"),
    }  # fmt: skip
    bench.feed(ms.OrderAnswered("b", given["orders"].number, True, "level"))
    bench.hosts("b")
    bench.feed(ms.OrderAnswered("c", given["bills"].number, False, "c is not level"))
    bench.feed(ms.MapCommitted(bench.lsn))
    (answer,) = [each for each in bench.said if isinstance(each, ms.AnswerRequest) and each.number == 77]
    assert answer.result["ended"] == 1
    problems = answer.result["problems"]
    assert isinstance(problems, dict)
    assert sorted(problems) == ["bills", "lost"]
    said = len(bench.said)
    bench.now_s += 5
    bench.wait()
    assert bench.given(said) == []


def test_a_shutdown_does_not_wait_for_ever_and_one_that_came_to_nothing_has_the_sets_led_again() -> None:
    bench = Bench("a", "b", "c")
    led_sets(bench, orders="b")
    bench.feed(ms.RequestReceived(77, ms.ShutDownSets("u1")))
    bench.now_s += LIMIT_S
    bench.wait()
    bench.feed(ms.MapCommitted(bench.lsn))
    (answer,) = [each for each in bench.said if isinstance(each, ms.AnswerRequest) and each.number == 77]
    assert answer.result["problems"] == {"orders": f"it did not end within {LIMIT_S:g} s"}

    bench.now_s += RESUME_S
    for name in "abc":
        hosted = ms.ReplicaReport("orders", "connecting", generation=1)
        bench.hosts(name, hosted)
    bench.wait()
    assert bench.given()[-1].kind is ms.OrderKind.PROMOTE


@pytest.mark.parametrize(
    "request_", [ms.TransferPrimary("orders", "c"), ms.PromoteReplica("orders", "c", force=True), ms.Rebalance()]
)
def test_no_primary_moves_while_the_cluster_is_shut_down(request_: ms.ClusterRequest) -> None:
    bench = Bench("a", "b", "c")
    led_sets(bench, orders="b")
    bench.feed(ms.RequestReceived(77, ms.ShutDownSets("u1")))

    (answer,) = asked_to_wait(bench, request_)

    assert not answer.done
    assert "being shut down" in answer.text
    assert [order.kind for order in bench.given()] == [ms.OrderKind.SHUT_DOWN]


# --- queues of other sets: when it is answered that they are there, or gone


def asked_to_wait(bench: Bench, request: ms.ClusterRequest) -> list[ms.AnswerRequest]:
    """What is answered at once; the map is committed."""
    before = len(bench.said)
    bench.feed(ms.RequestReceived(len(bench.said) + 1, request))
    bench.feed(ms.MapCommitted(bench.lsn))
    return bench.answers(before)


def told_by_primary(bench: Bench, **said: object) -> list[ms.AnswerRequest]:
    """What is answered when `b` reports this of queues."""
    before = len(bench.said)
    leading = ms.ReplicaReport("orders", "primary", "active", 1, 5)
    bench.feed(ms.ReportReceived(report("b", leading)._replace(**said)))  # type: ignore[arg-type]
    bench.feed(ms.MapCommitted(bench.lsn))
    return bench.answers(before)


def test_who_waits_for_a_queue_hears_of_it_when_the_primary_has_it() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    assert asked_to_wait(bench, ms.SettleQueue("q", {}, "orders", wait=True)) == []

    (answer,) = told_by_primary(bench, declared_queues=(ms.DeclaredQueues("orders", bench.map.queues["q"].id),))
    assert (answer.done, answer.result) == (True, {"set": "orders", "created": True})
    assert len(asked_to_wait(bench, ms.SettleQueue("q", {}, "orders", wait=True))) == 1, "it is there"


def test_who_waits_for_long_hears_that_the_queue_is_pending() -> None:
    bench = Bench("a", "b", "c")
    bench.ask(ms.CreateSet("orders"))
    assert asked_to_wait(bench, ms.SettleQueue("q", {}, "orders", wait=True)) == []
    before = len(bench.said)
    bench.now_s = 6.0
    bench.wait()
    bench.feed(ms.MapCommitted(bench.lsn))

    (answer,) = bench.answers(before)
    assert answer.done
    assert answer.result == {"set": "orders", "created": True, "pending": True}
    assert "as soon as there is one" in answer.text


def test_a_new_controller_answers_that_a_queue_is_there_once_its_primary_has_said_so_to_it() -> None:
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", "c")
    bench.ask(ms.SettleQueue("q", {}, "orders"))
    bench.feed(ms.ControllerBegan(bench.map, "a", 2, 0))
    assert asked_to_wait(bench, ms.SettleQueue("q", {}, "orders", wait=True)) == []

    (answer,) = told_by_primary(bench, declared_queues=(ms.DeclaredQueues("orders", bench.map.queues["q"].id),))
    assert (answer.done, answer.result) == (True, {"set": "orders", "created": False})


def deletions(bench: Bench, since: int = 0) -> list[ms.OrderDeletion]:
    """The orders to delete queues; `since` as in `answers`."""
    return [effect for effect in bench.said[since:] if isinstance(effect, ms.OrderDeletion)]


def with_queue(*backups: str) -> tuple[Bench, int]:
    """A queue of a set that `b` leads; and the id of its entry."""
    bench = Bench("a", "b", "c")
    led(bench, "orders", "b", *backups)
    bench.ask(ms.SettleQueue("q", {"qpid.max_count": 5}, "orders"))
    return bench, bench.map.queues["q"].id


def test_the_primary_of_a_set_is_told_to_delete_a_queue_and_its_entry_goes_when_it_has() -> None:
    bench, entry = with_queue("c")
    before = list(bench.map.events(1))
    assert asked_to_wait(bench, ms.DeleteQueue("q", if_empty=True)) == []
    (order,) = deletions(bench)
    assert order[1:] == ("b", "orders", entry, True, False)
    assert list(bench.map.events(1)) == before, "nothing is written of what is not done"

    (answer,) = told_by_primary(bench, deleted_queues=(entry,))
    assert answer[1:] == (True, "queue q is deleted from orders", {"set": "orders", "id": entry})
    assert not bench.map.queues


def test_a_primary_that_does_not_delete_a_queue_as_its_conditions_do_not_hold_has_that_answered() -> None:
    bench, entry = with_queue("c")
    assert asked_to_wait(bench, ms.DeleteQueue("q", if_empty=True)) == []
    assert asked_to_wait(bench, ms.DeleteQueue("q")) == []
    first, second = deletions(bench)
    before = len(bench.said)
    bench.feed(ms.OrderAnswered("b", first.number, False, "queue q holds 2 messages"))
    bench.feed(ms.MapCommitted(bench.lsn))

    (answer,) = bench.answers(before)
    assert answer[1:] == (False, "queue q holds 2 messages", {"reason": "in-use"})
    (done,) = told_by_primary(bench, deleted_queues=(entry,))
    assert done.done, "who has asked without conditions hears of his own"
    assert second.number != first.number


def test_the_next_primary_of_a_set_is_told_what_the_one_before_has_not_answered() -> None:
    bench, entry = with_queue("c")
    assert asked_to_wait(bench, ms.DeleteQueue("q", if_unused=True)) == []
    before = len(bench.said)
    bench.wait(1.0)
    assert deletions(bench, before) == [], "once is enough"
    bench.lead("c", "orders", members=("b", "c"))
    bench.wait(1.0)

    assert [order[1:] for order in deletions(bench, before)] == [("c", "orders", entry, False, True)]


def test_who_waits_for_long_for_a_deletion_hears_that_nobody_knows() -> None:
    bench, _ = with_queue("c")
    assert asked_to_wait(bench, ms.DeleteQueue("q")) == []
    before = len(bench.said)
    bench.wait(5.1)
    bench.feed(ms.MapCommitted(bench.lsn))

    (answer,) = bench.answers(before)
    assert (answer.done, answer.result) == (False, {"reason": "unavailable"})
    assert "whether it is gone is not known" in answer.text
    assert bench.ask(ms.SettleQueue("q", {"qpid.max_count": 5}, "orders")).done, "it is not being deleted any more"


def test_where_a_replica_is_of_the_release_before_its_way_of_deleting_is_used() -> None:
    bench, entry = with_queue("c")
    older = report("c", ms.ReplicaReport("orders", "ready", "", 1, 5))._replace(reads_tombstones=False)
    bench.feed(ms.ReportReceived(older))
    refused = bench.ask(ms.DeleteQueue("q", if_empty=True))
    assert (refused.done, refused.result) == (False, {"reason": "unavailable"})
    assert "while c is of an older release" in refused.text
    assert asked_to_wait(bench, ms.DeleteQueue("q")) == []
    assert (bench.map.queues["q"].deleting, deletions(bench)) == (True, [])

    (answer,) = told_by_primary(bench, deleted_queues=(entry,))
    assert answer.done
    assert not bench.map.queues


def test_a_deletion_on_conditions_that_a_controller_of_the_release_before_has_begun_is_withdrawn() -> None:
    bench, entry = with_queue("c")
    placed = bench.map.queues["q"]
    begun = {**placed.arguments, "qpid.if-empty": True, "qpid.deletion": "c0ffee"}
    bench.map.apply(bench.lsn, ev.QueuePlaced("q", "orders", begun, True))
    kept = ms.KeptQueue(entry, "c0ffee", 1, "it stays")
    for late in (kept._replace(generation=0), kept._replace(deletion="f00d"), kept._replace(deletion="")):
        told_by_primary(bench, kept_queues=(late,))
        assert bench.map.queues["q"].deleting

    told_by_primary(bench, kept_queues=(kept,))
    assert bench.map.queues["q"] == placed


def test_whoever_only_looks_is_answered_although_nothing_can_be_committed() -> None:
    bench = Bench("a", "b", "c", "d")
    bench.ask(ms.CreateSet("orders"))
    bench.feed(ms.RequestReceived(900, ms.DrainBroker("c")))
    assert not [each for each in bench.answers() if each.number == 900], "what was written is not committed"

    for number, look in ((901, ms.ShowCluster()), (902, ms.ShowHistory("c"))):
        bench.feed(ms.RequestReceived(number, look))
        assert bench.answers()[-1].number == number

    shown = next(each for each in bench.answers() if each.number == 901).result
    assert shown["uncommitted"] is True
    (drained,) = [row for row in shown["brokers"] if row["name"] == "c"]  # type: ignore[attr-defined]
    assert not drained["safe_to_stop"]
    assert "what the controller has written last is not committed yet" in drained["why_not_to_stop"]
    bench.feed(ms.MapCommitted(bench.lsn))
    assert bench.ask(ms.ShowCluster()).result["uncommitted"] is False
