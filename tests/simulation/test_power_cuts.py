"""A short life of a cluster, again and again, with the power gone at each of its writes."""

from __future__ import annotations

import pytest

from simulation.core.power_cuts import SCENARIO, Cut, count_operations, cuts_of, problem_of
from simulation.sets import power_cuts

PORTIONS = 4
"""Of all cuts; each test has one of them, so that two processes have something to do."""


@pytest.mark.parametrize("portion", range(PORTIONS), ids=[f"one-set-{number}" for number in range(PORTIONS)])
def test_the_power_may_go_at_every_write(portion: int) -> None:
    outcome, counts, kinds = count_operations(SCENARIO)
    assert outcome.problem == ""
    text = " ".join(kinds)
    for part in ("rename STATUS", "snapshots/", "sync journal/spare", "remove journal/", "create journal/spare"):
        assert part in text, "the scenario has lost some of what it was made for"

    cuts = list(cuts_of(counts))[portion::PORTIONS]
    problems = {cut: problem for cut in cuts if (problem := problem_of(cut))}

    print(f"{len(cuts)} power cuts at {counts} writes of {len(counts)} nodes, alone and of all at once in turn")
    assert problems == {}


EACH = 24
"""Every 24th write of a set's store: all of them take longer."""
BETWEEN = [Cut(1, 25, True), Cut(1, 25, False)]
"""Where the new primary has its record, and nothing of that generation in its store."""


def test_the_power_may_go_while_a_set_is_made_led_by_another_broker_and_handed_over() -> None:
    counts = power_cuts.play(None).counts()

    cuts = [*BETWEEN, *power_cuts.cuts_of(counts, EACH)]
    runs = [power_cuts.struck(cut) for cut in cuts]

    print(f"{len(cuts)} power cuts at {counts} writes of the set's stores, alone and of all at once in turn")
    assert {run.cut: run.problem for run in runs if run.problem} == {}
    assert {run.cut.everywhere for run in runs if run.was_between} == {False, True}
