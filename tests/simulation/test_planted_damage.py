"""The checkers find what brokers must not do when something that was kept is lost, or old: each test takes one
safeguard out of the product, and clusters to which just that happens must find it soon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from qpid_ha_broker.ha import lost_record, verdict
from qpid_ha_broker.ha.promotion import Outcome, Promotion
from qpid_ha_broker.store.reading import BlockReader, Verdict, Witnesses
from simulation.brokers.plan import BrokersFault, BrokersKind, BrokersPlan, draw_agents_plan
from simulation.brokers.world import run_proxies
from simulation.core.cluster import run
from simulation.core.plan import PRIMARY, Fault, Kind, Plan, draw_plan
from simulation.planted import found_by

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


def with_the_brokers_that_ship(brokers: int, *faults: BrokersFault, least: int = 1) -> Iterator[BrokersPlan]:
    """Clusters of real brokers with agents, to which just this happens; `least`: so many have to be in sync."""
    for seed in range(2):
        yield replace(
            draw_agents_plan(seed), brokers=brokers, min_in_sync=least, publishers=2, consumers=1, browsers=0,
            transacting=0, numbering=2, session_timeout_s=0.0, power_cuts=(), faults=faults, until_s=22.0,
        )  # fmt: skip


PRIMARIES_ALONE_AND_LOST_RECORDS = (
    BrokersFault(BrokersKind.PRIMARY_ALONE, 2.5, 2.0, 1),
    BrokersFault(BrokersKind.PRIMARY_ALONE, 14.0, 1.0, 1),
)
"""`draw` says that the record is lost."""
PRIMARY_ALONE_WHOSE_STORE_IS_CUT_SHORT = (
    BrokersFault(BrokersKind.PRIMARY_ALONE, 2.5, 2.0, 0),
    BrokersFault(BrokersKind.DISK_CUT_SHORT, 7.0, 2.0, 0),
)
PRIMARY_ALONE_WHOSE_STORE_AND_RECORD_ARE_LOST = (
    BrokersFault(BrokersKind.PRIMARY_ALONE, 2.5, 2.0, 1),
    BrokersFault(BrokersKind.DISK_LOST, 6.7, 0.3, 0),
)
FAILOVER_AND_STORES_OF_BEFORE = (
    BrokersFault(BrokersKind.CRASH_PRIMARY, 5.0, 0.6, 0),
    BrokersFault(BrokersKind.DISKS_PUT_BACK, 9.0, 0.3, 0),
)


def test_taking_a_lost_record_for_nothing_recorded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_outdated_record", lambda known: None)

    assert "no operator was asked" in found_by(monkeypatch, with_faults(*FROZEN_BACKUP_AND_A_LOST_RECORD)).problem


def test_taking_a_lost_record_for_nothing_recorded_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "_outdated_record", lambda known: None)

    assert (
        "without a mark"
        in found_by(monkeypatch, with_the_brokers_that_ship(2, *PRIMARIES_ALONE_AND_LOST_RECORDS)).problem
    )


def test_an_operator_who_overrides_a_refusal_loses_nothing_where_all_stores_are_back() -> None:
    outcomes = [run_proxies(plan) for plan in with_the_brokers_that_ship(2, *PRIMARIES_ALONE_AND_LOST_RECORDS)]

    assert [outcome.problem for outcome in outcomes] == [""] * 2
    assert all(outcome.forced for outcome in outcomes)


def test_writing_a_lost_record_anew_beside_one_that_may_have_confirmed_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_record, "_forgetful", lambda answers: [])

    assert "no operator was asked" in found_by(monkeypatch, with_faults(*FROZEN_BACKUP_AND_A_LOST_RECORD)).problem


def test_writing_a_lost_record_anew_beside_one_that_may_have_confirmed_alone_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lost_record, "_forgetful", lambda answers: [])

    plans = with_the_brokers_that_ship(2, *PRIMARY_ALONE_WHOSE_STORE_AND_RECORD_ARE_LOST)
    assert "is lost" in found_by(monkeypatch, plans).problem


def test_leading_from_stores_that_are_older_than_the_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_outdated_stores", lambda known: None)

    plans = with_faults(*FAILOVER_AND_OLD_STORES, nodes=3, min_in_sync=2, has_store=True)
    assert "no operator was asked" in found_by(monkeypatch, plans).problem


def test_leading_from_stores_that_are_older_than_the_record_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verdict, "_outdated_stores", lambda known: None)

    plans = with_the_brokers_that_ship(3, *FAILOVER_AND_STORES_OF_BEFORE, least=2)
    assert "is lost" in found_by(monkeypatch, plans).problem


def test_a_candidate_that_slept_and_believes_an_answer_that_came_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record was put back while it slept, and another one has begun the same generation. One cluster of 100,000."""
    written = Promotion.record_written

    def written_just_now(self: Promotion, *answer: Any) -> Outcome:
        self._recording_since_s = self._ctx.now_s
        return written(self, *answer)

    monkeypatch.setattr(Promotion, "record_written", written_just_now)

    plan = replace(draw_plan(15109), seed=221)
    assert "were both primary of generation 2" in found_by(monkeypatch, [plan]).problem


def judge_without_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = BlockReader.verdict

    def judge_without_its_length(self: BlockReader, witnesses: Witnesses) -> Verdict:
        return judge(self, witnesses._replace(synced_bytes=0, is_last=False))

    monkeypatch.setattr(BlockReader, "verdict", judge_without_its_length)


def test_taking_a_segment_that_was_cut_short_for_a_torn_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_without_lengths(monkeypatch)

    problem = found_by(monkeypatch, with_faults(*FROZEN_BACKUP_AND_A_STORE_CUT_SHORT, has_store=True)).problem
    assert "has it" in problem or "whose settlement was confirmed" in problem


def test_taking_a_segment_that_was_cut_short_for_a_torn_one_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without that its broker refuses, and an operator sets the store aside and has another one lead."""
    judge_without_lengths(monkeypatch)

    outcome = found_by(monkeypatch, with_the_brokers_that_ship(2, *PRIMARY_ALONE_WHOSE_STORE_IS_CUT_SHORT))
    assert "is lost" in outcome.problem


def test_what_an_operator_gives_up_is_excused_by_name() -> None:
    outcomes = [run(plan) for plan in islice(with_faults(*FROZEN_BACKUP_AND_A_LOST_RECORD), 1, 4)]

    assert [outcome.problem for outcome in outcomes] == ["", "", ""]
    reasons = {reason for outcome in outcomes for excuse in outcome.excuses for reason in excuse.reasons}
    assert reasons
    assert all("an operator promoted" in reason for reason in reasons)
