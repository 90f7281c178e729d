"""etcd's v3 interface as JSON over HTTP (its gateway): what a coordinator needs of it, from any server that answers.

https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/. Keys and values are base64, 64-bit numbers are text, and a field
that is 0 or empty is left out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import requests
from requests.adapters import HTTPAdapter

from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.deadline import Deadline
from qpid_ha_config.coordinator import Server
from qpid_ha_config.settings import CoordinatorSettings, read_password_file

ATTEMPT_S: Final = 0.7
"""Of one server; then the next one is asked."""
STREAM_SILENCE_S: Final = 300.0
"""After so long a stream is opened anew. Dead machines are noticed by TCP, and servers that hang by other calls: they
go to the same server, because streams are at the one that is asked first."""
_BETWEEN_ROUNDS_S: Final = 0.1
_MOMENT_S: Final = 0.01
"""No attempt is shorter."""
_SOCKET_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000),
)
"""A stream to a machine that lost its power ends within 3 s."""

Json = Mapping[str, object]


class GrpcCode(IntEnum):
    """Of https://grpc.github.io/grpc/core/md_doc_statuscodes.html, those that matter here."""

    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    UNAVAILABLE = 14


_ENDED_TLS: Final = "it ended the connection: see its log, ha.coordinator-tls and ha.coordinator-certificate"
_TRY_ANOTHER: Final = frozenset({GrpcCode.DEADLINE_EXCEEDED, GrpcCode.UNAVAILABLE})
"""No leader, leader changed, request timed out: another server, or this one a moment later, may do it."""
_TOKEN_IS_OLD: Final = ("invalid auth token", "revision of auth store is old")
_ADVICE: Final = MappingProxyType(
    {
        "user name is empty": "it wants a user: set ha.coordinator-username and ha.coordinator-password-file",
        "authentication failed": "correct ha.coordinator-username or what ha.coordinator-password-file names",
        "authentication is not enabled": (
            "it has no users: `etcdctl auth enable`, or take ha.coordinator-username out of the settings"
        ),
        "database space exceeded": "its disk quota is used up: compact, defragment, and `etcdctl alarm disarm`",
    }
)
"""What to do, by a part of etcd's own message."""


