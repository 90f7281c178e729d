"""What brokers tell the controller, what it is asked for, and what it wants done: the closed lists around its core.

The controller is the primary of `default`; `Controller.handle(input, now_s) -> list[ControllerEffect]`. A driver feeds
inputs in the order in which they happen, `TimePassed` at least every 0.1 s, and carries effects out in order before it
feeds the next input. It decides nothing. Orders and reports may be lost: both sides compare what is with what should
be, again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events.types import STRATEGIES, Arguments, MapEvent, SetRecorded

# --- what a broker reports


class BrokerIdentity(NamedTuple):
    """Who reports. All but `instance` is what BrokerRegistered has."""

    name: str
    uuid: str
    instance: str
    """Of the process; another one after each start."""
    address: str
    clients_url: str
    zone: str
    version: str


class BackupReport(NamedTuple):
    """A backup as the primary of its set sees it."""

    name: str
    in_sync: bool
    lag: int
    """LSNs that it has not acknowledged yet."""


class SetLoad(NamedTuple):
    """What a set has to do at its primary."""

    messages: int = 0
    """Queued now."""
    bytes: int = 0
    """The same."""
    rate: int = 0
    """Messages that came or went per second, of late."""


FAILED: Final = "failed"
"""The state of a replica that its broker cannot have: its store cannot be opened, or not be written any more."""


class ReplicaReport(NamedTuple):
    """A replica as its own broker sees it."""

    set: str
    state: str
    """Of `ha.states.State`, as text; FAILED for one that its broker cannot have, and `problem` says why."""
    phase: str = ""
    """Of `ha.states.Phase`, as text; empty unless it is primary."""
    generation: int = 0
    """The newest in its log; 0: the log is empty."""
    lsn: int = 0
    """How far it holds its log."""
    problem: str = ""
    """What keeps it from leading or following; empty: nothing that is known."""
    backups: tuple[BackupReport, ...] = ()
    """Of a primary."""
    load: SetLoad = SetLoad()
    """Of a primary."""
    unwritable: bool = False
    """Its store has taken nothing for `ha.states.UNWRITABLE_S`, as on a full disk: it should not be the one that leads.
    `problem` says why. A broker that is older does not tell."""


class UnplacedQueue(NamedTuple):
    """A queue that the primary of a set has, and the directory has not."""

    set: str
    name: str
    arguments: Arguments


class KeptQueue(NamedTuple):
    """A queue whose entry has said since the release before that it is being deleted on conditions, and that stays."""

    id: int
    """In the directory."""
    deletion: str
    """Which deletion; a queue may be deleted again on another condition."""
    generation: int
    """Of the set's primary that has decided so."""
    text: str
    """Why it stays."""


class DeclaredQueues(NamedTuple):
    """The queues that a set has, as its log has committed it."""

    set: str
    id: int
    """In the directory: it has the queues of all entries up to this one, but those that are to be deleted."""


class BrokerReport(NamedTuple):
    """What one broker has to say since its last report, or all of it.

    `default` is among the replicas, with its backups at its primary, so the controller knows of brokers that only have
    that. A broker reports once a second even if there is nothing: then `replicas` is empty.
    """

    broker: BrokerIdentity
    number: int
    """One more than the last; after a gap the controller asks for a full one. A full one may have any."""
    full: bool
    """Replicas that are not listed are not hosted. If False, they are as before."""
    room_bytes: int
    """What the broker could still store."""
    replicas: tuple[ReplicaReport, ...] = ()
    dropped: tuple[str, ...] = ()
    """Sets that it hosts no more."""
    deleted_queues: tuple[int, ...] = ()
    """Ids in the directory: queues of a set that it leads which are gone there, and that is committed."""
    unplaced_queues: tuple[UnplacedQueue, ...] = ()
    """Of sets that it leads."""
    declared_queues: tuple[DeclaredQueues, ...] = ()
    """Of sets that it leads."""
    kept_queues: tuple[KeptQueue, ...] = ()
    """Of sets that it leads."""
    reads_tombstones: bool = False
    """It knows what becomes of a queue that is deleted, and takes `OrderDeletion`; a broker of the release before does
    not."""
    reads_settings: bool = False
    """It has settings of the cluster: it can read a `SettingChanged`."""
    reads_logins: bool = False
    """It knows users and tokens of the cluster: those of a `SettingChanged` that are secrets."""


