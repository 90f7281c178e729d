"""A disk is full: of the primary, of a backup, of a broker that leads a resource set; and how long publishers wait.

Three real brokers under `qpid-ha-agent run`, each with a file system of its own for its store. That takes the right to
mount one: as root, or in `unshare --map-root-user --mount`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.failover import calm_primary, others_than
from bench.figures import Measurement
from bench.load_client import BenchError, LoadConnection, Publisher
from bench.replication import fresh_cluster, port_of
from bench.scenario import Scenario
from bench.set_failover import place, primaries, queue_of
from bench.throughput import QUEUE, message, publish
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

BROKERS: Final = 3
ROUNDS: Final = 3
DISK_MIB: Final = 24
SETTINGS: Final = {"store": {"segment-size": "256KiB"}}
"""The room of a file is taken when it is made: with small ones a full disk shows soon."""
BALLAST: Final = "ballast"
BODY_BYTES: Final = 20_000
GIVE_UP_S: Final = 30.0
PAUSE_S: Final = 0.005
TRY_S: Final = 0.5
"""For one confirmation of a broker that answers; one whose disk is full gives none."""
WHOLE_TIMEOUT_S: Final = 60.0


@contextmanager
def small_disks() -> Iterator[Path]:
    """A directory with a file system for each broker. Raises BenchError without the right to mount one."""
    with TemporaryDirectory(prefix="qpid-ha-bench-disks-") as directory, ExitStack() as stack:
        stores = Path(directory)
        for number in range(1, BROKERS + 1):
            disk = stores / f"broker{number}"
            disk.mkdir(mode=0o700)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0700", "none", str(disk)]
            mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
            if mounted.returncode:
                raise BenchError(f"{mounted.stderr.strip()}: run it in `unshare --map-root-user --mount`")
            stack.callback(subprocess.run, ["umount", "-l", str(disk)], check=False)
        yield stores


@contextmanager
def full(disk: Path) -> Iterator[float]:
    """There is no room on that disk meanwhile; since when."""
    ballast = disk / BALLAST
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
    try:
        yield time.monotonic()
    finally:
        ballast.unlink()


class SteadyPublisher:
    """One durable message after the other to a queue, at whichever broker confirms them."""

    def __init__(self, ports: list[int], queue: str) -> None:
        self._ports, self._queue = ports, queue
        self._connection: LoadConnection | None = None
        self._publisher: Publisher | None = None
        self.port = 0
        """Of the broker that confirmed last."""

    def confirm_one(self) -> bool:
        """Whether a message was confirmed within a moment; if not, the next broker is tried the next time."""
        try:
            if self._publisher is None or self._connection is None:
                self._ports.append(self._ports.pop(0))
                self.port = self._ports[-1]
                self._connection = LoadConnection(self.port)
                self._connection.socket.settimeout(TRY_S)
                self._publisher = Publisher(self._connection, self._queue)
            publish(self._publisher, message(BODY_BYTES, durable=True), 1)
        except (BenchError, OSError):
            self.close()
            return False
        return True

    def wait_confirmed(self, since_s: float) -> float | None:
        """Until `since_s` one is confirmed; None: not in time."""
        while time.monotonic() - since_s < GIVE_UP_S:
            if self.confirm_one():
                return time.monotonic() - since_s
            time.sleep(PAUSE_S)
        return None

    def close(self) -> None:
        """Come anew the next time."""
        if self._connection is not None:
            with suppress(BenchError, OSError):
                self._connection.socket.close()
        self._connection = self._publisher = None


def exhaust(publisher: SteadyPublisher) -> float:
    """Publish until nothing is confirmed any more, because the disk's last room is taken; since when."""
    last_s = time.monotonic()
    began_s = last_s
    while publisher.confirm_one():
        last_s = time.monotonic()
        if last_s - began_s > GIVE_UP_S:
            raise BenchError("the disk is full, and messages are confirmed all the same")
    return last_s


