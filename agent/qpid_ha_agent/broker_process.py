"""The broker's process: started by us or found running, watched and ended by its pidfd, never by a number."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

_CREDENTIALS = struct.Struct("3i")
_CONNECT_TIMEOUT_S = 1.0


class BrokerProcessError(Exception):
    """The broker can neither be started nor taken over; the text says why."""


class BrokerProcess:
    """One process. `pidfd` is readable from the moment it is dead; signals through it cannot hit anybody else."""

    def __init__(self, pid: int, pidfd: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._child = child

    @property
    def is_adopted(self) -> bool:
        """It ran before we came."""
        return self._child is None

    @classmethod
    def start(cls, command: Sequence[str]) -> BrokerProcess:
        """Start it in a session of its own: neither the terminal's Ctrl-C nor our own end is its end."""
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            raise BrokerProcessError(f"cannot start {command[0]}: {error.strerror or error}") from None
        return cls(child.pid, os.pidfd_open(child.pid), child)

    @classmethod
    def adopt(cls, control_socket: Path) -> BrokerProcess | None:
        """The process that listens at `control_socket`; None when nobody does. Raises BrokerProcessError."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_TIMEOUT_S)
            try:
                connection.connect(os.fspath(control_socket))
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
                    return None
                problem = f"cannot tell whether a broker listens at {control_socket}: {error.strerror or error}"
                raise BrokerProcessError(problem) from None
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return cls._open(_CREDENTIALS.unpack(raw)[0], control_socket)

    @classmethod
    def _open(cls, pid: int, control_socket: Path) -> BrokerProcess | None:
        """The number cannot be another one's already: a dead listener would have refused the connection just now."""
        if pid <= 0:
            raise BrokerProcessError(f"the broker at {control_socket} runs in a container that hides its process")
        try:
            return cls(pid, os.pidfd_open(pid), None)
        except ProcessLookupError:
            return None
        except OSError as error:
            raise BrokerProcessError(f"cannot watch process {pid}: {error.strerror or error}") from None

    def is_alive(self) -> bool:
        """Whether it still runs; a stopped process does."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def send(self, number: signal.Signals) -> None:
        """Nothing if it is dead. SIGKILL also ends a process that is stopped. Raises BrokerProcessError."""
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)
        except OSError as error:
            raise BrokerProcessError(f"cannot send {number.name} to process {self.pid}: {error.strerror}") from None

    def end_text(self) -> str:
        """How it ended, as far as we may know."""
        if self._child is None:
            return "ended"
        code = self._child.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def close(self) -> None:
        """Watch it no more."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
