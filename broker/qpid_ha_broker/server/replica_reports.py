"""What this broker tells the controller: who it is, and how each of its replicas is; what has changed, or all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from qpid_ha_broker.cluster.messages import (
    FAILED,
    BackupReport,
    BrokerIdentity,
    BrokerReport,
    ReplicaReport,
    SetLoad,
    UnplacedQueue,
)
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.catalog import Catalog


class HostedReplica(NamedTuple):
    """A replica as this broker hosts it."""

    member: Member
    catalog: Catalog
    store_problem: str = ""
    """Why nothing durable is confirmed; empty: it is."""


class QueueReport(NamedTuple):
    """Where the queues of the sets that this broker leads differ from the directory; see `BrokerReport`."""

    deleted: tuple[int, ...] = ()
    unplaced: tuple[UnplacedQueue, ...] = ()


class ReplicaReports:
    """The promise: whoever has taken in a full report and all that came after it knows what `replicas` gave last."""

    def __init__(
        self,
        identity: Callable[[], BrokerIdentity],
        replicas: Callable[[], Iterable[HostedReplica]],
        problems: Callable[[], Mapping[str, str]],
        queues: Callable[[], QueueReport],
        room_bytes: Callable[[], int],
    ) -> None:
        """`problems`: sets of which there should be a replica here, and why there is none."""
        self._identity = identity
        self._replicas = replicas
        self._problems = problems
        self._queues = queues
        self._room_bytes = room_bytes
        self._number = 0
        self._reported: dict[str, ReplicaReport] = {}
        self._moved: dict[str, tuple[int, float, int]] = {}
        """By set that this broker leads: messages that came or went so far, when that was looked at, and the rate."""

    def report(self, *, full: bool) -> BrokerReport:
        """What has changed since the last one, or all of it."""
        now_s = time.monotonic()
        found = {each.member.set: self._replica_report(each, now_s) for each in self._replicas()}
        found |= {name: ReplicaReport(name, FAILED, problem=text) for name, text in self._problems().items()}
        changed = [each for name, each in found.items() if full or self._reported.get(name) != each]
        dropped = () if full else tuple(self._reported.keys() - found.keys())
        self._number += 1
        self._reported = found
        for name in self._moved.keys() - found.keys():
            del self._moved[name]
        deleted, unplaced = self._queues()
        return BrokerReport(
            self._identity(), self._number, full, self._room_bytes(), tuple(changed), dropped, deleted, unplaced
        )

    def _replica_report(self, replica: HostedReplica, now_s: float) -> ReplicaReport:
        member, status = replica.member, replica.member.status
        leads = member.primary is not None
        return ReplicaReport(
            member.set,
            status.state.value,
            "" if status.phase is None else status.phase.value,
            status.generation,
            member.position.lsn,
            status.problem or replica.store_problem,
            _backups(member) if leads else (),
            self._load(member.set, replica.catalog, now_s) if leads else SetLoad(),
        )

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


def _backups(member: Member) -> tuple[BackupReport, ...]:
    primary = member.primary
    if primary is None:
        return ()
    last_lsn = member.position.lsn
    return tuple(
        BackupReport(backup.name, backup.name in primary.in_sync, max(0, last_lsn - backup.acknowledged))
        for backup in primary.links.values()
    )
