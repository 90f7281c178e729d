"""`ha.placement: ring`: the backups of a set are those after its primary, whoever comes and goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from simulation.sets.scenario import SetsScenario, cluster

SETS = {"one": "n0", "two": "n1", "three": "n2", "four": "n3"}
"""By name, the broker that should lead each."""
WHOLE = {"one": {"n0", "n1"}, "two": {"n1", "n2"}, "three": {"n2", "n3"}, "four": {"n3", "n0"}}


@pytest.fixture
def world() -> Iterator[SetsScenario]:
    """Four brokers, the first of which leads `default`."""
    settings: dict[str, str | int] = {
        "ha.placement": "ring",
        "ha.min-replicas": 2,
        "ha.failure-recovery-interval": "1s",
        "ha.replica-check-interval": "0.5s",
    }
    with cluster(("",) * 4, settings) as world:
        yield world


def create(world: SetsScenario, *names: str) -> None:
    for name in names:
        world.asked("sets", {"action": "create", "name": name, "preferred": SETS[name]})
    world.let_go_by(10.0)


def placed(world: SetsScenario) -> dict[str, set[str]]:
    """The replicas of each set, all of which are in sync."""
    sets = world.controllers.map.sets
    assert all(set(entry.record.members) == set(entry.replicas) for entry in sets.values())
    return {name: set(entry.replicas) for name, entry in sets.items()}


def test_a_broker_that_is_put_in_between_takes_over_what_it_should_and_its_neighbours_let_go_of_it(
    world: SetsScenario,
) -> None:
    create(world, "one")
    world.kill("n2")
    world.let_go_by(5.0)
    world.asked("brokers", {"action": "forget", "name": "n2"})
    create(world, "two", "four")
    assert placed(world) == {"one": {"n0", "n1"}, "two": {"n1", "n3"}, "four": {"n3", "n0"}}

    world.start("n2")
    world.let_go_by(10.0)
    assert placed(world) == {"one": {"n0", "n1"}, "two": {"n1", "n2"}, "four": {"n3", "n0"}}
    create(world, "three")
    assert placed(world) == WHOLE


def test_a_broker_that_leaves_the_ring_is_replaced_by_the_one_after_it(world: SetsScenario) -> None:
    create(world, *SETS)
    assert placed(world) == WHOLE

    world.asked("brokers", {"action": "drain", "name": "n2"})
    world.let_go_by(10.0)
    assert placed(world) == {**WHOLE, "two": {"n1", "n3"}, "three": {"n3", "n0"}}

    world.asked("brokers", {"action": "undrain", "name": "n2"})
    world.asked("rebalance", {})
    world.let_go_by(10.0)
    assert placed(world) == WHOLE
