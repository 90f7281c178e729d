"""Stories about the files of the store: what is read is what was written, or it is said where it is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.store.blocks import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    FORMAT_VERSION,
    MAX_AGE_MS,
    Block,
    BlockFault,
    BlockKind,
    BlockProblem,
    FileHeader,
    decode_header,
    encode_block,
    encode_header,
    read_block,
)
from qpid_ha_broker.store.errors import BlockError, NewerFormat
from qpid_ha_broker.store.reading import (
    NO_WITNESSES,
    BlockReader,
    Ending,
    Witnesses,
    end_data,
    end_facts,
    read_header,
)
from simulated_disk import SimulatedDisk

U64 = st.integers(0, (1 << 64) - 1)
NAMES = st.text(alphabet="abcXYZ019._-", min_size=1, max_size=64)
UUIDS = st.uuids().map(str)
HEADER = FileHeader(
    "journal", "5f0c", "alpha", "default", 7, 3, 101, 1 << 63, 1_700_000_000_000, 4096, False, "77ab", 1 << 26, 12
)  # fmt: skip
PROTOCOL = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")

# --- the header of a file --------------------------------------------------------------------------------------------


@given(
    st.builds(
        FileHeader, st.sampled_from(("journal", "snapshot")), UUIDS, NAMES, st.just("default"), U64, U64, U64, U64, U64,
        U64, st.booleans(), UUIDS.map(lambda text: text.replace("-", "")), U64, U64,
    )
)  # fmt: skip
def test_a_file_header_says_what_was_put_into_it(header: FileHeader) -> None:
    page = encode_header(header)
    assert len(page) == FILE_HEADER_BYTES
    assert decode_header(page) == header


def sealed_header(version: int, **fields: object) -> bytes:
    """As somebody writes it who has only the protocol's page."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    start = b"QPIDHAJ\0" + version.to_bytes(2, "little") + len(text).to_bytes(2, "little")
    rest = text.ljust(FILE_HEADER_BYTES - 16, b"\0")
    return start + crc32(rest, crc32(start)).to_bytes(4, "little") + rest


def test_a_file_header_of_format_1_is_read_and_says_nothing_of_what_came_later() -> None:
    fields = HEADER._asdict()
    del fields["kind"]
    later = {name: fields.pop(name) for name in ("store", "room_bytes", "status_revision")}
    assert decode_header(sealed_header(1, **fields)) == HEADER._replace(store="", room_bytes=0, status_revision=0)
    assert decode_header(sealed_header(2, **fields, **later)) == HEADER
    for version, mixed in ((1, {**fields, **later}), (2, fields), (1, {**fields, "store": "77ab"}), (0, fields)):
        with pytest.raises(BlockError):
            decode_header(sealed_header(version, **mixed))


def test_no_byte_of_a_file_header_changes_unnoticed() -> None:
    page = encode_header(HEADER)
    for at in range(len(page)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(page)
            damaged[at] ^= change
            with pytest.raises(BlockError):
                decode_header(damaged)


def test_a_file_header_that_is_cut_off_is_none() -> None:
    with pytest.raises(BlockError):
        decode_header(encode_header(HEADER)[:-1])


def test_a_file_of_a_newer_release_is_refused_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpid_ha_broker.store.blocks.FORMAT_VERSION", FORMAT_VERSION + 1)
    page = encode_header(HEADER)
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match="upgrade this one"):
        decode_header(page)


@pytest.mark.parametrize("change", [{"kind": "spool"}, {"broker": "b" * 400}])
def test_what_no_file_header_can_hold_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        encode_header(HEADER._replace(**change))


# --- blocks ----------------------------------------------------------------------------------------------------------


@given(
    st.sampled_from(BlockKind), U64, U64, U64, st.integers(0, (1 << 32) - 1), U64, st.binary(max_size=200), U64,
    st.integers(0, 9), st.integers(0, MAX_AGE_MS),
)  # fmt: skip
def test_a_block_says_what_was_put_into_it(
    kind: BlockKind,
    first: int,
    last: int,
    committed: int,
    left_out: int,
    synced: int,
    data: bytes,
    number: int,
    at: int,
    age_ms: int,
) -> None:
    header = encode_block(number, kind, first, last, committed, left_out, synced, data, age_ms)
    assert len(header) == BLOCK_HEADER_BYTES
    found = read_block(bytes(at) + header + data, at, number, base=1000)
    assert found == Block(kind, first, last, committed, left_out, synced, 1000 + at, data, len(data), age_ms)
    assert isinstance(found, Block)
    assert found.end == 1000 + at + len(header) + len(data)


