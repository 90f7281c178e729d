"""The index of a snapshot tells of each message what was written, or is of no use."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kept_core import IDENTITY
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode, encode
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.model.queues.paged import read_bodies
from qpid_ha_broker.store import snapshot, snapshot_index
from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.errors import BlockError
from qpid_ha_broker.store.layout import snapshot_index_path, snapshot_path
from qpid_ha_broker.store.reading import open_blocks
from qpid_ha_broker.store.snapshot import SnapshotEnd, SnapshotWriter
from qpid_ha_broker.store.snapshot_index import SnapshotIndex, read_index
from simulated_disk import SimulatedDisk

HEADER = FileHeader("snapshot", *IDENTITY, 7, 1, 1, LOCAL_BASE + 1, 0, 0, False)
END = SnapshotEnd(20, LOCAL_BASE, 25, LOCAL_BASE, 20, 3)
PATH, INDEX_PATH = snapshot_path(7), snapshot_index_path(7)


def events(lsn: int) -> st.SearchStrategy[ev.Event]:
    body = st.binary(max_size=30)
    plain = st.builds(
        ev.Enqueued, st.sampled_from([(1,), (2,)]), body, st.just(True), st.just(4), st.just(0), st.just(""), st.just(0)
    )
    other = st.builds(
        ev.Enqueued, st.sampled_from([(1,), (1, 2)]), body, st.booleans(), st.integers(3, 4), st.sampled_from([0, 5]),
        st.sampled_from(["", "key"]), st.sampled_from([0, 7]),
    )  # fmt: skip
    return st.one_of(plain, plain, plain, other, st.just(ev.Released(1, (lsn,), True)))


def write(disk: SimulatedDisk, records: list[tuple[int, ev.Event]], end: SnapshotEnd = END) -> None:
    writer = SnapshotWriter(disk, HEADER)
    for lsn, event in records:
        writer.add(encode(lsn, event))
    writer.finish(end)


def index_of(disk: SimulatedDisk) -> SnapshotIndex:
    index = read_index(disk, HEADER, Bodies(disk).file(PATH))
    assert index is not None
    return index


def plain(count: int) -> list[tuple[int, ev.Event]]:
    return [(lsn, ev.Enqueued((1,), b"body of %d" % lsn, True, 4, 0, "")) for lsn in range(1, count + 1)]


def told_by(disk: SimulatedDisk) -> list[tuple[int, ev.Event]]:
    """All events of a snapshot, as a start with its index knows them, by LSN."""
    told: list[tuple[int, ev.Event]] = []
    with open_blocks(disk, PATH, HEADER) as reader:
        blocks = {block.offset: block for block in reader}
    for indexed in index_of(disk).blocks:
        data = blocks[indexed.offset].data
        rest = b"".join([data[start : start + length] for start, length in indexed.rests])
        assert indexed.copied == (rest if len(rest) <= snapshot_index.COPIED_BYTES else b"")
        told += [(record.lsn, record.event) for record in decode(rest).records]
        for queue, cold in indexed.stretches:
            assert cold.count <= snapshot_index.STRETCH_LENGTH
            assert (cold.first_id, cold.last_id) == (cold.ids()[0], cold.ids()[-1])
            found = read_bodies(cold.refs())
            assert cold.read() == found
            assert sum(map(len, found)) == cold.body_bytes  # type: ignore[arg-type]
            for lsn, body in zip(cold.ids(), found, strict=True):
                assert isinstance(body, bytes)
                told.append((lsn, ev.Enqueued((queue,), body, True, cold.header.priority, 0, "")))
    return sorted(told, key=str)


@given(st.lists(st.integers(1, 3), max_size=40), st.data(), st.integers(100, 1000))
def test_all_of_a_snapshot_is_told_of_once(steps: list[int], data: st.DataObject, block_bytes: int) -> None:
    lsn, records = 0, list[tuple[int, ev.Event]]()
    for step in steps:
        lsn += step
        records.append((lsn, data.draw(events(lsn))))
    disk = SimulatedDisk(Random(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "BLOCK_BYTES", block_bytes)
        write(disk, records)
    assert told_by(disk) == sorted(records, key=str)


def test_messages_of_queues_that_take_turns_are_stretches_too_and_few_of_one_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_index, "MIN_MESSAGES", 16)
    monkeypatch.setattr(snapshot_index, "STRETCH_LENGTH", 512)
    disk = SimulatedDisk(Random(1))
    records: list[tuple[int, ev.Event]] = [
        (lsn, ev.Enqueued((1 + lsn % 3 if lsn < 900 else 9,), b"x", True, 4, 0, "")) for lsn in range(1, 911)
    ]
    write(disk, records)
    (block,) = index_of(disk).blocks
    assert [(queue, cold.count) for queue, cold in block.stretches] == [(2, 300), (3, 300), (1, 299)]
    assert len(block.rests) == 1
    assert told_by(disk) == sorted(records, key=str)


def test_the_newest_pieces_of_a_dump_come_first_and_each_is_a_stretch() -> None:
    disk = SimulatedDisk(Random(1))
    records = plain(8)
    write(disk, records[6:] + records[3:6] + records[:3])
    (block,) = index_of(disk).blocks
    assert [cold.ids() for _, cold in block.stretches] == [[7, 8], [4, 5, 6], [1, 2, 3]]


def test_no_flipped_or_missing_byte_of_an_index_passes() -> None:
    disk = SimulatedDisk(Random(1))
    write(disk, [*plain(20), (21, ev.Released(1, (3,), True))])
    data = disk.peek(INDEX_PATH)
    for at in range(len(data)):
        for damaged in (data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :], data[:at]):
            disk.put(INDEX_PATH, damaged)
            with pytest.raises(BlockError):
                index_of(disk)


def test_an_index_is_of_one_snapshot_as_it_ends() -> None:
    disk, other = SimulatedDisk(Random(1)), SimulatedDisk(Random(1))
    write(disk, plain(20))
    write(other, plain(20), END._replace(transient=4))
    for path, text in ((PATH, "another snapshot"), (INDEX_PATH, "another snapshot")):
        mixed = SimulatedDisk(Random(1))
        for each in (PATH, INDEX_PATH):
            mixed.put(each, (other if each == path else disk).peek(each))
        with pytest.raises(BlockError, match=text):
            index_of(mixed)
    cut = disk.peek(PATH)[:-1]
    disk.put(PATH, cut)
    with pytest.raises(BlockError, match="another snapshot"):
        index_of(disk)


@pytest.mark.parametrize("is_rest", [False, True])
def test_an_index_that_does_not_tell_of_all_is_of_no_use(is_rest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its checksum says: what it leaves out would be lost without a word."""
    disk, sort_out = SimulatedDisk(Random(1)), snapshot_index._sorted_out

    def forgetful(data: bytes) -> Any:
        rests, stretches = sort_out(data)
        return (rests[1:], stretches) if is_rest else (rests, stretches[1:])

    monkeypatch.setattr(snapshot_index, "_sorted_out", forgetful)
    write(disk, [*plain(20), (21, ev.Released(1, (3,), True))])
    with pytest.raises(BlockError, match="of which it tells all"):
        index_of(disk)


def test_a_snapshot_of_an_older_release_has_none() -> None:
    disk = SimulatedDisk(Random(1))
    write(disk, plain(20))
    disk.remove(INDEX_PATH)
    assert read_index(disk, HEADER, Bodies(disk).file(PATH)) is None


def test_an_index_of_a_newer_version_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk(Random(1))
    with monkeypatch.context() as patch:
        patch.setattr(snapshot_index, "INDEX_VERSION", 2)
        write(disk, plain(20))
    with pytest.raises(BlockError, match="version 1, found 2"):
        index_of(disk)
