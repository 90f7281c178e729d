"""Stories about finding messages in the store's files, and about files that are read after they are gone."""

from __future__ import annotations

import gc
from pathlib import Path
from random import Random

import pytest

from descriptors import open_files
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.types import Acquired, Dequeued, DequeueReason, Enqueued, Event, QueueDeclared
from qpid_ha_broker.model.paging import PART_SEAL, BodyPiece
from qpid_ha_broker.model.queues.paged import BodyRef, read_bodies
from qpid_ha_broker.store import bodies as module
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.files import Disk, LocalDisk
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.layout import segment_path
from simulated_disk import SimulatedDisk


def event(text: str, *queues: int, durable: bool = True, key: str = "") -> Enqueued:
    return Enqueued(queues or (5,), text.encode(), durable, 4, 0, key)


def segment(disk: Disk, *blocks: list[LogRecord], number: int = 1) -> str:
    """A closed segment with these blocks; its path."""
    journal = Journal.begin(
        disk, Identity("cluster", "broker", "default"), number, generation=1, first_lsn=1,
        first_local_lsn=LOCAL_BASE + 1, previous_bytes=0, clock=lambda: 0, segment_bytes=1 << 20,
    )  # fmt: skip
    for records in blocks:
        data = encode_all(records)
        journal.stage(BlockKind.EVENTS, records[0].lsn, records[-1].lsn, 0, 0, data)
    journal.roll()
    journal.close()
    return segment_path(number)


def records(*events: Event, first: int = 1, part: bool = False) -> list[LogRecord]:
    return [LogRecord(lsn, each, part) for lsn, each in enumerate(events, start=first)]


def found(bodies: Bodies, name: str) -> dict[int, list[tuple[int, str]]]:
    """By queue, LSN and text of all that is found, each read where it is said to be."""
    result: dict[int, list[tuple[int, str]]] = {}
    for piece in bodies.pieces(name):
        for queue, each in piece.records.items():
            result.setdefault(queue, []).extend(zip(each.lsns, texts(piece, queue), strict=True))
    return result


def texts(piece: BodyPiece, queue: int) -> list[str]:
    each, got = piece.records[queue], []
    for lsn, offset in zip(each.lsns, each.offsets, strict=True):
        head = piece.source.read(offset, 4)
        record = piece.source.read(offset, int.from_bytes(head, "little"))
        assert int.from_bytes(record[8:16], "little") == lsn
        got.append(record.rpartition(b"|")[2].decode())
    return got


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(0))


def test_every_durable_message_is_found_where_it_lies(disk: SimulatedDisk) -> None:
    one = records(QueueDeclared("q", {}), event("|a"), event("|b", 6), Dequeued(5, (2,), DequeueReason.CONSUMED))
    two = records(event("|c"), event("|transient", durable=False), event("|d", 5, key="k"), Acquired(5, (5,)), first=5)
    local = records(event("|e"), first=LOCAL_BASE + 1)
    name = segment(disk, one, two, local)
    assert found(Bodies(disk), name) == {5: [(2, "a"), (5, "c"), (7, "d"), (LOCAL_BASE + 1, "e")], 6: [(3, "b")]}


def test_a_message_of_several_queues_is_found_for_each(disk: SimulatedDisk) -> None:
    name = segment(disk, records(event("|a", 5, 6, 7), event("|b", 6)))
    assert found(Bodies(disk), name) == {5: [(1, "a")], 6: [(1, "a"), (2, "b")], 7: [(1, "a")]}


def test_seals_tell_which_records_are_parts_of_units(disk: SimulatedDisk) -> None:
    name = segment(disk, records(event("|a"), part=True) + records(event("|b"), first=2))
    (piece,) = Bodies(disk).pieces(name)
    assert [seal >= PART_SEAL for seal in piece.records[5].seals] == [True, False]


def test_a_large_file_is_told_of_in_pieces(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_RECORDS", 1000)
    name = segment(disk, *(records(*(event(f"|{n}") for n in range(1500)), first=1 + 1500 * n) for n in range(3)))
    pieces = list(Bodies(disk).pieces(name))
    assert len(pieces) > 3
    lsns = [lsn for piece in pieces for lsn in piece.records[5].lsns]
    assert lsns == list(range(1, 4501))


def test_nothing_behind_damage_is_told_of(disk: SimulatedDisk) -> None:
    name = segment(disk, records(event("|a")), records(event("|b"), first=2), records(event("|c"), first=3))
    data = bytearray(disk.peek(name))
    data[data.index(b"|b") + 1] ^= 1
    disk.put(name, bytes(data))
    assert found(Bodies(disk), name) == {5: [(1, "a")]}


def paged(bodies: Bodies, name: str) -> list[BodyRef]:
    (piece,) = bodies.pieces(name)
    each, size = piece.records[5], len(event("|a").payload)
    return [BodyRef(lsn, piece.source, at, size) for lsn, at in zip(each.lsns, each.offsets, strict=True)]


def test_a_file_is_readable_until_nobody_points_into_it(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    name = segment(disk, records(event("|a"), event("|b")))
    bodies = Bodies(disk)
    messages = paged(bodies, name)
    assert open_files(tmp_path) == 0, "a file that nobody reads from takes no descriptor"
    bodies.hold([name, "journal/unknown.log"])
    disk.remove(name)
    assert read_bodies(messages) == [b"|a", b"|b"]
    assert (open_files(tmp_path), bodies.names) == (1, [name])
    messages.clear()
    gc.collect()
    assert (open_files(tmp_path), bodies.names) == (0, [])


def test_a_file_that_nobody_points_into_is_not_held(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    name = segment(disk, records(event("|a")))
    bodies = Bodies(disk)
    list(bodies.pieces(name))
    gc.collect()
    bodies.hold([name])
    assert open_files(tmp_path) == 0
