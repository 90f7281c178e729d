"""What the controller does about a set that each of its brokers writes: it places replicas, and orders nothing else."""

from __future__ import annotations

import pytest

from controller_bench import SETTINGS, Bench, report
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.overview import map_facts
from qpid_ha_broker.cluster.placement import ring
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events import types as ev

NAMES = ("a", "b", "c")


def create(bench: Bench, *members: str) -> ms.AnswerRequest:
    return bench.ask(ms.CreateSet("orders", members, strategy="group"))


def entry(bench: Bench) -> SetEntry:
    return bench.map.sets["orders"]


def recorded(bench: Bench, by: str, *members: str) -> None:
    """That member has these recorded, and all of them, and no others, serve."""
    record = entry(bench).record
    bench.lead(by, "orders", epoch=record.epoch + 1, members=members)
    serve(bench, *members)


def serve(bench: Bench, *members: str) -> None:
    record = entry(bench).record
    for name in members:
        state, phase = ("primary", "active") if name == record.primary else ("ready", "")
        bench.hosts(name, ms.ReplicaReport("orders", state, phase, record.generation, 5))


def group(*brokers: str) -> Bench:
    """The group `orders` at `a`, `b` and `c`; `b` had them recorded last."""
    bench = Bench(*brokers)
    assert create(bench, *NAMES).done
    recorded(bench, "b", *NAMES)
    return bench


def shown(bench: Bench) -> dict[str, object]:
    sets = bench.ask(ms.ShowCluster()).result["sets"]
    assert isinstance(sets, list)
    row: dict[str, object] = sets[0]
    return row


def shown_brokers(bench: Bench) -> list[dict[str, object]]:
    brokers = bench.ask(ms.ShowCluster()).result["brokers"]
    assert isinstance(brokers, list)
    return brokers


def lose(bench: Bench, *brokers: str) -> None:
    """These are not heard of any more, and the others are."""
    for name in brokers:
        del bench.reported[name]
    bench.stay(SETTINGS.failure_timeout_s + 1)


# --- made


def test_a_group_is_placed_grouped_and_has_the_uuid_of_its_log() -> None:
    bench = Bench(*NAMES)
    assert create(bench).done
    (written,) = [effect for effect in bench.said if isinstance(effect, ms.WriteMap)]
    assert [type(event).__name__ for event in written.events[-3:]] == ["SetPlaced", "SetGrouped", "SetRecorded"]
    assert (entry(bench).is_group, len(entry(bench).replicas)) == (True, 3)
    assert len(entry(bench).record.cluster) == 32


def test_a_set_of_no_strategy_in_particular_has_a_primary() -> None:
    bench = Bench(*NAMES)
    assert bench.ask(ms.CreateSet("orders")).done
    assert not entry(bench).is_group
    assert not any(isinstance(event, ev.SetGrouped) for _, event in bench.map.events(1))


@pytest.mark.parametrize(
    ("request_", "needs"),
    [
        (ms.CreateSet("x", strategy="active"), ("'active'", "primary or group")),
        (ms.CreateSet("x", preferred="b", strategy="group"), ("none is preferred",)),
        (ms.CreateSet("orders", strategy="group"), ("already",)),
        (ms.CreateSet("orders"), ("already, with the strategy group", "`--strategy primary`")),
        (ms.TransferPrimary("orders", "c"), ("orders is a group: each of its brokers serves it",)),
        (ms.TransferPrimary("orders"), ("no primary to move",)),
        (ms.PromoteReplica("orders", "c", force=True), ("no primary to move",)),
        (ms.DeleteSet("orders", lost=True), ("its brokers serve it",)),
    ],
)
def test_what_a_group_cannot_have_is_refused_and_changes_nothing(
    request_: ms.ClusterRequest, needs: tuple[str, ...]
) -> None:
    bench = group(*NAMES)
    before = list(bench.map.events(1))
    answer = bench.ask(request_)
    assert not answer.done
    assert [need for need in needs if need not in answer.text] == []
    assert list(bench.map.events(1)) == before


