"""Stories about callers of the HTTP port that ask for much, go before they are answered, or only connect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cluster_in_process import InProcessBroker, eventually, free_ports
from http_port import write_tokens
from limits import LIMIT_S
from qpid_ha_broker.model.commands.administration import Administration
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.server.http.http_admin import AdminPort, open_admin_port
from qpid_ha_broker.server.http.http_connections import CONNECTIONS_MAX, RESERVE
from qpid_ha_broker.server.http.http_slots import IN_ALL, PER_TOKEN
from qpid_ha_config.tokens import TokenRole

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Loaded:
    """A broker in this process with an HTTP port, and its callers."""

    def __init__(self, node: InProcessBroker, admin: AdminPort, port: int, tokens: dict[TokenRole, str]) -> None:
        self.node, self.admin, self.port, self.tokens = node, admin, port, tokens
        self.callers: list[Streams] = []
        self.begun = self.cancelled = 0
        self.goes_on = asyncio.Event()

    async def connect(self) -> Streams:
        streams = await asyncio.open_connection("127.0.0.1", self.port)
        self.callers.append(streams)
        return streams

    async def rpc(self, method: str, role: TokenRole = TokenRole.VIEWER, **params: object) -> Streams:
        """A request whose answer is to come on these."""
        reader, writer = await self.connect()
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        head = f"POST /rpc HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.tokens[role]}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write((head + body).encode())
        return reader, writer

    async def get(self, path: str) -> tuple[int, dict[str, str]]:
        """Status and headers of an answer without a token."""
        reader, writer = await self.connect()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return await answer(reader)

    def wait_in(self, method: str) -> None:
        """Let that method take until `goes_on`."""

        async def waits(params: dict[str, Any]) -> object:
            self.begun += 1
            try:
                await self.goes_on.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return {}

        self.node.broker.control.methods = {**self.node.broker.control.methods, method: waits}

    def all_go(self) -> None:
        for _, writer in self.callers:
            writer.transport.abort()
        self.callers.clear()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value for name, value in headers.items()}


@asynccontextmanager
async def loaded(directory: Path) -> AsyncIterator[Loaded]:
    tokens = write_tokens(directory / "tokens")
    (port,) = free_ports(1)
    settings = {"admin.listen": f"http://127.0.0.1:{port}", "admin.tokens": str(directory / "tokens")}
    async with InProcessBroker(directory, settings) as node:
        admin = await open_admin_port(node.broker)
        try:
            yield Loaded(node, admin, port, tokens)
        finally:
            await admin.close()


def story(told: Callable[[Loaded], Any]) -> Callable[[Path], None]:
    """A test that is told of a loaded broker, on the loop that brokers have."""

    async def run(directory: Path) -> None:
        async with asyncio.timeout(3 * LIMIT_S), loaded(directory) as broker:
            await told(broker)

    def test(tmp_path: Path) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(tmp_path))

    test.__name__ = told.__name__
    return test


@story
async def test_a_token_has_so_many_requests_under_way_and_all_together_so_many(broker: Loaded) -> None:
    broker.wait_in("queues")
    for _ in range(PER_TOKEN):
        await broker.rpc("queues")
    await eventually(lambda: broker.begun == PER_TOKEN)
    status, headers = await answer((await broker.rpc("queues"))[0])
    assert (status, headers["retry-after"]) == (429, "1")
    for _ in range(IN_ALL - PER_TOKEN):
        await broker.rpc("queues", TokenRole.OPERATOR)
    await eventually(lambda: broker.begun == IN_ALL)
    status, headers = await answer((await broker.rpc("queues", TokenRole.ADMIN))[0])
    assert (status, headers["retry-after"]) == (503, "1")
    assert (await broker.get("/live"))[0] == 200
    first = broker.callers[0][0]
    broker.goes_on.set()
    assert (await answer(first))[0] == 200
    await eventually(lambda: broker.admin._slots.count == 0)
    assert (await answer((await broker.rpc("queues"))[0]))[0] == 200


@story
async def test_what_nobody_waits_for_any_more_ends_if_it_only_looks(broker: Loaded) -> None:
    broker.wait_in("queues")
    for _ in range(3):
        await broker.rpc("queues")
    await eventually(lambda: broker.begun == 3)
    broker.all_go()
    await eventually(lambda: broker.cancelled == 3)
    await eventually(lambda: broker.admin._slots.count == 0)


@story
async def test_what_changes_something_goes_on_and_counts_until_it_is_done(broker: Loaded) -> None:
    broker.wait_in("queues")
    await broker.rpc("queues", TokenRole.OPERATOR, action="purge", name="q")
    await eventually(lambda: broker.begun == 1)
    broker.all_go()
    await eventually(lambda: not broker.admin._connections.open)
    assert (broker.cancelled, broker.admin._slots.count) == (0, 1)
    broker.goes_on.set()
    await eventually(lambda: broker.admin._slots.count == 0)


@story
async def test_a_list_that_is_abandoned_is_not_made_to_its_end(broker: Loaded) -> None:
    configuration = broker.node.broker.container.default.configuration
    for number in range(3000):
        configuration.declare_queue(f"q{number}", {})
    made, facts = 0, Administration._queue_facts

    def count(self: Administration, queue: Queue) -> Any:
        nonlocal made
        made += 1
        return facts(self, queue)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Administration, "_queue_facts", count)
        for _ in range(PER_TOKEN):
            await broker.rpc("queues")
        await eventually(lambda: made > 0)
        broker.all_go()
        await eventually(lambda: broker.admin._slots.count == 0)
    assert 0 < made < PER_TOKEN * 3000


@story
async def test_silent_connections_keep_no_load_balancer_out(broker: Loaded) -> None:
    for _ in range(CONNECTIONS_MAX + RESERVE):
        await broker.connect()
    await eventually(lambda: len(broker.admin._connections.open) >= CONNECTIONS_MAX)
    for path in ("/live", "/ready", "/primary", "/replica", "/in-sync") * 10:
        await broker.connect()
        status, headers = await broker.get(path)
        assert status in (200, 503), path
        assert "content-type" in headers, "it was told that there is no room"


@story
async def test_where_everybody_is_answered_there_is_a_place_for_load_balancers_only(broker: Loaded) -> None:
    connections = broker.admin._connections
    for _ in range(CONNECTIONS_MAX):
        await broker.connect()
    await eventually(lambda: len(connections.open) == CONNECTIONS_MAX)
    for connection in connections.open:
        connection.busy = True
    for _ in range(3):
        assert (await broker.get("/live"))[0] == 200
    status, headers = await broker.get("/")
    assert (status, headers["retry-after"]) == (503, "1")


@story
async def test_answers_do_not_say_what_they_were_made_with(broker: Loaded) -> None:
    refused = await answer((await broker.rpc("nothing"))[0])
    for _, headers in (await broker.get("/live"), await broker.get("/"), await broker.get("/nowhere"), refused):
        assert "server" not in headers
    reader, writer = await broker.connect()
    writer.write(b"\x00\r\n\r\n")
    assert "server" not in (await answer(reader))[1]


@story
async def test_wrong_tokens_are_summed_up_in_the_log(broker: Loaded) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr(broker.admin._wrong_log._log, "log", lambda level, text, *rest: lines.append(text % rest))
        patch.setattr(broker.admin._wrong, "note", lambda address: 0.0)
        patch.setattr(broker.admin._wrong_log, "_clock", lambda: 7.0)
        broker.tokens[TokenRole.VIEWER] = "wrong"
        for _ in range(20):
            assert (await answer((await broker.rpc("queues"))[0]))[0] == 401
        assert len(lines) == 1
        patch.setattr(broker.admin._wrong_log, "_clock", lambda: 9.0)
        broker.admin._wrong_log.flush()
    assert len(lines) == 2
    assert "and 18 others" in lines[1]


@story
async def test_a_list_that_is_asked_for_through_the_control_socket_ends_when_its_caller_goes(broker: Loaded) -> None:
    broker.wait_in("queues")
    path = str(broker.node.broker.control.path)
    line = b'{"jsonrpc": "2.0", "id": 1, "method": "queues", "params": {"action": "%s"}}\n'
    _, looks = await asyncio.open_unix_connection(path)
    looks.write(line % b"list")
    _, changes = await asyncio.open_unix_connection(path)
    changes.write(line % b"purge")
    reader, says_no_more = await asyncio.open_unix_connection(path)
    says_no_more.write(line % b"list")
    says_no_more.write_eof()
    await eventually(lambda: broker.begun == 3)
    looks.transport.abort()
    changes.transport.abort()
    await eventually(lambda: broker.cancelled == 1)
    broker.goes_on.set()
    assert b"result" in await reader.readline()
    assert broker.cancelled == 1
