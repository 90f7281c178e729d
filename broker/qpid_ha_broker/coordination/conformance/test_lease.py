"""A lease: held by one at a time, handed on when it is let go, and taken from who is dead or asleep."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain, pairwise
from typing import Final

from qpid_ha_broker.coordination.conformance.at_once import at_once
from qpid_ha_broker.coordination.conformance.under_test import UnderTest
from qpid_ha_broker.coordination.conformance.worker import Interval, LeaseKeeper, contest
from qpid_ha_broker.coordination.coordinator import Lease

NAME, OTHER_NAME = "conformance", "conformance-other"
ROUNDS: Final = 15
THREADS, PROCESSES = 4, 3
PROMPT_S: Final = 1.5
GRACE_S: Final = 2.0
"""Beyond the session timeout."""
LOOK_S: Final = 0.02


def becomes(is_so: Callable[[], bool], timeout_s: float) -> bool:
    """Whether `is_so` becomes true within that time."""
    end_s = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > end_s:
            return False
        time.sleep(LOOK_S)
    return True


class Waiting:
    """A thread that waits for a lease."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.cancel = threading.Event()
        self._outcome: list[bool] = []
        self._thread = threading.Thread(target=self._acquire, name="waiting", daemon=True)
        self._thread.start()

    def outcome(self, timeout_s: float) -> bool | None:
        """None: it still waits."""
        self._thread.join(timeout_s)
        return self._outcome[0] if self._outcome else None

    def _acquire(self) -> None:
        self._outcome.append(self.lease.acquire(self.cancel))


def hold(leases: UnderTest, lease: Lease) -> LeaseKeeper:
    """Take it, and renew it until the test ends."""
    assert lease.try_lock()
    keeper = LeaseKeeper(lease)
    leases.on_close(keeper.end)
    return keeper


def check_held_by_one(intervals: list[Interval], times: int) -> None:
    """No two of them overlap, and each of the contestants had it each time."""
    overlaps = [(first, second) for first, second in pairwise(sorted(intervals)) if second[0] < first[1]]
    assert overlaps == [], "two had it at once"
    assert len(intervals) == times


def test_a_lease_that_nobody_has_is_free(leases: UnderTest) -> None:
    lease = leases.connect().lease("a", NAME)

    assert not lease.is_held()
    assert lease.holder() == ""
    assert lease.try_lock()
    assert lease.is_held()


def test_who_has_it_may_take_it_again(leases: UnderTest) -> None:
    lease = leases.connect().lease("a", NAME)

    assert lease.try_lock()
    assert lease.try_lock()
    assert lease.acquire(threading.Event())
    lease.release()
    assert not lease.is_held()


def test_nobody_else_gets_it_meanwhile(leases: UnderTest) -> None:
    coordinator, other, worker = leases.connect(), leases.connect(), leases.worker()
    hold(leases, coordinator.lease("a", NAME))
    same, another = coordinator.lease("b", NAME), other.lease("c", NAME)

    assert not same.try_lock()
    assert not another.try_lock()
    assert worker.tell("try_lock", "d", NAME) is False
    assert not same.is_held()
    assert not another.is_held()


def test_of_many_threads_one_has_it_at_a_time(leases: UnderTest) -> None:
    shared = leases.connect()
    own = [shared.lease("a", NAME), shared.lease("b", NAME)]
    own += [leases.connect().lease(name, NAME) for name in "cd"]

    held = at_once([partial(contest, lease, ROUNDS) for lease in own])
    intervals = list(chain.from_iterable(held))

    check_held_by_one(intervals, THREADS * ROUNDS)


def test_of_many_processes_one_has_it_at_a_time(leases: UnderTest) -> None:
    workers = [leases.worker() for _ in range(PROCESSES)]
    for worker in workers:
        worker.tell("ready")
    for number, worker in enumerate(workers):
        worker.ask("contest", f"process-{number}", NAME, ROUNDS)

    intervals = [(begin_s, end_s) for worker in workers for begin_s, end_s in worker.answer()]

    check_held_by_one(intervals, PROCESSES * ROUNDS)


def test_of_many_who_try_at_once_one_gets_it(leases: UnderTest) -> None:
    own = [leases.connect().lease(str(number), NAME) for number in range(THREADS)]
    for _ in range(ROUNDS):
        taken = at_once([lease.try_lock for lease in own])
        winners = [lease for lease, is_taken in zip(own, taken, strict=True) if is_taken]
        assert len(winners) == 1
        winners[0].release()


def test_who_waits_has_it_soon_after_it_was_let_go(leases: UnderTest) -> None:
    first, second = (leases.connect().lease(name, NAME) for name in "ab")
    assert first.try_lock()
    for _ in range(4):
        waiting = Waiting(second)
        assert waiting.outcome(0.1) is None
        first.release()
        assert waiting.outcome(PROMPT_S) is True
        assert second.is_held()
        assert not first.is_held()
        first, second = second, first


