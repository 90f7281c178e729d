"""Logins by password over HTTP, without a broker: how soon another one may be tried, and how long a session counts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_broker.server.http.page_sessions import IDLE_S, LONGEST_S, SESSIONS_MAX, PageSession, PageSessions
from qpid_ha_broker.server.http.password_guesses import (
    ENTRIES_MAX,
    FIRST_WAIT_S,
    FORGIVEN_S,
    FREE_OF_ADDRESS,
    FREE_OF_USER,
    LONGEST_WAIT_S,
    PasswordGuesses,
)

OLGA = UserLogin.of("olga", "geheim", bytes(16), 4096)


class Clock:
    """Time as a test has it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


# --- guesses


def guess(guesses: PasswordGuesses, times: int, user: str = "olga", address: str = "192.0.2.1") -> list[float]:
    return [guesses.begin(user, address) for _ in range(times)]


def test_slips_cost_nothing_and_then_each_wrong_password_costs_twice_as_long() -> None:
    clock = Clock()
    guesses = PasswordGuesses(clock)
    assert guess(guesses, FREE_OF_USER) == [0.0] * FREE_OF_USER
    waits = []
    for _ in range(8):
        waits.append(guesses.begin("olga", "192.0.2.1"))
        clock.now_s += waits[-1]
        assert guesses.begin("olga", "192.0.2.1") == 0
    assert waits == [FIRST_WAIT_S * 2**times for times in range(5)] + [LONGEST_WAIT_S] * 3


def test_many_at_once_get_no_more_than_one_after_the_other() -> None:
    guesses = PasswordGuesses(Clock())
    assert sum(wait_s == 0 for wait_s in guess(guesses, 100)) == FREE_OF_USER


def test_a_right_password_is_hindered_nowhere_else_and_forgives() -> None:
    clock = Clock()
    guesses = PasswordGuesses(clock)
    guess(guesses, FREE_OF_USER)
    assert guesses.begin("olga", "192.0.2.2") == 0
    clock.now_s += FIRST_WAIT_S
    assert guesses.begin("olga", "192.0.2.1") == 0
    guesses.forgive("olga", "192.0.2.1")
    assert guess(guesses, FREE_OF_USER) == [0.0] * FREE_OF_USER


def test_who_tries_one_password_with_many_users_is_slowed_down_too() -> None:
    guesses = PasswordGuesses(Clock())
    waits = [guesses.begin(f"user{number}", "192.0.2.1") for number in range(FREE_OF_ADDRESS + 1)]
    assert waits == [0.0] * FREE_OF_ADDRESS + [FIRST_WAIT_S]


def test_a_machine_with_a_network_of_ipv6_is_one_address() -> None:
    guesses = PasswordGuesses(Clock())
    assert sum(guesses.begin("olga", f"2001:db8::{number:x}") == 0 for number in range(1, 99)) == FREE_OF_USER
    assert guesses.begin("olga", "2001:db8:0:1::1") == 0


def test_all_is_forgotten_after_a_while() -> None:
    clock = Clock()
    guesses = PasswordGuesses(clock)
    guess(guesses, 50)
    clock.now_s += FORGIVEN_S + 1
    assert guess(guesses, FREE_OF_USER) == [0.0] * FREE_OF_USER


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 3)), max_size=200))
def test_what_is_remembered_is_bounded(tries: list[tuple[int, int]]) -> None:
    clock = Clock()
    guesses = PasswordGuesses(clock)
    for address, user in [*tries, *((number, 0) for number in range(10_000, 10_000 + 3))]:
        clock.now_s += 0.01
        assert 0 <= guesses.begin(f"user{user}", f"host{address}") <= LONGEST_WAIT_S
    assert len(guesses._wrong) <= ENTRIES_MAX


def test_who_is_quiet_longest_is_forgotten_first() -> None:
    clock = Clock()
    guesses = PasswordGuesses(clock)
    guess(guesses, FREE_OF_USER)
    for number in range(ENTRIES_MAX):
        clock.now_s += 0.001
        guesses.begin("user", f"host{number}")
    assert len(guesses._wrong) == ENTRIES_MAX
    assert guesses.begin("olga", "192.0.2.1") == 0


# --- sessions


def sessions(clock: Clock) -> PageSessions:
    numbers = itertools.count()
    return PageSessions(clock, lambda: f"secret{next(numbers)}")


def always(_: PageSession) -> bool:
    return True


def test_a_session_is_its_users_until_he_logs_out() -> None:
    table = sessions(Clock())
    token = table.begin("olga", OLGA)
    found = table.find(token, always)
    assert found is not None
    assert (found.user, found.login) == ("olga", OLGA)
    assert table.find("session.other", always) is None
    table.end(token)
    table.end(token)
    assert table.find(token, always) is None


@pytest.mark.parametrize(("step_s", "lasts_s"), [(IDLE_S, 0.0), (IDLE_S - 1, LONGEST_S - IDLE_S)])
def test_a_session_ends_when_it_is_not_used_and_after_a_day_at_work(step_s: float, lasts_s: float) -> None:
    clock = Clock()
    table = sessions(clock)
    token, began_s = table.begin("olga", None), clock.now_s
    while table.find(token, always) is not None:
        clock.now_s += step_s
    assert lasts_s < clock.now_s - began_s <= LONGEST_S + step_s
    clock.now_s = began_s
    assert table.find(token, always) is None


def test_a_session_ends_with_the_password_that_began_it() -> None:
    table = sessions(Clock())
    token = table.begin("olga", OLGA)
    by_name = {"olga": OLGA}

    def is_current(session: PageSession) -> bool:
        return by_name.get(session.user) == session.login

    assert table.find(token, is_current) is not None
    by_name["olga"] = UserLogin.of("olga", "another", bytes(16), 4096)
    assert table.find(token, is_current) is None
    by_name["olga"] = OLGA
    assert table.find(token, is_current) is None


def test_there_is_a_bounded_number_of_sessions_and_the_one_unused_longest_goes() -> None:
    clock = Clock()
    table = sessions(clock)
    tokens = [table.begin(f"user{number}", None) for number in range(SESSIONS_MAX)]
    assert table.find(tokens[0], always) is not None
    table.begin("one more", None)
    assert table.find(tokens[0], always) is not None
    assert table.find(tokens[1], always) is None
