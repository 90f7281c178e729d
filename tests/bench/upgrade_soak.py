"""`./dev soak --upgrade-from REV`: three brokers of an earlier commit are upgraded one by one under load, go back, and
are upgraded again.

The load and its books are those of `./dev soak --sets` (`crossing_traffic`): whatever brokers of two releases say to
each other while they run beside each other, and whatever one reads that the other has written, shows in a book.
Besides:

- what a consumer says of messages (`modified` with annotations) is kept while all brokers are those of this tree
- an operator changes a setting of the cluster and adds a user, at a broker of this tree: refused with the reason while
  one of the earlier commit is there that cannot read that, and done, at all brokers, in the end. A cluster that has
  these has no way back, so they come last
- at no step is any producer without a confirmation for longer than a switchover may take

On the way back each broker begins without its store, as the runbook says: the older one need not be able to read it.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from bench.crossing_soak import CrossingSoak
from bench.crossing_traffic import CrossingTraffic, Finding
from bench.crossing_trouble import CrossingTrouble
from bench.soak_report import pauses_of
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster, Process
from qpid_ha_demo.ledger import Ledger
from qpid_ha_demo.stage import Stage

_PACKAGES: Final = ("agent", "broker", "client", "config", "kernel")
_HERE: Final = Path(__file__).parents[2]
_SWITCHOVER_S: Final = 8.0
"""What is led elsewhere is handed over within 5 s, and clients look for it."""
_SETTING, _VALUE = "max-connections", "4321"
_USER: Final = "upgraded"
_REFUSAL: Final = "is of a release that knows no"


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


class Restart(NamedTuple):
    """Of one broker, in another version."""

    what: str
    from_s: float
    to_s: float


class UpgradeSoak(CrossingSoak):
    """One way, back, and the one way again."""

    broker_count = 3

    def __init__(self, stage: Stage, directory: Path, seed: int, revision: str) -> None:
        super().__init__(stage, directory, seed)
        self._revision = revision
        (directory / "earlier").mkdir()
        self._earlier = unpack(revision, directory / "earlier")
        kinds = self._earlier / "broker" / "qpid_ha_broker" / "events" / "layout.py"
        self._is_refused = "SETTING_CHANGED" not in kinds.read_text(encoding="utf-8")
        """What the operator wants, as long as a broker of the earlier commit is there."""
        self._restarts: list[Restart] = []
        self._all_new_s: list[tuple[float, float]] = []
        """From when until when all brokers are those of this tree."""

    @contextmanager
    def _cluster(self) -> Iterator[tuple[LocalCluster, None]]:
        settings = {"store.segment-size": "1MiB", "ha": {"clients": "proxy", "replica-check-interval": "2s"}}
        cluster = VersionedCluster(self._directory, self.broker_count, settings=settings, stores=self._stores)
        for broker in cluster.brokers:
            _change(broker, self._earlier)
        with cluster:
            yield cluster, None

    def _disturb(self, cluster: LocalCluster, trouble: CrossingTrouble, for_s: float) -> None:
        """A third of the time each way; the primary of `default` comes last."""
        ways = ((_HERE, "this tree"), (self._earlier, self._revision), (_HERE, "this tree"))
        for root, version in ways:
            primary = cluster.primary()
            for broker in sorted(cluster.brokers, key=lambda broker: broker is primary):
                began_s = time.monotonic()
                self._restart(cluster, trouble, broker, root)
                self._restarts.append(Restart(f"{broker.name} begins to run {version}", began_s, time.monotonic()))
                self._stage.step(f"{broker.name} runs {version}")
                self._operate(cluster, is_taken=False)
                trouble.rest(for_s / (len(ways) * self.broker_count))
            if root is _HERE:
                self._all_new_s.append((self._restarts[-1].to_s, time.monotonic()))
        self._operate(cluster, is_taken=True)

    def _restart(self, cluster: LocalCluster, trouble: CrossingTrouble, broker: LocalBroker, root: Path) -> None:
        """As `qpid-ha upgrade` does: its sets leave it, it ends in order, starts anew, and has its replicas again."""
        with suppress(ControlFailure, ClusterFailed):  # what has not left it leaves it as it ends
            trouble.ask("brokers", action="drain", name=broker.name)
        broker.terminate()
        broker.wait()
        if root is not _HERE:
            for left in (self._stores / broker.name).iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        _change(broker, root)
        broker.start()
        cluster.wait_whole()
        trouble.undrain(broker)
        self._wait_whole(cluster, trouble)

    def _operate(self, cluster: LocalCluster, *, is_taken: bool) -> None:
        """An operator wants what only this tree can read, at a broker of it."""
        newer = [broker for broker in cluster.brokers if _root(broker) is _HERE]
        if not is_taken and not (self._is_refused and 0 < len(newer) < len(cluster.brokers)):
            return
        password = self._directory / "password"
        password.write_text("of nobody\n", encoding="ascii")
        password.chmod(0o600)
        for words in (("config", "set", _SETTING, _VALUE), ("user", "add", _USER, "--password-from", str(password))):
            done = _qpid_ha(newer[0], *words)
            if (done.returncode == 0) != is_taken or not (is_taken or _REFUSAL in done.stderr):
                text = f"at {newer[0].name} ended with {done.returncode}: {done.stdout}{done.stderr}"
                self._findings.append(Finding(" ".join(words[:3]), text))
            self._stage.step(f"{' '.join(words[:3])}: {(done.stdout if is_taken else done.stderr).strip()}")
        if is_taken:
            cluster.wait_until(
                lambda: all(_has_both(broker) for broker in cluster.brokers), "all have the setting and the user"
            )

    def _other_findings(self, traffic: CrossingTraffic) -> list[Finding]:
        found = []
        ends_s = [*(restart.from_s for restart in self._restarts[1:]), self._ended_s]
        for restart, until_s in zip(self._restarts, ends_s, strict=True):
            longest_s, who = longest_pause(
                {producer.name: producer.ledger for producer in traffic.producers},
                restart.from_s,
                until_s,
                self._ended_s,
            )
            self._stage.step(f"{restart.what}: {who} had nothing confirmed for {longest_s:.2f} s")
            if longest_s > _SWITCHOVER_S:
                found.append(Finding(who, f"nothing was confirmed for {longest_s:.1f} s as {restart.what}"))
        for began_s, ended_s in self._all_new_s:
            within = [each for each in traffic.given_back if began_s < each.given_at_s and each.came_at_s < ended_s]
            kept = sum(each.has_annotation for each in within)
            self._stage.step(f"of {len(within)} messages that were given back with an annotation {kept} came with it")
            if not within or kept < len(within):
                text = f"{kept} of {len(within)} came again with what was said, though all brokers can read that"
                found.append(Finding("annotations", text))
        return found


def longest_pause(ledgers: Mapping[str, Ledger], from_s: float, until_s: float, ended_s: float) -> tuple[float, str]:
    """Of those without a confirmation that begin in a step, and whose: a step may be over long before its pause is."""
    pauses = [pause for name, ledger in ledgers.items() for pause in pauses_of(name, ledger, from_s, ended_s)]
    begun = [(pause.for_s, pause.set) for pause in pauses if pause.from_s < until_s - from_s]
    return max(begun, default=(0.0, "nobody"))


def _root(broker: LocalBroker) -> Path | None:
    return broker.root if isinstance(broker, VersionedBroker) else None


def _qpid_ha(broker: LocalBroker, *words: str) -> subprocess.CompletedProcess[str]:
    """The command of this tree, asked at that broker."""
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", *words, "-b", str(broker.control_socket)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _has_both(broker: LocalBroker) -> bool:
    users = broker.ask("users", action="list")["answer"]
    return broker.ask("get", key=_SETTING)[_SETTING] == int(_VALUE) and [user["user"] for user in users] == [_USER]


def _change(broker: LocalBroker, root: Path) -> None:
    if not isinstance(broker, VersionedBroker):
        raise TypeError(f"the version of {broker.name} cannot be changed")
    broker.root = root
