"""The checkers find what they are there for: each test plants a bug in the core, and seeds must find it soon."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest

from qpid_ha_broker.ha import catchup
from qpid_ha_broker.ha.browser import Ranges, ReplicatingBrowser
from qpid_ha_broker.ha.in_sync import InSyncSet
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.replica import Replica
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets import following, resource_set
from qpid_ha_broker.model.transactions.producers import Producers
from simulation.brokers.plan import BrokersFault, BrokersKind, BrokersPlan, draw_agents_plan
from simulation.core.plan import Plan, draw_plan
from simulation.planted import found_by
from simulation.runs import run_plan

SEEDS = 150


def seeds(first: int = 0, count: int = SEEDS) -> Iterable[Plan]:
    """So many clusters, with whatever happens to them. `first`: those before it are known not to find a rare bug."""
    return map(draw_plan, range(first, first + count))


def confirm_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance_alone(self: InSyncSet) -> None:
        self.committed_lsn = max(self.committed_lsn, self._acknowledged[self.primary])

    monkeypatch.setattr(InSyncSet, "_advance", advance_alone)


def test_confirming_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    confirm_too_early(monkeypatch)

    assert "should have it" in found_by(monkeypatch, seeds(count=5)).problem


def test_confirming_too_early_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to die for that: the message is with fewer than those of whom one may be promoted."""
    confirm_too_early(monkeypatch)

    assert "should have it" in found_by(monkeypatch, map(draw_agents_plan, (0,))).problem


def test_ignoring_how_many_have_to_be_in_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InSyncSet, "is_large_enough", property(lambda self: True))

    assert "should have it" in found_by(monkeypatch, seeds(count=20)).problem


def test_ignoring_how_many_have_to_be_in_sync_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(InSyncSet, "is_large_enough", property(lambda self: True))

    plan = draw_agents_plan(1)
    assert "3 brokers should have it" in found_by(monkeypatch, [replace(plan, min_in_sync=plan.brokers)]).problem


def skip_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_without_a_word(self: Primary, name: str, why: str) -> None:
        self._expected.discard(name)
        self.in_sync._acknowledged.pop(name)
        self.in_sync._advance()
        self._check_phase()

    monkeypatch.setattr(Primary, "_leave", leave_without_a_word)


def test_skipping_the_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_the_epoch(monkeypatch)

    found_by(monkeypatch, seeds(first=15))


def test_skipping_the_epoch_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has left is still recorded as one who may be promoted."""
    skip_the_epoch(monkeypatch)

    assert "may be promoted, and should have it" in found_by(monkeypatch, map(draw_agents_plan, (1,))).problem


class Seen:
    """A message as it was when its browser began, though it may be consumed by now."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.id, self.body, self.size = entry.id, entry.resident_body(), entry.size
        self.enqueued = entry.enqueued

    @property
    def delivery_count(self) -> int:
        return self._entry.delivery_count

    def resident_body(self) -> bytes:
        return self.body


class Snapshot:
    """A queue as it was when its browser began."""

    def __init__(self, queue: Queue) -> None:
        self.messages = self
        self.annotations: dict[int, bytes] = {}
        self._seen = sorted((Seen(entry) for entry in queue.messages), key=attrgetter("id"))

    def newest_before(self, bound: int, limit: int) -> list[Seen]:
        return [seen for seen in self._seen if seen.id < bound][-limit:]


