"""Clusters of real brokers and many sets: what becomes of their primaries, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simulation.sets.scenario import SetsScenario, cluster

NOTHING_IS_MADE_UP_FOR = {"ha.failure-recovery-interval": "60s"}


@contextmanager
def many_sets(count: int, brokers: int = 3) -> Iterator[SetsScenario]:
    """So many sets whose primaries are spread over the brokers."""
    with cluster(("",) * brokers, {"ha.min-replicas": 3, **NOTHING_IS_MADE_UP_FOR}) as world:
        for number in range(count):
            world.asked("sets", {"action": "create", "name": f"set-{number}"})
        world.settle()
        world.asked("rebalance", {})  # of who can lead a new set, the first one does
        yield world


def test_the_primaries_of_a_failed_broker_are_spread_over_the_others_at_once() -> None:
    with many_sets(12) as world:
        assert world.led_by() == {"n0": 4, "n1": 4, "n2": 4}

        world.kill("n2")
        world.let_go_by(3.0)

        assert sorted(world.led_by().values()) == [0, 6, 6]


def test_a_new_controller_goes_on_from_the_map_when_it_failed_together_with_primaries() -> None:
    with many_sets(12) as world:
        world.kill("n0")
        world.run_until(lambda: world.default.primary is not None, 10.0)
        world.let_go_by(4.0)

        assert world.led_by() == {"n0": 0, "n1": 6, "n2": 6}, "what was n0's is not led by whoever is heard of first"
        world.settle()


@contextmanager
def a_set_beside_its_controller() -> Iterator[SetsScenario]:
    """N0 leads `default`, and n2 a set of n1, n2 and n3."""
    with cluster(("",) * 4, NOTHING_IS_MADE_UP_FOR) as world:
        replicas = ["n1", "n2", "n3"]
        world.asked("sets", {"action": "create", "name": "set", "replicas": replicas, "preferred": "n2"})
        world.let_go_by(5.0)
        assert world.entry("set").record.primary == "n2"
        yield world


def test_a_set_goes_on_where_only_the_controller_cannot_reach_its_primary() -> None:
    with a_set_beside_its_controller() as world:
        published = world.publish("set")
        world.let_go_by(3.0)
        world.cut("n0", "n2")
        world.let_go_by(1.0)
        before = len(published.accepted)
        world.let_go_by(10.0)

        assert world.entry("set").record.primary == "n2", "n1 and n3 answer that n2 leads"
        assert len(published.accepted) > before + 20
        world.mend("n0", "n2")
        world.settle()


def test_a_primary_that_has_no_channel_to_a_new_controller_yet_is_not_replaced_by_a_broker_that_does_not_reach_it() -> (
    None
):
    """Who reaches it refuses to lead in its place; the other one did, after two seconds."""
    with a_set_beside_its_controller() as world:
        world.break_channel("n2", 6.0)
        world.cut("n1", "n2")
        world.lead("n3")
        world.let_go_by(8.0)

        assert world.entry("set").record.primary == "n2"
        assert world.controllers.map.brokers["n2"].up
        world.mend("n1", "n2")
        world.settle()


def test_a_primary_that_can_neither_report_nor_record_that_a_backup_left_hands_over() -> None:
    with a_set_beside_its_controller() as world:
        world.cut("n0", "n2")
        world.kill("n1")
        world.let_go_by(8.0)

        record = world.entry("set").record
        assert (record.primary, record.generation) == ("n3", 2)
        assert "n2" in record.members, "it follows the one to which it has handed over"
        world.mend("n0", "n2")
        world.start("n1")
        world.settle()


def test_a_drained_broker_is_empty_when_it_is_said_to_be_safe_to_stop() -> None:
    with many_sets(8, 4) as world:
        world.asked("brokers", {"action": "drain", "name": "n2"})

        def state() -> object:
            (row,) = (row for row in world.asked("brokers", {"action": "list"}) if row["name"] == "n2")
            return row["state"]

        world.run_until(lambda: state() == "drained", 120.0)

        assert not any("n2" in entry.replicas for entry in world.controllers.map.sets.values())
        world.asked("brokers", {"action": "undrain", "name": "n2"})
        world.settle()


def test_rebalancing_brings_primaries_back_one_at_a_time_and_then_has_nothing_to_do() -> None:
    with many_sets(12) as world:
        world.kill("n2")
        world.let_go_by(2.0)
        world.start("n2")
        world.let_go_by(10.0)
        assert world.led_by()["n2"] == 0

        assert world.asked("rebalance", {})["moved"] == 4
        assert world.led_by() == {"n0": 4, "n1": 4, "n2": 4}
        assert world.asked("rebalance", {"plan": True}) == []


def test_a_transfer_is_answered_when_the_other_one_leads() -> None:
    with many_sets(1) as world:
        to = next(name for name, led in world.led_by().items() if not led)

        world.asked("sets", {"action": "transfer", "name": "set-0", "to": to})

        entry = world.entry("set-0")
        assert (entry.record.primary, entry.preferred, entry.record.generation) == (to, to, 2)


def test_a_broker_that_begins_to_lead_default_hears_of_the_first_that_it_writes_there() -> None:
    """A queue whose entry is not committed is not declared, by whoever leads its set at the same broker."""
    with cluster(("", ""), {}) as world:
        make = {"action": "create", "arguments": {"qpid.resource-set": "shard-1"}}
        world.asked("sets", {"action": "create", "name": "shard-1"})
        world.asked("queues", {**make, "name": "q1"})
        world.settle()
        world.kill("n1")
        world.let_go_by(5.0)
        world.kill("n0")
        world.start("n0")
        world.run_until(lambda: world.node("n0").is_serving and world.leads("n0", "shard-1"), 20.0)
        world.node("n0").disks.slow_s = 600.0  # until it is committed

        world.ask("queues", {**make, "name": "q2"})
        world.let_go_by(5.0)

        node = world.node("n0")
        assert set(node.resources.catalog.map.queues) == {"q1", "q2"}
        assert set(world.controllers.map.queues) == {"q1"}
        assert set(world.queues_in("shard-1")) == {"q1"}


def test_what_a_new_controller_found_counts_as_committed_before_anybody_acts_on_it() -> None:
    """It has nothing to write, and so the core hears of no commit: the checks do, before they look once more."""
    with cluster(("",) * 3, {}) as world:
        make: dict[str, object] = {"action": "create", "arguments": {"qpid.resource-set": "set"}, "name": "q"}
        world.asked("sets", {"action": "create", "name": "set", "replicas": ["n1", "n2"], "preferred": "n1"})
        world.let_go_by(5.0)
        world.node("n0").disks.slow_s = 600.0
        world.ask("queues", make)
        world.let_go_by(0.5)
        assert set(world.node("n1").resources.catalog.map.queues) == set(), "it holds what is not committed"
        setattr(world.controllers, "look", lambda: None)  # noqa: B010 - a method, which mypy lets nobody replace
        world.kill("n0")
        world.node("n0").disks.slow_s = 0.0
        world.start("n0")

        world.run_until(lambda: world.queues_in("set") == {"q"}, 10.0)

        assert set(world.controllers.map.queues) == {"q"}


def test_a_new_set_is_led_although_one_of_its_brokers_died_before_anybody_led_it() -> None:
    with cluster(("",) * 4, NOTHING_IS_MADE_UP_FOR) as world:
        world.kill("n2")  # the controller does not know it yet
        world.asked("sets", {"action": "create", "name": "set", "replicas": ["n1", "n2"], "preferred": "n2"})

        world.run_until(lambda: world.leads("n1", "set") or world.leads("n0", "set"), 10.0)

        assert "n2" not in world.replicas("set")
        published = world.publish("set")
        world.start("n2")
        world.let_go_by(3.0)
        world.settle()
        assert published.accepted
        world.check_confirmed("set")


def test_a_new_set_is_led_although_one_of_its_brokers_cannot_begin_a_store() -> None:
    with cluster(("",) * 3, NOTHING_IS_MADE_UP_FOR) as world:
        world.node("n2").disks.fill()
        world.asked("sets", {"action": "create", "name": "set", "replicas": ["n0", "n1", "n2"]})

        world.run_until(lambda: world.leads("n0", "set") or world.leads("n1", "set"), 10.0)
        world.node("n2").disks.make_room()
        world.settle()
