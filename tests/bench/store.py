"""What a store costs while brokers run: durable messages, on disk before anybody is told that they are safe.

Stores lie below the directory for temporary files: set TMPDIR to measure another disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.failover import first_confirmed
from bench.figures import Measurement
from bench.latency import latencies_of_cluster, percentile, run_pace
from bench.load_client import BenchError
from bench.replication import check_everywhere, fresh_cluster, port_of, primary_port, usage_of
from bench.scenario import Scenario, fresh_broker
from bench.store_filling import fill_snapshot
from bench.throughput import SIZES, check_depth, fill, message, rate, send_all, send_and_take, take_all
from bench.usage import Usage, processor_s, resident_bytes
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.survey import survey
from running_cluster import RunningCluster
from total_crash import kill_brokers

SYNCS = 300
SYNCED_BYTES = 4096
LOAD_TIMEOUT_S = 300.0
MB = 1_000_000
_ROOM_FACTOR = 3
"""A disk should have so many times what a measurement writes."""


@contextmanager
def disk_directory() -> Iterator[Path]:
    """Somewhere to keep stores, and gone afterwards."""
    with TemporaryDirectory(prefix="qpid-ha-bench-store-") as directory:
        yield Path(directory)


def check_kept(store: Path, events: int) -> None:
    """Raises BenchError when there is less in a store than was confirmed: then it was no store that was measured."""
    try:
        found = survey(LocalDisk(store / "default"))
    except (StoreError, OSError) as error:
        raise BenchError(f"the store in {store} cannot be read: {error}") from error
    last_lsn = found.segments[-1].last_lsn if found.segments else 0
    if last_lsn < events:
        raise BenchError(f"the store in {store} ends at LSN {last_lsn}, and should have at least {events} events")


class SyncTimes(NamedTuple):
    """What the disk itself takes, in ms."""

    p50: float
    p99: float

    def __str__(self) -> str:
        return f"fdatasync of 4 KiB takes {self.p50:.2g} ms (p99 {self.p99:.2g} ms) when nothing else runs"


def sync_times(directory: Path) -> SyncTimes:
    """Write 4 KiB into a file that has its room, and sync it, again and again."""
    path, times = directory / "sync-test", list[float]()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SYNCS * SYNCED_BYTES)
        os.fsync(descriptor)
        for number in range(SYNCS):
            os.pwrite(descriptor, bytes(SYNCED_BYTES), number * SYNCED_BYTES)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            times.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return SyncTimes(percentile(times, 0.5), percentile(times, 0.99))


# --- in and out again


def measure_single(scenario: Scenario) -> Iterator[Measurement]:
    """In, then out again, one connection at a time; confirmed when it is on disk."""
    count = scenario.messages
    for size in SIZES:
        with disk_directory() as directory:
            with fresh_broker({"data-dir": str(directory)}) as broker:
                names = [f"durable-{way}-{size}" for way in ("enqueue", "dequeue")]
                usage = send_all(scenario, broker.port, Usage(broker.pid), names[0], size, durable=True)
                check_depth(broker, count)
                yield rate(f"durable_single_enqueue_{size}", f"durable enqueue, one broker, {size} B", count, usage)
                usage = take_all(scenario, broker.port, Usage(broker.pid), names[1])
                check_depth(broker, 0)
            check_kept(directory, count)
        yield rate(f"durable_single_dequeue_{size}", f"durable dequeue, one broker, {size} B", count, usage)


def measure_cluster(scenario: Scenario) -> Iterator[Measurement]:
    """The same with a primary and two backups, each with a store: confirmed when it is on all three disks."""
    count = scenario.messages
    for size in SIZES:
        with disk_directory() as stores:
            with fresh_cluster(stores=stores) as cluster:
                names = [f"durable-cluster-{way}-{size}" for way in ("enqueue", "dequeue")]
                usage = send_all(scenario, primary_port(cluster), usage_of(cluster), names[0], size, durable=True)
                check_everywhere(cluster, count)
                yield rate(f"durable_enqueue_{size}", f"durable enqueue, 3 brokers, {size} B", count, usage)
                usage = take_all(scenario, primary_port(cluster), usage_of(cluster), names[1])
                check_everywhere(cluster, 0)
            for broker in cluster.brokers:
                check_kept(stores / broker.name, count)
        yield rate(f"durable_dequeue_{size}", f"durable dequeue, 3 brokers, {size} B", count, usage)


def measure_latency(scenario: Scenario) -> Iterator[Measurement]:
    """One publisher, one consumer, 1,000 a second, three brokers with stores."""
    with disk_directory() as stores:
        syncs = sync_times(stores)
        with fresh_cluster(stores=stores) as cluster:
            usage = usage_of(cluster)
            pace = run_pace(scenario, primary_port(cluster), usage, durable=True)
        check_kept(stores / cluster.brokers[0].name, len(pace.late))
    yield from latencies_of_cluster("durable_latency", "durable, 3 brokers", pace, usage, f"{syncs}; ")


# --- folding while it works


def paced_rate(scenario: Scenario, consolidate_at: str) -> tuple[float, int]:
    """Messages a second in and out at once, 1 KiB, on one broker; and how many snapshots were made meanwhile."""
    count = scenario.folding_messages
    settings = {"store.segment-size": "16MiB", "store.consolidate-at": consolidate_at}
    with disk_directory() as directory, fresh_broker({"data-dir": str(directory), **settings}) as broker:
        usage = send_and_take(broker, message(1024, durable=True), count)
        return count / usage.elapsed_s, len(list((directory / "default" / "snapshots").glob("*.snap")))


def measure_folding_beside(scenario: Scenario) -> Iterator[Measurement]:
    """The same load with the journal left alone, folded again and again, and left alone."""
    before, _ = paced_rate(scenario, "1TiB")
    beside, snapshots = paced_rate(scenario, "256MiB")
    after, _ = paced_rate(scenario, "1TiB")
    without = (before + after) / 2
    folded = "folded" if snapshots else "NEVER FOLDED: too few messages"
    note = f"{before:,.0f}/s before and {after:,.0f}/s after without, {beside:,.0f}/s beside it; {folded}"
    label = "what consolidation takes from a publisher and a consumer, 1 KiB"
    yield Measurement("folding_cost", label, 100 * (1 - beside / without), "%", note)


# --- starts


def check_room(directory: Path, wanted: int) -> None:
    """Raises BenchError when the disk is too small for what is to be measured."""
    free = LocalDisk(directory).free_bytes()
    if free < _ROOM_FACTOR * wanted:
        raise BenchError(
            f"{directory} has room for {free / MB:,.0f} MB, and {_ROOM_FACTOR * wanted / MB:,.0f} are wanted"
        )


def measure_start(scenario: Scenario) -> Iterator[Measurement]:
    """A broker whose store has very many messages of 100 B, in a snapshot, until a publisher is confirmed."""
    count = scenario.queued_messages
    with disk_directory() as directory:
        check_room(directory, count * 200)
        fill_snapshot(directory / "default", count)
        began_s = time.monotonic()
        with fresh_broker({"data-dir": str(directory)}, start_timeout_s=LOAD_TIMEOUT_S) as broker:
            first_confirmed([broker.port])
            elapsed_s = time.monotonic() - began_s
            check_depth(broker, count + 1)
            resident, worked_s = resident_bytes(broker.pid), processor_s(broker.pid)
    note = f"{worked_s:.1f} s at work; resident {resident / MB:,.0f} MB"
    yield Measurement("durable_start", f"start with {count:,} queued, to first confirmed publish", elapsed_s, "s", note)


def measure_crash(scenario: Scenario) -> Iterator[Measurement]:
    """All three killed with many messages queued: their agents, too; or only the brokers, which the agents restart."""
    count = scenario.crashed_messages
    with disk_directory() as stores, fresh_cluster(agents=True, stores=stores) as cluster:
        fill(primary_port(cluster), count, durable=True)
        check_everywhere(cluster, count)
        ports = [port_of(cluster, broker) for broker in cluster.brokers]
        began_s = kill_brokers(cluster)
        yield crashed("total_crash_brokers", "kill -9 of all brokers", first_confirmed(ports) - began_s, cluster, count)
        cluster.wait_whole()
        cluster.crash()
        began_s = time.monotonic()
        for broker in cluster.brokers:
            broker.start()
        yield crashed("total_crash", "crash of all machines, restart", first_confirmed(ports) - began_s, cluster, count)


def crashed(key: str, label: str, elapsed_s: float, cluster: RunningCluster, count: int) -> Measurement:
    """Raises BenchError when not all messages are there again."""
    found = cluster.the_primary().ask("query")["messages"]
    if found < count:
        raise BenchError(f"{found} messages are there, and {count} were confirmed before the crash")
    return Measurement(key, f"{label} to first confirmed publish, {count:,} queued", elapsed_s, "s")
