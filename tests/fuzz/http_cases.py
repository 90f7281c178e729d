"""What is sent to the HTTP port: bytes, requests, and bodies of JSON-RPC, each from a seed and a number. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fuzz.request_table import KnownRequest
from qpid_ha_broker.server.control.audited_requests import audited_request
from qpid_ha_config.tokens import TokenRole

PATHS: Final = (
    "/", "/charts", "/definitions", "/events", "/findings", "/queues", "/rpc", "/metrics", "/live", "/login", "/logout",
    "/ready", "/primary", "/replica", "/in-sync", "/page/page.css", "/page/main.js", "/page/broker.js", "/amqp",
)  # fmt: skip
PUBLIC: Final = frozenset({"/live", "/ready", "/primary", "/replica", "/in-sync", "/"})
"""What is answered without a token, with all below /page/."""
OF_ROLES: Final[Mapping[str, TokenRole]] = {
    "/metrics": TokenRole.METRICS,
    "/rpc": TokenRole.VIEWER,
    "/charts": TokenRole.VIEWER,
    "/findings": TokenRole.VIEWER,
    "/queues": TokenRole.VIEWER,
    "/events": TokenRole.VIEWER,
}
HARMLESS: Final = frozenset(
    {("queues", ""), ("exchanges", ""), *(("queues", name) for name in ("create", "update", "delete", "purge", "move")),
     *(("exchanges", name) for name in ("create", "delete", "bind", "unbind")), ("sessions", "end")}
)  # fmt: skip
"""Requests that change something, and may be carried out: all others get parameters with which they have to fail."""
NAMES: Final = (*(f"fuzz.{number}" for number in range(12)), "<b>fuzz</b>", "fuzz ü", 'fuzz"\\', "fuzz/../x")
"""Of queues and exchanges: few, so that there is a bounded number of them."""
WRONG: Final[tuple[Any, ...]] = ([[]], {"a": {}}, [None], [{"a": [1]}])
"""Of no parameter's type."""


class Case(NamedTuple):
    """One connection: what is sent, and what may come of it."""

    kind: str
    sent: bytes
    role: TokenRole | None = None
    """Whose token goes along; None: none, or one that nobody has."""
    path: str = ""
    """Of a request that is well formed; empty: nobody knows what it is taken for."""
    method: str = ""
    """Of JSON-RPC."""
    params: Mapping[str, object] = {}
    must_fail: bool = False
    """Its parameters are wrong, so it must not be carried out."""
    is_whole: bool = False
    """An answer has to come, and then the connection is closed."""
    address: str = "127.0.0.1"
    """From where it comes."""


