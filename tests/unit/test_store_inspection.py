"""Looking at stores: what is found, that nothing is changed by it, and that damage is told with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.types import DequeueReason
from qpid_ha_broker.ha.frames import GenerationEntry, LogPosition
from qpid_ha_broker.store.best import Standing, Winner, best
from qpid_ha_broker.store.blocks import FILE_HEADER_BYTES
from qpid_ha_broker.store.checking import check
from qpid_ha_broker.store.facts import Integrity
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.inspection import examine
from qpid_ha_broker.store.layout import segment_path
from qpid_ha_broker.store.survey import survey
from store_writing import CLUSTER, QUEUE, StoreWriter, message, opening


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    return LocalDisk(tmp_path)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def used_bytes(path: Path) -> int:
    """Up to the zeros of the room that was taken in advance."""
    return len(path.read_bytes().rstrip(b"\0"))


def test_an_empty_directory_is_an_empty_store(disk: LocalDisk) -> None:
    facts = examine(disk, "here")
    assert facts.is_empty
    assert (facts.integrity, facts.position) == (Integrity.OK, LogPosition(0, 0))


def test_the_facts_are_what_the_log_says(disk: LocalDisk) -> None:
    writer = StoreWriter(disk, "node2").write(opening()).write([message(), message(), message(durable=False)], 3)
    gone = ev.Dequeued(QUEUE, (4,), DequeueReason.CONSUMED)
    writer.write([gone, ev.InSyncChanged(2, ("node2",))], 6).kill()
    facts = examine(disk, "here")
    assert (facts.broker, facts.cluster, facts.set) == ("node2", CLUSTER, "default")
    assert facts.history == (GenerationEntry(1, "node1", 1),)
    assert (facts.epoch, facts.members, facts.epoch_lsn) == (2, ("node2",), 8)
    assert (facts.position, facts.committed_lsn) == (LogPosition(1, 8), 6)
    assert (facts.messages, facts.transient, facts.clean) == (1, 1, "")


def test_nothing_is_written_and_the_progress_ends_at_the_end(disk: LocalDisk, tmp_path: Path) -> None:
    StoreWriter(disk).write(opening()).write([message()]).status(role="primary").kill()
    before, seen = content(tmp_path), []
    examine(disk, "here", lambda done, total: seen.append((done, total)))
    check(disk)
    assert content(tmp_path) == before
    assert seen == sorted(seen)


def test_what_was_taken_back_is_not_there(disk: LocalDisk) -> None:
    """A generation that never was must not make this store the newest."""
    writer = StoreWriter(disk).write(opening())
    writer.write([message(), ev.GenerationStarted(2, "node1", CLUSTER, 0, False, ""), ev.InSyncChanged(2, ("node1",))])
    writer.take_back(4).write([message()]).kill()
    facts = examine(disk, "here")
    assert (facts.position, facts.epoch, facts.messages) == (LogPosition(1, 5), 1, 2)


def forced(disk: LocalDisk, broker: str, committed: int, last: int) -> StoreWriter:
    """A log that node1, promoted by force, goes on with alone from LSN 6 to `last`."""
    writer = StoreWriter(disk, broker).write(opening()).write([message(), message()], 5)
    if broker == "node2":  # held what node1 lacked, and all of it was confirmed
        writer.write([message() for _ in range(6)], 11).take_back(5, 11)
    writer.write([ev.GenerationStarted(2, "node1", CLUSTER, 0, True, ""), ev.InSyncChanged(2, ("node1",))], 5)
    return writer.write([message() for _ in range(last - 7)], committed)


def test_what_was_committed_of_a_branch_that_was_taken_back_is_not_committed(disk: LocalDisk) -> None:
    forced(disk, "node2", 7, 9).kill()
    assert examine(disk, "here").committed_lsn == survey(disk).committed_lsn == 7


def test_who_followed_a_forced_promotion_is_no_fork_of_it(tmp_path: Path) -> None:
    """What was confirmed of its old branch says nothing of the new one, which goes on a little further here."""
    disks = {"node1": (LocalDisk(tmp_path / "1"), 10), "node2": (LocalDisk(tmp_path / "2"), 12)}
    for name, (disk, last) in disks.items():
        disk.root.mkdir()
        forced(disk, name, 10, last).kill()
    verdict = best([examine(disk, name) for name, (disk, _) in disks.items()])
    assert isinstance(verdict, Winner)
    assert (verdict.store.broker, [each.standing for each in verdict.reasons]) == (
        "node1", [Standing.BEST, Standing.OUTSIDE],
    )  # fmt: skip


def test_a_shutdown_counts_only_when_nothing_came_after_it(disk: LocalDisk) -> None:
    writer = StoreWriter(disk).write(opening())
    end = writer.journal.end()
    writer.status(clean="u-1", journal_end=end, last_lsn=3, local_lsn=1 << 63)
    assert examine(disk, "here").clean == "u-1"
    StoreWriter(disk, number=2, first_lsn=4, previous=end[1]).write([message()]).kill()
    assert examine(disk, "here").clean == ""


def test_promises_and_the_role_are_those_of_status(disk: LocalDisk) -> None:
    StoreWriter(disk).write(opening()).status(role="ready", promised=4, promised_to="node3").kill()
    facts = examine(disk, "here")
    assert (facts.role, facts.promised, facts.promised_to, facts.claims) == ("ready", 4, "node3", ())


def test_a_damaged_store_still_tells_of_a_set_that_only_its_status_knows(disk: LocalDisk, tmp_path: Path) -> None:
    StoreWriter(disk).write(opening()).write([message()]).write([message()]).status(
        history=((1, "node1", 1), (2, "node1", 5)), epoch=7, members=("node1",)
    ).kill()
    path = tmp_path / segment_path(1)
    data = bytearray(path.read_bytes())
    data[FILE_HEADER_BYTES + 100] ^= 1
    path.write_bytes(data)
    facts = examine(disk, "here")
    assert facts.integrity is Integrity.DAMAGED
    assert (facts.generation, facts.epoch, facts.members) == (2, 7, ("node1",))


def test_a_torn_tail_is_no_damage(disk: LocalDisk, tmp_path: Path) -> None:
    StoreWriter(disk).write(opening()).write([message(b"x" * 100)]).kill()
    path = tmp_path / segment_path(1)
    size = used_bytes(path)
    with path.open("r+b") as file:
        file.seek(size - 50)
        file.write(bytes(50))
    facts = examine(disk, "here")
    assert (facts.integrity, facts.last_lsn) == (Integrity.TORN, 3)
    assert [flaw.integrity for flaw in check(disk)] == [Integrity.TORN]
    assert examine(disk, "here", is_running=True).integrity is Integrity.OK
