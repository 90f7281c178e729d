"""A broker that is sent cases, many at a time, and looked at in between: its log, its memory, whom it serves."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil
from proton import Message

from blocking_client import BlockingClient
from fuzz.http_cases import Case, CaseMaker
from fuzz.http_verdicts import MARKER, is_endless, problem_with
from fuzz.request_table import KnownRequest, read_requests
from http_port import PATIENCE_S, HttpPort, write_tokens
from qpid_ha_config.tokens import TokenRole
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

AT_ONCE: Final = 24
SILENCE_S: Final = 0.1
"""After so long without an answer nothing more is awaited, where none has to come."""
GROWTH_BYTES: Final = 64 * 1024 * 1024
"""More memory than it had after its first batch is too much."""
_COMPLAINTS: Final = re.compile(
    r".*(?:Traceback|a bug|because of a bug|never retrieved|port failed|Unhandled|exception).*", re.I
)


class Finding(NamedTuple):
    """`number`: of the case; -1: some of those of a batch."""

    number: int
    kind: str
    problem: str
    sent: bytes = b""


class HttpTarget:
    """A primary with a backup, as a client sees it."""

    def __init__(self, broker: LocalBroker, url: str, port: HttpPort) -> None:
        self.port = port
        self.requests: tuple[KnownRequest, ...] = read_requests(self._ask)
        self.answers: Counter[str] = Counter()
        """By kind of a case and status."""
        self.memory_bytes = 0
        self._broker = broker
        self._url = url
        self._process = psutil.Process(broker.pid)
        self._seen = len(broker.log())
        self._first_bytes = 0

    def _ask(self, method: str, params: object) -> dict[str, object]:
        return self.port.rpc(method, TokenRole.ADMIN, **(params if isinstance(params, dict) else {}))

    def try_cases(self, maker: CaseMaker, numbers: Sequence[int]) -> list[Finding]:
        """Those of one batch, and then look at the broker."""
        return [*asyncio.run(self._all(maker, numbers)), *self._look(numbers)]

    async def _all(self, maker: CaseMaker, numbers: Sequence[int]) -> list[Finding]:
        waiting = iter(numbers)
        found: list[Finding] = []

        async def work() -> None:
            for number in waiting:
                case = maker.make(number)
                answer = await self._send(case)
                status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP") else "none"
                self.answers[f"{'whole' if case.is_whole else 'bytes'} {status}"] += 1
                problem = problem_with(case, answer)
                if problem:
                    found.append(Finding(number, case.kind, f"{problem}; answered {answer[:300]!r}", case.sent))

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
        return found

    async def _send(self, case: Case) -> bytes:
        """What is answered until the broker closes the connection, or goes on without an end, or nothing comes."""
        host, _, port = self.port.url.partition("://")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(case.address, 0))
        answer = bytearray()
        try:
            writer.write(case.sent)
            while True:
                async with asyncio.timeout(PATIENCE_S if case.is_whole else SILENCE_S):
                    part = await reader.read(1 << 20)
                answer += part
                if not part or (case.is_whole and is_endless(bytes(answer))):
                    return bytes(answer)
        except (TimeoutError, ConnectionError):  # a broker need not read what it has refused already
            return bytes(answer)
        finally:
            writer.transport.abort()

    # --- between batches

    def _look(self, numbers: Sequence[int]) -> Iterator[Finding]:
        of = f"cases {numbers[0]} to {numbers[-1]}"
        log = self._broker.log()
        for complaint in _COMPLAINTS.finditer(log, self._seen):
            yield Finding(-1, of, f"the log has {complaint[0]}")
        if any(token in log[self._seen :] for token in self.port.tokens.values()):
            yield Finding(-1, of, "the log has a token")
        self._seen = len(log)
        if self.port.get("/live").status_code != 200:
            yield Finding(-1, of, "/live says no")
        self.memory_bytes = self._process.memory_info().rss
        self._first_bytes = self._first_bytes or self.memory_bytes
        if self.memory_bytes > self._first_bytes + GROWTH_BYTES:
            yield Finding(-1, of, f"it takes {self.memory_bytes:,} bytes; after the first batch {self._first_bytes:,}")

    def serve_a_client(self) -> None:
        """Over AMQP, as if nothing had been. Raises ProtonException, or AssertionError."""
        client = BlockingClient(self._url)
        try:
            client.sender("served").send(Message(body="after"))
            receiver = client.receiver("served", 1)
            message = receiver.receive()
            receiver.accept()
            if message.body != "after":
                raise AssertionError(f"it was {message.body!r}")
        finally:
            with suppress(Exception):
                client.connection.close()


@contextmanager
def http_target() -> Iterator[HttpTarget]:
    """A primary with a backup, and agents, with a queue that only those with a role may hear of."""
    with tempfile.TemporaryDirectory(prefix="qpid-ha-fuzz-") as name:
        directory = Path(name)
        tokens = write_tokens(directory / "tokens")
        admin = {"admin": {"listen": "http://127.0.0.1:0", "tokens": str(directory / "tokens"), "amqp": True}}
        with RunningCluster(directory, 2, agents=True, settings=admin) as cluster:
            cluster.wait_whole()
            broker = cluster.the_primary()
            broker.ask("queues", action="create", name=MARKER)
            broker.ask("sets", action="create", name="fuzzed", replicas=[each.name for each in cluster.brokers])
            found = re.search(r"monitoring are answered on (\S+)", broker.log())
            if found is None:
                raise RuntimeError(f"there is no HTTP port: {broker.log()}")
            yield HttpTarget(
                broker, cluster.urls[cluster.brokers.index(broker)], HttpPort(found[1].rstrip(","), tokens)
            )
