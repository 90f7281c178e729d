"""`ha.placement: ring`: the backups of a set are those after its primary, whoever comes and goes."""

from __future__ import annotations

import pytest

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.placement import ring
from simulation.sets_nodes import Members
from simulation.sets_world import World

SETS = {"one": "a", "two": "b", "three": "c", "four": "d"}
"""By name, the broker that should lead each."""
WHOLE = {"one": {"a", "b"}, "two": {"b", "c"}, "three": {"c", "d"}, "four": {"d", "a"}}


@pytest.fixture
def world() -> World:
    """Four brokers, the first of which leads `default`."""
    settings = ms.ControllerSettings(min_replicas=2, recovery_interval_s=1.0, check_interval_s=0.5)
    world = World(1, dict.fromkeys("abcd", ""), Members, settings, ring)
    world.lead("a")
    world.run(1.0)
    return world


def create(world: World, *names: str) -> None:
    for name in names:
        assert world.asked(ms.CreateSet(name, preferred=SETS[name])).done
    world.run(10.0)


def placed(world: World) -> dict[str, set[str]]:
    """The replicas of each set, all of which are in sync."""
    sets = world.committed_map.sets
    assert all(set(entry.record.members) == set(entry.replicas) for entry in sets.values())
    return {name: set(entry.replicas) for name, entry in sets.items()}


def test_a_broker_that_is_put_in_between_takes_over_what_it_should_and_its_neighbours_let_go_of_it(
    world: World,
) -> None:
    create(world, "one")
    world.kill("c")
    world.run(5.0)
    assert world.asked(ms.ForgetBroker("c")).done
    create(world, "two", "four")
    assert placed(world) == {"one": {"a", "b"}, "two": {"b", "d"}, "four": {"d", "a"}}

    world.start("c")
    world.run(10.0)
    assert placed(world) == {"one": {"a", "b"}, "two": {"b", "c"}, "four": {"d", "a"}}
    create(world, "three")
    assert placed(world) == WHOLE


def test_a_broker_that_leaves_the_ring_is_replaced_by_the_one_after_it(world: World) -> None:
    create(world, *SETS)
    assert placed(world) == WHOLE

    assert world.asked(ms.DrainBroker("c")).done
    world.run(10.0)
    assert placed(world) == {**WHOLE, "two": {"b", "d"}, "three": {"d", "a"}}

    assert world.asked(ms.UndrainBroker("c")).done
    assert world.asked(ms.Rebalance()).done
    world.run(10.0)
    assert placed(world) == WHOLE
