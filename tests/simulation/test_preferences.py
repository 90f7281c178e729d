"""Real brokers of which one is preferred, coordinators that fail in all their ways, and pauses of all agents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest

from qpid_ha_agent import decision
from qpid_ha_agent.coordinator_talk import Coordination, CoordinatorTalk
from qpid_ha_agent.decision import Action
from qpid_ha_agent.failback import PRIORITIES_NOTE
from qpid_ha_agent.lock import PrimaryLock
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from simulation.brokers.plan import FIRST_WITH_PREFERENCES, BrokersFault, BrokersKind, BrokersPlan, draw_agents_plan
from simulation.brokers.world import BrokersWorld, run_proxies, run_world
from simulation.machines.node import BrokerNode
from simulation.planted import found_by

CLUSTERS = 8
TRIES = 3
PAUSES = tuple(BrokersFault(BrokersKind.AGENTS_PAUSE, 2.0 + 5.0 * number, 2.0, number) for number in range(3))
DEATHS = tuple(BrokersFault(BrokersKind.CRASH_PRIMARY, 4.0 + 5.0 * number, 0.5, 0) for number in range(3))
"""In those pauses. The machines go on."""
EMPTIED_COORDINATOR = BrokersFault(BrokersKind.COORDINATOR_EMPTIED, 3.0, 0.0, 0)
"""The preferred broker leads by then."""
DEATH_OF_PREFERRED = BrokersFault(BrokersKind.CRASH_PRIMARY, 13.0, 0.5, 0)
"""The record was written anew by then."""
CUT_AGENT_OF_PRIMARY = BrokersFault(BrokersKind.AGENT_CUT, 4.0, 3.0, 1)
"""`draw` says whose."""


def plans() -> Iterator[BrokersPlan]:
    """Those that have priorities."""
    drawn = map(draw_agents_plan, range(FIRST_WITH_PREFERENCES, FIRST_WITH_PREFERENCES + 10 * CLUSTERS))
    return (plan for plan in drawn if plan.priorities)


def with_a_preferred_broker(*faults: BrokersFault) -> Iterator[BrokersPlan]:
    """Clusters of three, to which just this happens. In these seeds the last one leads first."""
    for seed in range(TRIES):
        yield replace(
            draw_agents_plan(seed), brokers=3, min_in_sync=1, publishers=2, consumers=1, browsers=0, transacting=0,
            numbering=0, power_cuts=(), session_timeout_s=0.0, priorities=(10, 5, 0), faults=faults, until_s=22.0,
        )  # fmt: skip


def test_clusters_with_a_preferred_broker_and_pauses_keep_their_promises() -> None:
    chosen = list(islice(plans(), CLUSTERS))

    assert {plan.seed: problem for plan in chosen if (problem := run_proxies(plan).problem)} == {}


def test_in_new_clusters_the_coordinator_fails_in_all_its_ways_beside_priorities_and_pauses() -> None:
    drawn = list(islice(plans(), 30))
    kinds = {fault.kind for plan in drawn for fault in plan.faults}
    assert kinds >= {
        BrokersKind.AGENT_CUT,
        BrokersKind.COORDINATOR_AWAY,
        BrokersKind.COORDINATOR_EMPTIED,
        BrokersKind.SESSION_EXPIRED,
        BrokersKind.AGENTS_PAUSE,
    }
    assert sum(bool(plan.session_timeout_s) for plan in drawn) > len(drawn) / 4


def test_the_preferred_broker_leads_in_the_end_and_loses_its_place_to_nobody() -> None:
    led: list[str] = []

    class World(BrokersWorld):
        def member_changed(self, node: BrokerNode, set_name: str, change: fx.StateChanged, led_generation: int) -> None:
            super().member_changed(node, set_name, change, led_generation)
            if change.after is State.PRIMARY:
                led.append(node.name)

    for plan in with_a_preferred_broker():
        led.clear()
        assert run_world(partial(World, plan, False)).problem == ""
        assert led == ["n2", "n0"]


def test_a_preferred_broker_that_is_kept_from_its_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    without = tuple(rule for rule in decision.PRIMARY if rule.action is not Action.FAIL_BACK)
    monkeypatch.setattr(decision, "PRIMARY", without)

    assert "is ready, and preferred" in found_by(monkeypatch, with_a_preferred_broker()).problem


def test_agents_that_do_not_say_again_who_is_preferred_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has begun anew, and knows nothing of priorities any more."""
    look = CoordinatorTalk._look_at_priorities

    def look_once(self: CoordinatorTalk, before: Coordination | None) -> str:
        return look(self, before) if before is None else self.coordinator.read_note(PRIORITIES_NOTE)

    monkeypatch.setattr(CoordinatorTalk, "_look_at_priorities", look_once)

    plans = (replace(plan, until_s=30.0) for plan in with_a_preferred_broker(EMPTIED_COORDINATOR, DEATH_OF_PREFERRED))
    assert "is ready, and preferred" in found_by(monkeypatch, plans).problem


def test_an_agent_that_alone_does_not_reach_the_coordinator_and_keeps_its_lock_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its broker does, and goes on to lead."""
    monkeypatch.setattr(PrimaryLock, "declare_lost", lambda self, lease=None: None)

    assert "takes the lock for its own" in found_by(monkeypatch, with_a_preferred_broker(CUT_AGENT_OF_PRIMARY)).problem


def test_an_agent_that_promotes_in_a_pause_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "PAUSED", decision.OTHERWISE)

    assert "wants to promote in a pause" in found_by(monkeypatch, with_a_preferred_broker(*PAUSES, *DEATHS)).problem


def test_an_agent_that_starts_its_broker_again_in_a_pause_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has died shall lie there, for people to look at."""
    without = tuple(rule for rule in decision.WITHOUT_BROKER if "{paused}" not in rule.why)
    monkeypatch.setattr(decision, "WITHOUT_BROKER", without)

    assert "start it again in a pause" in found_by(monkeypatch, with_a_preferred_broker(*PAUSES, *DEATHS)).problem
