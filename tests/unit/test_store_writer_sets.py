"""The stores of many sets have one writer: none waits for another, and what it says of one is true of that one."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from event_loops import in_event_loop
from limits import LIMIT_S
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.stores import writer as store_writer
from qpid_ha_broker.server.stores.recovery import FIRST_SEGMENT_BYTES
from qpid_ha_broker.server.stores.storage import Storage
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.server.stores.writer import HELPERS_MAX, LONG_WORK_MAX, StoreWriter
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import LocalDisk, bytes_of
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.layout import segment_numbers, segment_path
from qpid_ha_broker.store.recovery import recover
from qpid_ha_config.settings import StoreSettings
from simulated_disk import SimulatedDisk
from store_owner import SEGMENT_BYTES, Deaf, Held, Owner, Reader, by_threads_and_by_ring, make_writer

__all__ = ["by_threads_and_by_ring"]

pytestmark = pytest.mark.usefixtures("by_threads_and_by_ring")

THREADS = "store writer"


def owners(directory: Path, count: int, disk: type[Held] | None = None) -> list[Owner]:
    """So many sets of one broker, each with a queue `q` that is on disk, and an open segment that has its room."""
    writer = make_writer()
    made = []
    for number in range(count):
        simulated = SimulatedDisk(Random(number))
        made.append(Owner(directory, simulated if disk is None else disk(simulated), f"set{number}", writer))
    for owner in made:
        owner.start()
        owner.queue("q")
        owner.turn()
    return made


async def settle(made: list[Owner]) -> None:
    for owner in made:
        await owner.committed(owner.resources.replicated.log.written)


def publish(owner: Owner, body: bytes) -> CommitToken:
    token = owner.publish(owner.resources.catalog.queues["q"], body)
    assert not owner.turn()
    return token


async def close(made: list[Owner]) -> None:
    for owner in made:
        await owner.store.close("")


def bodies(disk: Any) -> list[bytes]:
    """What a broker finds in queue `q` when the machine is on again."""
    resources = Resources(Reader())
    try:
        recover(disk.after_power_cut(), resources.sets, apply_all=True)
    finally:
        disk.is_off = False
    return [entry.resident_body() for entry in resources.catalog.queues["q"].messages]


def descriptors() -> int:
    """How many this process has, and the one with which they are counted."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


_others: set[threading.Thread] = set()
"""Of stores that another test in this process has not closed: it had no reason to."""


def threads() -> list[str]:
    mine = [thread for thread in threading.enumerate() if thread not in _others]
    return sorted(thread.name for thread in mine if thread.name.startswith(THREADS))


