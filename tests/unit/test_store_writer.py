"""What is handed to a store comes to be on disk, in order, and is told only then: on a disk that can be broken."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from event_loops import in_event_loop
from limits import LIMIT_S
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.scan import durable_only
from qpid_ha_broker.ha.replica import transient_count
from qpid_ha_broker.model.logs.local_log import LocalPart
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.stores import writer as store_writer
from qpid_ha_broker.server.stores.appender import JournalAppender
from qpid_ha_broker.server.stores.progress import STALLED_S, STEP_MAX_S, StallWatch, SyncProgress
from qpid_ha_broker.server.stores.writer import JournalPiece
from qpid_ha_broker.store.blocks import BLOCK_HEADER_BYTES
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.recovery import Recovered, recover
from qpid_ha_broker.store.segment import SegmentEnd
from qpid_ha_broker.store.status import STATUS_FILE, Status
from simulated_disk import SimulatedDisk
from store_owner import SEGMENT_BYTES, Held, Owner, Reader, by_threads_and_by_ring

__all__ = ["by_threads_and_by_ring"]

pytestmark = pytest.mark.usefixtures("by_threads_and_by_ring")


def after_power_cut(disk: SimulatedDisk) -> tuple[Resources, Recovered]:
    """What a broker finds when the machine is on again."""
    resources = Resources(Reader())
    found = recover(disk.after_power_cut(), resources.sets, apply_all=True)
    return resources, found


async def queue_on_disk(owner: Owner) -> Queue:
    """Of a store that was started, and has written that the queue is there."""
    owner.start()
    queue = owner.queue("q")
    owner.turn()
    await owner.committed(owner.resources.replicated.log.written)
    return queue


def payloads(resources: Resources, name: str) -> list[bytes]:
    return [entry.resident_body() for entry in resources.catalog.queues[name].messages]


@in_event_loop
async def test_what_was_told_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_writer, "IDLE_S", 10 * LIMIT_S)  # a mark must not be written while the disk is copied
    owner = Owner(tmp_path)
    owner.start()
    queue = owner.queue("q")
    for number in range(50):
        token = owner.publish(queue, b"%d" % number)
        assert not owner.turn()
        await owner.committed(token)

        resources, _ = after_power_cut_copy(owner.disk)
        assert payloads(resources, "q")[-1] == b"%d" % number
    await owner.store.close("")


def after_power_cut_copy(disk: SimulatedDisk) -> tuple[Resources, Recovered]:
    """As `after_power_cut`, of a disk that goes on."""
    try:
        return after_power_cut(disk)
    finally:
        disk.is_off = False


@in_event_loop
async def test_what_gathers_during_a_sync_goes_with_the_next_one(tmp_path: Path) -> None:
    held = Held(SimulatedDisk(Random(1)))
    owner = Owner(tmp_path, held)
    owner.start()
    queue = owner.queue("q")
    held.hold()
    owner.turn()
    await asyncio.to_thread(held.arrived.wait, LIMIT_S)
    before = held.syncs
    for number in range(100):
        owner.publish(queue, b"%d" % number)
        owner.turn()
    assert owner.told == []
    assert owner.store.writer.waiting_bytes > 100 * BLOCK_HEADER_BYTES
    held.is_open.set()
    await owner.committed(owner.resources.replicated.log.written)

    assert owner.store.writer.waiting_bytes == 0
    assert held.syncs == before + 1
    assert len(owner.told) == 2
    await owner.store.close("")


@in_event_loop
async def test_what_nobody_asked_to_keep_waits_only_for_what_came_before(tmp_path: Path) -> None:
    held = Held(SimulatedDisk(Random(1)))
    owner = Owner(tmp_path, held)
    queue = await queue_on_disk(owner)
    syncs = held.syncs

    owner.publish(queue, b"passing", durable=False)
    assert owner.turn()
    assert held.syncs == syncs

    held.hold()
    owner.publish(queue, b"staying")
    assert not owner.turn()
    token = owner.publish(queue, b"passing too", durable=False)
    assert not owner.turn()
    assert not token.is_committed
    held.is_open.set()
    await owner.committed(token)
    await owner.store.close("")

    resources, found = after_power_cut(held.disk)
    assert payloads(resources, "q") == [b"staying"]
    assert found.last_lsn == token.lsn
    assert found.lost_transient == 2


@in_event_loop
async def test_both_logs_are_kept_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.start()
    for number in range(3):  # each log speaks of what the other one has just said, all in one turn
        shared = owner.queue(f"shared{number}")
        event = ev.ReplicationChanged(shared.id, False)
        owner.resources.replicated.state.apply(owner.resources.replicated.log.append(event), event)
        owner.publish(shared, b"half")
        owner.publish(owner.queue(f"own{number}", local=True), b"own")
    owner.turn()
    assert owner.resources.written.log is owner.resources.sets.local_log
    await owner.committed(owner.resources.written)
    await owner.store.close("")

    resources, found = after_power_cut(owner.disk)
    assert found.notes == ()
    for number in range(3):
        assert payloads(resources, f"shared{number}") == [b"half"]
        assert payloads(resources, f"own{number}") == [b"own"]


@pytest.mark.parametrize("transient_first", [True, False])
@in_event_loop
async def test_what_is_durable_is_kept_however_a_turn_is_cut(tmp_path: Path, transient_first: bool) -> None:
    """The broker's own log has its place in the middle of a turn, with as many messages of each kind on either side."""
    owner = Owner(tmp_path)
    owner.start()
    shared, own = owner.queue("shared"), owner.queue("own", local=True)
    owner.turn()
    for durable in (not transient_first, transient_first):
        for number in range(2):
            owner.publish(shared, f"{durable} {number}".encode(), durable)
        owner.publish(own, b"own")
    owner.turn()
    await owner.committed(owner.resources.written)
    await owner.store.close("")

    resources, found = after_power_cut(owner.disk)
    assert payloads(resources, "shared") == [b"True 0", b"True 1"]
    assert payloads(resources, "own") == [b"own", b"own"]
    assert found.lost_transient == 2