class CaseMaker:
    """Makes the same case of the same number, for the same seed, requests and tokens."""

    def __init__(self, seed: int, requests: Sequence[KnownRequest], tokens: Mapping[TokenRole, str]) -> None:
        self._seed = seed
        self._requests = requests
        self._tokens = tokens

    def make(self, number: int) -> Case:
        """One of a third of each kind."""
        chance = random.Random(f"{self._seed}:{number}")
        kind: Callable[[random.Random], Case] = (self._bytes, self._request, self._rpc)[number % 3]
        address = f"127.{chance.randint(0, 255)}.{chance.randint(0, 255)}.{chance.randint(2, 254)}"
        return kind(chance)._replace(address=address)

    # --- bytes

    def _bytes(self, chance: random.Random) -> Case:
        make = chance.choice(_STREAMS)
        role = chance.choice((None, None, TokenRole.METRICS, TokenRole.VIEWER))
        sent = make(chance, b"" if role is None else f"Authorization: Bearer {self._tokens[role]}\r\n".encode())
        return Case(make.__name__.lstrip("_"), sent[:400_000], role)

    # --- requests

    def _request(self, chance: random.Random) -> Case:
        path = chance.choice(PATHS)
        target = _target(chance, path)
        method = chance.choice(
            ("GET", "GET", "GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE", "X-Y")
        )
        authorization, role = self._authorization(chance)
        headers = [chance.choice(_HEADERS)(chance) for _ in range(chance.choice((0, 0, 1, 2, 5)))]
        body = chance.randbytes(chance.choice((0, 1, 300))) if method not in ("GET", "HEAD", "TRACE") else b""
        sent = _request(method, target, [*headers, authorization], body)
        known = path if target.partition("?")[0] == path else ""
        return Case(f"{method} {path}", sent, role, known, is_whole=True)

    def _authorization(self, chance: random.Random) -> tuple[bytes, TokenRole | None]:
        role = chance.choice(list(TokenRole))
        token = self._tokens[role].encode()
        wrong: tuple[bytes, ...] = (
            b"Bearer", b"Bearer ", b"Bearer \xff\xfe", b"Bearer " + b"a" * 513,
            b"Bearer " + token[:-1], b"Basic " + token,
            b"Bearer " + token.swapcase(), b"Bearer " + token + b" x", b"Bearer \t\t", b"Bearer" + token, token,
            "Bearer ü€".encode(), b"Bearer " + b"9" * 64, b"Digest username=\"a\"", b"bearer \x80",
        )  # fmt: skip
        match chance.randrange(16):
            case 0:
                return b"Authorization: " + chance.choice(wrong), None
            case number if number < 4:
                return b"X-Nothing: 1", None
            case 4:
                return b"aUTHORIZATION:bEARER  " + token + b" ", role
            case _:
                return b"Authorization: Bearer " + token, role

    # --- bodies of JSON-RPC

    def _rpc(self, chance: random.Random) -> Case:
        authorization, role = self._authorization(chance)
        asked = chance.choice(self._requests)
        params, must_fail = _params(chance, asked)
        if chance.random() < 0.75:
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": asked.method, "params": params}).encode()
            case = Case(f"rpc {asked.method} {asked.action}", b"", role, "/rpc", asked.method, params, must_fail)
        else:
            make = chance.choice(_BODIES)
            body = make(chance, asked.method, {**params, UNKNOWN_PARAMETER: 1})
            case = Case(f"rpc {make.__name__.lstrip('_')}", b"", role, "/rpc")
        kind = b"Content-Type: application/json" if chance.random() < 0.97 else chance.choice(_HEADERS)(chance)
        return case._replace(sent=_request("POST", "/rpc", [kind, authorization], body), is_whole=True)


UNKNOWN_PARAMETER: Final = "no-such-parameter"


def _params(chance: random.Random, asked: KnownRequest) -> tuple[dict[str, object], bool]:
    """And whether they have to be refused."""
    action: dict[str, object] = {"action": asked.action} if asked.action else {}
    changes = audited_request(asked.method, action) is not None
    if changes and (asked.method, asked.action) not in HARMLESS:
        if chance.random() < 0.5 or not asked.parameters:
            values = {name: _value(chance, name) for name in asked.parameters if chance.random() < 0.5}
            return {**action, **values, UNKNOWN_PARAMETER: _value(chance, "")}, True
        return {**action, **{name: chance.choice(WRONG) for name in asked.parameters}}, True
    given = {name: _value(chance, name) for name in asked.parameters if chance.random() < 0.8}
    if chance.random() < 0.05:
        return {**action, **given, UNKNOWN_PARAMETER: _value(chance, "")}, True
    if chance.random() < 0.05:
        return {**given, "action": _value(chance, "")}, False
    return {**action, **given}, False


def _value(chance: random.Random, name: str) -> object:
    if name in ("name", "queue", "to") and chance.random() < 0.6:
        return chance.choice(NAMES)
    if name == "kind" and chance.random() < 0.6:
        return chance.choice(("direct", "topic", "fanout", "headers"))
    if name == "arguments" and chance.random() < 0.6:
        return {chance.choice(_ARGUMENTS): chance.choice(_VALUES) for _ in range(chance.randint(0, 3))}
    return chance.choice(_VALUES)


