"""How what a peer has sent is cut: never more work at once than the smallest frames of a few KiB ask for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.amqp.wire.pieces import LARGE_PIECE_BYTES, PIECE_BYTES, PIECE_FRAMES, Pieces

PROTOCOL_HEADER = b"AMQP\x00\x01\x00\x00"


def frame(size: int) -> bytes:
    return size.to_bytes(4) + b"\x02\x00\x00\x00" + b"x" * (size - 8)


def sizes(reads: list[bytes]) -> list[int]:
    """Of the pieces of what was read in so many parts."""
    pieces, found = Pieces(), []
    for read in reads:
        rest = memoryview(read)
        while rest:
            size = pieces.next_size(rest)
            assert 0 < size <= len(rest)
            found.append(size)
            rest = rest[size:]
    return found


FRAMES = st.lists(st.one_of(st.integers(8, 40), st.integers(8, 3000), st.integers(3000, 80_000)), max_size=400)
CUTS = st.lists(st.integers(1, 60_000), max_size=30)


@given(FRAMES, CUTS)
def test_a_piece_has_few_bytes_or_few_frames_however_they_are_read(frames: list[int], cuts: list[int]) -> None:
    data = PROTOCOL_HEADER + b"".join(map(frame, frames))
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    found = sizes([data[start:end] for start, end in pairwise(places)])

    assert sum(found) == len(data)
    begins = [0]
    for size in [8, *frames]:
        begins.append(begins[-1] + size)
    at = 0
    for size in found:
        assert size <= LARGE_PIECE_BYTES
        if size > PIECE_BYTES + max(frames, default=0):
            assert sum(at <= begin < at + size for begin in begins) <= PIECE_FRAMES
        at += size


def test_large_frames_are_taken_many_at_once() -> None:
    data = frame(1100) * 100

    assert sizes([PROTOCOL_HEADER + data])[0] == LARGE_PIECE_BYTES


def test_small_frames_are_taken_few_bytes_at_once() -> None:
    assert max(sizes([frame(28) * 10_000])) < PIECE_BYTES + 28


def test_frames_are_seen_where_a_read_ends_within_a_size() -> None:
    data = frame(28) * 4096
    whole = sizes([data])

    for cut in range(1, 30):
        found = sizes([data[:cut], data[cut:]])
        assert max(found) < max(whole) + 28


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01" * 20_000, id="TLS"),
        pytest.param(frame(600) * 3 + b"\x00\x00\x00\x07" * 30_000, id="a frame that is too short"),
        pytest.param(PROTOCOL_HEADER + b"\x7f\xff\xff\xff" * 30_000, id="a frame that nobody may send"),
    ],
)
def test_what_is_no_amqp_in_clear_is_cut_by_bytes(data: bytes) -> None:
    assert max(sizes([data])) == PIECE_BYTES


def test_a_size_that_began_in_the_read_before_does_not_hide_one_at_the_end_of_a_piece() -> None:
    data = frame(LARGE_PIECE_BYTES - 2) + frame(28) * 4096

    found = sizes([data[:1], data[1:]])

    assert sum(found) == len(data)
    assert max(found) <= LARGE_PIECE_BYTES
