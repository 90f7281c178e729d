"""What the stores of many sets that are idle cost one broker: at the level of stores, without a broker."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bench.figures import Measurement
from bench.load_client import BenchError
from bench.scenario import Scenario
from bench.store import MB, disk_directory
from bench.store_filling import empty_resources
from bench.usage import Work, resident_bytes
from qpid_ha_broker.server.stores.fleet import StoreFleet
from qpid_ha_config.settings import StoreSettings

TICK_S: Final = 0.25
"""As a broker ticks."""
TICKS: Final = 40


class _Unused:
    """Who would hear how far a store is: nobody writes to it."""

    def persisted(self, local_lsn: int, number: int) -> None:
        """On disk up to there."""

    def store_writable(self, problem: str) -> None:
        """Raises BenchError when there is no room."""
        if problem:
            raise BenchError(problem)

    def store_failed(self, text: str) -> None:
        """Raises BenchError."""
        raise BenchError(text)


def measure_idle(scenario: Scenario) -> Iterator[Measurement]:
    """Make them, load them again, let them tick, and have some change their STATUS together."""
    with disk_directory() as directory:
        asyncio.run(life(directory, scenario.idle_stores, 1))
        yield from asyncio.run(life(directory, scenario.idle_stores, 2))


async def life(directory: Path, count: int, number: int) -> list[Measurement]:
    """A life of a broker with so many stores."""
    resources = [empty_resources() for _ in range(count)]
    gc.collect()
    descriptors, resident = open_descriptors(), resident_bytes(os.getpid())
    fleet = StoreFleet(directory, StoreSettings(), "bench")
    stores = [fleet.store(name) for name in ("default", *(f"set{number}" for number in range(1, count)))]
    with Work() as loading:
        fleet.load(
            [partial(store.recover, each.sets, apply_all=True) for store, each in zip(stores, resources, strict=True)]
        )
    for store in stores:
        store.start(_Unused())
    await asyncio.sleep(1.0)
    with Work() as ticking:
        for _ in range(TICKS):
            await asyncio.sleep(TICK_S)
            for store in stores:
                store.tick()
    share = 100 * ticking.processor_s / ticking.elapsed_s
    held = (resident_bytes(os.getpid()) - resident) / count
    kept = (open_descriptors() - descriptors) / count
    changing = stores[: max(1, count * 3 // 10)]
    with Work() as describing:
        changed = [asyncio.Event() for _ in changing]
        for store, event in zip(changing, changed, strict=True):
            store.describe(epoch=number)
            store.writer.run(lambda: None, event.set)
        for event in changed:
            await event.wait()
    with Work() as voting:
        for store in changing:
            store.note_vote(number, "bench", (number,))
        fleet.write_votes(changing)
    used = journal_bytes(directory)
    for store in stores:
        await store.close("")
    of = f"{count:,} idle stores"
    return [
        Measurement("store_sets_load", f"{of}: loaded", loading.elapsed_s, "s", ""),
        Measurement("store_sets_memory", f"{of}: memory of each", held / 1000, "kB", "without queues"),
        Measurement("store_sets_descriptors", f"{of}: descriptors of each", kept, "", ""),
        Measurement("store_sets_disk", f"{of}: disk space", used / MB, "MB", "of journals"),
        Measurement("store_sets_idle", f"{of}: processor", share, "%", "of a core, ticks and all"),
        Measurement("store_sets_status", f"{len(changing)} stores: STATUS written", describing.elapsed_s, "s", ""),
        Measurement("store_sets_votes", f"{len(changing)} stores: votes kept", voting.elapsed_s, "s", ""),
    ]


def journal_bytes(directory: Path) -> int:
    """What the journals of all sets take on disk."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*.log"))


def open_descriptors() -> int:
    """Of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
