"""A short life of a cluster, again and again, with the power gone at each of its writes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

from simulation.power_cuts import SCENARIO, count_operations, cuts_of, problem_of
from simulation.runs import jobs_of_a_test


def test_the_power_may_go_at_every_write() -> None:
    outcome, counts, kinds = count_operations(SCENARIO)
    assert outcome.problem == ""
    text = " ".join(kinds)
    for part in ("rename STATUS", "snapshots/", "sync journal/spare", "remove journal/", "create journal/spare"):
        assert part in text, "the scenario has lost some of what it was made for"

    cuts = list(cuts_of(counts))
    with ProcessPoolExecutor(jobs_of_a_test()) as pool:
        problems = pool.map(problem_of, cuts, chunksize=16)
        found = {cut: problem for cut, problem in zip(cuts, problems, strict=True) if problem}

    print(f"{len(cuts)} power cuts at {counts} writes of {len(counts)} nodes, alone and of all at once")
    assert found == {}
