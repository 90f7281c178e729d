"""A few clusters that nobody has tried before, each time: what all other seeds have never met is found some day."""

from __future__ import annotations

import random

import pytest

from simulation.runs import (
    AGENTS,
    FORWARDING,
    GROUP,
    ONE_SET,
    PROXIES,
    SETS,
    kind_of_plan,
    replay_command,
    run_seed,
)

CLUSTERS = {ONE_SET: 2, AGENTS: 2, SETS: 2, PROXIES: 2, FORWARDING: 2, GROUP: 2}
"""In one portion: a few seconds for each kind; in at most half of them nothing crosses sets, brokers or lives of a
client."""
NEW_SEEDS = 10**7, 10**9
"""Those in other tests, and those that people try by hand, are below."""


@pytest.mark.parametrize("kind", CLUSTERS)
def test_clusters_of_new_seeds_keep_their_promises(kind: str, request: pytest.FixtureRequest) -> None:
    """`--new-seeds BASE`: these again; without it they are drawn here, because tests have to be called the same in all
    processes. `--new-seed-portions N`: so many times as many."""
    base = request.config.getoption("new_seeds", default=None)
    first = random.SystemRandom().randrange(*NEW_SEEDS) if base is None else base
    count = CLUSTERS[kind] * request.config.getoption("new_seed_portions", default=1)

    outcomes = [run_seed(seed, kind) for seed in range(first, first + count)]

    assert {kind_of_plan(outcome.plan) for outcome in outcomes} == {kind}
    failures = [f"{outcome.problem}\n{replay_command(outcome.plan)}" for outcome in outcomes if outcome.problem]
    assert not failures, "\n\n".join([f"seeds from {first} (--new-seeds {first}):", *failures])
