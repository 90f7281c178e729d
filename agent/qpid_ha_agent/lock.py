"""The lock as an agent's loop sees it: it never blocks, and it says when the lock has come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from qpid_ha_agent.decision import LockView
from qpid_ha_broker.coordination.coordinator import CoordinatorError, Lease

StartThread = Callable[[Callable[[], object], str], None]
"""Takes the work, and the thread's name."""


def start_thread(work: Callable[[], object], name: str) -> None:
    """In a thread of its own, for which the end of the process does not wait."""
    threading.Thread(target=work, name=name, daemon=True).start()


class PrimaryLock:
    """The promise: `view` is HELD only while the lease is ours, or for at most one check longer.

    One thread at most waits in the kernel. Its wait cannot be interrupted, so a wait that is no longer wanted goes on,
    and what it wins is given back at once, or used if it is wanted again by then. `changed` is called from that thread.
    """

    def __init__(
        self, make_lease: Callable[[], Lease], changed: Callable[[], None], start: StartThread = start_thread
    ) -> None:
        self._make_lease = make_lease
        self._changed = changed
        self._start = start
        self._mutex = threading.Lock()
        self._lease: Lease | None = None
        self._is_lost = False
        self._unwanted: threading.Event | None = None
        """Of the thread that waits; set when nobody wants what it waits for."""
        self._problem: CoordinatorError | None = None

    @property
    def view(self) -> LockView:
        """How we stand to it."""
        with self._mutex:
            if self._lease is not None:
                return LockView.LOST if self._is_lost else LockView.HELD
            waits = self._unwanted is not None and not self._unwanted.is_set()
            return LockView.WAITING if waits else LockView.NONE

    def take_problem(self) -> CoordinatorError | None:
        """Why a wait ended without the lock, once."""
        with self._mutex:
            problem, self._problem = self._problem, None
        return problem

    def try_now(self) -> bool:
        """Take it if it is free. Raises CoordinatorError."""
        lease = self._make_lease()
        if not lease.try_lock():
            return False
        self._keep(lease)
        return True

    def wait_for(self) -> None:
        """Get into the queue for it."""
        with self._mutex:
            if self._unwanted is not None:
                self._unwanted.clear()
                return
            self._unwanted = threading.Event()
            work = partial(self._wait, self._make_lease(), self._unwanted)
        self._start(work, "lock")

    def release(self) -> None:
        """Let it go, or leave the queue. What was lost may hang: that is given back by a thread of its own."""
        with self._mutex:
            lease, self._lease = self._lease, None
            was_lost, self._is_lost = self._is_lost, False
            if self._unwanted is not None:
                self._unwanted.set()
        if lease is not None and was_lost:
            self._start(lease.release, "lost lock")
        elif lease is not None:
            lease.release()

    def check(self) -> None:
        """Renew it if it is still ours; may block where the directory is on a network. Raises CoordinatorError."""
        lease = self._lease
        if lease is None:
            return
        if lease.is_held():
            lease.renew()
        else:
            self.declare_lost(lease)

    def last_renewal(self) -> str:
        """Another text than before: whoever holds it goes on. May block, as `check`. Raises CoordinatorError."""
        return self._make_lease().last_renewal()

    def declare_lost(self, lease: Lease | None = None) -> None:
        """The lease cannot be relied on any more."""
        with self._mutex:
            if self._lease is not None and lease in (None, self._lease):
                self._is_lost = True

    def _wait(self, lease: Lease, unwanted: threading.Event) -> None:
        try:
            while not (lease.acquire(unwanted) and self._keep_if_wanted(lease, unwanted)):
                lease.release()
                if self._leave_if_unwanted(unwanted):
                    return
        except CoordinatorError as error:
            with self._mutex:
                self._unwanted = None
                self._problem = error
        self._changed()

    def _keep_if_wanted(self, lease: Lease, unwanted: threading.Event) -> bool:
        with self._mutex:
            if unwanted.is_set():
                return False
            self._unwanted = None
            self._lease, self._is_lost = lease, False
        return True

    def _leave_if_unwanted(self, unwanted: threading.Event) -> bool:
        """False when it is wanted again by now."""
        with self._mutex:
            if unwanted.is_set():
                self._unwanted = None
            return unwanted.is_set()

    def _keep(self, lease: Lease) -> None:
        with self._mutex:
            self._lease, self._is_lost = lease, False
