"""The lock that chooses an agent, where it rests on sessions."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from qpid_ha_agent.decision import LockView
from simulation.virtual_time import Schedule

HEARTBEATS = 3
"""Of a session, in its timeout."""
EXPIRY_LOOK_S = 0.05
LOST_REQUESTS = 0.01
NOTICE_S = 0.001, 0.05
LATE_NOTICE_S = 0.05, 0.8
LATE_NOTICES = 0.1


class LockUser(Protocol):
    """An agent, as far as a lock knows it."""

    @property
    def is_hanging(self) -> bool: ...

    @property
    def is_cut(self) -> bool: ...

    @property
    def has_power(self) -> bool: ...


class _Session:
    """Of one agent's process, as the coordinator keeps it."""

    def __init__(self, now_s: float) -> None:
        self.heard_s = now_s
        self.is_expired = False


class _Client:
    """What an agent's own process believes."""

    def __init__(self, session: _Session, now_s: float) -> None:
        self.session = session
        self.confirmed_s = now_s
        """When the last heartbeat was sent that was answered: the session lives for its timeout after that."""
        self.is_held = self.is_lost = self.is_waiting = self.must_let_go = False


class SessionLock:
    """The promise: at the coordinator one session at most holds it, one that was heard of within its timeout; and an
    agent that looks (`check`) finds it lost no later than another one may have it, whether it was awake or not.

    The agent's process sends heartbeats while it runs and can reach the coordinator. One that hangs, has lost its power
    or is cut off sends none. A coordinator that was away gives all sessions their time anew.
    """

    def __init__(self, schedule: Schedule, draw: random.Random, timeout_s: float, is_down: Callable[[], bool]) -> None:
        self.timeout_s = timeout_s
        self._schedule = schedule
        self._draw = draw
        self._is_down = is_down
        self._holder: _Session | None = None
        self._queue: deque[_Session] = deque()
        self._clients: dict[LockUser, _Client] = {}
        self._sessions: list[_Session] = []
        schedule.after(EXPIRY_LOOK_S, self._expire)

    def join(self, agents: Iterable[LockUser]) -> None:
        """They have come up."""
        for agent in agents:
            self._clients[agent] = self._new_client()
            self._schedule.after(self._draw.random() * self.timeout_s / HEARTBEATS, partial(self._beat, agent))

    # --- what agents ask

    def view_of(self, agent: LockUser) -> LockView:
        client = self._clients[agent]
        if client.is_held:
            return LockView.LOST if client.is_lost else LockView.HELD
        return LockView.WAITING if client.is_waiting else LockView.NONE

    def has_it(self, agent: LockUser) -> bool:
        """Whether the coordinator has given it to that one, who may not know yet."""
        return self._holder is not None and self._holder is self._clients[agent].session

    def try_now(self, agent: LockUser) -> bool:
        return self._is_heard(agent) and self._take(self._clients[agent])

    def wait_for(self, agent: LockUser) -> bool:
        if not self._is_heard(agent):
            return False
        client = self._clients[agent]
        if not self._take(client):
            client.is_waiting = True
            if client.session not in self._queue:
                self._queue.append(client.session)
        return True

    def _take(self, client: _Client) -> bool:
        if self._holder in (None, client.session):
            self._holder = client.session
            client.is_held, client.is_lost, client.is_waiting = True, False, False
        return client.is_held

    def release(self, agent: LockUser) -> None:
        client = self._clients[agent]
        client.is_held = client.is_lost = client.is_waiting = False
        client.must_let_go = True  # who cannot be reached now is told with the next heartbeat
        if self._can_reach(agent):
            self._let_go(client)

    def check(self, agent: LockUser) -> None:
        """Look whether the session can still be relied on, by this agent's own clock."""
        client = self._clients[agent]
        if client.is_held and self.has_expired(client.confirmed_s):
            client.is_lost = True

    def has_expired(self, confirmed_s: float) -> bool:
        """Whether the coordinator may have given it to another one."""
        return self._schedule.now_s - confirmed_s >= self.timeout_s

    # --- faults

    def expire(self, agent: LockUser) -> None:
        """The coordinator gives a session up before its time; its agent hears of that with its next heartbeat."""
        session = self._clients[agent].session
        if not session.is_expired:
            self._end(session)

    def lose_all(self) -> None:
        """The coordinator has begun anew."""
        for session in list(self._sessions):
            session.is_expired = True
        self._sessions.clear()
        self._queue.clear()
        self._holder = None

    # --- the coordinator

    def _new_client(self) -> _Client:
        session = _Session(self._schedule.now_s)
        self._sessions.append(session)
        return _Client(session, self._schedule.now_s)

    def _can_reach(self, agent: LockUser) -> bool:
        return not (self._is_down() or agent.is_cut or agent.is_hanging) and agent.has_power

    def _is_heard(self, agent: LockUser) -> bool:
        """A request comes to the coordinator, and its answer back; False: not this one."""
        if not self._can_reach(agent) or self._draw.random() < LOST_REQUESTS:
            return False
        client, now_s = self._clients[agent], self._schedule.now_s
        if client.session.is_expired:
            client.is_lost = client.is_held
            client.is_waiting = client.must_let_go = False
            client.session = _Session(now_s)
            self._sessions.append(client.session)
        if client.must_let_go:
            self._let_go(client)
        client.session.heard_s = client.confirmed_s = now_s
        return True

    def _beat(self, agent: LockUser) -> None:
        self._schedule.after(self.timeout_s / HEARTBEATS, partial(self._beat, agent))
        self._is_heard(agent)

    def _let_go(self, client: _Client) -> None:
        client.must_let_go = False
        if client.session in self._queue:
            self._queue.remove(client.session)
        if self._holder is client.session:
            self._holder = None
            self._give_to_next()

    def _expire(self) -> None:
        self._schedule.after(EXPIRY_LOOK_S, self._expire)
        now_s = self._schedule.now_s
        for session in list(self._sessions):
            if self._is_down():
                session.heard_s = now_s
            elif now_s - session.heard_s > self.timeout_s:
                self._end(session)

    def _end(self, session: _Session) -> None:
        session.is_expired = True
        self._sessions.remove(session)
        if session in self._queue:
            self._queue.remove(session)
        if self._holder is session:
            self._holder = None
            self._give_to_next()

    def _give_to_next(self) -> None:
        """Whoever waits hears of it after a moment, if it still wants it."""
        if not self._queue:
            return
        session = self._holder = self._queue.popleft()
        is_late = self._draw.random() < LATE_NOTICES
        self._schedule.after(self._draw.uniform(*(LATE_NOTICE_S if is_late else NOTICE_S)), lambda: self._tell(session))

    def _tell(self, session: _Session) -> None:
        for client in self._clients.values():
            if client.session is session and client.is_waiting and not session.is_expired:
                client.is_held, client.is_lost, client.is_waiting = True, False, False
