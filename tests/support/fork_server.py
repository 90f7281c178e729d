"""Programs of ours that need not import: they are forked from a process that has imported them already.

A start of `qpidd` takes 0.25 s of a processor, and Python spends 0.2 s of that on its modules; a run of all tests
starts it a thousand times. What is forked is the same program in a process of its own, with its own output,
environment, directory, session and end. It differs in how lists of processes show it, and in that its hashes have the
seed of all others.

The test is the client, over a socket: a request is JSON (`_Request`) with the descriptor of the output; an answer is
three numbers (`_ANSWER`): that a process was forked, its id, and 0, or that one has ended, its id, and its exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

_ANSWER: Final = struct.Struct("<iii")
_FORKED, _ENDED = 0, 1
_LARGEST_REQUEST: Final = 1 << 20


class _Request(NamedTuple):
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    new_session: bool


# --- the client


class ForkServer:
    """Of one program; started when it is asked first, and gone with this process. Any thread may use it."""

    def __init__(self, module: str, imported: str) -> None:
        """`module`: has the function `main`. `imported`: the one that it imports with the rest."""
        self._module, self._imported = module, imported
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._codes: dict[int, int] = {}
        """Exit codes that nobody has asked for yet."""

    def spawn(self, arguments: Sequence[str], output: BinaryIO, *, new_session: bool = False) -> ForkedProcess:
        """As `python -m module arguments` would be, with `output` for both outputs."""
        request = _Request(list(arguments), dict(os.environ), str(Path.cwd()), new_session)
        with self._lock:
            if self._channel is None:
                self._channel = self._start()
            with contextlib.suppress(ConnectionError):  # that shows when it is to answer
                socket.send_fds(self._channel, [json.dumps(request).encode()], [output.fileno()])
            while (pid := self._hear(self._channel)) is None:
                pass
        return ForkedProcess(self, pid)

    def _start(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            its.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST_REQUEST)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
            server = subprocess.Popen(
                [sys.executable, __file__, self._module, self._imported, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(server.wait)
        atexit.register(ours.close)  # before that
        return ours

    def _hear(self, channel: socket.socket) -> int | None:
        """The process that was forked; None where an answer is about an end."""
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = channel.recv(_ANSWER.size)
        if not answer:
            raise RuntimeError(f"the fork server of {self._module} is gone: it has said why")
        kind, pid, code = _ANSWER.unpack(answer)
        if kind == _ENDED:
            self._codes[pid] = code
            return None
        return int(pid)

    def exit_code(self, pid: int) -> int:
        """Of a process that has ended."""
        with self._lock:
            while pid not in self._codes:
                if self._channel is None:
                    raise RuntimeError("nothing was forked")
                self._hear(self._channel)
            return self._codes.pop(pid)


class ForkedProcess:
    """See `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._lock = threading.Lock()
        try:
            self._end: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._end = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None: it has not ended."""
        return self.returncode if self._has_ended(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if not self._has_ended(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def _has_ended(self, timeout_s: float | None) -> bool:
        with self._lock:
            if self.returncode is None:
                if self._end is not None:
                    poll = select.poll()
                    poll.register(self._end, select.POLLIN)
                    if not poll.poll(None if timeout_s is None else timeout_s * 1000):
                        return False
                    os.close(self._end)
                    self._end = None
                self.returncode = self._server.exit_code(self.pid)
        return True

    def send_signal(self, sig: int, /) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


# --- the server


def _serve(channel: socket.socket) -> _Request | None:
    """Fork what is asked for. Returns in each process that was forked, and with None when nobody is there to ask."""
    ends: dict[int, int] = {}
    """Process ids by their descriptors."""
    while True:
        ready, _, _ = select.select([channel.fileno(), *ends], [], [])
        for end in set(ready) & set(ends):
            pid = ends.pop(end)
            os.close(end)
            _, status = os.waitpid(pid, 0)
            _answer(channel, _ENDED, pid, os.waitstatus_to_exitcode(status))
        if channel.fileno() not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_REQUEST, 1)
        if not data:
            return None
        pid = os.fork()
        if pid == 0:
            channel.close()
            for end in ends:
                os.close(end)
            return _become(_Request(*json.loads(data)), descriptors[0])
        os.close(descriptors[0])
        ends[os.pidfd_open(pid)] = pid
        _answer(channel, _FORKED, pid, 0)


def _answer(channel: socket.socket, kind: int, pid: int, code: int) -> None:
    with contextlib.suppress(ConnectionError):  # nobody is there: that shows when it is to be read
        channel.send(_ANSWER.pack(kind, pid, code))


def _become(request: _Request, output: int) -> _Request:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if request.new_session:
        os.setsid()
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    return request


def _main(module: str, imported: str, descriptor: str) -> None:
    gc.disable()  # as `qpidd` does while it imports
    importlib.import_module(imported)
    request = _serve(socket.socket(fileno=int(descriptor)))
    gc.enable()
    if request is not None:
        sys.argv, sys.path[0] = [module, *request.arguments], request.directory  # as with `-m`
        importlib.import_module(module).main()


if __name__ == "__main__":
    _main(*sys.argv[1:])
