"""The time by which messages expire: what passes, as the primary counts it, whatever the time of day is set to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.model.sets.message_clock import LAST_MS, READINGS_KEPT, MessageClock

DAY_MS = 86_400_000
BEGAN_MS = 1_800_000_000_000


def test_a_set_begins_with_the_time_of_day() -> None:
    assert MessageClock().now_ms(BEGAN_MS) == BEGAN_MS


def test_it_goes_on_from_what_the_store_has() -> None:
    clock = MessageClock()
    clock.go_on(BEGAN_MS + DAY_MS, BEGAN_MS)
    assert clock.now_ms(BEGAN_MS + 5) == BEGAN_MS + DAY_MS + 5


def test_a_backup_goes_on_from_what_its_primary_told_a_day_ahead_or_behind() -> None:
    for ahead_ms in (DAY_MS, -DAY_MS):
        clock = MessageClock()
        clock.told(BEGAN_MS + ahead_ms, BEGAN_MS)
        assert clock.now_ms(BEGAN_MS + 1000) == BEGAN_MS + ahead_ms + 1000


def test_of_several_readings_the_least_delayed_one_counts() -> None:
    clock = MessageClock()
    for sent_ms, delay_ms in ((0, 900), (1000, 3), (2000, 400)):
        clock.told(BEGAN_MS + sent_ms, BEGAN_MS + sent_ms + delay_ms)
    assert clock.now_ms(BEGAN_MS + 5000) == BEGAN_MS + 5000 - 3


def test_a_clock_that_runs_slower_than_the_primarys_is_followed_and_so_is_a_faster_one() -> None:
    for rate in (0.999, 1.001):
        clock = MessageClock()
        for second in range(1000):
            clock.told(BEGAN_MS + second * 1000, BEGAN_MS + int(second * 1000 * rate))
        steady_ms = BEGAN_MS + int(999_000 * rate)
        assert abs(clock.now_ms(steady_ms) - (BEGAN_MS + 999_000)) <= READINGS_KEPT


def test_what_a_primary_before_told_does_not_count_beside_what_the_next_one_tells() -> None:
    clock = MessageClock()
    clock.told(BEGAN_MS + DAY_MS, BEGAN_MS)
    clock.follow()
    assert clock.now_ms(BEGAN_MS) == BEGAN_MS + DAY_MS
    clock.told(BEGAN_MS, BEGAN_MS)
    assert clock.now_ms(BEGAN_MS) == BEGAN_MS


def test_what_is_routed_to_another_set_has_the_same_time_left_there() -> None:
    here, there = MessageClock(), MessageClock()
    here.go_on(BEGAN_MS, BEGAN_MS)
    there.go_on(BEGAN_MS - DAY_MS, BEGAN_MS)
    assert there.converted(BEGAN_MS + 5000, here) - there.now_ms(BEGAN_MS) == 5000
    assert there.converted(0, here) == 0


def test_what_has_expired_where_it_was_routed_does_not_become_what_never_expires() -> None:
    here, there = MessageClock(), MessageClock()
    there.go_on(0, BEGAN_MS)
    assert there.converted(1, here) == 1


@given(
    st.integers(-30 * DAY_MS, 30 * DAY_MS),
    st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 5000)), min_size=1, max_size=20),
)
def test_who_takes_over_is_never_ahead_and_behind_by_no_more_than_the_least_of_the_last_delays(
    ahead_ms: int, readings: list[tuple[int, int]]
) -> None:
    clock, passed_ms = MessageClock(), 0
    for after_ms, delay_ms in readings:
        passed_ms += after_ms
        clock.told(BEGAN_MS + ahead_ms + passed_ms, BEGAN_MS + passed_ms + delay_ms)
    behind_ms = BEGAN_MS + ahead_ms - clock.now_ms(BEGAN_MS)
    assert behind_ms == min(delay_ms for _, delay_ms in readings[-READINGS_KEPT:])


# --- where all brokers were started anew


def restarted(ahead_ms: int, *others_ahead_ms: int) -> MessageClock:
    """By the store of this broker, and as the others say, in their order, by theirs."""
    clock = MessageClock()
    clock.go_on(BEGAN_MS + ahead_ms, BEGAN_MS)
    for number, other_ms in enumerate(others_ahead_ms):
        clock.note_peer(f"b{number}", BEGAN_MS + other_ms, BEGAN_MS)
    return clock


@pytest.mark.parametrize(
    ("said_ms", "expected_ms"),
    [
        pytest.param((DAY_MS, 0, 1), 1, id="who is ahead of two others follows the nearer one"),
        pytest.param((-DAY_MS, 0, 1), 0, id="who is behind does, too"),
        pytest.param((0, DAY_MS, 1), 1, id="one other that is ahead moves nobody far"),
        pytest.param((DAY_MS, 0), 0, id="of two the earlier one counts"),
        pytest.param((0, DAY_MS), 0, id="so messages live longer rather than not long enough"),
        pytest.param((DAY_MS,), DAY_MS, id="alone it goes by its own"),
    ],
)
def test_what_most_brokers_say_counts_for_who_leads_first(said_ms: tuple[int, ...], expected_ms: int) -> None:
    clock = restarted(*said_ms)
    assert clock.lead() == expected_ms - said_ms[0]
    assert clock.now_ms(BEGAN_MS) == BEGAN_MS + expected_ms


def test_what_a_primary_has_told_counts_more_than_what_all_others_say_and_so_does_having_led() -> None:
    told, led = restarted(0, DAY_MS, DAY_MS), restarted(0)
    told.told(BEGAN_MS + 5, BEGAN_MS)
    assert told.lead() == 0
    led.lead()
    led.note_peer("b", BEGAN_MS - DAY_MS, BEGAN_MS)
    assert led.lead() == 0


def test_it_says_nothing_that_no_event_or_frame_can_hold() -> None:
    clock = MessageClock()
    assert (clock.now_ms(-5), clock.now_ms(LAST_MS + 5)) == (1, LAST_MS)
    clock.go_on(5, BEGAN_MS)
    assert clock.steady_ms(1) == BEGAN_MS - 4
