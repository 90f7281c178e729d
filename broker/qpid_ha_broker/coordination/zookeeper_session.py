"""A session with a ZooKeeper ensemble: connected when it is first needed, and every request has an end.

kazoo keeps the session, reconnects, and hands out answers. What is added here is what it does not do: it leaves a
server that does not answer for another one within a second (by itself it notices only after two thirds of the session,
and never while requests go out), it knows which session timeout the server granted, and it trusts no certificate
authority beside the one that was set.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RequestTimeoutError,
    SessionExpiredError,
    SessionMovedError,
    ThrottledOpError,
    ZookeeperError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL

from qpid_ha_broker.coordination.coordinator import CALL_LIMIT_S, CoordinatorError
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import CoordinatorSettings, read_password_file

log = logging.getLogger("coordinator")

ATTEMPT_S = 0.8
"""So long one server may take for an answer, or for letting us in."""
AVOID_S = 5.0
"""So long nobody goes back to the server that did not answer, where there is another one."""
_CLOSE_S = 1.0
_LONGEST_PAUSE_S = 1.0
"""Between two attempts to connect to all servers."""
_CONNECT_ANSWER = struct.Struct(">iii")
"""How ZooKeeper's answer to the first request begins: length, protocol version, session timeout in milliseconds."""

ANY_VERSION: Final = -1
_RUNNING: Final = "see that a majority of its servers runs"
_ANSWERS: Final = (NoNodeError, NodeExistsError, BadVersionError)
_LOSSES: Final = (
    ConnectionLoss, SessionExpiredError, SessionMovedError, OperationTimeoutError, RequestTimeoutError,
    ThrottledOpError,
)  # fmt: skip

Request = Callable[[KazooClient], Any]
"""Sends one request: what the client's `..._async` methods return."""
Watch = Callable[[WatchedEvent], None]
"""Called once, in kazoo's thread: when something has changed, or the connection is lost. It must not block."""


class NoAnswer(CoordinatorError):
    """No server answers."""


class LostAnswer(NoAnswer):
    """A request went out, and whether it was carried out is not known."""


def boot_time_s() -> float:
    """A clock that goes on while this process is stopped, and while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def get_of(path: str, watch: Watch | None = None) -> Request:
    """The node's content and its status. What changes there is told only if it is there."""
    return lambda zk: zk.get_async(path, watch)


def exists_of(path: str, watch: Watch | None = None) -> Request:
    """The node's status, or None."""
    return lambda zk: zk.exists_async(path, watch)


def children_of(path: str, watch: Watch | None = None) -> Request:
    """The names of the nodes below that one."""
    return lambda zk: zk.get_children_async(path, watch)


def create_of(path: str, content: bytes, acl: list[ACL]) -> Request:
    """A node that stays."""
    return lambda zk: zk.create_async(path, content, acl)


def set_of(path: str, content: bytes, version: int) -> Request:
    """If it still has that version."""
    return lambda zk: zk.set_async(path, content, version)


def delete_of(path: str) -> Request:
    """Whatever its version is."""
    return lambda zk: zk.delete_async(path)


def check_of(path: str, version: int = ANY_VERSION) -> Request:
    """A transaction that does nothing but compare. It is agreed on like a write, also when it is refused."""

    def send(zk: KazooClient) -> Any:
        transaction = zk.transaction()
        transaction.check(path, version)
        return transaction.commit_async()

    return send


def deadline() -> float:
    """Of a call that begins now, by `time.monotonic`."""
    return time.monotonic() + CALL_LIMIT_S


