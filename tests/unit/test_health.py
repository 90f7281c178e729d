"""What load balancers are told, for each state a broker can be in."""

from __future__ import annotations

import pytest

from qpid_ha_broker.ha.states import State
from qpid_ha_broker.metrics.health import BrokerHealth, is_in_sync, is_live, is_primary, is_ready, is_replica

MEMBERS = ("a", "b")
# live, ready, primary, replica, in-sync of broker `a`, which is in the in-sync set
ANSWERS = {
    State.LOADING: "y----",
    State.STANDALONE: "yyy-y",
    State.CONNECTING: "y----",
    State.CATCHUP: "y----",
    State.OBSERVER: "y----",
    State.READY: "y--yy",
    State.PRIMARY: "yyy-y",
    State.STOPPING: "y----",
}
CHECKS = (is_live, is_ready, is_primary, is_replica, is_in_sync)


def health(state: State, *, failure: str = "", name: str = "a", relays: bool = False) -> BrokerHealth:
    leads = state in (State.PRIMARY, State.STANDALONE)
    lag_s = 0.0 if leads else 0.4 if state is State.READY else None
    return BrokerHealth(name, state, leads, relays, MEMBERS, lag_s, failure)


@pytest.mark.parametrize("state", State)
def test_each_state_has_its_answers(state: State) -> None:
    answers = [check(health(state)) for check in CHECKS]
    assert "".join("y" if answer.yes else "-" for answer in answers) == ANSWERS[state]
    assert all(bool(answer.reason) is not answer.yes for answer in answers)


@pytest.mark.parametrize("state", State)
def test_a_broker_that_has_failed_is_nothing_any_more(state: State) -> None:
    assert not any(check(health(state, failure="the disk is gone")).yes for check in CHECKS)


def test_a_primary_that_hands_over_serves_nobody() -> None:
    leaving = health(State.PRIMARY)._replace(serves=False)
    assert not is_primary(leaving).yes
    assert not is_ready(leaving).yes


@pytest.mark.parametrize("state", [State.PRIMARY, State.STANDALONE])
def test_who_can_confirm_nothing_gets_no_more_clients_and_says_why(state: State) -> None:
    full = health(state)._replace(store_problem="No space left on device")
    for check in (is_primary, is_ready):
        assert not check(full).yes
        assert "No space left on device" in check(full).reason
    assert is_live(full).yes, "to start it again helps nobody"


def test_a_backup_that_relays_does_so_whatever_its_own_disk_is_like() -> None:
    assert is_ready(health(State.READY, relays=True)._replace(store_problem="No space left on device")).yes


def test_a_backup_that_relays_is_ready_for_clients() -> None:
    assert is_ready(health(State.READY, relays=True)).yes
    assert not is_ready(health(State.CATCHUP, relays=True)).yes


def test_a_replica_is_asked_how_late_it_may_be() -> None:
    assert is_replica(health(State.READY), 0.4).yes
    assert not is_replica(health(State.READY), 0.3).yes


def test_a_level_backup_out_of_the_set_is_not_in_sync() -> None:
    assert not is_in_sync(health(State.READY, name="c")).yes
