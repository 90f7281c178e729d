"""A coordinator as its users see it: one register that everybody agrees on, behind a network that nobody can trust."""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import RecordRead, RecordWritten
from simulation.virtual_time import Schedule

LIMIT_S = 2.0
"""After so long a broker hears that the coordinator cannot be reached."""
LOST_REPLIES = 0.03
LATE_S = 0.0, 3.0
"""How long after its failure was reported a late write takes effect."""


class Register:
    """The promise: reads and compare-and-sets happen at one moment each, somewhere between question and answer."""

    def __init__(
        self, schedule: Schedule, draw: random.Random, draw_of_backups: random.Random, draw_of_begins: random.Random
    ) -> None:
        self._schedule = schedule
        self._draw = draw
        self._draw_of_begins = draw_of_begins
        """For writes that only say that a generation has begun: nobody waits for them."""
        self._draw_of_backups = draw_of_backups
        """For the looks of backups: how often they look changes nothing for others, so a seed stays the same story."""
        self.record = ClusterRecord()
        self.history = [self.record]
        self._written_s = [0.0]
        self._first_asked_s: dict[str, float] = {}
        """When a record of each cluster was wanted for the first time."""
        self.is_down = False
        self.writes_late = False
        """Each write fails for whoever wanted it, and takes effect after that."""

    def read(self, number: int, reply: Callable[[RecordRead], None], *, is_backup: bool = False) -> None:
        draw = self._draw_of_backups if is_backup else self._draw

        def arrived() -> None:
            if self._is_lost(draw):
                self._fail(lambda: reply(RecordRead(number, None, "no answer")))
                return
            found = RecordRead(number, self.record)
            self._schedule.after(self._delay_s(draw), lambda: reply(found))

        self._schedule.after(self._delay_s(draw), arrived)

    def write(
        self,
        number: int,
        expected: ClusterRecord,
        wanted: ClusterRecord,
        reply: Callable[[RecordWritten], None],
    ) -> None:
        draw = self._draw_of_begins if wanted == expected._replace(claimed=False) else self._draw
        self._first_asked_s.setdefault(wanted.cluster, self._schedule.now_s)

        def compare_and_set() -> bool:
            is_as_expected = self.record == expected
            if is_as_expected:
                self._set(wanted)
            return is_as_expected

        def take_effect_late() -> None:
            compare_and_set()

        def arrived() -> None:
            if self._is_lost(draw):
                self._fail(lambda: reply(RecordWritten(number, False, None, "no answer")))
                return
            if self.writes_late:
                self._fail(lambda: reply(RecordWritten(number, False, None, "no answer")))
                self._schedule.after(LIMIT_S + draw.uniform(*LATE_S), take_effect_late)
                return
            found = RecordWritten(number, compare_and_set(), self.record)
            if draw.random() < LOST_REPLIES:
                self._fail(lambda: reply(RecordWritten(number, False, None, "no answer")))
            else:
                self._schedule.after(self._delay_s(draw), lambda: reply(found))

        self._schedule.after(self._delay_s(draw), arrived)

    def _set(self, record: ClusterRecord) -> None:
        self.record = record
        self.history.append(record)
        self._written_s.append(self._schedule.now_s)

    # --- what goes wrong with what it keeps

    def lose(self) -> None:
        """Somebody has deleted the record."""
        self._set(ClusterRecord())

    def put_back(self, at_s: float) -> float:
        """Somebody has put the record of that time back; returns when that was written."""
        index = self._index_at(at_s)
        self._set(self.history[index])
        return self._written_s[index]

    def at(self, at_s: float) -> ClusterRecord:
        """What it held at that time."""
        return self.history[self._index_at(at_s)]

    def was_overtaken(self, cluster: str, led_since_s: float) -> bool:
        """Whether a record was lost while the first one of `cluster`, or the answer to it, was on its way, and another
        cluster was recorded before anybody led this one."""
        asked_s = self._first_asked_s.get(cluster, math.inf)
        before = [
            (written_s, record.cluster)
            for written_s, record in zip(self._written_s, self.history, strict=True)
            if written_s < led_since_s
        ]
        is_lost = any(written_s > asked_s and not name for written_s, name in before)
        return is_lost and any(name not in ("", cluster) for _, name in before)

    def misleads_until_s(self, put_back_s: float, unnoticed_s: float) -> float:
        """How long a record that was put back then misleads somebody: until it is written the next time.

        Or, if a newer generation was recorded before, and the primary of the one that came back has a change recorded:
        until somebody else writes, and `unnoticed_s` more: that one may not look sooner. Infinite: it still does.
        """
        index = self._index_at(put_back_s)
        before, false = self.history[index - 1], self.history[index]
        is_older = false.cluster == before.cluster and false.generation < before.generation
        writes = list(zip(self._written_s, self.history, strict=True))[index + 1 :]
        right = [written_s for written_s, record in writes if not (is_older and record[:3] == false[:3])]
        if not right:
            return math.inf
        return right[0] if right[0] == writes[0][0] else right[0] + unnoticed_s

    def _index_at(self, at_s: float) -> int:
        return bisect_right(self._written_s, at_s) - 1

    def _is_lost(self, draw: random.Random) -> bool:
        return self.is_down or draw.random() < LOST_REPLIES / 3

    def _fail(self, reply: Callable[[], None]) -> None:
        self._schedule.after(LIMIT_S, reply)

    def _delay_s(self, draw: random.Random) -> float:
        return draw.uniform(0.001, 0.02) if draw.random() < 0.9 else draw.uniform(0.02, 0.8)
