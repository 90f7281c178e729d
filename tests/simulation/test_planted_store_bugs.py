"""The checkers find what a store must not do: each test plants a bug, and clusters with stores must find it soon."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import verdict
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.store import reader, survey
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.reading import header_of
from qpid_ha_broker.store.survey import TakenBack
from simulation.brokers.plan import BrokersFault, BrokersKind, BrokersPlan, PowerCut, draw_agents_plan
from simulation.core.plan import PRIMARY, Fault, Kind, Plan, draw_plan
from simulation.planted import found_by

TRIES = 60


def with_faults(*faults: Fault) -> Iterable[Plan]:
    """Clusters of three with stores, and with a coordinator, to which just this happens."""
    for seed in range(TRIES):
        yield replace(
            draw_plan(seed), nodes=3, has_coordinator=True, min_in_sync=2, is_fenced=False, knows_own_address=True,
            tail_bytes=1_000_000, delay_s=0.01, channel_frames=1000, backup_timeout_s=4.0, faults=faults,
            has_store=True, segment_bytes=65_536, transient=0.0, producers=(), faults_end_s=faults[-1].at_s + 2.0,
        )  # fmt: skip


def with_the_brokers_that_ship(*faults: BrokersFault) -> Iterable[BrokersPlan]:
    """Clusters of three real brokers with agents, to which just this happens."""
    for seed in range(3):
        yield replace(
            draw_agents_plan(seed), brokers=3, min_in_sync=2, publishers=2, consumers=1, browsers=0, transacting=0,
            numbering=2, session_timeout_s=0.0, power_cuts=(), faults=faults, until_s=22.0,
        )  # fmt: skip


def crashes_of_primaries(*times_s: float) -> list[Fault]:
    """Each by a loss of power."""
    return [Fault(Kind.CRASH, at_s, 0.6, PRIMARY, 0, 1) for at_s in times_s]


SLOW_DISKS = tuple(Fault(Kind.DISK_SLOW, 2.0, 9.0, node, (node + 1) % 3, 1_000) for node in range(3))
BLACKOUTS = tuple(Fault(Kind.BLACKOUT, at_s, 0.3, 0, 1, 0) for at_s in (3.0, 5.5, 8.0))


def acknowledge_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def keep_and_say_so(self: MemberStore, effect: fx.Persist) -> None:
        number, first_lsn, last_lsn, committed_lsn, transient, data = effect
        self._store.persist(LogBatch(first_lsn, last_lsn, data, transient), committed_lsn, number)
        self._feed(fx.Persisted(number))

    monkeypatch.setattr(MemberStore, "persist", keep_and_say_so)
    monkeypatch.setattr(MemberStore, "persisted", lambda self, number: None)


def test_acknowledging_before_the_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge_before_the_sync(monkeypatch)

    plans = itertools.islice(with_faults(*SLOW_DISKS), 3)
    assert "should have it" in found_by(monkeypatch, plans).problem


def test_acknowledging_before_the_sync_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge_before_the_sync(monkeypatch)

    slow = [BrokersFault(BrokersKind.DISK_SLOW, 1.5, 9.0, draw) for draw in range(3)]
    assert "should have it" in found_by(monkeypatch, with_the_brokers_that_ship(*slow)).problem


def believe_what_was_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_is_void(taken_back: Sequence[TakenBack]) -> Callable[[tuple[int, int]], int]:
        return lambda place: (1 << 63) - 1

    monkeypatch.setattr(reader, "limits_of", nothing_is_void)


def test_ignoring_what_was_taken_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_what_was_taken_back(monkeypatch)

    found_by(monkeypatch, with_faults(*crashes_of_primaries(3.0, 5.0, 7.0, 9.0, 11.0)))


WITH_ITS_POWER = 1
"""What a fault draws that is to take it from whom it strikes."""


def primaries_that_die_with_what_they_alone_have() -> Iterable[BrokersPlan]:
    """Two brokers lead in turn. Who leads writes for a second what the other one does not get, and loses its power. It
    comes back, follows, and has to take that back; some seconds later it leads, loses its power, and reads its store.
    """
    times_s = (3.0, 9.0, 15.0)
    faults = [BrokersFault(BrokersKind.BLOCK, at_s, 4.0, 0) for at_s in times_s]
    faults += [BrokersFault(BrokersKind.CRASH_PRIMARY, at_s + 1.0, 1.5, WITH_ITS_POWER) for at_s in times_s]
    for seed in range(2):
        yield replace(
            draw_agents_plan(seed), brokers=2, min_in_sync=1, publishers=3, consumers=1, browsers=0, transacting=0,
            numbering=1, tail_bytes=0, session_timeout_s=0.0, power_cuts=(PowerCut(20.0, (20.2, 20.3)),),
            faults=tuple(faults), until_s=21.0,
        )  # fmt: skip


def test_ignoring_what_was_taken_back_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_what_was_taken_back(monkeypatch)

    problem = found_by(monkeypatch, primaries_that_die_with_what_they_alone_have()).problem
    assert "hold other queues" in problem or "is there 2 times" in problem


def read_bases_as_if_they_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_as_if_it_followed(disk: Disk, path: str) -> FileHeader:
        return header_of(disk, path)._replace(needs_base=False)

    monkeypatch.setattr(survey, "header_of", read_as_if_it_followed)


def test_taking_an_unfinished_base_for_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read_bases_as_if_they_followed(monkeypatch)

    found_by(monkeypatch, (replace(plan, tail_bytes=1) for plan in with_faults(*BLACKOUTS)))


POWER_OF_EITHER = 2, 12
"""What faults draw of which one takes it from the first of two brokers, the other one from the second."""


def brokers_that_die_while_they_compare() -> Iterable[BrokersPlan]:
    """Who has led comes back from its store, which lacks what was not durable: so it is sent what it does not have, by
    one message at a time. In the middle of that it loses its power again; the primary cannot be spared."""
    faults = []
    for number in range(4):
        at_s = 3.0 + 4.5 * number
        faults.append(BrokersFault(BrokersKind.CRASH_PRIMARY, at_s, 0.6, WITH_ITS_POWER))
        faults += [
            BrokersFault(BrokersKind.CRASH_PROXY, at_s + 1.9 + 0.1 * number, 0.5, draw) for draw in POWER_OF_EITHER
        ]
    for seed in range(3):
        yield replace(
            draw_agents_plan(seed), brokers=2, min_in_sync=1, publishers=4, consumers=0, browsers=0, transacting=0,
            numbering=2, tail_bytes=65_536, chunk_messages=1, delay_s=0.015, session_timeout_s=0.0, power_cuts=(),
            faults=tuple(faults), until_s=22.0,
        )  # fmt: skip


def test_taking_an_unfinished_base_for_whole_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read_bases_as_if_they_followed(monkeypatch)

    assert "expected to go on after LSN" in found_by(monkeypatch, brokers_that_die_while_they_compare()).problem


def test_leading_while_somebody_knows_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_why_not_from_store", lambda known, view: "")

    plans = with_faults(*[fault._replace(for_s=0.2) for fault in crashes_of_primaries(3.0, 5.0, 7.0, 9.0, 11.0)])
    found_by(monkeypatch, (replace(plan, transient=0.5) for plan in plans))


def test_leading_while_somebody_knows_more_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what their publishers send is not durable."""
    monkeypatch.setattr(verdict, "_why_not_from_store", lambda known, view: "")

    crashes = [BrokersFault(BrokersKind.CRASH_PRIMARY, 4.0 + 3.5 * number, 0.6, 1) for number in range(5)]
    assert "is lost" in found_by(monkeypatch, with_the_brokers_that_ship(*crashes)).problem
