"""Clusters of many resource sets under seeded faults: whatever happens, each comes to rest as it should be.

The checkers find what they are there for: bugs are planted in the controller, and seeds must find them soon.
"""

from __future__ import annotations

import math

import pytest

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.leadership import Leadership
from qpid_ha_broker.cluster.liveness import Liveness
from qpid_ha_broker.cluster.records import SetRecords
from qpid_ha_broker.cluster.replicas import _Check
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message
from simulation.planted import found_by
from simulation.sets_nodes import Members
from simulation.sets_plan import SetsKind, draw_sets_plan
from simulation.sets_runs import run_sets
from simulation.sets_world import World

PORTIONS = {"sets-0": range(4), "sets-1": range(4, 16), "sets-2": range(16, 28), "sets-3": range(28, 40)}
"""Seeds of one test each, so that two processes have something to do."""


@pytest.mark.parametrize("seeds", PORTIONS.values(), ids=PORTIONS)
def test_forty_clusters_of_many_sets_keep_their_promises(seeds: range) -> None:
    outcomes = [run_sets(draw_sets_plan(seed)) for seed in seeds]

    assert {each.plan.seed: each.problem for each in outcomes if each.problem} == {}
    # A simulation in which nothing happens would pass as well.
    assert sum(outcome.confirmed for outcome in outcomes) > 300 * len(seeds)
    assert sum(outcome.generations for outcome in outcomes) > 7 * len(seeds)


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = (run_sets(draw_sets_plan(3), with_trace=True) for _ in range(2))

    assert first.trace
    assert first == second


def test_every_kind_of_fault_of_sets_is_drawn() -> None:
    assert {fault.kind for seed in range(60) for fault in draw_sets_plan(seed).faults} == set(SetsKind)


def test_a_record_that_is_replaced_without_a_comparison_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = SetRecords.requested

    def believe(self: SetRecords, asked: ms.RecordRequested) -> None:
        entry = self._ctx.draft.sets.get(asked.set)
        if entry is not None and entry.record.name and asked.wanted is not None:
            asked = asked._replace(expected=entry.record)
        requested(self, asked)

    monkeypatch.setattr(SetRecords, "requested", believe)

    found_by(monkeypatch, map(draw_sets_plan, range(60)))


def test_a_replica_that_goes_before_the_rest_is_in_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Check, "in_sync_without", lambda self, name: [each for each in self.replicas if each != name])

    assert "loses" in found_by(monkeypatch, map(draw_sets_plan, range(20))).problem


def test_a_failover_to_somebody_who_is_not_in_sync_is_refused_for_ever_and_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Leadership, "_candidates", lambda self, entry: [entry.replicas[-1]])
    monkeypatch.setattr(Leadership, "_others", lambda self, entry, candidates: [])

    assert "is led by []" in found_by(monkeypatch, map(draw_sets_plan, range(20))).problem


def test_a_lost_broker_that_nobody_misses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Liveness, "losses", lambda self, now_s, gone_after_s, failure_timeout_s: [])

    found_by(monkeypatch, map(draw_sets_plan, range(60)))


def test_a_new_controller_that_waits_for_ever_for_who_failed_with_the_old_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = Liveness.began

    def wait(self: Liveness, own: str, names: tuple[str, ...], now_s: float) -> None:
        began(self, own, names, now_s)
        self._since_s = dict.fromkeys(names, math.inf)

    monkeypatch.setattr(Liveness, "began", wait)
    monkeypatch.setattr(Liveness, "refuses", lambda self, name, now_s: None)  # else that is how it is known

    found_by(monkeypatch, map(draw_sets_plan, range(20)))


def test_a_controller_that_asks_nobody_before_it_takes_him_for_failed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Liveness, "to_ask", lambda self, now_s, failure_timeout_s: [])

    assert "is taken for failed" in found_by(monkeypatch, map(draw_sets_plan, range(11, 40))).problem


