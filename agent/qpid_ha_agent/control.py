"""Asking a broker through its control socket: one JSON-RPC request, one line, one answer.

Monitors run this every few seconds on every node, so it imports next to nothing.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from qpid_ha_config.closing import Closing

METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
NOT_ALLOWED = -32001
"""Who asks may not: a wrong login, or no permission."""
_RECEIVE_BYTES = 65536
PAGE_ROWS: Final = 1000
"""Of a list, in one answer: as many as a broker gives at most."""
Result = TypeVar("Result")


class ControlFailure(Exception):
    """The broker did not do what it was asked to."""


class Unreachable(ControlFailure):
    """Nobody answered: whether the broker runs is not known from this alone."""


class Forbidden(Unreachable):
    """The system does not let us at a file: the control socket, or the password for a remote broker."""


class NotConnected(Unreachable):
    """Nobody took the connection: nothing was asked."""


class TimedOut(Unreachable):
    """The broker is there, or its socket is, but no answer came in time."""


class RequestRefused(ControlFailure):
    """The broker answered that it will not; `message` says what to do."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class ControlClient(Closing):
    """One connection, made at the first call. Each call as a whole takes `timeout_s` at most.

    After a failure other than `RequestRefused` the connection is dropped, and the next call makes a new one.
    """

    def __init__(self, path: str | os.PathLike[str], timeout_s: float = 10.0) -> None:
        self.path = os.fspath(path)
        self.timeout_s = timeout_s
        self._connection: socket.socket | None = None
        self._received = b""
        self._last_identity = 0

    def close(self) -> None:
        """Drop the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._received = b""

    def call(self, method: str, **params: object) -> object:
        """The result of `method`. Raises RequestRefused with the broker's reason, TimedOut or Unreachable."""
        self._last_identity += 1
        request = {"jsonrpc": "2.0", "id": self._last_identity, "method": method, "params": params}
        deadline = time.monotonic() + self.timeout_s
        line = self._guarded(lambda: self._exchange(json.dumps(request).encode("ascii") + b"\n", deadline))
        return self._guarded(lambda: self._read_reply(line))

    def stream(self, method: str, **params: object) -> Iterator[object]:
        """What `method` answers, then what it goes on telling, without a limit of time, until the broker ends it.

        Raises as `call` does.
        """
        yield self.call(method, **params)
        while (connection := self._connection) is not None:
            line = self._guarded(lambda: self._read_line(connection, None))
            note = decode_object(line)
            if note is None or "params" not in note:
                self.close()
                raise self._no_broker()
            yield note["params"]

    def fileno(self) -> int:
        """Readable when something is told, or the connection ends; -1 when there is none."""
        return -1 if self._connection is None else self._connection.fileno()

    def skip(self) -> None:
        """Of what `events` and its like tell: all that is there now. After an end of the connection there is none."""
        if self._connection is not None:
            self._connection.setblocking(False)
            try:
                is_open = bool(self._connection.recv(_RECEIVE_BYTES))
            except BlockingIOError:
                is_open = True
            except OSError:
                is_open = False
            if not is_open:
                self.close()

    def _guarded(self, step: Callable[[], Result]) -> Result:
        """`step`; whatever the operating system says is told in our terms, and ends the connection."""
        try:
            return step()
        except TimeoutError:
            self.close()
            raise TimedOut(f"no answer from {self.path} within {self.timeout_s:g} s") from None
        except PermissionError:
            self.close()
            raise Forbidden(f"we may not use {self.path}: do this as root, or join the socket's group") from None
        except OSError as error:
            self.close()
            raise Unreachable(f"cannot reach a broker at {self.path}: {error.strerror or error}") from None
        except Unreachable:
            self.close()
            raise

    def _exchange(self, request: bytes, deadline: float) -> bytes:
        """A connection that was refused may end while we still write: its reason can be read all the same."""
        connection = self._connect(deadline)
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.settimeout(_remaining_s(deadline))
            connection.sendall(request)
        return self._read_line(connection, deadline)

    def _read_line(self, connection: socket.socket, deadline: float | None) -> bytes:
        while b"\n" not in self._received:
            connection.settimeout(None if deadline is None else _remaining_s(deadline))
            part = connection.recv(_RECEIVE_BYTES)
            if not part:
                missing = "without an answer" if deadline is not None else "and tells nothing more"
                raise Unreachable(f"the broker at {self.path} closed the connection {missing}")
            self._received += part
        line, _newline, self._received = self._received.partition(b"\n")
        return line

    def _connect(self, deadline: float) -> socket.socket:
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connection.settimeout(_remaining_s(deadline))
            try:
                self._connection.connect(self.path)
            except (ConnectionError, FileNotFoundError) as error:
                raise NotConnected(f"cannot reach a broker at {self.path}: {error.strerror}") from None
        return self._connection

    def _read_reply(self, line: bytes) -> object:
        reply = decode_object(line)
        if reply is not None and "error" in reply and reply.get("id") is None:  # it refused the connection
            self.close()
        return result_of(reply, self._last_identity, self._no_broker)

    def _no_broker(self) -> Unreachable:
        return Unreachable(f"what listens at {self.path} is no qpid-ha broker")


