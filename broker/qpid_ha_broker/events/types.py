"""Everything that changes broker state, as values.

An event is to the broker what an entry is to a ledger: nothing happened unless it is written there, and whoever reads
the ledger from the top arrives at the same books. The same event goes to the journal, to the backups and to Spark,
encoded once by `events.codec`.

Identity: an object's id is the log sequence number (LSN) of the event that made it. A queue's id is the LSN of its
`QueueDeclared`, a message's id that of its `Enqueued`: both are unique within a resource set, and an object that was
deleted and made again under its old name is a new one.

Events are named tuples rather than dataclasses: they are made once per message, and a tuple costs a third of a frozen
dataclass. Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

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
    """A consumer came to a queue that is exclusive or deletes itself. `owner`: the container id of who has it alone."""

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


class ProducerAdvanced(NamedTuple):
    """A producer that numbers its messages has had one accepted: in one unit with the Enqueued of that message."""

    producer: bytes
    sequence: int
    """The highest that was accepted; what comes with one that is not higher is a duplicate."""
    kept: int
    """So many producers are remembered, the one of this event among them; who was idle longest is forgotten."""


class TransactionCommitted(NamedTuple):
    """Closes a unit: the `parts` events before it, marked as parts, count from here on, all or none."""

    parts: int


class GenerationStarted(NamedTuple):
    """A broker became primary; what follows is its word. `cluster`: the UUID that all logs of one cluster share."""

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
    | Released
    | ProducerAdvanced
    | TransactionCommitted
    | GenerationStarted
    | InSyncChanged
    | TransientsLost
)
