"""Who has a store, without a broker: writes to both logs, hands over what it wrote, and notes what it hears."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from limits import LIMIT_S
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.logs.log import DEFAULT_SET, CommitToken
from qpid_ha_broker.model.message_reader import NoReader
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.stores.group_ring import OpenRing
from qpid_ha_broker.server.stores.storage import Storage
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.server.stores.writer import StoreWriter
from qpid_ha_config.settings import StoreSettings
from simulated_disk import SimulatedDisk
from threaded_ring import ThreadedRing

SEGMENT_BYTES = 64 * 1024

open_ring: list[OpenRing] = []
"""Of the writers that `make_writer` makes from now on; empty: they have threads alone."""


def make_writer() -> StoreWriter:
    """Of a broker, for its sets."""
    return StoreWriter(*open_ring)


@pytest.fixture(params=["threads", "ring"])
def by_threads_and_by_ring(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have a test run twice."""
    if request.param == "ring":
        open_ring.append(ThreadedRing)
    yield request.param
    open_ring.clear()


class Reader(NoReader):
    """What the model asks of a message; none of these has properties."""


class Held:
    """A disk whose syncs wait while `is_open` is not set, which is as slow as a disk can be."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.syncs = 0
        self.is_open = threading.Event()
        self.is_open.set()
        self.arrived = threading.Event()

    def hold(self) -> None:
        """Let no sync pass from now on; `arrived`: one waits. In this order: one in between is not missed."""
        self.arrived.clear()
        self.is_open.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    def create(self, path: str, size: int = 0) -> Any:
        return _HeldFile(self, self.disk.create(path, size))


class _HeldFile:
    def __init__(self, held: Held, file: Any) -> None:
        self._held = held
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        self._held.syncs += 1
        self._held.arrived.set()
        if not self._held.is_open.wait(LIMIT_S):
            raise TimeoutError("nobody let go")
        self._file.sync()


class WatchedStore(Store):
    """Its owner hears of a full disk, too."""

    def __init__(self, owner: Owner, directory: Path, set_name: str, writer: StoreWriter | None) -> None:
        settings = StoreSettings(segment_bytes=SEGMENT_BYTES)
        storage = Storage(make_writer() if writer is None else writer, lambda directory, kept: owner.disk)
        super().__init__(directory, set_name, settings, "node1", storage)
        self._owner = owner

    def filled(self, shortage: OSError | None) -> None:
        super().filled(shortage)
        self._owner.news.set()


class Owner:
    """A broker as the store knows it: writes to both logs, hands over, and notes what it hears."""

    def __init__(
        self, directory: Path, disk: Any = None, set_name: str = DEFAULT_SET, writer: StoreWriter | None = None
    ) -> None:
        self.disk: Any = SimulatedDisk(Random(1)) if disk is None else disk
        self.resources = Resources(Reader())
        self.store = WatchedStore(self, directory, set_name, writer)
        self.found = self.store.recover(self.resources.sets, apply_all=True)
        for log in (self.resources.replicated.log, self.resources.sets.local_log):
            log.add_witness("store")
        self.failure = ""
        self.told: list[int] = []
        self.write_problems: list[str] = []
        """Each that the store has told of; empty: it writes again."""
        self.news = asyncio.Event()

    def start(self) -> None:
        self.store.start(self)

    def turn(self) -> bool:
        """Hand over what was written; whether all of the replicated log is certain at once."""
        self.store.persist_local(self.resources.sets.take_local_parts())
        batch = self.resources.replicated.log.take_batch()
        if batch is None:
            return True
        is_persisted = self.store.persist(batch, self.resources.replicated.log.committed_lsn, batch.last_lsn)
        if is_persisted:
            self.persisted(0, batch.last_lsn)
        return is_persisted

    def persisted(self, local_lsn: int, number: int) -> None:
        """The number of each request is the last LSN that it is about."""
        if number:
            self.told.append(number)
            self.resources.replicated.log.acknowledge("store", number)
        if local_lsn:
            self.resources.sets.local_log.acknowledge("store", local_lsn)
        self.news.set()

    def store_writable(self, problem: str) -> None:
        self.write_problems.append(problem)
        self.news.set()

    def store_failed(self, text: str) -> None:
        self.failure = text
        self.news.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def committed(self, token: CommitToken) -> None:
        await self.until(lambda: token.is_committed or self.failure)
        assert not self.failure

    # --- what is written

    def queue(self, name: str, local: bool = False) -> Queue:
        log = self.resources.sets.local_log if local else self.resources.replicated.log
        event = ev.QueueDeclared(name, {})
        self.resources.replicated.state.apply(log.append(event), event)
        return self.resources.catalog.queues[name]

    def publish(self, queue: Queue, body: bytes, durable: bool = True) -> CommitToken:
        return self.resources.publish(queue, Message(body, durable, 4, 0), 0)


class Deaf:
    """Owns a store, and nobody waits for it."""

    def persisted(self, local_lsn: int, number: int) -> None:
        """On disk."""

    def store_writable(self, problem: str) -> None:
        raise AssertionError(problem)

    def store_failed(self, text: str) -> None:
        raise AssertionError(text)
