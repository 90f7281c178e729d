"""Groups that the kernel puts on disk by itself, and what the loop hears of them."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from event_loops import in_event_loop
from limits import LIMIT_S
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.stores import disk_ring
from qpid_ha_broker.server.stores import writer as store_writer
from qpid_ha_broker.server.stores.disk_ring import DiskRing, open_disk_ring
from qpid_ha_broker.server.stores.group_ring import GroupRing
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.server.stores.writer import JournalPiece, JournalWriter, RingJournalWriter, StoreWriter
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.files import LocalDisk, LocalFile
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_config.settings import StoreSettings
from simulated_disk import SimulatedDisk
from store_owner import SEGMENT_BYTES, Deaf, Reader
from threaded_ring import HeldRing


class Outcomes:
    """What was told of groups, in order."""

    def __init__(self) -> None:
        self.told: list[OSError | None] = []
        self._news = asyncio.Event()

    def done(self, error: OSError | None) -> None:
        self.told.append(error)
        self._news.set()

    async def first(self, count: int) -> list[OSError | None]:
        async with asyncio.timeout(LIMIT_S):
            while len(self.told) < count:
                self._news.clear()
                await self._news.wait()
        return self.told

    async def code(self) -> int | None:
        """Of the error of the only one."""
        (error,) = await self.first(1)
        return None if error is None else error.errno


def the_ring() -> DiskRing:
    ring = open_disk_ring(asyncio.get_running_loop())
    if ring is None:
        pytest.skip("this machine has no io_uring for us")
    return ring


@in_event_loop
async def test_each_group_of_each_file_is_written_where_it_belongs_and_told_once(tmp_path: Path) -> None:
    ring, outcomes, draw = the_ring(), Outcomes(), Random(1)
    files = [LocalDisk(tmp_path).create(str(number), 64 * 1024) for number in range(20)]
    groups = [draw.randbytes(draw.randint(1, 3000)) for _ in range(200)]
    for number, group in enumerate(groups):
        assert ring.put(files[number % 20], number // 20 * 3000, group, outcomes.done)
    assert await outcomes.first(200) == 200 * [None]
    assert len(ring._free) == ring._numbers, "as many may be on their way again"
    for number, group in enumerate(groups):
        assert files[number % 20].read(number // 20 * 3000, len(group)) == group


@in_event_loop
async def test_a_full_disk_is_told_as_one() -> None:
    ring, outcomes = the_ring(), Outcomes()
    assert ring.put(LocalFile(os.open("/dev/full", os.O_WRONLY)), 0, b"group", outcomes.done)
    assert await outcomes.code() == errno.ENOSPC


@in_event_loop
async def test_a_file_without_a_name_is_no_place_for_a_group(tmp_path: Path) -> None:
    ring, outcomes = the_ring(), Outcomes()
    file = LocalDisk(tmp_path).create("1", 4096)
    (tmp_path / "1").unlink()
    assert ring.put(file, 0, b"group", outcomes.done)
    assert await outcomes.code() == errno.ENOENT


@in_event_loop
async def test_a_sync_that_fails_is_an_error_although_all_was_written() -> None:
    ring, outcomes = the_ring(), Outcomes()
    assert ring.put(LocalFile(os.open("/dev/null", os.O_WRONLY)), 0, b"group", outcomes.done)
    assert await outcomes.code() == errno.EINVAL


@in_event_loop
async def test_a_kernel_that_is_silent_about_a_failed_sync_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    the_ring()
    nothing_done = 0  # the operation that always succeeds
    monkeypatch.setattr(disk_ring, "_OP_FSYNC", nothing_done)
    monkeypatch.setattr(disk_ring, "_DATASYNC", 0)
    assert open_disk_ring(asyncio.get_running_loop()) is None


@pytest.mark.parametrize(("step", "code"), [(disk_ring._WRITTEN, errno.ENOSPC), (disk_ring._SYNCED, errno.EIO)])
@in_event_loop
async def test_only_a_write_may_be_tried_again_for_want_of_room(tmp_path: Path, step: int, code: int) -> None:
    ring, outcomes = the_ring(), Outcomes()
    chain = disk_ring._Chain(0, 0, b"group", None, None, outcomes.done)
    ring._end(chain, step, -errno.ENOSPC)
    assert await outcomes.code() == code


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As a disk on which just so much fits; the next byte is refused otherwise, though."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@in_event_loop
async def test_what_fits_only_in_part_goes_on_where_that_ends_and_is_not_called_kept(tmp_path: Path) -> None:
    ring, outcomes, data = the_ring(), Outcomes(), Random(1).randbytes(3000)
    file = LocalDisk(tmp_path).create("1")
    with files_of_at_most(1000):
        assert ring.put(file, 0, data, outcomes.done)
        assert await outcomes.code() == errno.EFBIG
    assert file.read(0, 4096) == data[:1000]


@in_event_loop
async def test_the_rest_of_a_group_is_written_and_only_then_synced() -> None:
    ring, outcomes, data = the_ring(), Outcomes(), Random(1).randbytes(100_000)
    reading, writing = os.pipe2(os.O_NONBLOCK)  # takes 64 KiB at a time
    assert ring.put(LocalFile(writing), 0, data, outcomes.done)
    received = b""
    async with asyncio.timeout(LIMIT_S):
        while len(received) < len(data):
            await asyncio.sleep(0)
            try:
                received += os.read(reading, len(data))
            except BlockingIOError:
                continue
    assert received == data
    assert await outcomes.code() == errno.EINVAL, "a pipe cannot be synced"


async def skip_without_ring() -> None:
    the_ring()


def test_memory_of_what_is_on_its_way_outlives_the_loop(tmp_path: Path) -> None:
    asyncio.run(skip_without_ring())
    loop, data = asyncio.new_event_loop(), Random(1).randbytes(3000)
    ring = open_disk_ring(loop)
    assert ring is not None
    assert ring.put(LocalDisk(tmp_path).create("1", 4096), 0, data, lambda error: None)
    loop.close()
    del ring
    assert data in [chain.data for chain in disk_ring._on_their_way.values()]


@in_event_loop
async def test_a_machine_without_io_uring_has_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(disk_ring, "_SETUP", 100_000)  # no such call
    assert open_disk_ring(asyncio.get_running_loop()) is None
    assert "threads alone" in caplog.text


# --- a journal whose groups go into a ring


class Journaled:
    """A journal on a disk in memory, with what its writer tells."""

    def __init__(self, ring: GroupRing) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.journal = Journal.begin(
            self.disk, Identity("", "node1", "default"), 1, generation=0, first_lsn=1, first_local_lsn=LOCAL_BASE + 1,
            previous_bytes=0, clock=lambda: 0, segment_bytes=SEGMENT_BYTES,
        )  # fmt: skip
        self.told: list[object] = []
        self._news = asyncio.Event()
        self.writer: JournalWriter = StoreWriter(lambda _: ring).open(self.journal, self, asyncio.get_running_loop())
        self._ticket = 0

    def piece(self, size: int = 10) -> JournalPiece:
        self._ticket += 1
        return JournalPiece(self._ticket, BlockKind.EVENTS, self._ticket, self._ticket, 0, 0, bytes(size))

    def append(self, size: int = 10) -> None:
        self.writer.append(self.piece(size))

    def run(self, name: str) -> None:
        self.writer.run(lambda: None, lambda: self._tell(name))

    def synced(self, ticket: int) -> None:
        self._tell(ticket)

    def filled(self, shortage: OSError | None) -> None:
        self._tell("full" if shortage is not None else "room")

    def failed(self, text: str) -> None:
        self._tell(text)

    def _tell(self, news: object) -> None:
        self.told.append(news)
        self._news.set()

    async def until(self, *told: object) -> None:
        """Also when more should come than that."""
        async with asyncio.timeout(LIMIT_S):
            while len(self.told) < len(told):
                self._news.clear()
                await self._news.wait()
        assert self.told == list(told)

    async def told_or_given_to(self, ring: HeldRing, count: int) -> None:
        """So much was told, or a group has come to the ring."""
        ring.has_got_one = self._news.set
        async with asyncio.timeout(LIMIT_S):
            while not ring.groups and len(self.told) < count:
                self._news.clear()
                await self._news.wait()

    async def close(self) -> None:
        assert await asyncio.to_thread(self.writer.finish, LIMIT_S)


@in_event_loop
async def test_what_is_given_meanwhile_waits_and_goes_together_and_a_job_keeps_its_place() -> None:
    ring = HeldRing()
    journaled = Journaled(ring)
    for _ in range(3):
        journaled.append()
    journaled.run("job")
    journaled.append()
    assert len(ring.groups) == 1
    assert journaled.told == []
    ring.write()
    assert journaled.told == [1]
    ring.write()
    await journaled.until(1, 3, "job", 4)  # threads that have it do all that is there
    assert not ring.groups
    assert journaled.writer.waiting_bytes == 0
    await journaled.close()


@in_event_loop
async def test_what_takes_more_than_a_write_and_a_sync_goes_by_threads() -> None:
    ring = HeldRing()
    journaled = Journaled(ring)
    journaled.append(SEGMENT_BYTES)  # the next segment
    await journaled.until(1)
    journaled.writer.append_joined([journaled.piece(), journaled.piece()])
    await journaled.until(1, 3)
    ring.is_full = True
    journaled.append()
    await journaled.until(1, 3, 4)
    assert not ring.groups
    await journaled.close()


@in_event_loop
async def test_a_group_without_room_is_tried_again_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "RETRY_S", 0.01)
    ring = HeldRing()
    journaled = Journaled(ring)
    journaled.append()
    journaled.disk.fail(1, errno.ENOSPC, of=("write",), times=2)
    ring.write()
    told: list[object] = ["full", "room", 1]
    await journaled.until(*told)
    while not ring.groups:  # the thread tells before it has ended: what is given until then goes with it
        journaled.append()
        told.append(len(told) - 1)
        await journaled.told_or_given_to(ring, len(told))
    ring.write()
    await journaled.until(*told)
    await journaled.close()


@in_event_loop
async def test_a_group_that_failed_ends_the_journal_and_is_told_once() -> None:
    ring = HeldRing()
    journaled = Journaled(ring)
    journaled.append()
    journaled.append()
    ring.fail(OSError(errno.EIO, "Input/output error"))
    await journaled.until("[Errno 5] Input/output error")
    journaled.append()
    await journaled.close()
    assert len(journaled.told) == 1
    assert journaled.journal.is_dead
    assert not ring.groups


@in_event_loop
async def test_a_disk_that_hangs_in_a_ring_does_not_keep_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = HeldRing()
    journaled = Journaled(ring)
    journaled.append()
    assert not await asyncio.to_thread(journaled.writer.finish, 0.01)
    assert journaled.writer.ended.is_set()
    assert journaled.told == []


@in_event_loop
async def test_when_nothing_comes_any_more_a_mark_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "IDLE_S", 0.0)
    ring = HeldRing()
    journaled = Journaled(ring)
    marks: list[int] = []
    loop, marked = asyncio.get_running_loop(), asyncio.Event()

    def mark() -> None:
        marks.append(len(ring.groups))
        loop.call_soon_threadsafe(marked.set)

    monkeypatch.setattr(journaled.journal, "mark", mark)
    writer = journaled.writer
    assert isinstance(writer, RingJournalWriter)
    journaled.append()
    writer._look_whether_idle()
    ring.write()
    async with asyncio.timeout(LIMIT_S):
        await marked.wait()
    await journaled.close()
    assert marks == [0]


@pytest.mark.parametrize("has_ring", [True, False])
@in_event_loop
async def test_a_setting_has_threads_write_where_there_is_a_ring(tmp_path: Path, has_ring: bool) -> None:
    the_ring()
    resources = Resources(Reader())
    store = Store(tmp_path, "default", StoreSettings(segment_bytes=SEGMENT_BYTES, has_ring=has_ring), "node1")
    store.recover(resources.sets, apply_all=True)
    store.start(Deaf())
    assert isinstance(store.writer, RingJournalWriter) is has_ring
    await store.close("")
