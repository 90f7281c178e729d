"""Addresses on loopback whose connections a test can let fall silent, cut, or rob of their answers.

On one host the kernel delivers what a process wrote to a socket also after that process was killed. What is to be lost
with a machine therefore has to be held back on its way.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Self

_PIECE_BYTES = 65_536


class LossyProxy:
    """`with LossyProxy(host, port) as proxy:` forwards what comes to `proxy.address`; two threads for a connection.

    `target` may also be set later, before it is used.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = Lock()
        self._connections: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._passes = Event()
        self._passes.set()
        self._keeps_back = False
        self._mark = b""

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def fall_silent(self) -> None:
        """Nothing passes from now on, and nobody hears of it: writers fill their buffers."""
        self._passes.clear()

    def keep_back(self) -> None:
        """From now on answers of the connections that there are go nowhere; what is asked is done all the same."""
        self._keeps_back = True

    def keep_back_after(self, mark: bytes) -> None:
        """The same, from the first request on that has `mark` in it."""
        self._mark = mark

    def cut(self) -> None:
        """End all connections; what was on its way is lost. New ones are served, with their answers."""
        with self._lock:
            connections, self._connections = self._connections, []
            self._keeps_back = False
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._passes.set()

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.target)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._connections += [near, far]
            self._start(self._forward, near, far, False)
            self._start(self._forward, far, near, True)

    def _forward(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        """Reads nothing while nothing passes; the piece that it holds by then is lost with the connection."""
        with suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                self._passes.wait()
                if self._mark and not is_answer and self._mark in piece:
                    self._mark, self._keeps_back = b"", True
                with self._lock:
                    if source not in self._connections:
                        break
                if not (is_answer and self._keeps_back):
                    target.sendall(piece)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