def test_a_set_with_a_primary_is_not_turned_into_a_group() -> None:
    bench = Bench(*NAMES)
    bench.ask(ms.CreateSet("orders"))
    answer = create(bench)
    assert not answer.done
    assert "with the strategy primary" in answer.text
    assert "another set with `--strategy group`" in answer.text
    assert not entry(bench).is_group


def test_no_group_is_made_while_a_broker_is_of_another_release_which_may_not_know_groups() -> None:
    bench = Bench("a", "b")
    older = report("old")
    bench.feed(ms.ReportReceived(older._replace(broker=older.broker._replace(version="0.9"))))
    answer = create(bench)
    assert not answer.done
    assert "an older release may not know groups" in answer.text
    assert "(now a 1.0, b 1.0, old 0.9)" in answer.text
    assert bench.ask(ms.CreateSet("orders")).done
    assert create(bench).done is False
    bench.hosts("old")
    assert bench.ask(ms.CreateSet("audit", strategy="group")).done


# --- its record


def test_any_member_replaces_the_record_and_its_log_keeps_its_uuid() -> None:
    bench = Bench(*NAMES)
    create(bench, *NAMES)
    first = entry(bench).record
    bench.lead("c", "orders", cluster="c/1", epoch=1, members=("c",), claimed=True)
    assert entry(bench).record == first, "a claim with a UUID of its own"
    bench.feed(ms.MapCommitted(bench.lsn))
    (answer,) = [effect for effect in bench.said if isinstance(effect, ms.AnswerRecord)]
    assert (answer.written, answer.record) == (False, first)
    assert first.cluster in answer.problem

    recorded(bench, "c", "c")
    recorded(bench, "a", "a", "c")
    assert (entry(bench).record.cluster, entry(bench).record.members) == (first.cluster, ("a", "c"))
    assert "the group is a, c (a came) from generation 2: a had that recorded" in bench.controller_history("orders")


def test_history_says_who_is_in_sync_who_left_who_came_and_who_had_it_recorded() -> None:
    bench = Bench(*NAMES)
    create(bench, *NAMES)
    recorded(bench, "a", "a")
    recorded(bench, "a", "a", "b", "c")
    recorded(bench, "c", "b", "c")
    recorded(bench, "b", "a", "b")
    assert [text for text in bench.controller_history("orders") if text.startswith("the group is")] == [
        "the group is a from generation 1: a had that recorded",
        "the group is a, b, c (b, c came) from generation 2: a had that recorded",
        "the group is b, c (a left) from generation 3: c had that recorded",
        "the group is a, b (c left; a came) from generation 4: b had that recorded",
    ]


def test_what_another_member_lacks_is_shown_while_the_group_is_served() -> None:
    bench = group(*NAMES)
    bench.hosts("a", ms.ReplicaReport("orders", "connecting", problem="outside: it is alone"))
    bench.hosts("c", ms.ReplicaReport("orders", "catchup", problem="catching-up: let in by b"))
    assert shown(bench)["problem"] == "a: outside: it is alone"


# --- its members are lost


def older_copy(lsn: int = 5) -> Bench:
    """`b` and `c` are recorded, and lost; `a` has what it had when it left."""
    bench = group(*NAMES)
    recorded(bench, "b", "b", "c")
    lose(bench, "b", "c")
    bench.hosts("a", ms.ReplicaReport("orders", "connecting", generation=2, lsn=lsn, problem="outside: alone"))
    return bench


def test_a_group_goes_on_with_an_older_copy_by_force_alone_and_the_answer_says_what_is_given_up() -> None:
    bench = older_copy()
    before = entry(bench).record
    answer = bench.ask(ms.PromoteReplica("orders", "a"))
    assert not answer.done
    assert "a holds orders up to LSN 5; in sync were b, c" in answer.text
    assert "see that none of them runs, and `qpid-ha set promote orders a --force`" in answer.text
    assert entry(bench).record == before
    answer = bench.ask(ms.PromoteReplica("orders", "a", force=True))
    assert answer.done
    assert "what they have confirmed that a lacks is given up" in answer.text
    after = entry(bench).record
    assert (after.members, after.primary, after.claimed, after.cluster) == (("a",), "a", False, before.cluster)
    assert (after.generation, after.epoch) == (before.generation + 1, before.epoch + 1)
    assert any("an operator has the group go on with a" in text for text in bench.controller_history("orders"))


