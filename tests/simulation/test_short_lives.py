"""Simulated clusters whose clocks are a day apart, and are set: messages go when their time has passed, not before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import pytest

from qpid_ha_broker.model.sets.message_clock import MessageClock
from simulation.core.cluster import Cluster, outcome_of
from simulation.core.plan import DAMAGE, Kind, Plan, draw_plan

CLUSTERS = 20
POWER = {Kind.BLACKOUT, Kind.POWER_CUT, Kind.CRASH}


def plans() -> Iterator[Plan]:
    """Without damaged disks, which may lose what time it was. Who sets a clock while the power fails makes a broker
    with a store believe that so much time has passed: of those plans none sets one."""
    for seed in count():
        plan = draw_plan(seed)
        kinds = {fault.kind for fault in plan.faults}
        if not kinds & DAMAGE:
            is_set = not (plan.has_store and kinds & POWER)
            faults = tuple(fault for fault in plan.faults if is_set or fault.kind is not Kind.WALL_CLOCK)
            yield replace(plan, has_short_lives=True, faults=faults)


def problems() -> tuple[dict[int, str], int]:
    """Of each seed, and how many messages have expired in all of them."""
    found, expired = {}, 0
    for plan in islice(plans(), CLUSTERS):
        cluster = Cluster(plan, with_trace=False)
        outcome = outcome_of(cluster)
        if outcome.problem:
            found[plan.seed] = outcome.problem
        assert cluster.short_lived is not None
        expired += cluster.short_lived.expired
    return found, expired


def test_nothing_expires_before_its_time_or_long_after_it() -> None:
    found, expired = problems()
    assert found == {}
    assert expired > 20 * CLUSTERS


def test_a_backup_that_goes_by_its_own_clock_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MessageClock, "told", lambda clock, reading_ms, steady_ms: None)
    found, _ = problems()
    assert any("has dropped" in problem for problem in found.values())
    assert any("still has" in problem for problem in found.values())
