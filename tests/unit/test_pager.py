"""Stories about a loop that pages: nobody waits for a disk but those who want what lies there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from event_loops import in_event_loop
from model_support import bodies, event_of, message
from paged_core import PagedCore, paged
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.model.paging import BodyPiece
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.paged import BodyDamaged
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.server.stores import pager as pager_module
from qpid_ha_broker.server.stores.pager import Pager
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.layout import segment_path, snapshot_index_path, snapshot_path
from qpid_ha_broker.store.snapshot import SnapshotEnd, SnapshotWriter

PATIENCE_S = 20.0


class Loop:
    """A broker's loop around the bare core: turns when somebody asks for one."""

    def __init__(self, core: PagedCore, memory_bytes: int) -> None:
        self.core = core
        self.problems: list[BodyDamaged] = []
        self.pager = Pager(core.catalog, core.bodies, memory_bytes, self.schedule, self.problems.append)
        self.got: list[str] = []
        self._is_due = False
        self._turned = asyncio.Event()

    def schedule(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.turn)

    def turn(self) -> None:
        self._is_due = False
        for handout in self.core.resources.hand_out(self.core.now_ms, 256):
            self.got += bodies(handout.entries)
            self.core.resources.accept(handout.consumer.queue, handout.entries)  # type: ignore[attr-defined]
        self.pager.turn()
        self._turned.set()
        if self.core.resources.has_work:
            self.schedule()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Have turns and ticks until it holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self.schedule()
                self._turned.clear()
                await self._turned.wait()
                self.pager.tick()


class Taker(Consumer):
    __slots__ = ("queue",)

    def __init__(self, core: PagedCore, queue: Queue) -> None:
        super().__init__()
        self.queue = queue
        core.resources.subscribe(queue, self, self)
        core.give_credit(queue, self, 1_000_000)


@pytest.fixture
def core(tmp_path: Path) -> PagedCore:
    return PagedCore(disk=LocalDisk(tmp_path))


def published(core: PagedCore, count: int, size: int = 1000) -> Queue:
    queue = core.queue("q")
    core.publish(queue, *(message(f"{n} {'x' * size}", durable=True) for n in range(count)))
    return queue


def texts(count: int, size: int = 1000) -> list[str]:
    return [f"{n} {'x' * size}" for n in range(count)]


@in_event_loop
async def test_a_backlog_leaves_memory_and_comes_back_to_a_consumer(core: PagedCore) -> None:
    queue = published(core, 20_000)
    loop = Loop(core, 14_000_000)
    loop.pager.closed([core.close_file(), *closed(core)])
    await loop.until(lambda: core.catalog.memory_bytes < 14_000_000)
    assert len(paged(queue)) > 11_000
    Taker(core, queue)
    await loop.until(lambda: queue.messages.count == 0)
    assert loop.got == texts(20_000)
    assert (core.catalog.memory_bytes, loop.pager.facts()["paged_bytes"]) == (0, 0)
    loop.pager.stop()


def closed(core: PagedCore) -> list[str]:
    return [segment_path(each.number) for each in core.journal.closed_segments()]


@in_event_loop
async def test_paging_works_in_slices_and_lets_the_loop_serve_others_in_between(
    core: PagedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pager_module, "SLICE_S", 0.0)  # or a fast machine would do with a few
    published(core, 20_000, 100)
    loop = Loop(core, 100_000)
    core.close_file()
    loop.pager.closed(closed(core))
    slices = 0
    served_before: list[int] = []
    step = loop.pager._work

    def counted(visit: object) -> None:
        nonlocal slices
        step(visit)  # type: ignore[arg-type]
        slices += 1
        asyncio.get_running_loop().call_soon(served_before.append, slices)

    loop.pager._work = counted  # type: ignore[method-assign]
    await loop.until(lambda: loop.pager.freed_total > 1_000_000)
    loop.pager.stop()
    assert slices > 5
    assert len(set(served_before)) > 5


@in_event_loop
async def test_what_a_snapshot_replaces_is_read_until_all_points_to_the_snapshot(core: PagedCore) -> None:
    queue = published(core, 5000)
    loop = Loop(core, 3_500_000)
    core.close_file()
    old = closed(core)
    loop.pager.closed(old)
    await loop.until(lambda: core.catalog.memory_bytes < 3_500_000)
    number = core.journal.number
    snapshot_of(core, queue, number)
    pinned = loop.pager.replaced(number)
    assert pinned
    assert pinned <= set(old)
    for name in old:
        core.disk.remove(name)
    await loop.until(lambda: not any(name in core.bodies.names for name in old))
    Taker(core, queue)
    await loop.until(lambda: queue.messages.count == 0)
    assert loop.got == texts(5000)
    loop.pager.stop()


