"""Everything that changes broker state, as values.

Nothing happened unless an event says so, and whoever applies the events of a log from the first one on arrives at the
same state. The same event goes to the journal, to the backups and to Spark, encoded once by `events.codec`.

Identity: an object's id is the log sequence number (LSN) of the event that made it. A queue's id is the LSN of its
`QueueDeclared`, a message's id that of its `Enqueued`: both are unique within a resource set, and an object that was
deleted and made again under its old name is a new one.

Events are named tuples rather than dataclasses: they are made once per message, and a tuple costs a third of a frozen
dataclass. Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

Scalar = str | int | float | bool | None
"""What an argument of a queue, an exchange or a binding may be."""

Arguments = Mapping[str, Scalar]


class DequeueReason(IntEnum):
    """Why a message left a queue: what an operator asks first when one is missing."""

    CONSUMED = 0
    EXPIRED = 1
    DISPLACED = 2
    """A ring made room for a newer message, or a last-value queue got a newer value."""
    PURGED = 3
    REJECTED = 4
    MOVED = 5
    """To the alternate exchange: rejected there, or delivered too often."""


class QueueDeclared(NamedTuple):
    """A queue came to be; its id is this event's LSN."""

    name: str
    arguments: Arguments


class QueueUpdated(NamedTuple):
    """A queue's arguments were replaced; what it holds stays."""

    queue: int
    arguments: Arguments


class QueueDeleted(NamedTuple):
    """A queue is gone, with its messages and bindings."""

    queue: int


class ExchangeDeclared(NamedTuple):
    """An exchange came to be; its id is this event's LSN. `kind` is direct, topic, fanout or headers."""

    name: str
    kind: str
    arguments: Arguments


class ExchangeDeleted(NamedTuple):
    """An exchange is gone, with its bindings."""

    exchange: int


class Bound(NamedTuple):
    """An exchange sends what matches `key` (and, for a headers exchange, `arguments`) to a queue."""

    exchange: int
    queue: int
    key: str
    arguments: Arguments


class Unbound(NamedTuple):
    """The binding with that key is gone."""

    exchange: int
    queue: int
    key: str


class QueueUsed(NamedTuple):
    """A consumer came to a queue that is exclusive or deletes itself. `owner`: who has it alone, by user and container
    id."""

    queue: int
    owner: str


class ReplicationChanged(NamedTuple):
    """Whether the messages of a replicated queue are in this log too; they are, until this says otherwise."""

    queue: int
    messages: bool


class Enqueued(NamedTuple):
    """A message joined each of `queues`; its id is this event's LSN. `payload` is the AMQP message as it came."""

    queues: tuple[int, ...]
    payload: bytes
    durable: bool
    priority: int
    expires_at_ms: int
    """0: never."""
    key: str
    """The last-value key; empty for any other queue."""
    due_at_ms: int = 0
    """Nobody gets it before; 0: whoever comes does. A message that has this is another kind of record."""


class Dequeued(NamedTuple):
    """Messages left a queue for good."""

    queue: int
    ids: tuple[int, ...]
    reason: DequeueReason


class Acquired(NamedTuple):
    """Messages went to a consumer, which has not answered yet. Logged only where `log_acquisitions` is on."""

    queue: int
    ids: tuple[int, ...]


class Released(NamedTuple):
    """Messages came back to their places; `failed` counts a failed delivery for each."""

    queue: int
    ids: tuple[int, ...]
    failed: bool


class Annotated(NamedTuple):
    """Consumers have given messages back with annotations, which whoever gets them next gets with them."""

    queue: int
    ids: tuple[int, ...]
    annotations: bytes
    """A map of AMQP, encoded: all that consumers have said of these, in the place of what this said before."""


EVERYTHING: Final = (1 << 64) - 1
"""Above all ids."""


class HandedOut(NamedTuple):
    """Messages of a queue up to this id may have gone to consumers, those that are still to come among them; none with
    a larger id has. Written ahead: see `model.handout_marks`. It takes the place of what was said before.

    Of the queue 0: messages up to this id may have gone to consumers whatever the queue, and what the last events about
    single queues say counts from here on. After a GenerationStarted it does not, until this comes, nor after one with
    EVERYTHING: then all may have gone to consumers.
    """

    queue: int
    upto: int


class SessionAcquired(NamedTuple):
    """Messages went to a consumer of a client's session: they are held for it until they leave or are released.

    Written before they go out, whatever `log_acquisitions` is. Who had one of them before has it no more.
    """

    queue: int
    session: int
    """The session's id in `default`."""
    name: str
    """Its UUID: an id may be given twice where the end of the log of `default` was lost."""
    link: str
    """The consumer's link."""
    ids: tuple[int, ...]
    """In the order in which they went out."""


class ProducerAdvanced(NamedTuple):
    """A producer that numbers its messages has had one accepted: in one unit with the Enqueued of that message."""

    producer: bytes
    sequence: int
    """The highest that was accepted; what comes with one that is not higher is a duplicate."""
    kept: int
    """So many producers are remembered, the one of this event among them; who was idle longest is forgotten."""


class NumbersRefused(NamedTuple):
    """Messages of a producer were refused, and by now a later one was accepted: in one unit with what says that.

    So what comes with one of these numbers is no duplicate, though it is not above the highest.
    """

    producer: bytes
    sequences: tuple[int, ...]
    """Ascending, below the highest that was accepted."""


class TransactionCommitted(NamedTuple):
    """Closes a unit: the `parts` events before it, marked as parts, count from here on, all or none."""

    parts: int


MEMBERS_CHANGED: Final = "the members of the group changed"
"""The cause of each generation of a group, and of no other: in a log it tells a group from a set with a primary."""


