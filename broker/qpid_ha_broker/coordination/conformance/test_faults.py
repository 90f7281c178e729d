"""Nobody reaches the coordinator for a while: errors instead of guesses, and all is well afterwards.

These need --coordinator-faults; without, they are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest

from qpid_ha_broker.coordination.conformance.at_once import at_once
from qpid_ha_broker.coordination.conformance.test_lease import GRACE_S, NAME, becomes, hold
from qpid_ha_broker.coordination.conformance.under_test import CLUSTER, NOTES, Faults, UnderTest
from qpid_ha_broker.coordination.conformance.watcher import Watcher
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError, Lease
from qpid_ha_broker.ha.cluster_record import ClusterRecord

LIMIT_S: Final = 6.0
RETURN_S: Final = 60.0
"""From the end of the fault until a call is answered again."""
FIRST: Final = ClusterRecord(CLUSTER, 1, "a", 1, ("a", "b"))
SECOND: Final = ClusterRecord(CLUSTER, 2, "b", 2, ("b",))

CALLS: Final[dict[str, Callable[[Coordinator], object]]] = {
    "read": lambda coordinator: coordinator.read(),
    "compare_and_set": lambda coordinator: coordinator.compare_and_set(FIRST, SECOND),
    "compare_and_set of what is not there": lambda coordinator: coordinator.compare_and_set(SECOND, FIRST),
    "read_note": lambda coordinator: coordinator.read_note(NOTES[0]),
    "replace_note": lambda coordinator: coordinator.replace_note(NOTES[0], "one", "two"),
}


@pytest.fixture
def fault(under_test: UnderTest, faults: Faults | None) -> Iterator[Faults]:
    """Restored before the coordinators are closed."""
    if faults is None:
        pytest.skip("no --coordinator-faults was given")
    yield faults
    faults.restore()
    assert becomes(lambda: is_answered(under_test.connect()), RETURN_S)


def is_answered(coordinator: Coordinator) -> bool:
    """Whether the record can be read."""
    try:
        coordinator.read()
    except CoordinatorError:
        return False
    return True


@pytest.fixture
def used(coordinator: Coordinator) -> Coordinator:
    """One that has connected, and could remember what it read."""
    coordinator.compare_and_set(ClusterRecord(), FIRST)
    coordinator.replace_note(NOTES[0], "", "one")
    assert (coordinator.read(), coordinator.read_note(NOTES[0])) == (FIRST, "one")
    return coordinator


def check_error(call: Callable[[], object]) -> None:
    """The call raises CoordinatorError, in time."""
    assert why_no_error(call) == ""


def why_no_error(call: Callable[[], object]) -> str:
    """What it does instead of raising CoordinatorError in time; empty if it does that."""
    began_s = time.monotonic()
    try:
        answer = call()
    except CoordinatorError as error:
        took_s = time.monotonic() - began_s
        if took_s > LIMIT_S:
            return f"the error came after {took_s:.1f} s"
        return "" if str(error) else "the error says nothing"
    return f"it answered {answer!r:.200}"


def check_errors(coordinator: Coordinator) -> None:
    """Of all calls, at once."""
    problems = at_once([partial(why_no_error, partial(call, coordinator)) for call in CALLS.values()])
    assert {name: problem for name, problem in zip(CALLS, problems, strict=True) if problem} == {}


def test_who_was_connected_gets_errors(used: Coordinator, fault: Faults) -> None:
    fault.cut()
    check_errors(used)


def test_who_was_not_connected_gets_errors(used: Coordinator, under_test: UnderTest, fault: Faults) -> None:
    fault.cut()
    check_errors(under_test.connect())


def test_all_is_well_afterwards(used: Coordinator, other: Coordinator, fault: Faults) -> None:
    other.read()
    fault.cut()
    check_error(used.read)
    fault.restore()

    assert becomes(lambda: is_answered(used), RETURN_S)
    assert used.read() == FIRST
    assert used.compare_and_set(FIRST, SECOND) == (True, SECOND)
    assert becomes(lambda: is_answered(other), RETURN_S)
    assert (other.read(), other.read_note(NOTES[0])) == (SECOND, "one")
    assert other.replace_note(NOTES[0], "one", "two")


def test_a_watch_hears_afterwards_of_a_change(
    used: Coordinator, other: Coordinator, under_test: UnderTest, fault: Faults
) -> None:
    watcher = Watcher(other)
    under_test.on_close(watcher.end)
    assert watcher.sees(FIRST, LIMIT_S)
    calls = watcher.calls
    fault.cut()
    check_error(used.read)
    time.sleep(under_test.settings.session_timeout_s + 0.5)  # a shorter one need not be noticed
    fault.restore()
    assert becomes(lambda: watcher.calls > calls, RETURN_S), "no call, though the coordinator was gone and is back"

    assert becomes(lambda: is_answered(used), RETURN_S)
    used.compare_and_set(FIRST, SECOND)

    assert watcher.sees(SECOND, RETURN_S)


def test_a_lease_is_lost_in_time(leases: UnderTest, fault: Faults) -> None:
    lease = leases.connect().lease("a", NAME)
    hold(leases, lease)
    fault.cut()

    assert becomes(lambda: not lease.is_held(), leases.settings.session_timeout_s + GRACE_S)


def test_a_lease_can_be_had_afterwards(leases: UnderTest, fault: Faults) -> None:
    lease, other = (leases.connect().lease(name, NAME) for name in "ab")
    keeper = hold(leases, lease)
    fault.cut()
    assert becomes(lambda: not lease.is_held(), leases.settings.session_timeout_s + GRACE_S)
    keeper.end()
    check_error(other.try_lock)
    fault.restore()
    lease.release()

    assert becomes(lambda: is_free(other), RETURN_S + leases.settings.session_timeout_s + GRACE_S)
    assert other.is_held()


def is_free(lease: Lease) -> bool:
    """Whether the lease could be taken."""
    try:
        return lease.try_lock()
    except CoordinatorError:
        return False
