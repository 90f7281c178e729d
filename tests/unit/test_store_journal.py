"""Stories about the journal: what `flush` has returned for is there, whatever happens afterwards."""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import takewhile
from random import Random

import pytest

from kept_journal import IDENTITY, SEGMENT_BYTES, begin, content, keep, last_block, read_journal, stage
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.store.blocks import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, BlockKind
from qpid_ha_broker.store.errors import JournalDead, StoreError
from qpid_ha_broker.store.journal import ClosedSegment, Journal, tied
from qpid_ha_broker.store.layout import SPARE, segment_numbers, segment_path, snapshot_numbers, snapshot_path
from qpid_ha_broker.store.reading import BlockReader, Ending, end_facts, read_header
from simulated_disk import PowerCut, SimulatedDisk


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk(Random(1))


@pytest.fixture
def journal(disk: SimulatedDisk) -> Journal:
    """The first one on that disk."""
    return begin(disk)


# --- keeping ---------------------------------------------------------------------------------------------------------


def test_what_was_flushed_survives_a_power_cut_and_is_read_in_its_order(disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1, 2, 3)
    keep(journal, 4)
    stage(journal, 5)
    found = read_journal(disk.after_power_cut())
    assert found.lsns == [1, 2, 3, 4]
    assert [block.data for block in found.blocks] == [content(lsn, 100) for lsn in (1, 2, 3, 4)]
    assert found.verdicts[-1].ending is Ending.CLEAN


def test_a_flush_is_one_write_and_one_sync_however_much_was_staged(disk: SimulatedDisk, journal: Journal) -> None:
    before = len(disk.trace)
    keep(journal, *range(1, 21))
    assert disk.trace[before:] == [f"write {SPARE}", f"sync {SPARE}"]  # the name under which it was opened
    assert journal.flush() == 0
    assert len(disk.trace) == before + 2


def test_a_group_that_somebody_else_writes_is_the_same_and_counts_once_that_is_said(
    disk: SimulatedDisk, journal: Journal
) -> None:
    keep(journal, 1)
    stage(journal, 2)
    group = journal.begin_flush()
    assert group is not None
    assert journal.position == group.offset
    group.file.write(group.offset, *group.pieces)
    group.file.sync()
    before = journal.durable_end
    journal.end_flush(group, None)
    assert journal.durable_end == (before[0], before[1] + group.length)
    assert journal.staged_bytes == 0
    keep(journal, 3)
    assert read_journal(disk.after_power_cut()).lsns == [1, 2, 3]


def test_what_takes_more_than_a_write_and_a_sync_nobody_else_may_write() -> None:
    class Unwritten:
        store, revision = "", 0

        def write(self) -> None:
            """STATUS knows of the segment."""

    journal = Journal.begin(
        SimulatedDisk(Random(1)), IDENTITY, 1, generation=0, first_lsn=1,
        first_local_lsn=LOCAL_BASE + 1, previous_bytes=0, clock=lambda: 0, segment_bytes=8192, status=Unwritten(),
    )  # fmt: skip
    stage(journal, 1)
    assert journal.begin_flush() is None, "STATUS does not know of the segment"
    journal.flush()
    stage(journal, 2)
    assert journal.begin_flush() is not None
    journal.stage_as_one()
    assert journal.begin_flush() is None, "that takes two syncs"
    journal.flush()
    stage(journal, 3, 8192)
    assert journal.begin_flush() is None, "there is no room in the segment"


def test_a_group_that_failed_elsewhere_is_a_journal_that_failed(journal: Journal) -> None:
    stage(journal, 1)
    group = journal.begin_flush()
    assert group is not None
    with pytest.raises(OSError, match="No space"):
        journal.end_flush(group, OSError(errno.ENOSPC, "No space left on device"))
    assert (journal.is_dead, journal.staged_bytes > 0) == (False, True)
    with pytest.raises(OSError, match="Input/output error"):
        journal.end_flush(group, OSError(errno.EIO, "Input/output error"))
    with pytest.raises(JournalDead):
        journal.begin_flush()