def test_no_force_gives_up_what_somebody_who_is_up_has_or_begins_with_a_part_of_a_copy() -> None:
    force = ms.PromoteReplica("orders", "a", force=True)
    bench = older_copy()
    bench.hosts("b", ms.ReplicaReport("orders", "connecting", generation=3, lsn=9, problem="withheld: c is missing"))
    answer = bench.ask(force)
    assert (answer.done, "b is connecting (withheld: c is missing)" in answer.text) == (False, True)
    bench.hosts("b", ms.ReplicaReport("orders", ms.FAILED, problem="libcpg is not there"))
    answer = bench.ask(force)
    assert (answer.done, "b cannot serve (libcpg is not there). Mend that" in answer.text) == (False, True)
    bench.hosts("b", ms.ReplicaReport("orders", "connecting", generation=3, problem="outside: its disk is new"))
    assert bench.ask(force).done, "b has come back without its disk"
    bench = older_copy(lsn=0)
    answer = bench.ask(force)
    assert (answer.done, "no whole copy" in answer.text) == (False, True)
    answer = bench.ask(ms.PromoteReplica("orders", "b", force=True))
    assert (answer.done, "goes on by itself once one of b, c is there" in answer.text) == (False, True)


# --- nobody is told to lead it


def test_a_new_group_and_one_whose_members_have_gone_are_waited_for_without_an_order() -> None:
    bench = Bench(*NAMES)
    create(bench, *NAMES)
    for name in NAMES:
        bench.hosts(name, ms.ReplicaReport("orders", "connecting"))
    bench.stay(3.0)
    assert shown(bench)["problem"] == (
        "it is new, and no member of the group serves yet: a is connecting, b is connecting, c is connecting"
    )
    recorded(bench, "b", *NAMES)
    assert shown(bench)["problem"] == ""

    recorded(bench, "b", "b", "c")
    lose(bench, "b", "c")
    bench.hosts("a", ms.ReplicaReport("orders", "catchup", problem="nobody answers"))
    bench.stay(3.0)
    assert shown(bench)["problem"] == "no member of the group serves: b is away, c is away: start one of b, c"
    assert [order for order in bench.given() if order.set == "orders"] == []
    answer = bench.ask(ms.PromoteReplica("orders", "a", force=True))
    assert not answer.done
    assert "a has no whole copy of orders" in answer.text
    assert "goes on by itself once one of b, c is there" in bench.ask(ms.PromoteReplica("orders", "b", force=True)).text


def test_while_the_others_have_themselves_recorded_the_controller_waits() -> None:
    bench = group(*NAMES)
    lose(bench, "b")
    assert (
        shown(bench)["problem"]
        == "a, c serve it; b is to look after its queues, and is away, which they have to record"
    )
    recorded(bench, "a", "a", "c")
    assert (shown(bench)["problem"], shown(bench)["primary"]) == ("", "a")
    assert [order for order in bench.given() if order.set == "orders"] == []


def test_a_member_that_cannot_serve_says_why_and_nobody_is_put_back() -> None:
    bench = group("a", "b", "c", "d")
    bench.ask(ms.RemoveReplica("orders", "c", force=True))
    assert entry(bench).replicas == ("a", "b")
    lose(bench, "b")
    bench.hosts("a", ms.ReplicaReport("orders", "failed", problem="the disk is full"))
    bench.hosts("c")
    bench.stay(3.0)
    assert "a cannot serve (the disk is full), b is away, c does not host it: start b" in str(shown(bench)["problem"])
    assert "c" not in entry(bench).leaving
    assert [order for order in bench.given() if order.set == "orders"] == []


def test_a_group_is_no_reason_to_hand_over_whoever_is_drained_stops_or_leads_much() -> None:
    bench = group("a", "b", "c", "d")
    assert bench.ask(ms.LeaveBroker("b")).result == {"left": 0}
    assert bench.ask(ms.Rebalance(plan_only=True)).result == {"moves": []}
    assert bench.ask(ms.DrainBroker("b")).result == {"primaries": 0, "replicas": 1}
    bench.stay(3.0)
    assert [order for order in bench.given() if order.set == "orders"] == []


