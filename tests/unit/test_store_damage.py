"""Stories about what happens to a store below the broker: a copy that was interrupted, a disk that was repaired.

The promise of each: what was confirmed comes back, or the broker refuses, and names a file and an offset. A store that
is refused is refused by all who look at it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

import pytest

from kept_core import (
    IDENTITY,
    KeptCore,
    copied,
    durable_picture,
    files_of,
    recovered,
    with_everything,
)
from model_support import message
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.types import QueueDeclared
from qpid_ha_broker.server.stores.status import StoreStatus
from qpid_ha_broker.store.blocks import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, BlockKind, decode_header, encode_header
from qpid_ha_broker.store.checking import check
from qpid_ha_broker.store.errors import StoreDamaged
from qpid_ha_broker.store.facts import Integrity
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.inspection import examine
from qpid_ha_broker.store.journal import Journal
from qpid_ha_broker.store.layout import segment_numbers, segment_path, snapshot_numbers, snapshot_path
from qpid_ha_broker.store.status import STATUS_FILE, Status, read_status
from simulated_disk import SimulatedDisk

PAGE_BYTES = 512


class Written(NamedTuple):
    """A store, and what a broker that starts with it must know."""

    core: KeptCore
    confirmed: dict[str, object]

    @property
    def disk(self) -> Disk:
        return self.core.disk


def killed() -> Written:
    """The process died when it had nothing to do."""
    core = with_everything()
    core.journal.mark()
    return Written(core, durable_picture(core.sets))


def closed() -> Written:
    """It was shut down in order."""
    core = with_everything()
    last_lsn, local_lsn = core.sets.log_ends
    core.status.change(clean="a shutdown", journal_end=core.journal.end(), last_lsn=last_lsn, local_lsn=local_lsn)
    core.status.write()
    return Written(core, durable_picture(core.sets))


STORES = pytest.mark.parametrize("written", [killed(), closed()], ids=["killed", "closed"])


def content(disk: Disk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size)


def is_refused(disk: SimulatedDisk, written: Written, story: str) -> bool:
    """Whether a broker refuses it. If not, nothing of what was confirmed is missing; all who look at it agree."""
    facts, flaws = examine(copied(disk), "here"), check(copied(disk))
    damage: StoreDamaged | None = None
    try:
        resources, _ = recovered(disk)
    except StoreDamaged as error:
        damage = error
    if damage is not None:
        assert facts.integrity is Integrity.DAMAGED, story
        assert facts.detail, story
        assert any(flaw[:3] == (Integrity.DAMAGED, damage.file, damage.offset) for flaw in flaws), (story, flaws)
        return True
    assert durable_picture(resources.sets) == written.confirmed, story
    assert facts.is_readable, (story, facts.detail)
    assert all(flaw.integrity is Integrity.TORN for flaw in flaws), story
    return False


def used_bytes(data: bytes) -> int:
    """Up to where something is written, the MARK at the end of a segment left aside."""
    return len(data[:-BLOCK_HEADER_BYTES].rstrip(b"\0"))


def cuts(data: bytes) -> Iterator[int]:
    """Lengths at which a copy may have stopped: close to each other where something is written."""
    used = used_bytes(data)
    yield from range(0, min(used + 2 * BLOCK_HEADER_BYTES, len(data)), 13)
    yield from range(used, len(data), 4096)
    yield len(data) - 1


@STORES
def test_a_file_that_was_cut_off_anywhere_is_damage_and_never_a_torn_end(written: Written) -> None:
    for path in files_of(written.disk):
        data = content(written.disk, path)
        is_followed = path in [segment_path(number) for number in segment_numbers(written.disk)[:-1]]
        used = used_bytes(data)
        for length in cuts(data):
            disk = copied(written.disk)
            disk.put(path, data[:length])
            refused = is_refused(disk, written, f"{path} cut at {length} of {len(data)}")
            assert refused or (is_followed and length >= used), (path, length)


@STORES
def test_a_file_that_is_missing_is_damage(written: Written) -> None:
    for path in files_of(written.disk):
        assert is_refused(copied(written.disk, without=(path,)), written, f"no {path}")


@STORES
def test_without_any_two_files_it_is_damage_as_well(written: Written) -> None:
    files = files_of(written.disk)
    for first in files:
        for second in files:
            assert is_refused(copied(written.disk, without=(first, second)), written, f"no {first}, no {second}")


@STORES
def test_zeros_in_place_of_what_was_on_disk_are_damage(written: Written) -> None:
    """As a repaired file system leaves them: whole sectors, up to several pages."""
    for path in files_of(written.disk):
        data = content(written.disk, path)
        for begin in range(0, used_bytes(data), PAGE_BYTES):
            for sectors in (1, 2, 8, 64):
                end = min(len(data), begin + sectors * PAGE_BYTES)
                if not any(data[begin:end]):
                    continue
                disk = copied(written.disk)
                disk.put(path, data[:begin] + bytes(end - begin) + data[end:])
                is_refused(disk, written, f"{path} zeros from {begin} to {end}")


@STORES
def test_a_file_of_another_store_is_damage(written: Written) -> None:
    """Also when that was the same broker's, and looks just alike."""
    other = copied(written.disk)
    for path in files_of(other)[:-1]:
        data = content(other, path)
        header = decode_header(data)
        for foreign in (header._replace(store="another store"), header._replace(cluster="another cluster")):
            disk = copied(written.disk)
            disk.put(path, encode_header(foreign) + data[FILE_HEADER_BYTES:])
            assert is_refused(disk, written, f"{path} of {foreign}")
    status = read_status(other)
    assert status is not None
    disk = copied(written.disk)
    disk.put(STATUS_FILE, replace(status, store="another store").encode())
    assert is_refused(disk, written, "STATUS of another store")