@pytest.mark.parametrize(("age_ms", "told"), [(-5, 0), (MAX_AGE_MS + 1, MAX_AGE_MS)])
def test_an_age_that_a_clock_made_up_is_told_as_well_as_it_can_be(age_ms: int, told: int) -> None:
    found = read_block(encode_block(7, BlockKind.MARK, 1, 1, 0, 0, 512, b"", age_ms), 0, 7)
    assert isinstance(found, Block)
    assert found.age_ms == told


def test_no_byte_of_a_block_changes_unnoticed() -> None:
    data = b"five records"
    whole = encode_block(7, BlockKind.EVENTS, 1, 5, 0, 0, 512, data) + data
    for at in range(len(whole)):
        for change in range(1, 256):
            damaged = bytearray(whole)
            damaged[at] ^= change
            assert isinstance(read_block(damaged, 0, 7), BlockProblem), (at, change)


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda block: block[:-1], BlockFault.SHORT),
        (lambda block: block[:40], BlockFault.SHORT),
        (lambda block: b"q" + block[1:], BlockFault.MAGIC),
        (lambda block: block[:50] + b"!" + block[51:], BlockFault.HEADER),
        (lambda block: block[:-1] + b"!", BlockFault.DATA),
    ],
)
def test_what_is_no_block_is_named(damage: Any, fault: BlockFault) -> None:
    whole = encode_block(7, BlockKind.EVENTS, 1, 5, 0, 0, 512, b"records") + b"records"
    found = read_block(b"---" + damage(whole), 3, 7, base=509)
    assert isinstance(found, BlockProblem)
    assert (found.fault, found.offset) == (fault, 512)


def test_blocks_end_at_zeros_at_the_end_of_the_file_and_at_blocks_of_another_file() -> None:
    assert read_block(bytes(100), 0, 7) is None
    assert read_block(b"", 0, 7) is None
    assert read_block(encode_block(6, BlockKind.MARK, 0, 0, 0, 0, 512), 0, 7) is None


# --- a file of blocks ------------------------------------------------------------------------------------------------


def file_of(*groups: tuple[bytes, ...], size: int = 0, number: int = 7) -> bytes:
    """Each group was written when the ones before were on disk."""
    image = encode_header(HEADER._replace(number=number))
    for group in groups:
        synced = len(image)
        for data in group:
            image += encode_block(number, BlockKind.EVENTS, 1, 1, 0, 0, synced, data) + data
    return image.ljust(size, b"\0")


def verdict_of(image: bytes | bytearray, witnesses: Witnesses = NO_WITNESSES) -> tuple[list[bytes], Ending, int]:
    disk = SimulatedDisk(Random(0))
    disk.put("file", bytes(image))
    file = disk.open("file")
    header = read_header(file)
    reader = BlockReader(file, header)
    data = [block.data for block in reader]
    verdict = reader.verdict(witnesses)
    assert verdict.offset == reader.end
    return data, verdict.ending, verdict.offset


def test_all_blocks_are_read_wherever_the_reader_s_windows_end() -> None:
    blocks = tuple(bytes([number]) * (number * 400_000) for number in range(8))
    data, ending, offset = verdict_of(file_of(blocks, (b"last",)))
    assert tuple(data) == (*blocks, b"last")
    assert (ending, offset) == (Ending.CLEAN, len(file_of(blocks, (b"last",))))


def test_a_reader_of_headers_sees_the_same_blocks_without_their_data() -> None:
    disk = SimulatedDisk(Random(0))
    disk.put("file", file_of((b"a" * 10, b"b" * 70_000), (b"", b"c"), size=100_000))
    file = disk.open("file")
    whole = list(BlockReader(file, read_header(file)))
    headers = list(BlockReader(file, read_header(file), headers_only=True))
    assert headers == [block._replace(data=b"") for block in whole]
    assert len(headers) == 4


def test_reading_ends_at_a_limit() -> None:
    disk = SimulatedDisk(Random(0))
    disk.put("file", file_of((b"a",), (b"b",)))
    file = disk.open("file")
    limit = len(file_of((b"a",)))
    assert [block.data for block in BlockReader(file, read_header(file), limit=limit)] == [b"a"]


