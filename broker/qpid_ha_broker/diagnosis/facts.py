"""What a diagnosis goes by: what brokers, the coordinator and this machine tell, as values. Pure.

Whatever was not told has the value that is wrong for nobody, so that half of a cluster can be judged, and a broker of
another version. Answers come from elsewhere: what has another shape than it should counts as not told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from qpid_ha_broker.coordination.pause import Pause
from qpid_ha_broker.diagnosis.activation import Assessment
from qpid_ha_broker.events.types import GROUP, STRATEGIES
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.store.facts import StoreFacts


class BrokerFigures(NamedTuple):
    """What a broker tells to `query`; the last three are known of one that answered here itself."""

    version: str = ""
    store: str = ""
    """`ok`, `full`, `failed`, `off`; empty: not told."""
    unreadable: int = 0
    """Messages."""
    discarded: int = 0
    """Messages, since the process began."""
    audit_lost: int = 0
    """Lines that are missing in its audit log, since the process began."""
    acl_rules: str = ""
    everybody_administers: str = ""
    """The rule by which anybody may administer it; empty: there is none."""
    """How many, or `none`; empty: not told."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Settings of the cluster that are not in force there, and why."""
    listening: tuple[str, ...] = ()
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    """0: not told."""
    message_clock_ahead_s: float = 0.0
    """By which messages of `default` expire, of that broker's time of day."""
    data_dir: str = ""
    """On its machine; empty: not told, or it has none."""
    clock_ahead_s: float = 0.0
    """Of the clock of this machine, less what the way there and back may account for; negative: behind."""

    @classmethod
    def from_answer(cls, answer: Mapping[str, Any]) -> BrokerFigures:
        """From `query`."""
        listening = tuple(part.strip() for part in _text(answer, "listening").split(",") if part.strip())
        rules, left_out = answer.get("acl_rules"), answer.get("settings_left_out")
        return cls(
            version=_text(answer, "version"),
            store=_text(answer, "store"),
            unreadable=_number(answer, "unreadable_messages"),
            discarded=_number(answer, "discarded"),
            audit_lost=_number(answer, "audit_lost"),
            acl_rules="" if rules is None else str(rules),
            everybody_administers=_text(answer, "everybody_administers"),
            left_out=tuple(left_out.items()) if isinstance(left_out, dict) else (),
            listening=listening,
            memory_bytes=_number(answer, "memory_bytes"),
            message_clock_ahead_s=_seconds(answer, "message_clock_ahead_s"),
        )


AGENT_SILENT_S: Final = 5.0
"""An agent asks its broker twice a second, and gives an answer less time than this."""
WITHHELD, OUTSIDE = "withheld", "outside"
"""Of the broker's `GroupRole`, as `status` has it."""


class AwaitedQueue(NamedTuple):
    """A queue of a group that a broker asked for, and that its owner keeps."""

    queue: str
    owner: str
    for_s: float = 0.0


class GroupTrouble(NamedTuple):
    """What a broker says of its part in a group that is not as it should be."""

    set: str
    role: str
    """Of `group.effects.GroupRole`."""
    for_s: float = 0.0
    """For how long it has had that role."""
    reason: str = ""
    missing: tuple[str, ...] = ()
    """Whom the record names, and who is not in step with it."""
    record_problem: str = ""
    """Why the record cannot be changed."""
    transport_problem: str = ""
    """What Corosync answers."""
    stuck: tuple[AwaitedQueue, ...] = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> GroupTrouble:
        """Of `groups` in `status`."""
        stuck = row.get("stuck_queues")
        return cls(
            _text(row, "set"), _text(row, "role"), _seconds(row, "for_s"), _text(row, "reason"),
            _texts(row, "missing"), _text(row, "record_problem"), _text(row, "transport_problem"),
            tuple(
                AwaitedQueue(_text(queue, "queue"), _text(queue, "owner"), _seconds(queue, "for_s"))
                for queue in (stuck if isinstance(stuck, list) else ()) if isinstance(queue, Mapping)
            ),
        )  # fmt: skip


