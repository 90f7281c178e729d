"""The power goes at a certain write to the store of a resource set: of its broker, or of all of them at once.

Each change of the set's primary is a write of its vote, then one of its record into the log of `default`, then one of
the generation into its own store: the power goes before, between and after these.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_broker.ha.states import State
from simulated_disk import SimulatedDisk
from simulation.core.power_cuts import BACK_AFTER_S, Cut
from simulation.machines.node import BrokerNode
from simulation.sets.scenario import SetsScenario, cluster
from simulation.violations import Violation

SET: Final = "orders"
BROKERS: Final = "n0", "n1", "n2"
"""The first leads `default`; it and the second have replicas of the set."""
DOWN_S: Final = 1.2
SETTINGS: Final = {"ha.failure-recovery-interval": "60s"}


MakeDisk = Callable[[Path, Container[str] | None], SimulatedDisk]


class Struck(NamedTuple):
    """What came of a cut."""

    cut: Cut
    problem: str
    """What broke a promise; empty: nothing, and it did strike."""
    was_between: bool
    """The map had the record of a generation of which its primary, whose power had gone, had nothing in its store."""


class CutStores:
    """The stores of the set at all brokers, one of which may lose its power at a certain write."""

    def __init__(self, world: SetsScenario, cut: Cut | None) -> None:
        self._world = world
        self._cut = cut
        self.has_struck = self.was_between = False
        self._disks: dict[str, list[SimulatedDisk]] = {name: [] for name in BROKERS}
        """By broker: one after the other."""
        for node in world.nodes:
            make = node.disks.disk
            setattr(node.disks, "disk", partial(self._disk, node, make))  # noqa: B010 - mypy lets nobody replace it
            setattr(node, "loses_power", partial(self._strike, node))  # noqa: B010 - the same

    def _disk(
        self, node: BrokerNode, make: object, directory: Path, kept: Container[str] | None = None
    ) -> SimulatedDisk:
        assert callable(make)
        disk: SimulatedDisk = make(directory, kept)
        disks = self._disks[node.name]
        if directory.name == SET and (not disks or disks[-1] is not disk):
            before = self._count(node.name)
            disks.append(disk)
            cut = self._cut
            if cut is not None and not self.has_struck and BROKERS[cut.node] == node.name and cut.operation > before:
                disk.crash_at(cut.operation - before)
        return disk

    def _count(self, name: str) -> int:
        return sum(disk.operations for disk in self._disks[name])

    def counts(self) -> list[int]:
        """By broker: how often something was written."""
        return list(map(self._count, BROKERS))

    def _strike(self, node: BrokerNode) -> None:
        """That machine has no power any more, and perhaps none has."""
        if self.has_struck:
            return
        self.has_struck = True
        is_everywhere = self._cut is not None and self._cut.everywhere
        for each in self._world.nodes if is_everywhere else (node,):
            each.kill(is_silent=True)
            self._world.schedule.after(BACK_AFTER_S, each.start_machine)
        self._look(node)

    def _look(self, node: BrokerNode) -> None:
        """At what the one whose power has gone knows when it is back."""
        replica = self._world.replica(SET, node.name)
        entry = self._world.controllers.map.sets.get(SET)
        if not replica.is_up:
            self._world.schedule.after(0.001, partial(self._look, node))
        elif entry is not None and entry.record.primary == node.name:
            self.was_between |= replica.member.status.generation < entry.record.generation


def play(cut: Cut | None) -> CutStores:
    """A set is made; its primary dies; the next one hands over. Raises Violation."""
    with cluster(("",) * 3, SETTINGS, begins=False) as world:
        stores = CutStores(world, cut)
        world.begin()
        create = {"action": "create", "name": SET, "replicas": list(BROKERS[:2]), "preferred": "n1", "min_replicas": 2}
        world.ask("sets", create)
        world.let_go_by(1.0)
        world.publish_later(SET)
        world.let_go_by(1.5)
        if world.node("n1").is_up:
            world.node("n1").kill(is_silent=False)
            world.schedule.after(DOWN_S, world.node("n1").start_machine)
        world.let_go_by(2.5)
        world.ask_anybody("sets", {"action": "transfer", "name": SET, "to": "n1"})
        world.let_go_by(1.5)
        for client in world.clients:
            client.stop()
        world.run_until(partial(is_whole, world), 40.0)
        world.settle()
        world.let_go_by(1.0)
        world.check_confirmed(SET)
        return stores


def is_whole(world: SetsScenario) -> bool:
    """Somebody leads the set, and both replicas are in sync."""
    entry = world.controllers.map.sets.get(SET)
    if entry is None:
        world.ask_anybody("sets", {"action": "create", "name": SET, "replicas": list(BROKERS[:2]), "min_replicas": 2})
        world.let_go_by(1.0)
        return False
    states = [world.replica(SET, name) for name in BROKERS[:2]]
    ready = {State.PRIMARY, State.READY}
    return all(each.is_up and each.member.status.state in ready for each in states) and set(BROKERS[:2]) <= set(
        entry.record.members
    )


def cuts_of(counts: list[int], step: int) -> Iterator[Cut]:
    """One at each `step`-th write of each broker, alone and with all others in turn."""
    for node, count in enumerate(counts):
        for place, operation in enumerate(range(1, count + 1, step)):
            yield Cut(node, operation, place % 2 == 0)


def struck(cut: Cut) -> Struck:
    """The run with `cut`."""
    try:
        stores = play(cut)
    except Violation as violation:
        return Struck(cut, str(violation), False)
    return Struck(cut, "" if stores.has_struck else "the power was not cut", stores.was_between)
