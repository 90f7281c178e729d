"""Many runs, on as many processors as there are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from simulation.cluster import Outcome, run
from simulation.plan import draw_plan


def jobs_of_a_test() -> int:
    """How many processes a test may use: one where pytest-xdist has other tests for the other processors."""
    return 1 if "PYTEST_XDIST_WORKER" in os.environ else os.cpu_count() or 1


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