def snapshot_of(core: PagedCore, queue: Queue, number: int) -> None:
    header = FileHeader("snapshot", "cluster", "broker", "default", number, 1, 1, (1 << 63) + 1, 0, 0, False)
    writer = SnapshotWriter(core.disk, header)
    entries = list(queue.messages)
    for start in reversed(range(0, len(entries), 500)):
        writer.add(encode_all([LogRecord(entry.id, event_of(entry), False) for entry in entries[start : start + 500]]))
    writer.finish(SnapshotEnd(core.log.last_lsn, 1 << 63, core.log.last_lsn, 1 << 63, len(entries), 0))


@in_event_loop
async def test_damage_is_told_and_what_comes_before_it_is_given_out(core: PagedCore, tmp_path: Path) -> None:
    queue = published(core, 5000)
    loop = Loop(core, 3_500_000)
    core.close_file()
    loop.pager.closed(closed(core))
    await loop.until(lambda: core.catalog.memory_bytes < 3_500_000)
    entry = list(queue.messages)[2000]
    place = entry.ref()
    with (tmp_path / place.source.name).open("r+b") as file:
        file.seek(place.offset + 100)
        file.write(b"?")
    Taker(core, queue)
    await loop.until(lambda: bool(loop.problems) and len(loop.got) == 2000)
    (problem,) = loop.problems
    assert (problem.file, problem.offset) == (place.source.name, place.offset)
    assert loop.got == texts(2000)
    assert queue.messages.count == 3000
    assert loop.pager.facts()["unreadable_messages"] == 1
    loop.pager.stop()


@in_event_loop
async def test_a_snapshot_that_no_start_has_read_is_looked_through_soon_after(core: PagedCore, tmp_path: Path) -> None:
    queue = published(core, 5000)
    snapshot_of(core, queue, 9)
    name, index = snapshot_path(9), tmp_path / snapshot_index_path(9)
    core.bodies.unchecked.append(name)
    loop = Loop(core, 1 << 40)
    await loop.until(lambda: not core.bodies.unchecked)
    assert (loop.problems, index.exists()) == ([], True)
    with (tmp_path / name).open("r+b") as file:
        file.seek(-10_000, 2)
        file.write(b"?")
    core.bodies.unchecked.append(name)
    await loop.until(lambda: bool(loop.problems) and not index.exists() and not core.bodies.unchecked)
    (problem,) = loop.problems
    assert problem.file == name
    assert "some messages cannot be read back: expected CRC-32" in str(problem)
    loop.pager.stop()


@in_event_loop
async def test_what_a_browser_brought_back_leaves_again(core: PagedCore) -> None:
    queue = published(core, 20_000)
    loop = Loop(core, 12_000_000)
    core.close_file()
    loop.pager.closed(closed(core))
    await loop.until(lambda: core.catalog.memory_bytes < 12_000_000)
    core.commit()
    browser = core.browser(queue)
    seen: list[str] = []
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while len(seen) < 20_000:
        assert asyncio.get_running_loop().time() < deadline
        core.give_credit(queue, browser, 500)
        handouts = core.resources.hand_out(core.now_ms, 500)
        seen += [text for handout in handouts for text in bodies(handout.entries)]
        loop.pager.turn()
        await asyncio.sleep(0)
    assert seen == texts(20_000)
    core.leave(queue, browser)
    await loop.until(lambda: core.catalog.memory_bytes < 12_000_000)
    loop.pager.stop()


@in_event_loop
async def test_a_file_that_was_deleted_while_it_was_read_in_vain_is_no_error(core: PagedCore) -> None:
    published(core, 100)
    loop = Loop(core, 1)
    core.close_file()
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))

    def deleted(name: str) -> BodyPiece:
        raise FileNotFoundError(name)

    loop.pager._bodies.pieces = lambda name: map(deleted, [name])  # type: ignore[method-assign]
    loop.pager.closed(closed(core))
    loop.pager.tick()
    assert loop.pager._visit is not None
    loop.pager.replaced(1 << 30)
    await asyncio.to_thread(loop.pager._threads.shutdown)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()  # an exception that nobody has asked for is told when its future is no more
    assert problems == []