# --- requests of operators and clients


class CreateSet(NamedTuple):
    """Make a set. Without `replicas` they are chosen: `min_replicas` of them, or as many as the policies say."""

    name: str
    replicas: tuple[str, ...] = ()
    preferred: str = ""
    """Who should be primary; empty: nobody in particular."""
    min_replicas: int = 0
    min_in_sync: int = 0
    strategy: str = STRATEGIES[0]
    """How it is replicated: one of STRATEGIES. It never changes."""


class DeleteSet(NamedTuple):
    """Delete a set that has no queues.

    With `lost`, of a set that nobody leads, its queues as well: whoever held what was in them will not come back.
    """

    name: str
    lost: bool = False


class TransferPrimary(NamedTuple):
    """Have another broker lead a set; answered when it does."""

    set: str
    to: str = ""
    """Empty: whoever is best."""
    prefer: bool = True
    """It is to be the preferred primary from now on, so that no rebalancing takes it back."""


class PromoteReplica(NamedTuple):
    """Have a broker lead a set that nobody leads; answered when it does.

    Without `force` only one that holds all that was confirmed, as far as that is known.
    """

    set: str
    broker: str
    force: bool = False
    """What only others have confirmed is given up."""


class AddReplica(NamedTuple):
    """Give a set one more replica; answered once it is decided."""

    set: str
    broker: str = ""
    """Empty: where the placement says."""


class RemoveReplica(NamedTuple):
    """Take a replica away once the others are enough; answered once it is decided."""

    set: str
    broker: str
    force: bool = False
    """Although fewer than wanted remain. The last one stays all the same."""


class DrainBroker(NamedTuple):
    """Move everything off a broker; answered with what that takes. `ShowCluster` tells when it is safe to stop."""

    broker: str
    force: bool = False
    """Although sets will have fewer replicas than they want."""


class UndrainBroker(NamedTuple):
    """Let a broker have replicas again."""

    broker: str


class LeaveBroker(NamedTuple):
    """A broker is about to be stopped in order: its primaries go elsewhere, its replicas stay where they are.

    Answered at once with how many it leads that others could (`left`), and asked again until that is 0.
    """

    broker: str


class FailBroker(NamedTuple):
    """Somebody knows that a broker is gone, because he has fenced it for instance."""

    broker: str
    why: str = ""
    """For the log."""


class ForgetBroker(NamedTuple):
    """A broker will not come back: it is of the cluster no more, and its replicas are made up for at once."""

    broker: str


class SetPolicies(NamedTuple):
    """How many replicas sets want: patterns and counts, the first that matches."""

    policies: tuple[tuple[str, int], ...]


class Rebalance(NamedTuple):
    """Bring primaries to where they are preferred, and spread the others evenly, one at a time.

    Answered when that is done; with `begin_only` with what will be moved, and `ShowCluster` tells how many are left.
    """

    plan_only: bool = False
    begin_only: bool = False


class PlanReplicas(NamedTuple):
    """Say what would be done about replicas, and why."""

    set: str = ""
    """Empty: all."""


class TrimReplicas(NamedTuple):
    """Remove replicas that a set has beyond what it wants."""

    set: str = ""
    """Empty: of all sets."""


class DeclareQueue(NamedTuple):
    """Have a queue in the set to which it belongs, as a broker asks; or find it there with the same arguments.

    The controller's broker chooses the set. One of `default` it declares itself; of another one `SettleQueue` follows.
    """

    name: str
    arguments: Arguments
    wait: bool = False
    """As in `SettleQueue`."""


