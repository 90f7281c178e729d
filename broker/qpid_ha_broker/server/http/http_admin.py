"""The HTTP port: JSON-RPC for administrators, a web page, answers for load balancers, metrics, and with `admin.amqp`
clients over WebSockets. On with `admin.listen`.

Nothing else of the broker imports this module, or aiohttp, before that.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp import web

from qpid_ha_broker import __version__
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.ha.states import UNWRITABLE_S, State
from qpid_ha_broker.metrics import health
from qpid_ha_broker.metrics.exposition import CONTENT_TYPE, family_text
from qpid_ha_broker.metrics.families import BROKER
from qpid_ha_broker.server.clients.client_protocol import peer_name
from qpid_ha_broker.server.control.control import NOT_ALLOWED, ControlAnswer, ControlError, Stream, note_line
from qpid_ha_broker.server.http.amqp_upgrade import PATH, AmqpUpgrade
from qpid_ha_broker.server.http.definition_pages import DefinitionPages
from qpid_ha_broker.server.http.diagnoses import Diagnoses
from qpid_ha_broker.server.http.figure_looks import FigureLooks
from qpid_ha_broker.server.http.figure_pages import FigurePages
from qpid_ha_broker.server.http.http_callers import HttpCaller, HttpCallers, HttpPeer
from qpid_ha_broker.server.http.http_connections import BODY_BYTES_MAX, HttpConnection, HttpConnections
from qpid_ha_broker.server.http.http_slots import RequestSlots
from qpid_ha_broker.server.http.http_tokens import TokenFile, WrongTokens
from qpid_ha_broker.server.http.metrics_source import MetricsSource, process_pieces
from qpid_ha_broker.server.http.page_files import PAGE_HEADERS, PREFIX, PageFile, read_page_files
from qpid_ha_broker.server.http.page_sessions import PREFIX as SESSION
from qpid_ha_broker.server.http.refusals import RETRY, HttpRefusal, is_own_page
from qpid_ha_broker.server.http.state_news import LISTENERS_MAX, StateNews, event_text
from qpid_ha_broker.server.runtime.hang_ups import has_hung_up
from qpid_ha_broker.server.runtime.logs import RateLimitedLog
from qpid_ha_broker.server.runtime.slices import in_slices
from qpid_ha_config.tokens import TokenRole

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

log = logging.getLogger("http")

BODY_LIMIT_S: Final = 10.0
"""From the head of a request to the end of its body."""
ANSWER_LIMIT_S: Final = 60.0
"""For an answer to be taken; a stream may take as long as it wants."""
CHUNK_BYTES: Final = 64 * 1024
USER_LENGTH_MAX: Final = 255
HEALTH: Final = frozenset({"/live", "/ready", "/primary", "/replica", "/in-sync"})
"""Answered also where there is no room for anybody else."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_JSON: Final = "application/json"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Page(NamedTuple):
    """What there is at a path. `methods`: besides OPTIONS."""

    methods: tuple[str, ...]
    handler: Handler


@dataclass(slots=True)
class _RpcCall:
    """A request of JSON-RPC that is carried out."""

    work: asyncio.Task[ControlAnswer]
    looks: bool = True
    """It changes nothing, as far as is known: when its caller goes, it ends. Of any other nobody could know how much of
    it was done: it goes on, as through the control socket."""


