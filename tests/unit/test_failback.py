"""Which backup a primary hands over to because it is preferred, and when: the agent's part of `ha.failback`."""

from __future__ import annotations

import json

import pytest

from qpid_ha_agent.failback import LONGEST_DELAY_S, STEADY_S, Failback, read_priorities, with_priority
from qpid_ha_config.settings import ActivationSettings

WISHES = {"a": 10, "b": 5}
LOOK_S = 0.5


def failback(name: str = "c", delay_s: float = 30.0, policy: str = "preferred") -> Failback:
    one = Failback(name, ActivationSettings(failback=policy, failback_delay_s=delay_s))
    one.note_primary(name, WISHES, 0.0)
    return one


def watch(one: Failback, ready: set[str], from_s: float, until_s: float) -> list[str]:
    """Whom it names at each look."""
    named = []
    for look in range(round((until_s - from_s) / LOOK_S) + 1):
        now_s = from_s + look * LOOK_S
        one.note_backups(ready, now_s)
        named.append(one.target(now_s))
    return named


def test_a_preferred_backup_is_named_once_it_was_ready_for_all_of_the_delay() -> None:
    one = failback()
    assert set(watch(one, {"a", "b"}, 100.0, 129.5)) == {""}
    assert watch(one, {"a", "b"}, 130.0, 130.0) == ["a"]


def test_a_gap_counts_from_the_beginning() -> None:
    one = failback()
    watch(one, {"a"}, 100.0, 129.0)
    watch(one, set(), 129.5, 129.5)
    assert set(watch(one, {"a"}, 130.0, 159.5)) == {""}


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The agent, or its machine, slept."""
    one = failback()
    watch(one, {"a"}, 100.0, 101.0)
    assert set(watch(one, {"a"}, 400.0, 429.5)) == {""}
    watch(one, {"a"}, 430.0, 460.0)
    assert one.target(500.0) == ""  # nor is an old look good for anything


def test_the_second_best_does_not_wait_for_one_that_is_not_there() -> None:
    assert watch(failback(), {"b"}, 100.0, 130.0)[-1] == "b"


def test_the_second_best_is_not_made_primary_for_the_moment_until_the_best_may_be_it() -> None:
    one = failback()
    assert set(watch(one, {"b"}, 100.0, 129.5)) == {""}
    assert set(watch(one, {"a", "b"}, 130.0, 159.5)) == {""}
    assert watch(one, {"a", "b"}, 160.0, 160.0) == ["a"]


@pytest.mark.parametrize("wishes", [{}, {"c": 10, "a": 10}, {"c": 10, "a": 9}, {"z": 10}])
def test_without_a_higher_priority_nobody_is_named(wishes: dict[str, int]) -> None:
    one = failback()
    one.note_primary("c", wishes, 0.0)
    assert set(watch(one, {"a", "b"}, 0.0, 100.0)) == {""}


def test_who_is_to_stay_names_nobody() -> None:
    assert set(watch(failback(policy="stay"), {"a"}, 0.0, 100.0)) == {""}


def test_one_that_was_primary_for_a_short_time_waits_twice_as_long_each_time_up_to_an_hour() -> None:
    one, now_s, delays = failback(), 1000.0, []
    one.note_primary("c", WISHES, 0.0)
    for _ in range(9):
        one.note_primary("a", WISHES, now_s)
        one.note_primary("c", WISHES, now_s + STEADY_S - 1)
        now_s += STEADY_S
        delays.append(one.delay_s("a"))
    assert delays == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, LONGEST_DELAY_S, LONGEST_DELAY_S, LONGEST_DELAY_S]
    assert one.delay_s("b") == 30.0

    one.note_primary("a", WISHES, 10_000.0)
    one.note_primary("c", WISHES, 10_000.0 + STEADY_S)
    assert one.delay_s("a") == 30.0  # it has proved itself


def test_one_that_made_way_for_a_better_one_does_not_wait_longer() -> None:
    one = failback()
    one.note_primary("b", WISHES, 1000.0)
    one.note_primary("a", WISHES, 1030.0)
    one.note_primary("c", WISHES, 1040.0)
    assert (one.delay_s("b"), one.delay_s("a")) == (30.0, 60.0)


def test_who_led_when_the_agent_came_may_have_led_for_long() -> None:
    one = Failback("c", ActivationSettings(failback="preferred"))
    one.note_primary("a", WISHES, 100.0)
    one.note_primary("c", WISHES, 101.0)
    assert one.delay_s("a") == 30.0


def test_another_primary_begins_the_delay_anew() -> None:
    one = failback()
    watch(one, {"a"}, 100.0, 129.0)
    one.note_primary("b", WISHES, 129.1)
    one.note_primary("c", WISHES, 129.2)
    assert set(watch(one, {"a"}, 129.5, 158.5)) == {""}


def test_a_refused_switchover_is_not_asked_for_again_at_once() -> None:
    one = failback()
    watch(one, {"a"}, 0.0, 30.0)
    one.refused("a")
    assert set(watch(one, {"a"}, 30.5, 90.0)) == {""}
    assert watch(one, {"a"}, 90.5, 90.5) == ["a"]


# --- what agents tell each other


def test_each_broker_puts_its_own_priority_into_the_note_and_leaves_the_others() -> None:
    note = with_priority(with_priority("", "a", 10), "b", 5)
    assert json.loads(note) == {"a": 10, "b": 5}
    assert with_priority(note, "a", 10) == note
    assert read_priorities(with_priority(note, "a", 0)) == {"b": 5}
    assert with_priority("", "a", 0) == ""


@pytest.mark.parametrize("note", ["{", "[]", "null", "[" * 100_000, '{"a": true, "b": "5", "c": -1, "d": 1001}'])
def test_a_note_that_cannot_be_understood_prefers_nobody_and_is_put_right(note: str) -> None:
    assert read_priorities(note) == {}
    assert read_priorities(with_priority(note, "a", 7)) == {"a": 7}
