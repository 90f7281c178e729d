"""The control socket: JSON-RPC 2.0, one object per line, for `qpid-ha`, monitors and scripts.

A caller can cost at most its own connection: lines, connections and idle time are bounded, and whatever is
wrong with a request comes back as an error object that says so.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import os
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from qpid_ha_broker.access.audit import AuditResult, Caller, Gone
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.server.control.control_socket import PeerCredentials, bind_control_socket
from qpid_ha_broker.server.runtime.hang_ups import has_hung_up
from qpid_ha_broker.server.runtime.logs import RateLimitedLog
from qpid_ha_broker.server.runtime.slices import in_slices
from qpid_ha_config.errors import SettingsError, nearest

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

LOOK_INTERVAL_S = 0.25
"""Between two looks whether the caller of a request is still there."""
MAX_DEPTH = 16
"""Of the lists and objects of a request: four would do."""
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")


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
class Stream:
    """What a method returns that goes on telling: an answer at once, then notifications until the caller goes.

    Each of `notes` becomes the params of one notification `method`. `close` is called once, however it ends.
    """

    answer: object
    method: str
    notes: AsyncIterator[object]
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Request:
    identity: object
    wants_reply: bool
    method: str
    params: dict[str, object]


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Who has made the request that is carried out: for methods that have another broker do it."""
RecordRequest = Callable[[Caller, str, Mapping[str, object], AuditResult, str], None]
"""Takes who asked, the method, its params, what came of it, and a word for why it was not done."""
Permit = Callable[[str, dict[str, object]], None]
"""Raises ControlError for a method, with its params, that whoever asks may not use."""


class ControlAnswer(NamedTuple):
    """The line to send, if one is wanted; whether the connection goes on after it; what else there is to tell."""

    reply: bytes | None
    goes_on: bool = True
    stream: Stream | None = None