def test_of_blocks_that_count_together_a_power_cut_leaves_all_or_none() -> None:
    """A block takes more than a sector, and a disk may keep later ones without the first."""
    seen = set()
    for seed in range(100):
        disk = SimulatedDisk(Random(seed))
        journal = begin(disk)
        keep(journal, 1, 2)
        if seed % 2:
            journal.mark()
        for lsn in (3, 4, 5):
            stage(journal, lsn, 700)
        journal.stage_as_one()
        disk.crash_at(1 + seed % 5)
        with suppress(PowerCut):
            journal.flush()
            keep(journal, 6)
        found = read_journal(disk.after_power_cut())
        assert found.verdicts[-1].ending is not Ending.DAMAGED
        seen.add(tuple(found.lsns))
    assert seen == {(1, 2), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)}


def test_each_group_knows_what_was_on_disk_before_it(disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1, 2)
    second = journal.position
    keep(journal, 3)
    assert [block.synced for block in read_journal(disk).blocks] == [FILE_HEADER_BYTES, FILE_HEADER_BYTES, second]


def test_a_full_segment_is_followed_by_the_next_which_knows_its_length(disk: SimulatedDisk, journal: Journal) -> None:
    for lsn in range(1, 31):
        keep(journal, lsn, length=900)
        journal.prepare_spare()
    found = read_journal(disk.after_power_cut())
    assert found.lsns == list(range(1, 31))
    assert found.number == journal.number > 3
    assert {verdict.ending for verdict in found.verdicts} == {Ending.CLEAN}
    closed = journal.closed_segments()
    assert [segment.number for segment in closed] == list(range(1, journal.number))
    header = read_header(disk.after_power_cut().open(segment_path(2)))
    assert (header.previous_bytes, header.first_lsn) == (closed[0].bytes, closed[0].last_lsn + 1)


def test_a_block_larger_than_a_segment_gets_a_larger_segment(disk: SimulatedDisk, journal: Journal) -> None:
    journal.prepare_spare()
    keep(journal, 1)
    keep(journal, 2, length=3 * SEGMENT_BYTES)
    keep(journal, 3)
    found = read_journal(disk.after_power_cut())
    assert found.lsns == [1, 2, 3]
    assert found.blocks[1].length == 3 * SEGMENT_BYTES


def test_both_logs_go_on_in_the_headers_of_later_segments(disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1, 2)
    journal.stage(BlockKind.EVENTS, LOCAL_BASE, LOCAL_BASE + 4, 2, 0, b"local")
    journal.stage(BlockKind.TAKEN_BACK, 1, 1, 1, 0, b"")
    assert journal.roll(needs_base=True, generation=5) == 2
    header = read_header(disk.open(segment_path(2)))
    assert (header.first_lsn, header.first_local_lsn) == (2, LOCAL_BASE + 5)
    assert (header.generation, header.needs_base) == (5, True)
    assert (header.cluster, header.broker, header.set) == IDENTITY
    journal.roll()
    assert not read_header(disk.open(segment_path(3))).needs_base


def test_a_journal_that_ends_in_order_says_so_and_takes_nothing_more(disk: SimulatedDisk, journal: Journal) -> None:
    stage(journal, 1)
    number, length = journal.end()
    after = disk.after_power_cut()
    file = after.open(segment_path(number))
    reader = BlockReader(file, read_header(file))
    blocks = list(reader)
    assert [block.kind for block in blocks] == [BlockKind.EVENTS, BlockKind.END]
    assert end_facts(blocks[-1]) == {"last_lsn": 1, "local_lsn": LOCAL_BASE - 1, "committed_lsn": 0}
    assert (reader.closed, reader.end) == (True, length)
    with pytest.raises(JournalDead):
        stage(journal, 2)


def test_a_segment_that_is_there_already_is_not_written_over() -> None:
    disk = SimulatedDisk(Random(1))
    keep(begin(disk), 1)
    with pytest.raises(StoreError):
        begin(disk)
    assert read_journal(disk).lsns == [1]


# --- a mark ----------------------------------------------------------------------------------------------------------


def test_damage_to_the_last_group_shows_once_a_mark_follows_it(disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1)
    assert ending_with_flip(disk, FILE_HEADER_BYTES) is Ending.TORN
    assert journal.mark()
    assert not journal.mark()
    assert ending_with_flip(disk, FILE_HEADER_BYTES) is Ending.DAMAGED


