"""Addresses on loopback whose connections a test can let fall silent, or cut, as a network between machines does.

On one host the kernel delivers what a process wrote to a socket also after that process was killed. What is to be lost
with a machine therefore has to be held back on its way.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Self

_PIECE_BYTES = 65_536


class SeverableAddress:
    """`with SeverableAddress() as address:` listens on a free port and forwards to `target_port`; set that before use.

    Each connection has two threads, one for each way.
    """

    def __init__(self) -> None:
        self.target_port = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._passes = Event()
        self._passes.set()
        self._lock = Lock()
        self._connections: list[socket.socket] = []
        self._threads: list[Thread] = []
        self._is_over = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"amqp://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def fall_silent(self) -> None:
        """Nothing passes from now on, and nobody hears of it: writers fill their buffers."""
        self._passes.clear()

    def cut(self) -> None:
        """End all connections; what was on its way is lost. New ones are served."""
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._passes.set()

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._connections += [near, far]
            self._start(self._forward, near, far)
            self._start(self._forward, far, near)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        """Reads nothing while nothing passes; the piece that it holds by then is lost with the connection."""
        with suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                self._passes.wait()
                with self._lock:
                    if source not in self._connections:
                        break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
