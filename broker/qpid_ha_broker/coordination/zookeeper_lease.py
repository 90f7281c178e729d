"""A lease by ephemeral sequence nodes: whoever's is the first has it, and each waits for the one before.

How long a session lives, its holder can only reckon. A server passes on to the leader twice a tick which sessions it
has heard of, and the leader ends those it has not heard of for the session timeout, which is two ticks or more. So
pings prove nothing: a server that was cut off answers them until it notices. What a majority agreed to proves that the
leader still knew the session, and, because a server's messages to it stay in order, that it knows what this server
heard up to half a tick before.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent
from kazoo.security import ACL

from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.zookeeper_session import (
    LostAnswer,
    NoAnswer,
    ZooKeeperSession,
    boot_time_s,
    check_of,
    children_of,
    deadline,
    delete_of,
    exists_of,
    get_of,
)

_HALF_TICK = 1 / 4
"""Of the session timeout, at most."""
_BETWEEN_PINGS = 1 / 3
"""Of it: kazoo's, of a process that runs."""
_BETWEEN_ANSWERS = 0.35
"""Of it: those to a holder. Two fit between the last but one and the end, with time for another server in between."""
_GLANCE_S = 0.25
"""How late it may be noticed that nobody wants the lease any more."""
_RELEASE_S = 0.5
"""So long a release waits for the servers; then it goes on in the background."""
_RETRY_S = 0.5
_PAUSE_S = 0.05
_NODE = re.compile(r"[0-9a-f]{32}-[0-9]+-([0-9]{10})", re.ASCII)
"""Whose it is, the number of his session, the sequence number."""


class LeaseTerm:
    """Until when a session lives for certain: its timeout after what the leader has heard for certain. Pure."""

    def __init__(self, timeout_s: float, asked_at_s: float) -> None:
        self._timeout_s = timeout_s
        self._heard_at_s = asked_at_s - (_HALF_TICK + _BETWEEN_PINGS) * timeout_s
        self._asked_at_s = asked_at_s

    @property
    def end_s(self) -> float:
        """From then on another one may have it."""
        return self._heard_at_s + self._timeout_s

    @property
    def next_s(self) -> float:
        """When to ask again."""
        is_first = self.end_s - self._asked_at_s < self._timeout_s / 2
        return self._asked_at_s + (_HALF_TICK if is_first else _BETWEEN_ANSWERS) * self._timeout_s

    def answered(self, asked_at_s: float) -> None:
        """A majority has agreed to something that was sent at that moment."""
        if asked_at_s - self._asked_at_s >= _HALF_TICK * self._timeout_s:
            self._heard_at_s, self._asked_at_s = self._asked_at_s, asked_at_s


class _Tenancy(NamedTuple):
    """What a lease that is held rests on."""

    path: str
    session: int
    term: LeaseTerm
    is_over: threading.Event


