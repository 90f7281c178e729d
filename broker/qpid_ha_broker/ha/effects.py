"""What happens to a member of a cluster, and what it wants done: the two closed lists between the core and a driver.

The core is `Member.handle(input, now_s) -> list[Effect]`; `now_s` is a clock that never goes back. A driver feeds
inputs in the order in which they happen and carries effects out in the order in which they come; it decides nothing.
Whatever it is asked to do that has a result (connect, ask, record) comes back as an input with the request's number.
"""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, Frame, GenerationEntry, Question, StoreOrigin
from qpid_ha_broker.ha.history import PROMOTED_BY
from qpid_ha_broker.ha.link_ends import LinkEnd
from qpid_ha_broker.ha.states import LEADING, Phase, State
from qpid_ha_broker.model.logs import log as model_log


class MemberStatus(NamedTuple):
    """What can be told of a broker's part in its cluster; not how far its log is, which changes with every message."""

    state: State
    phase: Phase | None
    """Of a primary in a cluster."""
    generation: int
    """The newest in this broker's log; 0 for an empty one."""
    epoch: int
    """Of the in-sync set that this broker knows of."""
    members: tuple[str, ...]
    """That set."""
    cluster: str
    """The UUID of this broker's log; empty for an empty one."""
    history: tuple[GenerationEntry, ...]
    """The generations of this broker's log."""
    primary: str
    """Who is primary, as far as this broker knows; empty: nobody."""
    primary_address: str
    """Where clients find the primary; empty when this broker does not know, or is it."""
    primary_broker_address: str
    """Where brokers do."""
    store: StoreOrigin
    """Where what this broker holds comes from."""
    is_chosen: bool
    """All stores were compared, and the one with which this broker came back is the one to begin with."""
    login_problem: str
    """Why another broker does not let this one in; empty: none says so, or nobody has to."""
    problem: str
    """What keeps a primary from recording changes of the in-sync set, or who leads another cluster beside it; what
    keeps whoever has no primary from following one or from being it. With what to do; empty: nothing that is known."""
    is_closing: bool
    """Clients are not served any more, because the whole cluster ends."""
    observes: str = ""
    """Why this broker, which is level, is not in the in-sync set; empty: it is, or lacks something."""
    store_problem: str = ""
    """Why its store takes nothing now, which may pass; empty: it does, or there is none."""

    @property
    def serves_clients(self) -> bool:
        """Whether commands are carried out here."""
        return self.state in LEADING and not self.is_closing


# --- inputs


class Started(NamedTuple):
    """The process is up: look for the primary."""


class Ticked(NamedTuple):
    """A while went by; to be fed several times in every heartbeat interval."""


class LinkOpened(NamedTuple):
    """The channel that `Connect` asked for is open."""

    link: int


class LinkLost(NamedTuple):
    """A channel is gone, or could not be opened. Links that we opened and links that peers opened."""

    link: int
    reason: str
    """What the other broker has said, or what became of the connection; for people."""
    end: LinkEnd = LinkEnd.LOST


class FrameReceived(NamedTuple):
    """A frame came on a channel; the first frame on an unknown link is a peer's that has opened it."""

    link: int
    frame: Frame


class FrameDamaged(NamedTuple):
    """What came on a channel is no frame."""

    link: int
    problem: str


class LinkWritable(NamedTuple):
    """Whether more than frames of the live stream should be sent now."""

    link: int
    writable: bool


class TurnEnded(NamedTuple):
    """The end of a turn on which the log has nothing pending; `batch` is what it wrote."""

    batch: model_log.LogBatch | None


class PromoteAsked(NamedTuple):
    """Somebody wants this broker to be the primary; answered by `Answered(request, ...)`."""

    request: int
    force: bool = False
    cause: str = f"{PROMOTED_BY}an operator"
    failover: bool = False
    """Only because there is no primary: one that answers, or is about to take over from one, is left alone."""
    predecessor: str = ""
    """Of a failover: the primary that whoever wants this does not hear, and that may live. If it answers this broker,
    it hands over first if it can confirm nothing, and is left alone if it can; so is any other one."""


class DemoteAsked(NamedTuple):
    """Somebody wants this broker to be primary no more; answered by `Answered(request, ...)`.

    `cause`: who, and why, as a reason for the change of state."""

    request: int
    cause: str = "demoted by an operator"


class SwitchoverAsked(NamedTuple):
    """Somebody wants this primary to hand over to `to` (empty: to the best); answered by `Answered(request, ...)`.

    `cause`: who, and why, for the log. `within_s`: how long it is wanted; then it is void, and a backup that comes is
    refused. None: five ask limits."""

    request: int
    to: str
    cause: str = "a switchover by an operator"
    within_s: float | None = None


class DropAsked(NamedTuple):
    """Somebody knows that `backup` is gone, and wants this primary not to wait for it; answered by
    `Answered(request, ...)`."""

    request: int
    backup: str
    reason: str


class ClientsEnded(NamedTuple):
    """What `EndClients` asked for is done: nothing is written to the log any more, and its last batch was fed."""


class SilentPeer(NamedTuple):
    """Somebody is there, or may be, and gave no answer all the same: it refused the login, or took the connection and
    said nothing."""

    address: str
    why: str


class PeersAnswered(NamedTuple):
    """All peers have answered question `number`, or the limit is over. `unreachable`: addresses without an answer."""

    number: int
    answers: tuple[Answer, ...]
    unreachable: tuple[str, ...]
    silent: tuple[SilentPeer, ...] = ()
    """Those of `unreachable` at which a process took the connection."""


class RecordRead(NamedTuple):
    """What the coordinator holds; None when it cannot be reached, and then `problem` says why."""

    number: int
    record: ClusterRecord | None
    problem: str = ""


