"""Queues are made and deleted in clusters of many sets while brokers die: bugs planted in that are found, soon."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import pytest

from qpid_ha_broker.cluster.directory import DirectoryDifference, SetLeader, compare
from qpid_ha_broker.cluster.queue_placement import QueueDirectory, WantedDeletion
from qpid_ha_broker.cluster_map import TOMBSTONE_OF, ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.commands.deletion import Deletion
from qpid_ha_broker.server.peers.replica_reports import QueueReport
from qpid_ha_broker.server.sets import placed_queues
from qpid_ha_broker.server.sets.placed_queues import PlacedQueues
from simulation.planted import found_by
from simulation.sets.plan import draw_sets_plan

Queues = Mapping[str, ev.Arguments]
SEEDS = 1, 3
"""Of clusters in which queues are deleted."""


def found(monkeypatch: pytest.MonkeyPatch, seeds: Sequence[int] = SEEDS) -> str:
    """What is wrong."""
    return found_by(monkeypatch, map(draw_sets_plan, seeds)).problem


def test_a_queue_that_is_deleted_without_a_tombstone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    delete = Configuration.delete_queue

    def forget(self: Configuration, name: str, *, tombstone_of: int = 0, **conditions: bool) -> Deletion:
        return delete(self, name, **conditions)

    monkeypatch.setattr(Configuration, "delete_queue", forget)

    assert "is back" in found(monkeypatch)


def test_an_entry_that_goes_before_the_tombstone_is_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    report = PlacedQueues.report

    def report_at_once(self: PlacedQueues, full: bool) -> QueueReport:
        self._seen = {name: (0, difference) for name, (_, difference) in self._seen.items()}
        return report(self, full)

    monkeypatch.setattr(PlacedQueues, "report", report_at_once)

    assert "its name is free" in found(monkeypatch, (7,))


def test_a_controller_that_removes_an_entry_before_it_is_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    order = QueueDirectory._ordered

    def believe(self: QueueDirectory, wanted: WantedDeletion) -> WantedDeletion:
        there = self._ctx.map.queues_by_id
        if (
            wanted.generation
            and wanted.queue.id in there
            and ev.QueueRemoved(wanted.queue.id) not in self._ctx.draft.events
        ):
            self._ctx.write(ev.QueueRemoved(wanted.queue.id))
        return order(self, wanted)

    monkeypatch.setattr(QueueDirectory, "_ordered", believe)

    assert "its name is free" in found(monkeypatch)


def test_a_tombstone_that_counts_for_whichever_entry_has_the_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(
        leader: SetLeader, there: ClusterMap, uncommitted: Container[str], queues: Queues
    ) -> DirectoryDifference | None:
        entries = there.queues
        taken = {
            name: {TOMBSTONE_OF: entries[name].id} if TOMBSTONE_OF in arguments and name in entries else arguments
            for name, arguments in queues.items()
        }
        return compare(leader, there, uncommitted, taken)

    monkeypatch.setattr(placed_queues, "compare", by_name)

    assert "nobody has asked for that" in found(monkeypatch)


def test_tombstones_that_stay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(
        leader: SetLeader, there: ClusterMap, uncommitted: Container[str], queues: Queues
    ) -> DirectoryDifference | None:
        difference = compare(leader, there, uncommitted, queues)
        return None if difference is None else difference._replace(tombstones=())

    monkeypatch.setattr(placed_queues, "compare", leave)

    assert "has the queues" in found(monkeypatch)
