"""The checkers find what brokers must not do when something that was kept is lost, or old: each test takes one
safeguard out of the product, and clusters to which just that happens must find it soon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from qpid_ha_broker.ha import lost_record, verdict
from qpid_ha_broker.store.reading import BlockReader, Verdict, Witnesses
from simulation.cluster import run
from simulation.plan import PRIMARY, Fault, Kind, Plan, draw_plan
from simulation.planted import found_by
from simulation.proxies_plan import ProxiesFault, ProxiesKind, ProxiesPlan, draw_agents_plan
from simulation.proxies_world import run_proxies

TRIES = 12


def with_faults(*faults: Fault, **settings: object) -> Iterator[Plan]:
    """Clusters with a coordinator that have no other faults, and whose backups are dropped soon."""
    for seed in range(TRIES):
        plan = replace(
            draw_plan(seed), nodes=2, has_coordinator=True, min_in_sync=1, is_fenced=False, knows_own_address=True,
            tail_bytes=1_000_000, delay_s=0.01, channel_frames=1000, backup_timeout_s=1.5, has_store=False,
            segment_bytes=65_536, transient=0.0, producers=(), faults=faults, faults_end_s=faults[-1].at_s + 2.0,
        )  # fmt: skip
        yield replace(plan, **settings)  # type: ignore[arg-type]


FROZEN_BACKUP_AND_A_LOST_RECORD = (
    Fault(Kind.PAUSE, 2.5, 5.0, 1, 0, 0),
    Fault(Kind.RECORD_LOST, 6.9, 0.0, 0, 1, 0),
    Fault(Kind.CRASH, 7.0, 2.0, PRIMARY, 0, 0),
)
FAILOVER_AND_OLD_STORES = (
    Fault(Kind.CRASH, 5.0, 0.6, PRIMARY, 0, 0),
    Fault(Kind.ALL_DISKS_PUT_BACK, 9.0, 0.3, 0, 1, 6_000),
)


FROZEN_BACKUP_AND_A_STORE_CUT_SHORT = (
    Fault(Kind.PAUSE, 2.5, 6.0, 1, 0, 0),
    Fault(Kind.DISK_TRUNCATED, 7.0, 1.0, 0, 1, 0),
)


def primaries_alone() -> Iterator[ProxiesPlan]:
    """Of two real brokers with agents, each alone when it dies, and the record is lost then."""
    faults = [ProxiesFault(ProxiesKind.PRIMARY_ALONE, at_s, for_s, 1) for at_s, for_s in ((2.5, 2.0), (14.0, 1.0))]
    for seed in range(2):
        yield replace(
            draw_agents_plan(seed), brokers=2, min_in_sync=1, publishers=2, consumers=1, browsers=0, transacting=0,
            numbering=2, session_timeout_s=0.0, power_cuts=(), faults=tuple(faults), until_s=22.0,
        )  # fmt: skip


def test_taking_a_lost_record_for_nothing_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_outdated_record", lambda known: None)

    assert "no operator was asked" in found_by(monkeypatch, with_faults(*FROZEN_BACKUP_AND_A_LOST_RECORD)).problem


def test_taking_a_lost_record_for_nothing_recorded_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "_outdated_record", lambda known: None)

    assert "without a mark" in found_by(monkeypatch, primaries_alone()).problem


def test_an_operator_who_overrides_a_refusal_loses_nothing_where_all_stores_are_back() -> None:
    outcomes = [run_proxies(plan) for plan in primaries_alone()]

    assert [outcome.problem for outcome in outcomes] == [""] * 2
    assert all(outcome.forced for outcome in outcomes)


def test_writing_a_lost_record_anew_beside_one_that_may_have_confirmed_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_record, "_forgetful", lambda answers: [])

    assert "no operator was asked" in found_by(monkeypatch, with_faults(*FROZEN_BACKUP_AND_A_LOST_RECORD)).problem


def test_leading_from_stores_that_are_older_than_the_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_outdated_stores", lambda known: None)

    plans = with_faults(*FAILOVER_AND_OLD_STORES, nodes=3, min_in_sync=2, has_store=True)
    assert "no operator was asked" in found_by(monkeypatch, plans).problem


def test_taking_a_segment_that_was_cut_short_for_a_torn_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = BlockReader.verdict

    def judge_without_its_length(self: BlockReader, witnesses: Witnesses) -> Verdict:
        return judge(self, witnesses._replace(synced_bytes=0, is_last=False))

    monkeypatch.setattr(BlockReader, "verdict", judge_without_its_length)

    problem = found_by(monkeypatch, with_faults(*FROZEN_BACKUP_AND_A_STORE_CUT_SHORT, has_store=True)).problem
    assert "has it" in problem or "whose settlement was confirmed" in problem


def test_what_an_operator_gives_up_is_excused_by_name() -> None:
    outcomes = [run(plan) for plan in islice(with_faults(*FROZEN_BACKUP_AND_A_LOST_RECORD), 1, 4)]

    assert [outcome.problem for outcome in outcomes] == ["", "", ""]
    reasons = {reason for outcome in outcomes for excuse in outcome.excuses for reason in excuse.reasons}
    assert reasons
    assert all("an operator promoted" in reason for reason in reasons)
