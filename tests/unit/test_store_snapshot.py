"""A snapshot is there as a whole or not at all."""

from __future__ import annotations

import errno
from random import Random

import pytest

from kept_core import IDENTITY
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.store.blocks import BlockKind, FileHeader
from qpid_ha_broker.store.layout import snapshot_numbers
from qpid_ha_broker.store.reading import BlockReader, read_header
from qpid_ha_broker.store.snapshot import BLOCK_BYTES, SnapshotEnd, SnapshotWriter, read_end
from simulated_disk import PowerCut, SimulatedDisk

HEADER = FileHeader("snapshot", *IDENTITY, 7, 1, 1, LOCAL_BASE + 1, 0, 0, False)
END = SnapshotEnd(20, LOCAL_BASE, 25, LOCAL_BASE, 20, 3)


def records(count: int) -> list[bytes]:
    return [encode(lsn, ev.Enqueued((1,), b"x" * 100_000, True, 4, 0, "")) for lsn in range(1, count + 1)]


def write(disk: SimulatedDisk) -> None:
    writer = SnapshotWriter(disk, HEADER)
    for each in records(20):
        writer.add(each)
    writer.finish(END)


def test_what_was_added_is_there_in_blocks_of_a_mebibyte_with_the_last_words() -> None:
    disk = SimulatedDisk(Random(1))
    write(disk)
    file = disk.open("snapshots/00000000000000000007.snap")
    assert read_header(file) == HEADER
    blocks = list(BlockReader(file, HEADER))
    assert [block.kind for block in blocks] == [BlockKind.EVENTS, BlockKind.EVENTS, BlockKind.END]
    assert b"".join(block.data for block in blocks[:2]) == b"".join(records(20))
    assert all(block.length <= BLOCK_BYTES for block in blocks)
    assert read_end(blocks[-1]) == END


def test_a_power_cut_at_any_write_leaves_a_whole_snapshot_or_none() -> None:
    disk = SimulatedDisk(Random(1))
    write(disk)
    for number in range(1, disk.operations + 1):
        cut = SimulatedDisk(Random(number))
        cut.crash_at(number)
        with pytest.raises(PowerCut):
            write(cut)
        after = cut.after_power_cut()
        if snapshot_numbers(after):
            file = after.open("snapshots/00000000000000000007.snap")
            reader = BlockReader(file, read_header(file))
            assert sum(block.kind is BlockKind.EVENTS for block in reader) == 2
            assert reader.closed
        again = SnapshotWriter(after, HEADER)
        again.finish(END)
        assert snapshot_numbers(after) == [7]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_abandoned_snapshot_leaves_nothing_behind(code: int) -> None:
    disk = SimulatedDisk(Random(1))
    writer = SnapshotWriter(disk, HEADER)
    disk.fail(1, code, of=("write",))
    writer.add(b"".join(records(11)))
    with pytest.raises(OSError, match="snap"):
        writer.finish(END)
    writer.abandon()
    assert disk.names("snapshots") == []