def measure_full_disks(scenario: Scenario) -> Iterator[Measurement]:
    """Each a few times."""
    with small_disks() as stores, fresh_cluster(agents=True, stores=stores, settings=SETTINGS) as cluster:
        for _ in range(ROUNDS):
            yield _of_primary(cluster, stores)
        for _ in range(ROUNDS):
            yield _of_backup(cluster, stores)
    with small_disks() as stores, fresh_cluster(agents=True, stores=stores, settings=SETTINGS) as cluster:
        place(cluster, BROKERS)
        for _ in range(ROUNDS):
            yield _of_sets_leader(cluster, stores)


def _ports(cluster: RunningCluster) -> list[int]:
    return [port_of(cluster, broker) for broker in cluster.brokers]


def _of_primary(cluster: RunningCluster, stores: Path) -> Measurement:
    old = calm_primary(cluster)
    publisher = SteadyPublisher([port_of(cluster, old)], QUEUE)
    publisher.confirm_one()
    with full(stores / old.name):
        since_s = exhaust(publisher)
        publisher.close()
        anybody = SteadyPublisher([port_of(cluster, broker) for broker in others_than(cluster, old)], QUEUE)
        elapsed_s = anybody.wait_confirmed(since_s)
        note = "by itself"
        if elapsed_s is None:
            asked_s = time.monotonic()
            old.ask("switchover")
            by_hand_s = anybody.wait_confirmed(asked_s)
            elapsed_s = GIVE_UP_S
            note = f"nobody took over in {GIVE_UP_S:g} s; by hand that took {by_hand_s or GIVE_UP_S:.1f} s"
        anybody.close()
    cluster.wait_whole(WHOLE_TIMEOUT_S)
    return Measurement("full_disk_primary", "disk of the primary full to first confirmed publish", elapsed_s, "s", note)


def _of_backup(cluster: RunningCluster, stores: Path) -> Measurement:
    primary = calm_primary(cluster)
    backup = others_than(cluster, primary)[0]
    publisher = SteadyPublisher([port_of(cluster, primary)], QUEUE)
    longest_s, last_s = 0.0, time.monotonic()
    with full(stores / backup.name) as since_s:
        while time.monotonic() - since_s < GIVE_UP_S / 2:
            if publisher.confirm_one():
                longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
                if (stores / backup.name).exists() and backup.name not in _members(primary):
                    break
            time.sleep(PAUSE_S)
    publisher.close()
    cluster.wait_whole(WHOLE_TIMEOUT_S)
    label = "disk of a backup full: the longest pause of a publisher"
    return Measurement("full_disk_backup", label, longest_s, "s", "until it was waited for no more")


def _members(primary: LocalBroker) -> list[str]:
    members = primary.status()["members"]
    return [str(name) for name in members] if isinstance(members, list) else []


def _of_sets_leader(cluster: RunningCluster, stores: Path) -> Measurement:
    controller = calm_primary(cluster)
    led = {primary: name for name, primary in primaries(cluster).items()}
    old = next(broker for broker in others_than(cluster, controller) if broker.name in led)
    publisher = SteadyPublisher([port_of(cluster, old)], queue_of(led[old.name]))
    publisher.confirm_one()
    with full(stores / old.name):
        since_s = exhaust(publisher)
        publisher.close()
        anybody = SteadyPublisher(
            [port_of(cluster, broker) for broker in others_than(cluster, old)], queue_of(led[old.name])
        )
        elapsed_s = anybody.wait_confirmed(since_s)
        anybody.close()
    cluster.wait_whole(WHOLE_TIMEOUT_S)
    note = "by itself" if elapsed_s is not None else f"not in {GIVE_UP_S:g} s"
    label = "disk of a set's leader full to first confirmed publish"
    return Measurement("full_disk_set", label, elapsed_s or GIVE_UP_S, "s", note)