class AdminPort:
    """The promise: whoever has no token for it learns nothing but what load balancers ask, and changes nothing."""

    def __init__(self, broker: Broker) -> None:
        """Raises ConfigError when the file of tokens cannot be used."""
        self._broker = broker
        tokens = TokenFile(broker.current().admin.tokens, time.monotonic, lambda: broker.files.engines.kept.tokens)
        self._callers = HttpCallers(broker, tokens)
        self._wrong = WrongTokens(time.monotonic)
        self._source = MetricsSource(broker)
        self._wrong_log = RateLimitedLog(log)
        self._connections = HttpConnections(self._handle, broker.current, self._wrong_log.flush)
        self._slots = RequestSlots()
        self._begun: set[asyncio.Task[ControlAnswer]] = set()
        """Requests of JSON-RPC that are carried out."""
        self._answers: Counter[tuple[str, str]] = Counter()
        self._scrape: asyncio.Task[list[bytes]] | None = None
        self._news = StateNews(broker)
        self._looks = FigureLooks(broker, self._source.confirms)
        self._looks.when_loaded = self._tell_others
        self._figure_pages = FigurePages(broker, self._looks)
        self._diagnoses = Diagnoses(broker)
        self._definitions = DefinitionPages(broker)
        looking = ("GET", "HEAD")
        self._pages: dict[str, Page] = {
            "/events": Page(("GET",), self._events),
            "/definitions": Page(("GET", "POST"), self._defined),
            "/queues": Page(("GET",), self._for_viewers(partial(self._figure_pages.answer, "/queues"))),
            "/charts": Page(("GET",), self._for_viewers(partial(self._figure_pages.answer, "/charts"))),
            "/findings": Page(("GET",), self._for_viewers(self._diagnoses.answer)),
            "/rpc": Page(("POST",), self._rpc),
            "/login": Page(("POST",), self._log_in),
            "/logout": Page(("POST",), self._log_out),
            "/metrics": Page(looking, self._metrics),
            "/live": Page(looking, self._health(health.is_live)),
            "/ready": Page(looking, self._health(health.is_ready)),
            "/primary": Page(looking, self._health(health.is_primary)),
            "/replica": Page(looking, self._replica),
            "/in-sync": Page(looking, self._health(health.is_in_sync)),
            **({PATH: Page(("GET",), AmqpUpgrade(broker).handle)} if broker.current().admin.amqp else {}),
            **{path: Page(looking, _file(file)) for path, file in read_page_files().items()},
        }

    async def start(self) -> None:
        """Listen. Raises SettingsError."""
        try:
            for address in self._broker.current().admin.listen:
                await self._connections.listen(address)
        except BaseException:
            await self._connections.close()
            raise
        self._connections.start()
        self._source.start()
        self._news.start()
        self._looks.start()
        log.info("administrators and monitoring are answered on %s", ", ".join(self._connections.addresses))

    @property
    def addresses(self) -> list[str]:
        """Where it listens, with the real port where 0 was asked."""
        return self._connections.addresses

    async def close(self) -> None:
        """Answer nobody any more."""
        self._source.stop()
        self._news.stop()
        self._looks.stop()
        self._diagnoses.stop()
        await self._connections.close()

    # --- every request

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        in_reserve = isinstance(connection, HttpConnection) and connection.in_reserve
        if isinstance(connection, HttpConnection):
            connection.busy = True
        page = self._pages.get(request.path)
        try:
            if in_reserve and request.path not in HEALTH:
                raise HttpRefusal(503, "too many connections are open: try again", RETRY)
            response = await self._answer(request, page)
        except HttpRefusal as refusal:
            response = _json(refusal.status, {"error": refusal.problem}, refusal.headers)
            if request.can_read_body or in_reserve:  # what is left of it nobody reads
                response.force_close()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:  # a bug costs its caller an answer, and nobody else anything
            log.exception("an HTTP request for %.80r failed", request.path)
            response = _json(500, {"error": f"a bug ({type(error).__name__}); the broker's log has it"})
        finally:
            if isinstance(connection, HttpConnection):
                connection.busy, connection.quiet_since_s = False, time.monotonic()
                connection.served += 1
        self._answers[request.path if page is not None else "other", str(response.status)] += 1
        return response

    async def _answer(self, request: web.BaseRequest, page: Page | None) -> web.StreamResponse:
        if page is None:
            there = ", ".join(path for path in self._pages if not path.startswith(PREFIX))
            raise HttpRefusal(404, f"there are {there}")
        allowed = ", ".join((*page.methods, "OPTIONS"))
        if request.method == "OPTIONS":
            return web.Response(status=204, headers={"Allow": allowed, **_HEADERS})
        if request.method not in page.methods:
            raise HttpRefusal(405, f"{request.path} takes {allowed}", {"Allow": allowed})
        return await page.handler(request)

    async def _authorize(self, request: web.BaseRequest, role: TokenRole) -> HttpCaller:
        """Who asks, who may do what a token with `role` lets do. Raises HttpRefusal, late for a wrong token."""
        token = _token_of(request)
        challenge = {"WWW-Authenticate": 'Bearer realm="qpid-ha"'}
        if not token:
            raise HttpRefusal(401, "give a token: Authorization: Bearer TOKEN (`qpid-ha token add`)", challenge)
        caller = self._callers.find(token)
        if caller is None:
            address = request.remote or "?"
            self._wrong_log.warning("a wrong token came from %s", address)
            if not await self._wrong.punish(address):
                raise HttpRefusal(429, "too many wrong tokens: try again later", {"Retry-After": "5"})
            is_session = token.startswith(SESSION)
            raise HttpRefusal(401, "log in again" if is_session else "nobody has this token", challenge)
        if problem := self._callers.objection_to_role(caller, _peer_of(request), role):
            raise HttpRefusal(403, problem)
        return caller

    # --- users with passwords

    async def _log_in(self, request: web.BaseRequest) -> web.StreamResponse:
        """Who says the password of a user gets a token that counts for a while."""
        _check_same_site(request)
        user, password = _login_in(await _json_body(request))
        try:
            return _json(200, await self._callers.log_in(user, password, _peer_of(request)))
        except HttpRefusal as refusal:
            if refusal.status in (401, 429):
                self._wrong_log.warning("a wrong password came from %s", request.remote or "?")
            raise

    async def _log_out(self, request: web.BaseRequest) -> web.StreamResponse:
        _check_same_site(request)
        self._callers.log_out(_token_of(request))
        return web.Response(status=204, headers=_HEADERS)

    # --- load balancers

    def _health(self, check: Callable[[health.BrokerHealth], health.HealthAnswer]) -> Handler:
        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            if request.query_string:
                raise HttpRefusal(400, f"{request.path} takes no parameters")
            return self._told(check)

        return handler

    async def _replica(self, request: web.BaseRequest) -> web.StreamResponse:
        given = dict(request.query)
        text = given.pop("max-lag", "inf")
        try:
            max_lag_s = float(text)
        except ValueError:
            max_lag_s = -1.0
        if given or not max_lag_s >= 0 or len(request.query) > 1:
            raise HttpRefusal(400, "/replica takes max-lag=SECONDS, 0 or more, and nothing else")
        return self._told(lambda now: health.is_replica(now, max_lag_s))

    def _told(self, check: Callable[[health.BrokerHealth], health.HealthAnswer]) -> web.Response:
        now = self._now()
        answer = check(now)
        lag_s = None if now.lag_s is None else round(now.lag_s, 3)
        facts: dict[str, object] = {"name": now.name, "state": now.state.value, "lag_s": lag_s}
        return _json(200, facts) if answer.yes else _json(503, {**facts, "reason": answer.reason})

    def _now(self) -> health.BrokerHealth:
        broker = self._broker
        name = broker.current().name
        if not broker.is_loaded:
            return health.BrokerHealth(name, State.LOADING, failure=broker.failure)
        membership = broker.membership
        status = membership.member.status
        if broker.is_stopping:
            return health.BrokerHealth(name, State.STOPPING, failure=broker.failure)
        now_s = time.monotonic()
        has_moment = membership.member.unwritable_s(now_s) < UNWRITABLE_S
        return health.BrokerHealth(
            name,
            status.state,
            serves=membership.clients.is_serving,
            relays=broker.sets is not None and broker.sets.proxying is not None and bool(status.primary),
            members=status.members,
            lag_s=membership.member.replica_lag_s(now_s),
            failure=broker.failure,
            store_problem="" if has_moment else status.store_problem,
        )

    # --- JSON-RPC

    async def _rpc(self, request: web.BaseRequest) -> web.StreamResponse:
        _check_same_site(request)
        caller = await self._authorize(request, TokenRole.VIEWER)
        body = await _json_body(request)
        self._take_slot(caller)
        call = self._begin(request, caller, body)
        try:
            reply, _, stream = await asyncio.shield(call.work)
            if stream is None:
                return web.Response(status=204, headers=_HEADERS) if reply is None else await _send(request, reply)
        except asyncio.CancelledError:
            if call.looks:
                call.work.cancel()
            raise
        finally:
            call.work.add_done_callback(lambda _: self._slots.give_back(caller.slots))
        return await self._stream(request, reply or b"", stream)

    def _begin(self, request: web.BaseRequest, caller: HttpCaller, body: bytes) -> _RpcCall:
        """A request of JSON-RPC is carried out, whoever waits for it."""
        peer = _peer_of(request)

        def permit(method: str, params: dict[str, object]) -> None:
            if problem := self._callers.objection(caller, peer, method, params):
                raise ControlError(NOT_ALLOWED, problem)
            call.looks = OPERATIONS.reads(method, params)

        gone = partial(has_hung_up, _transport_of(request))
        answering = self._broker.control.answer(body, caller.audited(peer.host), permit, gone)
        call = _RpcCall(asyncio.get_running_loop().create_task(answering))
        self._begun.add(call.work)
        call.work.add_done_callback(self._begun.discard)
        return call

    def _take_slot(self, caller: HttpCaller) -> None:
        """For a request that is under way from now on. Raises HttpRefusal when there are too many."""
        refusal = self._slots.take(caller.slots)
        if refusal is not None:
            raise HttpRefusal(refusal.status, refusal.problem, RETRY)

    async def _stream(self, request: web.BaseRequest, reply: bytes, stream: Stream) -> web.StreamResponse:
        """A line for the answer, and one for each note, until the caller goes or there is nothing more to tell."""
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "application/x-ndjson"})
        try:
            await response.prepare(request)
            await response.write(reply)
            async for note in stream.notes:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    await response.write(note_line(stream, note))
            await response.write_eof()
        finally:
            stream.close()
        return response

    # --- the web page

    async def _events(self, request: web.BaseRequest) -> web.StreamResponse:
        """Who asks (`hello`), and an event for each change, until the caller goes or its token is taken away."""
        _check_same_site(request)
        caller, token = await self._authorize(request, TokenRole.VIEWER), _token_of(request)
        peer = _peer_of(request)
        listener = self._news.listen()
        if listener is None:
            problem = f"{LISTENERS_MAX} pages listen already: close one"
            raise HttpRefusal(503, problem, {"Retry-After": "5"})
        by = "token" if caller.session is None else "user"
        name = self._broker.current().name
        hello = {"token": caller.name, "role": caller.role.value, "by": by, "broker": name}
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            await response.write(event_text("hello", {**hello, "version": __version__}))
            async for text in listener.texts():
                if self._callers.find(token) != caller or self._callers.objection_to_role(
                    caller, peer, TokenRole.VIEWER
                ):
                    break
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    await response.write(text)
            await response.write_eof()
        finally:
            self._news.leave(listener)
        return response

    def _for_viewers(self, answer: Callable[[Mapping[str, str]], Awaitable[Mapping[str, object]]]) -> Handler:
        async def handler(request: web.BaseRequest) -> web.StreamResponse:
            _check_same_site(request)
            caller = await self._authorize(request, TokenRole.VIEWER)
            self._take_slot(caller)
            try:
                return _json(200, await answer(request.query))
            finally:
                self._slots.give_back(caller.slots)

        return handler

    async def _defined(self, request: web.BaseRequest) -> web.StreamResponse:
        """All that is defined; to POST, what a file would make of it."""
        _check_same_site(request)
        caller = await self._authorize(request, TokenRole.OPERATOR if request.method == "POST" else TokenRole.VIEWER)
        wanted = _file_in(await _json_body(request)) if request.method == "POST" else None
        self._take_slot(caller)
        try:
            if wanted is None:
                return _json(200, await self._definitions.export())
            return _json(200, await self._definitions.plan(wanted[0], update=wanted[1]))
        finally:
            self._slots.give_back(caller.slots)

    def _tell_others(self) -> None:
        self._broker.membership.default.links.page_asked = self._figure_pages.asked

    # --- metrics

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._authorize(request, TokenRole.METRICS)
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": CONTENT_TYPE})
        if request.method == "HEAD":
            return response
        if self._scrape is None:
            self._scrape = asyncio.get_running_loop().create_task(self._make_scrape())
        chunks = await asyncio.shield(self._scrape)
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await response.prepare(request)
            for chunk in chunks:
                await response.write(chunk)
                await asyncio.sleep(0)
            await response.write_eof()
        return response

    async def _make_scrape(self) -> list[bytes]:
        """The whole text, in chunks; all who ask meanwhile get the same."""
        began_s = time.perf_counter()
        self._count_http()
        try:
            chunks = await in_slices(_in_chunks(chain(await asyncio.to_thread(process_pieces), self._source.pieces())))
        finally:
            self._scrape = None
        took_s = time.perf_counter() - began_s
        return [*chunks, family_text(BROKER["qpid_ha_scrape_duration_seconds"], {(): took_s}).encode()]

    def _count_http(self) -> None:
        self._source.http = {
            "qpid_ha_http_requests_total": {(path, status): number for (path, status), number in self._answers.items()},
            "qpid_ha_http_wrong_tokens_total": {(): self._wrong.total},
            "qpid_ha_http_refused_connections_total": {(): self._connections.refused_total},
        }