def test_the_last_group_may_be_torn_but_no_other() -> None:
    first, second = file_of((b"a" * 99,)), file_of((b"a" * 99,), (b"b" * 99, b"c" * 99))
    torn = bytearray(second)
    torn[len(first) + 80] ^= 1  # in b; c, of the same group, is whole
    assert verdict_of(torn)[1:] == (Ending.TORN, len(first))
    damaged = bytearray(second)
    damaged[FILE_HEADER_BYTES + 80] ^= 1  # in a, which was on disk when b and c were written
    assert verdict_of(damaged)[1:] == (Ending.DAMAGED, FILE_HEADER_BYTES)


def test_zeros_where_a_block_had_been_on_disk_are_damage_too() -> None:
    first, second = file_of((b"a" * 99,)), file_of((b"a" * 99,), (b"b" * 99,))
    lost = second[:FILE_HEADER_BYTES].ljust(len(first), b"\0") + second[len(first) :]
    assert verdict_of(lost)[1:] == (Ending.DAMAGED, FILE_HEADER_BYTES)


@pytest.mark.parametrize(
    "told", [lambda n: Witnesses(previous_bytes=n), lambda n: Witnesses(clean_bytes=n), lambda n: Witnesses(0, 0, n)]
)
def test_a_file_that_is_shorter_than_others_know_is_damaged(told: Callable[[int], Witnesses]) -> None:
    first, second = file_of((b"a",), size=999), file_of((b"a",), (b"b",))
    end = len(file_of((b"a",)))
    assert verdict_of(first, told(end))[1] is Ending.CLEAN
    assert verdict_of(first, told(len(second)))[1:] == (Ending.DAMAGED, end)


def test_a_witness_far_behind_is_found() -> None:
    image = bytearray(file_of((b"a",), (b"b" * 9_000_000,), (b"c",)))
    image[FILE_HEADER_BYTES] ^= 1
    image[len(file_of((b"a",))) : len(file_of((b"a",), (b"b" * 9_000_000,)))] = bytes(BLOCK_HEADER_BYTES + 9_000_000)
    assert verdict_of(image)[1] is Ending.DAMAGED


def test_what_was_written_since_the_end_was_read_is_no_damage() -> None:
    before, image = file_of((b"a",)), bytearray(file_of((b"a",), (b"b",), (b"c",)))
    disk = SimulatedDisk(Random(0))
    disk.put("file", before.ljust(len(image), b"\0"))
    file = disk.open("file")
    reader = BlockReader(file, read_header(file))
    assert [block.data for block in reader] == [b"a"]
    disk.open("file", writable=True).write(0, bytes(image))
    assert reader.verdict()[:2] == (Ending.CLEAN, len(before))
    image[len(before)] ^= 1
    disk.open("file", writable=True).write(0, bytes(image))
    assert reader.verdict()[:2] == (Ending.DAMAGED, len(before))


def test_blocks_of_the_file_that_was_there_before_are_not_read() -> None:
    old, new = file_of((b"old one",), (b"old two",), number=3), file_of((b"new one",), number=7)
    data, ending, offset = verdict_of(new + old[len(new) :])
    assert data == [b"new one"]
    assert (ending, offset) == (Ending.CLEAN, len(new))


def test_nothing_is_read_behind_the_end_block() -> None:
    end = end_data({"last_lsn": 9})
    image = file_of((b"a",))
    closed = image + encode_block(7, BlockKind.END, 9, 9, 9, 0, len(image), end) + end
    disk = SimulatedDisk(Random(0))
    disk.put("file", closed + encode_block(7, BlockKind.MARK, 9, 9, 9, 0, 512))
    file = disk.open("file")
    reader = BlockReader(file, read_header(file))
    last = list(reader)[-1]
    assert end_facts(last) == {"last_lsn": 9}
    assert (reader.closed, reader.end) == (True, len(closed))
    assert reader.verdict().ending is Ending.CLEAN


# --- the page that others write a reader from ------------------------------------------------------------------------


def test_the_example_of_the_protocol_page_is_a_block() -> None:
    section = PROTOCOL[PROTOCOL.index("## Store") :]
    listing = re.search(r"```text\n(51 68 42 6b.*?)```", section, re.S)
    assert listing is not None
    shown = bytes.fromhex("".join(line.split("|")[0] for line in listing[1].splitlines()))
    data = b"hello"
    assert shown == encode_block(7, BlockKind.EVENTS, 101, 104, 99, 3, 512, data, 1500) + data
    assert isinstance(read_block(shown, 0, 7, base=512), Block)


def test_the_protocol_page_names_each_kind_of_block() -> None:
    section = PROTOCOL[PROTOCOL.index("## Store") :]
    for kind in BlockKind:
        assert f"| {kind.value} | {kind.name} |" in section
