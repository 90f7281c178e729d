"""AMQP over WebSockets at the HTTP port (RFC 6455 section 4.2; OASIS, WebSocket Binding 1.0): `GET /amqp`.

The answer is the last that is of HTTP. Then the socket is a client's like any other: it logs in by SASL, has a place
among the clients, and none of the HTTP port's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web

from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.clients.web_socket_frames import accept_key
from qpid_ha_broker.server.clients.web_sockets import WebSocketProtocol
from qpid_ha_broker.server.http.http_connections import HttpConnection
from qpid_ha_broker.server.http.refusals import RETRY, HttpRefusal, is_own_page
from qpid_ha_broker.server.runtime.engines import EngineFactory
from qpid_ha_config.addresses import Address

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

PATH: Final = "/amqp"
SUB_PROTOCOL: Final = "amqp"
_VERSION: Final = "13"


class AmqpUpgrade:
    """The promise: who is let in here could have come in at a listener of the same address, and no page of a site that
    `admin.amqp-origins` does not name has its reader's browser do so."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._engines: dict[Address, EngineFactory] = {}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Raises HttpRefusal, or CancelledError: there is no answer of HTTP any more."""
        accepted = self._check(request)
        connection = request.protocol
        if not isinstance(connection, HttpConnection) or connection.transport is None:
            raise ConnectionResetError("the connection is gone")
        client = ClientProtocol(self._broker, self._engines_of(connection.address))
        descriptor = connection.transport.get_extra_info("socket").fileno()
        if not self._broker.listeners.admit(client, descriptor, request.remote or "?"):
            raise HttpRefusal(503, "too many clients are connecting: try again", RETRY)
        head = (
            "HTTP/1.1 101 Switching Protocols",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Accept: {accepted}",
            f"Sec-WebSocket-Protocol: {SUB_PROTOCOL}",
        )
        transport = connection.hand_over()
        if transport is not None:
            transport.write("\r\n".join((*head, "", "")).encode())
            WebSocketProtocol(client, self._broker.notices.refusals).take_over(transport)
        else:
            self._broker.admission.gone(client)
        await asyncio.sleep(0)  # this is cancelled: see `hand_over`
        raise ConnectionResetError("the connection speaks WebSockets")

    def _check(self, request: web.BaseRequest) -> str:
        """What the answer says of the client's key. Raises HttpRefusal."""
        headers = request.headers
        if request.query_string:
            raise HttpRefusal(400, f"{PATH} takes no parameters")
        if headers.get("Upgrade", "").lower() != "websocket" or "upgrade" not in _words(headers.get("Connection", "")):
            raise HttpRefusal(426, f"{PATH} is for WebSockets", {"Upgrade": "websocket", "Connection": "Upgrade"})
        if headers.get("Sec-WebSocket-Version") != _VERSION:
            raise HttpRefusal(426, f"speak version {_VERSION} of WebSockets", {"Sec-WebSocket-Version": _VERSION})
        origin = headers.get("Origin")
        allowed = self._broker.current().admin.amqp_origins
        if origin is not None and origin.lower() not in allowed and not is_own_page(origin, headers.get("Host", "")):
            problem = f"pages of {origin:.200} are not let in: an administrator can name it in admin.amqp-origins"
            raise HttpRefusal(403, problem)
        if SUB_PROTOCOL not in _words(headers.get("Sec-WebSocket-Protocol", "")):
            raise HttpRefusal(400, f"ask for the sub-protocol {SUB_PROTOCOL}: nothing else is spoken here")
        accepted = accept_key(headers.get("Sec-WebSocket-Key", ""))
        if accepted is None:
            raise HttpRefusal(400, "Sec-WebSocket-Key has to be sixteen bytes in base64")
        if not self._broker.listening or self._broker.is_stopping:
            raise HttpRefusal(503, "no clients are let in yet, or any more: try again", RETRY)
        return accepted

    def _engines_of(self, address: Address) -> EngineFactory:
        """Made when the first client comes: by then the broker can say who may log in."""
        if address not in self._engines:
            self._engines[address] = self._broker.files.engines.for_listener(address)
        return self._engines[address]


def _words(header: str) -> list[str]:
    """Of a list with commas, in lower case."""
    return [word.strip().lower() for word in header.split(",")]
