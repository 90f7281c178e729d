"""Stories about what sockets leave behind in a broker's process: nothing that only a collector frees."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from cluster_in_process import InProcessBroker, InProcessCluster, eventually, free_ports
from http_port import write_tokens
from limits import LIMIT_S
from live_objects import live_objects, no_collector
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.http.http_admin import AdminPort, open_admin_port
from qpid_ha_config.tokens import TokenRole

pytestmark = pytest.mark.alone("counts objects of the whole process, in which other tests leave threads at work")

ROUNDS = 12
HTTP_HEAD = "HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer {}\r\n"


def in_uvloop(story: Coroutine[object, object, None]) -> None:
    """The loop of the broker's process: asyncio's own leaves transports to the collector."""

    async def limited() -> None:
        async with asyncio.timeout(3 * LIMIT_S):
            await story

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(limited())


async def growth(each: Callable[[], Awaitable[None]]) -> dict[str, int]:
    """By type: how many more objects live after twice as many rounds than after once as many, where each leaves some.

    What is under way at the two looks is less than that.
    """
    counts = []
    logging.disable()  # pytest keeps what is logged
    with no_collector():
        for _ in range(2):
            for _ in range(ROUNDS):
                await each()
            counts.append(live_objects())
    logging.disable(logging.NOTSET)
    before, after = counts
    return {kind: more for kind, number in after.items() if (more := number - before[kind]) > ROUNDS * 3 // 4}


@asynccontextmanager
async def closing(port: AdminPort) -> AsyncIterator[AdminPort]:
    try:
        yield port
    finally:
        await port.close()


async def exchange(
    where: int | Path, data: bytes, *, reads: bool = True, awaits: Callable[[], object] = lambda: True
) -> None:
    """Send that on a connection of its own, read one answer if there is one to come, and go when `awaits` is true."""
    if isinstance(where, int):
        reader, writer = await asyncio.open_connection("127.0.0.1", where)
    else:
        reader, writer = await asyncio.open_unix_connection(str(where))
    writer.write(data)
    if reads:
        await reader.read(100)
    await eventually(awaits)
    writer.transport.abort()
    await eventually(writer.transport.is_closing)


AMQP = {
    "silence": b"",
    "a header": b"AMQP\x00\x01\x00\x00",
    "noise": b"GET / HTTP/1.1\r\n\r\n",
    "a frame that is too large": b"AMQP\x00\x01\x00\x00\xff\xff\xff\xff\x02\x00\x00\x00",
}


@pytest.mark.parametrize("first", AMQP)
def test_a_clients_socket_leaves_nothing_behind(tmp_path: Path, first: str) -> None:
    async def run() -> None:
        async with InProcessBroker(tmp_path) as node:
            broker = node.broker

            async def each() -> None:
                await exchange(int(node.url.rpartition(":")[2]), AMQP[first], reads=bool(AMQP[first]))
                await eventually(lambda: broker.admission.count == 0)

            assert await growth(each) == {}

    in_uvloop(run())


HTTP = {
    "nothing": "",
    "half a head": "GET /live HTTP/1.1\r\n",
    "health": "GET /live HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": "\x00\x01\x02\r\n\r\n",
    "a wrong token": "GET /queues " + HTTP_HEAD.format("wrong") + "\r\n",
    "no page": "GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
    "a list": "GET /queues " + HTTP_HEAD + "\r\n",
    "metrics": "GET /metrics " + HTTP_HEAD + "\r\n",
    "a method": "POST /rpc " + HTTP_HEAD + "Content-Length: 50\r\n\r\n"
    '{"jsonrpc": "2.0", "id": 1, "method": "queues"}   ',
    "a method that is not there": "POST /rpc " + HTTP_HEAD + "Content-Length: 50\r\n\r\n"
    '{"jsonrpc": "2.0", "id": 1, "method": "nothing"}  ',
    "half a body": "POST /rpc " + HTTP_HEAD + "Content-Length: 50\r\n\r\n{",
    "events": "GET /events " + HTTP_HEAD + "\r\n",
}


@pytest.mark.parametrize("request_", HTTP)
@pytest.mark.parametrize("reads", [True, False])
def test_a_connection_of_the_http_port_leaves_nothing_behind(tmp_path: Path, request_: str, reads: bool) -> None:
    tokens = tmp_path / "tokens"
    token = write_tokens(tokens)[TokenRole.OPERATOR]
    (port,) = free_ports(1)
    settings = {"admin.listen": f"http://127.0.0.1:{port}", "admin.tokens": str(tokens)}

    async def run() -> None:
        async with InProcessBroker(tmp_path, settings) as node, closing(await open_admin_port(node.broker)) as admin:
            data = HTTP[request_].replace("{}", token).encode("latin-1")
            answers = bool(data) and not request_.startswith(("half", "a wrong"))  # which is answered late

            async def each() -> None:
                await exchange(port, data, reads=reads and answers)
                await eventually(lambda: not admin._connections.open)

            assert await growth(each) == {}

    in_uvloop(run())


def test_a_caller_that_goes_while_its_body_is_read_leaves_nothing_behind(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = write_tokens(tokens)[TokenRole.OPERATOR]
    (port,) = free_ports(1)
    settings = {"admin.listen": f"http://127.0.0.1:{port}", "admin.tokens": str(tokens)}

    async def run() -> None:
        async with InProcessBroker(tmp_path, settings) as node, closing(await open_admin_port(node.broker)) as admin:
            data = HTTP["half a body"].replace("{}", token).encode("latin-1")

            async def each() -> None:
                await exchange(
                    port, data, reads=False, awaits=lambda: any(each.busy for each in admin._connections.open)
                )
                await eventually(lambda: not admin._connections.open)

            assert await growth(each) == {}

    in_uvloop(run())


CONTROL = {
    "nothing": b"",
    "a method": b'{"jsonrpc": "2.0", "id": 1, "method": "queues"}\n',
    "an error": b'{"jsonrpc": "2.0", "id": 1, "method": "nothing"}\n',
    "noise": b"\x00\n",
    "half": b'{"jsonrpc"',
    "one that is watched": b'{"jsonrpc": "2.0", "id": 1, "method": "watch"}\n',
}


@pytest.mark.parametrize("request_", CONTROL)
@pytest.mark.parametrize("reads", [True, False])
def test_a_connection_of_the_control_socket_leaves_nothing_behind(tmp_path: Path, request_: str, reads: bool) -> None:
    async def run() -> None:
        async with InProcessBroker(tmp_path) as node:
            data = CONTROL[request_]

            async def each() -> None:
                await exchange(tmp_path / "broker.sock", data, reads=reads and data[-1:] == b"\n")
                await eventually(lambda: not node.broker.control._connections)

            assert await growth(each) == {}

    in_uvloop(run())


def test_a_connection_between_brokers_leaves_nothing_behind_when_it_breaks(tmp_path: Path) -> None:
    async def run() -> None:
        async with InProcessCluster(tmp_path, "a", "b", ha__clients="proxy") as cluster:
            await cluster.form("a")

            async def each() -> None:
                for protocol in list(cluster.brokers["a"]._protocols.values()):
                    protocol.abort()
                await cluster.see("b", lambda: cluster.member("b").member.status.state is not State.READY)
                await cluster.reach("b", State.READY)

            more = await growth(each)
            more.pop("qpid_ha_broker.ha.tail.Stretch", None)  # of what happened last; there is a limit
            # Both brokers go on meanwhile, and note what happens: what a connection is made of has types of its own.
            of_connections = ("qpid_ha_broker.", "proton._endpoints.", "proton._transport.", "uvloop.")
            assert {kind: count for kind, count in more.items() if kind.startswith(of_connections)} == {}

    in_uvloop(run())
