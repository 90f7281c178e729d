"""The coordinator of simulated machines: the directory of `file:`, as it ships, but for the lock's waits.

Who waits for a lock of the kernel's does so in a thread, which a virtual clock has none of: `Leases` says when that
thread would have it. A process may be cut off from the directory; then each call fails, and after a while its lease is
given to the next one, as a server of NFS does. Or the lock rests on sessions, as those of ensembles do (`leases`).
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from qpid_ha_agent.decision import LockView
from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, CoordinatorError
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from simulation.machines.leases import HEARTBEATS, SessionLock
from simulation.virtual_time import Schedule

WAITER_LOOKS_S: Final = 0.02
"""So soon one that waits finds that its session has the lock."""
EXPIRES_S: Final = 3.5
"""So long after a process was cut off, the server lets the next one have what it had locked."""


class LeaseUser(Protocol):
    """A process that asks a coordinator."""

    name: str
    is_dead: bool

    @property
    def is_stopped(self) -> bool:
        """It does nothing, and will go on."""

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
        self.is_away = False
        """Nobody reaches it. It will know what it knew."""
        self._cut: dict[str, float] = {}
        """Processes, by name, that do not reach it, and since when."""

    @property
    def noticed_s(self) -> float:
        """So late its holder may hear that it was taken away, for all it can do."""
        return 0.0

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

    def is_held(self, lease: SimulatedLease) -> bool:
        """Whether its holder may rely on it."""
        return self.lease is lease

    def release(self, lease: SimulatedLease) -> None:
        """Let the next one have it."""
        if self.lease is lease:
            self.holder, self.lease, self.renewal = None, None, ""
            self._next()

    def sign(self, renewal: str) -> None:
        """Its holder goes on."""
        self.renewal = renewal

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

    def expire_of(self, process: LeaseUser) -> None:
        """The coordinator ends the session of a process that lives and is connected; a kernel knows of none."""

    def lose_all(self) -> None:
        """The coordinator begins anew, and knows of nobody."""
        self.take_away()

    def _next(self) -> None:
        if self.holder is None and self._waiting:
            self.holder, is_due = self._waiting.popleft()
            self._schedule.after(0.0, partial(self.holder.post, is_due))

    # --- who reaches it

    def is_cut(self, name: str) -> bool:
        """Whether the process of that name does not."""
        return self.is_away or name in self._cut

    def cut(self, *names: str) -> None:
        """From now on they do not."""
        since_s = self._schedule.now_s
        self._cut |= dict.fromkeys(names, since_s)

        def expire() -> None:
            if self.holder is not None and self.holder.name in names and self._cut.get(self.holder.name) == since_s:
                self.take_away()

        self._schedule.after(EXPIRES_S, expire)

    def mend(self, *names: str) -> None:
        for name in names:
            self._cut.pop(name, None)


class SessionUser:
    """A process, as a lock that rests on sessions knows it."""

    def __init__(self, process: LeaseUser, leases: SessionLeases) -> None:
        self.process = process
        self.lease: SimulatedLease | None = None
        """What it has the lock by; None: it has yet to notice that it is its turn, or has none."""
        self._leases = leases

    @property
    def is_hanging(self) -> bool:
        return self.process.is_stopped

    @property
    def is_cut(self) -> bool:
        return self._leases.is_cut(self.process.name)

    @property
    def has_power(self) -> bool:
        return not self.process.is_dead


class SessionLeases(Leases):
    """As `Leases`, with a lock that the coordinator takes from whoever is silent: nobody need write anything."""

    def __init__(self, schedule: Schedule, draw: random.Random, timeout_s: float) -> None:
        super().__init__(schedule)
        self.sessions = SessionLock(schedule, draw, timeout_s, lambda: self.is_away)
        self._users: dict[LeaseUser, SessionUser] = {}

    @property
    def noticed_s(self) -> float:
        return self.sessions.timeout_s / HEARTBEATS

    def _user(self, process: LeaseUser) -> SessionUser:
        """With a session, from when it asks first."""
        if process not in self._users:
            user = self._users[process] = SessionUser(process, self)
            self.sessions.join([user])
        return self._users[process]

    @property
    def holder(self) -> LeaseUser | None:
        """Whose session has it at the coordinator."""
        return next((process for process, user in self._users.items() if self.sessions.has_it(user)), None)

    @holder.setter
    def holder(self, _: LeaseUser | None) -> None:
        """Sessions say who it is."""

    def try_for(self, process: LeaseUser, lease: SimulatedLease, *, is_due: bool = False) -> bool:
        user = self._user(process)
        if self._has(user) or self.sessions.try_now(user):
            user.lease = lease
        return user.lease is lease

    def _has(self, user: SessionUser) -> bool:
        """As far as its process can know."""
        self.sessions.check(user)
        return self.sessions.view_of(user) is LockView.HELD

    def wait(self, process: LeaseUser, is_due: Callable[[], None]) -> None:
        user = self._user(process)
        user.lease = None
        self._look(user, is_due)

    def _look(self, user: SessionUser, is_due: Callable[[], None]) -> None:
        """Who waits asks for it until it is there, whatever becomes of his session."""
        if not user.has_power:
            return
        self.sessions.wait_for(user)
        if self._has(user):
            user.process.post(is_due)
        else:
            self._schedule.after(WAITER_LOOKS_S, partial(self._look, user, is_due))

    def is_held(self, lease: SimulatedLease) -> bool:
        user = self._user(lease.user)
        return user.lease is lease and self._has(user)

    def release(self, lease: SimulatedLease) -> None:
        user = self._user(lease.user)
        if user.lease is lease:
            user.lease = None
            self.sessions.release(user)

    def is_turn_of(self, process: LeaseUser) -> bool:
        user = self._user(process)
        return user.lease is None and self._has(user)

    def pass_on(self, process: LeaseUser) -> None:
        if self.is_turn_of(process):
            self.sessions.release(self._user(process))

    def died(self, process: LeaseUser) -> None:
        """Nobody tells the coordinator: it hears nothing of it any more."""

    def take_away(self) -> None:
        """The coordinator gives its session up before its time."""
        holder = self.holder
        if holder is not None:
            self.sessions.expire(self._users[holder])

    def expire_of(self, process: LeaseUser) -> None:
        user = self._users.get(process)
        if user is not None:
            self.sessions.expire(user)

    def lose_all(self) -> None:
        self.sessions.lose_all()

    def sign(self, renewal: str) -> None:
        """Nobody looks at it."""

    def cut(self, *names: str) -> None:
        self._cut |= dict.fromkeys(names, self._schedule.now_s)


class SimulatedCoordinator(FileCoordinator):
    """As one process has it."""

    def __init__(self, directory: Path, user: LeaseUser, leases: Leases) -> None:
        super().__init__(directory)
        self._user = user
        self._leases = leases

    def check_reached(self) -> None:
        """Raises CoordinatorError."""
        if self._leases.is_cut(self._user.name):
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
        self.user = user
        self._coordinator = coordinator
        self._holder = holder
        self._leases = leases
        self._renewals = 0

    def try_lock(self) -> bool:
        self._coordinator.check_reached()
        return self._leases.try_for(self.user, self) and self._sign()

    def acquire(self, cancel: threading.Event) -> bool:
        is_ours = self._leases.try_for(self.user, self, is_due=True)
        if cancel.is_set():
            self.release()
            return False
        return is_ours and self._sign()

    def _sign(self) -> bool:
        self._leases.sign(f"{self._holder} {self.user.name} {self._renewals}")
        return True

    def is_held(self) -> bool:
        return self._leases.is_held(self)

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