_ARGUMENTS: Final = (
    "qpid.max_count", "qpid.max_size", "qpid.policy_type", "qpid.alternate_exchange", "qpid.auto_delete_timeout",
    "qpid.priorities", "qpid.replicate", "qpid.last_value_queue_key", "qpid.msg_sequence", "x-match", "durable", "",
    "x",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2, 255, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64,
    -(1 << 63), 0.5,
    -0.0, 1e308, 5e-324, "", "a", "x" * 300, "x" * 70_000, "\0", "../../etc/passwd", "<img src=x>", "*", "?[",
    "a" * 40 + "!",
    "regex(", "(a+)+$", "amq.fanout", "amq.", "$management", "\u2028\u202e", "\U0001f98a", "-1", "nan", "1e9", "١",
    "true",
    "2026-11-24T00:00:00Z", "%s%n", "{}",
    "'; --", [], [1, 2], ["fuzz.1"], [[[[[]]]]], {}, {"name": "fuzz.1"}, {"": None},
    {"a": {"b": {"c": [1, {"d": None}]}}}, ["x" * 100] * 100, list(range(1000)),
)  # fmt: skip


# --- bodies that are no request


def _broken(chance: random.Random, method: str, params: dict[str, object]) -> bytes:
    return damaged(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode(), chance)


def _deep(chance: random.Random, method: str, params: dict[str, object]) -> bytes:
    depth = chance.choice((15, 16, 17, 100, 990, 1000, 5000, 100_000))
    opening, closing = chance.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    nested = opening * depth + ("1" if ":" in opening else "") + closing * depth
    if chance.random() < 0.5:
        return nested.encode()
    whole = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "x": "HERE"}})
    return whole.replace('"HERE"', nested).encode()


def _huge_numbers(chance: random.Random, method: str, params: dict[str, object]) -> bytes:
    number = chance.choice(("9" * 4000, "9" * 5000, "1e999", "-1e999", "1e-999", "NaN", "Infinity", "-Infinity",
    "0" * 50,
                            "1" * 25, "-0", "1.", ".5", "0x10", "1e", "+1", "1_000", "1e400000000"))  # fmt: skip
    where = chance.choice(("id", "params", "value", "method"))
    document: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    if where == "value":
        document["params"] = {**params, "value": "HERE"}
    else:
        document[where] = "HERE"
    return json.dumps(document).replace('"HERE"', number).encode()


def _batch(chance: random.Random, method: str, params: dict[str, object]) -> bytes:
    one = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return json.dumps([one] * chance.choice((0, 1, 2, 1000))).encode()


def _envelope(chance: random.Random, method: str, params: dict[str, object]) -> bytes:
    document: dict[str, object] = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(("jsonrpc", "id", "method", "params", "x"))
        if chance.random() < 0.3:
            document.pop(name, None)
        else:
            document[name] = chance.choice(_VALUES)
    if isinstance(document.get("params"), dict) and document.get("method") == method:
        document["params"] = params
    elif "params" not in document:
        document["params"] = params  # without any, a request might be right
    return json.dumps(document).encode()


def _texts(chance: random.Random, method: str, params: dict[str, object]) -> bytes:
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "name": "HERE"}})
    odd = chance.choice(
        (r'"\ud800"', r'"\udfff\ud800"', r'"\u0000"', '"\x00"', '"\x1f"', r'"\x"', '"', r'"\ud83d\ude00"', "''")
    )
    text = text.replace('"HERE"', odd)
    match chance.randrange(6):
        case 0:
            return b"\xef\xbb\xbf" + text.encode()
        case 1:
            return text.encode(chance.choice(("utf-16", "utf-32", "utf-16-be", "utf-32-le", "utf-7")))
        case 2:
            return text.encode() + chance.choice((b"\n", b"\0", b"\n\n{}", b"//", b"\xff"))
        case 3:
            return text.replace("HERE", "\xff").encode("latin-1", "replace")
        case _:
            return text.encode()


def _nothing_of_json(chance: random.Random, _method: str, _params: dict[str, object]) -> bytes:
    return chance.choice((b"", b" ", b"\0", b"null", b"true", b'"x"', b"<xml/>", b"method=ping", chance.randbytes(200),
                          b'{"a":1' * 1000, b'"' * 1000, b" " * 1_000_000, b"[" + b"0," * 200_000 + b"0]"))  # fmt: skip


_BODIES: Final[tuple[Callable[[random.Random, str, dict[str, object]], bytes], ...]] = (
    _broken, _broken, _deep, _huge_numbers, _batch, _envelope, _envelope, _texts, _nothing_of_json,
)  # fmt: skip


