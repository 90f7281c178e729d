"""The compiled scan and the walk in Python find the same in blocks that are whole, cut off and damaged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from journal_rows import read_rows
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.scan import RecordError
from qpid_ha_broker.store.blocks import FILE_HEADER_BYTES, Block, BlockKind, encode_block, read_block
from qpid_ha_kernel import Kernel, NoKernel, load
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.journal import kernel_scan, scan
from qpid_ha_pipeline.journal.kernel_scan import BLOCK, KernelScanner, find_bodies
from qpid_ha_pipeline.journal.messages import Messages
from qpid_ha_pipeline.journal.part import JournalPart, PartGroup
from qpid_ha_pipeline.journal.scan import DamagedBlock, Scan, Window
from qpid_ha_pipeline.journal_source import JournalTableReader
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import full_schema
from written_journal import WrittenJournal, amqp, blocks_of, spoil


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    """The compiled one. `./dev` builds it."""
    found = load()
    if isinstance(found, NoKernel):
        pytest.skip(found.reason)
    return found


def some_events(random: Random, queues: list[int], count: int) -> list[ev.Event]:
    """Of a few kinds."""
    return [
        random.choice((
            ev.Enqueued((random.choice(queues),), random.randbytes(random.choice((0, 3, 100, 4000))), True, 4, 0, ""),
            ev.Enqueued(tuple(queues), amqp("x" * random.randrange(40)), True, 4, 0, "key"),
            ev.Dequeued(random.choice(queues), tuple(range(random.randrange(4))), ev.DequeueReason.CONSUMED),
            ev.TransientsLost(3),
        ))
        for _ in range(count)
    ]  # fmt: skip


def write_journal(directory: Path, random: Random) -> WrittenJournal:
    """Of blocks of many sizes in several segments, with events of both logs, and some that were taken back."""
    journal = WrittenJournal(directory)
    journal.start(1)
    queues = [journal.declare("a"), journal.declare("b")]
    for _ in range(random.choice((5, 60))):
        write = journal.write_local if random.random() < 0.2 else journal.write
        write(*some_events(random, queues, random.choice((1, 1, 30))))
        if random.random() < 0.05:
            journal.roll()
        if random.random() < 0.05:
            journal.take_back(journal.lsn - 1)
    return journal


def spoil_somewhere(journal: WrittenJournal, random: Random) -> None:
    """Bytes of a block, or a record with a checksum of the block that is right all the same, or the file's end."""
    number = random.choice(sorted(int(path.stem) for path in journal.directory.glob("journal/*.log")))
    blocks = blocks_of(journal, number)
    path = journal.segment(number)
    if not blocks:
        return
    begin, end = random.choice(blocks)
    match random.choice(("bytes", "record", "cut")):
        case "bytes":
            spoil(path, random.randrange(begin, end), random.randbytes(random.choice((1, 4))))
        case "record" if end - begin > 64 + 20:
            data = bytearray(path.read_bytes()[begin:end])
            block = read_block(bytes(data), 0, number)
            assert isinstance(block, Block)
            at = 64 + random.choice((0, 16, 17, 18))
            data[at] ^= random.choice((1, 0xFF))
            head = encode_block(
                number, block.kind, block.first_lsn, block.last_lsn, block.committed_lsn, block.left_out, block.synced,
                bytes(data[64:]), block.age_ms,
            )  # fmt: skip
            spoil(path, begin, head + bytes(data[64:]))
        case _:
            with path.open("r+b") as file:
                file.truncate(random.randrange(max(begin, FILE_HEADER_BYTES), end))


def parts_of(journal: WrittenJournal) -> Iterator[JournalPart]:
    """What a reader makes of it, in small parts."""
    options = JournalOptions.parse({"path": str(journal.data_dir), "mode": "permissive", "partitionBytes": "65536"})
    for group in JournalTableReader(options, full_schema(is_permissive=True)).partitions():
        if isinstance(group, PartGroup):
            yield from (part for part in group.parts if isinstance(part, JournalPart) and part.bytes)


