"""A member of a resource set as `ha.Member` behaves towards a controller, without its frames and its log's contents.

It keeps what decides: which writes it holds, the generation of its log, whether it is in sync, and whether it was
restarted. A promotion asks everybody who can be reached, and is refused for the reasons of `ha.verdict`; what counts is
the compare-and-set of the record, as with the real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qpid_ha_broker.cluster.map import SetEntry
from qpid_ha_broker.cluster.messages import BackupReport, ReplicaReport
from qpid_ha_broker.events.types import SetRecorded

BACKUP_TIMEOUT_S = 3.0
"""So long a primary that has begun waits for those that were in sync."""


@dataclass
class MemberModel:
    """One replica."""

    broker: str
    set_name: str
    state: str = "connecting"
    generation: int = 0
    log: list[int] = field(default_factory=list)
    """Numbers of writes."""
    is_restarted: bool = False
    follows: int = 0
    """The generation of the primary that it follows."""
    level_s: float = 0.0
    """When its catch-up ends."""
    members: set[str] = field(default_factory=set)
    """Of a primary: who is in sync."""
    expected: set[str] = field(default_factory=set)
    """Of a primary: who was in sync when it began, and has not come yet."""
    began_s: float = 0.0
    leavers: dict[str, int] = field(default_factory=dict)
    """Of a primary: who has left, and the epoch that has to be recorded before it counts no more."""
    epoch: int = 0
    record: SetRecorded | None = None
    """Of a primary: the last one that was confirmed to it."""
    asked: int = 0
    """The number of its request to the controller that is under way."""
    asked_s: float = 0.0
    wanted: SetRecorded | None = None
    promoting: int = 0
    """The number of the order."""
    promoting_s: float = 0.0
    handing_to: str = ""
    handing_s: float = 0.0

    def restart(self) -> None:
        """The process is a new one; what its store has is still there."""
        self.__init__(self.broker, self.set_name, "connecting", self.generation, self.log, bool(self.generation))  # type: ignore[misc]

    def report(self) -> ReplicaReport:
        """As its broker tells the controller."""
        leads = self.state == "primary"
        backups = tuple(
            BackupReport(name, True, 0) for name in sorted(self.members - {self.broker}) if name not in self.expected
        )
        phase = ("recovering" if self.expected else "active") if leads else ""
        return ReplicaReport(
            self.set_name, self.state, phase, self.generation, len(self.log), backups=backups if leads else ()
        )

    def step_down(self) -> None:
        """Another one leads."""
        self.state, self.follows, self.handing_to = "connecting", 0, ""
        self.members, self.expected, self.asked, self.wanted = set(), set(), 0, None
        self.leavers = {}

    def why_not_promoted(
        self, entry: SetEntry, peers: list[MemberModel], unreachable: list[str], handed_over: bool
    ) -> str:
        """The reasons of `ha.verdict`, with a coordinator. `peers`: who answers."""
        record = entry.record
        if self.state in ("catchup", "primary"):
            return f"this broker is {self.state}"
        if not self.generation:
            if any(peer.generation for peer in peers):
                return "this broker holds no data"
            if record.generation and record.primary != self.broker:
                return "this broker holds no data, and the record names another one"
            return f"{unreachable} cannot be asked" if unreachable else ""
        if record.generation and self.broker not in record.members:
            return "not in sync"
        live = [peer for peer in peers if peer.state == "primary" and peer.generation >= record.generation]
        if live and not handed_over:
            return f"{live[0].broker} is primary, and answers"
        if self.is_restarted:
            others = [peer for peer in peers if peer.broker in record.members]
            if any(not peer.is_restarted and peer.generation for peer in others):
                return "this broker was restarted, unlike others"
            missing = set(record.members) - {self.broker} - {peer.broker for peer in others}
            if missing:
                return f"{sorted(missing)} of the last in-sync set cannot be asked"
            if any((peer.generation, len(peer.log)) > (self.generation, len(self.log)) for peer in others):
                return "another one goes further"
        return ""

    def lead(self, record: SetRecorded, hollow: set[str], now_s: float) -> None:
        """Its record was taken."""
        self.step_down()
        self.state, self.generation, self.record = "primary", record.generation, record
        self.members = set(record.members) - hollow | {self.broker}
        self.expected = self.members - {self.broker}
        self.epoch, self.began_s, self.is_restarted = record.epoch, now_s, False

    def change(self, members: set[str]) -> None:
        """Another in-sync set."""
        if members != self.members:
            self.epoch += 1
            self.leavers |= dict.fromkeys(self.members - members, self.epoch)
            self.members = members
            for name in members & self.leavers.keys():
                del self.leavers[name]