# --- heads


def _request(method: str, target: str, headers: Sequence[bytes], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"Connection: close", *headers]
    if not any(line.lower().startswith(b"host:") for line in headers):
        lines.append(b"Host: localhost")
    if body or method in ("POST", "PUT", "PATCH"):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _target(chance: random.Random, path: str) -> str:
    changed = (
        lambda: path, lambda: path, lambda: path, lambda: path, lambda: path + "/",
        lambda: "/" + path, lambda: "/x/.." + path,
        lambda: path + "/../rpc", lambda: path + "%00", lambda: path.replace("/", "/%2e%2e/"),
        lambda: "/page/../http_admin.py",
        lambda: "/page/%2e%2e%2f%2e%2e%2fhttp_admin.py", lambda: "/page/....//x", lambda: "/page/" + "a" * 7000,
        lambda: path.upper(), lambda: path + ";a=b", lambda: "".join(f"%{ord(sign):02x}" for sign in path),
        lambda: path + "%ff%fe", lambda: path + "\xe9", lambda: "/%", lambda: "/%zz", lambda: path + "#/x",
        lambda: "/..%5c..%5cx",
        lambda: f"http://localhost{path}", lambda: f"http://evil.example{path}", lambda: "//evil.example/rpc",
        lambda: "*",
    )  # fmt: skip
    target = chance.choice(changed)()
    if chance.random() < 0.4:
        return target + "?" + "&".join(_parameter(chance) for _ in range(chance.choice((1, 1, 2, 3, 200))))
    return target


def _parameter(chance: random.Random) -> str:
    name = chance.choice(
        ("sort", "descending", "filter", "only", "name", "offset", "count", "max-lag", "max-lag", "x", "")
    )
    value = chance.choice(
        ("name", "messages", "age", "true", "all", "not-empty", "0", "1", "100", "101", "-1", "1e9", "nan", "inf",
        "-inf", "x",
         "", "%00", "%ff", "%f0%9f", "[", "[!", "[a-", "*" * 200, "*a" * 100, "?" * 250, "%2A%5B%5D", "\xb2",
         "%C2%B2", "%D9%A1",
         "9" * 400, "1_0", "+1", "0x1", "%u0041", "a" * 257, "../x", "<script>", ";", "=")
    )  # fmt: skip
    return f"{name}={value}" if chance.random() < 0.9 else name


_HEADERS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    lambda chance: b"Origin: " + chance.choice(
        (b"null", b"https://evil.example", b"http://localhost", b"http://[::1", b"http://[", b"//", b"\xff",
        b"http://a]b", b"",
         b"http://localhost:99999", b"http://\xe2\x84\x80.example", b"javascript:1", b"http://[v1.x]/",
         b"http://a@localhost")),
    lambda chance: b"Host: " + chance.choice((b"", b"evil.example", b"[::1", b"a:b:c", b"\xff\xfe", b"localhost:0",
    b"x" * 3000)),
    lambda chance: b"Sec-Fetch-Site: " + chance.choice((b"none", b"same-origin", b"cross-site", b"same-site", b"",
    b"\x80")),
    lambda chance: b"Content-Type: " + chance.choice(
        (b"", b"/", b";", b"application/json; charset=utf-16", b"APPLICATION/JSON", b"text/html",
        b"multipart/form-data",
         b"application/json;" + b"a=b;" * 500, b"\xff/\xff", b"application/json; charset=\"",
         b"application/x-www-form-urlencoded")),
    lambda chance: b"Accept: " + chance.choice((b"*/*", b"", b"text/event-stream", b";q=nan", b"a/b;" * 500)),
    lambda chance: b"Accept-Encoding: " + chance.choice((b"gzip, deflate, br", b"identity;q=0", b"*;q=0")),
    lambda chance: b"Range: " + chance.choice((b"bytes=0-0", b"bytes=-1", b"bytes=9-1", b"x=1",
    b"bytes=" + b"0-0," * 500)),
    lambda chance: b"If-Modified-Since: " + chance.choice((b"Thu, 01 Jan 1970 00:00:00 GMT", b"x", b"9" * 50)),
    lambda chance: b"If-None-Match: " + chance.choice((b"*", b'"a"', b'W/"')),
    lambda chance: b"Cookie: " + chance.choice((b"a=b", b"=", b";" * 1000, b'a="\\', b"a=" + b"b" * 4000)),
    lambda chance: b"Upgrade: " + chance.choice((b"websocket", b"h2c", b"TLS/1.0", b"\xff")),
    lambda chance: b"X-Forwarded-For: " + chance.choice((b"127.0.0.1", b"\xff", b"a" * 3000)),
    lambda chance: b"Content-Encoding: " + chance.choice((b"gzip", b"identity", b"zstd", b"br", b"x")),
    lambda chance: b"Last-Event-ID: " + chance.choice((b"0", b"\xff", b"9" * 300)),
    lambda chance: b"X-HTTP-Method-Override: DELETE",
    lambda chance: b"X: " + b"y" * chance.choice((0, 1, 7000)),
)  # fmt: skip


