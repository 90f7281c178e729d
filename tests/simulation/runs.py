"""Many runs, on as many processors as there are, of clusters of all kinds or of one."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Final, TypeVar

from simulation.brokers.plan import BrokersPlan, draw_agents_plan, draw_forwarding_plan, draw_proxies_plan
from simulation.brokers.world import BrokersOutcome, run_proxies
from simulation.core.cluster import Outcome, run
from simulation.core.plan import Plan, draw_plan
from simulation.groups.plan import GroupPlan, draw_group_plan
from simulation.groups.world import run_group
from simulation.sets.plan import SetsPlan, draw_sets_plan
from simulation.sets.world import run_sets

A = TypeVar("A")
B = TypeVar("B")
AnyPlan = Plan | BrokersPlan
AnyOutcome = Outcome | BrokersOutcome
ONE_SET: Final = "one-set"
AGENTS: Final = "agents"
SETS: Final = "sets"
PROXIES: Final = "proxies"
FORWARDING: Final = "forwarding"
GROUP: Final = "group"
DRAWS: Final[dict[str, Callable[[int], AnyPlan]]] = {
    ONE_SET: draw_plan,
    AGENTS: draw_agents_plan,
    SETS: draw_sets_plan,
    PROXIES: draw_proxies_plan,
    FORWARDING: draw_forwarding_plan,
    GROUP: draw_group_plan,
}
"""How clusters of each kind are drawn from a seed."""
SHARES: Final[dict[str, int]] = {ONE_SET: 20, AGENTS: 10, SETS: 30, PROXIES: 30, FORWARDING: 10, GROUP: 0}
"""Of a hundred seeds, how many stand for each kind of cluster. At least half have to be of clusters in which something
crosses (`crosses`): where features met, promises broke that each of them kept by itself. A cluster of many sets takes
some twenty times as long as one of a single set, one of real brokers with their agents seven times, one of proxies ten
to twenty times. Groups have tests of their own."""
YOUNG_OBJECTS: Final = 20_000
"""So many new ones before garbage is looked for. More would keep what a hundred clusters have left in memory."""


def kind_of(seed: int, weights: Mapping[str, int] = SHARES) -> str:
    """The kind of cluster that a seed stands for (`DRAWS`): one set, one of real brokers with their agents, many sets,
    brokers that are proxies, such that hand messages on, or a group.

    `weights`: how often each kind is drawn, and at least one of them more than 0. What a seed stands for changes with
    them, but not what each kind draws from it: where a seed is written down, its kind is, too (`replay_command`).
    """
    return random.Random(f"{seed}/kind").choices(list(weights), list(weights.values()))[0]


def crosses(plan: AnyPlan) -> bool:
    """Whether something crosses sets, brokers, or lives of a client: several sets, or brokers that relay, with
    clients that come back."""
    if isinstance(plan, SetsPlan):
        return len(plan.wanted) > 1
    return isinstance(plan, BrokersPlan) and plan.relays


def kind_of_plan(plan: AnyPlan) -> str:
    """The kind (`DRAWS`) of a cluster that was drawn."""
    if isinstance(plan, SetsPlan):
        return SETS
    if isinstance(plan, GroupPlan):
        return GROUP
    if isinstance(plan, BrokersPlan):
        of_proxies = FORWARDING if plan.forking else PROXIES
        return of_proxies if plan.relays else AGENTS
    return ONE_SET


def run_plan(plan: AnyPlan, with_trace: bool = False) -> AnyOutcome:
    """Its run."""
    if isinstance(plan, SetsPlan):
        return run_sets(plan, with_trace)
    if isinstance(plan, GroupPlan):
        return run_group(plan, with_trace)
    return run_proxies(plan, with_trace) if isinstance(plan, BrokersPlan) else run(plan, with_trace)


def run_seed(seed: int, kind: str) -> AnyOutcome:
    """The run of a cluster of that kind (`DRAWS`)."""
    return run_plan(DRAWS[kind](seed))


def run_drawn(drawn: tuple[int, str]) -> AnyOutcome:
    """The run of a seed and its kind. It leaves nothing behind: some clusters hold a gigabyte, garbage then."""
    try:
        return run_seed(*drawn)
    finally:
        gc.collect()


def replay_command(plan: AnyPlan) -> str:
    """What shows that run again, whatever kind its seed would be of."""
    return f"./dev simulate --seed {plan.seed} --only {kind_of_plan(plan)} --trace"


def collect_garbage_rarely() -> None:
    """Modules are no garbage, and a cluster makes little of it: looking for it often takes a tenth of a run's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def run_many(work: Callable[[A], B], items: Iterable[A], jobs: int) -> Iterable[B]:
    """The results, in the order of `items`. One at a time goes to whoever is idle: a cluster may take 20 times as long
    as another one."""
    if jobs == 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, items)
