"""What is done with the files of a store while no broker has it: they are read back, and folded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.figures import Measurement
from bench.load_client import BenchError
from bench.scenario import Scenario
from bench.store import MB, disk_directory
from bench.store_filling import empty_resources, fill_journal, fill_snapshot
from bench.usage import Work, tree_processor_s
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.layout import segment_numbers, segment_path
from qpid_ha_broker.store.recovery import Recovered, recover

SMALL, LARGE = 100, 1024


def recovered(fill: Callable[[Path], object]) -> tuple[Work, Recovered]:
    """Fill a store, and read it back: how long that took, and what was found."""
    with disk_directory() as directory:
        fill(directory / "default")
        resources = empty_resources()
        with Work() as work:
            found = recover(LocalDisk(directory / "default"), resources.sets, apply_all=True)
        return work, found


def measure_recovery(scenario: Scenario) -> Iterator[Measurement]:
    """Small messages from a snapshot; events of a journal, half of them messages that went again."""
    count = scenario.recovered_events
    work, found = recovered(lambda directory: fill_snapshot(directory, count))
    check(found, count)
    yield speed("recover_snapshot", f"a snapshot, {SMALL} B", count, work, found)
    work, found = recovered(lambda directory: fill_journal(directory, count))
    check(found, count)
    yield speed("recover_journal", "the journal, messages that stay", count, work, found)
    work, found = recovered(lambda directory: fill_journal(directory, count, consumed=0.9))
    yield speed("recover_traffic", "the journal, most were consumed", count, work, found)


def speed(key: str, what: str, count: int, work: Work, found: Recovered) -> Measurement:
    """Events a second."""
    note = f"{work}; {found.bytes_read / MB:,.0f} MB, in the page cache"
    return Measurement(key, f"recovery from {what}", count / work.elapsed_s, "/s", note)


def check(found: Recovered, count: int) -> None:
    """Raises BenchError."""
    if found.messages != count or found.notes:
        raise BenchError(f"{found.messages} of {count} messages were recovered; {found.notes}")


def measure_folding(scenario: Scenario) -> Iterator[Measurement]:
    """A journal, half of whose messages were consumed, into a snapshot, by the process that the broker starts."""
    for size in (SMALL, LARGE):
        with disk_directory() as directory:
            store = directory / "default"
            events = 3 * scenario.folded_mb * MB // (2 * (size + 60) + 40)  # two messages in for each that goes
            fill_journal(store, events, size, consumed=0.5, segment_bytes=scenario.folded_mb * MB // 8)
            disk = LocalDisk(store)
            upto = segment_numbers(disk)[-1]
            folded = sum((store / segment_path(number)).stat().st_size for number in segment_numbers(disk)[:-1])
            work = fold(store, upto)
            snapshots = list((store / "snapshots").glob("*.snap"))
            if not snapshots:
                raise BenchError("the consolidator wrote no snapshot")
            note = f"{work}; {folded / MB:,.0f} MB into {snapshots[0].stat().st_size / MB:,.0f} MB"
        key = "fold" if size == LARGE else "fold_small"
        yield Measurement(key, f"consolidation, messages of {size} B", folded / MB / work.elapsed_s, "MB/s", note)


def fold(store: Path, upto: int) -> Work:
    """Run the consolidator as the broker does. Raises BenchError."""
    command = [sys.executable, "-m", "qpid_ha_broker.store.consolidator", str(store), "--upto", str(upto)]
    with Work(tree_processor_s) as work:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
    return work
