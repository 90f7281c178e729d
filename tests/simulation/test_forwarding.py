"""Clusters whose brokers hand messages on, under seeded faults: what was accepted by an exchange is in each set.

The checkers find what they are there for: bugs are planted in what hands on, and seeds must find them soon.
"""

from __future__ import annotations

import asyncio

import pytest

from qpid_ha_broker.server.sets.forward_links import ForwardLink, SetForwarding
from simulation.brokers.plan import draw_forwarding_plan, draw_proxies_plan
from simulation.brokers.world import run_proxies
from simulation.planted import found_by

SEEDS = (0, 1, 2, 5)
LATE_S = 0.5


def test_clusters_that_hand_messages_on_keep_their_promises() -> None:
    outcomes = [run_proxies(draw_forwarding_plan(seed)) for seed in SEEDS]

    assert {each.plan.seed: each.problem for each in outcomes if each.problem} == {}
    # A simulation in which nothing happens would pass as well.
    assert sum(outcome.confirmed for outcome in outcomes) > 200 * len(SEEDS)
    assert sum(outcome.generations for outcome in outcomes) > 2 * len(SEEDS)


def test_a_seed_of_forwarding_tells_the_same_story_twice() -> None:
    first, second = (run_proxies(draw_forwarding_plan(5), with_trace=True) for _ in range(2))

    assert first.trace
    assert first == second


def test_clusters_of_proxies_have_no_such_exchange_and_the_others_have_sets_to_hand_on_to() -> None:
    assert not any(draw_proxies_plan(seed).forking for seed in range(100))
    assert all(plan.forking and plan.replicas for plan in map(draw_forwarding_plan, range(100)))


def hand_on_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for a set that is led here comes to it in a while, as it may where much else is to be done."""

    begin, due = ForwardLink._begin_here, set[ForwardLink]()

    def begin_now(self: ForwardLink) -> None:
        due.discard(self)
        if self._here is None and not self.sender.is_idle:
            begin(self)

    def begin_later(self: ForwardLink) -> None:
        if self not in due:
            due.add(self)
            asyncio.get_running_loop().call_later(LATE_S, begin_now, self)

    monkeypatch.setattr(ForwardLink, "_begin_here", begin_later)


def test_a_message_that_overtakes_what_is_kept_for_a_set_that_is_led_here_now_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand_on_late(monkeypatch)
    monkeypatch.setattr(SetForwarding, "has_unwritten", lambda self, set_name: False)

    outcome = found_by(monkeypatch, map(draw_forwarding_plan, range(1, 5)))

    assert "was accepted at" in outcome.problem or "is behind" in outcome.problem
    hand_on_late(monkeypatch)
    assert run_proxies(draw_forwarding_plan(outcome.plan.seed)).problem == "", "nothing depends on how soon"
