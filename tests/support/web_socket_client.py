"""A client of AMQP over WebSockets: Proton's engine, and aiohttp's frames between it and the socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

import aiohttp
import proton

from limits import LIMIT_S
from paired_engines import push_into, take_from, take_messages
from qpid_ha_client.proton_driver import READS_REFUSALS


class WebSocketClient:
    """A connection and a session of it, for tests that are coroutines. What it sends is in messages of `cut` bytes."""

    def __init__(self, url: str, *, cut: int = 0, user: str = "", password: str = "", **options: Any) -> None:
        """`url`: of the HTTP port. `options`: of aiohttp's `ws_connect`."""
        self._url = f"{url}/amqp"
        self._cut = cut
        self._options = {"protocols": ("amqp",), **options}
        self.transport = proton.Transport()
        self.connection: Any = proton.Connection()
        self.connection.container = "web"
        self.connection.desired_capabilities = [proton.symbol(name) for name in READS_REFUSALS]
        sasl = self.transport.sasl()
        if user:
            self.connection.user, self.connection.password = user, password
            sasl.allowed_mechs("SCRAM-SHA-256 PLAIN")
        else:
            sasl.allowed_mechs("ANONYMOUS")
        self.transport.bind(self.connection)
        self.connection.open()
        self.session: Any = self.connection.session()
        self.session.open()
        self.close_code: int | None = None
        """With which the other end has closed it; None: it has not."""

    async def __aenter__(self) -> WebSocketClient:
        self._http = aiohttp.ClientSession()
        try:
            self.socket = await self._http.ws_connect(self._url, **self._options)
        except BaseException:
            await self._http.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.socket.close()
        await self._http.close()

    async def flush(self) -> None:
        """Write what Proton has to say."""
        while data := take_from(self.transport):
            size = self._cut or len(data)
            for start in range(0, len(data), size):
                await self.socket.send_bytes(data[start : start + size])

    async def until(self, is_over: Callable[[], object]) -> None:
        """Carry bytes to and fro. Raises TimeoutError, and EOFError when the other end has closed it before."""
        async with asyncio.timeout(LIMIT_S):
            await self.flush()
            while not is_over():
                message = await self.socket.receive()
                if message.type is not aiohttp.WSMsgType.BINARY:
                    self.close_code = self.socket.close_code
                    raise EOFError(f"{message.type}: {message.data} {message.extra}")
                push_into(self.transport, message.data)
                await self.flush()

    async def attach(self, link: Any, credit: int = 0) -> Any:
        """Open a link, and wait for the answer."""
        link.open()
        if credit:
            link.flow(credit)
        await self.until(lambda: link.state & proton.Endpoint.REMOTE_ACTIVE)
        return link

    async def sender(self, address: str) -> Any:
        """A publisher's link that has credit."""
        link = self.session.sender(f"to-{address}")
        link.target.address = address
        await self.attach(link)
        await self.until(lambda: link.credit)
        return link

    async def send(self, link: Any, *bodies: Any) -> list[int]:
        """Publish, and wait for the outcomes."""
        deliveries: list[Any] = []
        for body in bodies:
            deliveries.append(link.delivery(f"{id(body)}-{len(deliveries)}"))
            link.stream(proton.Message(body).encode())
            link.advance()
        await self.until(lambda: all(each.remote_state for each in deliveries))
        return [each.remote_state for each in deliveries]

    async def receive(self, address: str, count: int) -> list[Any]:
        """So many messages' bodies, accepted."""
        link = self.session.receiver(f"from-{address}")
        link.source.address = address
        await self.attach(link, count)
        found: list[Any] = []

        def take() -> bool:
            for delivery, message in take_messages(link):
                delivery.update(proton.Delivery.ACCEPTED)
                delivery.settle()
                found.append(message.body)
            return len(found) >= count

        await self.until(take)
        link.close()
        await self.flush()
        return found
