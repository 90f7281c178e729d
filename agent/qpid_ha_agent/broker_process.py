"""The broker's process: started by us or found running, watched and ended by its pidfd, never by a number."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

_CREDENTIALS = struct.Struct("3i")
_CONNECT_TIMEOUT_S = 1.0
CHECK = "--check"
_PROCESSES = Path("/proc")
_START_TIME = 22 - 3
"""Of the fields of /proc/PID/stat, behind the name: in ticks since the machine was started. Source: Linux, proc(5)."""


class BrokerProcessError(Exception):
    """The broker can neither be started nor taken over; the text says why."""


class BrokerProcessForbidden(BrokerProcessError):
    """The process is another user's."""


class BrokerProcess:
    """One process. `pidfd` is readable from the moment it is dead; signals through it cannot hit anybody else."""

    def __init__(self, pid: int, pidfd: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self._child = child

    @property
    def is_adopted(self) -> bool:
        """Whether the process ran before this agent came."""
        return self._child is None

    @classmethod
    def start(cls, command: Sequence[str], user: str = "", output: int | None = None) -> BrokerProcess:
        """Start it in a session of its own: neither the terminal's Ctrl-C nor our own end is its end.

        `user`: run as this one with all his groups; empty: as ourselves. `output`: where its words go, a descriptor;
        None: where ours go. Raises BrokerProcessError.
        """
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                **_identity(user), cwd="/" if user else None,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            problem = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise BrokerProcessError(f"cannot start {command[0]}: {problem}") from None
        return cls(child.pid, os.pidfd_open(child.pid), child)

    @classmethod
    def find(cls, control_socket: Path, older_than_s: float = 0.0) -> BrokerProcess | None:
        """The broker's process, by whoever listens, else by the process table, where one that is younger than
        `older_than_s` may be starting, and does not count. Raises BrokerProcessError."""
        try:
            listening = cls.adopt(control_socket)
        except BrokerProcessError:
            listening = None  # its queue of connections is full: it was stopped a while ago
        if listening is not None:
            return listening
        pid = find_pid(control_socket)
        return cls._open(pid, control_socket) if pid and age_s(pid) >= older_than_s else None

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
        """Whether the process still runs; a stopped process does."""
        return not self.wait(0)

    def wait(self, timeout_s: float) -> bool:
        """Whether the process is dead within `timeout_s`."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0, int(timeout_s * 1000))))

    def worked_s(self) -> float:
        """How long its main thread has had a processor or waited for one; 0 where the kernel does not count.

        A process that is stopped, or hangs in the kernel, does neither. Source: Linux, Documentation/scheduler/
        sched-stats.rst, /proc/PID/schedstat.
        """
        try:
            running_ns, waiting_ns, _ = Path(f"/proc/{self.pid}/schedstat").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            return 0.0
        return (int(running_ns) + int(waiting_ns)) / 1e9

    def send(self, number: signal.Signals) -> None:
        """Nothing if it is dead. SIGKILL also ends a process that is stopped. Raises BrokerProcessError."""
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)
        except PermissionError:
            raise BrokerProcessForbidden(f"process {self.pid} is another user's: run this as root") from None
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


def run_to_its_end(command: Sequence[str], user: str, timeout_s: float) -> tuple[int, str]:
    """The exit code of a program that ends by itself, and all that it said. `user` as in `BrokerProcess.start`.

    Raises BrokerProcessError when it cannot be started, or does not end within `timeout_s`.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=timeout_s, check=False, **_identity(user), cwd="/" if user else None,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BrokerProcessError(f"{command[0]} did not end within {timeout_s:g} s") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise BrokerProcessError(f"cannot start {command[0]}: {error}") from None
    return done.returncode, done.stdout


def find_pid(control_socket: Path) -> int:
    """The process that was started with this control socket; 0 when there is none.

    Numbers in files go stale and are given to other programs; what a process was started with does not.
    """
    wanted = [b"--control-socket", os.fsencode(control_socket)]
    for pid in sorted(int(path.name) for path in _PROCESSES.iterdir() if path.name.isdecimal()):
        words = _command_line(pid)
        if os.fsencode(CHECK) in words:  # it only looks at the configuration
            continue
        if any(words[at : at + 2] == wanted for at in range(len(words) - 1)):
            return pid
    return 0


def _command_line(pid: int) -> list[bytes]:
    """What the process was started with; empty when it is gone, or we may not know. Source: Linux, proc(5)."""
    try:
        return (_PROCESSES / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def age_s(pid: int) -> float:
    """How long ago the process was started; 0 when it is gone."""
    try:
        behind_name = (_PROCESSES / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    started_s = int(behind_name[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _identity(user: str) -> _Identity:
    if not user or pwd.getpwuid(os.geteuid()).pw_name == user:
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise BrokerProcessError(f"there is no user {user} on this machine: make it, or set another one") from None
    groups = os.getgrouplist(user, entry.pw_gid)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
