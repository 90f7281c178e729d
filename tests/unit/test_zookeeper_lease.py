"""Until when a lease in ZooKeeper is certain, by the times at which a majority of the servers agreed to something."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.coordination.zookeeper_lease import LeaseTerm

TIMEOUT_S = 4.0
TICK_S = TIMEOUT_S / 2
PING_S = TIMEOUT_S / 3


def test_at_first_nothing_is_certain_but_that_the_process_sent_pings() -> None:
    term = LeaseTerm(TIMEOUT_S, 100.0)
    assert 101.5 < term.end_s < 102.0
    assert 100.0 < term.next_s < term.end_s - 0.5


def test_each_answer_proves_what_was_asked_before() -> None:
    term = LeaseTerm(TIMEOUT_S, 100.0)
    term.answered(101.0)
    assert term.end_s == 104.0
    term.answered(102.4)
    assert term.end_s == 105.0


def test_an_answer_soon_after_another_proves_no_more_than_that() -> None:
    term = LeaseTerm(TIMEOUT_S, 100.0)
    term.answered(101.0)
    for at_s in (101.1, 101.5, 101.9):
        term.answered(at_s)
    assert term.end_s == 104.0


def test_who_asks_when_it_is_time_to_never_loses_it() -> None:
    term = LeaseTerm(TIMEOUT_S, 100.0)
    for _ in range(20):
        asked_at_s = term.next_s
        assert asked_at_s + 0.6 < term.end_s  # another server can be asked before it ends
        term.answered(asked_at_s)


@given(st.lists(st.floats(0.0, 3.0), max_size=20), st.floats(0.0, 1.0))
def test_it_ends_no_later_than_at_a_leader_that_hears_as_late_as_can_be(pauses_s: list[float], phase: float) -> None:
    """The server that is asked tells the leader every half tick, at some phase, of pings and requests until then; then
    it dies. What it had to tell with the last request is all that counts."""
    at_s, times_s = 1000.0, []
    for pause_s in [0.0, *pauses_s]:
        at_s += pause_s
        times_s.append(at_s)
    term = LeaseTerm(TIMEOUT_S, times_s[0])
    asked = [times_s[0]]
    for time_s in times_s[1:]:
        if time_s >= term.end_s:  # lost: nobody asks any more
            break
        term.answered(time_s)
        asked.append(time_s)

    told_at_s = asked[-1] - phase * TICK_S / 2  # the last report before the last answer
    pings = [time_s - PING_S for time_s in asked[:1]]
    heard_s = max([time_s for time_s in asked + pings if time_s <= told_at_s], default=asked[0] - PING_S - TICK_S / 2)

    assert term.end_s <= heard_s + TIMEOUT_S + 1e-6
