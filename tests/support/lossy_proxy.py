"""A proxy in front of a server, which can keep back what the server answers: what was asked is done all the same."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_PIECE_BYTES = 65_536


class LossyProxy:
    """`with LossyProxy(host, port) as proxy:` forwards what comes to `proxy.address`; two threads for a connection."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._keeps_back = False
        self._mark = b""

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def keep_back(self) -> None:
        """From now on answers of the connections that there are go nowhere."""
        self._keeps_back = True

    def keep_back_after(self, mark: bytes) -> None:
        """The same, from the first request on that has `mark` in it."""
        self._mark = mark

    def cut(self) -> None:
        """End all connections; new ones are served, with their answers."""
        with self._lock:
            connections, self._connections = self._connections, []
            self._keeps_back = False
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            with self._lock:
                self._connections += [near, far]
            for source, target, is_answer in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._forward, args=(source, target, is_answer), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError), source:
            while piece := source.recv(_PIECE_BYTES):
                if self._mark and not is_answer and self._mark in piece:
                    self._mark, self._keeps_back = b"", True
                if not (is_answer and self._keeps_back):
                    target.sendall(piece)
            target.shutdown(socket.SHUT_RDWR)