class EtcdRefused(CoordinatorError):
    """etcd has understood, and refuses."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class KeyValue(NamedTuple):
    """One key as it was read."""

    key: str
    value: bytes
    mod_revision: int
    """Of the store, when the key changed last; no two changes of a store have the same."""
    lease: int
    """0: none."""


class PrefixRead(NamedTuple):
    """An answer to a read."""

    revision: int
    """Of the store when it was read."""
    entries: tuple[KeyValue, ...]
    server: Server
    """Who answered."""


class TxnOutcome(NamedTuple):
    """An answer to a transaction on one key."""

    succeeded: bool
    entry: KeyValue | None
    """What is there instead, if it did not succeed."""
    revision: int
    may_be_second: bool
    """A first attempt got no answer, and may have been carried out."""


class WatchAnswer(NamedTuple):
    """What a stream of changes said."""

    revision: int
    """0 where it says none."""
    changed: Mapping[str, KeyValue | None]
    """None: deleted."""
    is_compacted: bool
    """What was asked for is not kept any more; the stream has ended."""


@dataclass(frozen=True)
class Change:
    """Put `value` (None: delete the key), if the key is as `expected` says (None: not there)."""

    key: str
    expected: KeyValue | None
    value: bytes | None
    lease: int = 0

    def as_json(self) -> Json:
        """The body of the transaction; its other branch reads what is there."""
        key = _encoded(self.key.encode())
        compare: list[Json] = []
        if self.expected is None:
            compare.append({"target": "CREATE", "key": key, "result": "EQUAL", "create_revision": "0"})
        else:
            # Revisions begin anew when all servers lost their data: then the content tells.
            revision = str(self.expected.mod_revision)
            compare.append({"target": "MOD", "key": key, "result": "EQUAL", "mod_revision": revision})
            compare.append({"target": "VALUE", "key": key, "result": "EQUAL", "value": _encoded(self.expected.value)})
        if self.value is None:
            success: Json = {"request_delete_range": {"key": key}}
        else:
            success = {"request_put": {"key": key, "value": _encoded(self.value), "lease": str(self.lease)}}
        return {"compare": compare, "success": [success], "failure": [{"request_range": {"key": key}}]}


@dataclass
class _Attempts:
    """Of one call: who failed, and how."""

    failures: dict[Server, str] = field(default_factory=dict)
    may_have_done: bool = False
    """One of them may have done what was asked."""
    is_worth_another: bool = False
    """Somebody is there, at least."""


class _ServerFailed(Exception):
    """This server is of no use now."""

    def __init__(self, text: str, may_have_done: bool) -> None:
        super().__init__(text)
        self.may_have_done = may_have_done


class _GatewayAnswer(NamedTuple):
    content: Json
    server: Server
    may_be_second: bool


class EtcdLogin:
    """The token of one user at one ensemble, which all gateways of a process share. etcd has each login cost a tenth of
    a second of a processor or more (bcrypt), and answers nobody else meanwhile: so there is one at a time, and whoever
    waits for it takes what it brought."""

    def __init__(self) -> None:
        self.token = ""
        """Empty: there is none yet."""
        self._busy = threading.Lock()

    def renewed(self, old: str, timeout_s: float, log_in: Callable[[], str]) -> str:
        """Another token than `old`, by `log_in` unless somebody has got one meanwhile. Raises what that does, and
        _ServerFailed where another login takes too long."""
        if not self._busy.acquire(timeout=max(timeout_s, 0.0)):
            raise _ServerFailed(f"another login takes longer than {timeout_s:g} s", may_have_done=False)
        try:
            if self.token == old:
                self.token = log_in()
            return self.token
        finally:
            self._busy.release()


_LOGINS: Final[dict[tuple[object, ...], EtcdLogin]] = {}
_LOGINS_MUTEX: Final = threading.Lock()


def _login_of(settings: CoordinatorSettings) -> EtcdLogin:
    """One login for all who log in as the same user with the same password, at the same servers in the same way."""
    servers, file = tuple(sorted(map(str, settings.url.servers))), settings.password_file
    password = b""
    if file is not None:
        with suppress(OSError, ValueError):  # who needs it is told
            password = hashlib.sha256(read_password_file(file).encode()).digest()
    key = (servers, settings.username, file, password, settings.tls, settings.ca)
    with _LOGINS_MUTEX:
        return _LOGINS.setdefault(key, EtcdLogin())


class EtcdGateway:
    """The promise: a call answers or raises CoordinatorError by its deadline, and a server that is slow or dead costs
    one call its time, not each: whoever answered last is asked first. A stream of another server than that one ends.

    A call whose answer was lost is made again at another server. That is harmless, because nothing here happens twice:
    transactions are conditional on a revision, and leases have numbers that we choose.
    """

    def __init__(self, settings: CoordinatorSettings) -> None:
        self._settings = settings
        self._servers = list(settings.url.servers)
        random.shuffle(self._servers)  # many clusters share the servers' work
        self._mutex = threading.Lock()
        self._idle: list[requests.Session] = []
        self._streams: set[WatchStream] = set()
        self._login = _login_of(settings)
        self._is_closed = False

    # --- what can be asked

    def read(self, key: str, deadline: Deadline) -> KeyValue | None:
        """What the majority of the servers agrees on. Raises CoordinatorError."""
        entries = self._range({"key": _encoded(key.encode())}, deadline).entries
        return entries[0] if entries else None

    def read_prefix(self, prefix: str, deadline: Deadline) -> PrefixRead:
        """All keys that begin with it. Raises CoordinatorError."""
        return self._range(_prefix_range(prefix), deadline)

    def commit(self, change: Change, deadline: Deadline) -> TxnOutcome:
        """Carry it out, or learn what is there instead. Raises CoordinatorError, and then nobody knows."""
        answer = self._call("/v3/kv/txn", change.as_json(), deadline)
        revision, entry = _revision(answer.content), None
        if not answer.content.get("succeeded"):
            responses = _objects(answer.content, "responses")
            kvs = _objects(_object(responses[0], "response_range"), "kvs") if responses else []
            entry = _key_value(kvs[0]) if kvs else None
        return TxnOutcome(bool(answer.content.get("succeeded")), entry, revision, answer.may_be_second)

    def grant(self, lease: int, ttl_s: int, deadline: Deadline) -> int:
        """A lease with a number of our own; for how many seconds it was granted. Raises CoordinatorError."""
        try:
            answer = self._call("/v3/lease/grant", {"ID": str(lease), "TTL": str(ttl_s)}, deadline)
        except EtcdRefused as refusal:
            if "lease already exists" not in str(refusal):
                raise
            return ttl_s  # the numbers are drawn at random: a first attempt got through
        return _number(answer.content, "TTL")

    def keep_alive(self, lease: int, deadline: Deadline) -> int:
        """For how many seconds more; 0: it is gone. Raises CoordinatorError."""
        answer = self._call("/v3/lease/keepalive", {"ID": str(lease)}, deadline)
        return _number(_object(answer.content, "result"), "TTL")

    def revoke(self, lease: int, deadline: Deadline) -> None:
        """Take back the lease, and delete the keys that hang on it. Raises CoordinatorError."""
        try:
            self._call("/v3/lease/revoke", {"ID": str(lease)}, deadline)
        except EtcdRefused as refusal:
            if refusal.code != GrpcCode.NOT_FOUND:
                raise

    def open_watch(self, server: Server, prefix: str, revision: int) -> WatchStream:
        """Changes of keys below `prefix` from `revision` on, as this server learns of them. Raises CoordinatorError."""
        create = {**_prefix_range(prefix), "start_revision": str(revision)}
        try:
            return self._open_stream(server, "/v3/watch", {"create_request": create})
        except _ServerFailed as failure:
            self._put_last(server)
            raise CoordinatorError(f"{server}: {failure}") from None

    def close(self) -> None:
        """End streams and connections."""
        with self._mutex:
            self._is_closed = True
            sessions, self._idle = self._idle, []
            streams = list(self._streams)
        for stream in streams:
            stream.shut_down()
        for session in sessions:
            session.close()

    # --- one call, at one server after the other

    def _range(self, body: Json, deadline: Deadline) -> PrefixRead:
        answer = self._call("/v3/kv/range", body, deadline)
        entries = tuple(_key_value(kv) for kv in _objects(answer.content, "kvs"))
        return PrefixRead(_revision(answer.content), entries, answer.server)

    def _call(self, path: str, body: Json, deadline: Deadline) -> _GatewayAnswer:
        """Raises CoordinatorError."""
        attempts = _Attempts()
        while True:
            attempts.is_worth_another = False
            for server in self._in_order():
                if not deadline.left_s():
                    break
                try:
                    content = self._ask(server, path, body, min(ATTEMPT_S, deadline.left_s() + _MOMENT_S))
                except _ServerFailed as failure:
                    attempts.failures[server] = str(failure)
                    attempts.may_have_done |= failure.may_have_done
                    attempts.is_worth_another |= failure.may_have_done
                    self._put_last(server)
                else:
                    return _GatewayAnswer(content, server, attempts.may_have_done)
            if not attempts.is_worth_another or deadline.left_s() <= _BETWEEN_ROUNDS_S:
                raise CoordinatorError(self._nobody_answers(attempts.failures))
            time.sleep(_BETWEEN_ROUNDS_S)

    def _ask(self, server: Server, path: str, body: Json, timeout_s: float) -> Json:
        """Raises _ServerFailed, EtcdRefused, CoordinatorError."""
        token = self._token(server, timeout_s)
        try:
            return self._post(server, path, body, token, timeout_s)
        except EtcdRefused as refusal:
            if not self._settings.username or not any(text in str(refusal) for text in _TOKEN_IS_OLD):
                raise
        return self._post(server, path, body, self._renew_token(server, token, timeout_s), timeout_s)

    def _post(self, server: Server, path: str, body: Json, token: str, timeout_s: float) -> Json:
        """Raises _ServerFailed, EtcdRefused."""
        with (
            self._session() as session,
            _failures_of(self._settings),
            self._request(session, server, path, body, token, timeout_s) as response,
        ):
            return self._understood(response.status_code, response.content)

    def _open_stream(self, server: Server, path: str, body: Json) -> WatchStream:
        """Raises _ServerFailed, CoordinatorError."""
        token = self._token(server, ATTEMPT_S)
        session = self._new_session()
        try:
            with _failures_of(self._settings):
                response = self._request(session, server, path, body, token, ATTEMPT_S)
                if response.status_code != requests.codes.ok:
                    self._understood(response.status_code, response.content)
                stream = WatchStream(self, session, response, server)
        except (_ServerFailed, CoordinatorError):
            session.close()
            raise
        with self._mutex:
            self._streams.add(stream)
            # A call may have failed at that server since it was chosen: no later one would go there, and notice.
            is_wanted = not self._is_closed and server == self._servers[0]
        if not is_wanted:
            stream.shut_down()
        return stream

    def _request(
        self, session: requests.Session, server: Server, path: str, body: Json, token: str, timeout_s: float
    ) -> requests.Response:
        """`timeout_s`: for the connection, and again for the answer to begin."""
        scheme = "https" if self._settings.tls else "http"
        # A server that has lost the majority ends a stream that says so, and another one is asked.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if token:
            headers["Authorization"] = token
        return session.post(
            f"{scheme}://{server}{path}",
            data=json.dumps(body).encode(),
            headers=headers,
            timeout=timeout_s,
            allow_redirects=False,
            stream=True,
        )

    # --- who is asked, and over which connection

    def _in_order(self) -> Sequence[Server]:
        with self._mutex:
            return tuple(self._servers)

    def _put_last(self, server: Server) -> None:
        """Others are asked before it; its streams are opened anew, elsewhere."""
        with self._mutex:
            self._servers.remove(server)
            self._servers.append(server)
            streams = [stream for stream in self._streams if stream.server == server]
        for stream in streams:
            stream.shut_down()

    def forget(self, stream: WatchStream) -> None:
        """The stream is closed."""
        with self._mutex:
            self._streams.discard(stream)

    @contextmanager
    def _session(self) -> Iterator[requests.Session]:
        """One that nobody else uses meanwhile: they are not made for several threads at once."""
        with self._mutex:
            session = self._idle.pop() if self._idle else None
        session = session or self._new_session()
        try:
            yield session
        finally:
            with self._mutex:
                is_kept = not self._is_closed
                if is_kept:
                    self._idle.append(session)
            if not is_kept:
                session.close()

    def _new_session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False  # no proxies, no .netrc
        adapter = _Adapter(pool_connections=len(self._servers), pool_maxsize=1, max_retries=0)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        session.verify = str(self._settings.ca) if self._settings.ca is not None else _system_authorities()
        if self._settings.certificate is not None and self._settings.key is not None:
            session.cert = (str(self._settings.certificate), str(self._settings.key))
        return session

    # --- users

    def _token(self, server: Server, timeout_s: float) -> str:
        """Empty without a user. Raises _ServerFailed, CoordinatorError."""
        if not self._settings.username:
            return ""
        return self._login.token or self._renew_token(server, "", timeout_s)

    def _renew_token(self, server: Server, old: str, timeout_s: float) -> str:
        """Log in, unless somebody else in this process has. Raises _ServerFailed, CoordinatorError."""
        return self._login.renewed(old, timeout_s, lambda: self._log_in(server, timeout_s))

    def _log_in(self, server: Server, timeout_s: float) -> str:
        body = {"name": self._settings.username, "password": self._password()}
        answer = self._post(server, "/v3/auth/authenticate", body, "", timeout_s)
        token = answer.get("token")
        if not isinstance(token, str) or not token:
            raise CoordinatorError(f"{server} gave no token at a login: is it etcd?")
        return token

    def _password(self) -> str:
        """Raises CoordinatorError."""
        path = self._settings.password_file
        if path is None:
            raise CoordinatorError(
                f"ha.coordinator-username is {self._settings.username}: set ha.coordinator-password-file, too"
            )
        try:
            return read_password_file(path)
        except OSError as error:
            raise CoordinatorError(f"cannot read {path}: {error.strerror or error}") from None
        except ValueError as error:
            raise CoordinatorError(str(error)) from None

    # --- what went wrong

    def _understood(self, status: int, content: bytes) -> Json:
        """Raises _ServerFailed, EtcdRefused."""
        first_line = content.partition(b"\n")[0]
        try:
            answer = json.loads(first_line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            said = first_line[:80].decode("utf-8", "replace").strip()
            if "HTTPS" in said:
                raise _ServerFailed("it speaks TLS only: set ha.coordinator-tls", may_have_done=False)
            raise _ServerFailed(f"HTTP {status} {said!r}: is it etcd 3.4 or newer?", may_have_done=False)
        if status != requests.codes.ok or "error" in answer:
            self.raise_error(answer)
        return answer

    def raise_error(self, answer: Json) -> None:
        """As the gateway says it: of a call, or within a stream. Raises _ServerFailed, EtcdRefused."""
        inner = answer.get("error")
        said: Json = inner if isinstance(inner, dict) else answer
        code = _number(said, "code") or _number(said, "grpc_code")
        message = str(said.get("message") or said.get("error") or said).removeprefix("etcdserver: ")
        if code in _TRY_ANOTHER:
            raise _ServerFailed(message, may_have_done=True)
        raise EtcdRefused(f"etcd refuses: {message}{self._advice(message)}", code)

    def _advice(self, message: str) -> str:
        if "permission denied" in message:
            namespace, user = self._settings.url.namespace, self._settings.username
            grant = f"`etcdctl role grant-permission ROLE --prefix=true readwrite {namespace}/`"
            return f": the user {user} needs a role that may read and write {namespace}/: {grant}"
        return next((f": {advice}" for text, advice in _ADVICE.items() if text in message), "")

    def _nobody_answers(self, failures: Mapping[Server, str]) -> str:
        reasons = "; ".join(f"{server}: {failures.get(server, 'not asked')}" for server in self._settings.url.servers)
        return f"etcd does not answer ({reasons}): start its servers, or correct ha.coordinator"


class WatchStream:
    """Messages of one server, until it or `shut_down` ends them."""

    def __init__(
        self, gateway: EtcdGateway, session: requests.Session, response: requests.Response, server: Server
    ) -> None:
        self.server = server
        self._gateway = gateway
        self._session = session
        self._response = response
        # Closing a response does not wake the thread that reads it; the end of its connection does.
        self._socket = socket.socket(fileno=os.dup(response.raw.fileno()))
        # The answer has begun in time; what follows comes when there is something to tell.
        connection = response.raw.connection
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(STREAM_SILENCE_S)

    def __iter__(self) -> Iterator[WatchAnswer]:
        """Raises CoordinatorError when the server ends it with a reason; any other end ends the iteration."""
        rest = b""
        try:
            for piece in self._response.iter_content(chunk_size=None):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield self._understood(line)
        except (requests.RequestException, OSError, _ServerFailed):
            return  # silent too long, shut down, or its server has gone

    def shut_down(self) -> None:
        """Wake whoever reads it; from any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """By whoever read it."""
        self._gateway.forget(self)
        self._socket.close()
        self._response.close()
        self._session.close()

    def _understood(self, line: bytes) -> WatchAnswer:
        """Raises _ServerFailed, CoordinatorError."""
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise CoordinatorError(f"{self.server} answers as etcd does not: correct ha.coordinator")
        if "error" in answer:
            self._gateway.raise_error(answer)
        result = _object(answer, "result")
        is_compacted = _number(result, "compact_revision") > 0
        if result.get("canceled") and not is_compacted:
            self._gateway.raise_error({"message": result.get("cancel_reason") or "the watch was cancelled"})
        changed: dict[str, KeyValue | None] = {}
        for event in _objects(result, "events"):
            entry = _key_value(_object(event, "kv"))
            changed[entry.key] = None if event.get("type") == "DELETE" else entry
        return WatchAnswer(_revision(result), changed, is_compacted)