class RecordWritten(NamedTuple):
    """`written`: the coordinator now holds what was asked. If not, `record` is what it holds instead, None: unknown."""

    number: int
    written: bool
    record: ClusterRecord | None
    problem: str = ""


class CoordinatorSeen(NamedTuple):
    """Which coordinator this broker goes by: its identity (empty: not known), and its URL, for people."""

    identity: str
    place: str


NO_COORDINATOR_SEEN = CoordinatorSeen("", "")


class Persisted(NamedTuple):
    """The store holds what `Persist(number)` asked for, and all before it."""

    number: int


class CheckpointPersisted(NamedTuple):
    """The store holds the state that `WriteCheckpoint(number)` asked for."""

    number: int


class StoreFailed(NamedTuple):
    """This backup's store holds nothing more, and it goes on in memory all the same."""


class StoreWritable(NamedTuple):
    """Whether the store takes what it is given. What it does not take waits, and is written once there is room."""

    problem: str
    """Why it does not; empty: it does."""


class ShutdownAsked(NamedTuple):
    """The whole cluster shall end, under this UUID; answered by `Answered(request, ...)`."""

    request: int
    uuid: str


class Stopping(NamedTuple):
    """The process will end."""


Input = (
    Started
    | Ticked
    | LinkOpened
    | LinkLost
    | FrameReceived
    | FrameDamaged
    | LinkWritable
    | TurnEnded
    | PromoteAsked
    | DemoteAsked
    | SwitchoverAsked
    | DropAsked
    | ClientsEnded
    | PeersAnswered
    | RecordRead
    | RecordWritten
    | CoordinatorSeen
    | Persisted
    | CheckpointPersisted
    | StoreFailed
    | StoreWritable
    | ShutdownAsked
    | Stopping
)

# --- effects


class Connect(NamedTuple):
    """Open a channel to `address`; `LinkOpened(link)` or `LinkLost(link)` follows.

    The number is below 0; those of channels that peers open are the driver's, and above.
    """

    link: int
    address: str


class Send(NamedTuple):
    """Send `frame` on a channel, after all that was sent before."""

    link: int
    frame: Frame


class Close(NamedTuple):
    """Say goodbye on a channel once all was sent. No `LinkLost` follows; nothing more is fed from it."""

    link: int
    reason: str


class Ask(NamedTuple):
    """Ask every address of `addresses` at once, wait at most `limit_s`; `PeersAnswered(question.number)` follows."""

    question: Question
    addresses: tuple[str, ...]
    limit_s: float


class ReadRecord(NamedTuple):
    """Read the coordinator's record; `RecordRead(number)` follows, within a few seconds."""

    number: int


class WriteRecord(NamedTuple):
    """Replace `expected` by `wanted` in the coordinator, if it still holds it; `RecordWritten(number)` follows."""

    number: int
    expected: ClusterRecord
    wanted: ClusterRecord


class Persist(NamedTuple):
    """Put this part of the replicated log into the store; `Persisted(number)` follows.

    It does once what is durable of it is on disk. `transient`: as in `model.log.Batch`.
    """

    number: int
    first_lsn: int
    last_lsn: int
    committed_lsn: int
    transient: int
    data: bytes


class TruncateLog(NamedTuple):
    """What the store was given after `lsn` of the replicated log is void."""

    lsn: int


class BeginCheckpoint(NamedTuple):
    """As of `lsn` the state is what no log tells: what is stored from now on counts only with checkpoint `number`."""

    number: int
    lsn: int


class WriteCheckpoint(NamedTuple):
    """Put the state as it is now into the store, as checkpoint `number`; `CheckpointPersisted(number)` follows."""

    number: int


class PersistVote(NamedTuple):
    """Have on disk, before the next effect, that `generation` was promised `to`; 0: nothing is promised any more.

    `claims`: the generations that this broker wanted for itself, as in an `Answer`.
    """

    generation: int
    to: str
    claims: tuple[int, ...] = ()


class CleanEnd(NamedTuple):
    """Close the store as one that is whole, under `uuid` (empty: just close it), and end the process."""

    uuid: str


class StateChanged(NamedTuple):
    """The state is another one now. Clients are served in PRIMARY only: the driver ends those that are not."""

    before: State
    after: State
    reason: str


class StatusChanged(NamedTuple):
    """What can be told of this broker is something else now; comes last of all that one input causes."""

    status: MemberStatus


class EndClients(NamedTuple):
    """End all clients' connections, have the last turn, feed its batch, then `ClientsEnded`."""


class TurnDue(NamedTuple):
    """Have a turn soon: something was written to the log."""


class Committed(NamedTuple):
    """More of the log is committed: let those hear who wait for that. It takes a turn only where that finds more to
    do."""


class Answered(NamedTuple):
    """What came of a request such as `PromoteAsked`, in a sentence; requests are above 0."""

    request: int
    done: bool
    text: str


class Discarded(NamedTuple):
    """Messages of a diverged log, which the cluster does not have, leave `queue`: keep them where they can be found."""

    queue: str
    ids: tuple[int, ...]
    payloads: tuple[bytes, ...]


class Notice(NamedTuple):
    """A line for the operator's log."""

    level: str
    text: str


class Stop(NamedTuple):
    """This broker cannot be part of the cluster: end the process with this reason."""

    reason: str


Effect = (
    Connect
    | Send
    | Close
    | Ask
    | ReadRecord
    | WriteRecord
    | Persist
    | TruncateLog
    | BeginCheckpoint
    | WriteCheckpoint
    | PersistVote
    | CleanEnd
    | StateChanged
    | StatusChanged
    | EndClients
    | TurnDue
    | Committed
    | Answered
    | Discarded
    | Notice
    | Stop
)
