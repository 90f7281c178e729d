"""What a broker tells of its replica of a set: to the controller, to metrics, and to its own parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from qpid_ha_broker.cluster.messages import ReplicaReport
from qpid_ha_broker.ha.known_in_sync import CURRENT
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import LEADING
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.server.peers.replica_reports import replica_report


class MemberFacts(Protocol):
    """Of a member, of whichever kind."""

    @property
    def cluster(self) -> str:
        """The UUID of the set's log, or the one that it is to have; empty: it is not known."""

    @property
    def generation(self) -> int:
        """The newest that it knows; 0: nothing has begun."""

    @property
    def keeps_directory(self) -> bool:
        """Whether this broker has the queues of the directory made and deleted, if it serves the set."""

    def report(self, now_s: float) -> ReplicaReport:
        """What the controller is told, but for what it holds."""

    def trouble(self, now_s: float) -> Mapping[str, object]:
        """Of a group's member: what an operator may have to do something about, for this broker's status; empty:
        nothing."""

    def figures(self, now_s: float) -> dict[str, float]:
        """For metrics: `leading`, `committed_lsn`, `in_sync_brokers` unless only its last word on that is known, and
        what else its kind knows."""

    def backups(self) -> Sequence[Mapping[str, object]]:
        """For metrics: the others, as far as this broker is the one that sees them."""


class PrimarySetFacts:
    """Of one that follows a primary, or is it. See `MemberFacts`."""

    keeps_directory = True

    def __init__(self, member: Member, log: Log) -> None:
        self._member, self._log = member, log

    @property
    def cluster(self) -> str:
        return self._member.status.cluster or self._member.settings.cluster

    @property
    def generation(self) -> int:
        return self._member.status.generation

    def report(self, now_s: float) -> ReplicaReport:
        return replica_report(self._member, now_s)

    def trouble(self, now_s: float) -> Mapping[str, object]:
        return {}

    def figures(self, now_s: float) -> dict[str, float]:
        status, lag_s = self._member.status, self._member.replica_lag_s(now_s)
        is_leading = status.state in LEADING
        return {
            "leading": float(is_leading),
            **({"in_sync_brokers": len(status.members)} if status.state in CURRENT else {}),
            "committed_lsn": self._log.committed_lsn if is_leading else self._member.committed_lsn,
            **({} if lag_s is None or is_leading else {"replica_lag_seconds": lag_s}),
        }

    def backups(self) -> Sequence[Mapping[str, object]]:
        return self._member.backups()
