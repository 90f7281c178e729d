"""Messages that are read and sent again are what they were: section by section, type by type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from proton import Data, Message
from pyspark.sql import SparkSession
from pyspark.sql.functions import window

from amqp_values import DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, RandomMessages, message_in, values_in
from live_query import ALL, LiveQuery, cluster_of
from qpid_ha_broker.amqp.wire.sections import MessageSections, find_section
from qpid_ha_broker.events import types as ev
from qpid_ha_pipeline.amqp.encoding import Encoder
from qpid_ha_pipeline.amqp.numbering import PRODUCER, SEQUENCE, renumbered
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.amqp.publishing import Publisher
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.journal_source import JournalTableReader
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import COPY_COLUMNS, schema_of
from running_broker import RunningBroker
from written_journal import WrittenJournal

MESSAGES = 150
LONGEST_MS = 600_000
"""That a message is under way in a test."""


def written(journal: WrittenJournal, payloads: Sequence[bytes]) -> None:
    """As a broker keeps them."""
    queue = journal.declare("q")
    for payload in payloads:
        header = MessageSections().header(payload)
        journal.write(ev.Enqueued((queue,), payload, header.durable, header.priority, 0, ""))


def journal_batches(journal: WrittenJournal, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Of its messages."""
    options = JournalOptions.parse({"path": str(journal.data_dir), "event": "enqueued"})
    reader = JournalTableReader(options, schema_of(columns))
    for part in reader.partitions():
        yield from reader.read(part)