def test_what_was_written_in_both_logs_is_committed_when_both_are() -> None:
    resources = Resources(Reader())
    for log in (resources.replicated.log, resources.sets.local_log):
        log.add_witness("store")
    resources.sets.local_log.append(ev.QueueDeclared("own", {}))
    only_local = resources.sets.local_log.written
    resources.replicated.log.append(ev.QueueDeclared("shared", {}))
    only_shared, both = resources.replicated.log.written, resources.written

    def committed() -> list[bool]:
        return [token.is_committed for token in (only_local, only_shared, both)]

    assert committed() == [False, False, False]
    resources.replicated.log.acknowledge("store", 1)
    assert committed() == [False, True, False]
    resources.sets.local_log.acknowledge("store", LOCAL_BASE + 1)
    assert committed() == [True, True, True]
    assert resources.written == only_shared


@in_event_loop
async def test_on_a_full_disk_it_waits_says_so_once_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(tmp_path)
    queue = await queue_on_disk(owner)
    owner.disk.capacity = 0
    token = owner.publish(queue, bytes(SEGMENT_BYTES))
    owner.turn()
    await owner.until(lambda: owner.store.health == "full")
    assert not token.is_committed
    owner.disk.capacity = None
    await owner.committed(token)
    assert owner.store.health == "ok"
    await owner.store.close("")

    resources, _ = after_power_cut(owner.disk)
    assert payloads(resources, "q") == [bytes(SEGMENT_BYTES)]
    assert len([line for line in caplog.messages if line.startswith("no room")]) == 1


@in_event_loop
async def test_without_file_descriptors_it_waits_says_so_once_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(tmp_path)
    queue = await queue_on_disk(owner)
    owner.disk.fail(1, errno.EMFILE, of=("create",), times=3)
    token = owner.publish(queue, bytes(SEGMENT_BYTES))
    owner.turn()
    await owner.until(lambda: owner.store.health == "full")
    assert not token.is_committed
    await owner.committed(token)
    await owner.until(lambda: owner.store.health == "ok")
    await owner.store.close("")

    resources, _ = after_power_cut(owner.disk)
    assert payloads(resources, "q") == [bytes(SEGMENT_BYTES)]
    (line,) = [line for line in caplog.messages if line.startswith("no room")]
    assert "Too many open files" in line


@in_event_loop
async def test_a_disk_that_hangs_is_told_and_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("qpid_ha_broker.server.stores.progress.STALLED_S", 0.0)
    held = Held(SimulatedDisk(Random(1)))
    owner = Owner(tmp_path, held)
    queue = await queue_on_disk(owner)
    held.hold()
    token = owner.publish(queue, b"waits")
    owner.turn()
    for _ in range(3):  # what was written before counts for the first look
        owner.store.tick()
    (problem,) = owner.write_problems
    assert "has written nothing for" in problem
    assert owner.store.health == "ok", "nobody has said that there is no room"
    held.is_open.set()
    await owner.committed(token)
    monkeypatch.undo()
    owner.store.tick()
    assert owner.write_problems == [problem, ""]
    assert any("writes again" in line for line in caplog.messages)
    await owner.store.close("")


