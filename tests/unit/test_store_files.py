"""Stories about the door to the disk, the real one and the one that fails on purpose."""

from __future__ import annotations

import errno
import stat
from pathlib import Path
from random import Random

import pytest

from qpid_ha_broker.store.files import FULL, Disk, LocalDisk
from simulated_disk import SECTOR_BYTES, PowerCut, SimulatedDisk


@pytest.fixture(params=["local", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return LocalDisk(tmp_path) if request.param == "local" else SimulatedDisk(Random(1))


# --- what both do ----------------------------------------------------------------------------------------------------


def test_a_new_file_is_zeros_of_the_size_that_was_asked_for(disk: Disk) -> None:
    disk.make_directory("journal")
    file = disk.create("journal/1.log", 10_000)
    assert file.size == 10_000
    assert file.read(0, 20_000) == bytes(10_000)
    with pytest.raises(FileExistsError):
        disk.create("journal/1.log")


def test_pieces_are_written_one_after_the_other_however_many(disk: Disk) -> None:
    file = disk.create("file")
    pieces = [b"%d " % number for number in range(3000)]
    file.write(5, *pieces)
    file.sync()
    assert file.read(0, 5) == bytes(5)
    assert disk.open("file").read(5, 1 << 20) == b"".join(pieces)


def test_a_file_that_was_opened_for_reading_cannot_be_changed(disk: Disk) -> None:
    disk.create("file", 10)
    file = disk.open("file")
    with pytest.raises(OSError):
        file.write(0, b"!")
    disk.open("file", writable=True).write(0, b"!")
    assert file.read(0, 2) == b"!\0"


def test_a_file_can_be_cut_off(disk: Disk) -> None:
    file = disk.create("file")
    file.write(0, b"abcdef")
    file.truncate(3)
    assert (file.size, file.read(0, 9)) == (3, b"abc")
    file.close()
    file.close()


def test_names_are_those_of_one_directory_in_order(disk: Disk) -> None:
    assert disk.names("journal") == []
    disk.make_directory("journal")
    disk.make_directory("journal")
    for name in ("2.log", "1.log"):
        disk.create(f"journal/{name}").close()
    disk.create("STATUS").close()
    assert disk.names("journal") == ["1.log", "2.log"]
    assert disk.names("") == ["STATUS", "journal"]
    disk.rename("journal/2.log", "journal/1.log")
    assert disk.names("journal") == ["1.log"]
    disk.remove("journal/1.log")
    disk.sync_directory("journal")
    assert not disk.exists("journal/1.log")
    with pytest.raises(FileNotFoundError):
        disk.open("journal/1.log")


def test_what_is_replaced_is_replaced_as_a_whole(disk: Disk) -> None:
    disk.replace("STATUS", b"a long first version")
    disk.replace("STATUS", b"second")
    assert disk.open("STATUS").read(0, 99) == b"second"
    assert disk.names("") == ["STATUS"]


def test_there_is_room(disk: Disk) -> None:
    assert disk.free_bytes() > 0


# --- the machine's ---------------------------------------------------------------------------------------------------


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    disk.make_directory("journal")
    disk.create("journal/1.log")
    disk.replace("STATUS", b"{}")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"journal": 0o700, "1.log": 0o600, "STATUS": 0o600}


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    disk = LocalDisk(tmp_path / "store")
    disk.make_directory("")
    (tmp_path / "store" / "STATUS.tmp").symlink_to(outside)
    (tmp_path / "store" / "file").symlink_to(outside)
    for attempt in (
        lambda: disk.open("file"),
        lambda: disk.open("file", writable=True),
        lambda: disk.create("file"),
        lambda: disk.replace("STATUS", b"{}"),
    ):
        with pytest.raises(OSError):
            attempt()
    assert outside.read_bytes() == b"precious"


def test_what_finds_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    with pytest.raises(OSError) as raised:
        disk.create("spare", disk.free_bytes() * 4 + (1 << 40))
    assert raised.value.errno in FULL | {errno.EFBIG}
    assert disk.names("") == []


# --- the simulated one: what a power cut may do, and what it may not --------------------------------------------------


def images(disk_of: int, *, sync: bool) -> set[bytes]:
    """What three sectors and a bit may look like after power cuts."""
    found = set()
    for seed in range(disk_of):
        disk = SimulatedDisk(Random(seed))
        file = disk.create("file", 2048)
        file.sync()
        disk.sync_directory("")
        file.write(100, b"a" * 1500)
        file.write(1600, b"b" * 10)
        if sync:
            file.sync()
        found.add(disk.after_power_cut().open("file").read(0, 4096))
    return found


def test_what_was_synced_is_never_lost() -> None:
    assert images(50, sync=True) == {bytes(100) + b"a" * 1500 + b"b" * 10 + bytes(438)}


def test_what_was_not_synced_is_lost_kept_or_torn_at_sectors_each_write_for_itself() -> None:
    found = images(200, sync=False)
    assert bytes(2048) in found
    assert bytes(100) + b"a" * 1500 + b"b" * 10 + bytes(438) in found
    assert bytes(1600) + b"b" * 10 + bytes(438) in found  # the second without the first
    assert bytes(SECTOR_BYTES) + b"a" * 1088 + bytes(448) in found  # the first without its first sector
    assert {len(image) for image in found} == {2048}


def test_a_name_is_safe_only_once_its_directory_is_synced() -> None:
    def names(seed: int, sync: bool) -> list[str]:
        disk = SimulatedDisk(Random(seed))
        disk.create("old").sync()
        disk.sync_directory("")
        disk.rename("old", "new")
        if sync:
            disk.sync_directory("")
        return disk.after_power_cut().names("")

    assert {tuple(names(seed, sync=False)) for seed in range(30)} == {("old",), ("new",)}
    assert {tuple(names(seed, sync=True)) for seed in range(30)} == {("new",)}


def test_a_replaced_file_is_always_the_old_or_the_new_one() -> None:
    for crash in range(1, 7):
        for seed in range(20):
            disk = SimulatedDisk(Random(seed))
            disk.replace("STATUS", b"old" * 400)
            disk.crash_at(crash)
            try:
                disk.replace("STATUS", b"new" * 400)
            except PowerCut:
                allowed = {b"old" * 400, b"new" * 400}
            else:
                allowed = {b"new" * 400}
            assert disk.after_power_cut().open("STATUS").read(0, 9999) in allowed


def test_nothing_happens_after_the_power_has_gone() -> None:
    disk = SimulatedDisk(Random(1))
    file = disk.create("file")
    disk.crash_at(2)
    file.write(0, b"one")
    with pytest.raises(PowerCut):
        file.sync()
    for attempt in (lambda: file.write(0, b"two"), lambda: file.read(0, 3), lambda: disk.names("")):
        with pytest.raises(PowerCut):
            attempt()


def test_a_sync_that_failed_has_lost_what_it_should_have_kept_though_it_can_still_be_read() -> None:
    disk = SimulatedDisk(Random(1))
    file = disk.create("file", 3)
    file.sync()
    disk.sync_directory("")
    file.write(0, b"new")
    disk.fail(1, errno.EIO, of=("sync",))
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert file.read(0, 3) == b"new"
    assert disk.after_power_cut().open("file").read(0, 3) == bytes(3)


def test_a_full_disk_takes_no_more_and_what_is_removed_makes_room() -> None:
    disk = SimulatedDisk(Random(1), capacity=1000)
    disk.create("large", 900)
    file = disk.create("small")
    with pytest.raises(OSError) as raised:
        file.write(0, bytes(200))
    assert raised.value.errno == errno.ENOSPC
    assert disk.free_bytes() == 100
    disk.remove("large")
    file.write(0, bytes(200))


def test_room_that_nobody_has_written_to_is_told_apart(tmp_path: Path) -> None:
    file = LocalDisk(tmp_path).create("room", 1 << 20)
    try:
        file.write(0, b"beginning")
        file.write(1 << 19, b"later")
        file.sync()
        ranges = file.written_ranges(5)
        assert any(begin <= 5 < end for begin, end in ranges)
        assert any(begin <= 1 << 19 < end for begin, end in ranges)
        written = sum(end - begin for begin, end in ranges)
        assert written <= 1 << 20
        assert file.written_ranges(1 << 20) == []
    finally:
        file.close()
