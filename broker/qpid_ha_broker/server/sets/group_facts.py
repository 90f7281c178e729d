"""What a broker tells of its member of a group. Who hosts none does without this module, and `group`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from qpid_ha_broker.cluster.messages import BackupReport, ReplicaReport
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.serving import GroupServing
from qpid_ha_broker.ha.states import Phase, State

_STATES: Final = {
    GroupRole.OUTSIDE: State.CONNECTING,
    GroupRole.CATCHING_UP: State.CATCHUP,
    GroupRole.WITHHELD: State.CONNECTING,
    GroupRole.SERVING: State.READY,
}
"""As the controller and operators are told."""


@dataclass(slots=True)
class GroupTraffic:
    """Between one member and its group since it was hosted: what its driver counts, a batch at a time."""

    multicasts: int = 0
    multicast_bytes: int = 0
    delivered_batches: int = 0
    views: int = 0


class GroupFacts:
    """Of one of a group. Who wrote its record last keeps the directory, and is called its primary."""

    def __init__(self, serving: GroupServing, cluster: str) -> None:
        self._serving, self._member, self.cluster = serving, serving.member, cluster
        self.traffic = GroupTraffic()
        self.reason = "it has not come to its group yet"
        """Why it is what it is."""
        self.since_s = 0.0
        """Since when, by the clock of `now_s`."""
        self.store_problem = self.transport_problem = ""

    @property
    def generation(self) -> int:
        return self._member.record.generation

    @property
    def keeps_directory(self) -> bool:
        return self._member.role is GroupRole.SERVING and self._member.record.primary == self._member.name

    @property
    def state(self) -> State:
        """In the words that are used for other sets."""
        return State.PRIMARY if self.keeps_directory else _STATES[self._member.role]

    def report(self, now_s: float) -> ReplicaReport:
        member, keeps = self._member, self.keeps_directory
        why = "" if member.role is GroupRole.SERVING else f"{member.role}: {self.reason}"
        return ReplicaReport(
            member.resource_set.name,
            self.state.value,
            Phase.ACTIVE.value if keeps else "",
            self.generation,
            member.standing.held_lsn,
            self.store_problem or self.transport_problem or why,
            tuple(BackupReport(name, True, behind) for name, behind in member.standing.lags()) if keeps else (),
        )

    def trouble(self, now_s: float) -> Mapping[str, object]:
        """As `MemberFacts.trouble`."""
        member, stuck = self._member, self._serving.stuck(now_s)
        if member.role is GroupRole.SERVING and not (self.transport_problem or self.store_problem or stuck):
            return {}
        return {
            "set": member.resource_set.name,
            "role": member.role.value,
            "for_s": round(now_s - self.since_s, 1),
            "reason": self.reason,
            "missing": list(member.standing.missing),
            "record_problem": member.standing.record_problem,
            "transport_problem": self.transport_problem,
            "store_problem": self.store_problem,
            "stuck_queues": [{**queue._asdict(), "for_s": round(queue.for_s, 1)} for queue in stuck],
        }

    def figures(self, now_s: float) -> dict[str, float]:
        is_serving = self._member.role is GroupRole.SERVING
        return {
            "leading": float(self.keeps_directory),
            **({"in_sync_brokers": len(self._member.record.members)} if is_serving else {}),
            "committed_lsn": self._member.committed_lsn,
            **{f"group_{name}_total": number for name, number in asdict(self.traffic).items()},
            "group_queue_moves_total": self._serving.moves_total,
        }

    def backups(self) -> Sequence[Mapping[str, object]]:
        lags = self._member.standing.lags() if self.keeps_directory else ()
        return [{"name": name, "in_sync": True, "lag_messages": lag} for name, lag in lags]
