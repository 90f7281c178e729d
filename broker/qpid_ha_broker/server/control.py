"""The control socket: JSON-RPC 2.0, one object per line, for `qpid-ha`, monitors and scripts.

A caller can cost at most its own connection: lines, connections and idle time are bounded, and whatever is
wrong with a request comes back as an error object that says so.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from qpid_ha_broker.server.control_socket import PeerCredentials, bind_control_socket
from qpid_ha_broker.server.settings import nearest

logger = logging.getLogger(__name__)

Method = Callable[[dict[str, object]], object | Awaitable[object]]

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED = -32000
NOT_ALLOWED = -32001
TOO_MANY_CONNECTIONS = -32002


class ControlError(Exception):
    """What a method raises when it will not: a code, a message that says what to do, and data."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


@dataclass(frozen=True, slots=True)
class ControlLimits:
    """What one control socket bears."""

    connections: int = 64
    line_bytes: int = 1024 * 1024
    idle_timeout_s: float = 300.0
    last_replies_timeout_s: float = 1.0
    """How long `close` waits for replies that are under way."""


@dataclass(frozen=True, slots=True)
class _Request:
    identity: object
    wants_reply: bool
    method: str
    params: dict[str, object]


@dataclass(slots=True)
class ControlServer:
    """Whoever may not administer the broker gets nothing but an error; nobody can stop the others.

    `methods` gives for each name what to do with the params: an answer that JSON can carry, or an awaitable of
    one. It raises ControlError to refuse; any other exception is a bug, is logged as one, and named to the caller.
    """

    path: Path
    methods: Mapping[str, Method]
    limits: ControlLimits = ControlLimits()
    _server: asyncio.Server | None = None
    _socket_identity: tuple[int, int] = (0, 0)
    _socket_gid: int = -1
    _connections: dict[asyncio.Task[None], bool] = field(default_factory=dict)
    """Each connection's task, and whether it is working on a request."""

    async def start(self) -> None:
        """Listen. Raises SettingsError when the path cannot be had."""
        listening = bind_control_socket(self.path)
        status = self.path.lstat()
        self._socket_identity, self._socket_gid = (status.st_dev, status.st_ino), status.st_gid
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=self.limits.line_bytes)

    async def close(self) -> None:
        """Stop listening, let replies that are under way go out, remove the socket."""
        if self._server is None:
            return
        self._server.close()
        self._remove_socket()
        busy = [task for task, working in self._connections.items() if working]
        idle = [task for task, working in self._connections.items() if not working]
        for task in idle:
            task.cancel()
        if busy:
            _done, stuck = await asyncio.wait(busy, timeout=self.limits.last_replies_timeout_s)
            for task in stuck:
                task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self._server = None

    def _remove_socket(self) -> None:
        """Not the one of a broker that has taken the path over meanwhile."""
        with suppress(FileNotFoundError):
            status = self.path.lstat()
            if (status.st_dev, status.st_ino) == self._socket_identity:
                self.path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or self._server is None:
            raise RuntimeError("a connection is served by its own task while the server runs")
        try:
            refusal = self._refusal(writer)
            if refusal is not None:
                await self._send(writer, _error(None, refusal))
                return
            self._connections[task] = False
            await self._answer_lines(reader, writer, task)
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            pass  # it was silent for too long, took no answer, went away, or the broker stops
        finally:
            self._connections.pop(task, None)
            writer.close()

    def _refusal(self, writer: asyncio.StreamWriter) -> ControlError | None:
        peer_socket: socket.socket = writer.get_extra_info("socket")
        peer = PeerCredentials.of(peer_socket)
        if not peer.may_administer(self._socket_gid):
            logger.warning("pid=%d uid=%d may not use the control socket: refused", peer.pid, peer.uid)
            return ControlError(NOT_ALLOWED, f"uid {peer.uid} may not administer this broker: join the socket's group")
        if len(self._connections) >= self.limits.connections:
            logger.warning("pid=%d is connection %d: refused", peer.pid, self.limits.connections + 1)
            return ControlError(TOO_MANY_CONNECTIONS, f"{self.limits.connections} control connections are open already")
        return None

    async def _answer_lines(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        """Until the caller goes. What is not JSON ends the connection: nobody knows where the next request starts."""
        while self._server is not None and self._server.is_serving():
            line = await self._next_line(reader)
            if line == b"":
                return
            self._connections[task] = True
            reply, goes_on = await self._answer(line)
            if reply is not None:
                await self._send(writer, reply)
            if not goes_on:
                return
            self._connections[task] = False

    async def _next_line(self, reader: asyncio.StreamReader) -> bytes | None:
        """A request; empty at the end; None when it is too long."""
        try:
            async with asyncio.timeout(self.limits.idle_timeout_s):
                return await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial
        except asyncio.LimitOverrunError:
            return None

    async def _send(self, writer: asyncio.StreamWriter, reply: bytes) -> None:
        writer.write(reply)
        async with asyncio.timeout(self.limits.idle_timeout_s):
            await writer.drain()

    async def _answer(self, line: bytes | None) -> tuple[bytes | None, bool]:
        """The reply, if one is wanted, and whether the connection goes on."""
        try:
            document = self._decode(line)
        except ControlError as error:
            return _error(None, error), False
        try:
            request = _read_request(document)
        except ControlError as error:
            identity = document.get("id") if isinstance(document, dict) else None
            return _error(identity if isinstance(identity, str | int) else None, error), True
        reply = await self._call(request)
        return (reply if request.wants_reply else None), True

    def _decode(self, line: bytes | None) -> object:
        if line is None:
            raise ControlError(INVALID_REQUEST, f"a request is one line of at most {self.limits.line_bytes} bytes")
        try:
            document: object = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            problem = "this is not JSON; send one JSON-RPC 2.0 object per line"
            raise ControlError(PARSE_ERROR, problem) from None
        return document

    async def _call(self, request: _Request) -> bytes:
        method = self.methods.get(request.method)
        if method is None:
            problem = f"no method {request.method[:80]!r}; {nearest(request.method[:80], self.methods)}"
            return _error(request.identity, ControlError(METHOD_NOT_FOUND, problem, {"methods": sorted(self.methods)}))
        try:
            result = method(request.params)
            if inspect.isawaitable(result):
                result = await result
            return _encode({"jsonrpc": "2.0", "id": request.identity, "result": result})
        except ControlError as error:
            return _error(request.identity, error)
        except Exception as error:  # a bug in one method costs its caller an answer, and nobody else anything
            logger.exception("control method %s failed", request.method)
            problem = f"{request.method} failed because of a bug ({type(error).__name__}); the broker's log has it"
            return _error(request.identity, ControlError(INTERNAL_ERROR, problem))


def _read_request(document: object) -> _Request:
    if not isinstance(document, dict):
        raise ControlError(INVALID_REQUEST, "a request is a JSON object; there are no batches, send one per line")
    method, params, identity = document.get("method"), document.get("params", {}), document.get("id")
    if document.get("jsonrpc") != "2.0" or not isinstance(method, str):
        raise ControlError(INVALID_REQUEST, 'a request has "jsonrpc": "2.0" and a "method" that is text')
    if isinstance(identity, bool) or not isinstance(identity, str | int | float | None):
        raise ControlError(INVALID_REQUEST, 'an "id" is text or a number')
    if not isinstance(params, dict):
        raise ControlError(INVALID_PARAMS, '"params" is an object: parameters have names')
    return _Request(identity, "id" in document, method, params)


def _error(identity: object, error: ControlError) -> bytes:
    described: dict[str, object] = {"code": error.code, "message": error.message}
    if error.data is not None:
        described["data"] = error.data
    return _encode({"jsonrpc": "2.0", "id": identity, "error": described})


def _encode(reply: dict[str, object]) -> bytes:
    return json.dumps(reply, allow_nan=False).encode("ascii") + b"\n"


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