class SettleQueue(NamedTuple):
    """Have the directory say that a queue is in the set that was chosen for it, not `default`.

    One that is there already keeps its set, and is there only with the same arguments.
    """

    name: str
    arguments: Arguments
    set: str
    missing: bool = False
    """The set is to be made if there is none of that name."""
    preferred: str = ""
    """The preferred primary of one that is made; empty: the broker at which the fewest sets should have theirs."""
    wait: bool = False
    """Answer when the set's primary has the queue, or that it is pending where that takes long."""


class DeleteQueue(NamedTuple):
    """Have the queue's set delete it; its name is free when that is done.

    The set's primary decides about the conditions at the moment at which it would delete.
    """

    name: str
    if_empty: bool = False
    if_unused: bool = False
    wait: bool = False
    """It is answered when the queue is gone, or stays, or that nobody knows where that takes long, in any case."""


class LocateQueue(NamedTuple):
    """Say which set has a queue, if it is not `default`; empty: the directory has no such queue."""

    name: str


class ShutDownSets(NamedTuple):
    """Have all sets end, because the cluster does; answered when they have, with `problems` of those that have not.

    Whoever asks shuts `default` down next.
    """

    uuid: str
    """With which their stores are marked."""


class ShowCluster(NamedTuple):
    """The map, and what brokers say, for people; `result` has it."""


class ShowHistory(NamedTuple):
    """What the controller has done, and why; `result` has it."""

    about: str = ""
    """A set or a broker; empty: all."""


class ChangeSetting(NamedTuple):
    """Have a setting count for all brokers, of whom each that could be asked can put it in force."""

    key: str
    value: str
    """As JSON; empty: what the configuration files say counts."""
    user: str = ""


class ChangeLogin(NamedTuple):
    """Have the cluster keep a user with a password, or a token, or not any more."""

    key: str
    """See `cluster_map.is_secret`."""
    value: str
    """As JSON; empty: there is none any more."""
    user: str = ""
    is_new: bool = False
    """There must be none yet."""
    replaces: bool = False
    """There must be one."""


ClusterRequest = (
    CreateSet
    | DeleteSet
    | TransferPrimary
    | PromoteReplica
    | AddReplica
    | RemoveReplica
    | DrainBroker
    | UndrainBroker
    | LeaveBroker
    | FailBroker
    | ForgetBroker
    | SetPolicies
    | Rebalance
    | PlanReplicas
    | TrimReplicas
    | SettleQueue
    | DeleteQueue
    | LocateQueue
    | ShutDownSets
    | ShowCluster
    | ShowHistory
    | ChangeSetting
    | ChangeLogin
)

REQUESTS: Final[Mapping[str, type[ClusterRequest | DeclareQueue]]] = {
    "set-create": CreateSet,
    "set-delete": DeleteSet,
    "set-transfer": TransferPrimary,
    "set-promote": PromoteReplica,
    "set-add-replica": AddReplica,
    "set-remove-replica": RemoveReplica,
    "drain": DrainBroker,
    "undrain": UndrainBroker,
    "brokers-leave": LeaveBroker,
    "brokers-fail": FailBroker,
    "brokers-forget": ForgetBroker,
    "replica-policies": SetPolicies,
    "rebalance": Rebalance,
    "replicas-plan": PlanReplicas,
    "replicas-trim": TrimReplicas,
    "queue-declare": DeclareQueue,
    "queue-delete": DeleteQueue,
    "queue-locate": LocateQueue,
    "sets-shutdown": ShutDownSets,
    "cluster-show": ShowCluster,
    "cluster-history": ShowHistory,
    "setting-change": ChangeSetting,
    "login-change": ChangeLogin,
}
"""By the method's name, as operators and other brokers ask for it."""