class _Adapter(HTTPAdapter):
    """Connections whose end is noticed."""

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **settings: object) -> None:
        """Called by the base class."""
        super().init_poolmanager(connections, maxsize, block, socket_options=list(_SOCKET_OPTIONS), **settings)


@contextmanager
def _failures_of(settings: CoordinatorSettings) -> Iterator[None]:
    """Turns what requests raises into _ServerFailed; its texts have no secrets, because bodies are not in them."""
    try:
        yield
    except requests.exceptions.SSLError as error:
        raise _ServerFailed(_tls_problem(error), may_have_done=False) from None
    except requests.ConnectTimeout:
        raise _ServerFailed("no connection in time", may_have_done=False) from None
    except requests.Timeout:
        raise _ServerFailed(f"no answer within {ATTEMPT_S:g} s", may_have_done=True) from None
    except requests.ConnectionError as error:
        reason = _innermost(error)
        was_sent = not isinstance(reason, (ConnectionRefusedError, socket.gaierror))
        raise _ServerFailed(_connection_problem(reason, settings), may_have_done=was_sent) from None
    except requests.RequestException as error:
        raise _ServerFailed(f"the answer broke off ({type(error).__name__})", may_have_done=True) from None
    except OSError as error:  # requests itself looks whether the files are there
        files = ", ".join(str(path) for path in (settings.ca, settings.certificate, settings.key) if path)
        raise CoordinatorError(f"TLS files cannot be read ({files}): {error.strerror or error}") from None


