"""Who worked while a figure was made: time by the clock, processor time, and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Self

import psutil

from bench.figures import shown

BUSY = 0.9
"""From this share of one core on, a process was the bottleneck."""


def resident_bytes(pid: int) -> int:
    """Resident set size of a process."""
    return int(psutil.Process(pid).memory_info().rss)


def processor_s(*pids: int) -> float:
    """Processor time that processes have used so far, with all their threads, to the nanosecond.

    Source: clock_getcpuclockid(3); a process's clock is `~pid << 3 | CPUCLOCK_SCHED` (Linux, posix-timers_types.h).
    """
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


def tree_processor_s() -> float:
    """The same of this process and all that it has started, also of those that have ended."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])
    return total


class Work:
    """`with Work() as work:` around the measured part; read it afterwards.

    `counters` say what was used of a processor so far, in seconds; without any, this process is meant.
    """

    def __init__(self, *counters: Callable[[], float]) -> None:
        self._counters = counters or (time.process_time,)
        self.elapsed_s = 0.0
        self.spent_s: list[float] = []
        """By each counter."""

    @property
    def processor_s(self) -> float:
        """On a busy machine that is the one to compare."""
        return self.spent_s[0]

    def __enter__(self) -> Self:
        self._before = [counter() for counter in self._counters]
        self._began_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.elapsed_s = time.perf_counter() - self._began_s
        self.spent_s = [counter() - before for counter, before in zip(self._counters, self._before, strict=True)]

    def __str__(self) -> str:
        return f"{self.elapsed_s:.2f} s, {self.processor_s:.2f} s of processors"


class Usage(Work):
    """Work of the client, which is this process, a broker, and `backups`: other processes of a cluster."""

    def __init__(
        self,
        broker_pid: int,
        backups: Sequence[int] = (),
        *,
        profiled: int | None = None,
        daemons: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`daemons`: process ids of others that work for the brokers, by what they are called."""
        self.profiled = broker_pid if profiled is None else profiled
        """Whose time is of interest when one is looked at closely (`--profile`)."""
        self._names = ["broker", *("backup" for _ in backups), *daemons]
        self._brokers = 1 + len(backups)
        processes = [lambda pid=pid: processor_s(pid) for pid in (broker_pid, *backups, *daemons.values())]
        super().__init__(time.process_time, *processes, _machine_s)

    @property
    def brokers_s(self) -> list[float]:
        """Of each broker, the one that clients talk to first."""
        return self.spent_s[1 : 1 + self._brokers]

    def note_for(self, messages: int) -> str:
        """Shares of one core, processor time for each message (true on a busy machine too), and the bottleneck.

        `others` is what all else on this machine used: much of it, and the figure is not one to quote.
        """
        client_s, *processes_s, machine_s = self.spent_s
        others_s = machine_s - client_s - sum(processes_s)
        shares = (("broker", processes_s[0]), ("client", client_s))
        busy = [name for name, spent_s in shares if spent_s >= BUSY * self.elapsed_s]
        verdict = f": {' and '.join(busy)} limits" if busy else ""
        named = [*zip(self._names, processes_s, strict=True), ("client", client_s)]
        costs = ", ".join(
            f"{name} {spent_s / self.elapsed_s:.0%} {shown(spent_s / messages * 1e6)} µs" for name, spent_s in named
        )
        return f"CPU {costs}, others {max(others_s / self.elapsed_s, 0):.0%}{verdict}"


def _machine_s() -> float:
    return sum(psutil.cpu_times()[:3])  # user, nice and system, in this order on every system
