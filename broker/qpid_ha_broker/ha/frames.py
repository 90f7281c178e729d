"""What brokers of a cluster say to each other: one value per kind of frame, and their one encoding.

A *peer channel* carries frames both ways, in order, until it is lost. Three conversations use it: a backup follows its
primary (`Hello` to `Heartbeat`), a broker asks another one (`Question`, `Answer`), and a copy of one queue is kept
elsewhere (`Follow`). What is frequent (batches, chunks, acknowledgements) is binary, little-endian; what is rare is
JSON, so that a trace can be read. The first byte is the kind. docs/protocol.md has the tables.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.model.logs.log import DEFAULT_SET

PROTOCOL_VERSION: Final = 1
WITH_CLOCK: Final = "clock"
"""See `Question.request`."""
WITH_IDENTITY: Final = "identity"
"""See `Question.request`."""
IF_STALLED: Final = "if-stalled"
"""A step-down is wanted only of a primary that cannot confirm anything, as its in-sync set waits for being recorded."""


class FrameError(Exception):
    """Bytes that are no frame of this protocol: what was expected, and what was found."""


class GenerationEntry(NamedTuple):
    """One line of a generation history: `primary` wrote all from `first_lsn` to the next line's."""

    generation: int
    primary: str
    first_lsn: int


class GenerationDetails(NamedTuple):
    """When a generation began, in ms since 1970 (0: not known), whether an operator overrode a refusal, and why."""

    started_at_ms: int
    forced: bool
    cause: str


class LogPosition(NamedTuple):
    """A place in the history of a cluster; positions are totally ordered."""

    generation: int
    lsn: int


# --- a backup and its primary


class Hello(NamedTuple):
    """A backup's first word."""

    version: int
    name: str
    instance: str
    """Of this process: made at its start."""
    cluster: str
    """The UUID of its log; empty when it has none."""
    history: tuple[GenerationEntry, ...]
    last_lsn: int
    applied_lsn: int
    """What it can no longer take back."""
    complete: bool
    """Its state is the whole of its log up to `last_lsn`; False in the middle of a catch-up by difference."""
    lacks_transient: bool
    """But for messages that are not durable: it came back from its store."""
    promised: int
    """The newest generation that it has promised to a candidate."""
    remembers: bool
    """Whatever it has confirmed or promised to anybody, it knows: it was not restarted, or has it from its store."""
    set: str = DEFAULT_SET
    """The resource set that the channel is about."""
    started: tuple[int, ...] = ()
    """When each generation of `history` began, in ms since 1970; 0: not known. Empty: for a broker that is older."""
    reads_clock: bool = False
    """It understands `ClockReading`. False: it is older, or this is for a broker that is."""
    store_problem: str = ""
    """Why its store takes nothing now, so that nobody should wait for it. Empty: it does, or this is for a broker that
    is older."""
    reads_marks: bool = False
    """It understands the event `HandedOut`. False: as of `reads_clock`."""
    reads_schedules: bool = False
    """It understands messages that are due later. False: as of `reads_clock`."""
    reads_annotations: bool = False
    """It understands the event `Annotated`. False: as of `reads_clock`."""
    reads_details: bool = False
    """It understands `details` of a Welcome. False: as of `reads_clock`."""


class Resync(StrEnum):
    """How a backup is brought level."""

    TAIL = "tail"
    DIFF = "diff"


class Welcome(NamedTuple):
    """The primary's answer: forget what lies after `common_lsn`; what follows continues it (tail), or corrects it."""

    name: str
    cluster: str
    generation: int
    history: tuple[GenerationEntry, ...]
    common_lsn: int
    resync: Resync
    clients_url: str
    """Where clients find this primary; empty: at the address that the backup used."""
    link_timeout_s: float
    """The primary gives a link up after so long a silence."""
    details: tuple[GenerationDetails, ...] = ()
    """Of the newest so many of `history`. Empty: for a broker that is older, or of one."""


