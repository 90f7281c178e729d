"""The columns of a journal, in their order: name, type, whether a filter on it is carried out here, and what it says.

Spark knows no unsigned numbers. The numbers of a broker's own log begin at 2^63 and are therefore negative here; that
keeps each number one thing, and puts the two logs apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final, NamedTuple

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from .errors import PipelineError


class Column(NamedTuple):
    """`meaning` is what docs/pipeline.md says."""

    name: str
    type: DataType
    meaning: str


_TEXT: Final = StringType()
_TIME: Final = TimestampType()
_MAP: Final = MapType(StringType(), StringType())

COLUMNS: Final = (
    Column("cluster", _TEXT, "UUID of the set's log; of `default` that of the cluster"),
    Column("broker", _TEXT, "name of the broker whose store it is"),
    Column("set", _TEXT, "resource set"),
    Column("generation", LongType(), "generation of the primary that wrote the event"),
    Column("lsn", LongType(), "log sequence number; negative in the broker's own log"),
    Column("local", BooleanType(), "the event is of the broker's own log, which is never replicated"),
    Column("committed", BooleanType(), "the journal itself says that the event was committed"),
    Column("in_transaction", BooleanType(), "the event is part of a transaction, which was committed"),
    Column("event", _TEXT, "`enqueued`, `dequeued`, `queue_declared`, ...: the events of protocol.md in lower case"),
    Column("queue", _TEXT, "name of the queue; null where the event has none"),
    Column(
        "queue_id", LongType(), "LSN of the queue's declaration: two queues of one name, one after the other, differ"
    ),
    Column("message_id", LongType(), "LSN of the event that enqueued the message"),
    Column("written_at", _TIME, "when this broker wrote the event into its journal, by its own clock"),
    Column("enqueued_at", _TIME, "the same, of an `enqueued`; else null"),
    Column("reason", _TEXT, "of a `dequeued`: `consumed`, `expired`, ...; of a `released`: `failed` or null"),
    Column("durable", BooleanType(), "of an `enqueued`, as all columns from here on"),
    Column("priority", IntegerType(), "0 to 9, or what the sender said"),
    Column("expires_at", _TIME, "null: never"),
    Column("due_at", _TIME, "nobody gets it before; null: it is for whoever comes"),
    Column("key", _TEXT, "last-value key"),
    Column("size", LongType(), "bytes of the message with all its sections"),
    Column("ttl_ms", LongType(), "header: time to live, as the sender wrote it; null where none was given"),
    Column("first_acquirer", BooleanType(), "header: false: somebody may have seen it before; null: it does not say"),
    Column("delivery_count", LongType(), "header: failed deliveries before it came here"),
    Column("amqp_message_id", _TEXT, "properties: message-id, as text"),
    Column("user_id", BinaryType(), "properties"),
    Column("to", _TEXT, "properties"),
    Column("subject", _TEXT, "properties"),
    Column("reply_to", _TEXT, "properties"),
    Column("correlation_id", _TEXT, "properties, as text"),
    Column("content_type", _TEXT, "properties"),
    Column("content_encoding", _TEXT, "properties"),
    Column("absolute_expiry", _TIME, "properties: absolute-expiry-time; brokers go by `ttl_ms`"),
    Column("created_at", _TIME, "properties: creation-time, by the sender's clock"),
    Column("group_id", _TEXT, "properties"),
    Column("group_sequence", LongType(), "properties"),
    Column("reply_to_group_id", _TEXT, "properties"),
    Column("message_annotations", _MAP, "values as text"),
    Column("application_properties", _MAP, "values as text"),
    Column("body", BinaryType(), "bytes of `data` sections, or of a text or binary value; else the encoded sections"),
    Column("body_text", _TEXT, "the body where it is a text value, or UTF-8 without control characters"),
    Column("details", _TEXT, "of events that are not about messages: all their fields as JSON"),
    Column("from_snapshot", BooleanType(), "read from the snapshot with which the store begins: it was so by then"),
    Column("discarded", BooleanType(), "of a branch that the cluster went on without"),
    Column("complete_from", LongType(), "LSN from which on there are all events of this log; 1: from its beginning"),
    Column("file", _TEXT, "where it was read"),
    Column("offset", LongType(), "of the record in the file"),
)

TYPED_MAPS: Final = (
    "application_properties_typed", "message_annotations_typed", "delivery_annotations_typed", "footer_typed",
)  # fmt: skip

ON_REQUEST: Final = (
    Column("payload", BinaryType(), "the whole message as it came, as `replay` sends it again"),
    Column("body_sections", BinaryType(), "the sections of the body, encoded as they came"),
    Column("amqp_message_id_typed", _TEXT, "properties: message-id, as [JSON with its type](#types)"),
    Column("correlation_id_typed", _TEXT, "properties, as JSON with its type"),
    *(Column(name, _TEXT, "the whole section as JSON with types") for name in TYPED_MAPS),
)
"""Only where they are named. They have all that is in a message."""

DAMAGE: Final = Column(
    "damage",
    _TEXT,
    "only with mode=permissive: null; or what is wrong at `file` and `offset`, in a row that has no more",
)

BY_NAME: Final = {column.name: column for column in (*COLUMNS, *ON_REQUEST, DAMAGE)}

PROPERTY_COLUMNS: Final = (
    "amqp_message_id", "user_id", "to", "subject", "reply_to", "correlation_id", "content_type", "content_encoding",
    "absolute_expiry", "created_at", "group_id", "group_sequence", "reply_to_group_id",
)  # fmt: skip
"""In the order of the fields of the section (AMQP 1.0 section 3.2.4)."""

MESSAGE_COLUMNS: Final = frozenset({
    "ttl_ms", "first_acquirer", "delivery_count", *PROPERTY_COLUMNS, "message_annotations", "application_properties",
    "body", "body_text", *(column.name for column in ON_REQUEST if column.name != "payload"),
})  # fmt: skip
"""For which a message has to be looked into."""


COPY_COLUMNS: Final = (
    "durable", "priority", "ttl_ms", "first_acquirer", "delivery_count", "delivery_annotations_typed",
    "message_annotations_typed", "amqp_message_id_typed", "user_id", "to", "subject", "reply_to",
    "correlation_id_typed", "content_type", "content_encoding", "absolute_expiry", "created_at", "group_id",
    "group_sequence", "reply_to_group_id", "application_properties_typed", "body_sections", "footer_typed",
)  # fmt: skip
"""All that is in a message, part by part, in columns that `qpid-amqp` writes: `payload` has it in one piece."""


def full_schema(*, is_permissive: bool = False) -> StructType:
    """All columns."""
    return struct_of((*COLUMNS, DAMAGE) if is_permissive else COLUMNS)


def schema_of(names: Iterable[str]) -> StructType:
    """Of these columns, in this order. Raises PipelineError for a name that is none."""
    return struct_of(_column(name) for name in names)


def check_schema(schema: StructType) -> None:
    """Raises PipelineError unless a user's own schema has only columns of ours, with their types."""
    for field in schema.fields:
        column = _column(field.name)
        if field.dataType != column.type:
            raise PipelineError(
                f"column {field.name}: expected {column.type.simpleString()}, found {field.dataType.simpleString()}"
            )


def _column(name: str) -> Column:
    try:
        return BY_NAME[name]
    except KeyError:
        raise PipelineError(f"a journal has no column {name!r}{near_name(name, BY_NAME)}") from None


def near_name(name: str, names: Iterable[str]) -> str:
    """What to say after a name that is none of `names`."""
    known = tuple(names)
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f": there are {', '.join(known)}"


def struct_of(columns: Iterable[Column]) -> StructType:
    """As Spark has it."""
    return StructType([StructField(column.name, column.type, nullable=True) for column in columns])