# --- streams of bytes; `token`: a header, or nothing


def _right(chance: random.Random, token: bytes) -> bytes:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "queues", "params": {"action": "list"}}'
    common = b"Host: localhost\r\n" + token
    rights = (
        b"GET /live HTTP/1.1\r\n" + common + b"\r\n",
        b"GET /metrics HTTP/1.1\r\n" + common + b"\r\n",
        b"GET /queues?count=10 HTTP/1.1\r\n" + common + b"\r\n",
        b"HEAD /ready HTTP/1.1\r\n" + common + b"\r\n",
        b"POST /rpc HTTP/1.1\r\n" + common + b"Content-Type: application/json\r\n"
        + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        b"POST /rpc HTTP/1.1\r\n" + common + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n",
    )  # fmt: skip
    return chance.choice(rights)


def _damaged_request(chance: random.Random, token: bytes) -> bytes:
    return damaged(_right(chance, token), chance)


def _pipelined(chance: random.Random, token: bytes) -> bytes:
    requests = [_right(chance, token) for _ in range(chance.choice((2, 3, 10, 100)))]
    whole = b"".join(requests)
    return damaged(whole, chance) if chance.random() < 0.6 else whole


def _lengths(chance: random.Random, token: bytes) -> bytes:
    lines = [
        b"Content-Length: 5", b"Content-Length: 6", b"Content-Length: -1", b"Content-Length: +5",
        b"Content-Length: 5, 5",
        b"Content-Length: 99999999999999999999", b"Content-Length: 0x5", b"Content-Length: \xb2", b"Content-Length:",
        b"Content-Length: 5 ",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked, gzip",
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding: \x0bchunked",
        b"Content-Encoding: gzip",
        b"Expect: 100-continue", b"Expect: x", b"Connection: upgrade, close", b"Upgrade: websocket", b"TE: trailers",
    ]  # fmt: skip
    chosen = chance.sample(lines, chance.randint(1, 4))
    bodies = (
        b"hello",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"",
        b"\x1f\x8b\x08",
    )
    head = b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + token
    return head + b"\r\n".join(chosen) + b"\r\n\r\n" + chance.choice(bodies)


def _chunks(chance: random.Random, token: bytes) -> bytes:
    chunks = (
        b"5\r\nhello\r\n", b"5;a=b\r\nhello\r\n", b"5;" + b"a" * 20_000 + b"\r\nhello\r\n",
        b"fffffffffffffffff\r\nx\r\n", b"-1\r\nx\r\n",
        b"0x5\r\nhello\r\n", b"5\nhello\n", b"\r\n", b"6\r\nhello\r\n", b"4\r\nhello\r\n", b"0\r\nX: y\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\nContent-Length: 3\r\n\r\n", b"0\r\n" + b"T: x\r\n" * 2000 + b"\r\n", b" 5 \r\nhello\r\n",
        b"5_0\r\nhello\r\n",
        b"8000\r\n" + b"x" * 0x8000 + b"\r\n",
    )  # fmt: skip
    head = b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    return head + token + b"\r\n" + b"".join(chance.choice(chunks) for _ in range(chance.randint(1, 6)))


