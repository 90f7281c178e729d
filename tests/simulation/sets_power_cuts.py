"""The power goes at a certain write to the store of a resource set: of its broker, or of all of them at once.

Each change of the set's primary is a write of its vote, then one of its record into the log of `default`, then one of
the generation into its own store: the power goes before, between and after these. Of what the controller had not
committed when its own power goes some survives, as the seed draws it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from qpid_ha_broker.cluster import messages as ms
from simulation.node import Node, Violation
from simulation.node_store import Machine
from simulation.power_cuts import BACK_AFTER_S, Cut
from simulation.sets_nodes import Members, SimulatedSet
from simulation.sets_world import LAST_WRITE_S, World
from simulation.virtual_time import Clock

SET = "orders"
BROKERS = ("n0", "n1", "n2")
"""The first leads `default`; it and the second have replicas of the set."""
SETTINGS = ms.ControllerSettings(recovery_interval_s=6.0, check_interval_s=4.0)
DOWN_S = 1.2
REST_S = 20.0
SEED = 7


class Struck(NamedTuple):
    """What came of a cut."""

    cut: Cut
    problem: str
    """What broke a promise; empty: nothing, and it did strike."""
    was_between: bool
    """The map had the record of a generation of which its primary, whose power had gone, had nothing in its store."""


class CutSet(SimulatedSet):
    """One whose stores lose their power at a certain write."""

    def __init__(self, world: World, name: str, clocks: dict[str, Clock], cuts: CutMembers) -> None:
        self._cuts = cuts
        super().__init__(world, name, clocks)

    def _new_machine(self, broker: str) -> Machine:
        machine = super()._new_machine(broker)
        cut = self._cuts.cut
        if cut is not None and BROKERS[cut.node] == broker:
            machine.cut_at = cut.operation
            machine.disk.crash_at(cut.operation)
        return machine

    def process_ended(self, node: Node, in_order: bool) -> None:
        if in_order:
            super().process_ended(node, in_order)
        self._cuts.strike(node.name)

    def settle_identity(self, broker: str) -> None:
        """It has a process; after the cut that is the next one."""
        record, node = self._world.committed_map.sets[SET].record, self.nodes[broker]
        if self._cuts.has_struck and node.is_up and record.primary == broker:
            self._cuts.was_between |= node.member.status.generation < record.generation
        super().settle_identity(broker)


class CutMembers(Members):
    """The members of all sets, and a power cut."""

    def __init__(self, world: World, cut: Cut | None) -> None:
        super().__init__(world)
        self.cut = cut
        self.has_struck = self.was_between = False

    def _set(self, name: str) -> SimulatedSet:
        if name not in self._sets:
            self._sets[name] = CutSet(self._world, name, self._clocks, self)
        return self._sets[name]

    def strike(self, broker: str) -> None:
        """That broker has no power any more, and perhaps nobody has. Not at once: its set is in the middle of it."""
        self.has_struck = True
        is_everywhere = self.cut is not None and self.cut.everywhere
        self._world.after(0.0, lambda: self._cut_power(BROKERS if is_everywhere else (broker,)))

    def _cut_power(self, brokers: tuple[str, ...]) -> None:
        world = self._world
        for name in brokers:
            if world.brokers[name].is_up:
                world.kill(name, has_power=False)
                world.after(BACK_AFTER_S, partial(_start, world, name))
        world.after(2 * BACK_AFTER_S, partial(_lead, world))

    def operations(self) -> list[int]:
        """Of the set's stores at each broker: how often something was written to it."""
        machines = [self._set(SET).nodes[name].machine for name in BROKERS]
        return [0 if machine is None else machine.operations_total for machine in machines]


def _start(world: World, name: str) -> None:
    if not world.brokers[name].is_up:
        world.start(name)


def _lead(world: World) -> None:
    up = [name for name, broker in world.brokers.items() if broker.is_up]
    if not world.leader and up:
        world.lead(up[0])


def play(cut: Cut | None) -> CutMembers:
    """A set is made; its primary dies; the next one hands over. Raises Violation."""
    made: list[CutMembers] = []

    def members(world: World) -> CutMembers:
        made.append(CutMembers(world, cut))
        return made[0]

    world = World(SEED, dict.fromkeys(BROKERS, ""), members, SETTINGS)
    world.lead("n0")
    world.run(0.5)
    world.ask(ms.CreateSet(SET, BROKERS[:2], "n1", 2))
    world.run(1.5)
    if world.brokers["n1"].is_up:
        world.kill("n1")
        world.after(DOWN_S, partial(_start, world, "n1"))
    world.run(2.5)
    world.ask(ms.TransferPrimary(SET, "n1"))
    world.run(1.0)
    world.members.stop_clients()
    world.run_until(lambda: is_whole(world), REST_S)
    world.run(LAST_WRITE_S)
    world.check_at_rest()
    return made[0]


def is_whole(world: World) -> bool:
    """Somebody leads the set, and both replicas are in sync."""
    entry = world.committed_map.sets[SET]
    return world.members.leaders(SET) == [entry.record.primary] and set(BROKERS[:2]) <= set(entry.record.members)


def cuts_of(counts: list[int], step: int) -> Iterator[Cut]:
    """One at each `step`-th write of each broker, alone and with all others in turn."""
    for node, count in enumerate(counts):
        for place, operation in enumerate(range(1, count + 1, step)):
            yield Cut(node, operation, place % 2 == 0)


def struck(cut: Cut) -> Struck:
    """The run with `cut`."""
    try:
        members = play(cut)
    except Violation as violation:
        return Struck(cut, str(violation), False)
    return Struck(cut, "" if members.has_struck else "the power was not cut", members.was_between)