class Client(Protocol):
    """Whoever asks a broker, from its machine or from elsewhere."""

    def call(self, method: str, **params: object) -> object:
        """The result of `method`. Raises ControlFailure."""


def call_with_cause(client: Client, method: str, cause: str, **params: object) -> object:
    """`method`, with who wants it and why. Raises ControlFailure.

    A broker that was not restarted since an upgrade may know no `cause` there, nor `within_s`, and refuses before it
    does anything.
    """
    try:
        return client.call(method, cause=cause, **params)
    except RequestRefused as refusal:
        if refusal.code != INVALID_PARAMS:
            raise
        return client.call(method, **{name: value for name, value in params.items() if name != "within_s"})


def list_in_pages(client: Client, method: str, **params: object) -> list[Any]:
    """All rows that `method` lists, page by page: no answer is large, however many there are. Raises ControlFailure.

    A broker that was not restarted since an upgrade may know no pages, and is asked for all of it at once.
    """
    rows: list[Any] = []
    after = ""
    while True:
        try:
            page = client.call(method, action="list", limit=PAGE_ROWS, after=after, **params)
        except RequestRefused as refusal:
            if refusal.code != INVALID_PARAMS or after:
                raise
            page = client.call(method, action="list", **params)
        if not isinstance(page, dict):
            return page if isinstance(page, list) else []
        rows += page.get("rows", [])
        after = page.get("next") or ""
        if not after:
            return rows


class NotAllowed(RequestRefused):
    """The broker answered that it takes nothing from us as who we are."""

    def __init__(self, message: str) -> None:
        super().__init__(NOT_ALLOWED, message)


def result_of(reply: dict[str, Any] | None, identity: int, no_broker: Callable[[], Unreachable]) -> object:
    """What the reply to that request brings. Raises RequestRefused, and `no_broker` where that is no reply to it."""
    if reply is None or reply.get("id") not in (identity, None):
        raise no_broker()
    if "result" in reply:
        return reply["result"]
    error = reply.get("error")
    if not isinstance(error, dict):
        raise no_broker()
    raise refusal_of(error)


def refusal_of(error: dict[str, object]) -> RequestRefused:
    """What a JSON-RPC error comes to."""
    code, message = error.get("code", 0), str(error.get("message", "refused"))
    if code == NOT_ALLOWED:
        return NotAllowed(message)
    return RequestRefused(code if isinstance(code, int) else 0, message, error.get("data"))


def decode_object(line: bytes) -> dict[str, object] | None:
    """The JSON object of an answer or a note; None if it is something else."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _remaining_s(deadline: float) -> float:
    """At least a moment: zero would mean non-blocking."""
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s
