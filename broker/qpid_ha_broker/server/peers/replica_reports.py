"""What this broker tells the controller: who it is, and how each of its replicas is; what has changed, or all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.cluster.messages import (
    FAILED,
    BackupReport,
    BrokerIdentity,
    BrokerReport,
    DeclaredQueues,
    KeptQueue,
    ReplicaReport,
    SetLoad,
    UnplacedQueue,
)
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import LEADING, UNWRITABLE_S
from qpid_ha_broker.model.sets.catalog import Catalog

LOOK_S: Final = 1.0
"""Between two looks at replicas to which something happens all the time: what they hold, and how far they are."""


class HostedReplica(NamedTuple):
    """A replica as this broker hosts it."""

    report: Callable[[float], ReplicaReport]
    """Without what it holds."""
    catalog: Catalog


class HostedReplicas(Protocol):
    """All that this broker hosts."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Sets of which there should be a replica here, and why there is none."""

    def replica(self, set_name: str) -> HostedReplica | None:
        """The one of that set; None: there is none."""

    def names(self) -> set[str]:
        """Their sets."""

    def take_active(self) -> set[str]:
        """The sets to which something may have happened since the last call."""


class QueueReport(NamedTuple):
    """Where the queues of the sets that this broker leads differ from the directory; see `BrokerReport`."""

    deleted: tuple[int, ...] = ()
    unplaced: tuple[UnplacedQueue, ...] = ()
    declared: tuple[DeclaredQueues, ...] = ()
    kept: tuple[KeptQueue, ...] = ()


class ReplicaReports:
    """The promise: whoever has taken in a full report and all that came after it knows how each replica was when it was
    `changed` last, and what it held LOOK_S ago.

    A replica to which nothing happens is not looked at: of a thousand sets most are at rest, also when one fails over.
    """

    def __init__(
        self,
        identity: Callable[[], BrokerIdentity],
        replicas: HostedReplicas,
        queues: Callable[[bool], QueueReport],
        room_bytes: Callable[[], int],
    ) -> None:
        self._identity = identity
        self._replicas = replicas
        self._queues = queues
        self._room_bytes = room_bytes
        self._number = 0
        self._reported: dict[str, ReplicaReport] = {}
        self._changed: set[str] = set()
        """Sets of which there is something new to be told."""
        self._watched: set[str] = set()
        """Sets whose replicas have a problem that may end without anything happening to them."""
        self._looked_s = 0.0
        self._moved: dict[str, tuple[int, float, int]] = {}
        """By set that this broker leads: messages that came or went so far, when that was looked at, and the rate."""

    def changed(self, set_name: str) -> None:
        """There is something new to be told of that set's replica, or there is none any more."""
        self._changed.add(set_name)

    def report(self, now_s: float, *, full: bool) -> BrokerReport:
        """What has changed since the last one, or all of it; `now_s` is a clock that never goes back."""
        due, self._changed = self._changed, set()
        if full:
            due, self._reported = self._replicas.names(), {}
        if full or now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            due |= self._replicas.take_active() | self._moving()
        changed, dropped = [], []
        for name in sorted(due | self._watched | self._replicas.problems.keys()):
            found = self._found(name, now_s)
            if found is None:
                self._moved.pop(name, None)
                self._watched.discard(name)
                if self._reported.pop(name, None) is not None:
                    dropped.append(name)
            elif found != self._reported.get(name):
                (self._watched.add if found.problem else self._watched.discard)(name)
                self._reported[name] = found
                changed.append(found)
        self._number += 1
        queues = self._queues(full)
        return BrokerReport(
            self._identity(), self._number, full, self._room_bytes(), tuple(changed), tuple(dropped), *queues,
            reads_tombstones=True, reads_settings=True, reads_logins=True,
        )  # fmt: skip

    def _moving(self) -> set[str]:
        """Sets whose rate may be less by now, though nothing happens to them."""
        return {name for name, (_, _, rate) in self._moved.items() if rate}

    def _found(self, name: str, now_s: float) -> ReplicaReport | None:
        problem = self._replicas.problems.get(name)
        if problem is not None:
            return ReplicaReport(name, FAILED, problem=problem)
        there = self._replicas.replica(name)
        if there is None:
            return None
        found = there.report(now_s)
        return found._replace(load=self._load(name, there.catalog, now_s)) if found.state in LEADING else found

    def _load(self, name: str, catalog: Catalog, now_s: float) -> SetLoad:
        messages = size = moved = 0
        for queue in catalog.queues.values():
            held = queue.messages
            messages += held.count
            size += held.size
            moved += held.enqueued_total + held.dequeued_total
        before, looked_at_s, rate = self._moved.get(name, (moved, now_s, 0))
        if now_s - looked_at_s >= 1.0:
            rate = max(0, round((moved - before) / (now_s - looked_at_s)))
            before, looked_at_s = moved, now_s
        self._moved[name] = before, looked_at_s, rate
        return SetLoad(messages, size, rate)


def replica_report(member: Member, now_s: float) -> ReplicaReport:
    """What the controller is told of it, but for what it holds."""
    status = member.status
    return ReplicaReport(
        member.set,
        status.state.value,
        "" if status.phase is None else status.phase.value,
        status.generation,
        member.position.lsn,
        status.problem or _store_problem(member) or _stall(member, now_s),
        _backups(member),
        unwritable=member.unwritable_s(now_s) >= UNWRITABLE_S,
    )


def _store_problem(member: Member) -> str:
    problem = member.status.store_problem
    return f"its store cannot be written: {problem}" if problem else ""


def _stall(member: Member, now_s: float) -> str:
    """Of a primary that commits nothing: why. Without since when, which would be news each time."""
    stall = member.commit_stall(now_s)
    return "" if stall is None else f"nothing is committed: {stall.why}"


def _backups(member: Member) -> tuple[BackupReport, ...]:
    primary = member.primary
    if primary is None:
        return ()
    last_lsn = member.position.lsn
    return tuple(
        BackupReport(backup.name, backup.name in primary.in_sync, max(0, last_lsn - backup.acknowledged))
        for backup in primary.links.values()
    )
