"""Stories about a journal after the worst: the power goes at any write, any byte is another one."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from kept_journal import IDENTITY, begin, content, keep, read_journal, stage
from qpid_ha_broker.server.stores.status import StoreStatus
from qpid_ha_broker.store.blocks import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES
from qpid_ha_broker.store.errors import BlockError
from qpid_ha_broker.store.layout import segment_path
from qpid_ha_broker.store.reading import Ending
from qpid_ha_broker.store.status import STATUS_FILE, Status, read_status
from qpid_ha_broker.store.survey import survey
from simulated_disk import SECTOR_BYTES, PowerCut, SimulatedDisk

# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False])
def test_no_byte_of_a_journal_file_changes_unnoticed(closed: bool) -> None:
    disk = SimulatedDisk(Random(1))
    journal = begin(disk)
    keep(journal, 1, 2, length=60)
    last_group = journal.position
    keep(journal, 3, length=60)
    end = journal.end()[1] if closed else journal.position
    whole = disk.peek(segment_path(1))
    good = read_journal(disk_with(whole))
    last = end - (BLOCK_HEADER_BYTES + len(b'{"last_lsn":3,"local_lsn":9223372036854775807,"committed_lsn":2}'))
    must_be_damage = last if closed else last_group
    for at in range(end + BLOCK_HEADER_BYTES * 2):
        image = bytearray(whole)
        image[at] ^= 0x41
        if at < FILE_HEADER_BYTES:
            with pytest.raises(BlockError):
                read_journal(disk_with(image))
            continue
        found = read_journal(disk_with(image))
        (verdict,) = found.verdicts
        if at < must_be_damage:
            assert verdict.ending is Ending.DAMAGED, at
            assert verdict.offset <= at
        elif at < end:
            assert verdict.ending is Ending.TORN, at
            assert verdict.offset <= at
        else:
            assert found.blocks == good.blocks, at
            assert verdict.offset == end


def disk_with(image: bytes | bytearray) -> SimulatedDisk:
    disk = SimulatedDisk(Random(0))
    disk.put(segment_path(1), bytes(image))
    return disk


def test_a_tail_that_was_torn_at_any_sector_costs_only_the_last_group() -> None:
    disk = SimulatedDisk(Random(1))
    journal = begin(disk)
    keep(journal, 1, 2)
    start = journal.position
    keep(journal, 3, 4, 5, 6, length=700)
    whole, end = disk.peek(segment_path(1)), journal.position
    boundaries = range(start // SECTOR_BYTES * SECTOR_BYTES, end + SECTOR_BYTES, SECTOR_BYTES)
    for cut in boundaries:
        for lost in (whole[:cut].ljust(len(whole), b"\0"), without_sector(whole, max(cut, start), start)):
            found = read_journal(disk_with(lost))
            if cut < start:
                continue
            assert found.lsns[:2] == [1, 2]
            assert found.lsns == list(range(1, len(found.lsns) + 1))
            assert found.verdicts[0].ending is not Ending.DAMAGED


def without_sector(image: bytes, at: int, keep_before: int) -> bytes:
    """One sector in the middle did not reach the disk, those behind it did."""
    start = max(at, keep_before)
    stop = (start // SECTOR_BYTES + 1) * SECTOR_BYTES
    return image[:start] + bytes(stop - start) + image[stop:]


# --- crashes at every write ------------------------------------------------------------------------------------------


class Life:
    """A broker's journal from start to crash, and what it could promise until then."""

    def __init__(self) -> None:
        self.kept = 0
        self.staged = 0

    def run(self, disk: SimulatedDisk, random: Random) -> None:
        self.staged, number, previous_bytes = recovered(disk)
        status = StoreStatus(disk, read_status(disk) or Status(*IDENTITY))
        status.change(clean="", journal_end=None)
        status.write()
        journal = status.journal = begin(disk, number, self.staged + 1, previous_bytes, status=status)
        self.kept = self.staged  # from now on, even if the process before had not synced it
        for _ in range(12):
            for _ in range(random.randrange(1, 4)):
                self.staged += 1
                stage(journal, self.staged, random.randrange(1, 1500))
            journal.flush()
            self.kept = self.staged
            action = random.randrange(5)
            if action == 0:
                journal.mark()
            elif action == 1:
                journal.prepare_spare()
            elif action == 2:
                journal.roll()
            elif status.change(promised=status.current.promised + 1):
                status.write()
        status.change(clean="a shutdown", journal_end=journal.end())
        status.write()


def recovered(disk: SimulatedDisk) -> tuple[int, int, int]:
    """Last LSN, number of the next segment and length of the last. What a start must find, crash or not."""
    survey(disk)  # no crash makes a broker refuse its store
    found = read_journal(disk)
    assert {verdict.ending for verdict in found.verdicts} <= {Ending.CLEAN, Ending.TORN}
    assert found.lsns == list(range(1, len(found.lsns) + 1))
    for block in found.blocks:
        assert block.data == content(block.first_lsn, block.length)
    return len(found.lsns), found.number + 1, found.verdicts[-1].offset if found.verdicts else 0


def operations_of_a_life(seed: int) -> int:
    disk = SimulatedDisk(Random(seed))
    Life().run(disk, Random(seed))
    return disk.operations


@pytest.mark.parametrize("seed", range(6))
def test_whatever_write_the_power_goes_at_what_was_flushed_is_there(seed: int) -> None:
    for crash in range(1, operations_of_a_life(seed) + 1):
        disk, life = SimulatedDisk(Random(seed * 1000 + crash)), Life()
        disk.crash_at(crash)
        with pytest.raises(PowerCut):
            life.run(disk, Random(seed))
        assert life.kept <= recovered(disk.after_power_cut())[0] <= life.staged, f"seed {seed}, crash at {crash}"


@pytest.mark.parametrize("seed", range(20))
def test_crash_after_crash_each_start_finds_what_the_one_before_could_promise(seed: int) -> None:
    """Sometimes only the process dies: then what it had not synced is read, and must stand from then on."""
    random = Random(seed)
    disk, promised = SimulatedDisk(random), 0
    for _ in range(6):
        life = Life()
        disk.crash_at(random.randrange(1, 45))
        with suppress(PowerCut):
            life.run(disk, random)
        promised = max(promised, life.kept)
        disk = disk.after_kill() if random.random() < 0.4 else disk.after_power_cut()
        assert recovered(disk)[0] >= promised, f"seed {seed}"
    assert promised


def test_what_a_killed_process_had_not_synced_is_put_on_disk_before_anything_is_built_on_it() -> None:
    disk = SimulatedDisk(Random(1))
    disk.put(STATUS_FILE, Status(*IDENTITY).encode())
    journal = begin(disk)
    keep(journal, 1)
    stage(journal, 2)
    disk.fail(1, errno.EIO, of=("sync",))  # the system forgets that it must be written, and goes on showing it
    with pytest.raises(OSError):
        journal.flush()
    disk = disk.after_kill()
    last, number, previous_bytes = recovered(disk)
    assert last == 2
    keep(begin(disk, number, last + 1, previous_bytes), 3)
    assert recovered(disk.after_power_cut())[0] == 3