# --- its replicas


def test_a_drained_member_that_had_the_record_written_goes_once_the_rest_is_enough() -> None:
    bench = group("a", "b", "c", "d")
    bench.ask(ms.DrainBroker("b"))
    bench.stay(2.0)
    assert set(entry(bench).staying) == {"a", "c", "d"}
    assert "b" in entry(bench).replicas, "d is not in sync yet"
    recorded(bench, "b", "a", "b", "c", "d")
    bench.stay(2.0)
    assert set(entry(bench).replicas) == {"a", "c", "d"}
    bench.hosts("b")
    recorded(bench, "a", "a", "c", "d")
    bench.feed(ms.MapCommitted(bench.lsn))
    (row,) = [row for row in shown_brokers(bench) if row["name"] == "b"]
    assert (row["safe_to_stop"], row["primaries"]) == (True, 0)


def test_an_operator_takes_away_any_member_but_not_the_last_one_in_sync() -> None:
    bench = group(*NAMES)
    recorded(bench, "b", "b", "c")
    bench.hosts("a", ms.ReplicaReport("orders", "catchup"))
    assert bench.ask(ms.RemoveReplica("orders", "b", force=True)).done
    assert entry(bench).replicas == ("a", "c")
    bench.hosts("b")
    recorded(bench, "c", "c")
    answer = bench.ask(ms.RemoveReplica("orders", "c", force=True))
    assert not answer.done
    assert "nobody else who is up is in sync in orders" in answer.text


def test_whoever_had_the_record_written_may_be_trimmed_as_others() -> None:
    bench = group("a", "b", "c", "d")
    bench.ask(ms.AddReplica("orders", "d"))
    recorded(bench, "d", "a", "b", "c", "d")
    assert bench.ask(ms.TrimReplicas("orders")).result["trimmed"] == {"orders": ["d"]}


def test_replicas_on_a_ring_stay_when_another_member_has_the_record_written() -> None:
    bench = Bench("a", "b", "c", "d", "e", placement=ring)
    create(bench, *NAMES)
    recorded(bench, "c", *NAMES)
    bench.ask(ms.Rebalance())
    bench.stay(3.0)
    assert (entry(bench).replicas, entry(bench).leaving) == (NAMES, ())


def test_what_no_queue_of_a_group_can_be_is_refused_before_it_is_in_the_directory() -> None:
    bench = group(*NAMES)
    answer = bench.ask(ms.SettleQueue("invoices", {"qpid.cluster.source": "amqp://far/q"}, "orders"))
    assert (answer.done, "not for queues of a group" in answer.text) == (False, True), answer
    assert not bench.map.queues
    assert bench.ask(ms.SettleQueue("invoices", {}, "orders")).done


# --- what is shown, and the end


def test_its_row_tells_the_strategy_and_who_is_in_sync() -> None:
    row = shown(group(*NAMES))
    assert (row["strategy"], row["in_sync"], row["problem"]) == ("group", list(NAMES), "")
    assert row["replicas"] == {"a": "ready", "b": "primary", "c": "ready"}


def test_by_the_map_alone_a_group_lacks_nobody_while_one_of_those_in_sync_is_up() -> None:
    bench = group("a", "b", "c", "d")
    bench.map.apply(90, ev.BrokerChanged("b", False, False, 0))
    assert map_facts(bench.map, "d")["sets_without_primary"] == []
    for name in ("a", "c"):
        bench.map.apply(91, ev.BrokerChanged(name, False, False, 0))
    assert map_facts(bench.map, "d")["sets_without_primary"] == ["orders"]


def test_a_cluster_that_is_shut_down_ends_its_groups_with_their_brokers() -> None:
    bench = group(*NAMES)
    answer = bench.ask(ms.ShutDownSets("uuid"))
    assert answer.done
    assert answer.result == {"ended": 0, "problems": {}}
    assert "1 group ends with their brokers" in answer.text
    assert [order for order in bench.given() if order.set == "orders"] == []
