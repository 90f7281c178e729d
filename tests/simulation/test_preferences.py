"""Clusters with a preferred broker, and pauses of all agents, under the same seeded faults as every other one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import pytest

from qpid_ha_agent import decision
from simulation.cluster import Cluster, outcome_of, run
from simulation.plan import Fault, Kind, Plan, draw_plan
from simulation.planted import found_by

CLUSTERS = 12


def plans() -> Iterator[Plan]:
    """Those of the seeds that have agents, each with priorities of its own, and two pauses."""
    for seed in count():
        plan = draw_plan(seed)
        if not plan.has_agents:
            continue
        draw = random.Random(f"{seed}/preferences")
        pauses = [Fault(Kind.AGENTS_PAUSE, draw.uniform(1.0, 13.0), draw.choice((1.0, 4.0)), 0, 1, 0) for _ in range(2)]
        faults = tuple(sorted([*plan.faults, *pauses], key=lambda fault: fault.at_s))
        yield replace(plan, faults=faults, priorities=tuple(draw.choice((0, 0, 5, 10)) for _ in range(plan.nodes)))


def test_clusters_with_a_preferred_broker_and_pauses_keep_their_promises() -> None:
    chosen = list(islice(plans(), CLUSTERS))

    assert {plan.seed: problem for plan in chosen if (problem := run(plan).problem)} == {}


def test_the_preferred_broker_leads_in_the_end_and_loses_its_place_to_nobody() -> None:
    plan = next(plans())
    quiet = replace(plan, faults=(), nodes=3, priorities=(0, 0, 10), min_in_sync=1)

    cluster = Cluster(quiet, with_trace=False)
    outcome = outcome_of(cluster)

    assert outcome.problem == ""
    assert [node.is_primary for node in cluster.nodes] == [False, False, True]
    assert outcome.generations <= 2


def test_an_agent_that_promotes_in_a_pause_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "PAUSED", decision.OTHERWISE)

    assert "in a pause" in found_by(monkeypatch, islice(plans(), CLUSTERS)).problem
