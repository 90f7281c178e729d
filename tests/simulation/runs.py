"""Many runs, on as many processors as there are."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from simulation.cluster import Outcome, run
from simulation.plan import draw_plan


def run_seed(seed: int) -> Outcome:
    """The run of one seed."""
    return run(draw_plan(seed))


def run_seeds(seeds: Iterable[int], jobs: int) -> Iterable[Outcome]:
    """All of them, in order of the seeds."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_seed, seeds, chunksize=8)
