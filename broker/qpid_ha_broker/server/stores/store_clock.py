"""Keeps in a store what its set's message clock says, for the next process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.model.sets.message_clock import LAST_MS, MessageClock
from qpid_ha_broker.store.clock_mark import CLOCK_FILE, ClockMark, MachineTime, read_clock_mark
from qpid_ha_broker.store.files import Disk

log = logging.getLogger("store")

TOLERANCE_MS: Final = 1000
"""By so much the next process may be wrong: while no clock is set, what is on disk stays right, and is left alone."""


class StoreClock:
    """The promise: whoever goes on from the store counts what passed from when the last process ended, and before, to
    within a second; if the machine was booted since, by the time of day.

    `machine`, `steady_ms`: the machine's clocks, and the broker's own (`model.message_clock`).
    """

    def __init__(
        self, disk: Disk, clock: MessageClock, machine: Callable[[], MachineTime], steady_ms: Callable[[], int]
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._machine = machine
        self._steady_ms = steady_ms
        self._written: ClockMark | None = None

    def restore(self) -> None:
        """Have the clock go on. Blocks."""
        try:
            self._written = read_clock_mark(self._disk)
        except (OSError, ValueError) as error:
            log.warning("%s in the store cannot be used (%s): messages expire by the time of day", CLOCK_FILE, error)
        if self._written is not None:
            self._clock.go_on(min(self._written.reading(self._machine()), LAST_MS), self._steady_ms())

    @property
    def is_due(self) -> bool:
        """Whether what is on disk would mislead the next process."""
        if self._written is None:
            return True
        now = self._mark()
        return self._written.is_off_by_ms(now.reading_ms, now.machine) > TOLERANCE_MS

    def write(self) -> None:
        """Put it on disk as it is now. From any thread. Raises OSError."""
        mark = self._mark()
        self._disk.replace(CLOCK_FILE, mark.encode())
        self._written = mark

    def _mark(self) -> ClockMark:
        return ClockMark(self._clock.now_ms(self._steady_ms()), self._machine())
