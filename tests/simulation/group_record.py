"""Who keeps the set's record: replaces it by compare-and-set, is away at times, and may be late."""

from __future__ import annotations

import random
from collections.abc import Callable

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from simulation.virtual_time import Schedule

CLUSTER = "a-set"
"""The UUID of the set's log, which a new set has, and keeps."""
Answer = Callable[[bool, ClusterRecord | None], None]


class RecordKeeperModel:
    def __init__(self, schedule: Schedule, seed: int) -> None:
        self._schedule = schedule
        self._draw = random.Random(f"{seed}/record")
        self.record = ClusterRecord(CLUSTER)
        self.away_for: set[str] = set()
        """Nodes that do not reach it."""
        self.is_late = False
        self.empty: set[str] = set()
        """Nodes whose disks were lost, and that were not let in since. A write that names only such comes too
        late: with it all would be lost."""
        self.changes = 0

    def read(self, name: str, answer: Callable[[ClusterRecord | None], None]) -> None:
        def look() -> None:
            record = None if name in self.away_for else self.record
            self._schedule.after(self._delay_s(), lambda: answer(record))

        self._schedule.after(self._delay_s(), look)

    def write(self, name: str, expected: ClusterRecord, wanted: ClusterRecord, answer: Answer) -> None:
        if name in self.away_for:
            if self._draw.random() < 0.3:  # it was on its way
                self._replace_late(self._delay_s(), expected, wanted)
            self._schedule.after(0.3, lambda: answer(False, None))
            return
        if self.is_late and self._draw.random() < 0.5:
            self._replace_late(self._draw.uniform(0.2, 1.5), expected, wanted)
            self._schedule.after(0.15, lambda: answer(False, None))
            return

        def replace() -> None:
            written = self._replace(expected, wanted)
            record = self.record
            self._schedule.after(self._delay_s(), lambda: answer(written, record))

        self._schedule.after(self._delay_s(), replace)

    def _replace_late(self, delay_s: float, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        def replace() -> None:
            self._replace(expected, wanted)

        self._schedule.after(delay_s, replace)

    def _replace(self, expected: ClusterRecord, wanted: ClusterRecord) -> bool:
        if self.record == expected and wanted.cluster == CLUSTER and not self.empty.issuperset(wanted.members):
            self.record = wanted
            self.changes += 1
        return self.record == wanted

    def _delay_s(self) -> float:
        return self._draw.uniform(0.0005, 0.005)
