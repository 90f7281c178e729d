"""Stories about who must hold an event before it is confirmed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpid_ha_broker.ha.in_sync import InSyncChange, InSyncSet


def three_brokers(min_in_sync: int = 1) -> InSyncSet:
    return InSyncSet("a", InSyncChange(5, ("a", "b", "c")), committed_lsn=0, min_in_sync=min_in_sync)


def test_nothing_is_committed_before_the_slowest_member_has_it() -> None:
    in_sync = three_brokers()
    in_sync.acknowledge("a", 10)
    in_sync.acknowledge("b", 10)
    assert in_sync.committed_lsn == 0
    in_sync.acknowledge("c", 7)
    assert in_sync.committed_lsn == 7


@pytest.mark.parametrize("order", list(itertools.permutations(["append", "acknowledge", "file"])))
def test_a_departure_counts_only_when_it_is_in_the_log_of_all_who_stay_and_filed(order: tuple[str, ...]) -> None:
    in_sync = three_brokers()
    change = in_sync.leave("c")

    def acknowledge() -> None:
        for name in "ab":
            in_sync.acknowledge(name, 10)

    steps: dict[str, Callable[[], None]] = {
        "append": lambda: in_sync.appended(change.epoch, 10),
        "acknowledge": acknowledge,
        "file": lambda: in_sync.recorded(change.epoch),
    }
    for done, step in enumerate(order, start=1):
        steps[step]()
        in_sync.check_invariants()
        assert in_sync.committed_lsn == (10 if done == 3 else 0)


def test_who_joins_counts_at_once_and_what_was_committed_stays_so() -> None:
    in_sync = InSyncSet("a", InSyncChange(1, ("a",)), committed_lsn=0, min_in_sync=1)
    in_sync.acknowledge("a", 10)
    assert in_sync.join("b", 8) == InSyncChange(2, ("a", "b"))
    assert in_sync.committed_lsn == 10
    in_sync.acknowledge("a", 12)
    assert in_sync.committed_lsn == 10
    in_sync.acknowledge("b", 11)
    assert in_sync.committed_lsn == 11


def test_who_comes_back_before_its_departure_counts_is_waited_for_again() -> None:
    in_sync = three_brokers()
    epoch = in_sync.leave("c").epoch
    in_sync.join("c", 4)
    in_sync.recorded(epoch)
    in_sync.acknowledge("a", 9)
    in_sync.acknowledge("b", 9)
    assert in_sync.committed_lsn == 4


def test_nothing_is_committed_between_a_departure_and_the_return_when_another_one_leaves_meanwhile() -> None:
    """Whoever reads the log takes an in-sync set that is committed for one that was recorded, if it lacks a member."""
    in_sync = three_brokers()
    for name in "abc":
        in_sync.acknowledge(name, 5)
    left = in_sync.leave("b").epoch
    in_sync.appended(left, 6)
    in_sync.acknowledge("c", 7)
    in_sync.appended(in_sync.join("b", 5).epoch, 9)
    in_sync.appended(in_sync.leave("c").epoch, 10)

    for name in "ab":
        in_sync.acknowledge(name, 10)
    assert in_sync.committed_lsn == 5, "c has 7, and no more: that is after the departure, and before the return"

    in_sync.recorded(in_sync.epoch)
    assert in_sync.committed_lsn == 10


STEPS = st.tuples(st.sampled_from(["come or go", "hold", "hold"]), st.sampled_from("bcd"))


@settings(max_examples=400)
@given(steps=st.lists(STEPS, min_size=10, max_size=40))
def test_no_commit_ever_lies_between_a_departure_that_was_not_recorded_and_the_return(
    steps: list[tuple[str, str]],
) -> None:
    in_sync = InSyncSet("a", InSyncChange(1, ("a", "b", "c", "d")), committed_lsn=0, min_in_sync=1)
    held, away, windows = dict.fromkeys("bcd", 0), dict[str, int](), list[tuple[int, int]]()
    for lsn, (step, name) in enumerate(steps, start=1):
        if step == "hold":
            held[name] = lsn if name in in_sync else held[name]
        elif name in in_sync:
            in_sync.appended(in_sync.leave(name).epoch, lsn)
            away[name] = lsn
        else:
            in_sync.appended(in_sync.join(name, held[name]).epoch, lsn)
            windows.append((away.pop(name), lsn))
        in_sync.acknowledge("a", lsn)
        in_sync.acknowledge(name, held[name])

        assert not [window for window in windows if window[0] <= in_sync.committed_lsn < window[1]]
        assert all(in_sync.committed_lsn < left for left in away.values())


def test_one_who_comes_back_without_its_memory_may_have_led_others_meanwhile() -> None:
    """As the record still allowed it: what is confirmed now waits for the record, as if it had not come back."""
    in_sync = three_brokers()
    gone = in_sync.leave("c")
    in_sync.appended(gone.epoch, 5)
    back = in_sync.join("c", 6, remembers=False)
    in_sync.appended(back.epoch, 7)
    for name in "abc":
        in_sync.acknowledge(name, 9)
    in_sync.check_invariants()
    assert (in_sync.committed_lsn, in_sync.awaits_record) == (0, True)
    in_sync.recorded(back.epoch)
    assert (in_sync.committed_lsn, in_sync.awaits_record) == (9, False)


def test_an_older_epoch_that_was_filed_does_not_free_a_later_departure() -> None:
    in_sync = three_brokers()
    first = in_sync.leave("b").epoch
    second = in_sync.leave("c").epoch
    in_sync.appended(first, 1)
    in_sync.appended(second, 2)
    in_sync.acknowledge("a", 9)
    in_sync.recorded(first)
    assert in_sync.committed_lsn == 0
    assert in_sync.awaits_record
    in_sync.recorded(second)
    assert in_sync.committed_lsn == 9


def test_below_the_least_number_nothing_more_is_committed() -> None:
    in_sync = three_brokers(min_in_sync=3)
    for name in "abc":
        in_sync.acknowledge(name, 5)
    change = in_sync.leave("c")
    in_sync.appended(change.epoch, 6)
    in_sync.recorded(change.epoch)
    in_sync.acknowledge("a", 9)
    in_sync.acknowledge("b", 9)
    assert (in_sync.is_large_enough, in_sync.committed_lsn) == (False, 5)
    back = in_sync.join("c", 9)
    in_sync.appended(back.epoch, 10)
    assert (in_sync.is_large_enough, in_sync.committed_lsn) == (True, 9)


def test_news_of_one_that_is_no_member_changes_nothing() -> None:
    in_sync = three_brokers()
    in_sync.acknowledge("stranger", 99)
    assert (in_sync.members, in_sync.committed_lsn) == (("a", "b", "c"), 0)


def test_the_primary_cannot_leave() -> None:
    with pytest.raises(ValueError, match="primary"):
        three_brokers().leave("a")


def test_a_set_without_its_primary_cannot_be() -> None:
    with pytest.raises(ValueError, match="a is not in its own"):
        InSyncSet("a", InSyncChange(1, ("b",)), 0, 1)
