"""A coordinator as its users see it: one register that everybody agrees on, behind a network that nobody can trust."""

from __future__ import annotations

import random
from collections.abc import Callable

from qpid_ha_broker.ha.effects import Record, RecordRead, RecordWritten
from simulation.virtual_time import Schedule

LIMIT_S = 2.0
"""After so long a broker hears that the coordinator cannot be reached."""
LOST_REPLIES = 0.03


class Register:
    """The promise: reads and compare-and-sets happen at one moment each, somewhere between question and answer."""

    def __init__(self, schedule: Schedule, draw: random.Random) -> None:
        self._schedule = schedule
        self._draw = draw
        self.record = Record()
        self.history = [self.record]
        self.is_down = False

    def read(self, number: int, reply: Callable[[RecordRead], None]) -> None:
        def arrived() -> None:
            if self._is_lost():
                self._fail(lambda: reply(RecordRead(number, None, "no answer")))
                return
            found = RecordRead(number, self.record)
            self._schedule.after(self._delay_s(), lambda: reply(found))

        self._schedule.after(self._delay_s(), arrived)

    def write(self, number: int, expected: Record, wanted: Record, reply: Callable[[RecordWritten], None]) -> None:
        def arrived() -> None:
            if self._is_lost():
                self._fail(lambda: reply(RecordWritten(number, False, None, "no answer")))
                return
            written = self.record == expected
            if written:
                self.record = wanted
                self.history.append(wanted)
            found = RecordWritten(number, written, self.record)
            if self._draw.random() < LOST_REPLIES:
                self._fail(lambda: reply(RecordWritten(number, False, None, "no answer")))
            else:
                self._schedule.after(self._delay_s(), lambda: reply(found))

        self._schedule.after(self._delay_s(), arrived)

    def _is_lost(self) -> bool:
        return self.is_down or self._draw.random() < LOST_REPLIES / 3

    def _fail(self, reply: Callable[[], None]) -> None:
        self._schedule.after(LIMIT_S, reply)

    def _delay_s(self) -> float:
        return self._draw.uniform(0.001, 0.02) if self._draw.random() < 0.9 else self._draw.uniform(0.02, 0.8)
