"""Real brokers with the agents that ship: what docs/operations.md promises is kept, and planted bugs are found."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from qpid_ha_agent.control import ControlFailure
from qpid_ha_agent.lock import PrimaryLock
from qpid_ha_agent.runner import REQUEST_TIMEOUT_S, Runner
from qpid_ha_broker.ha.states import State
from simulation.brokers.plan import (
    FIRST_WITH_AGENTS,
    FIRST_WITH_PREFERENCES,
    OF_AGENTS_ALONE,
    BrokersKind,
    draw_agents_plan,
    draw_proxies_plan,
)
from simulation.brokers.world import run_proxies
from simulation.planted import found_by

SEEDS = (0, 1, 4, 6, 7, 9, 10, 11)


def test_clusters_with_agents_keep_their_promises() -> None:
    outcomes = [run_proxies(draw_agents_plan(seed)) for seed in SEEDS]

    problems = {each.plan.seed: each.problem for each in outcomes if each.problem}
    assert problems == {}, "replay: ./dev simulate --only agents --seed S --trace"
    assert sum(outcome.confirmed for outcome in outcomes) > 50 * len(SEEDS)
    assert sum(outcome.generations for outcome in outcomes) > 1.5 * len(SEEDS)


def test_a_seed_of_agents_tells_the_same_story_twice() -> None:
    first, second = (run_proxies(draw_agents_plan(11), with_trace=True) for _ in range(2))

    assert first.trace
    assert first == second


def test_agents_are_struck_by_all_that_is_theirs_and_beside_proxies_too() -> None:
    drawn = map(draw_agents_plan, (*range(60), *range(FIRST_WITH_PREFERENCES, FIRST_WITH_PREFERENCES + 60)))
    kinds = {fault.kind for plan in drawn for fault in plan.faults}
    assert kinds >= {
        BrokersKind.AGENT_STOPS,
        BrokersKind.AGENT_DIES,
        BrokersKind.AGENT_ENDS,
        BrokersKind.LOCK_TAKEN,
        BrokersKind.COORDINATOR_CUT,
        BrokersKind.OPERATOR,
        BrokersKind.AGENTS_PAUSE,
        *OF_AGENTS_ALONE,
    }
    of_proxies = [draw_proxies_plan(seed).has_agents for seed in range(FIRST_WITH_AGENTS + 200)]
    assert not any(of_proxies[:FIRST_WITH_AGENTS])
    assert 80 < sum(of_proxies) < 120


def test_an_agent_that_promotes_without_asking_who_is_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def promote_by_force(self: Runner) -> None:
        self._ask("promote", State.PRIMARY, cause=f"{self._own_name} got the lock", force=True)

    monkeypatch.setattr(Runner, "_promote", promote_by_force)

    assert "had to hand over" in found_by(monkeypatch, map(draw_agents_plan, (19, 6))).problem


def test_an_agent_that_goes_on_although_its_lock_was_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrimaryLock, "declare_lost", lambda self, lease=None: None)

    assert "takes the lock for its own" in found_by(monkeypatch, map(draw_agents_plan, (33,))).problem


def test_an_agent_that_never_tries_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a request that was refused it takes the broker for busy with that."""

    async def request(self: Runner, method: str, outcome: State, params: dict[str, object]) -> None:
        view = self._talk.view
        with suppress(ControlFailure):
            await self._talk.request(method, REQUEST_TIMEOUT_S, **params)
            view.assume(outcome, time.monotonic())
            self._is_asked = False
            self._talk.poll_soon()
        self._wake.set()

    monkeypatch.setattr(Runner, "_request", request)

    assert "nobody may lead" in found_by(monkeypatch, map(draw_agents_plan, (13, 25))).problem


def test_an_agent_that_does_not_notice_the_death_of_its_broker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "_died", lambda self, process: None)

    assert "members of default are" in found_by(monkeypatch, map(draw_agents_plan, (1,))).problem