class Credentials:
    """What an ensemble is shown: a name with its password, and certificates. Raises SettingsError."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self.username = settings.username or ""
        self.digest = f"{self.username}:{self._password()}" if self.username else ""
        """For `addauth digest`; empty: nobody in particular. It belongs into no log."""
        if settings.tls:
            self.tls_context()

    def tls_context(self) -> ssl.SSLContext:
        """Read anew for each connection: certificates are renewed. Raises SettingsError."""
        settings = self._settings
        try:
            context = ssl.create_default_context(cafile=None if settings.ca is None else str(settings.ca))
        except (OSError, ValueError) as error:
            raise SettingsError("ha.coordinator-ca", f"cannot use {settings.ca}: {_problem_of(error)}") from None
        if settings.certificate is not None:
            try:
                context.load_cert_chain(settings.certificate, settings.key)
            except (OSError, ValueError) as error:
                problem = f"cannot use {settings.certificate} with {settings.key}: {_problem_of(error)}"
                raise SettingsError("ha.coordinator-certificate", problem) from None
        return context

    def _password(self) -> str:
        path = self._settings.password_file
        if path is None:
            raise SettingsError("ha.coordinator-password-file", "a user needs a password: write it into a file")
        try:
            return read_password_file(path)
        except OSError as error:
            problem = f"cannot read {path}: {error.strerror}"
        except ValueError as error:
            problem = str(error)
        raise SettingsError("ha.coordinator-password-file", problem)


class ZooKeeperSession:
    """The promise: a request is answered, or CoordinatorError raised, before its deadline; from any thread."""

    def __init__(
        self, settings: CoordinatorSettings, timeout_s: float, patience_s: float, *, speaks: bool = True
    ) -> None:
        self.credentials = Credentials(settings)
        self.place = f"ZooKeeper at {','.join(map(str, settings.url.servers))}"
        """For messages."""
        self._settings = settings
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        """So long after its connection was lost, the session is given up for a new one. Servers that lost their data
        never take it: it has seen later changes than they have."""
        self._speaks = speaks
        """Says when the connection is lost, and when it is back."""
        self._moved = threading.Condition()
        """Guards all below, and is notified when the connection's state changes."""
        self._client: KazooClient | None = None
        self._threads: list[threading.Thread] = []
        """Of the client."""
        self._connection: _Connection | None = None
        self._listeners: list[Callable[[], None]] = []
        self._silence = _Silence("not connected yet", _RUNNING)
        self._avoided: tuple[object, float] = (None, 0.0)
        """The server that did not answer, and when that was."""
        self._lost_at_s: float | None = None
        """When the connection was, by `boot_time_s`; None while it is there, and for a client that had none yet."""
        self._was_lost = False
        """That was said last."""
        self.is_closed = False
        self.number = 0
        """Of the session: nodes and watches of the one before are gone."""

    @property
    def timeout_s(self) -> float:
        """So long after the last sign of life the session ends: what was asked for, or less if less was granted."""
        connection = self._connection
        granted_s = 0.0 if connection is None else connection.granted_s
        return min(self._timeout_s, granted_s) if granted_s else self._timeout_s

    @property
    def begun_at_s(self) -> float:
        """When the connection was begun that there is now, by `boot_time_s`."""
        connection = self._connection
        return 0.0 if connection is None else connection.begun_at_s

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called when the connection is lost, and when it is there, until the returned function is
        called. It must not block."""
        with self._moved:
            self._listeners.append(listener)

        def end() -> None:
            with self._moved:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def begin(self) -> None:
        """Connect in the background, if that has not begun yet. Raises CoordinatorError when it was closed."""
        with self._moved:
            self._started()

    def ask(self, deadline_s: float, *requests: Request) -> list[Any]:
        """Send them one after the other, and wait for all answers: each a value, or one of the errors NoNodeError,
        NodeExistsError and BadVersionError. Raises LostAnswer, CoordinatorError. `deadline_s`: of `time.monotonic`.
        """
        client, connection = self._connected(deadline_s)
        number, until_s = self.number, min(deadline_s, time.monotonic() + ATTEMPT_S)
        answers = []
        for sent in [request(client) for request in requests]:
            if number != self.number:  # in a new session a server may answer that lags behind
                raise LostAnswer(self._why_silent())
            try:
                answers.append(sent.get(timeout=max(0.0, until_s - time.monotonic())))
            except _ANSWERS as error:
                answers.append(error)
            except KazooTimeoutError:
                self._give_up(connection)
                raise LostAnswer(self._why_silent()) from None
            except _LOSSES:
                raise LostAnswer(self._why_silent()) from None
            except ZookeeperError as error:
                raise self.refusal(error) from None
            except Exception as error:  # what ended kazoo's connection is the answer to all that were asked on it
                raise LostAnswer(f"{self._why_silent()}; its connection ended with {error!r}") from error
        return answers

    def ask_again(self, deadline_s: float, *requests: Request) -> list[Any]:
        """`ask` for requests that may be sent twice. Raises CoordinatorError."""
        while True:
            try:
                return self.ask(deadline_s, *requests)
            except LostAnswer:
                if time.monotonic() >= deadline_s:
                    raise

    def check(self, path: str, deadline_s: float, version: int = ANY_VERSION) -> Exception | None:
        """Ask a majority of the servers whether the node has that version: None, NoNodeError or BadVersionError. Raises
        CoordinatorError."""
        (answer,) = self.ask_again(deadline_s, check_of(path, version))
        return self.problem_in(answer)

    def problem_in(self, checked: list[Any]) -> Exception | None:
        """What the answer to `check_of` says. Raises CoordinatorError."""
        (answer,) = checked
        problem: Exception | None = answer if isinstance(answer, Exception) else None
        if problem is None or isinstance(problem, _ANSWERS):
            return problem
        raise self.refusal(problem)

    def refusal(self, error: Exception) -> CoordinatorError:
        """What an answer means to an operator."""
        who = f"the user {self.credentials.username}" if self.credentials.username else "users without a name"
        if isinstance(error, (NoAuthError, AuthFailedError, InvalidACLError)):
            self._take_new_credentials()
        if isinstance(error, NoAuthError):
            return CoordinatorError(
                f"{self.place} does not let {who} use the namespace {self._settings.url.namespace}: see that "
                "ha.coordinator-username and the password are those with which it was made (`zkCli.sh getAcl` shows "
                "who may), or take another namespace"
            )
        if isinstance(error, (AuthFailedError, InvalidACLError)):
            return CoordinatorError(
                f"{self.place} does not take name and password of {who}: see ha.coordinator-username and "
                "ha.coordinator-password-file, and that the servers take digest authentication"
            )
        return CoordinatorError(f"{self.place} refuses a request: {type(error).__name__} {error}".rstrip())

    def close(self) -> None:
        """End the session, if the servers can be told soon; else they end it themselves."""
        with self._moved:
            client, self._client, self.is_closed = self._client, None, True
            connection = self._connection
            self.number += 1
            self._moved.notify_all()
        if client is None:
            return
        ending = threading.Thread(target=_end, args=(client,), name="zookeeper-end", daemon=True)
        ending.start()
        ending.join(_CLOSE_S)
        if connection is not None:
            connection.shut()

    # --- the connection

    def _connected(self, deadline_s: float) -> tuple[KazooClient, _Connection]:
        """Once it is connected. Raises CoordinatorError."""
        with self._moved:
            while True:
                client, connection = self._started(), self._connection
                if connection is not None and client.connected:
                    return client, connection
                if client.client_state == KeeperState.AUTH_FAILED:
                    raise self.refusal(AuthFailedError())
                now_s = time.monotonic()
                if now_s >= deadline_s:
                    raise NoAnswer(self._why_silent())
                if connection is not None and not connection.granted_s and now_s - connection.open_since_s > ATTEMPT_S:
                    self._give_up(connection)
                self._moved.wait(min(deadline_s - now_s, 0.1))

    def _started(self) -> KazooClient:
        if self.is_closed:
            raise CoordinatorError(f"{self.place} is not used any more: the coordinator was closed")
        is_dead = not all(thread.is_alive() for thread in self._threads)  # where it meets a bug, it ends
        is_over = self._lost_at_s is not None and boot_time_s() - self._lost_at_s >= self._patience_s
        if self._client is not None and (is_dead or is_over):
            self._drop_client()
        if self._client is None:
            self._threads = []
            self._client = self._make_client()
            self._client.start_async()
        return self._client

    def _take_new_credentials(self) -> None:
        """If the password file says something else by now."""
        try:
            credentials = Credentials(self._settings)
        except SettingsError:  # what was refused says enough
            return
        with self._moved:
            if credentials.digest != self.credentials.digest and self._client is not None:
                self.credentials = credentials
                self._drop_client()

    def _drop_client(self) -> None:
        """The next call makes a new one, with a session of its own."""
        client, self._client = self._client, None
        self._lost_at_s = None
        self.number += 1
        threading.Thread(target=_end, args=(client,), name="zookeeper-end", daemon=True).start()

    def _make_client(self) -> KazooClient:
        handler = SequentialThreadingHandler()
        spawn = handler.spawn

        def spawn_known(work: Callable[[], None]) -> threading.Thread:
            thread: threading.Thread = spawn(work)
            self._threads.append(thread)
            return thread

        handler.spawn = spawn_known
        handler.create_connection = self._connect
        handler.dispatch_callback = _call_at_once
        client = KazooClient(
            hosts=",".join(map(str, self._settings.url.servers)),
            timeout=self._timeout_s,
            handler=handler,
            auth_data={("digest", self.credentials.digest)} if self.credentials.digest else None,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=_LONGEST_PAUSE_S),
            logger=_bugs_only(),
        )
        client.add_listener(lambda state: self._state_changed(client, state))
        return client

    def _connect(self, address: tuple[str, int], hostname: str, timeout: float = ATTEMPT_S, **_: object) -> _Connection:
        """In kazoo's thread, to one server. Raises OSError."""
        place, begun_at_s = f"{hostname}:{address[1]}", boot_time_s()
        if self._is_avoided(address):
            raise ConnectionRefusedError(f"{place} did not answer a moment ago")
        try:
            opened = socket.create_connection(address, min(timeout, ATTEMPT_S))
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._settings.tls:
                opened = self.credentials.tls_context().wrap_socket(opened, server_hostname=hostname)
        except (OSError, SettingsError) as error:
            self._note(place, error)
            raise OSError(str(error)) from None
        connection = _Connection(opened, address, begun_at_s, lambda error: self._note(place, error))
        with self._moved:
            self._connection = connection
        return connection

    def _is_avoided(self, address: tuple[str, int]) -> bool:
        avoided, since_s = self._avoided
        has_others = len(self._settings.url.servers) > 1
        return has_others and address == avoided and time.monotonic() - since_s < AVOID_S

    def _give_up(self, connection: _Connection) -> None:
        """Another server may answer."""
        with self._moved:
            if connection is self._connection and not connection.is_shut:
                self._avoided = (connection.address, time.monotonic())
                connection.give_up()

    def _note(self, place: str, error: Exception) -> None:
        self._silence = _Silence(f"{place}: {_problem_of(error)}", _advice_on(error))

    def _why_silent(self) -> str:
        return f"{self.place} does not answer ({self._silence.problem}): {self._silence.advice}"

    def _state_changed(self, client: KazooClient, state: str) -> None:
        """In kazoo's thread."""
        with self._moved:
            if client is not self._client:
                return
            if state == KazooState.LOST:
                self.number += 1
            is_connected, was_lost = state == KazooState.CONNECTED, self._was_lost
            self._was_lost = not is_connected
            if is_connected:
                self._lost_at_s = None
            elif not was_lost:
                self._lost_at_s = boot_time_s()
            self._moved.notify_all()
            listeners = list(self._listeners)
        if self._speaks and is_connected and was_lost:
            log.info("%s answers again", self.place)
        elif self._speaks and not is_connected and not was_lost:
            log.warning("%s: the connection is lost (%s)", self.place, self._silence.problem)
        for listener in listeners:
            listener()


