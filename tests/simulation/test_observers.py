"""Simulated clusters in which not all are in sync with the log: the others observe, and take free places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

from qpid_ha_broker.ha.states import State
from simulation.core.cluster import Cluster, outcome_of, run
from simulation.core.plan import Plan, draw_plan

CLUSTERS = 25


def plans() -> Iterator[Plan]:
    """Those of the seeds that have a limit."""
    return (plan for seed in count() if (plan := draw_plan(seed)).most_in_sync)


def test_clusters_with_a_limit_keep_their_promises_and_come_to_rest_with_as_many_in_sync() -> None:
    outcomes = [run(plan) for plan in islice(plans(), CLUSTERS)]
    assert {each.plan.seed: each.problem for each in outcomes if each.problem} == {}
    assert sum(each.confirmed for each in outcomes) > 50 * CLUSTERS


def test_without_faults_one_of_each_zone_is_in_sync() -> None:
    plan = next(plan for plan in plans() if plan.nodes >= 4)
    quiet = replace(plan, faults=(), nodes=4, most_in_sync=2, min_in_sync=1, zones=("x", "x", "y", "x"))
    cluster = Cluster(quiet, with_trace=False)
    assert outcome_of(cluster).problem == ""
    states = [node.member.status.state for node in cluster.nodes]
    assert states.count(State.OBSERVER) == 2
    assert states[2] is not State.OBSERVER
