"""One cluster of many sets, drawn from a seed: what operators want of it, what goes wrong, and whether it recovers.

`python -m simulation.sets_runs FIRST COUNT PROCESSES`, in tests/, runs many and shows those that break a promise.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from qpid_ha_broker.cluster import messages as ms
from simulation.sets_world import Broken, World

RUN_S = 40.0
REST_S = 120.0
SETTINGS = ms.ControllerSettings(recovery_interval_s=6.0, check_interval_s=4.0)


class SetsOutcome(NamedTuple):
    """What became of a run; `problem` is empty when every promise was kept."""

    seed: int
    problem: str
    confirmed: int
    """Writes to all sets."""
    generations: int
    notes: tuple[str, ...]
    """The controllers' log."""


class Trouble:
    """What happens to a cluster at random."""

    def __init__(self, world: World) -> None:
        self._world, self._random = world, world.random
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self.kill),
            (8, self.start),
            (3, self.change_controller),
            (3, self.cut),
            (3, self.mend),
            (2, self.lose_some),
            (2, self.be_slow),
            (2, self.empty_a_disk),
            (12, self.request),
        ]

    def step(self) -> None:
        weights = [weight for weight, _ in self._kinds]
        self._random.choices([do for _, do in self._kinds], weights)[0]()

    def _some_broker(self, up: bool = True) -> str:
        names = [name for name, broker in self._world.brokers.items() if broker.is_up is up]
        return self._random.choice(names) if names else ""

    def kill(self) -> None:
        name = self._some_broker()
        if name:
            self._world.kill(name)
            self.find_controller()

    def find_controller(self) -> None:
        """Who drives `default` promotes another one, after a while."""
        self._world.after(self._random.uniform(0.1, 1.0), self._promote)

    def _promote(self) -> None:
        name = self._some_broker()
        if not self._world.leader and name:
            self._world.lead(name)

    def start(self) -> None:
        name = self._some_broker(up=False)
        if name:
            self._world.start(name)
        self.find_controller()

    def change_controller(self) -> None:
        name = self._some_broker()
        if name:
            self._world.lead(name)

    def cut(self) -> None:
        pair = self._random.sample(sorted(self._world.brokers), 2)
        self._world.cut.add(frozenset(pair))

    def mend(self) -> None:
        self._world.cut.clear()

    def lose_some(self) -> None:
        self._world.loss = self._random.choice([0.0, 0.05, 0.3])

    def be_slow(self) -> None:
        self._world.delay_s = self._random.choice([0.01, 0.1, 0.4])

    def empty_a_disk(self) -> None:
        """Of a broker that has been away for long enough to be replaced; no more than one at a time holds nothing."""
        world = self._world
        for name, broker in world.brokers.items():
            listed = [entry for entry in world.committed_map.sets.values() if name in entry.record.members]
            if not broker.is_up and not listed:
                world.start(name, uuid=f"uuid-{name}-{broker.starts}")
                return

    def request(self) -> None:
        world, pick = self._world, self._random.choice
        names = sorted(world.committed_map.sets) or ["none"]
        brokers = sorted(world.brokers)
        requests: list[ms.ClusterRequest] = [
            ms.TransferPrimary(pick(names), pick(brokers)),
            ms.TransferPrimary(pick(names)),
            ms.DrainBroker(pick(brokers)),
            ms.UndrainBroker(pick(brokers)),
            ms.UndrainBroker(pick(brokers)),
            ms.Rebalance(),
            ms.AddReplica(pick(names)),
            ms.RemoveReplica(pick(names), pick(brokers)),
            ms.TrimReplicas(),
            ms.SetPolicies((("*", self._random.randint(1, 4)),)),
            ms.FailBroker(pick(brokers)),
            ms.SettleQueue(f"q{self._random.randint(1, 20)}", {}, spread=3),
            ms.DeleteQueue(f"q{self._random.randint(1, 20)}"),
            ms.PlanReplicas(),
            ms.ShowCluster(),
            ms.ForgetBroker(pick(brokers)),
            ms.CreateSet(f"more-{world.requests}"),
            ms.DeleteSet(pick([name for name in names if "shard" not in name] or ["none"])),
        ]
        request = pick(requests)
        if world.leader:
            world.ask(request)


def make_world(seed: int) -> World:
    world = World(seed, {}, SETTINGS)
    count = world.random.randint(3, 7)
    zones = world.random.randint(1, 4)
    world = World(seed, {f"b{number}": f"zone-{number % zones}" for number in range(count)}, SETTINGS)
    world.random.random()
    return world


def play(world: World) -> None:
    """Raises Broken."""
    world.lead("b0")
    world.run(1.0)
    for number in range(world.random.randint(1, 20)):
        world.ask(ms.CreateSet(f"set-{number}", min_replicas=world.random.choice([0, 0, 1, 2, 3])))
    world.run(world.random.uniform(0.0, 5.0))
    trouble = Trouble(world)
    while world.now_s < RUN_S:
        trouble.step()
        world.run(world.random.expovariate(1.0))
    world.heal()
    for name, broker in world.brokers.items():
        if not broker.is_up and (world.random.random() < 0.7 or sum(each.is_up for each in world.brokers.values()) < 2):
            world.start(name)
    if not world.leader:
        trouble.find_controller()
    world.settle(REST_S)


def run_sets(seed: int) -> SetsOutcome:
    """One run; it is the same each time."""
    world, problem = make_world(seed), ""
    try:
        play(world)
    except Broken as broken:
        problem = str(broken)
    except Exception:  # noqa: BLE001 # it is shown with its seed
        problem = traceback.format_exc()
    confirmed = sum(map(len, world.confirmed.values()))
    return SetsOutcome(seed, problem, confirmed, len(world.primaries), tuple(world.notes))


def run_many_sets(seeds: Iterable[int], jobs: int) -> Iterable[SetsOutcome]:
    """All of them, in order of the seeds."""
    if jobs == 1:
        yield from map(run_sets, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_sets, seeds, chunksize=4)


def main(first: int, count: int, jobs: int) -> int:
    """Run so many, and show what broke a promise; how many did."""
    failures = 0
    for outcome in run_many_sets(range(first, first + count), jobs):
        if outcome.problem:
            failures += 1
            print(f"seed {outcome.seed}: {outcome.problem}", *outcome.notes[-20:], sep="\n")
    print(f"{count} clusters of many sets: {failures} failed")
    return failures


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])) > 0)