@dataclass(slots=True)
class ControlServer:
    """Whoever may not administer the broker gets nothing but an error; nobody can stop the others.

    `methods` gives for each name what to do with the params: an answer that JSON can carry, in which an iterator stands
    for a list whose elements are made when it is their turn, a `Stream`, or an awaitable of one. It raises ControlError
    to refuse; any other exception is a bug, is logged as one, and named to the caller.
    """

    path: Path
    methods: Mapping[str, Method]
    limits: ControlLimits = ControlLimits()
    not_yet: Callable[[str], ControlError] | None = None
    """What is said of a method that is not there, while there are to be more of them."""
    record: RecordRequest | None = None
    """Who keeps the audit log; None: nobody."""
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By method and reason: how many requests were refused that a broker can carry out."""
    _refusals: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(logger))
    _server: asyncio.Server | None = None
    _socket_identity: tuple[int, int] = (0, 0)
    _socket_gid: int = -1
    _why_not_restored: str = ""
    """What was said last of a socket that is gone."""
    _connections: dict[asyncio.Task[None], bool] = field(default_factory=dict)
    """Each connection's task, and whether it is working on a request."""

    async def start(self) -> None:
        """Listen. Raises SettingsError when the path cannot be had."""
        listening = bind_control_socket(self.path)
        status = self.path.lstat()
        self._socket_identity, self._socket_gid = (status.st_dev, status.st_ino), status.st_gid
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=self.limits.line_bytes)

    async def restore_socket(self) -> None:
        """Listen at the path again if its file is gone: who asks there would take this broker for dead, and end it.

        Connections that are open go on. A path that another broker has taken meanwhile stays its own.
        """
        if self._server is None or not self._server.is_serving() or self._has_file():
            return
        earlier = self._server
        try:
            await self.start()
        except SettingsError as error:
            if str(error) != self._why_not_restored:
                logger.error("the control socket %s is gone, and cannot be made again: %s", self.path, error)
            self._why_not_restored = str(error)
            return
        earlier.close()
        self._why_not_restored = ""
        logger.warning("the control socket %s was gone, and is made again: who removes it?", self.path)

    def _has_file(self) -> bool:
        return os.path.lexists(self.path)

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
        if task is None or self._server is None:  # accepted a moment before the end
            writer.close()
            return
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
            self._refusals.warning("pid=%d uid=%d may not use the control socket: refused", peer.pid, peer.uid)
            return ControlError(NOT_ALLOWED, f"uid {peer.uid} may not administer this broker: join the socket's group")
        if len(self._connections) >= self.limits.connections:
            self._refusals.warning("pid=%d is connection %d: refused", peer.pid, self.limits.connections + 1)
            return ControlError(TOO_MANY_CONNECTIONS, f"{self.limits.connections} control connections are open already")
        return None

    async def _answer_lines(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        """Until the caller goes. What is not JSON ends the connection: nobody knows where the next request starts."""
        caller = PeerCredentials.of(writer.get_extra_info("socket")).caller()
        while self._server is not None and self._server.is_serving():
            line = await self._next_line(reader)
            if line == b"":
                return
            self._connections[task] = True
            reply, goes_on, stream = await self._answer_who_waits(line, caller, writer)
            try:
                if reply is not None:
                    await self._send(writer, reply)
                self._connections[task] = False
                if stream is not None:
                    await self._tell(reader, writer, stream)
            finally:
                if stream is not None:
                    stream.close()
            if not goes_on:
                return

    async def _answer_who_waits(
        self, line: bytes | None, caller: Caller, writer: asyncio.StreamWriter
    ) -> ControlAnswer:
        """What one request comes to. Where it only looks and its caller goes, it ends: raises ConnectionError."""
        looks = True

        def note(method: str, params: dict[str, object]) -> None:
            nonlocal looks
            looks = OPERATIONS.reads(method, params)

        gone = partial(has_hung_up, writer.transport)
        work = asyncio.get_running_loop().create_task(self.answer(line, caller, note, gone))
        try:
            while not (await asyncio.wait((work,), timeout=LOOK_INTERVAL_S))[0]:
                if looks and gone():
                    raise ConnectionResetError("the caller has gone")
            return work.result()
        finally:
            work.cancel()

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: Stream) -> None:
        """Until the caller closes its side, or there is nothing more to tell. What it sends meanwhile means nothing."""
        telling = asyncio.create_task(self._send_notes(writer, stream))
        going = asyncio.create_task(_until_gone(reader))
        try:
            await asyncio.wait((telling, going), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (telling, going):
                task.cancel()
            await asyncio.gather(telling, going, return_exceptions=True)

    async def _send_notes(self, writer: asyncio.StreamWriter, stream: Stream) -> None:
        async for note in stream.notes:
            await self._send(writer, note_line(stream, note))

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

    async def answer(
        self, line: bytes | None, caller: Caller, permit: Permit | None = None, gone: Gone | None = None
    ) -> ControlAnswer:
        """What one request comes to, wherever it came from; None stands for one that is too long.

        What wants an answer is not begun for a caller that is `gone`: a broker that was stopped, or busy, would do
        what somebody has given up, and perhaps had another broker do. Who wants none may go at once.
        """
        try:
            document = self._decode(line)
        except ControlError as error:
            return ControlAnswer(_error(None, error), goes_on=False)
        try:
            request = _read_request(document)
        except ControlError as error:
            return ControlAnswer(_error(_identity(document), error))
        reply, stream = await self._call(request, caller, permit, gone if request.wants_reply else None)
        return ControlAnswer(reply if request.wants_reply else None, stream is None, stream)

    def _decode(self, line: bytes | None) -> object:
        if line is None:
            raise ControlError(INVALID_REQUEST, f"a request is one line of at most {self.limits.line_bytes} bytes")
        try:
            document: object = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            problem = "this is not JSON; send one JSON-RPC 2.0 object per line"
            raise ControlError(PARSE_ERROR, problem) from None
        return document

    async def _call(
        self, request: _Request, caller: Caller, permit: Permit | None, gone: Gone | None
    ) -> tuple[bytes, Stream | None]:
        method = self.methods.get(request.method)
        CALLER.set(caller)
        outcome = AuditResult.UNKNOWN, ""  # also where the broker ends meanwhile
        try:
            if permit is not None:
                permit(request.method, request.params)
            if method is None:
                raise self._no_method(request.method[:80])
            if gone is not None and gone():
                raise self._too_late(request.method, caller)
            result = method(request.params)
            if inspect.isawaitable(result):
                result = await result
            outcome = AuditResult.DONE, ""
            stream = result if isinstance(result, Stream) else None
            answer = result if stream is None else stream.answer
            return await encode_answer(request.identity, answer), stream
        except ControlError as error:
            outcome = (AuditResult.DENIED if error.code == NOT_ALLOWED else AuditResult.REFUSED), _reason(error)
            if method is not None:
                self.refused[request.method, _reason(error)] += 1
            return _error(request.identity, error), None
        except Exception as error:  # a bug in one method costs its caller an answer, and nobody else anything
            outcome = AuditResult.FAILED, "bug"
            logger.exception("control method %s failed", request.method)
            problem = f"{request.method} failed because of a bug ({type(error).__name__}); the broker's log has it"
            return _error(request.identity, ControlError(INTERNAL_ERROR, problem)), None
        finally:
            if self.record is not None and (method is not None or self.not_yet is not None):
                self.record(caller, request.method, request.params, *outcome)

    def _too_late(self, name: str, caller: Caller) -> ControlError:
        self._refusals.warning("%s was asked for by %s, who has gone since: not done", name, caller.text)
        return ControlError(REFUSED, "whoever asked for it has gone", {"reason": "caller-gone"})

    def _no_method(self, name: str) -> ControlError:
        if self.not_yet is not None:
            return self.not_yet(name)
        data = {"methods": sorted(self.methods)}
        return ControlError(METHOD_NOT_FOUND, f"no method {name!r}; {nearest(name, self.methods)}", data)


def note_line(stream: Stream, note: object) -> bytes:
    """One of the notifications of a stream, as it is sent."""
    return _encode({"jsonrpc": "2.0", "method": stream.method, "params": note})


def _reason(error: ControlError) -> str:
    """In one word of few: the data of a refusal has one."""
    reason = error.data.get("reason") if isinstance(error.data, dict) else None
    if isinstance(reason, str):
        return reason
    return {INVALID_PARAMS: "invalid", NOT_ALLOWED: "not-allowed"}.get(error.code, "refused")


async def _until_gone(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


def _identity(document: object) -> str | int | None:
    """The `id` of a request that is refused, where it can be sent back."""
    identity = document.get("id") if isinstance(document, dict) else None
    return identity if isinstance(identity, str | int) and not _problem(identity) else None


def _problem(value: object, depth: int = 0) -> str:
    """What makes a value from a request unfit to be kept, or to be sent back as JSON; empty: nothing.

    Python reads more from JSON than it, a record of the log or the next reader can write again.
    """
    if isinstance(value, str):
        return (
            "" if value.isascii() or not _LONE_SURROGATE.search(value) else "it has half of a surrogate pair in a text"
        )
    if isinstance(value, int):
        return "" if -(1 << 63) <= value < 1 << 64 else "it has an integer of more than 64 bits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "it has a number that is too large for a double"
    if isinstance(value, list | dict):
        if depth >= MAX_DEPTH:
            return f"it nests lists and objects deeper than {MAX_DEPTH}"
        parts = value if isinstance(value, list) else [*value, *value.values()]
        return next(filter(None, (_problem(part, depth + 1) for part in parts)), "")
    return ""


def _read_request(document: object) -> _Request:
    problem = _problem(document)
    if problem:
        raise ControlError(INVALID_REQUEST, f"the request cannot be carried out: {problem}")
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


async def encode_answer(identity: object, result: object) -> bytes:
    """The line for `result`. A list of thirty thousand bindings takes long: others have their turns meanwhile."""
    return await in_slices(_answer_in_steps(identity, result))


def _answer_in_steps(identity: object, result: object) -> Generator[None, None, bytes]:
    line = bytearray(f'{{"jsonrpc": "2.0", "id": {json.dumps(identity)}, "result": '.encode("ascii"))
    for piece in _pieces(result):
        line += piece.encode("ascii")  # at once: megabytes of text take milliseconds
        yield
    line += b"}\n"
    return bytes(line)


def _pieces(value: object) -> Iterator[str]:
    """The JSON text of `value`, piece by piece."""
    if isinstance(value, Iterator):
        start = "["
        for element in value:
            yield start
            yield from _pieces(element)
            start = ", "
        yield "[]" if start == "[" else "]"
    elif isinstance(value, dict) and any(isinstance(element, Iterator) for element in value.values()):
        start = "{"
        for name, element in value.items():
            yield f"{start}{json.dumps(name)}: "
            yield from _pieces(element)
            start = ", "
        yield "}"
    else:
        yield json.dumps(value, allow_nan=False)


def _refuse_constant(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
