"""What a primary keeps of its stream: whole, in order, bounded, and cut where one record ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode, encode
from qpid_ha_broker.ha.tail import Tail


def records(first_lsn: int, last_lsn: int) -> bytes:
    return b"".join(encode(lsn, ev.QueueDeleted(lsn)) for lsn in range(first_lsn, last_lsn + 1))


RECORD_BYTES = len(records(1, 1))


def tail_of(*sizes: int, limit_records: int = 1000) -> Tail:
    """A tail to which batches of so many records were appended."""
    tail = Tail(limit_records * RECORD_BYTES)
    for size in sizes:
        first_lsn = tail.last_lsn + 1
        tail.append(first_lsn, first_lsn + size - 1, records(first_lsn, first_lsn + size - 1))
    return tail


def lsns_after(tail: Tail, lsn: int, max_records: int = 1000, max_bytes: int = 1_000_000) -> list[int]:
    return [each for piece in pieces_after(tail, lsn, max_records, max_bytes) for each in piece]


def pieces_after(tail: Tail, lsn: int, max_records: int = 1000, max_bytes: int = 1_000_000) -> list[list[int]]:
    """The LSNs of each piece, until there are no more."""
    found: list[list[int]] = []
    while (piece := tail.piece_after(lsn, max_records, max_bytes)) is not None:
        decoded = decode(piece.data)
        assert decoded.problem is None
        found.append([record.lsn for record in decoded.records])
        assert (found[-1][0], found[-1][-1]) == (piece.first_lsn, piece.last_lsn)
        lsn = piece.last_lsn
    return found


def test_who_was_away_for_a_moment_gets_what_it_missed_and_not_more() -> None:
    tail = tail_of(3, 1, 4)
    assert lsns_after(tail, 0) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert lsns_after(tail, 2) == [3, 4, 5, 6, 7, 8]  # cut inside of the first batch
    assert lsns_after(tail, 4) == [5, 6, 7, 8]
    assert lsns_after(tail, 7) == [8]


def test_who_missed_nothing_gets_nothing_and_is_not_refused() -> None:
    tail = tail_of(3)
    assert tail.holds_after(3)
    assert lsns_after(tail, 3) == []
    assert Tail(10, last_lsn=99).holds_after(99)


def test_what_was_never_written_is_not_held() -> None:
    tail = tail_of(3)
    assert not tail.holds_after(4)
    with pytest.raises(LookupError, match="1 to 3"):
        tail.piece_after(4, 1, 1)


def test_the_oldest_go_when_the_room_is_used_up() -> None:
    tail = tail_of(2, 2, 2, limit_records=5)
    assert (tail.first_lsn, tail.last_lsn, tail.size) == (3, 6, 4 * RECORD_BYTES)
    assert not tail.holds_after(1)
    assert lsns_after(tail, 2) == [3, 4, 5, 6]


def test_a_batch_larger_than_the_room_leaves_nothing_but_the_place_where_the_stream_goes_on() -> None:
    tail = tail_of(2, 9, limit_records=5)
    assert (tail.first_lsn, tail.last_lsn, tail.size) == (12, 11, 0)
    assert tail.holds_after(11)
    assert not tail.holds_after(10)


@pytest.mark.parametrize(("first_lsn", "last_lsn"), [(5, 6), (3, 4), (2, 9), (4, 3)])
def test_a_gap_or_an_overlap_is_refused_and_nothing_changes(first_lsn: int, last_lsn: int) -> None:
    tail = tail_of(3)
    with pytest.raises(ValueError, match="goes on at LSN 4"):
        tail.append(first_lsn, last_lsn, b"")
    assert lsns_after(tail, 0) == [1, 2, 3]


def test_what_the_cluster_does_not_have_is_forgotten_and_the_stream_goes_on_from_there() -> None:
    tail = tail_of(3, 3, 3)
    tail.truncate_after(5)
    tail.append(6, 6, records(6, 6))
    assert lsns_after(tail, 1) == [2, 3, 4, 5, 6]


def test_forgetting_more_than_is_held_leaves_the_place() -> None:
    tail = tail_of(3, 3, limit_records=3)
    tail.truncate_after(1)
    assert (tail.first_lsn, tail.last_lsn) == (2, 1)


def test_pieces_are_as_large_as_they_may_be_and_never_less_than_what_one_turn_wrote() -> None:
    tail = tail_of(2, 2, 1, 5, 1)
    assert pieces_after(tail, 0, max_records=4) == [[1, 2, 3, 4], [5], [6, 7, 8, 9, 10], [11]]
    assert pieces_after(tail, 0, max_bytes=5 * RECORD_BYTES) == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11]]
    assert pieces_after(tail, 3, max_records=1) == [[4], [5], [6, 7, 8, 9, 10], [11]]


@given(
    st.lists(st.one_of(st.tuples(st.just("append"), st.integers(1, 6)), st.tuples(st.just("cut"), st.integers(0, 8)))),
    st.integers(0, 12),
)
def test_whatever_happens_it_is_one_run_within_the_limit(steps: list[tuple[str, int]], limit_records: int) -> None:
    tail = Tail(limit_records * RECORD_BYTES)
    for step, count in steps:
        if step == "append":
            first_lsn = tail.last_lsn + 1
            tail.append(first_lsn, first_lsn + count - 1, records(first_lsn, first_lsn + count - 1))
        else:
            tail.truncate_after(max(tail.last_lsn - count, 0))
        tail.check_invariants()
        for lsn in range(tail.first_lsn - 1, tail.last_lsn + 1):
            assert lsns_after(tail, lsn) == list(range(lsn + 1, tail.last_lsn + 1))
            assert lsns_after(tail, lsn, max_records=3) == list(range(lsn + 1, tail.last_lsn + 1))
