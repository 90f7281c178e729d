"""Connections of the HTTP port: a bounded number, none of which may be silent for long; TLS as listeners have it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from aiohttp import web

from qpid_ha_broker.server.clients.listeners import listening_socket
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.tls import file_versions, listener_context
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("http")

CONNECTIONS_MAX: Final = 128
RESERVE: Final = 16
"""Beyond those, for load balancers: who asks for anything else there is refused."""
SILENCE_S: Final = 10.0
"""From the connection, or the last answer, to the end of a request's head."""
HANDSHAKE_S: Final = 5.0
SWEEP_S: Final = 1.0
ACCEPTED_AT_ONCE: Final = 16
BODY_BYTES_MAX: Final = 1024 * 1024
_NO_ROOM: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
)


class HttpRequest(web.BaseRequest):
    """A request whose answer does not say which versions of Python and aiohttp have made it."""

    async def _prepare_hook(self, resp: web.StreamResponse) -> None:
        await super()._prepare_hook(resp)
        resp.headers.popall("Server", None)


def _make_request(
    message: Any, payload: Any, protocol: web.RequestHandler, writer: Any, task: asyncio.Task[None]
) -> HttpRequest:
    return HttpRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


class HttpConnection(web.RequestHandler):
    """One connection, and whether it is at work."""

    __slots__ = ("address", "busy", "coming", "in_reserve", "owner", "quiet_since_s", "served")

    def __init__(
        self, owner: HttpConnections, server: web.Server, coming: asyncio.Task[Any] | None, address: Address
    ) -> None:
        """`coming`: makes it. `address`: of the listener, as the settings have it."""
        super().__init__(
            server, loop=asyncio.get_running_loop(), keepalive_timeout=SILENCE_S, access_log=None,  # type: ignore[arg-type]  # it stands for no such log
            lingering_time=1.0,
            auto_decompress=False, logger=log,
        )  # fmt: skip
        self.owner = owner
        self.address = address
        self.busy = False
        """A request is being answered."""
        self.coming = coming
        self.in_reserve = False
        """It has one of the places that are kept for load balancers."""
        self.served = 0
        self.quiet_since_s = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there, and TLS is spoken where it has to be."""
        super().connection_made(transport)
        self.owner.opened(self)

    def hand_over(self) -> asyncio.Transport | None:
        """The connection speaks another protocol from now on, and is not one of these any more: what is written and
        read. Whoever answers its request is cancelled. None: it is gone already."""
        transport, self.transport = self.transport, None  # aiohttp would close it
        self.connection_lost(None)
        return transport

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self.owner.open.pop(self, None)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request of HTTP. aiohttp would log it, and quote what may be a token."""
        log.debug("a request that cannot be read was answered with %d (%s)", status, type(exc).__name__)
        if exc is not None:
            exc.__traceback__ = None  # aiohttp keeps the error in a variable of a frame in it: a cycle for each
        if request.writer.output_size > 0:
            raise ConnectionError("a part of another answer is sent already")
        problem = "this is no request of HTTP that is taken here" if status < 500 else "a bug"
        response = web.Response(status=status, text=f'{{"error": "{problem}"}}\n', content_type="application/json")
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Only the place of a bug: aiohttp's own words quote requests."""
        error = sys.exc_info()[1]
        where = "" if error is None else traceback.format_tb(error.__traceback__)[-1].strip()
        log.error("a connection of the HTTP port failed: %s %s", type(error).__name__, where)