class BrokerState(NamedTuple):
    """One broker that answers, here or another one. What comes after `members` it tells of itself alone."""

    name: str
    address: str
    """AMQP; empty: not known."""
    state: str
    generation: int = 0
    epoch: int = 0
    lsn: int = 0
    members: tuple[str, ...] = ()
    """The newest in-sync set that it knows."""
    min_in_sync: int = 0
    """0: not told."""
    problem: str = ""
    """Why it follows nobody and does not lead."""
    login_problem: str = ""
    sets: int = 0
    sets_without_primary: tuple[str, ...] = ()
    groups: tuple[GroupTrouble, ...] = ()
    """Those in which it has a part that is not as it should be."""
    controller_problem: str = ""
    instance: str = ""
    """Of its process; what two brokers of one name do not share. Empty: not told."""
    cluster: str = ""
    """The UUID of its log; empty: it has none, or did not tell."""
    coordinator: str = ""
    """As its configuration has it; empty: not told."""
    coordinator_identity: str = ""
    """Of the record that it goes by, whatever the URL says; empty: not told, or not known there."""
    addresses: tuple[str, ...] = ()
    """Of all brokers, as its configuration has them; empty: not told."""
    uncommitted_s: float = 0.0
    """Of a primary that commits nothing: since when, and `uncommitted_why`; 0: it does."""
    uncommitted_why: str = ""
    store_problem: str = ""
    """Why its store takes nothing, as on a full disk; empty: it does, or did not tell."""
    agent_silent_s: float = 0.0
    """Since its agent asked it last for its status; 0: it has none, as far as it knows, or did not tell."""
    is_local: bool = False
    """It is the one of this machine."""
    figures: BrokerFigures = BrokerFigures()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> BrokerState | None:
        """A row of `status --all`; None for a broker that did not answer there."""
        if row.get("state") not in list(State) or not isinstance(row.get("name"), str):
            return None
        return cls(
            name=row["name"],
            address=_text(row, "address"),
            state=str(row["state"]),
            generation=_number(row, "generation"),
            epoch=_number(row, "epoch"),
            lsn=_number(row, "lsn"),
            members=_texts(row, "members"),
            min_in_sync=_number(row, "min_in_sync"),
            problem=_text(row, "problem"),
            login_problem=_text(row, "login_problem"),
            sets=_number(row, "sets"),
            sets_without_primary=_texts(row, "sets_without_primary"),
            groups=_groups(row),
            controller_problem=_text(row, "controller_problem"),
            instance=_text(row, "instance"),
            cluster=_text(row, "cluster"),
            coordinator=_text(row, "coordinator"),
            coordinator_identity=_text(row, "coordinator_identity"),
            addresses=tuple(sorted(_texts(row, "addresses"))),
            uncommitted_s=_seconds(row, "uncommitted_s"),
            uncommitted_why=_text(row, "uncommitted_why"),
            store_problem=_text(row, "store_problem"),
            agent_silent_s=_seconds(row, "agent_silent_s"),
        )

    @property
    def is_primary(self) -> bool:
        """Of `default`."""
        return self.state == State.PRIMARY


class SilentBroker(NamedTuple):
    """A broker of the cluster that nobody could ask. `seen_by`: brokers that cannot reach it either.

    `name` empty: not known. `why`: what came of asking it from here; empty: it was not asked from here.
    """

    address: str
    name: str = ""
    why: str = ""
    seen_by: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How to speak of it."""
        return f"{self.name} at {self.address}" if self.name else f"the broker at {self.address}"


class BrokenLink(NamedTuple):
    """A broker that answers, but not to those."""

    name: str
    address: str
    seen_by: tuple[str, ...]


class RefusedLogin(NamedTuple):
    """The broker at `address`, which is there, does not let `name` in."""

    name: str
    address: str
    why: str


class BackupLag(NamedTuple):
    """A backup as the primary of `default` sees it. `state`: `expected` is one that it waits for."""

    name: str
    state: str
    is_in_sync: bool
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> BackupLag:
        """From `backups`."""
        lag_s = row.get("lag_s")
        return cls(
            _text(row, "name"), _text(row, "state"), row.get("in_sync") is True, _number(row, "lag_messages"),
            _number(row, "lag_bytes"), float(lag_s) if isinstance(lag_s, int | float) else 0.0,
        )  # fmt: skip


class SetStanding(NamedTuple):
    """A resource set beside `default`."""

    name: str
    primary: str = ""
    in_sync: tuple[str, ...] = ()
    wanted: int = 0
    min_in_sync: int = 0
    moving_to: str = ""
    problem: str = ""
    strategy: str = STRATEGIES[0]
    served_by: tuple[str, ...] = ()
    """Who says to be level: in a group they serve."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SetStanding:
        """From `sets`."""
        return cls(
            _text(row, "name"), _text(row, "primary"), _texts(row, "in_sync"), _number(row, "wanted"),
            _number(row, "min_in_sync"), _text(row, "moving_to"), _text(row, "problem"),
            _text(row, "strategy") or STRATEGIES[0], _serving(row.get("replicas")),
        )  # fmt: skip

    @property
    def is_group(self) -> bool:
        """Whether its brokers all serve it, each."""
        return self.strategy == GROUP

    @property
    def is_served(self) -> bool:
        """Whether somebody serves it; in a group anybody does."""
        return bool(self.primary or (self.is_group and self.served_by))


