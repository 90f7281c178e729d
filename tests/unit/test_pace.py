"""Stories about how much a backup that catches up may have while clients work."""

from __future__ import annotations

from qpid_ha_broker.ha.pace import BUSY_EVENTS, BUSY_S, CHUNK_PER_EVENT, LEAST_CHUNK, RATE_PER_S, CatchUpPace

CHUNK = 1000


def test_with_nobody_else_there_is_no_limit() -> None:
    pace = CatchUpPace()
    for _ in range(10):
        pace.turn(1.0, events=0)
        assert pace.allowance(CHUNK) == CHUNK
        pace.spend(CHUNK)


def test_a_turn_in_which_a_few_clients_wrote_is_not_made_long() -> None:
    pace = CatchUpPace()
    pace.turn(1.0, events=3)
    assert pace.allowance(CHUNK) == LEAST_CHUNK + 3 * CHUNK_PER_EVENT


def test_while_clients_are_busy_the_rate_is_kept_over_time() -> None:
    pace = CatchUpPace()
    given, clock_s = 0, 100.0
    pace.turn(clock_s, BUSY_EVENTS)
    pace.spend(10**9)  # what was saved before does not count
    for _ in range(1000):
        clock_s += 0.001
        pace.turn(clock_s, events=100)
        allowed = pace.allowance(CHUNK)
        given += allowed
        pace.spend(allowed)
    assert 0.95 * RATE_PER_S <= given <= 1.01 * RATE_PER_S


def test_what_was_not_used_is_not_saved_for_long() -> None:
    pace = CatchUpPace()
    pace.turn(1.0, BUSY_EVENTS)
    pace.turn(100.0, BUSY_EVENTS)
    assert pace.allowance(10**9) <= BUSY_S * RATE_PER_S


def test_when_clients_are_quiet_again_the_limit_is_gone() -> None:
    pace = CatchUpPace()
    pace.turn(1.0, BUSY_EVENTS)
    pace.spend(10**9)
    assert pace.allowance(CHUNK) == 0
    pace.turn(1.0 + 2 * BUSY_S, events=0)
    assert pace.allowance(CHUNK) == CHUNK
