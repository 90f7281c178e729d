"""The one look at all figures that charts show, every five seconds, and what is kept of it."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from qpid_ha_broker.metrics.broker_charts import BROKER_FIGURES, ChartRequest, MeanSince, MessageFlow
from qpid_ha_broker.metrics.figure_history import NOTHING, STEP_S, FigureHistory
from qpid_ha_broker.metrics.histogram import Histogram
from qpid_ha_broker.metrics.queue_listing import PlacedIn
from qpid_ha_broker.metrics.queue_trends import CHARTS_MAX, QueueTrends
from qpid_ha_broker.model.queues.queue_sums import sum_queues
from qpid_ha_broker.server.http.state_news import LOADING_LOOK_S
from qpid_ha_broker.server.runtime.daemon_threads import DAEMON_THREADS
from qpid_ha_broker.server.runtime.descriptors import Descriptors, open_descriptors
from qpid_ha_broker.server.runtime.slices import in_slices

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

PROCESS_LIMIT_S: Final = 1.0
"""So long a look waits for what the system says of the process and its disk; then it goes on without."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class ProcessFigures(NamedTuple):
    """What the system says."""

    memory: float = NOTHING
    descriptors: float = NOTHING
    disk_free: float = NOTHING
    disk: float = NOTHING
    """Bytes of the file system where the data are."""


class QueueNotHere(ValueError):
    """The queue that a chart was asked of is not here."""


class FigureLooks:
    """The promise: however many queues there are, no message waits for a look longer than SLICE_S, and a disk that
    hangs costs a look PROCESS_LIMIT_S and its own figures."""

    def __init__(self, broker: Broker, confirms: Histogram) -> None:
        """`confirms`: how long publishers waited, see `MetricsSource`."""
        self._broker = broker
        self.when_loaded: Callable[[], None] = lambda: None
        """Called once the broker has its store, before the first look."""
        self.trends = QueueTrends()
        self._history = FigureHistory(BROKER_FIGURES)
        self._flow = MessageFlow()
        self._confirms = MeanSince(confirms)
        self._process = ProcessFigures()
        self._process_look: asyncio.Future[ProcessFigures] | None = None
        self._began_s = time.monotonic() - STEP_S / 2  # so that looks come in the midst of a step, and none has two
        self._looked_s = 0.0
        self._processor_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look. The broker may load its store yet."""
        self._task = asyncio.get_running_loop().create_task(self._look_forever())

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def queues(self) -> Iterator[PlacedIn]:
        """All queues of which this broker has a replica."""
        for name, hosted in list(self._broker.container.sets.items()):
            for queue in list(hosted.resources.catalog.queues.values()):
                yield name, queue

    # --- looking

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _look_forever(self) -> None:
        while not self._broker.is_loaded:  # noqa: ASYNC110  # a poll of what has no event, over once it is loaded
            await asyncio.sleep(LOADING_LOOK_S)
        self.when_loaded()
        while True:
            await self._look()
            now_s = self._now_s()
            await asyncio.sleep((now_s // STEP_S + 1.5) * STEP_S - now_s)

    async def _look(self) -> None:
        now_s, processor_s = self._now_s(), sum(os.times()[:2])
        elapsed_s = now_s - self._looked_s if self._looked_s else 0.0
        busy = (processor_s - self._processor_s) / elapsed_s if elapsed_s else NOTHING
        self._looked_s, self._processor_s = now_s, processor_s
        await in_slices(self.trends.look((queue for _, queue in self.queues()), now_s))
        rates, depth = await self._messages(elapsed_s)
        self._process = process = await self._look_at_process()
        container = self._broker.container
        self._history.note(
            now_s,
            (
                *rates, depth, self._confirms.look(), busy, process.memory, container.memory_bytes, process.disk_free,
                process.descriptors, self._broker.connection_count,
            ),
        )  # fmt: skip

    async def _messages(self, elapsed_s: float) -> tuple[tuple[float, float], float]:
        """Of the sets that are led here: how fast messages come and go, and how many there are."""
        totals: dict[Hashable, tuple[int, int]] = {}
        depth = 0
        for hosted in [hosted for hosted in self._broker.container.sets.values() if not hosted.read_only]:
            catalog = hosted.resources.catalog
            # First what is gone: a queue that is deleted meanwhile is not to be counted twice.
            gone = catalog.enqueued_gone, catalog.dequeued_gone
            sums = await in_slices(sum_queues(list(catalog.queues.values())))
            totals[hosted] = gone[0] + sums.enqueued, gone[1] + sums.dequeued
            depth += sums.messages
        rates = self._flow.look(totals, elapsed_s)
        return (rates, depth) if totals else ((NOTHING, NOTHING), NOTHING)

    async def _look_at_process(self) -> ProcessFigures:
        if self._process_look is None:
            settings = self._broker.current()
            data_dir = settings.data_dir if settings.has_store else None
            loop = asyncio.get_running_loop()
            self._process_look = loop.run_in_executor(DAEMON_THREADS, process_figures, data_dir)
        done, _ = await asyncio.wait({self._process_look}, timeout=PROCESS_LIMIT_S)
        if not done:
            return ProcessFigures()
        figures, self._process_look = self._process_look.result(), None
        return figures

    # --- what charts show

    async def chart(self, asked: ChartRequest) -> dict[str, object]:
        """`figures`: the numbers of each; `newest_ms`: when the last one of them begins, since the Unix epoch;
        `step_s`: between two. Of the broker also `limits`: what a figure is out of, where that is known. Of a queue
        without a chart `problem` says why. Raises QueueNotHere."""
        now_s = self._now_s()
        history: FigureHistory | None = self._history
        if asked.queue is not None:
            queue = next((queue for _, queue in self.queues() if queue.name == asked.queue), None)
            if queue is None:
                raise QueueNotHere(f"this broker has no replica of a queue {asked.queue[:80]!r}")
            history = self.trends.asked_for(queue, now_s)
        answer: dict[str, object] = {"broker": self._broker.current().name, "step_s": asked.span.step_s}
        if history is None:
            problem = f"it has none: {CHARTS_MAX} queues have charts, and all of them were used in the last ten minutes"
            return {**answer, "newest_ms": None, "figures": {}, "problem": problem}
        newest_s = history.newest_s(asked.span)
        newest_ms = None if newest_s is None else round((time.time() - (now_s - newest_s)) * 1000)
        answer |= {"newest_ms": newest_ms, "figures": await in_slices(history.series(asked.span))}
        return answer if asked.queue is not None else {**answer, "limits": self._limits()}

    def _limits(self) -> Mapping[str, float]:
        limits: dict[str, float] = {
            "message_memory": self._broker.current().memory_limit_bytes,
            "descriptors": Descriptors.current().limit,
        }
        return limits if math.isnan(self._process.disk) else {**limits, "disk_free": self._process.disk}


def process_figures(data_dir: Path | None) -> ProcessFigures:
    """Reads files, and asks a disk that may hang: not on the loop. Without a store there is no disk.

    Source: proc(5), statvfs(3).
    """
    figures = ProcessFigures()
    try:
        resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        figures = figures._replace(memory=resident * _PAGE_BYTES, descriptors=open_descriptors())
        room = None if data_dir is None else os.statvfs(data_dir)
    except OSError:  # there is no descriptor left, say, or no disk: whoever needs it says so
        return figures
    if room is None:
        return figures
    return figures._replace(disk_free=room.f_bavail * room.f_frsize, disk=room.f_blocks * room.f_frsize)