class HttpConnections:
    """The promise: at most CONNECTIONS_MAX at a time, and RESERVE for load balancers; one that is silent, or slow to
    ask, goes, at once when somebody else comes.

    So who only connects keeps nobody out: whoever asks at once is answered, for it takes RESERVE others to make it go.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], object],
        current: Callable[[], BrokerSettings],
        each_second: Callable[[], None] = lambda: None,
    ) -> None:
        """`each_second`: called while it is open, about so often."""
        self.open: dict[HttpConnection, None] = {}
        self.refused_total = 0
        self.addresses: list[str] = []
        """Those in use, with the real port where 0 was asked."""
        self._current = current
        self._each_second = each_second
        self._server = web.Server(handler, request_factory=_make_request, handler_cancellation=True)  # type: ignore[arg-type]
        self._places: list[socket.socket] = []
        self._coming: dict[asyncio.Task[None], float] = {}
        """Those that do not speak TLS yet, or are not made yet, with the time since when: the oldest is the first."""
        self._tasks = BackgroundTasks()
        self._tls: ssl.SSLContext | None = None
        self._tls_files: object = None

    async def listen(self, address: Address) -> None:
        """Accept there. Raises SettingsError."""
        loop = asyncio.get_running_loop()
        if address.is_tls and self._tls is None:
            tls = self._current().tls
            self._tls_files, self._tls = file_versions(tls.certificate, tls.key), listener_context(tls)
        try:
            infos = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            bindable = dict.fromkeys((family, bound) for family, _, _, _, bound in infos)
            places = [listening_socket(family, bound) for family, bound in bindable]
        except OSError as error:
            raise SettingsError("admin.listen", f"{address}: {error.strerror or error}; is it in use?") from error
        self._places += places
        for place in places:
            loop.add_reader(place, self._accept, place, address)
        port = places[0].getsockname()[1]
        self.addresses.append(str(address._replace(port=port)))

    def start(self) -> None:
        """Begin to look after those that are open."""
        self._tasks.start(self._sweep_forever())

    async def close(self) -> None:
        """Accept nobody any more, and end what is open."""
        self._tasks.cancel()
        for coming in self._coming:
            coming.cancel()
        for place in self._places:
            asyncio.get_running_loop().remove_reader(place)
            place.close()
        self._places.clear()
        await self._server.shutdown(timeout=1.0)

    # --- accepting

    def _accept(self, place: socket.socket, address: Address) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                connection, _peer = place.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # it went away while it waited, or there are no descriptors: the next turn tries again
                return
            connection.setblocking(False)
            if self._count >= CONNECTIONS_MAX and not self._make_room() and self._count >= CONNECTIONS_MAX + RESERVE:
                self.refused_total += 1
                with suppress(OSError):
                    if not address.is_tls:
                        connection.send(_NO_ROOM)
                connection.close()
                continue
            coming = asyncio.get_running_loop().create_task(self._take(connection, address))
            self._coming[coming] = time.monotonic()
            coming.add_done_callback(self._has_come)

    @property
    def _count(self) -> int:
        return len(self.open) + len(self._coming)

    def _has_come(self, coming: asyncio.Task[None]) -> None:
        self._coming.pop(coming, None)

    def _make_room(self) -> bool:
        """Whether one could go. First who has not asked for anything, then who has had its answers, in both cases the
        one that has been quiet longest."""
        quiet = [connection for connection in self.open if not connection.busy]
        silent = min(
            (connection for connection in quiet if not connection.served),
            key=lambda connection: connection.quiet_since_s,
            default=None,
        )
        coming = next(iter(self._coming), None)
        if coming is not None and (silent is None or self._coming[coming] < silent.quiet_since_s):
            del self._coming[coming]
            coming.cancel()
            self.refused_total += 1
            return True
        longest = silent or min(quiet, key=lambda connection: connection.quiet_since_s, default=None)
        if longest is None:
            return False
        self.open.pop(longest)
        if not longest.served:
            self.refused_total += 1
            if longest.transport is not None:
                longest.transport.write(_NO_ROOM)
        longest.force_close()
        return True

    async def _take(self, connection: socket.socket, address: Address) -> None:
        loop, is_tls = asyncio.get_running_loop(), address.is_tls
        try:
            await loop.connect_accepted_socket(
                lambda: HttpConnection(self, self._server, asyncio.current_task(), address),
                connection,
                ssl=self._tls if is_tls else None,
                ssl_handshake_timeout=HANDSHAKE_S if is_tls else None,
            )
        except (OSError, ssl.SSLError):  # the peer was quicker, or speaks no TLS that is let in
            connection.close()
        except asyncio.CancelledError:  # somebody else has its place
            connection.close()
            raise

    def opened(self, connection: HttpConnection) -> None:
        """The connection can send requests."""
        coming, connection.coming = connection.coming, None
        if coming is not None:
            self._coming.pop(coming, None)
        self.open[connection] = None
        connection.in_reserve = len(self.open) > CONNECTIONS_MAX

    # --- looking after them

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            late_s = time.monotonic() - SILENCE_S
            for connection in [
                connection for connection in self.open if not connection.busy and connection.quiet_since_s < late_s
            ]:
                connection.force_close()
            self._each_second()
            if self._tls is not None:
                self._renew_tls(self._tls)

    def _renew_tls(self, context: ssl.SSLContext) -> None:
        """Show new connections the certificate that is in the files now; one that cannot be used changes nothing."""
        tls = self._current().tls
        files = file_versions(tls.certificate, tls.key)
        if files == self._tls_files or tls.certificate is None:
            return
        self._tls_files = files
        try:
            listener_context(tls)
            context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
        except SettingsError as error:
            log.error("the certificate was not read again, and the one in use stays: %s", error)
        else:
            log.info("the certificate %s was read again", tls.certificate)