def _heads(chance: random.Random, token: bytes) -> bytes:
    first = chance.choice(
        (b"GET /live HTTP/1.1", b"GET /live", b"GET  /live  HTTP/1.1", b"GET /live HTTP/9.9", b"GET /live HTTP/1.0",
        b"get /live http/1.1",
         b"GET /live HTTP/1.1 x", b" GET /live HTTP/1.1", b"\r\nGET /live HTTP/1.1", b"GET\t/live\tHTTP/1.1",
         b"GET \xff\xfe HTTP/1.1",
         b"CONNECT evil.example:443 HTTP/1.1", b"GET http://[::1 HTTP/1.1", b"GET http:// HTTP/1.1",
         b"GET //[ HTTP/1.1",
         b"OPTIONS * HTTP/1.1", b"GET /live?\x00 HTTP/1.1", b"A" * 9000 + b" / HTTP/1.1",
         b"GET /" + b"a" * 9000 + b" HTTP/1.1",
         b"GET / HTTP/1.1\x00", b"G\x00T /live HTTP/1.1", b"GET /live HTTP/1.\xb2", b"PRI * HTTP/2.0",
         b"GET http://a:b/ HTTP/1.1",
         b"GET http://localhost:999999/live HTTP/1.1", b"GET /live HTTP/11", b"GET ?x HTTP/1.1",
         b"GET http://\xe2\x84\x80/ HTTP/1.1")
    )  # fmt: skip
    lines = (
        b"Host: localhost", b"Host: a\r\nHost: b", b"X: a\r\n b", b"X : a", b": a", b"X", b"X: \x00", b"X: a\rb",
        b"X: a\nY: b", b"\xff: a",
        b"X: " + b"a" * 9000, b"X" * 9000 + b": a", b"\r\n".join(b"X%d: a" % number for number in range(200)),
        b"Connection: keep-alive",
        b"\tX: a", b"X:\x0b", b"Origin: http://[", b"Authorization: Bearer \xff", b"Connection: \xff",
        b"Keep-Alive: timeout=-1",
        b"Sec-WebSocket-Key: x\r\nUpgrade: websocket\r\nConnection: Upgrade",
        b"HTTP2-Settings: AAMAAABk\r\nUpgrade: h2c\r\nConnection: Upgrade",
    )  # fmt: skip
    ending = chance.choice((b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"))
    chosen = [chance.choice(lines) for _ in range(chance.randint(0, 6))]
    return ending.join([first, *chosen, token.rstrip() or b"X: y", b"", b""])


def _other_protocols(chance: random.Random, _token: bytes) -> bytes:
    return chance.choice(
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\0" * 18,
        b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00",
         b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(300), b"\x05\x01\x00", b"SSH-2.0-x\r\n",
         b"\x00" * 1000,
         b"EHLO x\r\n", b"\n" * 5000, b"\r\n" * 5000, chance.randbytes(chance.choice((1, 50, 5000))),
         b"*1\r\n$4\r\nPING\r\n")
    )  # fmt: skip


def _large(chance: random.Random, token: bytes) -> bytes:
    """More than is taken of one thing or the other."""
    head = b"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + token
    return chance.choice(
        (b"GET /" + b"a" * 300_000, b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000,
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 50_000,
         head + b"Content-Length: 1048577\r\n\r\n" + b" " * 200_000,
         head + b"Content-Length: 300000\r\n\r\n" + b"[" * 300_000,
         head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n[\r\n" * 50_000)
    )  # fmt: skip


_STREAMS: Final[tuple[Callable[[random.Random, bytes], bytes], ...]] = (
    _damaged_request, _damaged_request, _damaged_request, _pipelined, _lengths, _lengths, _chunks, _chunks,
    _heads, _heads, _heads,
    _other_protocols, _large,
)  # fmt: skip


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, left out, put in or doubled; now and then cut."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(5):
            case 0 if at < len(found):
                found[at] = chance.choice((0, 10, 13, 32, 58, 0x80, 0xFF, chance.randrange(256)))
            case 1:
                del found[at : at + chance.randint(1, 20)]
            case 2:
                found[at:at] = chance.randbytes(chance.randint(1, 20))
            case 3:
                found[at:at] = found[at : at + 40]
            case _ if chance.random() < 0.2:
                del found[at:]
    return bytes(found)