class _Silence:
    """Why nobody answers, and what to do about it."""

    def __init__(self, problem: str, advice: str) -> None:
        self.problem = problem
        self.advice = advice


class _Connection:
    """A socket as kazoo uses it, which reads along how long a session the server grants."""

    def __init__(
        self,
        opened: socket.socket,
        address: tuple[str, int],
        begun_at_s: float,
        note: Callable[[Exception], None],
    ) -> None:
        self._socket = opened
        self.address = address
        self.begun_at_s = begun_at_s
        """By `boot_time_s`."""
        self.open_since_s = time.monotonic()
        self._note = note
        self._beginning = b""
        self.granted_s = 0.0
        """The session's timeout; 0 before the server has let us in."""
        self.is_shut = False

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def setblocking(self, blocking: bool) -> None:
        """As of a socket."""
        self._socket.setblocking(blocking)

    def pending(self) -> int:
        """Bytes that select does not know of."""
        return self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0

    def send(self, data: bytes) -> int:
        """As of a socket. Raises OSError."""
        return self._socket.send(data)

    def recv(self, size: int) -> bytes:
        """As of a socket. Raises OSError."""
        try:
            received = self._socket.recv(size)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self._note(error)
            raise
        if not received and not self.is_shut:
            self._note(ConnectionResetError("it ended the connection, as servers do that do not serve"))
        if len(self._beginning) < _CONNECT_ANSWER.size:
            self._beginning += received
            if len(self._beginning) >= _CONNECT_ANSWER.size:
                self.granted_s = max(0, _CONNECT_ANSWER.unpack_from(self._beginning)[2]) / 1000
        return received

    def give_up(self) -> None:
        """The server does not answer in time."""
        self._note(TimeoutError(f"no answer within {ATTEMPT_S:g} s"))
        self.shut()

    def shut(self) -> None:
        """From any thread: whoever reads finds the end."""
        self.is_shut = True
        with contextlib.suppress(OSError):  # it has ended by itself
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """As of a socket."""
        self._socket.close()


