"""Brokers that ship, with a group, under faults: every promise is kept, whatever fails, and in whichever order."""

from __future__ import annotations

import pytest

from simulation.groups.plan import GroupPlan, draw_group_plan
from simulation.groups.world import run_group
from simulation.runs import GROUP, kind_of_plan, replay_command

GATE_SEEDS = 6
LONG_SEEDS = 60


def problems(plans: list[GroupPlan]) -> list[str]:
    outcomes = [run_group(plan) for plan in plans]
    return [f"{outcome.problem}\n{replay_command(outcome.plan)}" for outcome in outcomes if outcome.problem]


def test_groups_keep_their_promises() -> None:
    assert problems([draw_group_plan(seed) for seed in range(GATE_SEEDS)]) == []


@pytest.mark.parametrize("first", range(GATE_SEEDS, GATE_SEEDS + LONG_SEEDS, 20))
def test_many_groups_keep_their_promises(first: int) -> None:
    assert problems([draw_group_plan(seed) for seed in range(first, first + 20)]) == []


def test_a_run_is_the_same_each_time_and_does_what_it_is_there_for() -> None:
    plan = draw_group_plan(5)  # of three brokers, with eight faults

    first, second = run_group(plan, with_trace=True), run_group(plan, with_trace=True)

    assert first.fingerprint == second.fingerprint
    assert kind_of_plan(plan) == GROUP
    assert first.confirmed > 50
    assert first.handed_out > first.confirmed / 2
    assert first.generations > 5


@pytest.mark.parametrize("seed", [21, 52])
def test_groups_that_once_broke_a_promise_keep_it(seed: int) -> None:
    """21: what a session had accepted came again where its link had outlived a change of who is in sync. 52: two
    sessions had one message, and a publisher waited for ever for what the group had gone on without."""
    assert problems([draw_group_plan(seed)]) == []
