"""The processes beside a broker, one of each kind: its watch, and the action server.

Starting one unless it runs, and ending it: monitors need this, and not what the processes do.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

from qpid_ha_agent.broker_process import age_s
from qpid_ha_agent.ocf.memory import MemoryFile

END_S = 2.0
STARTING_S = 30.0
"""So long an action server may take until it listens, on a machine that has much else to do."""


class Companion:
    """The promise: of one kind there is one for a resource, because each holds a lock as long as it runs."""

    def __init__(self, memory: MemoryFile, kind: str, module: str) -> None:
        self._memory = memory
        self._module = module
        self._lock_path = memory.directory / f"{memory.instance}.{kind}"

    def start(self, *arguments: str) -> None:
        """It runs with these, unless one runs already. It outlives the action that starts it, with its environment.

        Raises OSError.
        """
        lock = self._lock()
        if lock is None:
            return
        os.close(lock)  # of two that are started at once, the second finds the lock taken, and ends
        null = subprocess.DEVNULL
        command = [sys.executable, "-m", self._module, self._memory.instance, *arguments]
        subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True, cwd="/")

    def end(self) -> None:
        """It does not run any more, even if it hung; nothing if it did not. Raises OSError."""
        pidfd = self._open()
        if pidfd is None:
            return
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                signal.pidfd_send_signal(pidfd, number)
                if select.select([pidfd], [], [], END_S)[0]:
                    return
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)

    def be_it(self) -> int | None:
        """For the process itself: the descriptor that holds the lock; None when another process has it. Raises
        OSError."""
        lock = self._lock()
        if lock is not None:
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        return lock

    def pid(self) -> int:
        """Of the process that runs; 0 when none does, or none has said so yet. Raises OSError."""
        lock = self._lock()
        if lock is not None:
            os.close(lock)
            return 0
        try:
            return int(self._lock_path.read_text(encoding="ascii"))
        except ValueError:
            return 0

    def _open(self) -> int | None:
        pid = self.pid()
        with contextlib.suppress(ProcessLookupError):
            return os.pidfd_open(pid) if pid else None
        return None

    def _lock(self) -> int | None:
        """The descriptor that holds the lock; None when another process has it."""
        self._memory.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor


def watch_of(memory: MemoryFile) -> Companion:
    """That of the resource's broker."""
    return Companion(memory, "watch", "qpid_ha_agent.pacemaker.watching")


# --- the action server


def server_of(memory: MemoryFile) -> Companion:
    """That of the resource."""
    return Companion(memory, "server", "qpid_ha_agent.ocf.action_server")


def socket_of(memory: MemoryFile) -> Path:
    """Where the action server listens. `ocf/qpid-ha` knows this name."""
    return memory.directory / f"{memory.instance}.actions"


def client_file_of(memory: MemoryFile) -> Path:
    """How to ask it: the interpreter in the first line, the program in the second. `ocf/qpid-ha` knows this name."""
    return memory.directory / f"{memory.instance}.client"


def start_server(memory: MemoryFile) -> None:
    """The action server runs. One that hung when it was asked has lost its socket to who asked, and is ended. Raises
    OSError."""
    server = server_of(memory)
    if not socket_of(memory).exists() and age_s(server.pid()) > STARTING_S:
        server.end()
    server.start()


def end_server(memory: MemoryFile) -> None:
    """No action server. What it carries out just now comes to its end. Raises OSError."""
    server_of(memory).end()
    socket_of(memory).unlink(missing_ok=True)
    client_file_of(memory).unlink(missing_ok=True)