class QueueState(NamedTuple):
    """A queue; `grown`: how many messages more there were in it after the length of the look than before."""

    name: str
    messages: int = 0
    bytes: int = 0
    consumers: int = 0
    most_messages: int = 0
    """0: no limit."""
    most_bytes: int = 0
    refuses: bool = True
    """When it is full, it takes no more."""
    grown: int = 0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> QueueState:
        """From `queues`."""
        given = row.get("arguments")
        arguments = given if isinstance(given, Mapping) else {}
        return cls(
            _text(row, "name"), _number(row, "messages"), _number(row, "bytes"), _number(row, "consumers"),
            _number(arguments, "qpid.max_count"), _number(arguments, "qpid.max_size"),
            arguments.get("qpid.policy_type", "reject") == "reject",
        )  # fmt: skip


class CoordinatorState(NamedTuple):
    """`problem`: why it cannot be used, as it says itself. `record` None: it was not read."""

    url: str = "none"
    problem: str = ""
    record: ClusterRecord | None = None
    moved_to: str = ""


class CertificateEnd(NamedTuple):
    """A certificate of this machine's configuration, and until when it is valid, in seconds since the epoch."""

    path: str
    ends_s: float
    begins_s: float = 0.0


class LocalProcess(StrEnum):
    """What the broker of this machine is, to whoever looks at its process."""

    UNKNOWN = "unknown"
    """There is none in the configuration, or nobody may look."""
    ANSWERS = "answers"
    ABSENT = "absent"
    SILENT = "silent"
    """It is there and does not answer."""
    HELD = "held"
    """It was stopped by a signal."""


class Supervisor(StrEnum):
    """Who starts the broker of this machine, by its configuration."""

    SYSTEMD = "systemd"
    AGENT = "agent"
    PACEMAKER = "pacemaker"


@dataclass(frozen=True)
class MachineState:
    """Of this machine, and of the broker that its configuration is for."""

    name: str = ""
    """The broker's; empty: there is no configuration here, or it cannot be read."""
    config: str = ""
    config_problem: str = ""
    acl_problem: str = ""
    data_dir: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    """Of the file system of data-dir; 0: not known."""
    is_read_only: bool = False
    certificates: tuple[CertificateEnd, ...] = ()
    process: LocalProcess = LocalProcess.UNKNOWN
    pid: int = 0
    last_lines: tuple[str, ...] = ()
    """Of the log of a broker that does not run."""
    supervisor: Supervisor = Supervisor.SYSTEMD
    has_agent: bool = True
    """Whether an agent runs here; of use where `supervisor` is AGENT."""
    stores: tuple[StoreFacts, ...] = ()
    """At rest, of a broker that does not run."""
    discarded_files: int = 0
    """That were not replayed."""
    is_elsewhere: bool = False
    """Who reads what is wrong may be at another machine: commands say where they are typed."""


@dataclass(frozen=True)
class DiagnosisFacts:
    """All that was found out. `is_cluster`: there is more than one broker by what is known."""

    brokers: tuple[BrokerState, ...] = ()
    is_cluster: bool = True
    silent: tuple[SilentBroker, ...] = ()
    broken_links: tuple[BrokenLink, ...] = ()
    refused_logins: tuple[RefusedLogin, ...] = ()
    twins: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names that more than one process has, each with where they answer."""
    backups: tuple[BackupLag, ...] = ()
    sets: tuple[SetStanding, ...] = ()
    sets_problem: str = ""
    """Why the sets were not told."""
    draining: tuple[str, ...] = ()
    """Brokers."""
    queues: tuple[QueueState, ...] = ()
    failovers_ms: tuple[int, ...] = ()
    """When each generation began that nobody asked for, since the epoch."""
    pause: Pause | None = None
    coordinator: CoordinatorState = field(default_factory=CoordinatorState)
    assessment: Assessment | None = None
    """Who may lead; of a cluster in which nobody does."""
    machine: MachineState = field(default_factory=MachineState)
    now_s: float = 0.0
    """Since the epoch, by this machine's clock."""

    @property
    def primaries(self) -> tuple[BrokerState, ...]:
        """Who says to lead `default`; the newest generation first."""
        return tuple(
            sorted((broker for broker in self.brokers if broker.is_primary), key=lambda broker: -broker.generation)
        )

    @property
    def primary(self) -> BrokerState | None:
        """The one that counts."""
        return next(iter(self.primaries), None)

    def broker(self, name: str) -> BrokerState | None:
        """By its name; None: it did not answer."""
        return next((broker for broker in self.brokers if broker.name == name), None)


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _seconds(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _serving(replicas: object) -> tuple[str, ...]:
    states = replicas if isinstance(replicas, Mapping) else {}
    return tuple(str(name) for name, state in states.items() if state in (State.PRIMARY, State.READY))


def _groups(row: Mapping[str, Any]) -> tuple[GroupTrouble, ...]:
    given = row.get("groups")
    rows = given if isinstance(given, list) else []
    return tuple(GroupTrouble.from_row(trouble) for trouble in rows if isinstance(trouble, Mapping))


def _texts(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = row.get(name)
    return tuple(str(text) for text in value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
