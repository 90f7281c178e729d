"""A machine has one Corosync at a time: tests that start one take turns, whichever process they are in."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qpid_ha_demo.corosync_daemon import CorosyncDaemon

_LOCK = Path(tempfile.gettempdir()) / "qpid-ha-test-corosync.lock"


@contextmanager
def our_turn() -> Iterator[None]:
    """Until the end of the block nobody else starts one."""
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def corosync(directory: Path) -> Iterator[CorosyncDaemon]:
    """One that runs, and is gone afterwards."""
    with our_turn(), CorosyncDaemon(directory) as daemon:
        yield daemon
