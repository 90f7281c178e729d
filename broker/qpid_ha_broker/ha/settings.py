"""What the core needs to know of a member's settings."""

from __future__ import annotations

from dataclasses import dataclass

from qpid_ha_broker.ha.record_keeper import COORDINATOR, RecordKeeper

WITH_RECORD_S = 0.2
UNPROVEN_SHARE = 0.15
SILENCE_SHARE = 0.75
"""Both of what others need to replace a primary: see `unproven_s` and `silence_s`."""
COMEBACK_S = 10.0
UNREAD_SHARE = 4
"""Of `ha.tail-size`: 16 MiB of the default."""
UNREAD_LEAST_BYTES = 256 * 1024


@dataclass(frozen=True)
class MemberSettings:
    """Times in seconds. Raises ValueError where they do not go together."""

    name: str
    instance: str
    """Of this process; another one after each start."""
    addresses: tuple[str, ...]
    """Of all brokers of the cluster, this one too if it does not know which is its own. None: it is in no cluster."""
    own_address: str = ""
    """Which of them reaches this broker; empty: found out by asking."""
    clients_url: str = ""
    cluster: str = ""
    """The UUID that this broker's log is to have, whoever begins it; empty: the first primary chooses one."""
    backup_timeout_s: float = 10.0
    """A backup in the in-sync set that owes an acknowledgement for so long is dropped."""
    min_in_sync: int = 1
    heartbeat_interval_s: float = 1.0
    link_timeout_s: float = 3.0
    """A channel on which nothing came for so long is lost."""
    has_heartbeats: bool = True
    """Each side says now and then that it is there. False: who carries the channels notices when one is lost, and
    nothing is sent on one of which there is nothing to tell."""
    ask_limit_s: float = 1.0
    reconnect_s: float = 0.05
    """The first pause between two attempts; it doubles up to `reconnect_most_s`, with jitter."""
    reconnect_most_s: float = 1.0
    looks_everywhere: bool = True
    """When the primary is lost, all addresses are tried at once. False: its own is, as it may live, and others after
    the first pause; whoever leads next says so by itself, and hundreds of sets would ask everybody else in vain."""
    tail_bytes: int = 64 * 1024 * 1024
    """What is kept of the stream for backups that come back."""
    replace_s: float = 2.0
    """Others need at least so long to replace a primary of which they hear nothing."""
    chunk_messages: int = 1000
    chunk_bytes: int = 256 * 1024
    chunks_ahead: int = 8
    """Sent and not yet taken in by the backup."""
    has_coordinator: bool = False
    """Somebody keeps the record."""
    keeper: RecordKeeper = COORDINATOR
    """Who does, or would."""
    has_store: bool = False
    """What is durable counts as held once it is on disk."""
    most_in_sync: int = 0
    """Once the cluster map has a set beside the one of this member, so many brokers at most are in sync: the others
    observe. 0: all are."""
    auto_recover: bool = True
    """After a crash of everybody, lead again as soon as all who may hold more are here to compare."""

    @property
    def is_standalone(self) -> bool:
        """Whether the in-sync set is this broker, and can never be another one."""
        return not self.addresses

    @property
    def has_witness(self) -> bool:
        """Whether anybody has to see what is written, a store or another broker. If not, nothing is encoded."""
        return self.has_store or not self.is_standalone

    @property
    def comeback_s(self) -> float:
        """After a promotion, clients have so long to come back to what was theirs."""
        return max(self.backup_timeout_s, COMEBACK_S)

    @property
    def unread_most_bytes(self) -> int:
        """Sent to a backup that nobody waits for while its channel was full: beyond it, the backup is given up."""
        return max(self.tail_bytes // UNREAD_SHARE, UNREAD_LEAST_BYTES)

    @property
    def unproven_s(self) -> float:
        """A primary whose events wait for so long, without any commit, gives consumers nothing."""
        return UNPROVEN_SHARE * self.replace_s

    @property
    def silence_s(self) -> float:
        """One that has heard nothing of a backup in sync for so long has to hear of it before it gives anything."""
        return SILENCE_SHARE * self.replace_s

    def status_limit_s(self, has_lost_memory: bool) -> float:
        """How long peers are waited for before a promotion.

        What the silent ones might know, a coordinator's record says as well: then a machine that is off, whose address
        does not even refuse a connection, holds up nobody for long. How far their stores go, no record says: whoever
        was restored from its own must hear them, and they may just have been started. So must whoever holds nothing: an
        empty record may be a lost one.
        """
        is_short = self.has_coordinator and not has_lost_memory
        return min(self.ask_limit_s, WITH_RECORD_S) if is_short else self.ask_limit_s

    def __post_init__(self) -> None:
        if self.link_timeout_s < 2 * self.heartbeat_interval_s:
            raise ValueError("link_timeout_s: at least two heartbeat intervals, or every late one loses the link")
        if 0 < self.most_in_sync < self.min_in_sync:
            raise ValueError("most_in_sync: at least min_in_sync, or nothing would ever be confirmed")
        if self.min_in_sync < 1:
            raise ValueError("min_in_sync: at least 1, the primary itself")


class GroupReplicaSettings(MemberSettings):
    """Of a replica of a set that each of its brokers writes: see `group.member`."""
