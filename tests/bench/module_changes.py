"""How many functions run, and how often the module changes, for one confirmed message: how far a reader has to go.

Counted and not timed, so that it is the same on each machine: two brokers with stores in one process, a client in
another thread, one durable message at a time. What the brokers do by the clock is not counted: the median of several
messages is shown, and most of them see no tick.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import proton
from proton.utils import BlockingConnection

from bench.figures import Measurement
from bench.scenario import Scenario
from cluster_in_process import InProcessCluster

MESSAGES: Final = 41
PACKAGE: Final = "qpid_ha_broker"


class CallCounter:
    """Counts calls of the broker's functions, and changes of the module from one to the next, thread by thread."""

    def __init__(self) -> None:
        self.calls = self.changes = 0
        self.modules: set[str] = set()
        self._module_of: dict[CodeType, str] = {}
        self._last = threading.local()

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """For `sys.setprofile`."""
        if event != "call":
            return
        code = frame.f_code
        module = self._module_of.get(code)
        if module is None:
            name = str(frame.f_globals.get("__name__", ""))
            module = self._module_of[code] = name if name.startswith(PACKAGE) else ""
        if not module:
            return
        self.calls += 1
        self.modules.add(module)
        if getattr(self._last, "module", "") != module:
            self.changes += 1
            self._last.module = module

    def begin(self) -> None:
        """Forget what was counted."""
        self.calls = self.changes = 0
        self.modules.clear()


def measure_module_changes(_: Scenario) -> Iterator[Measurement]:
    """One durable message, confirmed by a primary and its backup, both with a store; counted in both brokers."""
    counter = CallCounter()
    with tempfile.TemporaryDirectory() as directory:
        threading.setprofile(counter.profile)
        try:
            counts = asyncio.run(_count(counter, Path(directory)))
        finally:
            threading.setprofile(None)
            sys.setprofile(None)
    calls, changes, modules = (int(statistics.median(column)) for column in zip(*counts, strict=True))
    yield Measurement("module_changes", "one confirmed message: changes of the module", changes, "changes")
    yield Measurement("module_calls", "  calls of functions", calls, "calls")
    yield Measurement("modules", "  modules", modules, "modules")


async def _count(counter: CallCounter, directory: Path) -> list[tuple[int, int, int]]:
    names = ("a", "b")
    cluster = InProcessCluster(directory, *names)
    for name in names:
        await cluster.start(name, data_dir=str(directory / name))
    try:
        await cluster.form("a")
        sys.setprofile(counter.profile)
        return await asyncio.to_thread(_publish, cluster.url("a"), counter)
    finally:
        sys.setprofile(None)
        for name in names:
            await cluster.stop(name)


def _publish(url: str, counter: CallCounter) -> list[tuple[int, int, int]]:
    sys.setprofile(None)  # the client is none of it
    connection = BlockingConnection(url, timeout=10)
    sender = connection.create_sender("orders")
    counts = []
    for number in range(MESSAGES):
        counter.begin()
        sender.send(proton.Message(body=str(number), durable=True))
        counts.append((counter.calls, counter.changes, len(counter.modules)))
    connection.close()
    return counts
