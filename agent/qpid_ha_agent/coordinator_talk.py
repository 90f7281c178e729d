"""Talking with the coordinator from an event loop: the lock's renewal, the record, and what operators and other agents
have noted there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple

from qpid_ha_agent.decision import LockView
from qpid_ha_agent.failback import PRIORITIES_NOTE, read_priorities, with_priority
from qpid_ha_agent.lock import PrimaryLock, StartThread, start_thread
from qpid_ha_agent.planned_restart import RESTART_NOTE
from qpid_ha_agent.tenure import LeaseWatch
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.pause import PAUSE_NOTE, Pause, PauseView
from qpid_ha_broker.ha.cluster_record import ClusterRecord

TIMEOUT_S = 2.0


class Coordination(NamedTuple):
    """What the coordinator told in one look."""

    record: ClusterRecord
    renewal: str
    """What whoever has the lock wrote last."""
    pause: str
    """The note of that name; empty: there is none."""
    restart: str
    """The same."""
    priorities: str
    """The same; as it was once, where nobody needs it."""


@dataclass
class CoordinatorTalk:
    """Keeps up to date what the coordinator tells; calls `heard` after each look, with what went wrong or None.

    A coordinator that hangs is as bad as one that is gone, and it is not asked again before it has answered.
    """

    coordinator: Coordinator
    url: str
    lock: PrimaryLock
    interval_s: float
    name: str
    """Our broker's."""
    priority: int
    """What the others shall know of it."""
    has_preference: bool
    """Theirs are of interest here."""
    heard: Callable[[CoordinatorError | None], None]
    start_thread: StartThread = start_thread
    record: ClusterRecord | None = None
    """As it was read last; None: never yet."""
    restart: str = ""
    """The note, as it was read last."""
    priorities: dict[str, int] = field(default_factory=dict)
    is_shut_out: bool = False
    """The lock was tried, and another one had it."""
    lease_watch: LeaseWatch = field(init=False)
    _pause: PauseView = field(default_factory=PauseView)
    is_fresh: bool = False
    """It has answered since this agent began, or was held up for long."""
    _naps: int = 0
    _lost_at_s: float | None = None
    """Since when it does not answer."""
    _is_look_due: bool = True
    """Something may have changed there since the last one."""
    _looked_at_s: float = 0.0
    _told: Coordination | None = None
    """As it was then."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.lease_watch = LeaseWatch(2 * self.interval_s)

    def lost_s(self, now_s: float) -> float:
        """How long it has not answered."""
        return 0.0 if self._lost_at_s is None else now_s - self._lost_at_s

    def forgive(self) -> None:
        """This agent was held up: what it knows may be old."""
        self.is_fresh = False
        self._naps += 1
        self._is_look_due = True
        self._changed.set()

    def pause(self, now_s: float) -> Pause | None:
        """The pause that is in force, by what was heard last and by this machine's clock."""
        return self._pause.at(datetime.now(UTC), now_s)

    def look_soon(self) -> None:
        """Something has happened beside the coordinator that it may know more of; and whether it answers at all."""
        self._is_look_due = True
        self._changed.set()

    async def talk_forever(self) -> None:
        """Look, and look again when something has changed there, or a limit may have passed."""
        loop = asyncio.get_running_loop()

        def note_change() -> None:
            """Called by a thread of the coordinator."""
            self._is_look_due = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed.set)

        stop_watching = self.coordinator.watch(note_change)
        try:
            while True:
                await self._talk(loop)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.interval_s):
                        await self._changed.wait()
                self._changed.clear()
        finally:
            stop_watching()

    async def _talk(self, loop: asyncio.AbstractEventLoop) -> None:
        naps = self._naps
        asked: asyncio.Future[Coordination | CoordinatorError] = loop.create_future()
        self.start_thread(partial(self._ask, loop, asked), "coordinator")
        done, _ = await asyncio.wait([asked], timeout=TIMEOUT_S)
        if not done:
            self.lock.declare_lost()
            self._failed(CoordinatorError(f"{self.url} does not answer"))
            await asyncio.wait([asked])
        answer = asked.result()
        if isinstance(answer, CoordinatorError):
            self._failed(answer)
        else:
            self.is_fresh = naps == self._naps
            self._answered(answer, time.monotonic())

    def _ask(self, loop: asyncio.AbstractEventLoop, asked: asyncio.Future[Coordination | CoordinatorError]) -> None:
        """In a thread of its own: it may block for as long as it likes, and keeps nobody from ending.

        A lock that is ours is renewed each time; the rest is read when it may have changed, to spare the coordinator.
        """
        answer: Coordination | CoordinatorError
        try:
            self.lock.check()
            answer = self._look()
        except CoordinatorError as error:
            self._is_look_due = True
            answer = error
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_answer, asked, answer)

    def _look(self) -> Coordination:
        """Raises CoordinatorError."""
        coordination, now_s = self._told, time.monotonic()
        if coordination is None or self._is_look_due or now_s - self._looked_at_s >= self.coordinator.look_interval_s:
            self._is_look_due = False  # what changes from now on is for the next look
            self._looked_at_s = now_s
            read = self.coordinator.read(), self.lock.last_renewal()
            notes = self.coordinator.read_note(PAUSE_NOTE), self.coordinator.read_note(RESTART_NOTE)
            self._told = coordination = Coordination(*read, *notes, self._look_at_priorities(coordination))
        return coordination

    def _look_at_priorities(self, before: Coordination | None) -> str:
        """The note, once ours is in it; who neither has a priority nor heeds others' looks once. Raises
        CoordinatorError."""
        if before is not None and not self.priority and not self.has_preference:
            return before.priorities
        note = self.coordinator.read_note(PRIORITIES_NOTE)
        wanted = with_priority(note, self.name, self.priority)
        if wanted != note and self.coordinator.replace_note(PRIORITIES_NOTE, note, wanted):
            return wanted
        if wanted != note:  # another agent was faster
            self._is_look_due = True
        return note

    def _answered(self, coordination: Coordination, now_s: float) -> None:
        self.record, self._lost_at_s = coordination.record, None
        self._pause.note(coordination.pause, now_s)
        self.restart = coordination.restart
        self.priorities = read_priorities(coordination.priorities)
        if coordination.renewal and (self.lock.view is LockView.WAITING or self.is_shut_out):
            self.lease_watch.note(coordination.renewal, now_s)
        else:
            self.lease_watch.forget()
        self.heard(None)

    def _failed(self, error: CoordinatorError) -> None:
        self.lease_watch.forget()
        if self._lost_at_s is None:
            self._lost_at_s = time.monotonic()
        self.heard(error)


def _answer(asked: asyncio.Future[Coordination | CoordinatorError], answer: Coordination | CoordinatorError) -> None:
    """Nobody waits any more when the agent ends."""
    if not asked.done():
        asked.set_result(answer)
