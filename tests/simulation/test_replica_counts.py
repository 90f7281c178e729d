"""The maintained replica count, as its paper tells it: five brokers, and a set that wants three replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qpid_ha_broker.cluster_map import Changes
from simulation.sets.scenario import SetsScenario, cluster

ZONES = ("one", "two", "three", "three", "one")
RECOVERY_S, CHECK_S = 8.0, 6.0


@contextmanager
def five_brokers(recovery_s: float = RECOVERY_S, check_s: float = CHECK_S) -> Iterator[SetsScenario]:
    """With the set `qq` on the first three."""
    settings: dict[str, str | int] = {
        "ha.min-replicas": 3,
        "ha.failure-recovery-interval": f"{recovery_s:g}s",
        "ha.replica-check-interval": f"{check_s:g}s",
    }
    with cluster(ZONES, settings) as world:
        create(world, "qq")
        world.let_go_by(5.0)
        assert world.in_sync("qq") == {"n0", "n1", "n2"}
        yield world


def create(world: SetsScenario, name: str) -> None:
    world.asked("sets", {"action": "create", "name": name, "replicas": ["n0", "n1", "n2"]})


def test_scenario_one_a_broker_that_was_deleted_is_made_up_for_in_its_zone() -> None:
    with five_brokers() as world:
        world.kill("n2")
        world.let_go_by(4.0)

        world.asked("brokers", {"action": "forget", "name": "n2"})
        world.let_go_by(8.0)

        assert world.replicas("qq") == world.in_sync("qq") == {"n0", "n1", "n3"}, "the only other broker of zone three"
        decided = world.controllers.writes
        world.let_go_by(3 * CHECK_S)
        assert world.controllers.writes == decided


def test_scenario_two_an_operator_and_the_check_add_replicas_at_once() -> None:
    with five_brokers() as world:
        world.kill("n2")
        world.run_until(lambda: "n3" in world.replicas("qq"), RECOVERY_S + 2 * CHECK_S)

        world.asked("sets", {"action": "add-replica", "name": "qq", "broker": "n4"})
        world.let_go_by(3 * CHECK_S)

        assert world.replicas("qq") == world.in_sync("qq") == {"n0", "n1", "n3", "n4"}, "above is fine"
        decided = world.controllers.writes
        world.let_go_by(3 * CHECK_S)
        assert world.controllers.writes == decided
        extras = [each for each in world.asked("replicas", {"action": "plan"}) if each["set"] == "qq"]
        assert [(each["step"], each["broker"]) for each in extras] in ([("extra", "n3")], [("extra", "n4")])


def test_scenario_three_a_broker_that_is_back_before_the_interval_changes_nothing() -> None:
    with five_brokers(recovery_s=12.0, check_s=18.0) as world:
        placed = world.entry("qq")[:6]
        world.kill("n2")
        world.let_go_by(8.0)
        assert world.in_sync("qq") == {"n0", "n1"}

        world.start("n2")
        world.let_go_by(5.0)

        assert world.in_sync("qq") == {"n0", "n1", "n2"}
        world.let_go_by(36.0)
        assert world.entry("qq")[:6] == placed


def test_a_failure_does_not_start_everything_at_once() -> None:
    """At most two replicas catch up at one broker, and the rest waits."""
    with cluster(("one",) * 4, {"ha.min-replicas": 3, "ha.failure-recovery-interval": "60s"}) as world:
        for number in range(9):
            create(world, f"set-{number}")
        world.settle()
        world.kill("n2")
        world.let_go_by(5.0)
        catching_up: list[int] = []

        def count(_: Changes) -> None:
            sets = world.controllers.map.sets.values()
            catching_up.append(sum("n3" in entry.replicas and "n3" not in entry.record.members for entry in sets))

        world.controllers.map.listeners.append(count)
        world.asked("brokers", {"action": "forget", "name": "n2"})
        world.let_go_by(10.0)

        assert max(catching_up) == 2
        assert all("n3" in entry.record.members for entry in world.controllers.map.sets.values())


def test_replicas_are_kept_up_while_a_member_is_down() -> None:
    with five_brokers() as world:
        world.kill("n1")
        world.let_go_by(1.0)

        world.asked("replicas", {"action": "policies", "policies": [["q*", 4]]})
        world.let_go_by(4 * CHECK_S)

        assert world.in_sync("qq") == {"n0", "n2", "n3", "n4"}


def test_what_is_beyond_goes_when_told() -> None:
    with five_brokers() as world:
        world.asked("sets", {"action": "add-replica", "name": "qq", "broker": "n3"})
        world.let_go_by(3 * CHECK_S)
        assert world.in_sync("qq") == {"n0", "n1", "n2", "n3"}

        world.asked("replicas", {"action": "trim", "name": "qq"})
        world.let_go_by(5.0)

        assert len(world.in_sync("qq")) == 3
        assert {"n0", "n1"} <= world.in_sync("qq"), "the other two share a zone"