class ZooKeeperLease:
    """The promise: of all leases of one path, one at most says that it is held, whoever was stopped for how long."""

    def __init__(
        self,
        session: ZooKeeperSession,
        path: str,
        holder: str,
        acl: list[ACL],
        make_parents: Callable[[ZooKeeperSession, str, float], None],
    ) -> None:
        self._session = session
        self._path = path
        self._holder = holder
        self._acl = acl
        self._make_parents = make_parents
        self._mark = uuid.uuid4().hex
        """How its nodes begin: one whose creation nobody confirmed is found by it."""
        self._tenancy: _Tenancy | None = None
        self._renewed_at_s = 0.0

    def try_lock(self) -> bool:
        """Raises CoordinatorError."""
        if self.is_held():
            return True
        self.release()
        until_s = deadline()
        if self._queue(until_s):
            return False
        try:
            is_ours = self._advance(threading.Event(), until_s)
        except CoordinatorError:
            self._leave()
            raise
        if not is_ours:
            self._leave()
        return is_ours

    def acquire(self, cancel: threading.Event) -> bool:
        """Servers that do not answer are waited for. Raises CoordinatorError when they refuse."""
        if self.is_held() and not cancel.is_set():
            return True
        self.release()
        woken = threading.Event()
        stop_listening = self._session.listen(woken.set)
        try:
            while not cancel.is_set():
                woken.clear()
                try:
                    if self._advance(woken, deadline()):
                        return True
                except LostAnswer:
                    continue
                except NoAnswer:
                    cancel.wait(_GLANCE_S)
                    continue
                while not woken.wait(_GLANCE_S) and not cancel.is_set():
                    pass
        finally:
            stop_listening()
            if self._tenancy is None:
                self._leave()
        return False

    def is_held(self) -> bool:
        """Until the time has passed up to which it is certain; then it is lost."""
        tenancy = self._tenancy
        if tenancy is None:
            return False
        if tenancy.session != self._session.number or boot_time_s() >= tenancy.term.end_s:
            tenancy.is_over.set()
        return not tenancy.is_over.is_set()

    def renew(self) -> None:
        """Only noted: a thread asks the servers, as long as somebody calls this."""
        self._renewed_at_s = boot_time_s()

    def last_renewal(self) -> str:
        """Nothing: the servers take it from those who do not renew it."""
        return ""

    def holder(self) -> str:
        """Raises CoordinatorError."""
        until_s = deadline()
        for name in self._queue(until_s):
            (node,) = self._session.ask_again(until_s, get_of(f"{self._path}/{name}"))
            if not isinstance(node, NoNodeError):
                return _signature(node[0])
        return ""

    def release(self) -> None:
        """The servers are told; if they do not answer soon, in the background."""
        tenancy, self._tenancy = self._tenancy, None
        if tenancy is not None:
            tenancy.is_over.set()
            self._leave(tenancy.path)

    # --- the queue

    def _queue(self, until_s: float) -> list[str]:
        """The nodes of all who want it, in their order, as a majority of the servers has them. Raises
        CoordinatorError."""
        exists, children = self._session.ask_again(until_s, check_of(self._path), children_of(self._path))
        problem = self._session.problem_in(exists)
        if problem is not None or isinstance(children, NoNodeError):
            return []
        names = [name for name in children if _NODE.fullmatch(name)]
        return sorted(names, key=lambda name: int(name.rpartition("-")[2]))

    def _own(self, queue: list[str]) -> list[str]:
        return [name for name in queue if name.startswith(f"{self._mark}-")]

    def _advance(self, woken: threading.Event, until_s: float) -> bool:
        """Whether the lease is ours now. If not, `woken` is set when it may be. Raises CoordinatorError."""
        session, asked_at_s = self._session.number, boot_time_s()
        queue = self._queue(until_s)
        prefix = f"{self._mark}-{session}-"
        if not any(name.startswith(prefix) for name in queue):
            self._join(prefix, until_s)
            asked_at_s = boot_time_s()
            queue = self._queue(until_s)
        own = [name for name in queue if name.startswith(prefix)]
        for name in self._own(queue):
            if name not in own:  # of a session before, or made when that had just ended: it would be in our way
                self._session.ask_again(until_s, delete_of(f"{self._path}/{name}"))
                queue.remove(name)
        if not own or session != self._session.number:
            woken.set()
            return False
        place = queue.index(own[0])
        if place == 0:
            if self._begin(own[0], session, asked_at_s, until_s):
                return True
            woken.set()
            return False
        before = f"{self._path}/{queue[place - 1]}"
        (stat,) = self._session.ask_again(until_s, exists_of(before, lambda _: woken.set()))
        if stat is None:
            woken.set()
        return False

    def _join(self, prefix: str, until_s: float) -> None:
        """Raises CoordinatorError. Whether a node was made whose answer was lost, the queue shows."""
        signature = {"name": self._holder, "pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
        data, path = json.dumps(signature).encode(), f"{self._path}/{prefix}"
        for _ in range(2):
            (made,) = self._session.ask(
                until_s, lambda zk: zk.create_async(path, data, self._acl, ephemeral=True, sequence=True)
            )
            if not isinstance(made, NoNodeError):
                return
            self._make_parents(self._session, path, until_s)

    def _begin(self, name: str, session: int, asked_at_s: float, until_s: float) -> bool:
        """We are the first: a majority has said so. Raises CoordinatorError."""
        path, is_over = f"{self._path}/{name}", threading.Event()

        def look(event: WatchedEvent) -> None:
            """The loss of the connection alone takes nothing away."""
            if event.type == EventType.DELETED:
                is_over.set()

        (stat,) = self._session.ask_again(until_s, exists_of(path, look))
        self._renewed_at_s = boot_time_s()
        tenancy = _Tenancy(path, session, LeaseTerm(self._session.timeout_s, asked_at_s), is_over)
        if stat is None or session != self._session.number or self._renewed_at_s >= tenancy.term.end_s:
            return False
        self._tenancy = tenancy
        threading.Thread(target=self._keep, args=(tenancy,), name="zookeeper-lease", daemon=True).start()
        return True

    def _keep(self, tenancy: _Tenancy) -> None:
        """Ask the servers again and again, and let it go when that fails for too long, or nobody renews it."""
        timeout_s = self._session.timeout_s
        while not tenancy.is_over.wait(self._pause_s(tenancy.term, timeout_s)):
            asked_at_s = boot_time_s()
            if asked_at_s - self._renewed_at_s >= timeout_s:
                break
            if asked_at_s < tenancy.term.next_s:
                continue
            try:
                if self._session.check(tenancy.path, time.monotonic() + tenancy.term.end_s - asked_at_s) is not None:
                    break
            except CoordinatorError:
                if asked_at_s >= tenancy.term.end_s or tenancy.is_over.wait(_PAUSE_S):
                    break
            else:
                tenancy.term.answered(asked_at_s)
        tenancy.is_over.set()
        self._leave()

    def _pause_s(self, term: LeaseTerm, timeout_s: float) -> float:
        return max(0.0, min(term.next_s, self._renewed_at_s + timeout_s) - boot_time_s())

    def _leave(self, path: str = "") -> None:
        """Remove what is ours in the queue; if the servers do not answer soon, in the background. `path` before we look
        for more: another one waits for it."""
        if not self._has_left(_RELEASE_S, path):
            threading.Thread(target=self._leave_at_last, name="zookeeper-leave", daemon=True).start()

    def _leave_at_last(self) -> None:
        while not self._has_left(deadline() - time.monotonic()):
            time.sleep(_RETRY_S)

    def _has_left(self, limit_s: float, path: str = "") -> bool:
        until_s = time.monotonic() + limit_s
        try:
            if path:
                self._session.ask_again(until_s, delete_of(path))
            for name in self._own(self._queue(until_s)):
                self._session.ask_again(until_s, delete_of(f"{self._path}/{name}"))
        except CoordinatorError:
            return self._session.is_closed  # its nodes are gone with it
        return True


def _signature(data: bytes) -> str:
    """Who says that it is his; for messages only."""
    try:
        signed = json.loads(data)
        return f"{signed['name'] or 'a broker'} (pid {signed['pid']}, since {signed['since']})"
    except (ValueError, TypeError, KeyError):
        return "somebody"
