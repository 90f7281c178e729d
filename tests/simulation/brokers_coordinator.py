"""The coordinator of simulated machines: the directory of `file:`, as it ships, but for the lock's waits.

Who waits for a lock of the kernel's does so in a thread, which a virtual clock has none of: `Leases` says when that
thread would have it. A machine may be cut off from the directory; then each call fails, and after a while its lease is
given to the next one, as a server of NFS does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, CoordinatorError
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from simulation.virtual_time import Schedule

EXPIRES_S: Final = 3.5
"""So long after a machine was cut off, the server lets the next one have what it had locked."""


class LeaseUser(Protocol):
    """A process that asks a coordinator."""

    name: str
    machine: int
    """Its number."""
    is_dead: bool

    def post(self, command: Callable[[], None]) -> None:
        """Have it done when the process gets to it; never, when it is dead by then."""


class Leases:
    """The lease of the agent that may promote: who has it, and who waits for it, in the order in which they asked.

    One that waits has it from the moment when it is its turn, even if its process is stopped then.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.holder: LeaseUser | None = None
        self.lease: SimulatedLease | None = None
        """What its holder has it by; None: it has yet to notice that it is its turn."""
        self.renewal = ""
        """What its holder wrote last; it stays when that one dies."""
        self._waiting: deque[tuple[LeaseUser, Callable[[], None]]] = deque()
        self._cut: dict[int, float] = {}
        """Machines that do not reach the coordinator, and since when."""

    # --- who has it

    def try_for(self, user: LeaseUser, lease: SimulatedLease, *, is_due: bool = False) -> bool:
        """Have it if nobody has, or if it is its turn."""
        if self.holder is None or (is_due and self.holder is user and self.lease is None):
            self.holder, self.lease = user, lease
        return self.lease is lease

    def wait(self, user: LeaseUser, is_due: Callable[[], None]) -> None:
        """Get in line: `is_due` is called in its process, which has the lease then."""
        self._waiting.append((user, is_due))
        self._next()

    def release(self, lease: SimulatedLease) -> None:
        """Let the next one have it."""
        if self.lease is lease:
            self.holder, self.lease, self.renewal = None, None, ""
            self._next()

    def is_turn_of(self, user: LeaseUser) -> bool:
        """It has it, and has not noticed yet."""
        return self.holder is user and self.lease is None

    def pass_on(self, user: LeaseUser) -> None:
        """It was its turn, and it does not want it any more."""
        if self.is_turn_of(user):
            self.holder = None
            self._next()

    def died(self, user: LeaseUser) -> None:
        """The kernel lets go of what it had."""
        self._waiting = deque([each for each in self._waiting if each[0] is not user])
        if self.holder is user:
            self.holder = self.lease = None
            self._next()

    def take_away(self) -> None:
        """Somebody removes the lock's file, or its server begins anew: whoever waits has it next."""
        self.holder = self.lease = None
        self._next()

    def _next(self) -> None:
        if self.holder is None and self._waiting:
            self.holder, is_due = self._waiting.popleft()
            self._schedule.after(0.0, partial(self.holder.post, is_due))

    # --- who reaches it

    def is_cut(self, machine: int) -> bool:
        """Whether it does not."""
        return machine in self._cut

    def cut(self, machine: int) -> None:
        """From now on it does not."""
        self._cut[machine] = since_s = self._schedule.now_s

        def expire() -> None:
            if self._cut.get(machine) == since_s and self.holder is not None and self.holder.machine == machine:
                self.take_away()

        self._schedule.after(EXPIRES_S, expire)

    def mend(self, machine: int) -> None:
        self._cut.pop(machine, None)


class SimulatedCoordinator(FileCoordinator):
    """As one process has it."""

    def __init__(self, directory: Path, user: LeaseUser, leases: Leases) -> None:
        super().__init__(directory)
        self._user = user
        self._leases = leases

    def check_reached(self) -> None:
        """Raises CoordinatorError."""
        if self._leases.is_cut(self._user.machine):
            raise CoordinatorError("the shared directory does not answer")

    def read(self) -> ClusterRecord:
        self.check_reached()
        return super().read()

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        self.check_reached()
        return super().compare_and_set(expected, wanted)

    def read_note(self, name: str) -> str:
        self.check_reached()
        return super().read_note(name)

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        self.check_reached()
        return super().replace_note(name, expected, wanted)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """It says nothing: who uses it looks by itself."""
        return lambda: None

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> SimulatedLease:  # type: ignore[override]
        return SimulatedLease(self, holder, self._user, self._leases)


class SimulatedLease:
    """See `coordinator.Lease`. Its `acquire` is called when it is its turn (`Leases.wait`)."""

    def __init__(self, coordinator: SimulatedCoordinator, holder: str, user: LeaseUser, leases: Leases) -> None:
        self._coordinator = coordinator
        self._holder = holder
        self._user = user
        self._leases = leases
        self._renewals = 0

    def try_lock(self) -> bool:
        self._coordinator.check_reached()
        return self._leases.try_for(self._user, self) and self._sign()

    def acquire(self, cancel: threading.Event) -> bool:
        is_ours = self._leases.try_for(self._user, self, is_due=True)
        if cancel.is_set():
            self.release()
            return False
        return is_ours and self._sign()

    def _sign(self) -> bool:
        self._leases.renewal = f"{self._holder} {self._user.name} {self._renewals}"
        return True

    def is_held(self) -> bool:
        return self._leases.lease is self

    def renew(self) -> None:
        if self.is_held():
            self._coordinator.check_reached()
            self._renewals += 1
            self._sign()

    def last_renewal(self) -> str:
        self._coordinator.check_reached()
        return self._leases.renewal

    def holder(self) -> str:
        user = self._leases.holder
        return "" if user is None else user.name

    def release(self) -> None:
        self._leases.release(self)
