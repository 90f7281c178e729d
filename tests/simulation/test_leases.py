"""The lock of simulated agents that rests on sessions keeps its own promise, and breaks no other one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice

import pytest

from qpid_ha_agent.decision import LockView
from simulation.brokers.plan import FIRST_WITH_PREFERENCES, BrokersKind, draw_agents_plan
from simulation.brokers.world import run_proxies
from simulation.machines.leases import SessionLock
from simulation.virtual_time import Schedule

TIMEOUT_S = 2.0
SOON_S = 1.0
"""A late notice, and a heartbeat."""


@dataclass(eq=False)
class Candidate:
    is_hanging: bool = False
    is_cut: bool = False
    has_power: bool = True


class World:
    """Two agents, of which `first` has the lock and `second` waits for it."""

    def __init__(self, seed: int) -> None:
        self.schedule = Schedule()
        self.is_down = False
        self.lock = SessionLock(self.schedule, random.Random(seed), TIMEOUT_S, lambda: self.is_down)
        self.first, self.second = Candidate(), Candidate()
        self.lock.join((self.first, self.second))
        while not (self.lock.wait_for(self.first) and self.lock.wait_for(self.second)):
            self.go_on(0.1)
        assert self.views() == (LockView.HELD, LockView.WAITING)

    def go_on(self, for_s: float) -> None:
        self.schedule.run_until(self.schedule.now_s + for_s)

    def views(self) -> tuple[LockView, LockView]:
        for agent in (self.first, self.second):
            if not agent.is_hanging:
                self.lock.check(agent)
        return self.lock.view_of(self.first), self.lock.view_of(self.second)


@pytest.fixture(params=range(5))
def world(request: pytest.FixtureRequest) -> World:
    return World(request.param)


def test_who_renews_it_keeps_it(world: World) -> None:
    world.go_on(20 * TIMEOUT_S)

    assert world.views() == (LockView.HELD, LockView.WAITING)


@pytest.mark.parametrize("fault", ["is_hanging", "is_cut"])
def test_who_cannot_renew_it_loses_it_to_the_next_one_and_knows_when_it_looks(world: World, fault: str) -> None:
    setattr(world.first, fault, True)
    world.go_on(TIMEOUT_S + SOON_S)
    setattr(world.first, fault, False)

    assert world.views() == (LockView.LOST, LockView.HELD)


def test_nobody_else_has_it_before_its_holder_finds_it_lost(world: World) -> None:
    world.first.is_cut = True
    for _ in range(400):
        world.go_on(0.01)
        assert world.views() != (LockView.HELD, LockView.HELD)
    assert world.views() == (LockView.LOST, LockView.HELD)


def test_a_session_that_the_coordinator_ended_is_heard_of_with_the_next_heartbeat(world: World) -> None:
    world.lock.expire(world.first)
    world.go_on(SOON_S)

    assert world.views() == (LockView.LOST, LockView.HELD)


def test_one_that_lets_go_while_it_is_cut_off_lets_go_for_all_once_it_is_back(world: World) -> None:
    world.first.is_cut = True
    world.lock.release(world.first)
    world.go_on(TIMEOUT_S / 4)
    assert world.views() == (LockView.NONE, LockView.WAITING)
    world.first.is_cut = False
    world.go_on(SOON_S + 1.0)

    assert world.views() == (LockView.NONE, LockView.HELD)


def test_a_coordinator_that_was_away_takes_it_from_nobody_who_is_there_again(world: World) -> None:
    world.is_down = True
    world.go_on(3 * TIMEOUT_S)
    assert world.views()[0] is LockView.LOST, "by its own clock: it cannot know that nobody else has it"
    world.lock.release(world.first)
    world.is_down = False
    world.go_on(SOON_S + 1.0)

    assert world.views() == (LockView.NONE, LockView.HELD)


def test_after_a_coordinator_began_anew_both_ask_again(world: World) -> None:
    world.lock.lose_all()
    world.go_on(SOON_S)

    assert world.views() == (LockView.LOST, LockView.NONE)


NAMED = {
    "the coordinator began anew": BrokersKind.COORDINATOR_EMPTIED,
    "the coordinator was away, and came again": BrokersKind.COORDINATOR_AWAY,
    "an agent was cut off from the coordinator": BrokersKind.AGENT_CUT,
    "an agent and its broker were cut off from the coordinator": BrokersKind.COORDINATOR_CUT,
    "a session was ended though its agent was there": BrokersKind.SESSION_EXPIRED,
}
CLUSTERS = 3


@pytest.mark.parametrize("kind", NAMED.values(), ids=NAMED)
def test_clusters_whose_lock_rests_on_sessions_keep_their_promises(kind: BrokersKind) -> None:
    drawn = map(draw_agents_plan, range(FIRST_WITH_PREFERENCES, FIRST_WITH_PREFERENCES + 500))
    with_sessions = (plan for plan in drawn if plan.session_timeout_s)
    plans = list(islice((plan for plan in with_sessions if kind in {each.kind for each in plan.faults}), CLUSTERS))

    assert len(plans) == CLUSTERS
    assert {plan.seed: outcome.problem for plan in plans if (outcome := run_proxies(plan)).problem} == {}
