"""The maintained replica count, as its paper tells it: five brokers A to E, and a set that wants three replicas."""

from __future__ import annotations

from qpid_ha_broker.cluster import messages as ms
from simulation.sets_nodes import Members
from simulation.sets_world import World

ZONES = {"a": "one", "b": "two", "c": "three", "d": "three", "e": "one"}
RECOVERY_S, CHECK_S = 60.0, 60.0
SETTINGS = ms.ControllerSettings(recovery_interval_s=RECOVERY_S, check_interval_s=CHECK_S)


def five_brokers(check_s: float = CHECK_S) -> World:
    """With the set `qq` on A, B and C."""
    world = World(1, ZONES, Members, SETTINGS._replace(check_interval_s=check_s))
    world.lead("a")
    world.run(1.0)
    assert world.asked(ms.CreateSet("qq", ("a", "b", "c"))).done
    world.run(5.0)
    assert in_sync(world) == {"a", "b", "c"}
    return world


def in_sync(world: World) -> set[str]:
    return set(world.committed_map.sets["qq"].record.members)


def replicas(world: World) -> set[str]:
    return set(world.committed_map.sets["qq"].replicas)


def test_scenario_one_a_broker_that_was_deleted_is_made_up_for_in_its_zone() -> None:
    world = five_brokers()
    world.kill("c")
    world.run(5.0)

    assert world.asked(ms.ForgetBroker("c")).done
    world.run(10.0)

    assert replicas(world) == in_sync(world) == {"a", "b", "d"}, "the only other broker of zone three"
    decided = world.map_events
    world.run(3 * CHECK_S)
    assert world.map_events == decided


def test_scenario_two_an_operator_and_the_check_add_replicas_at_once() -> None:
    world = five_brokers()
    world.kill("c")
    world.run_until(lambda: "d" in replicas(world), RECOVERY_S + 2 * CHECK_S)

    assert world.asked(ms.AddReplica("qq", "e")).done
    world.run(3 * CHECK_S)

    assert replicas(world) == in_sync(world) == {"a", "b", "d", "e"}, "above is fine"
    decided = world.map_events
    world.run(3 * CHECK_S)
    assert world.map_events == decided
    extras = world.asked(ms.PlanReplicas("qq")).result["actions"]
    assert [(action["step"], action["broker"]) for action in extras] in ([("extra", "d")], [("extra", "e")])  # type: ignore[attr-defined]


def test_scenario_three_a_broker_that_is_back_before_the_interval_changes_nothing() -> None:
    world = five_brokers(check_s=90.0)
    placed = world.committed_map.sets["qq"][:6]
    world.kill("c")
    world.run(RECOVERY_S - 5.0)
    assert in_sync(world) == {"a", "b"}

    world.start("c")
    world.run(10.0)

    assert in_sync(world) == {"a", "b", "c"}
    world.run(180.0)
    assert world.committed_map.sets["qq"][:6] == placed


def test_a_failure_does_not_start_everything_at_once() -> None:
    """At most two replicas catch up at one broker, and the rest waits."""
    world = World(2, dict.fromkeys("abcd", ""), Members, SETTINGS._replace(recovery_interval_s=1.0))
    world.lead("a")
    world.run(1.0)
    for number in range(9):
        assert world.asked(ms.CreateSet(f"set-{number}", ("a", "b", "c"))).done
    world.run(10.0)
    world.kill("c")
    world.run(5.0)
    most = 0

    world.asked(ms.ForgetBroker("c"))
    for _ in range(400):
        world.run(0.05)
        sets = world.committed_map.sets.values()
        most = max(most, sum("d" in entry.replicas and "d" not in entry.record.members for entry in sets))

    assert most == 2
    assert all("d" in entry.record.members for entry in world.committed_map.sets.values())


def test_replicas_are_kept_up_while_a_member_is_down() -> None:
    world = five_brokers()
    world.kill("b")
    world.run(1.0)

    assert world.asked(ms.SetPolicies((("q*", 4),))).done
    world.run(3 * CHECK_S)

    assert in_sync(world) == {"a", "c", "d", "e"}


def test_what_is_beyond_goes_when_told() -> None:
    world = five_brokers()
    assert world.asked(ms.AddReplica("qq", "d")).done
    world.run(3 * CHECK_S)
    assert in_sync(world) == {"a", "b", "c", "d"}

    answer = world.asked(ms.TrimReplicas("qq"))
    world.run(5.0)

    assert answer.done
    assert len(in_sync(world)) == 3
    assert {"a", "b"} <= in_sync(world), "C and D share a zone"