async def open_admin_port(broker: Broker) -> AdminPort:
    """Listen for administrators and monitoring. Raises SettingsError."""
    port = AdminPort(broker)
    await port.start()
    return port


def _file(file: PageFile) -> Handler:
    """Without a token: what is in it is in every release."""

    async def handler(_request: web.BaseRequest) -> web.StreamResponse:
        headers = {**_HEADERS, **PAGE_HEADERS}
        return web.Response(body=file.content, content_type=file.content_type, charset="utf-8", headers=headers)

    return handler


def _in_chunks(pieces: Iterable[str]) -> Generator[None, None, list[bytes]]:
    chunks: list[bytes] = []
    parts: list[str] = []
    size = 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size > CHUNK_BYTES:
            chunks.append("".join(parts).encode())
            parts, size = [], 0
        yield
    return [*chunks, "".join(parts).encode()]


def _check_same_site(request: web.BaseRequest) -> None:
    """A page of another site has its reader's browser send this; our own, and programs, are let in."""
    origin, fetched_for = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
    is_foreign = origin is not None and not is_own_page(origin, request.headers.get("Host", ""))
    if is_foreign or fetched_for not in ("none", "same-origin"):
        raise HttpRefusal(403, "requests from pages of other sites are refused")


def _token_of(request: web.BaseRequest) -> str:
    """Empty: there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _peer_of(request: web.BaseRequest) -> HttpPeer:
    """Raises ConnectionResetError: it is gone."""
    connection = request.protocol
    if not isinstance(connection, HttpConnection):
        raise ConnectionResetError("the connection is gone")
    return HttpPeer(peer_name(_transport_of(request)), request.remote or "?", connection.address)


def _transport_of(request: web.BaseRequest) -> asyncio.Transport:
    """Raises ConnectionResetError: it is gone."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the connection is gone")
    return transport