def test_a_disk_hangs_that_writes_nothing_of_what_waits_for_long() -> None:
    watch = StallWatch()
    seconds = iter(range(1000))

    def stalled_after(looks: int, written_bytes: int, waiting_bytes: int) -> bool:
        return [watch.is_stalled(written_bytes, waiting_bytes, next(seconds) * STEP_MAX_S) for _ in range(looks)][-1]

    enough = round(STALLED_S / STEP_MAX_S)
    assert not stalled_after(10 * enough, 0, 0), "nothing waits"
    assert not stalled_after(enough - 1, 0, 100)
    assert stalled_after(1, 0, 100)
    assert not stalled_after(1, 10, 90), "a slow one writes"
    assert not stalled_after(enough - 1, 10, 90)
    assert stalled_after(1, 10, 90)
    assert not stalled_after(1, 100, 0)


def test_the_time_in_which_the_process_was_stopped_is_not_the_disks() -> None:
    watch = StallWatch()
    assert not watch.is_stalled(0, 100, 1.0)
    assert not watch.is_stalled(0, 100, 1000.0)


@pytest.mark.parametrize("kind", ["write", "sync"])
@in_event_loop
async def test_a_disk_that_fails_is_told_and_nothing_is_committed_any_more(tmp_path: Path, kind: str) -> None:
    owner = Owner(tmp_path)
    queue = await queue_on_disk(owner)
    owner.disk.fail(1, errno.EIO, of=(kind,))
    token = owner.publish(queue, b"lost")
    owner.turn()
    await owner.until(lambda: owner.failure)
    owner.turn()

    assert "cannot be written" in owner.failure
    assert "start this broker again" in owner.failure
    assert owner.store.health == "failed"
    assert not token.is_committed
    assert await owner.store.close("uuid") is False


