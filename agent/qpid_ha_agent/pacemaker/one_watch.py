"""One watcher per broker: starting it unless it runs, and ending it. Monitors need this, and not the watcher itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from qpid_ha_agent.ocf.memory import MemoryFile

END_S = 2.0


def start_watch(memory: MemoryFile, control_socket: Path, hang_timeout_s: float) -> None:
    """A watcher, unless there is one. It outlives the action that starts it, with its environment. Raises OSError."""
    lock = lock_of(memory)
    if lock is None:
        return
    os.close(lock)  # of two that are started at once, the second finds the lock taken, and ends
    command = [sys.executable, "-m", "qpid_ha_agent.pacemaker.watching", memory.instance, str(control_socket)]
    null = subprocess.DEVNULL
    subprocess.Popen(
        [*command, str(hang_timeout_s)], stdin=null, stdout=null, stderr=null, start_new_session=True, cwd="/"
    )


def end_watch(memory: MemoryFile) -> None:
    """No watcher any more; nothing if there was none. Raises OSError."""
    lock = lock_of(memory)
    if lock is not None:
        os.close(lock)
        return
    with contextlib.suppress(OSError, ValueError):
        pidfd = os.pidfd_open(int(_lock_path(memory).read_text()))
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            select.select([pidfd], [], [], END_S)
        finally:
            os.close(pidfd)


def _lock_path(memory: MemoryFile) -> Path:
    return memory.directory / f"{memory.instance}.watch"


def lock_of(memory: MemoryFile) -> int | None:
    """The descriptor that holds the lock; None when another process has it."""
    memory.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(_lock_path(memory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