def _fields_in(body: bytes, *names: str) -> tuple[Any, ...]:
    """What an object of JSON with these fields, and no others, has in them; None in place of each where it is none."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    given = asked if isinstance(asked, dict) and set(asked) == set(names) else {}
    return tuple(given.get(name) for name in names)


def _login_in(body: bytes) -> tuple[str, str]:
    """User and password. Raises HttpRefusal, which quotes nothing."""
    user, password = _fields_in(body, "user", "password")
    if not isinstance(user, str) or not isinstance(password, str) or len(user) > USER_LENGTH_MAX:
        raise HttpRefusal(400, "a login is an object with user and password, which are texts")
    return user, password


def _file_in(body: bytes) -> tuple[str, bool]:
    """The text of a file with definitions, and whether what is there may be changed. Raises HttpRefusal."""
    text, update = _fields_in(body, "text", "update")
    if not isinstance(text, str) or not isinstance(update, bool):
        raise HttpRefusal(400, "send an object with text, that of the file, and update, true or false")
    return text, update


async def _json_body(request: web.BaseRequest) -> bytes:
    """Raises HttpRefusal for one of another type, too."""
    if request.content_type != _JSON:
        raise HttpRefusal(415, f"send Content-Type: {_JSON}")
    return await _body(request)


async def _body(request: web.BaseRequest) -> bytes:
    """Raises HttpRefusal for one that is too large, or too slow."""
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise HttpRefusal(413, f"a request has at most {BODY_BYTES_MAX} bytes")
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise HttpRefusal(413, f"a request has at most {BODY_BYTES_MAX} bytes") from None
    except TimeoutError:
        raise HttpRefusal(408, f"the whole request has to be here within {BODY_LIMIT_S:g} s") from None


async def _send(request: web.BaseRequest, body: bytes) -> web.StreamResponse:
    """JSON, in pieces: one that is not taken within ANSWER_LIMIT_S ends with its connection."""
    response = web.StreamResponse(headers={**_HEADERS, "Content-Type": _JSON})
    response.content_length = len(body)
    async with asyncio.timeout(ANSWER_LIMIT_S):
        await response.prepare(request)
        for start in range(0, len(body), CHUNK_BYTES):
            await response.write(body[start : start + CHUNK_BYTES])
        await response.write_eof()
    return response


def _json(status: int, document: Mapping[str, Any], headers: Mapping[str, str] = {}) -> web.Response:
    text = json.dumps(document, ensure_ascii=True) + "\n"
    return web.Response(status=status, text=text, content_type=_JSON, headers={**_HEADERS, **headers})