@in_event_loop
async def test_status_is_dirty_while_it_runs_and_clean_after_a_close(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.start()
    owner.publish(owner.queue("q"), b"passing", durable=False)
    owner.turn()
    assert Status.decode(owner.disk.peek(STATUS_FILE)).clean == ""
    owner.store.persist_vote(7, "node2", ())
    assert Status.decode(owner.disk.peek(STATUS_FILE)).promised == 7
    assert await owner.store.close("uuid") is True

    _, found = after_power_cut(owner.disk)
    assert found.was_clean == "uuid"
    assert found.status is not None
    assert (found.status.promised_to, found.last_lsn) == ("node2", 2)


@pytest.mark.parametrize("clean", ["uuid", ""])
@in_event_loop
async def test_all_of_a_store_that_is_closed_as_a_whole_one_counts(tmp_path: Path, clean: str) -> None:
    owner = Owner(tmp_path)
    owner.start()
    owner.publish(owner.queue("q"), b"last")
    owner.turn()
    await owner.store.close(clean)

    _, found = after_power_cut(owner.disk)
    assert found.last_lsn == 2
    assert found.committed_lsn == (2 if clean else 0)


@in_event_loop
async def test_a_checkpoint_is_the_state_of_its_moment_and_counts_once_it_is_told(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    owner.start()
    queue = owner.queue("q")
    for number in range(2000):
        owner.publish(queue, b"%d" % number)
    owner.turn()
    await owner.committed(owner.resources.replicated.log.written)
    owner.store.checkpoints.begin(owner.resources.replicated.log.last_lsn)
    done = asyncio.Event()
    owner.store.checkpoints.write(done.set)
    owner.publish(queue, b"meanwhile")
    owner.turn()
    async with asyncio.timeout(LIMIT_S):
        await done.wait()
    await owner.committed(owner.resources.replicated.log.written)
    await owner.store.close("")

    resources, found = after_power_cut(owner.disk)
    assert found.snapshot_number == found.next_number - 1
    assert payloads(resources, "q") == [*(b"%d" % number for number in range(2000)), b"meanwhile"]


# --- what goes into the journal


def records(*durable: bool) -> list[LogRecord]:
    return [
        LogRecord(lsn, ev.Enqueued((1,), b"x" * lsn, is_durable, 4, 0, ""), False)
        for lsn, is_durable in enumerate(durable, start=1)
    ]


@pytest.mark.parametrize("pattern", ["", "t", "d", "td", "dt", "ttddtd", "ddd", "ttt"])
def test_only_what_is_durable_is_left(pattern: str) -> None:
    given = records(*(each == "d" for each in pattern))

    data, left_out = durable_only(encode_all(given))

    assert decode(data).records == [record for record in given if record.event.durable]  # type: ignore[union-attr]
    assert left_out == pattern.count("t")


def test_parts_of_a_unit_stay_whole() -> None:
    message = ev.Enqueued((1, 2), b"x", False, 4, 0, "key")
    given = [
        LogRecord(1, message, True),
        LogRecord(2, ev.TransactionCommitted(1), False),
        LogRecord(3, message, False),
        LogRecord(4, ev.Dequeued(1, (3,), ev.DequeueReason.CONSUMED), False),
    ]

    data, left_out = durable_only(encode_all(given))

    assert [record.lsn for record in decode(data).records] == [1, 2, 4]
    assert left_out == 2


def test_a_batch_counts_what_a_store_leaves_out() -> None:
    resources = Resources(Reader())
    resources.replicated.log.add_witness("store")
    for record in records(True, False, False):
        resources.replicated.log.append(record.event)
    resources.replicated.log.append_unit([records(False)[0].event])
    resources.replicated.log.append(ev.Enqueued((1, 2, 3), b"x", False, 4, 0, ""))

    batch = resources.replicated.log.take_batch()

    assert isinstance(batch, LogBatch)
    assert batch.transient == transient_count(decode(batch.data).records) == durable_only(batch.data)[1] == 2 + 3


@pytest.mark.parametrize("lsn", range(5))
def test_a_batch_is_cut_after_an_lsn_and_each_piece_counts_what_it_has(lsn: int) -> None:
    given = records(True, False, False, True)

    before, after = LogBatch(1, 4, encode_all(given), 2).cut_after(lsn)

    assert decode(before.data).records == given[:lsn]
    assert decode(after.data).records == given[lsn:]
    assert (before.first_lsn, before.last_lsn, after.first_lsn, after.last_lsn) == (1, lsn, lsn + 1, 4)
    assert (before.transient, after.transient) == ([0, 0, 1, 2, 2][lsn], [2, 2, 1, 0, 0][lsn])


def test_a_disk_is_all_that_the_store_needs() -> None:
    disk: Disk = SimulatedDisk(Random(1))
    assert disk.names("journal") == []


class Pieces:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[JournalPiece] = []
        self.joined: list[tuple[int, int]] = []
        """First and last LSNs of those that were given together."""

    def append(self, piece: JournalPiece) -> None:
        self.pieces.append(piece)

    def append_joined(self, pieces: Sequence[JournalPiece]) -> None:
        self.joined += [(piece.first_lsn, piece.last_lsn) for piece in pieces]


def test_blocks_behind_a_truncation_by_force_do_not_call_committed_what_it_took_back() -> None:
    pieces = Pieces()
    writer: Any = pieces
    journal: Any = None  # it is the writer that writes to it
    appender = JournalAppender(journal, writer, SyncProgress(), SegmentEnd(0, LOCAL_BASE, 0))
    appender.append(LogBatch(1, 9, b"-"), committed_lsn=8)
    appender.truncate(5)
    appender.append_local([LocalPart(5, LogBatch(LOCAL_BASE + 1, LOCAL_BASE + 1, b"-"))])
    assert [piece.committed_lsn for piece in pieces.pieces] == [8, 5, 5]


def test_what_goes_from_one_log_to_the_other_is_given_to_the_writer_in_one_piece() -> None:
    """Also where the local log is the first to tell of it; what waited before it goes along."""
    writer: Any = Pieces()
    journal: Any = None
    appender = JournalAppender(journal, writer, SyncProgress(), SegmentEnd(0, LOCAL_BASE, 0))
    local = [LocalPart(after, LogBatch(LOCAL_BASE + n, LOCAL_BASE + n, b"-"), True) for n, after in ((1, 0), (2, 2))]
    appender.append_local(local)
    assert (writer.pieces, writer.joined) == ([], [])
    appender.append(LogBatch(1, 2, b"-"), committed_lsn=0)
    assert writer.joined == [(LOCAL_BASE + 1, LOCAL_BASE + 1), (1, 2), (LOCAL_BASE + 2, LOCAL_BASE + 2)]
    appender.append_local([LocalPart(2, LogBatch(LOCAL_BASE + 3, LOCAL_BASE + 3, b"-"))])
    appender.append(LogBatch(3, 3, b"-"), committed_lsn=2)
    assert [piece.first_lsn for piece in writer.pieces] == [LOCAL_BASE + 3, 3]


def test_a_log_is_joined_to_what_the_other_says_later_in_the_turn() -> None:
    resources = Resources(Reader())
    log, local_log = resources.replicated.log, resources.sets.local_log
    local_log.join()  # nobody keeps it
    for kept in (log, local_log):
        kept.add_witness("store")
    local_log.append(ev.QueueDeclared("a", {}))
    log.append(ev.QueueDeclared("b", {}))
    assert [part.is_joined for part in local_log.take_parts()] == [False]
    local_log.join()
    local_log.append(ev.QueueDeclared("c", {}))
    assert [part.is_joined for part in local_log.take_parts()] == [False]
    local_log.join()
    local_log.append(ev.QueueDeclared("d", {}))
    log.append(ev.QueueDeclared("e", {}))
    local_log.append(ev.QueueDeclared("f", {}))
    assert [part.is_joined for part in local_log.take_parts()] == [True, True]
    assert not local_log.pending