@pytest.fixture(autouse=True)
def no_threads_stay() -> Iterator[None]:
    _others.update(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - _others:
        if thread.name.startswith(THREADS):
            thread.join(LIMIT_S)
    assert threads() == []


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds work up, and not beyond the test, whatever comes of that."""
    event = threading.Event()
    yield event
    event.set()


@in_event_loop
async def test_what_was_told_of_a_set_survives_a_power_cut_whatever_the_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "IDLE_S", 10 * LIMIT_S)  # a mark must not be written while the disk is copied
    made, draw = owners(tmp_path, 3), Random(7)
    await settle(made)
    for number in range(60):
        body = b"%d" % number
        writing = draw.sample(made, draw.randint(1, 3))
        tokens = [(owner, publish(owner, body)) for owner in writing]
        for owner, token in tokens:
            await owner.committed(token)
        for owner in writing:  # nobody writes now: a disk is looked at by one thread at a time
            assert bodies(owner.disk)[-1] == body
    await close(made)


@in_event_loop
async def test_the_syncs_of_ten_sets_run_at_the_same_time(tmp_path: Path) -> None:
    made = owners(tmp_path, 10, Held)
    await settle(made)
    for owner in made:
        owner.disk.hold()
    tokens = [publish(owner, b"x") for owner in made]
    for owner in made:
        assert await asyncio.to_thread(owner.disk.arrived.wait, LIMIT_S), "a sync waits for another one"
    assert not any(token.is_committed for token in tokens)
    for owner in made:
        owner.disk.is_open.set()
    await settle(made)
    await close(made)


@pytest.mark.parametrize("sets", [2, LONG_WORK_MAX + 10])
@in_event_loop
async def test_however_many_sets_have_long_work_another_one_is_confirmed(
    tmp_path: Path, gate: threading.Event, sets: int
) -> None:
    *busy, quick = made = owners(tmp_path, sets)
    await settle(made)
    done: list[int] = []
    for owner in busy:
        owner.store.writer.run(gate.wait, lambda: done.append(1))
    for number in range(20):
        await quick.committed(publish(quick, b"%d" % number))
    late = [publish(owner, b"late") for owner in busy]
    assert not done
    gate.set()
    await settle(made)
    assert len(done) == len(busy)
    assert all(token.is_committed for token in late)
    await close(made)


@in_event_loop
async def test_a_set_whose_segment_is_full_begins_the_next_one_without_the_others(tmp_path: Path) -> None:
    """To make a file and to sync names takes several syncs: that is not done where the others are written."""
    full, quick = made = owners(tmp_path, 2, Held)
    await settle(made)
    full.disk.hold()
    token = publish(full, bytes(SEGMENT_BYTES))
    await asyncio.to_thread(full.disk.arrived.wait, LIMIT_S)
    for number in range(5):
        await quick.committed(publish(quick, b"%d" % number))
    assert not token.is_committed
    full.disk.is_open.set()
    await settle(made)
    await close(made)


@in_event_loop
async def test_a_set_without_room_waits_alone_says_so_once_and_goes_on_when_there_is_some(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full, quick = made = owners(tmp_path, 2)
    await settle(made)
    full.disk.capacity = 0
    token = publish(full, bytes(SEGMENT_BYTES))
    await full.until(lambda: full.store.health == "full")
    for number in range(5):
        await quick.committed(publish(quick, b"%d" % number))
    assert quick.store.health == "ok"
    assert not token.is_committed
    full.disk.capacity = None
    await full.committed(token)
    assert full.store.health == "ok"
    await close(made)
    assert bodies(full.disk) == [bytes(SEGMENT_BYTES)]
    assert len([line for line in caplog.messages if "no room" in line]) == 1


@pytest.mark.parametrize("kind", ["write", "sync"])
@in_event_loop
async def test_a_disk_that_fails_ends_one_set_and_only_that_one_hears_of_it(tmp_path: Path, kind: str) -> None:
    failing, quick = made = owners(tmp_path, 2)
    await settle(made)
    failing.disk.fail(1, errno.EIO, of=(kind,))
    token = publish(failing, b"lost")
    await failing.until(lambda: failing.failure)
    await quick.committed(publish(quick, b"kept"))
    publish(failing, b"lost, too")
    assert "cannot be written" in failing.failure
    assert "start this broker again" in failing.failure
    assert (quick.failure, quick.store.health) == ("", "ok")
    assert failing.store.health == "failed"
    assert not token.is_committed
    assert await failing.store.close("uuid") is False
    assert await quick.store.close("uuid") is True


@in_event_loop
async def test_a_bug_in_one_sets_work_ends_that_set_alone(tmp_path: Path) -> None:
    broken, quick = made = owners(tmp_path, 2)
    await settle(made)
    broken.store.writer.run(lambda: 1 // 0)
    await broken.until(lambda: broken.failure)
    assert "ZeroDivisionError" in broken.failure
    await quick.committed(publish(quick, b"kept"))
    assert quick.failure == ""
    await close(made)


@in_event_loop
async def test_a_set_that_is_given_up_for_want_of_room_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qpid_ha_broker.server.stores.store.CLOSE_LIMIT_S", 0.2)
    full, quick = made = owners(tmp_path, 2)
    await settle(made)
    full.disk.capacity = 0
    publish(full, bytes(SEGMENT_BYTES))
    await full.until(lambda: full.store.health == "full")
    assert await full.store.close("uuid") is False
    await quick.committed(publish(quick, b"kept"))
    assert await quick.store.close("uuid") is True


@in_event_loop
async def test_one_set_alone_is_served_by_one_thread_also_when_others_have_ended(
    tmp_path: Path, gate: threading.Event
) -> None:
    (alone,) = owners(tmp_path, 1)
    await settle([alone])
    alone.store.writer.run(gate.wait)
    gate.set()
    await alone.committed(publish(alone, bytes(SEGMENT_BYTES)))
    assert threads() == [THREADS]
    await close([alone])


@in_event_loop
async def test_there_are_no_more_threads_than_the_limit_however_many_sets_write(
    tmp_path: Path, gate: threading.Event
) -> None:
    made = owners(tmp_path, 3 * HELPERS_MAX)
    await settle(made)
    *busy, quick = made
    begun = threading.Semaphore(0)

    def work() -> None:
        begun.release()
        gate.wait()

    for owner in busy:
        owner.store.writer.run(work)
    for _ in range(LONG_WORK_MAX):  # a set that is in a ring may be confirmed before the others' work is handed out
        assert await asyncio.to_thread(begun.acquire, timeout=LIMIT_S)
    await quick.committed(publish(quick, b"x"))
    assert LONG_WORK_MAX < len(threads()) <= HELPERS_MAX + 1
    gate.set()
    await close(made)


@in_event_loop
async def test_a_set_may_be_opened_again_after_the_last_one_was_closed(tmp_path: Path) -> None:
    writer = make_writer()
    for number in range(20):
        owner = Owner(tmp_path, SimulatedDisk(Random(number)), "orders", writer)
        owner.start()
        owner.queue("q")
        owner.turn()
        await owner.committed(publish(owner, b"x"))
        assert await owner.store.close("uuid")


# --- real files


def real(directory: Path, name: str, writer: StoreWriter | None = None) -> tuple[Store, Resources]:
    resources = Resources(Reader())
    store = Store(directory, name, StoreSettings(), "node1", None if writer is None else Storage(writer))
    store.recover(resources.sets, apply_all=True)
    return store, resources


@pytest.mark.parametrize("name", ["discarded", "../other", "Orders", ""])
def test_what_cannot_be_a_sets_name_has_no_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a resource set"):
        Store(tmp_path, name, StoreSettings(), "node1")
    assert list(tmp_path.iterdir()) == []


def test_the_store_of_another_set_is_refused_as_it_is(tmp_path: Path) -> None:
    real(tmp_path, "orders")
    (tmp_path / "orders").rename(tmp_path / "invoices")
    status = (tmp_path / "invoices" / "STATUS").read_bytes()
    with pytest.raises(StoreError, match="it is the store of the resource set orders"):
        real(tmp_path, "invoices")
    assert (tmp_path / "invoices" / "STATUS").read_bytes() == status


@in_event_loop
async def test_an_idle_set_takes_little_room_and_two_descriptors(tmp_path: Path) -> None:
    real(tmp_path, "warm-up")
    before = descriptors()
    store, _ = real(tmp_path, "orders", make_writer())
    store.start(Deaf())
    assert descriptors() - before == 2
    files = [path.stat().st_size for path in (tmp_path / "orders").rglob("*") if path.is_file()]
    assert FIRST_SEGMENT_BYTES <= sum(files) < FIRST_SEGMENT_BYTES + 4096
    await store.close("")


def test_default_has_segments_of_the_size_that_is_set_from_the_beginning(tmp_path: Path) -> None:
    real(tmp_path, "default")
    disk = LocalDisk(tmp_path / "default")
    assert [bytes_of(disk, segment_path(number)) for number in segment_numbers(disk)] == [StoreSettings().segment_bytes]


def test_segments_of_a_small_store_grow_with_what_is_written_and_have_a_spare_only_once_half_is_used() -> None:
    disk, spares = SimulatedDisk(Random(1)), []
    journal = Journal.begin(
        disk, Identity("", "node1", "orders"), 1, generation=0, first_lsn=1, first_local_lsn=LOCAL_BASE + 1,
        previous_bytes=0, clock=lambda: 0, segment_bytes=64 * 1024, first_segment_bytes=8 * 1024,
    )  # fmt: skip
    for lsn in range(1, 100):
        spares.append(journal.prepare_spare())
        journal.stage(BlockKind.EVENTS, lsn, lsn, 0, 0, bytes(3000))
        journal.flush()
    assert spares[0] is False
    assert any(spares)
    sizes = [bytes_of(disk, segment_path(number)) for number in segment_numbers(disk)]
    assert sizes[:5] == [8 * 1024, 16 * 1024, 32 * 1024, 64 * 1024, 64 * 1024]
    assert set(sizes[5:]) == {64 * 1024}


def test_a_small_store_that_finds_no_room_asks_for_the_same_again(tmp_path: Path) -> None:
    disk = SimulatedDisk(Random(1))
    journal = Journal.begin(
        disk, Identity("", "node1", "orders"), 1, generation=0, first_lsn=1, first_local_lsn=LOCAL_BASE + 1,
        previous_bytes=0, clock=lambda: 0, segment_bytes=64 * 1024, first_segment_bytes=8 * 1024,
    )  # fmt: skip
    journal.stage(BlockKind.EVENTS, 1, 1, 0, 0, bytes(7500))
    disk.fail(1, errno.ENOSPC, of=("create",), times=3)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            journal.flush()
    journal.flush()
    assert bytes_of(disk, segment_path(2)) == 16 * 1024


@in_event_loop
async def test_a_journal_has_one_thread_at_a_time_also_when_it_is_busy_for_long(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_writer, "IDLE_S", 0.05)
    busy, quick = made = owners(tmp_path, 2)
    await settle(made)
    inside, met = threading.Event(), []
    journal = busy.store.files.journal
    monkeypatch.setattr(journal, "mark", lambda: met.append(inside.is_set()))

    def work() -> None:
        inside.set()
        gate.wait(LIMIT_S)
        inside.clear()

    await busy.committed(publish(busy, b"x"))
    busy.store.writer.run(work)
    publish(busy, b"y")
    rounds = 0
    until = asyncio.get_running_loop().time() + 4 * store_writer.IDLE_S
    while asyncio.get_running_loop().time() < until:
        await quick.committed(publish(quick, b"x"))
        rounds += 1
    gate.set()
    await settle(made)
    assert rounds > 1
    assert True not in met
    await close(made)
