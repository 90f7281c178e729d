"""What the stores of many sets cost one broker: ten that are written to against one, and a thousand that are idle.

At the level of stores, without a broker: batches as turns of a loop make them, and what is waited for is `persisted`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.figures import Measurement
from bench.load_client import BenchError
from bench.scenario import Scenario
from bench.store import MB, disk_directory, sync_times
from bench.store_filling import empty_resources
from bench.usage import resident_bytes
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.model.log import LogBatch
from qpid_ha_broker.server.stores.fleet import StoreFleet
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.server.stores.writer import StoreWriter
from qpid_ha_config.settings import StoreSettings

SETS: Final = 10
TURN_MESSAGES: Final = 10
"""Of one set, in one turn."""
PAYLOAD: Final = b"x" * 100
WINDOW: Final = 10_000
"""Messages that are not confirmed, of all sets together."""
ROUNDS: Final = 5
TICK_S: Final = 0.25
"""As a broker ticks."""
TICKS: Final = 40


class Confirmed:
    """Who writes to a store, and hears how far it is."""

    def __init__(self, store: Store, news: asyncio.Event) -> None:
        self.store = store
        self.last_lsn = self.persisted_lsn = 0
        self._news = news

    def write(self) -> None:
        """A turn's batch."""
        first, self.last_lsn = self.last_lsn + 1, self.last_lsn + TURN_MESSAGES
        event = ev.Enqueued((1,), PAYLOAD, True, 4, 0, "")
        data = b"".join([encode(lsn, event) for lsn in range(first, self.last_lsn + 1)])
        if self.store.persist(LogBatch(first, self.last_lsn, data), self.persisted_lsn, self.last_lsn):
            raise BenchError("durable messages were not waited for")

    def persisted(self, _local_lsn: int, number: int) -> None:
        """On disk up to there."""
        self.persisted_lsn = max(self.persisted_lsn, number)
        self._news.set()

    def store_failed(self, text: str) -> None:
        """Raises BenchError."""
        raise BenchError(text)


def set_names(count: int) -> list[str]:
    """`default` is one of them."""
    return ["default", *(f"set{number}" for number in range(1, count))]


async def written(directory: Path, sets: int, messages: int) -> tuple[float, float]:
    """Messages a second, and microseconds of processor time for each, with that many sets in turn."""
    writer, news = StoreWriter(), asyncio.Event()
    made = []
    for name in set_names(sets):
        store = Store(directory, name, StoreSettings(), "bench", writer)
        store.recover(empty_resources().sets, apply_all=True)
        made.append(Confirmed(store, news))
        store.start(made[-1])
    began, worked = time.perf_counter(), time.process_time()
    for number in range(messages // TURN_MESSAGES):
        made[number % sets].write()
        await asyncio.sleep(0)
        while sum(each.last_lsn - each.persisted_lsn for each in made) > WINDOW:
            news.clear()
            await news.wait()
    while any(each.persisted_lsn < each.last_lsn for each in made):
        news.clear()
        await news.wait()
    elapsed_s, worked_s = time.perf_counter() - began, time.process_time() - worked
    for each in made:
        await each.store.close("")
    return messages / elapsed_s, worked_s / messages * 1e6


def measure_sets(scenario: Scenario) -> Iterator[Measurement]:
    """One set and ten, again and again, because a machine has its moods."""
    one: list[tuple[float, float]] = []
    ten: list[tuple[float, float]] = []
    with disk_directory() as directory:
        syncs = sync_times(directory)
    for _ in range(ROUNDS):
        for sets, results in ((1, one), (SETS, ten)):
            with disk_directory() as directory:
                results.append(asyncio.run(written(directory, sets, scenario.messages)))
    rates = [median(rate for rate, _ in results) for results in (one, ten)]
    costs = [median(cost for _, cost in results) for results in (one, ten)]
    note = f"{costs[1]:.1f} us of a processor for each, with one set {costs[0]:.1f}; one set {rates[0]:,.0f}/s; {syncs}"
    label = f"durable, stores alone, {SETS} sets in turn"
    yield Measurement("store_sets_rate", label, rates[1], "/s", note)
    yield Measurement("store_sets_ratio", f"{label}, of one set's rate", 100 * rates[1] / rates[0], "%", "")


# --- a thousand idle ones


def measure_idle(scenario: Scenario) -> Iterator[Measurement]:
    """Make them, load them again, let them tick, and have some change their STATUS together."""
    with disk_directory() as directory:
        yield from asyncio.run(idle(directory, scenario.idle_stores))


async def idle(directory: Path, count: int) -> list[Measurement]:
    """With that many sets."""
    await life(directory, count, 1)
    return await life(directory, count, 2)


async def life(directory: Path, count: int, number: int) -> list[Measurement]:
    """A life of a broker with so many stores."""
    resources = [empty_resources() for _ in range(count)]
    gc.collect()
    descriptors, resident = open_descriptors(), resident_bytes(os.getpid())
    fleet = StoreFleet(directory, StoreSettings(), "bench")
    stores = [fleet.store(name) for name in set_names(count)]
    began = time.perf_counter()
    fleet.load(
        [partial(store.recover, each.sets, apply_all=True) for store, each in zip(stores, resources, strict=True)]
    )
    loaded_s = time.perf_counter() - began
    news = asyncio.Event()
    for store in stores:
        store.start(Confirmed(store, news))
    await asyncio.sleep(1.0)
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(TICKS):
        await asyncio.sleep(TICK_S)
        for store in stores:
            store.tick()
    share = 100 * (time.process_time() - worked) / (time.perf_counter() - began)
    held = (resident_bytes(os.getpid()) - resident) / count
    kept = (open_descriptors() - descriptors) / count
    changing = stores[: max(1, count * 3 // 10)]
    began = time.perf_counter()
    changed = [asyncio.Event() for _ in changing]
    for store, event in zip(changing, changed, strict=True):
        store.describe(epoch=number)
        store.writer.run(lambda: None, event.set)
    for event in changed:
        await event.wait()
    described_s = time.perf_counter() - began
    began = time.perf_counter()
    for store in changing:
        store.note_vote(number, "bench", (number,))
    fleet.write_votes(changing)
    voted_s = time.perf_counter() - began
    used = journal_bytes(directory)
    for store in stores:
        await store.close("")
    of = f"{count:,} idle stores"
    return [
        Measurement("store_sets_load", f"{of}: loaded", loaded_s, "s", ""),
        Measurement("store_sets_memory", f"{of}: memory of each", held / 1000, "kB", "without queues"),
        Measurement("store_sets_descriptors", f"{of}: descriptors of each", kept, "", ""),
        Measurement("store_sets_disk", f"{of}: disk space", used / MB, "MB", "of journals"),
        Measurement("store_sets_idle", f"{of}: processor", share, "%", "of a core, ticks and all"),
        Measurement("store_sets_status", f"{len(changing)} stores: STATUS written", described_s, "s", ""),
        Measurement("store_sets_votes", f"{len(changing)} stores: votes kept", voted_s, "s", ""),
    ]


def journal_bytes(directory: Path) -> int:
    """What the journals of all sets take on disk."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*.log"))


def open_descriptors() -> int:
    """Of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