# --- inputs


class ControllerBegan(NamedTuple):
    """This broker leads `default`. `map` is the one of its state: what `WriteMap` writes is in it at once."""

    map: ClusterMap
    name: str
    """Of this broker."""
    generation: int
    """Of `default`."""
    message_time_ms: int
    """In ms since 1970, by the clock of `default` (`model.message_clock`): what one controller notes the next one
    compares with its own time."""
    unique: str = ""
    """No other controller has had the same: what this one makes gets its UUID from it."""
    was_forced: bool = False
    """An operator has once forced a generation of `default`: records of sets that counted may be lost since."""


class ControllerEnded(NamedTuple):
    """It leads `default` no more. What was not answered never is: who asked asks the next one."""


class ReportReceived(NamedTuple):
    """A broker reports; this one does, too, by the same way."""

    report: BrokerReport


class BrokerDisconnected(NamedTuple):
    """The connection to or from a broker was reset, or is refused. Fed each time that it is."""

    name: str
    instance: str = ""
    """Of the process to which it led; empty: not known."""


class BrokerRefuses(NamedTuple):
    """After `BrokerDisconnected`: where that process listened, nobody takes a connection any more. After
    `LookForBroker`: where that broker is to be found."""

    name: str
    instance: str
    """Empty: it has not reported to this controller."""


class BrokerAnswered(NamedTuple):
    """What came of an `AskBroker`: one for each. That broker lives, and leads the set in this generation, as it says
    itself; 0: it does not, or gave no answer."""

    name: str
    set: str
    generation: int


class TimePassed(NamedTuple):
    """A while went by; fed at least every 0.1 s."""


class RecordRequested(NamedTuple):
    """A broker reads a set's record (`wanted` None), or has it replaced if it is as expected.

    Records are as the map has them: a set that has none yet has `SetRecorded(set, "", 0, "", 0, (), False)`.
    Answered by `AnswerRecord` with the same two numbers.
    """

    broker: str
    number: int
    set: str
    expected: SetRecorded | None = None
    wanted: SetRecorded | None = None


class OrderAnswered(NamedTuple):
    """What a broker's member said to an order, or a broker to `OrderDeletion`, if the answer was not lost."""

    broker: str
    number: int
    done: bool
    text: str


class RequestReceived(NamedTuple):
    """An operator, a client or a broker wants something; answered by `AnswerRequest` with the same number.

    A number is used once as long as this process lives.
    """

    number: int
    request: ClusterRequest


class MapWritten(NamedTuple):
    """The last event of `WriteMap(number)` has this LSN in the log of `default`. Fed right after it was written."""

    number: int
    lsn: int


class MapCommitted(NamedTuple):
    """The log of `default` is committed up to there."""

    lsn: int


class HeardTogether(NamedTuple):
    """What brokers have said within one round of the driver's loop, in that order: one look at the sets that it is
    about, and one `WriteMap`, do for all of it. When a broker that led many sets has failed it is hundreds."""

    inputs: tuple[RecordRequested | OrderAnswered, ...]


ControllerInput = (
    ControllerBegan
    | ControllerEnded
    | ReportReceived
    | BrokerDisconnected
    | BrokerRefuses
    | BrokerAnswered
    | TimePassed
    | RecordRequested
    | OrderAnswered
    | RequestReceived
    | MapWritten
    | MapCommitted
    | HeardTogether
)


# --- effects


class WriteMap(NamedTuple):
    """Write these into the log of `default`, as one unit; `MapWritten(number)` follows at once, `MapCommitted` later.

    There is at most one among the effects of an input, and it comes first.
    """

    number: int
    events: tuple[MapEvent, ...]


