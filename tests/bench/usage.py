"""Who worked while a figure was made: processor time of client and broker, and the broker's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import psutil

from bench.figures import shown

BUSY = 0.9
"""From this share of one core on, a process was the bottleneck."""


class Usage:
    """`with Usage(pid) as usage:` around the measured part; read it afterwards. `backups`: processes of a cluster."""

    def __init__(self, broker_pid: int, backups: Sequence[int] = ()) -> None:
        self._processes = [psutil.Process(pid) for pid in (os.getpid(), broker_pid, *backups)]
        self.elapsed_s = 0.0
        self.client_s = 0.0
        self.broker_s = 0.0
        self.backups_s: list[float] = []
        self.others_s = 0.0
        """What all else on this machine used: much of it, and the figure is not one to quote."""

    def _processor_s(self) -> list[float]:
        own = [times.user + times.system for times in (process.cpu_times() for process in self._processes)]
        machine = psutil.cpu_times()
        return [*own, sum(machine[:3]) - sum(own)]  # user, nice and system, in this order on every system

    def __enter__(self) -> Self:
        self._before = self._processor_s()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.elapsed_s = time.perf_counter() - self._began
        after = self._processor_s()
        self.client_s, self.broker_s, *self.backups_s, self.others_s = (
            end - start for end, start in zip(after, self._before, strict=True)
        )

    def note_for(self, messages: int) -> str:
        """Shares of one core, processor time for each message (true on a busy machine too), and the bottleneck."""
        broker, client, others = (spent_s / self.elapsed_s for spent_s in (self.broker_s, self.client_s, self.others_s))
        busy = [name for name, share in (("broker", broker), ("client", client)) if share >= BUSY]
        verdict = f": {' and '.join(busy)} limits" if busy else ""
        broker_us, client_us = (spent_s / messages * 1e6 for spent_s in (self.broker_s, self.client_s))
        backups = "".join(
            f"backup {spent_s / self.elapsed_s:.0%} {shown(spent_s / messages * 1e6)} µs, "
            for spent_s in self.backups_s
        )
        return (
            f"CPU broker {broker:.0%} {shown(broker_us)} µs, {backups}client {client:.0%} {shown(client_us)} µs, "
            f"others {max(others, 0):.0%}{verdict}"
        )


def resident_bytes(pid: int) -> int:
    """Resident set size of a process."""
    return int(psutil.Process(pid).memory_info().rss)


def processor_s(pid: int) -> float:
    """Processor time that a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
