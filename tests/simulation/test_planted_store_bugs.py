"""The checkers find what a store must not do: each test plants a bug, and clusters with stores must find it soon."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import verdict
from qpid_ha_broker.ha.frames import Question, Topic
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.store import reader, survey
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.reading import header_of
from qpid_ha_broker.store.survey import TakenBack
from simulation.cluster import Cluster
from simulation.plan import PRIMARY, Fault, Kind, Plan, draw_plan
from simulation.planted import found_by
from simulation.proxies_plan import ProxiesFault, ProxiesKind, ProxiesPlan, draw_agents_plan

TRIES = 60


def with_faults(*faults: Fault) -> Iterable[Plan]:
    """Clusters of three with stores, and with a coordinator, to which just this happens."""
    for seed in range(TRIES):
        yield replace(
            draw_plan(seed), nodes=3, has_coordinator=True, min_in_sync=2, is_fenced=False, knows_own_address=True,
            tail_bytes=1_000_000, delay_s=0.01, channel_frames=1000, backup_timeout_s=4.0, faults=faults,
            has_store=True, segment_bytes=65_536, transient=0.0, producers=(), faults_end_s=faults[-1].at_s + 2.0,
        )  # fmt: skip


def with_the_brokers_that_ship(*faults: ProxiesFault) -> Iterable[ProxiesPlan]:
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

    slow = [ProxiesFault(ProxiesKind.DISK_SLOW, 1.5, 9.0, draw) for draw in range(3)]
    assert "should have it" in found_by(monkeypatch, with_the_brokers_that_ship(*slow)).problem


def test_ignoring_what_was_taken_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_is_void(taken_back: Sequence[TakenBack]) -> Callable[[tuple[int, int]], int]:
        return lambda place: (1 << 63) - 1

    monkeypatch.setattr(reader, "limits_of", nothing_is_void)

    found_by(monkeypatch, with_faults(*crashes_of_primaries(3.0, 5.0, 7.0, 9.0, 11.0)))


def test_taking_an_unfinished_base_for_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_as_if_it_followed(disk: Disk, path: str) -> FileHeader:
        return header_of(disk, path)._replace(needs_base=False)

    monkeypatch.setattr(survey, "header_of", read_as_if_it_followed)

    found_by(monkeypatch, (replace(plan, tail_bytes=1) for plan in with_faults(*BLACKOUTS)))


def test_leading_while_somebody_knows_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_why_not_from_store", lambda known, view: "")

    plans = with_faults(*[fault._replace(for_s=0.2) for fault in crashes_of_primaries(3.0, 5.0, 7.0, 9.0, 11.0)])
    found_by(monkeypatch, (replace(plan, transient=0.5) for plan in plans))


def test_leading_while_somebody_knows_more_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what their publishers send is not durable."""
    monkeypatch.setattr(verdict, "_why_not_from_store", lambda known, view: "")

    crashes = [ProxiesFault(ProxiesKind.CRASH_PRIMARY, 4.0 + 3.5 * number, 0.6, 1) for number in range(5)]
    assert "is lost" in found_by(monkeypatch, with_the_brokers_that_ship(*crashes)).problem


def claims_of_one_generation(plan: Plan) -> list[bool]:
    """Two candidates ask a backup for the same generation; between them it loses its power. What it says to each."""
    cluster = Cluster(plan, False)
    node = cluster.nodes[0]
    node.start()
    said: list[bool] = []
    for candidate in ("n1", "n2"):
        question = Question(1, Topic.CLAIM, candidate, candidate, "", 7, 0, f"{candidate}:5672")
        node.feed(fx.FrameReceived(node.next_link(), question))
        said.append((node.member.answer().promised, node.member.answer().promised_to) == (7, candidate))
        cluster.faults.crash(node, 0.1, has_power=False)
        cluster.schedule.run_until(cluster.schedule.now_s + 0.5)
    return said


def test_forgetting_a_promise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(next(iter(with_faults(*BLACKOUTS))), has_coordinator=False, faults=())
    assert claims_of_one_generation(plan) == [True, False]

    monkeypatch.setattr(MemberStore, "persist_vote", lambda self, effect: None)

    assert claims_of_one_generation(plan) == [True, True]