def found_in(part: JournalPart, *, checks: bool, kernel: Kernel | None) -> list[Any]:
    """All that is found: of each record where it is, LSN, size, kind, whether it counts and when it was written."""
    found: list[Any] = []
    for window in Scan(part, checks=checks, kernel=kernel).windows():
        if isinstance(window, DamagedBlock):
            found.append(window)
        elif isinstance(window, Window):
            records, counting = window.records, window.counting()
            counts = np.ones(len(records), np.bool_) if counting is None else counting
            columns = (
                window.file_offsets(), records.lsns, records.sizes, records.kinds, counts, window.written_ms(),
            )  # fmt: skip
            found += zip(*(column.tolist() for column in columns), strict=True)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_both_find_the_same_in_whole_and_in_damaged_journals(
    tmp_path: Path, kernel: Kernel, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    journal = write_journal(tmp_path, random)
    if seed % 4:
        spoil_somewhere(journal, random)
    monkeypatch.setattr(scan, "_WINDOW_BYTES", random.choice((64, 1000, 5000, 4 << 20)))
    for checks in (True, False):
        total = 0
        for part in parts_of(journal):
            expected = found_in(part, checks=checks, kernel=None)
            assert found_in(part, checks=checks, kernel=kernel) == expected
            total += len(expected)
        assert total


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_the_same_with_and_without_it(tmp_path: Path, kernel: Kernel, seed: int) -> None:
    assert kernel
    random = Random(seed)
    journal = write_journal(tmp_path, random)
    spoil_somewhere(journal, random)
    with_it, without = (read_rows(tmp_path, mode="permissive", kernel=use) for use in ("required", "off"))
    assert with_it == without
    assert with_it


def test_its_checksum_is_that_of_zlib(kernel: Kernel) -> None:
    random = Random(1)
    for length in (*range(300), 4096, 65_537):
        data, begin = random.randbytes(length), random.getrandbits(32)
        assert kernel.lib.qh_crc32(kernel.ffi.from_buffer(data), length, begin) == zlib.crc32(data, begin)


def one_block(data: bytes, kind: BlockKind = BlockKind.EVENTS, first: int = 1, last: int = 2) -> bytes:
    return encode_block(1, kind, first, last, 0, 0, 0, data) + data


def scanner(kernel: Kernel, first: int = 0, last: int = 1 << 62, *, checks: bool = True) -> KernelScanner:
    return KernelScanner(kernel, 1, first, last, is_snapshot=False, checks=checks)


TWO = encode_all([LogRecord(1, ev.TransientsLost(1), False), LogRecord(2, ev.TransientsLost(2), False)])


def test_a_block_that_is_cut_off_says_how_much_it_takes(kernel: Kernel) -> None:
    block = one_block(TWO)
    for length in (1, 63, 64, len(block) - 1):
        found = scanner(kernel).find(block + block[:length])
        assert found is not None
        assert (len(found.columns.offsets), found.end) == (2, len(block))
        assert found.needed == (64 if length < 64 else len(block))


def test_blocks_that_are_not_asked_for_are_passed_over_without_their_checksums(kernel: Kernel) -> None:
    wrong = bytearray(one_block(TWO, first=5, last=6))
    wrong[-1] ^= 1
    data = one_block(b"", BlockKind.MARK) + bytes(wrong) + one_block(TWO)
    found = scanner(kernel, last=4).find(data)
    assert found is not None
    assert (found.columns.lsns.tolist(), found.end) == ([1, 2], len(data))
    looked = scanner(kernel).find(data)
    assert looked is not None
    assert (len(looked.blocks), looked.end) == (0, 64)


def test_records_that_do_not_add_up_are_left_to_the_walk_in_python(kernel: Kernel) -> None:
    for place, value in ((0, 19), (0, 0xFF), (16, 0), (17, 2), (18, 9)):
        data = bytearray(TWO)
        data[place] = value
        assert scanner(kernel).find(one_block(bytes(data))) is None
    assert scanner(kernel).find(one_block(TWO[:-1])) is None


def test_it_lays_blocks_out_as_the_c_structure(kernel: Kernel) -> None:
    assert kernel.ffi.sizeof("qh_block") == BLOCK.itemsize
    theirs = {name: field.offset for name, field in kernel.ffi.typeof("qh_block").fields}
    assert theirs == {name: BLOCK.fields[name][1] for name in theirs}  # type: ignore[index]


@pytest.mark.parametrize("seed", range(200))
def test_bodies_lie_where_the_steps_through_sections_find_them(kernel: Kernel, seed: int) -> None:
    random = Random(seed)
    messages = [random.choice(BODIES) for _ in range(random.randrange(1, 6))]
    messages = [message + random.randbytes(2) if random.random() < 0.05 else message for message in messages]
    messages = [message[: random.randrange(len(message) + 1)] if random.random() < 0.1 else message
                for message in messages]  # fmt: skip
    data = b"".join((b"record", *messages))
    ends = len(b"record") + np.cumsum([len(message) for message in messages])
    starts = ends - [len(message) for message in messages]
    with_it, without = (Messages(data, starts, ends, use).column("body") for use in (kernel, None))
    assert with_it.equals(without)


BODIES = (
    amqp(b"bytes"), amqp(b"b" * 300), amqp("text"), amqp("t" * 300, id="1", subject="s", properties={"a": 1}), b"",
    b"\x00\x53\x77\x40", b"\x00\x53\x76\xc0\x03\x01\x54\x07", b"\x00\x53\x75\xa0\x01a\x00\x53\x75\xa0\x01b",
    b"\x00\x53\x70\x45", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01a", b"\x00\x53\x77\xa3\x01s",
    b"\x00\x53\x75\xb0\x00\x00\x00\x02ab\x00\x53\x78\xc1\x01\x00",
)  # fmt: skip


def test_usual_messages_are_found_by_it_and_others_are_left(kernel: Kernel) -> None:
    for message, is_usual in ((BODIES[0], True), (BODIES[3], True), (BODIES[7], False), (BODIES[9], False)):
        found = find_bodies(kernel, message, np.array([0]), np.array([len(message)]))
        assert (found is not None) is is_usual
    assert find_bodies(kernel, b"\x00\x53\x75\xa0\x01a", np.array([0]), np.array([7])) is None


def test_an_option_says_whether_it_is_used(journal: WrittenJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = journal.declare("orders")
    journal.enqueue(queue, b"one")
    rows = read_rows(journal.data_dir, "lsn", kernel="off")
    monkeypatch.setattr(kernel_scan, "load", lambda: NoKernel("it was not built; install gcc"))
    assert read_rows(journal.data_dir, "lsn") == rows
    with pytest.raises(PipelineError, match="kernel=required, but it was not built; install gcc; or leave"):
        read_rows(journal.data_dir, "lsn", kernel="required")
    with pytest.raises(PipelineError, match="kernel: expected auto or off or required"):
        read_rows(journal.data_dir, "lsn", kernel="yes")


def test_a_record_of_a_kind_that_is_none_is_named_the_same(tmp_path: Path, kernel: Kernel) -> None:
    assert kernel
    journal = WrittenJournal(tmp_path)
    journal.write(ev.TransientsLost(1))
    (begin, end), *_ = blocks_of(journal, 1)
    data = bytearray(journal.segment(1).read_bytes()[begin + 64 : end])
    data[16] = 0xEE
    head = encode_block(1, BlockKind.EVENTS, 1, 1, 1, 0, begin, bytes(data))
    spoil(journal.segment(1), begin, head + bytes(data))
    errors = []
    for use in ("required", "off"):
        with pytest.raises((PipelineError, RecordError)) as caught:
            read_rows(tmp_path, "lsn", kernel=use)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert f"offset {begin + 64}" in errors[0]