def test_a_broker_that_is_gone_because_its_connection_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it answers on another one."""
    answered = Liveness.answered

    def answer(self: Liveness, name: str, now_s: float) -> None:
        if name not in self._reset_s:
            answered(self, name, now_s)

    monkeypatch.setattr(Liveness, "answered", answer)

    assert "is taken for failed" in found_by(monkeypatch, map(draw_sets_plan, range(11, 40))).problem


def test_a_message_that_is_written_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Resources.publish

    def repeat(self: Resources, queue: Queue, message: Message, now_ms: int) -> CommitToken:
        publish(self, queue, message, now_ms)
        return publish(self, queue, message, now_ms)

    monkeypatch.setattr(Resources, "publish", repeat)

    assert "comes behind" in found_by(monkeypatch, map(draw_sets_plan, range(3))).problem


def many_sets(count: int, brokers: str = "abc") -> World:
    """Three brokers, and so many sets whose primaries are spread over them."""
    world = World(7, dict.fromkeys(brokers, ""), Members)
    world.lead("a")
    world.run(1.0)
    for number in range(count):
        world.ask(ms.CreateSet(f"set-{number}"))
    world.run(5.0)
    assert world.asked(ms.Rebalance(), 60.0).done  # of who can lead a new set, the first one does
    return world


def led_by(world: World) -> dict[str, int]:
    primaries = [entry.record.primary for entry in world.committed_map.sets.values()]
    return {name: primaries.count(name) for name in world.brokers}


def test_the_primaries_of_a_failed_broker_are_spread_over_the_others_at_once() -> None:
    world = many_sets(12)
    assert led_by(world) == {"a": 4, "b": 4, "c": 4}

    world.kill("c")
    world.run(3.0)  # nobody may say that its process is gone: then it is missed after two

    assert sorted(led_by(world).values()) == [0, 6, 6]


def test_a_new_controller_goes_on_from_the_map_when_it_failed_together_with_primaries() -> None:
    world = many_sets(12)

    world.kill("a")
    world.lead("b")
    world.run(4.0)

    assert led_by(world) == {"a": 0, "b": 6, "c": 6}, "what was a's is not led by whoever is heard of first"
    world.settle(60.0)


def a_set_beside_its_controller() -> World:
    """A leads `default`, and C a set of B, C and D."""
    world = World(7, dict.fromkeys("abcd", ""), Members)
    world.lead("a")
    world.run(1.0)
    world.ask(ms.CreateSet("set", ("b", "c", "d"), preferred="c"))
    world.run(5.0)
    return world


def test_a_set_goes_on_where_only_the_controller_cannot_reach_its_primary() -> None:
    world = a_set_beside_its_controller()

    world.cut("a", "c")
    world.run(1.0)
    before = len(world.members.confirmed["set"])
    world.run(10.0)

    assert world.committed_map.sets["set"].record.primary == "c", "B and D answer that C leads"
    assert len(world.members.confirmed["set"]) > before + 20
    world.heal()
    world.settle(60.0)


def test_a_primary_that_has_no_channel_to_a_new_controller_yet_is_not_replaced_by_a_broker_that_does_not_reach_it() -> (
    None
):
    """Who reaches it refuses to lead in its place; the other one did, after two seconds."""
    world = a_set_beside_its_controller()

    world.break_channel("c", 6.0)
    world.cut("b", "c")
    world.lead("d")
    world.run(8.0)

    assert world.committed_map.sets["set"].record.primary == "c"
    assert world.committed_map.brokers["c"].up
    world.heal()
    world.settle(60.0)


def test_a_primary_that_can_neither_report_nor_record_that_a_backup_left_hands_over() -> None:
    world = a_set_beside_its_controller()

    world.cut("a", "c")
    world.kill("b")
    world.run(8.0)

    entry = world.committed_map.sets["set"]
    assert (entry.record.primary, entry.record.generation) == ("d", 2)
    assert "c" in entry.record.members, "it follows the one to which it has handed over"
    world.heal()
    world.start("b")
    world.settle(60.0)


def test_a_drained_broker_is_empty_when_it_is_said_to_be_safe_to_stop() -> None:
    world = many_sets(8, "abcd")

    assert world.asked(ms.DrainBroker("c")).done
    world.run_until(lambda: any("c is drained" in note for note in world.notes), 120.0)

    assert all("c" not in entry.replicas for entry in world.committed_map.sets.values())
    assert world.asked(ms.UndrainBroker("c")).done
    world.settle(200.0)


def test_rebalancing_brings_primaries_back_one_at_a_time_and_then_has_nothing_to_do() -> None:
    world = many_sets(12)
    world.kill("c")
    world.run(2.0)
    world.start("c")
    world.run(10.0)
    assert led_by(world)["c"] == 0

    answer = world.asked(ms.Rebalance(), 60.0)

    assert answer.result == {"moved": 4}
    assert led_by(world) == {"a": 4, "b": 4, "c": 4}
    assert world.asked(ms.Rebalance(plan_only=True)).result == {"moves": []}


def test_a_transfer_is_answered_when_the_other_one_leads() -> None:
    world = many_sets(1)
    primary = world.committed_map.sets["set-0"].record.primary
    to = next(name for name in world.brokers if name != primary)

    answer = world.asked(ms.TransferPrimary("set-0", to))

    assert answer.done
    entry = world.committed_map.sets["set-0"]
    assert (entry.record.primary, entry.preferred, entry.record.generation) == (to, to, 2)
