"""The checkers find what `qpid-ha-agent run` must not do: each test takes out what keeps it from that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from qpid_ha_agent import decision
from qpid_ha_agent.decision import Action, LockView
from qpid_ha_agent.tenure import Tenure
from qpid_ha_broker.ha import promotion
from qpid_ha_broker.ha.promotion import Promotion
from simulation.brokers.plan import BrokersFault, BrokersKind, BrokersPlan, draw_agents_plan
from simulation.brokers.world import run_proxies
from simulation.machines.leases import LockUser, SessionLock
from simulation.planted import found_by

TRIES = 6


def with_faults(*faults: BrokersFault, session_timeout_s: float = 0.0) -> Iterator[BrokersPlan]:
    """Clusters of three real brokers with stores, and real agents, to which just this happens."""
    for seed in range(TRIES):
        yield replace(
            draw_agents_plan(seed), brokers=3, min_in_sync=2, publishers=2, consumers=1, browsers=0, transacting=0,
            numbering=0, power_cuts=(), session_timeout_s=session_timeout_s, faults=faults, until_s=22.0,
        )  # fmt: skip


AGENT_THAT_STOPS = BrokersFault(BrokersKind.AGENT_STOPS, 3.0, 15.0, 1)
"""The primary's: `draw` says so."""
PRIMARY_THAT_DIES = BrokersFault(BrokersKind.CRASH_PRIMARY, 3.2, 30.0, 0)
"""Its machine goes on."""
SWITCHOVERS = tuple(BrokersFault(BrokersKind.MOVE, 2.5 + 1.3 * number, 0.1, number) for number in range(14))
SWITCHOVERS_WITHOUT_A_LOCK = tuple(
    fault
    for switchover in SWITCHOVERS
    for fault in (
        switchover,
        *[BrokersFault(BrokersKind.LOCK_TAKEN, switchover.at_s + s, 0.1, 0) for s in (0.08, 0.1, 0.12, 0.14)],
    )
)
FULL_DISK = BrokersFault(BrokersKind.DISK_FULL, 3.0, 4.5, 1)
"""The primary's, for four times as long."""


def promote_behind_switchovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Promotion, "_why_no_failover", lambda self: "")
    monkeypatch.setattr(promotion, "IF_STALLED", "")  # else the primary refuses: it confirms, and goes on


def test_promoting_behind_a_switchover_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock goes from one to the next while brokers look for the new primary: one that has not found it has it."""
    promote_behind_switchovers(monkeypatch)

    plans = with_faults(*SWITCHOVERS_WITHOUT_A_LOCK)
    assert "had to hand over" in found_by(monkeypatch, plans).problem


def expire_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "_is_lease_expired", lambda known, limits: False)


def test_a_lock_that_a_hanging_agent_keeps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    expire_no_lease(monkeypatch)

    plans = with_faults(AGENT_THAT_STOPS, PRIMARY_THAT_DIES)
    assert "nobody leads" in found_by(monkeypatch, plans).problem


def beat_while_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats by a thread of their own would do that. Nobody else sees that the holder is silent: with sessions it
    writes nothing that others could look at."""

    def can_reach(self: SessionLock, agent: LockUser) -> bool:
        return agent.has_power and not agent.is_cut

    monkeypatch.setattr(SessionLock, "_can_reach", can_reach)


def test_a_session_that_lives_on_while_its_agent_hangs_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beat_while_hanging(monkeypatch)

    plans = with_faults(AGENT_THAT_STOPS, PRIMARY_THAT_DIES, session_timeout_s=2.0)
    assert "nobody leads" in found_by(monkeypatch, plans).problem


def demote_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Tenure.note

    def note_by_the_lock(self: Tenure, lock: LockView, is_primary: bool, is_disowned: bool, now_s: float) -> bool:
        return note(self, lock, is_primary, is_primary and lock is not LockView.HELD, now_s)

    monkeypatch.setattr(Tenure, "note", note_by_the_lock)


def test_demoting_a_primary_that_the_record_names_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    demote_without_a_lock(monkeypatch)

    plans = with_faults(AGENT_THAT_STOPS, BrokersFault(BrokersKind.MOVE, 4.0, 0.1, 0))
    assert "primary by the record" in found_by(monkeypatch, plans).problem


def test_agents_follow_every_switchover() -> None:
    """Each begins one generation, and no agent begins another one behind it."""
    outcomes = [run_proxies(plan) for plan in islice(with_faults(*SWITCHOVERS), 3)]

    assert [outcome.problem for outcome in outcomes] == [""] * 3
    assert all(2 < outcome.generations <= 1 + len(SWITCHOVERS) for outcome in outcomes)


def make_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    without = tuple(rule for rule in decision.PRIMARY if rule.action is not Action.MAKE_WAY)
    monkeypatch.setattr(decision, "PRIMARY", without)


def test_a_primary_that_stays_although_its_disk_is_full_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it has filled the file that it had begun."""
    make_no_way(monkeypatch)

    plans = (replace(plan, numbering=2, segment_bytes=65_536) for plan in with_faults(FULL_DISK))
    assert "makes no way" in found_by(monkeypatch, plans).problem
