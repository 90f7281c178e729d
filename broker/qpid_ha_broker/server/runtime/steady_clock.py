"""A clock that nobody can set."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from math import ceil
from pathlib import Path

from qpid_ha_broker.store.clock_mark import MachineTime


def boot_s() -> float:
    """Seconds since the machine was booted, also those in which it slept. The machine's time service makes it run as
    fast as the time of day should, and never makes it jump (CLOCK_BOOTTIME, `man 2 clock_gettime`)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """The promise: it begins with the time of day, and then grows by what passes, however the time of day is set.

    In seconds: `wall_s` since 1970, `elapsed_s` of a clock that never jumps.
    """

    def __init__(self, wall_s: Callable[[], float] = time.time, elapsed_s: Callable[[], float] = boot_s) -> None:
        self._wall_s, self._elapsed_s = wall_s, elapsed_s
        self._began_s = wall_s() - elapsed_s()

    def now_ms(self) -> int:
        """Milliseconds since 1970, as of the time of day at which it began."""
        return int((self._began_s + self._elapsed_s()) * 1000)

    def wall_ms(self) -> int:
        """The time of day."""
        return int(self._wall_s() * 1000)

    def steady_at(self, wall_ms: int) -> int:
        """See `SteadyTime`."""
        return ceil(wall_ms + (self._began_s + self._elapsed_s() - self._wall_s()) * 1000)


def machine_time() -> MachineTime:
    """What this machine's clocks say."""
    return MachineTime(int(time.time() * 1000), int(boot_s() * 1000), _boot_id())


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