def _innermost(error: BaseException) -> BaseException:
    """What it all began with; requests and urllib3 also hand on what they caught as an argument."""
    seen = [error]
    while True:
        last = seen[-1]
        wrapped = [error for error in (getattr(last, "reason", None), *last.args) if isinstance(error, BaseException)]
        inner = next(
            (error for error in (*wrapped, last.__cause__, last.__context__) if error and error not in seen), None
        )
        if inner is None:
            return last
        seen.append(inner)


def _connection_problem(reason: BaseException, settings: CoordinatorSettings) -> str:
    """With TLS 1.3 a server that does not accept our certificate may end the connection after the handshake."""
    if isinstance(reason, TimeoutError):
        return f"no answer within {ATTEMPT_S:g} s"
    if isinstance(reason, OSError) and not isinstance(reason, (ConnectionResetError, BrokenPipeError)):
        return reason.strerror or str(reason)
    if settings.tls:
        return _ENDED_TLS
    return "it ended the connection (if it wants TLS: set ha.coordinator-tls)"


def _tls_problem(error: BaseException) -> str:
    reason = _innermost(error)
    text = str(reason)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {reason.verify_message}; renew it, or correct ha.coordinator-ca"
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return "it speaks no TLS: take ha.coordinator-tls out of the settings"
    if isinstance(reason, (ssl.SSLEOFError, ConnectionError)):
        return _ENDED_TLS
    if "ALERT" in text.upper():
        return f"it does not accept our certificate ({text}): correct ha.coordinator-certificate and -key"
    return f"TLS: {text}"