def test_a_mark_takes_no_room_and_gives_way_to_the_next_group(disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1)
    journal.mark()
    keep(journal, 2)
    stage(journal, 3)
    assert not journal.mark()
    journal.flush()
    assert read_journal(disk.after_power_cut()).lsns == [1, 2, 3]
    assert journal.position == FILE_HEADER_BYTES + 3 * (BLOCK_HEADER_BYTES + 100)


def test_the_end_and_a_mark_say_what_is_committed_of_the_last_group_too(disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1, 2, 3)
    assert journal.mark(2)
    assert last_block(disk)[:4] == (BlockKind.MARK, 3, 3, 2)
    journal.end(3)
    assert last_block(disk)[:4] == (BlockKind.END, 3, 3, 3)


def test_what_was_committed_of_a_log_that_is_given_up_is_not_said_of_the_next_one(
    disk: SimulatedDisk, journal: Journal
) -> None:
    keep(journal, *range(1, 9))
    journal.roll(needs_base=True, last_lsn=4)
    journal.mark()
    assert last_block(disk)[:4] == (BlockKind.MARK, 4, 4, 0)


def ending_with_flip(disk: SimulatedDisk, at: int) -> Ending:
    image = bytearray(disk.peek(segment_path(1)))
    image[at] ^= 0x10
    copy = SimulatedDisk(Random(0))
    copy.put(segment_path(1), bytes(image))
    return read_journal(copy).verdicts[0].ending


# --- a full disk, and a broken one -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_what_found_no_room_is_kept_once_there_is_some(code: int, disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1)
    stage(journal, 2)
    disk.fail(1, code, of=("write",), times=2)
    for _ in range(2):
        with pytest.raises(OSError) as raised:
            journal.flush()
        assert raised.value.errno == code
    stage(journal, 3)
    assert not journal.is_dead
    journal.flush()
    assert read_journal(disk.after_power_cut()).lsns == [1, 2, 3]


def test_a_disk_without_room_for_the_next_segment_is_waited_for() -> None:
    disk = SimulatedDisk(Random(1), capacity=2 * SEGMENT_BYTES)
    journal = begin(disk)
    lsn = 0
    while journal.staged_bytes == 0:
        lsn += 1
        stage(journal, lsn, 2000)
        with suppress(OSError):
            journal.flush()
    assert not journal.prepare_spare()
    assert read_journal(disk).lsns == list(range(1, lsn))
    disk.capacity = 4 * SEGMENT_BYTES
    journal.flush()
    keep(journal, lsn + 1)
    assert read_journal(disk.after_power_cut()).lsns == list(range(1, lsn + 2))


@pytest.mark.parametrize("kind", ["create", "write", "rename"])
@pytest.mark.parametrize("which", [1, 2, 3])
def test_room_that_goes_in_the_middle_of_a_change_of_segments_loses_nothing(
    kind: str, which: int, disk: SimulatedDisk, journal: Journal
) -> None:
    keep(journal, 1, 2, length=3000)
    stage(journal, 3, 3000)
    disk.fail(which, errno.ENOSPC, of=(kind,))
    for _ in range(4):
        with suppress(OSError):
            journal.flush()
    assert not journal.is_dead
    keep(journal, 4)
    found = read_journal(disk.after_power_cut())
    assert found.lsns == [1, 2, 3, 4]
    assert {verdict.ending for verdict in found.verdicts} == {Ending.CLEAN}