def test_a_status_that_is_older_than_the_journal_is_damage() -> None:
    """It may have forgotten a promise; and it may say that the store was closed in order."""
    core = with_everything()
    early = content(core.disk, STATUS_FILE)
    core.status.change(promised=7, promised_to="beta")
    core.status.write()
    core.journal.roll()
    core.publish(core.catalog.queues["q"], message("seven", durable=True))
    core.keep()
    written = Written(core, durable_picture(core.sets))
    disk = copied(core.disk)
    disk.put(STATUS_FILE, early)
    assert is_refused(disk, written, "an early STATUS")
    last, local = core.sets.log_ends
    clean = replace(Status.decode(content(core.disk, STATUS_FILE)), clean="u", last_lsn=last, local_lsn=local)
    disk.put(STATUS_FILE, replace(clean, journal_end=(core.journal.number - 1, 600)).encode())
    assert is_refused(disk, written, "a STATUS of a shutdown before the last start")


def test_a_journal_that_is_older_than_status_is_damage() -> None:
    """The last segment was put back from an earlier copy: as such it is whole."""
    core = with_everything()
    path = segment_path(core.journal.number)
    early = content(core.disk, path)
    core.publish(core.catalog.queues["q"], message("seven", durable=True))
    core.keep()
    core.status.change(role="ready")
    core.status.write()
    disk = copied(core.disk)
    disk.put(path, early)
    assert is_refused(disk, Written(core, durable_picture(core.sets)), "an early segment")


def test_entries_that_a_repair_leaves_are_ignored() -> None:
    written = killed()
    disk = copied(written.disk)
    for path in ("lost+found", "journal/lost+found", "journal/#131", "snapshots/#7", "#12", "journal/spare.1"):
        disk.put(path, b"anything")
    assert not is_refused(disk, written, "lost+found")


def test_a_segment_that_a_running_broker_begins_meanwhile_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """STATUS was read before the segment came, which is newer than that STATUS."""
    core = with_everything()
    decode, is_begun = Status.decode, False

    def decode_while_the_broker_works(data: bytes) -> Status:
        nonlocal is_begun
        status = decode(data)
        if not is_begun:
            is_begun = True
            core.status.change(promised=9)
            core.status.write()
            core.journal.roll()
        return status

    monkeypatch.setattr(Status, "decode", decode_while_the_broker_works)
    assert check(core.disk) == []
    is_begun = False
    assert examine(core.disk, "here", is_running=True).integrity is Integrity.OK


# --- a copy of the primary's state ------------------------------------------------------------------------------------


def after_a_copy() -> KeptCore:
    """What was kept before is of another state: snapshot and segment of the copy hold everything."""
    core = with_everything()
    core.keep()
    number = core.journal.roll(needs_base=True)
    dump, _ = core.begin_dump()
    core.write_dump(dump, number, list(iter(lambda: dump.next(100), None)))
    core.journal.base_persisted(number)
    core.publish(core.catalog.queues["q"], message("after it", durable=True))
    core.keep()
    return core


@pytest.mark.parametrize("is_old_dropped", [True, False])
def test_a_lost_snapshot_is_not_taken_for_a_copy_that_did_not_come_to_its_end(is_old_dropped: bool) -> None:
    core = after_a_copy()
    number = snapshot_numbers(core.disk)[-1]
    if is_old_dropped:
        core.journal.drop_before(number)
    written = Written(core, durable_picture(core.sets))
    assert not is_refused(copied(core.disk), written, "whole")
    disk = copied(core.disk, without=(snapshot_path(number),))
    with pytest.raises(StoreDamaged, match="missing") as raised:
        recovered(copied(disk))
    assert raised.value.file == snapshot_path(number)
    assert is_refused(disk, written, "no snapshot")
    if is_old_dropped:
        assert is_refused(as_format_1(disk), written, "no snapshot, in format 1")