class RefusalCode(StrEnum):
    """Why a broker will not have another one as its backup."""

    NOT_PRIMARY = "not-primary"
    OTHER_CLUSTER = "other-cluster"
    SAME_NAME = "same-name"
    BAD_HISTORY = "bad-history"
    VERSION = "version"
    PROTOCOL = "protocol"
    STEPPED_DOWN = "stepped-down"
    NO_SET = "no-set"
    """There is no such resource set here."""
    NO_QUEUE = "no-queue"
    """There is no such queue to follow, or its messages are not replicated."""


class Refused(NamedTuple):
    """No; the channel ends. `primary_address`: who may be worth asking."""

    code: RefusalCode
    text: str
    primary_address: str


class Batch(NamedTuple):
    """What one turn wrote. `committed_lsn`: up to there the receiver may apply."""

    generation: int
    first_lsn: int
    last_lsn: int
    committed_lsn: int
    data: bytes


class Ack(NamedTuple):
    """The backup holds everything up to `lsn`, and has taken in so many chunks since the channel was opened.

    `lsn` 0: it is in the middle of a comparison, or of a log from its beginning, or its store does not have that yet.
    """

    generation: int
    lsn: int
    chunks: int


class Heartbeat(NamedTuple):
    """I am here. From a primary also: this much is committed, this much is written."""

    generation: int
    committed_lsn: int
    last_lsn: int


class ClockReading(NamedTuple):
    """By that the messages of the set expire now; see `model.message_clock`. Only to who says that it reads this."""

    generation: int
    now_ms: int


class Holdings(NamedTuple):
    """Of queue `queue` a backup holds the messages with these ids, as ranges (first, last), ascending."""

    queue: int
    ranges: tuple[tuple[int, int], ...]


class HoldingsDone(NamedTuple):
    """That was all."""


class Objects(NamedTuple):
    """The configuration as of `lsn`, as records: what is not among them does not exist."""

    generation: int
    lsn: int
    epoch: int
    members: tuple[str, ...]
    used: tuple[tuple[int, str], ...]
    """Queues that had a consumer, with the owner of an exclusive one."""
    unreplicated: tuple[int, ...]
    """Queues of which only the configuration is replicated."""
    data: bytes


class Chunk(NamedTuple):
    """A replicating browser's find: of the ids from `low` to `high` in `queue` drop these, and take in those.

    `last`: there is nothing further down; what the backup holds below `low` goes.
    """

    generation: int
    queue: int
    low: int
    high: int
    last: bool
    dropped: tuple[int, ...]
    failures: tuple[tuple[int, int], ...]
    """(id, failed deliveries) of those that have any."""
    data: bytes
    """Records of messages; behind them what consumers have said of these, and of what the backup has already."""


class CaughtUp(NamedTuple):
    """Every browser is done: with what is in the stream before this, the backup is whole."""

    generation: int
    lsn: int


class Observe(NamedTuple):
    """The primary does not wait for this backup, which is level, and `why`: it is, or will be, in no in-sync set."""

    generation: int
    why: str


class TakeOver(NamedTuple):
    """The primary's operator wants this backup to be promoted."""

    generation: int


class Shutdown(NamedTuple):
    """The whole cluster ends: mark the store as whole up to `lsn` under `uuid`; without one just end."""

    generation: int
    lsn: int
    uuid: str


# --- a broker and another one


class Topic(StrEnum):
    """What a question is about."""

    STATUS = "status"
    CLAIM = "claim"
    """I am about to become primary of `generation`: will you follow nobody older?"""
    WITHDRAW = "withdraw"
    """I am not, after all."""
    STEP_DOWN = "step-down"
    """Hand over to me."""
    QUERY = "query"
    """Tell facts and figures; answered by the driver, as JSON in the text."""
    ANNOUNCE = "announce"
    """I am primary of `generation`: come."""
    CONNECTIONS = "connections"
    """Tell of your connections, or close one; answered by the driver. `request` and the answer's text are JSON."""