class GenerationStarted(NamedTuple):
    """A broker became primary; what follows is its word. `cluster`: the UUID that all logs of one cluster share.

    In the log of a group: who is in sync has changed, and `primary` had that recorded. All members write the same, so
    it has no time: `started_at_ms` is 0.
    """

    generation: int
    primary: str
    cluster: str
    started_at_ms: int
    forced: bool
    """An operator overrode a refusal."""
    cause: str
    """Why, in a sentence."""


class InSyncChanged(NamedTuple):
    """From here on these brokers, the primary among them, must hold an event before it is confirmed."""

    epoch: int
    members: tuple[str, ...]


class TransientsLost(NamedTuple):
    """Messages with ids below `before` that are not durable are gone from all replicated queues.

    Written by a primary that came back from its store: what others may still have of them, the cluster has no more.
    """

    before: int


class BrokerRegistered(NamedTuple):
    """A broker of the cluster is there, or says something else of itself than before. In the log of `default` only."""

    name: str
    uuid: str
    """Of what it holds: another one once its data directory is another one."""
    address: str
    """Where other brokers reach it."""
    clients_url: str
    """Where clients do; empty: at `address`."""
    zone: str
    version: str
    """Of the release that it runs."""


class BrokerChanged(NamedTuple):
    """A broker went away or came back, or is to be emptied. In the log of `default` only."""

    name: str
    up: bool
    draining: bool
    since_ms: int
    """When it went away or came back."""


class BrokerRemoved(NamedTuple):
    """A broker is of the cluster no more. In the log of `default` only."""

    name: str


class SetPlaced(NamedTuple):
    """Which brokers are to have replicas of a resource set, and what else is wanted of it; the first one makes the set.

    In the log of `default` only.
    """

    name: str
    replicas: tuple[str, ...]
    leaving: tuple[str, ...]
    """Of these, those that go once the others are enough."""
    preferred: str
    """Who should be primary; empty: nobody in particular."""
    min_replicas: int
    """0: as the policies say."""
    min_in_sync: int
    """0: as the brokers' settings say."""


class SetDeleted(NamedTuple):
    """A resource set is gone, with its log. In the log of `default` only."""

    name: str


class SetRecorded(NamedTuple):
    """The record of a resource set: what a coordinator remembers of a cluster. In the log of `default` only."""

    name: str
    cluster: str
    generation: int
    primary: str
    epoch: int
    members: tuple[str, ...]
    claimed: bool
    """The primary was named, and has not had it written yet that its generation has begun."""


STRATEGIES: Final = ("primary", "group")
"""How a set is replicated: one of its brokers writes it and the others are its backups, or each of them does."""
GROUP: Final = STRATEGIES[True]


class SetGrouped(NamedTuple):
    """Each broker that has a replica of the set writes it: a group. In the log of `default` only.

    Written when the set is made, and never changed.
    """

    name: str


class QueuePlaced(NamedTuple):
    """A queue belongs to a resource set other than `default`; its id in `default` is the LSN of the first such event.

    `arguments`: with which the set's primary declares it. `deleting`: that one is to delete it, and then it goes.
    """

    name: str
    set: str
    arguments: Arguments
    deleting: bool


class QueueRemoved(NamedTuple):
    """A queue of a resource set other than `default` is gone, with its bindings; its name is free."""

    queue: int


class ReplicaPoliciesChanged(NamedTuple):
    """How many replicas sets want that do not say so themselves: by patterns of their names, the first one counts."""

    patterns: tuple[str, ...]
    counts: tuple[int, ...]
    """One for each pattern."""


class SettingChanged(NamedTuple):
    """A setting has another value for all brokers than their configuration files say."""

    key: str
    value: str
    """As JSON; empty: what the files say counts."""
    user: str
    """Who wanted that; empty: nobody who has logged in."""
    at_ms: int
    """In ms since 1970."""


class SessionStarted(NamedTuple):
    """A client's session came to be, with its client connected; its id is this event's LSN. In `default` only."""

    name: str
    """The UUID that the client has made, in lower case."""
    user: str
    """Who may resume it; empty: whoever has proved to be nobody."""
    timeout_ms: int
    """For so long it waits for its client."""
    since_ms: int


class SessionResumed(NamedTuple):
    """The client of a session is connected, on another connection than before. In `default` only."""

    session: int
    epoch: int
    """Higher with each connection that it has had: what an earlier one says of the session counts no more."""
    timeout_ms: int
    since_ms: int


class SessionDetached(NamedTuple):
    """A session waits for its client. In `default` only."""

    session: int
    since_ms: int


class SessionEnded(NamedTuple):
    """A session is gone; what its consumers hold goes back. In `default` only."""

    session: int
    failed: bool
    """Its client did not end it: what goes back counts as delivered in vain."""


SessionEvent = SessionStarted | SessionResumed | SessionDetached | SessionEnded

MapEvent = (
    BrokerRegistered
    | BrokerChanged
    | BrokerRemoved
    | SetPlaced
    | SetDeleted
    | SetRecorded
    | QueuePlaced
    | QueueRemoved
    | ReplicaPoliciesChanged
    | SetGrouped
    | SettingChanged
)
"""What the cluster map is made of."""

Event = (
    QueueDeclared
    | QueueUpdated
    | QueueDeleted
    | ExchangeDeclared
    | ExchangeDeleted
    | Bound
    | Unbound
    | QueueUsed
    | ReplicationChanged
    | Enqueued
    | Dequeued
    | Acquired
    | Annotated
    | Released
    | HandedOut
    | SessionAcquired
    | ProducerAdvanced
    | NumbersRefused
    | TransactionCommitted
    | GenerationStarted
    | InSyncChanged
    | TransientsLost
    | MapEvent
    | SessionEvent
)