def _system_authorities() -> str | bool:
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True


# --- JSON


def _encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _prefix_range(prefix: str) -> Json:
    """All keys that begin with `prefix`, whose last character is not the last one there is."""
    start = prefix.encode()
    return {"key": _encoded(start), "range_end": _encoded(start[:-1] + bytes([start[-1] + 1]))}


def _object(of: Json, name: str) -> Json:
    nested = of.get(name)
    return nested if isinstance(nested, dict) else {}


def _objects(of: Json, name: str) -> list[Json]:
    elements = of.get(name)
    return [element for element in elements if isinstance(element, dict)] if isinstance(elements, list) else []


def _number(of: Json, name: str) -> int:
    number = of.get(name, 0)
    if isinstance(number, str) and number.removeprefix("-").isdecimal():
        return int(number)
    return number if isinstance(number, int) else 0


def _revision(answer: Json) -> int:
    return _number(_object(answer, "header"), "revision")


def _key_value(entry: Json) -> KeyValue:
    """Raises CoordinatorError."""
    key, value = entry.get("key", ""), entry.get("value", "")
    try:
        decoded = base64.b64decode(str(key), validate=True), base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError) as error:
        raise CoordinatorError(f"etcd's answer is not base64 ({error}): correct ha.coordinator") from None
    name = decoded[0].decode("utf-8", "replace")
    return KeyValue(name, decoded[1], _number(entry, "mod_revision"), _number(entry, "lease"))