@pytest.mark.parametrize(
    ("kind", "code"),
    [("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.ENOSPC), ("write", errno.EROFS)],
)
def test_after_a_failure_nothing_is_said_to_be_kept_any_more(
    kind: str, code: int, disk: SimulatedDisk, journal: Journal
) -> None:
    """A sync that failed once may succeed the next time, although the data are gone."""
    keep(journal, 1)
    stage(journal, 2)
    disk.fail(1, code, of=(kind,))
    with pytest.raises(OSError):
        journal.flush()
    assert journal.is_dead
    for call in (journal.flush, journal.mark, journal.roll, journal.end, journal.prepare_spare):
        with pytest.raises(JournalDead):
            call()
    with pytest.raises(JournalDead):
        stage(journal, 3)
    with pytest.raises(JournalDead):
        journal.drop_before(1)
    assert read_journal(disk.after_power_cut()).lsns[:1] == [1]


def test_a_name_that_could_not_be_synced_is_a_failure(disk: SimulatedDisk, journal: Journal) -> None:
    disk.fail(1, errno.ENOSPC, of=("sync_directory",))
    with pytest.raises(OSError):
        journal.roll()
    assert journal.is_dead


def test_a_disk_that_became_read_only_is_a_failure(disk: SimulatedDisk, journal: Journal) -> None:
    stage(journal, 1)
    disk.read_only = True
    with pytest.raises(OSError):
        journal.flush()
    assert journal.is_dead


# --- segments that are not wanted any more ---------------------------------------------------------------------------


def test_old_segments_and_snapshots_are_dropped_and_one_is_used_again(disk: SimulatedDisk, journal: Journal) -> None:
    for number in (1, 3):
        disk.put(snapshot_path(number), b"a snapshot")
    for lsn in (1, 2, 3):
        keep(journal, *range(lsn * 10, lsn * 10 + 9), length=300)
        journal.roll()
    assert not disk.exists(SPARE)
    journal.drop_before(3)
    assert segment_numbers(disk) == [3, 4]
    assert snapshot_numbers(disk) == [3]
    assert disk.exists(SPARE)
    assert [closed.number for closed in journal.closed_segments()] == [3]
    assert not journal.prepare_spare()
    keep(journal, 40)
    journal.roll()
    keep(journal, 41)
    after = disk.after_power_cut()
    found = read_journal(after)
    assert found.lsns == [*range(30, 39), 40, 41]  # none of 10 to 18, which lie behind 41 in the same file
    assert found.verdicts[-1].ending is Ending.CLEAN
    assert content(15, 300) in after.open(segment_path(5)).read(0, SEGMENT_BYTES)


def test_a_spare_of_an_earlier_life_is_not_trusted() -> None:
    """It may have been segment 1 of a store that was emptied since, and 1 comes again."""
    disk = SimulatedDisk(Random(1))
    keep(begin(disk), 1, 2, 3)
    disk.rename(segment_path(1), SPARE)
    keep(begin(disk), 1)
    assert read_journal(disk).lsns == [1]
    assert content(3, 100) not in disk.peek(segment_path(1))


def test_the_segment_that_is_being_written_is_never_dropped(disk: SimulatedDisk, journal: Journal) -> None:
    keep(journal, 1)
    journal.drop_before(9)
    assert segment_numbers(disk) == [1]


def test_a_segment_is_folded_only_with_what_takes_its_records_back() -> None:
    journal = begin(SimulatedDisk(Random(1)))
    keep(journal, 1, 2)
    journal.roll()
    keep(journal, 3, 4, 5)
    journal.roll()
    journal.stage(BlockKind.TAKEN_BACK, 3, 3, 3, 0, b"")
    keep(journal, 4, 5, 6, 7)
    assert [closed.last_lsn for closed in journal.closed_segments()] == [2]
    journal.roll()
    assert [(closed.number, closed.last_lsn) for closed in journal.closed_segments()] == [(1, 2), (2, 7), (3, 7)]


def test_however_much_is_committed_what_was_taken_back_is_folded_with_its_end_or_not_at_all() -> None:
    """What went on instead passes the ends of the void segments one after the other."""
    closed = [ClosedSegment(number, 5000, lsn) for number, lsn in ((1, 17), (2, 33), (3, 45), (4, 17), (5, 50))]
    held = tied(closed, [(4, 12)])
    for committed_lsn in range(60):
        ready = list(takewhile(committed_lsn.__ge__, [each.last_lsn for each in held]))
        assert len(ready) == (0 if committed_lsn < 17 else 4 if committed_lsn < 50 else 5)


def test_segments_of_an_earlier_life_are_held_back_too() -> None:
    old = [ClosedSegment(1, 5000, 20), ClosedSegment(2, 5000, 30), ClosedSegment(3, 5000, 40)]
    assert [each.last_lsn for each in tied(old, [(3, 25)])] == [20, 40, 40]
    disk = SimulatedDisk(Random(1))
    journal = begin(disk, 4, 41, closed=tuple(old))
    assert journal.closed_segments() == old
    journal.stage(BlockKind.TAKEN_BACK, 35, 35, 35, 0, b"")
    keep(journal, 36)
    assert journal.closed_segments() == old[:2]
    journal.roll()
    assert [each.last_lsn for each in journal.closed_segments()] == [20, 30, 36, 36]
    journal.drop_before(3)
    assert [each.number for each in journal.closed_segments()] == [3, 4]
