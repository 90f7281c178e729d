"""`./dev soak --upgrade-from REV`: three brokers of an earlier commit, upgraded one by one under load, and back.

The load and its books are those of `./dev soak --sets` (`crossing_traffic`): whatever brokers of two releases say to
each other while they run beside each other, and whatever one reads that the other has written, shows in a book.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from bench.crossing_soak import CrossingSoak
from bench.crossing_trouble import CrossingTrouble
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster, Process
from qpid_ha_demo.stage import Stage

_PACKAGES: Final = ("agent", "broker", "client", "config", "kernel")
_HERE: Final = Path(__file__).parents[2]


def unpack(revision: str, directory: Path) -> Path:
    """The packages of a commit, below `directory`. Raises ClusterFailed, in the words of git."""
    archive = subprocess.run(
        ["git", "-C", str(_HERE), "archive", "--format=tar", revision], capture_output=True, check=False
    )
    if archive.returncode:
        raise ClusterFailed(f"git knows no commit {revision}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(directory, filter="data")
    return directory


class VersionedBroker(LocalBroker):
    """A broker and its agent, run from the packages below `root`."""

    root = _HERE

    def start_process(self, output: BinaryIO) -> Process:
        path = os.pathsep.join(str(self.root / package) for package in _PACKAGES)
        return subprocess.Popen(
            self.command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip


class VersionedCluster(LocalCluster):
    """Brokers whose version can be changed."""

    broker_kind = VersionedBroker


class UpgradeSoak(CrossingSoak):
    """One way and back."""

    broker_count = 3

    def __init__(self, stage: Stage, directory: Path, seed: int, revision: str) -> None:
        super().__init__(stage, directory, seed)
        self._revision = revision
        (directory / "earlier").mkdir()
        self._earlier = unpack(revision, directory / "earlier")

    @contextmanager
    def _cluster(self) -> Iterator[tuple[LocalCluster, None]]:
        settings = {"store.segment-size": "1MiB", "ha": {"clients": "proxy", "replica-check-interval": "2s"}}
        cluster = VersionedCluster(self._directory, self.broker_count, settings=settings, stores=self._stores)
        for broker in cluster.brokers:
            _change(broker, self._earlier)
        with cluster:
            yield cluster, None

    def _disturb(self, cluster: LocalCluster, trouble: CrossingTrouble, for_s: float) -> None:
        """Half of the time one way, half of it back; the primary of `default` comes last."""
        for root, version in ((_HERE, "this tree"), (self._earlier, self._revision)):
            primary = cluster.primary()
            for broker in sorted(cluster.brokers, key=lambda broker: broker is primary):
                self._restart(cluster, trouble, broker, root)
                self._stage.step(f"{broker.name} runs {version}")
                trouble.rest(for_s / (2 * self.broker_count))

    def _restart(self, cluster: LocalCluster, trouble: CrossingTrouble, broker: LocalBroker, root: Path) -> None:
        """As `qpid-ha upgrade` does: its sets leave it, it ends in order, starts anew, and has its replicas again."""
        with suppress(ControlFailure, ClusterFailed):  # what has not left it leaves it as it ends
            trouble.ask("brokers", action="drain", name=broker.name)
        broker.terminate()
        broker.wait()
        _change(broker, root)
        broker.start()
        cluster.wait_whole()
        trouble.undrain(broker)
        self._wait_whole(cluster, trouble)


def _change(broker: LocalBroker, root: Path) -> None:
    if not isinstance(broker, VersionedBroker):
        raise TypeError(f"the version of {broker.name} cannot be changed")
    broker.root = root
