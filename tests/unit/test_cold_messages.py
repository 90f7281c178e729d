"""Columns of numbers that ascend, in few bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.model.queues.cold import packed, unpacked

numbers = st.lists(st.integers(0, (1 << 64) - 1), min_size=1, max_size=20).map(sorted)
steps = st.lists(st.sampled_from([0, 1, 7, 7, 7, 65_535, 65_536, (1 << 32) - 1, 1 << 32]), min_size=1, max_size=20)


@given(numbers, st.data())
def test_what_was_packed_comes_back(first: list[int], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.integers(0, (1 << 64) - 1), min_size=len(first), max_size=len(first)).map(sorted))
    assert unpacked(packed(first, second), len(first), 2) == [first, second]


@given(steps)
def test_each_step_takes_as_few_bytes_as_the_largest(lengths: list[int]) -> None:
    column = [sum(lengths[:at]) for at in range(len(lengths) + 1)]
    data = packed(column)
    assert unpacked(data, len(column), 1) == [column]
    most = max(lengths)
    width = 2 if most < 1 << 16 else 4 if most < 1 << 32 else 8
    assert len(data) == (17 if len(set(lengths)) == 1 else 9 + width * len(lengths))


def test_512_messages_that_came_one_after_the_other_take_fifty_bytes() -> None:
    ids, offsets, sums = range(9, 521), range(0, 512 * 145, 145), range(100, 51_300, 100)
    assert len(packed(ids, offsets, sums)) == 51


def test_numbers_that_do_not_ascend_are_a_bug() -> None:
    with pytest.raises(ValueError, match="ascend"):
        packed([3, 2])


def test_bytes_that_are_no_columns_are_refused() -> None:
    data = packed([1, 5, 7], [1, 2, 3])
    with pytest.raises(ValueError, match="bytes of columns"):
        unpacked(data + b"?", 3, 2)
    for short in (data[:-1], data[:15]):
        with pytest.raises(struct.error):
            unpacked(short, 3, 2)
    with pytest.raises(ValueError, match="steps of 2, 4 or 8 bytes"):
        unpacked(b"\3" + data[1:], 3, 2)