class OrderKind(StrEnum):
    """What the member of a set is told, as an operator would tell it."""

    PROMOTE = "promote"
    """`PromoteAsked`, as a failover; with `force` as an operator's, who gives up what only others hold. `to` is the
    set's primary where it may be alive: if it answers, it hands over first (an older broker refuses then)."""
    SWITCH_OVER = "switch-over"
    """`SwitchoverAsked(to)`, to the set's primary."""
    DROP = "drop"
    """`DropAsked(to)`, to the set's primary: that backup is gone. Also of `default`, which the controller leads."""
    SHUT_DOWN = "shut-down"
    """`ShutdownAsked(uuid)`, to the set's primary; `to` is the UUID."""


class GiveOrder(NamedTuple):
    """Tell `broker`'s member of `set`. `OrderAnswered(number)` follows, unless something is lost on the way."""

    number: int
    broker: str
    set: str
    kind: OrderKind
    to: str = ""
    cause: str = ""
    """Why, in a sentence, for the logs of both."""
    force: bool = False
    """Of PROMOTE."""


class OrderDeletion(NamedTuple):
    """Have the primary of `set` delete the queue of an entry, if the conditions hold. A frame of its own, which brokers
    of the release before do not know.

    `OrderAnswered(number)` follows where they do not. Where they do the queue is among the next `deleted_queues`.
    """

    number: int
    broker: str
    set: str
    queue: int
    """The id of the entry."""
    if_empty: bool
    if_unused: bool


class AskReport(NamedTuple):
    """Have the broker send a full report: something of it was lost."""

    broker: str


class LookForBroker(NamedTuple):
    """Find out at once whether anybody listens where that broker is to be found; if not, `BrokerRefuses` follows."""

    name: str
    address: str


class AskBroker(NamedTuple):
    """Ask that broker itself, on a connection of our own, whether it leads `set`; if it says so within `limit_s`,
    `BrokerAnswered` follows."""

    name: str
    address: str
    set: str
    cluster: str
    """The UUID of the set's log."""
    generation: int
    limit_s: float


class RefuseBroker(NamedTuple):
    """Whoever reports as this process is not of the cluster: end its control channel with this reason."""

    name: str
    instance: str
    text: str


class AnswerRecord(NamedTuple):
    """The record of a set; `record` None: nobody knows, `problem` says why. `written` as in `ha.effects.RecordWritten`.

    Of one that was written: it is committed.
    """

    broker: str
    number: int
    written: bool
    record: SetRecorded | None
    problem: str = ""


class AnswerRequest(NamedTuple):
    """What came of a request, in a sentence; if it changed the map, that is committed."""

    number: int
    done: bool
    text: str
    result: Mapping[str, object] = {}
    """For programs: what JSON can carry."""


class ControllerNote(NamedTuple):
    """A line for the operator's log."""

    level: str
    text: str


ControllerEffect = (
    WriteMap
    | GiveOrder
    | OrderDeletion
    | AskReport
    | LookForBroker
    | AskBroker
    | RefuseBroker
    | AnswerRecord
    | AnswerRequest
    | ControllerNote
)


# --- settings


GONE_AFTER_S: Final = 0.2


class ControllerSettings(NamedTuple):
    """Those of the primary of `default`; times in seconds."""

    failure_timeout_s: float = 2.0
    """A broker of which nothing was heard for so long has failed."""
    gone_after_s: float = GONE_AFTER_S
    """One whose connection was reset or refused has, when it is not back after so long."""
    min_replicas: int = 3
    """Of sets that neither say it themselves nor match a policy; never more than there are brokers."""
    recovery_interval_s: float = 60.0
    """So long a broker may be away before its replicas are made up for elsewhere."""
    check_interval_s: float = 60.0
    """Between two checks of a set's replicas, with jitter."""
    additions: int = 2
    """New replicas that one broker catches up with at a time."""
    auto_trim: bool = False
    """Remove replicas that a set has beyond what it wants."""
    policies: tuple[tuple[str, int], ...] = ()
    """As in `ReplicaPoliciesChanged`; those of the map come first."""
