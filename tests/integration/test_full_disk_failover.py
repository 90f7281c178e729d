"""Real brokers and agents, and the primary's disk fills: another one takes over, and nothing is lost or moved back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from failover_load import FailoverLoad
from running_cluster import RunningCluster

BROKERS = 3
DISK_SIZE = "96m"
SETTINGS = {"store": {"segment-size": "256KiB"}}
"""The room of a file is taken when it is made: with small ones a full disk shows soon."""
BODY_BYTES, RATE = 20_000, 30
"""So the other disks have room for a while."""


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[list[Path]]:
    """A small file system for each broker's store."""
    places = [tmp_path / "stores" / f"broker{number}" for number in range(1, BROKERS + 1)]
    with ExitStack() as stack:
        for place in places:
            place.mkdir(parents=True, mode=0o700)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE},mode=0700", "none", str(place)]
            if subprocess.run(mount, capture_output=True, check=False).returncode:
                pytest.skip("a file system of its own needs the right to mount one")
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False)
        yield places


def fill(place: Path) -> Path:
    """Leave no room there; the file that takes it."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 20)):
            pass
    return ballast


def test_a_primary_whose_disk_fills_makes_way_and_stays_a_backup(tmp_path: Path, disks: list[Path]) -> None:
    with RunningCluster(tmp_path, BROKERS, agents=True, stores=disks[0].parent, settings=SETTINGS) as cluster:
        cluster.wait_whole()
        with FailoverLoad(cluster.urls, rate=RATE, size=BODY_BYTES, durable=True) as load:
            load.wait_confirmed(20)
            old = cluster.the_primary()
            ballast = fill(disks[cluster.brokers.index(old)])
            cluster.wait_until(lambda: "store_problem" in old.status(), f"{old.name} says that it cannot write")
            cluster.wait_until(lambda: cluster.primary() not in (None, old), "another one is primary")
            load.wait_confirmed(20)
            heir = cluster.the_primary()
            assert old.name not in heir.status()["members"]
            assert f"backup {old.name} leaves the in-sync set: its store cannot be written" in heir.log()
            ballast.unlink()
            cluster.wait_whole()
            audit = load.finish()
        assert cluster.the_primary() is heir, "that there is room again is no reason to move it back"
    assert audit.is_flawless, audit