def test_a_copy_that_is_begun_when_its_segment_is_full_already_is_counted_as_well() -> None:
    core = with_everything()
    core.journal.roll(needs_base=True)
    dump, number = core.begin_dump()
    core.write_dump(dump, number, list(iter(lambda: dump.next(100), None)))
    core.journal.base_persisted(number)
    core.publish(core.catalog.queues["q"], message("after it", durable=True))
    core.keep()
    core.journal.drop_before(number)
    core.journal.roll()
    core.publish(core.catalog.queues["q"], message("in the next segment", durable=True))
    core.keep()
    written = Written(core, durable_picture(core.sets))
    assert not is_refused(copied(core.disk), written, "whole")
    for path in files_of(core.disk):
        assert is_refused(copied(core.disk, without=(path,)), written, f"no {path}")


def test_before_a_copy_is_whole_nothing_behind_it_counts() -> None:
    """Whenever STATUS is written meanwhile: a crash then is no damage."""
    core = with_everything()
    before = durable_picture(core.sets)
    last = core.log.last_lsn
    number = core.journal.roll(needs_base=True, last_lsn=last + 500)
    far = encode_all([LogRecord(last + 501, QueueDeclared("far away", {}), False)])
    core.journal.stage(BlockKind.EVENTS, last + 501, last + 501, last, 0, far)
    core.journal.roll()
    core.status.change(role="catchup")
    core.status.write()
    disk = copied(core.disk)
    assert not is_refused(copied(disk), Written(core, before), "a crash before the copy is whole")
    _, facts = recovered(disk)
    assert (facts.next_number, segment_numbers(disk)[-1], len(facts.notes)) == (number, number - 1, 1)


# --- stores of format 1 -----------------------------------------------------------------------------------------------


def as_format_1(disk: Disk) -> SimulatedDisk:
    """As the releases before wrote it."""
    old = copied(disk)
    for path in files_of(old)[:-1]:
        data = content(old, path)
        old.put(path, header_of_format_1(data) + data[FILE_HEADER_BYTES:])
    status = read_status(old)
    assert status is not None
    old.put(STATUS_FILE, status_of_format_1(status))
    return old


def header_of_format_1(data: bytes) -> bytes:
    fields = decode_header(data)._asdict()
    kind = fields.pop("kind")
    for name in ("store", "room_bytes", "status_revision"):
        del fields[name]
    text = json.dumps(fields, separators=(",", ":")).encode()
    start = b"QPIDHA" + {"journal": b"J", "snapshot": b"S"}[kind] + b"\0\1\0" + len(text).to_bytes(2, "little")
    rest = text.ljust(FILE_HEADER_BYTES - 16, b"\0")
    return start + crc32(rest, crc32(start)).to_bytes(4, "little") + rest


def status_of_format_1(status: Status) -> bytes:
    fields = json.loads(status.encode())
    for name in ("store", "revision", "journal_synced", "crc32"):
        del fields[name]
    fields["format"] = 1
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({**fields, "crc32": crc32(text.encode())}, indent=2, ensure_ascii=False).encode() + b"\n"


@STORES
def test_a_store_of_format_1_is_read_and_goes_on_in_format_2(written: Written) -> None:
    disk = as_format_1(written.disk)
    assert not is_refused(copied(disk), written, "format 1")
    resources, facts = recovered(disk)
    assert facts.status is not None
    status = StoreStatus(disk, facts.status)
    status.change(clean="", journal_end=None, last_lsn=0, local_lsn=0)
    status.write()
    journal = status.journal = Journal.begin(
        disk, IDENTITY, facts.next_number, generation=1, first_lsn=facts.journal_lsn + 1,
        first_local_lsn=facts.local_lsn + 1, previous_bytes=facts.previous_bytes, clock=lambda: 0,
        segment_bytes=1 << 16, status=status,
    )  # fmt: skip
    more = encode_all([LogRecord(facts.journal_lsn + 1, QueueDeclared("more", {}), False)])
    journal.stage(BlockKind.EVENTS, facts.journal_lsn + 1, facts.journal_lsn + 1, facts.journal_lsn + 1, 0, more)
    journal.flush()
    after, _ = recovered(copied(disk))
    assert set(after.catalog.queues) == {*resources.catalog.queues, "more"}
    for path in files_of(disk)[-4:]:
        with pytest.raises(StoreDamaged):
            recovered(copied(disk, without=(path,)))


def test_a_segment_of_format_1_that_was_cut_off_is_damage_too() -> None:
    """It does not say how long it was; but a segment always had zeros behind its last block."""
    written = killed()
    old = as_format_1(written.disk)
    path = segment_path(segment_numbers(old)[-1])
    data = content(old, path)
    for length in cuts(data):
        disk = copied(old)
        disk.put(path, data[:length])
        is_refused(disk, written, f"{path} cut at {length}")