def queue_batches(url: str, queue: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Of what is in a queue."""
    query = LiveQuery(url, queue, columns=",".join(columns))
    end = query.reader.latestOffset(query.offset, ALL)
    for part in query.reader.partitions(query.offset, end):
        yield from query.reader.read(part)


def sent(url: str, queue: str, batches: Iterator[pa.RecordBatch], encoder: Encoder | None = None) -> None:
    """What a sink sends."""
    with PrimaryConnection(cluster_of(url)) as primary:
        publisher = Publisher(primary, queue, together=encoder is not None)
        for batch in batches:
            publisher.deliver(list((encoder or Encoder()).messages(batch)))


def payloads_in(url: str, queue: str) -> list[bytes]:
    """What is in a queue."""
    return [payload for batch in queue_batches(url, queue, ["payload"]) for payload in batch.column(0).to_pylist()]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("columns", [("payload",), COPY_COLUMNS], ids=["payload", "columns"])
def test_a_copy_of_a_copy_of_a_journals_messages_says_what_they_say(
    journal: WrittenJournal, broker: RunningBroker, columns: Sequence[str], seed: int
) -> None:
    random = RandomMessages(Random(seed))
    originals = [random.encoded() for _ in range(MESSAGES)]
    written(journal, originals)
    if seed % 2:
        journal.roll()
        journal.write_status()
        journal.fold_away()
    first, second = f"first-{uuid4()}", f"second-{uuid4()}"
    sent(broker.url, first, journal_batches(journal, columns))
    sent(broker.url, second, queue_batches(broker.url, first, columns))
    copies = payloads_in(broker.url, second)
    assert len(copies) == MESSAGES
    for original, copy in zip(originals, copies, strict=True):
        (sent_ttl, *others), (ttl, *same) = map(_parted, (_without_delivery_annotations(original), message_in(copy)))
        assert others == same
        assert 0 <= sent_ttl - ttl < LONGEST_MS, "less the time in two brokers"


@pytest.mark.parametrize("columns", [("payload",), COPY_COLUMNS], ids=["payload", "columns"])
def test_a_message_that_is_numbered_changes_in_its_number_only(journal: WrittenJournal, columns: Sequence[str]) -> None:
    random = RandomMessages(Random(1))
    originals = [random.encoded() for _ in range(MESSAGES)]
    written(journal, [renumbered(payload, ("the former", 5)) for payload in originals])
    batches = list(journal_batches(journal, columns))
    rows = [payload for batch in batches for payload in Encoder().messages(batch)]
    assert [message_in(row) for row in rows] == [_without_empty_annotations(payload) for payload in originals]
    for batch in batches:
        count = batch.num_rows
        identity = pa.RecordBatch.from_pydict(
            {"source": ["s"] * count, "position": list(range(1 << 32, count + (1 << 32)))}
        )
        numbered = pa.RecordBatch.from_arrays(
            [*batch.columns, *identity.columns], [*batch.schema.names, *identity.schema.names]
        )
        for place, payload in enumerate(Encoder("me").messages(numbered)):
            annotations = MessageSections().annotations(payload)
            assert (annotations[PRODUCER], annotations[SEQUENCE]) == ("me/s", place + (1 << 32))
            assert payload.count(PRODUCER.encode()) == 1
            assert message_in(renumbered(payload)) == message_in(rows[place])


def _parted(message: list[Any]) -> list[Any]:
    """Its time to live, 0 if it has none, and all else."""
    header = message[0]
    return [header[2][1] or 0, header[:2], header[3:], message[1:]]


def _without_delivery_annotations(payload: bytes) -> list[Any]:
    """These are for the broker that the message was sent to, which passes none on."""
    return [section for section in message_in(payload) if section[0] != DELIVERY_ANNOTATIONS]


def _without_empty_annotations(payload: bytes) -> list[Any]:
    """Of annotations that were only a number nothing is left."""
    return [section for section in message_in(payload) if section != (MESSAGE_ANNOTATIONS, (Data.MAP, []))]


def test_a_number_is_taken_out_and_no_other_byte_changes() -> None:
    random = Random(3)
    for _ in range(300):
        payload = RandomMessages(random).encoded()
        numbered = renumbered(payload, ("p", random.getrandbits(63)))
        again = renumbered(numbered)
        assert message_in(again) == _without_empty_annotations(payload)
        assert _beside_annotations(again) == _beside_annotations(numbered) == _beside_annotations(payload)
        assert renumbered(numbered, ("other", 1)) == renumbered(payload, ("other", 1))
        assert renumbered(payload) is payload


def _beside_annotations(payload: bytes) -> bytes:
    begin, end = find_section(payload, MESSAGE_ANNOTATIONS)
    return payload[:begin] + payload[end:]


def test_a_name_in_the_body_is_no_number() -> None:
    payload = bytes(Message(f"about {PRODUCER}").encode())
    assert renumbered(payload) is payload
    with pytest.raises(PipelineError, match="no AMQP message"):
        renumbered(b"junk " + PRODUCER.encode())


def test_a_time_to_live_is_to_the_millisecond_what_is_left_of_it(broker: RunningBroker) -> None:
    queue, written_ms = f"ttl-{uuid4()}", [600_001, 999_999, 4_294_967_295, *range(3_600_000, 3_600_100)]
    table = pa.RecordBatch.from_pydict({"value": ["x"] * len(written_ms), "ttl_ms": written_ms})
    sent(broker.url, queue, iter([table]))
    read = [ttl for batch in queue_batches(broker.url, queue, ["ttl_ms"]) for ttl in batch.column(0).to_pylist()]
    assert all(0 <= written - ttl < LONGEST_MS for written, ttl in zip(written_ms, read, strict=True))


def test_a_header_says_no_more_than_its_columns() -> None:
    table = pa.RecordBatch.from_pydict({
        "value": ["a", "b"], "durable": [False, None], "first_acquirer": [False, None], "delivery_count": [3, 0],
    })  # fmt: skip
    first, second = (values_in(payload)[0][1][1] for payload in Encoder().messages(table))
    null = (Data.NULL, None)
    assert first == (Data.LIST, [(Data.BOOL, False), null, null, (Data.BOOL, False), (Data.UINT, 3)])
    assert second == (Data.LIST, [(Data.BOOL, True)])


def test_what_is_typed_by_hand_is_sent_with_its_type() -> None:
    table = pa.RecordBatch.from_pydict({
        "value": ["a"], "amqp_message_id_typed": ['{"uuid": "00112233-4455-6677-8899-aabbccddeeff"}'],
        "correlation_id_typed": ['{"ulong": 7}'],
        "application_properties_typed": ['{"n": 5, "s": "text", "u": {"ubyte": 7}, "b": true, "none": null}'],
        "message_annotations_typed": ['{"x-opt-a": [1]}'.replace("[1]", '{"list": [1]}')],
        "delivery_annotations_typed": ['[[{"ulong": 1}, 2]]'], "footer_typed": ["{}"],
    })  # fmt: skip
    (payload,) = Encoder().messages(table)
    message = Message()
    message.decode(payload)
    assert (message.id, message.correlation_id) == (UUID("00112233-4455-6677-8899-aabbccddeeff"), 7)
    assert repr(message.properties) == "{'n': 5, 's': 'text', 'u': ubyte(7), 'b': True, 'none': None}"
    assert message.annotations == {"x-opt-a": [1]}
    assert message.instructions == {1: 2}


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"payload": [None]}, "a row has no payload"),
        ({"payload": [b"bytes"]}, "column payload: no encoded sections of an AMQP message"),
        ({"payload": [b"\x00Su\xa0\x05cut"]}, "column payload: no encoded sections"),
        ({"body_sections": [b"\x00Ss\x45"]}, "column body_sections: no encoded sections"),
        ({"body_sections": [None]}, "a row has no body_sections"),
        (
            {"value": ["x"], "application_properties_typed": ["[5]"]},
            "column application_properties_typed: a map: expected",
        ),
        ({"value": ["x"], "application_properties_typed": ["{"]}, "column application_properties_typed: expected JSON"),
        ({"value": ["x"], "footer_typed": ['{"a": {"lnog": 1}}']}, "column footer_typed: AMQP has no type 'lnog'"),
        ({"value": ["x"], "amqp_message_id_typed": ["5"]}, "column amqp_message_id_typed: expected one of the types"),
        ({"value": ["x"], "correlation_id_typed": ['{"uuid": "x"}']}, "column correlation_id_typed: no AMQP value"),
        ({"value": ["x"], "group_sequence": [-1]}, "group_sequence is -1: expected 0 to 4294967295"),
        ({"value": ["x"], "delivery_count": [-1]}, "delivery_count is -1: expected 0 to 4294967295"),
    ],
)
def test_a_row_that_is_no_message_is_told(table: dict[str, list[Any]], text: str) -> None:
    with pytest.raises(PipelineError) as caught:
        list(Encoder().messages(pa.RecordBatch.from_pydict(table)))
    assert caught.value.reason.startswith(text)


def test_payloads_go_where_the_column_says_as_they_are(spark: SparkSession, broker: RunningBroker) -> None:
    payload = bytes(Message("x", address="elsewhere", durable=True).encode())
    queues = [f"routed-{place}-{uuid4()}" for place in range(130)]
    rows = [(payload, queue) for queue in [*queues, queues[0], queues[0]]]
    table = spark.createDataFrame(rows, "payload binary, to string").coalesce(1)
    table.write.format("qpid-amqp").option("brokers", broker.url).mode("append").save()
    assert [len(payloads_in(broker.url, queue)) for queue in queues] == [3] + [1] * 129
    assert message_in(payloads_in(broker.url, queues[5])[0]) == message_in(payload)


def test_the_time_of_the_broker_is_a_watermark(spark: SparkSession, journal: WrittenJournal, tmp_path: Path) -> None:
    """Windows end by the clock of the broker: senders said nothing of time."""
    queue = journal.declare("q")
    for minute in range(4):
        journal.enqueue(queue, *[bytes(Message("x").encode())] * (minute + 1))
        journal.now_ms += 60_000
    rows = spark.readStream.format("qpid-journal").option("event", "enqueued").load(
        str(journal.data_dir), columns="enqueued_at"
    )  # fmt: skip
    counts = rows.withWatermark("enqueued_at", "1 second").groupBy(window("enqueued_at", "1 minute")).count()
    query = (
        counts.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "counts"))
    )
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "counts")).sort("window")
    assert [row["count"] for row in found.collect()] == [1, 2, 3]
