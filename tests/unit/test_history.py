"""Stories about how far two logs are the same, and which histories cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.ha.history import began_apart, common_lsn, newest, problem


def entries(*lines: tuple[int, str, int]) -> list[GenerationEntry]:
    return [GenerationEntry(*line) for line in lines]


FIRST = (1, "a", 1)
LARGEST = 2**64 - 1


@pytest.mark.parametrize(
    ("mine", "my_last", "theirs", "their_last", "common"),
    [
        ([], 0, [], 0, 0),
        ([FIRST], 10, [], 0, 0),
        ([FIRST], 10, [FIRST], 7, 7),
        ([FIRST, (2, "b", 8)], 20, [FIRST], 7, 7),
        ([FIRST, (2, "b", 8)], 20, [FIRST], 15, 7),
        ([FIRST, (2, "b", 8)], 20, [FIRST, (2, "c", 8)], 20, 7),
        ([FIRST, (2, "b", 8)], 20, [FIRST, (2, "b", 9)], 20, 7),
        ([FIRST, (2, "b", 8), (3, "c", 15)], 20, [FIRST, (2, "b", 8)], 30, 14),
        ([FIRST, (2, "b", LARGEST - 10)], LARGEST, [FIRST, (2, "b", LARGEST - 10)], LARGEST - 5, LARGEST - 5),
        ([(1, "b", 1)], 20, [FIRST], 20, 0),
    ],
)
def test_two_logs_agree_as_far_as_their_authors_do(
    mine: list[tuple[int, str, int]],
    my_last: int,
    theirs: list[tuple[int, str, int]],
    their_last: int,
    common: int,
) -> None:
    assert common_lsn(entries(*mine), my_last, entries(*theirs), their_last) == common
    assert common_lsn(entries(*theirs), their_last, entries(*mine), my_last) == common


def test_a_generation_that_began_twice_is_not_the_same() -> None:
    """Its primary's store was put back to before it, and no coordinator knew of it (simulation seed 2201661)."""
    log = entries(FIRST, (2, "b", 8), (3, "b", 15))
    assert began_apart((5, 70, 90), (5, 71, 91)) == 1
    assert common_lsn(log, 20, log, 19, apart=1) == 7
    assert common_lsn(log, 20, log, 19, apart=0) == 0


@pytest.mark.parametrize("theirs", [(), (5, 70), (0, 0, 0), (5, 0, 90), (5, 70, 90, 100)])
def test_but_what_is_not_known_to_have_begun_twice_is(theirs: tuple[int, ...]) -> None:
    assert began_apart((5, 70, 90), theirs) is None


@pytest.mark.parametrize(
    ("lines", "last_lsn"),
    [
        ([], 1),
        ([(1, "a", 5)], 4),
        ([(1, "", 1)], 4),
        ([(2, "a", 1), (2, "b", 5)], 9),
        ([(2, "a", 1), (1, "b", 5)], 9),
        ([(1, "a", 5), (2, "b", 5)], 9),
        ([(0, "a", 1)], 9),
        ([(1, "a", 0)], 9),
    ],
)
def test_a_history_that_no_log_can_have_is_named(lines: list[tuple[int, str, int]], last_lsn: int) -> None:
    assert problem(entries(*lines), last_lsn)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), max_size=6), st.integers(0, 20))
def test_every_growing_history_is_sound_and_agrees_with_itself(steps: list[tuple[int, int]], more: int) -> None:
    generation, lsn, history = 0, 0, []
    for generations, lsns in steps:
        generation, lsn = generation + generations, lsn + lsns
        history.append(GenerationEntry(generation, "abc"[generation % 3], lsn))
    last = lsn + more if history else 0
    assert problem(history, last) == ""
    assert common_lsn(history, last, history, last) == last
    assert newest(history) == generation
