"""Whether the other end of a socket has hung up, though what it had sent before is not read yet."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from certificate_authority import Authority
from qpid_ha_broker.server.runtime.hang_ups import has_hung_up

UNREAD = b"a request that nobody has read"
ENDS: dict[str, Callable[[socket.socket], None]] = {
    "goes on": lambda other: None,
    "ends what it says": lambda other: other.shutdown(socket.SHUT_WR),
    "closes": socket.socket.close,
}


class Stopped(asyncio.Protocol):
    """It reads nothing."""

    def __init__(self, made: asyncio.Future[asyncio.Transport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._made.set_result(transport)


@pytest.mark.parametrize(
    ("family", "end", "expected"),
    [
        (socket.AF_UNIX, "goes on", False),
        (socket.AF_UNIX, "ends what it says", False),
        (socket.AF_UNIX, "closes", True),
        (socket.AF_INET, "goes on", False),
        (socket.AF_INET, "ends what it says", True),
        (socket.AF_INET, "closes", True),
    ],
)
def test_the_end_is_seen_behind_what_is_unread(
    tmp_path: Path, family: socket.AddressFamily, end: str, expected: bool
) -> None:
    """On TCP nobody can tell one who has only ended what he says from one who has gone."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[asyncio.Transport] = loop.create_future()
        address = str(tmp_path / "s") if family == socket.AF_UNIX else ("127.0.0.1", 0)
        with socket.socket(family) as listening, socket.socket(family) as other:
            listening.bind(address)
            server = await loop.create_server(lambda: Stopped(made), sock=listening)
            async with server:
                other.connect(listening.getsockname())
                other.sendall(UNREAD)
                transport = await made
                assert not has_hung_up(transport)
                ENDS[end](other)
                assert has_hung_up(transport) is expected
                transport.abort()
                assert has_hung_up(transport)

    asyncio.run(story())


def test_the_end_of_an_encrypted_connection_is_seen_behind_what_is_unread(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(*authority.issue("broker"))
    theirs = ssl.create_default_context(cafile=str(authority.certificate))

    async def story() -> None:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[asyncio.Transport] = loop.create_future()
        async with await loop.create_server(lambda: Stopped(made), "127.0.0.1", 0, ssl=ours) as server:
            host, port = server.sockets[0].getsockname()
            _, writer = await asyncio.open_connection(host, port, ssl=theirs)
            transport = await made
            writer.write(UNREAD)
            assert not has_hung_up(transport)
            writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            assert has_hung_up(transport)
            transport.abort()
            writer.transport.abort()

    asyncio.run(story())


def test_what_has_no_socket_is_there_until_it_closes() -> None:
    class InMemory(asyncio.Transport):
        is_over = False

        def is_closing(self) -> bool:
            return self.is_over

    transport = InMemory()
    assert not has_hung_up(transport)
    transport.is_over = True
    assert has_hung_up(transport)