def browse_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A primary that sends what a queue held when its browser began: right, as long as backups keep tombstones.

    The real one never sends what was consumed before it sends; its backups' tombstones are a second line.
    """
    begin = ReplicatingBrowser.__init__

    def begin_with_snapshot(
        self: ReplicatingBrowser, queue: Queue, up_to_lsn: int, holdings: Ranges, *, with_annotations: bool
    ) -> None:
        begin(self, queue, up_to_lsn, holdings, with_annotations=with_annotations)
        self._queue = Snapshot(queue)  # type: ignore[assignment]

    monkeypatch.setattr(ReplicatingBrowser, "__init__", begin_with_snapshot)


def forget_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    def remaining_with_the_dead(self: object, entries: Iterable[Entry], dropped: Iterable[int] = ()) -> list[Entry]:
        return [entry for entry in entries if entry.id not in set(dropped)]

    browse_snapshots(monkeypatch)
    monkeypatch.setattr(catchup._Level, "remaining", remaining_with_the_dead)


def test_forgetting_a_tombstone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_tombstones(monkeypatch)

    outcome = found_by(monkeypatch, seeds(first=35))

    browse_snapshots(monkeypatch)
    assert run_plan(outcome.plan).problem == "", "with tombstones, a snapshot is as good"


def brokers_that_are_stopped_in_turn() -> Iterable[BrokersPlan]:
    """They come level again while much is consumed, by one message at a time."""
    for seed in (3, 4):
        yield replace(
            draw_agents_plan(seed), brokers=3, min_in_sync=1, publishers=2, consumers=4, browsers=0, transacting=0,
            numbering=2, tail_bytes=65_536, chunk_messages=1, delay_s=0.015, session_timeout_s=0.0, power_cuts=(),
            faults=tuple(BrokersFault(BrokersKind.PAUSE, 2.5 + 3.3 * count, 2.9, count) for count in range(3)),
        )  # fmt: skip


def test_forgetting_a_tombstone_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup has what was consumed while it came level; nobody need promote it."""
    forget_tombstones(monkeypatch)

    outcome = found_by(monkeypatch, brokers_that_are_stopped_in_turn())
    assert "hold other queues" in outcome.problem

    browse_snapshots(monkeypatch)
    assert run_plan(outcome.plan).problem == "", "with tombstones, a snapshot is as good"


def forget_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    apply_all = Replica.apply_all

    def apply_all_without_memory(self: Replica) -> None:
        apply_all(self)
        self._set.state.producers.clear()

    monkeypatch.setattr(Replica, "apply_all", apply_all_without_memory)


def test_a_new_primary_that_knows_no_producers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_producers(monkeypatch)

    assert "whose settlement was confirmed" in found_by(monkeypatch, seeds(count=5)).problem, "it is there twice"


def test_a_new_primary_that_knows_no_producers_is_found_with_the_brokers_that_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What its publisher sends again is queued again, though somebody has consumed it."""
    forget_producers(monkeypatch)

    assert "goes to c0.3, and belongs to c0.3" in found_by(monkeypatch, map(draw_agents_plan, (15, 19))).problem


def test_a_snapshot_without_producers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "events", lambda self: iter(()))

    found_by(monkeypatch, seeds())


def publishers_that_sleep_over_two_failovers() -> Iterable[BrokersPlan]:
    """They have not heard of what they sent. The first primary comes level again, from a snapshot, and is the next."""
    for seed in (0, 2, 3):
        faults = []
        for at_s in (2.5, 6.0, 9.5):
            faults += [
                BrokersFault(BrokersKind.DISK_SLOW, at_s - 0.25, 0.8, SLOW_DISK_OF_PRIMARY),
                *[BrokersFault(BrokersKind.CLIENT_SLEEPS, at_s, 2.4, draw) for draw in NUMBERING_OF_FIVE],
                *[BrokersFault(BrokersKind.CRASH_PRIMARY, at_s + later_s, 0.5, 0) for later_s in (0.1, 1.7)],
            ]
        yield replace(
            draw_agents_plan(seed), brokers=2, min_in_sync=1, publishers=2, consumers=1, browsers=0, transacting=0,
            numbering=2, tail_bytes=65_536, publisher_credit=40, delay_s=0.003, session_timeout_s=0.0, power_cuts=(),
            faults=tuple(faults),
        )  # fmt: skip


SLOW_DISK_OF_PRIMARY = 8
NUMBERING_OF_FIVE = 0, 5
"""What the faults draw of these seeds."""


def test_a_snapshot_without_producers_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "events", lambda self: iter(()))

    assert "goes to" in found_by(monkeypatch, publishers_that_sleep_over_two_failovers()).problem


def mark_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    take_over = following.take_over_queues

    def take_over_without_marks(queues: Collection[Queue], *arguments: Any) -> dict[Queue, None]:
        timed = take_over(queues, *arguments)
        for queue in queues:
            queue.redelivered_below = 0
        return timed

    monkeypatch.setattr(resource_set, "take_over_queues", take_over_without_marks)


def test_a_new_primary_that_marks_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mark_nothing(monkeypatch)

    assert "for the second time without saying so" in found_by(monkeypatch, seeds(count=20)).problem


def test_a_new_primary_that_marks_nothing_is_found_with_the_brokers_that_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    mark_nothing(monkeypatch)

    assert "without a mark" in found_by(monkeypatch, map(draw_agents_plan, (3, 4))).problem