def test_a_lease_that_was_let_go_is_free_at_once(leases: UnderTest) -> None:
    first, second = (leases.connect().lease(name, NAME) for name in "ab")
    for _ in range(4):
        assert first.try_lock()
        first.release()
        assert second.try_lock()
        second.release()


def test_the_holder_is_shown(leases: UnderTest) -> None:
    worker, watching = leases.worker(), leases.connect().lease("b", NAME)
    worker.tell("try_lock", "broker-é", NAME)

    assert becomes(lambda: "broker-é" in watching.holder(), PROMPT_S)

    worker.tell("release", NAME)
    assert becomes(lambda: watching.holder() == "", PROMPT_S)


def test_leases_of_different_names_are_different_leases(leases: UnderTest) -> None:
    coordinator, other = leases.connect(), leases.connect()
    first, second = coordinator.lease("a", NAME), other.lease("b", OTHER_NAME)

    assert first.try_lock()
    assert second.try_lock()
    second.release()
    assert first.is_held()
    assert "a" in first.holder()
    assert second.holder() == ""


def test_a_lease_that_is_renewed_stays_longer_than_its_session(leases: UnderTest) -> None:
    first, second = (leases.connect().lease(name, NAME) for name in "ab")
    hold(leases, first)

    assert not becomes(lambda: not first.is_held() or second.try_lock(), leases.settings.session_timeout_s + 0.5)


def test_who_no_longer_wants_it_does_not_have_it(leases: UnderTest) -> None:
    first, second, third = (leases.connect().lease(name, NAME) for name in "abc")
    assert first.try_lock()
    waiting = Waiting(second)
    assert waiting.outcome(0.1) is None

    waiting.cancel.set()
    waiting.outcome(0.3)  # some end here, and some when the lease comes
    first.release()

    assert waiting.outcome(PROMPT_S) is False
    assert not second.is_held()
    assert becomes(third.try_lock, PROMPT_S)


def test_who_never_wanted_it_does_not_have_it(leases: UnderTest) -> None:
    first, second = (leases.connect().lease(name, NAME) for name in "ab")
    cancel = threading.Event()
    cancel.set()

    assert first.acquire(cancel) is False
    assert not first.is_held()
    assert second.try_lock()


def test_closing_a_coordinator_frees_its_leases(leases: UnderTest) -> None:
    closed, other = leases.connect(), leases.connect().lease("c", NAME)
    first, second = closed.lease("a", NAME), closed.lease("b", OTHER_NAME)
    assert first.try_lock()
    assert second.try_lock()

    closed.close()

    assert not first.is_held()
    assert becomes(other.try_lock, PROMPT_S)
    assert becomes(leases.connect().lease("c", OTHER_NAME).try_lock, PROMPT_S)


def test_who_is_dead_no_longer_has_it(leases: UnderTest) -> None:
    worker, lease = leases.worker(), leases.connect().lease("b", NAME)
    assert worker.tell("try_lock", "a", NAME) is True
    waiting = Waiting(lease)
    assert waiting.outcome(0.1) is None

    worker.kill()

    assert waiting.outcome(leases.settings.session_timeout_s + GRACE_S) is True
    assert lease.is_held()


def test_who_sleeps_loses_it_or_is_seen_to_sleep(leases: UnderTest) -> None:
    worker, coordinator = leases.worker(), leases.connect()
    assert worker.tell("try_lock", "a", NAME) is True
    lease, watching = coordinator.lease("b", NAME), coordinator.lease("c", NAME)
    awake = watching.last_renewal()
    is_shown = becomes(lambda: watching.last_renewal() != awake, 2 * PROMPT_S)
    waiting = Waiting(lease)
    assert waiting.outcome(0.1) is None

    worker.signal(signal.SIGSTOP)
    time.sleep(LOOK_S)
    asleep = watching.last_renewal()
    got_it = waiting.outcome(leases.settings.session_timeout_s + GRACE_S)

    if got_it:
        worker.ask("is_held", NAME)  # the first thing that it does when it wakes up
        worker.signal(signal.SIGCONT)
        assert worker.answer() is False
        assert lease.is_held()
    else:
        assert is_shown, "it is not taken from who sleeps, and nobody can see that he does"
        assert watching.last_renewal() == asleep != ""
        waiting.cancel.set()
        worker.signal(signal.SIGCONT)
        assert becomes(lambda: watching.last_renewal() != asleep, PROMPT_S)
        worker.tell("release", NAME)
        assert waiting.outcome(PROMPT_S) is False
