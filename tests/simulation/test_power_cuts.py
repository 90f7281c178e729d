"""A short life of a cluster, again and again, with the power gone at each of its writes."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

from simulation import sets_power_cuts
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

    print(f"{len(cuts)} power cuts at {counts} writes of {len(counts)} nodes, alone and of all at once in turn")
    assert found == {}


EACH = 4
"""Every fourth write of a set's store: all of them take a minute, and the others pass as well."""


def test_the_power_may_go_while_a_set_is_made_led_by_another_broker_and_handed_over() -> None:
    whole = sets_power_cuts.play(None)
    assert len(whole.confirmed[sets_power_cuts.SET]) >= 10, "the scenario has lost some of what it was made for"
    counts = whole.operations()

    cuts = list(sets_power_cuts.cuts_of(counts, EACH))
    with ProcessPoolExecutor(jobs_of_a_test()) as pool:
        found = list(pool.map(sets_power_cuts.struck, cuts, chunksize=8))

    print(f"{len(cuts)} power cuts at {counts} writes of the set's stores, alone and of all at once in turn")
    assert {each.cut: each.problem for each in found if each.problem} == {}
    assert {each.cut.everywhere for each in found if each.was_between} == {False, True}