class Question(NamedTuple):
    """One broker asks another; the answer has the same `number`."""

    number: int
    topic: Topic
    asker: str
    instance: str
    cluster: str
    generation: int
    lsn: int
    address: str
    """Where the asker can be reached, if it knows."""
    set: str = DEFAULT_SET
    """The resource set that is asked about."""
    request: str = ""
    """What is wanted, where the topic alone does not say it. Of a `STATUS`: `WITH_CLOCK`, the answer's `clock_ms`;
    `WITH_IDENTITY`, which coordinator it goes by. An older broker gives neither, and is not sent what it did not ask
    for. Of a `STEP_DOWN`: `IF_STALLED`; an older broker hands over in any case. Of a `QUERY`: a setting of the cluster
    (`server.sets.cluster_settings`), a part of the page (`server.peers.page_questions`), or a command
    (`server.sets.forwarded_commands`), of which the answer has what came of it; an older broker tells its facts
    alone."""


class StoreOrigin(StrEnum):
    """Where what a broker holds comes from."""

    MEMORY = ""
    """From the stream, since it was last level with a primary, which the record named then, if there is one."""
    UNVERIFIED = "unverified"
    """From the stream of a primary that this process has not seen in the record since it was level with it. That one
    may have slept, and the process before this one have followed a newer one. Never without a coordinator."""
    DIRTY = "dirty"
    """From a store that was not closed in order, and it has not been level with anybody since."""
    CLEAN = "clean"
    """From a store that was closed together with all others."""
    FAILED = "failed"
    """From the stream, but its store holds no more of it: it goes on in memory because it was told to."""


class Answer(NamedTuple):
    """What a broker says of itself."""

    number: int
    name: str
    instance: str
    cluster: str
    state: str
    generation: int
    """The newest in its log."""
    epoch: int
    """Of the in-sync set that it knows."""
    members: tuple[str, ...]
    """Of a store that was not closed in order: with those of the sets before, which may never have been replaced."""
    newest_members: tuple[str, ...]
    """Of the last set in its log alone."""
    lsn: int
    complete: bool
    promised: int
    """The newest generation that it has ever promised to a candidate."""
    promised_to: str
    """To whom, while that binds it; else empty."""
    granted: bool
    """Whether it agrees to what was asked; the text says why not. `STATUS`: False while a primary hands over to it."""
    text: str
    min_in_sync: int
    store: StoreOrigin = StoreOrigin.MEMORY
    committed_generation: int = 0
    """Of the furthest event that stores keep of which this process was told that it is committed; 0: of none."""
    committed_lsn: int = 0
    """Its LSN."""
    claims: tuple[int, ...] = ()
    """The generations that it has on disk to have wanted for itself, each before the coordinator was asked; ascending.
    Those that its log has nothing of, as far as they may still be recorded."""
    clock_ms: int = 0
    """By that messages of the set expire where it is; 0: it was not asked for that, or has none."""
    record_identity: str = ""
    """The identity of the coordinator that it goes by; empty: it was not asked for that, or does not know it."""
    record_place: str = ""
    """The URL of that, as its configuration has it."""


# --- a copy of one queue, kept elsewhere


class Follow(NamedTuple):
    """Whoever keeps a copy of queue `queue` wants all that is committed of it; Followed or Refused is the answer."""

    version: int
    name: str
    queue: str
    cluster: str
    """The UUID of the log that it has copied from; empty when it begins."""
    history: tuple[GenerationEntry, ...]
    last_lsn: int
    """Up to there of that history its copy is whole."""
    reads_clock: bool = False
    """As in Hello."""


class Followed(NamedTuple):
    """Drop what came after `common_lsn`, then tell Holdings by the ids of my log; chunks and batches follow."""

    name: str
    cluster: str
    generation: int
    history: tuple[GenerationEntry, ...]
    common_lsn: int
    queue: int
    """The queue's id: another one than before means that the queue before was deleted."""
    arguments: Arguments
    link_timeout_s: float


Frame = (
    Hello
    | Welcome
    | Refused
    | Batch
    | Ack
    | Heartbeat
    | ClockReading
    | Holdings
    | HoldingsDone
    | Objects
    | Chunk
    | CaughtUp
    | Observe
    | TakeOver
    | Shutdown
    | Question
    | Answer
    | Follow
    | Followed
)