def _problem_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _advice_on(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "see that its certificate is valid for that name, and signed by an authority of ha.coordinator-ca"
    if isinstance(error, ssl.SSLError) and "certificate" in _problem_of(error):
        return "see that ha.coordinator-certificate is valid, and signed by an authority that the servers trust"
    if isinstance(error, ssl.SSLError):
        return "see that this is its port for TLS, and ha.coordinator-tls is right"
    if isinstance(error, SettingsError):
        return "put it right"
    return _RUNNING


def _call_at_once(callback: Any) -> None:
    """kazoo would call it from a thread of its own. Ours only note what happened, and must have noted it before the
    answer to a later request is looked at."""
    callback.func(*callback.args)


def _bugs_only() -> logging.Logger:
    """kazoo says in many lines what is ordinary, and at DEBUG the password."""
    quiet = logging.Logger("kazoo", logging.ERROR)
    quiet.parent = log
    quiet.addFilter(_tell_known_fault)
    return quiet


def _tell_known_fault(record: logging.LogRecord) -> bool:
    """When a server was away in the middle of a request, kazoo may take the answer for that to a later one. It connects
    anew, and makes a bug of it (its issue 254): one line says so, without a traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, RuntimeError) and str(error.args[:1]).startswith("('xids do not match"):
        record.levelno, record.levelname, record.exc_info = logging.WARNING, "WARNING", None
        record.msg, record.args = "ZooKeeper has answered another request than the last one: connecting anew", ()
    return True


def _end(client: KazooClient) -> None:
    try:
        client.stop()
        client.close()
    except (KazooException, OSError):  # nobody answers: the servers end the session themselves
        return
