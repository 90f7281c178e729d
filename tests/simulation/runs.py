"""Many runs, on as many processors as there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Final, TypeVar

from simulation.cluster import Outcome, run
from simulation.plan import Plan, draw_plan
from simulation.proxies_plan import ProxiesPlan, draw_proxies_plan, is_of_proxies
from simulation.proxies_world import ProxiesOutcome, run_proxies
from simulation.sets_plan import SetsPlan, draw_sets_plan, is_of_sets
from simulation.sets_runs import SetsOutcome, run_sets

A = TypeVar("A")
B = TypeVar("B")
AnyPlan = Plan | SetsPlan | ProxiesPlan
AnyOutcome = Outcome | SetsOutcome | ProxiesOutcome
DRAWS: Final[dict[str, Callable[[int], AnyPlan]]] = {
    "one-set": draw_plan,
    "sets": draw_sets_plan,
    "proxies": draw_proxies_plan,
}
"""How clusters of one kind are drawn from a seed."""


def jobs_of_a_test() -> int:
    """How many processes a test may use: one where pytest-xdist has other tests for the other processors."""
    return 1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1


def plan_of(seed: int) -> AnyPlan:
    """A cluster with one set, or with many, or one whose brokers are proxies."""
    if is_of_sets(seed):
        return draw_sets_plan(seed)
    return draw_proxies_plan(seed) if is_of_proxies(seed) else draw_plan(seed)


def run_plan(plan: AnyPlan, with_trace: bool = False) -> AnyOutcome:
    """Its run."""
    if isinstance(plan, ProxiesPlan):
        return run_proxies(plan, with_trace)
    return run_sets(plan, with_trace) if isinstance(plan, SetsPlan) else run(plan, with_trace)


def run_seed(seed: int, only: str | None = None) -> AnyOutcome:
    """The run of one seed; `only`: of that kind (`DRAWS`), whatever kind the seed would be of."""
    return run_plan(plan_of(seed) if only is None else DRAWS[only](seed))


def run_many(work: Callable[[A], B], items: Iterable[A], jobs: int) -> Iterable[B]:
    """What comes of each, in their order."""
    if jobs == 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(work, items, chunksize=8)
