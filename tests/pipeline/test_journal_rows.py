"""Stories about what a journal looks like as rows: each event once, and the same as the codec reads."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from uuid import UUID

import numpy as np
import proton
import pytest

from doc_blocks import DOCS
from journal_rows import expected_rows, read_rows, signed
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.layout import RecordKind
from qpid_ha_broker.events.payloads import with_format
from qpid_ha_broker.events.scan import RecordError
from qpid_ha_pipeline.journal.records import find_in_blocks, find_records
from qpid_ha_pipeline.journal_source import JournalTableReader
from qpid_ha_pipeline.options import JournalOptions
from qpid_ha_pipeline.schema import ON_REQUEST, full_schema
from written_journal import BEGAN_MS, CLUSTER, WrittenJournal, amqp

EVENTS_TABLE = (DOCS / "protocol.md").read_text(encoding="utf-8").split("## Events")[1].split("\n## ")[0]
PLAIN = ("lsn", "event", "queue", "queue_id", "message_id", "reason", "in_transaction")


class RandomJournal:
    """Writes events of all kinds, in turns of random length, and remembers what counts."""

    def __init__(self, journal: WrittenJournal, seed: int) -> None:
        self.journal = journal
        self.random = Random(seed)
        self.records: list[LogRecord] = []
        self.names: dict[int, str] = {}

    def write(self, turns: int) -> None:
        journal = self.journal
        self._note(ev.GenerationStarted(1, "alpha", CLUSTER, BEGAN_MS, False, "first start"))
        for number in range(3):
            self._note(ev.QueueDeclared(f"queue-{number}", {"qpid.max_count": number}))
        self._note(ev.QueueDeclared("own", {}), local=True)
        for turn in range(turns):
            local, unit = self.random.random() < 0.2, self.random.random() < 0.2
            events = [self._event() for _ in range(self.random.choice((1, 2, 40)))]
            self._note(*events, local=local, unit=unit and not local)
            if turn % 10 == 9:
                journal.roll()

    def _note(self, *events: ev.Event, local: bool = False, unit: bool = False) -> None:
        lsns = self.journal.write_local(*events) if local else self.journal.write(*events, unit=unit)
        closing = [ev.TransactionCommitted(len(events))] if unit else []
        for lsn, event in zip(lsns, [*events, *closing], strict=True):
            if isinstance(event, ev.QueueDeclared):
                self.names[lsn] = event.name
            if isinstance(event, ev.Enqueued) and not event.durable and not unit:
                continue  # no journal keeps it
            self.records.append(LogRecord(lsn, event, unit and event not in closing))

    def _event(self) -> ev.Event:
        random = self.random
        queue = random.choice(list(self.names))
        ids = tuple(random.sample(range(1, 5000), random.choice((0, 1, 1, 3))))
        key, due_ms = random.choice(("", "", "EUR/USD")), random.choice((0, 0, BEGAN_MS))
        queues = tuple(random.sample(list(self.names), random.choice((1, 1, 1, 2))))
        payload = random.randbytes(random.choice((0, 10, 10, 10, 2000)))
        return random.choice((
            ev.Enqueued(queues, payload, random.random() < 0.8, 4, random.choice((0, BEGAN_MS)), key, due_ms),
            ev.Enqueued((queue,), b"always the same", True, 4, 0, ""),
            ev.Dequeued(queue, ids, random.choice(list(ev.DequeueReason))),
            ev.Acquired(queue, ids),
            ev.Released(queue, ids, random.random() < 0.5),
            ev.Bound(1, queue, "key", {}),
            ev.InSyncChanged(3, ("alpha", "beta")),
            ev.ProducerAdvanced(b"orders", 7, 10_000),
            ev.TransientsLost(7),
            ev.ExchangeDeclared("exchange", "topic", {}),
        ))  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_each_event_is_there_once_for_each_message_and_queue_as_the_codec_reads_it(tmp_path: Path, seed: int) -> None:
    written = RandomJournal(WrittenJournal(tmp_path), seed)
    written.write(turns=40)
    rows = read_rows(tmp_path, *PLAIN)
    assert [tuple(row.values()) for row in rows] == list(expected_rows(written.records, written.names))


def test_a_journal_cut_into_many_parts_gives_the_same_rows(tmp_path: Path) -> None:
    journal = WrittenJournal(tmp_path, segment_bytes=4 << 20)
    queue = journal.declare("orders")
    for _ in range(40):
        journal.enqueue(queue, *[b"x" * 1000] * 20)
    whole = read_rows(tmp_path, *PLAIN, "offset")
    assert read_rows(tmp_path, *PLAIN, "offset", partitionBytes="65536") == whole
    assert len(whole) == 801
    options = JournalOptions.parse({"path": str(tmp_path), "partitionBytes": "65536"})
    assert len(JournalTableReader(options, full_schema()).partitions()) > 10


def test_long_runs_of_equal_sizes_and_their_ends_are_found(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    sizes = [10] * 3000 + [11] + [10] * 100 + [12, 13] * 50 + [10] * 33
    journal.enqueue(queue, *[b"y" * size for size in sizes])
    assert [row["size"] for row in read_rows(journal.data_dir, "size")[1:]] == sizes


@pytest.mark.parametrize("seed", range(5))
def test_records_of_many_blocks_are_found_side_by_side_as_one_by_one(seed: int) -> None:
    random = Random(seed)
    pieces: list[bytes] = []
    begins: list[int] = []
    for _ in range(random.choice((1, 70, 300))):
        begins.append(sum(len(piece) for piece in pieces) + 64 * len(pieces))
        sizes = [random.choice((20, 21, 130)) for _ in range(random.choice((1, 2, 50, 51)))]
        pieces.append(b"".join(size.to_bytes(4, "little").ljust(size, b"r") for size in sizes))
    data = b"".join(piece + bytes(64) for piece in pieces)
    ends = [begin + len(piece) for begin, piece in zip(begins, pieces, strict=True)]

    def one_by_one(data: bytes) -> list[int]:
        return [int(at) for begin, end in zip(begins, ends, strict=True) for at in find_records(data, begin, end)]

    def side_by_side(data: bytes) -> list[int]:
        return find_in_blocks(data, np.array(begins), np.array(ends)).tolist()  # type: ignore[no-any-return]

    places = one_by_one(data)
    assert side_by_side(data) == places
    for size in (0, 3, 19, 10_000_000):
        place = random.choice(places)
        spoiled = data[:place] + size.to_bytes(4, "little") + data[place + 4 :]
        with pytest.raises(RecordError) as expected:
            one_by_one(spoiled)
        with pytest.raises(RecordError) as caught:
            side_by_side(spoiled)
        assert caught.value.offset == expected.value.offset == place


def test_a_row_says_whose_journal_it_is_and_where_it_was_read(journal: WrittenJournal) -> None:
    journal.start(3)
    (row,) = read_rows(journal.data_dir)
    assert (row["cluster"], row["broker"], row["set"], row["generation"]) == (CLUSTER, "alpha", "default", 3)
    assert row["file"] == str(journal.segment(1))
    data = journal.segment(1).read_bytes()
    assert int.from_bytes(data[row["offset"] + 8 : row["offset"] + 16], "little") == row["lsn"] == 1
    assert '"cause": "first start"' in row["details"]


def test_a_producer_that_numbers_its_messages_is_told_with_its_number(journal: WrittenJournal) -> None:
    (queue,) = journal.write(ev.QueueDeclared("orders", {}))
    journal.write(ev.Enqueued((queue,), b"x", True, 4, 0, ""), ev.ProducerAdvanced(b"spark-\xff", 7, 100), unit=True)
    (row,) = [row for row in read_rows(journal.data_dir) if row["event"] == "producer_advanced"]
    assert row["details"] == '{"producer": "spark-\\\\xff", "sequence": 7, "kept": 100}'
    assert (row["queue"], row["in_transaction"]) == (None, True)


def test_events_are_named_as_in_the_protocol(journal: WrittenJournal) -> None:
    journal.write(ev.TransientsLost(1017))
    (row,) = read_rows(journal.data_dir, "event", "details", event="transients_lost")
    assert (row["event"], row["details"]) == ("transients_lost", '{"before": 1017}')
    assert {in_lower_case(name) for name in re.findall(r"^\| `0x..` \| (\w+) \|", EVENTS_TABLE, re.MULTILINE)} == {
        kind.name.lower() for kind in RecordKind
    }


def in_lower_case(name: str) -> str:
    """QueueDeclared as queue_declared."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def test_numbers_of_the_brokers_own_log_are_negative(journal: WrittenJournal) -> None:
    journal.declare("orders")
    (queue,) = journal.write_local(ev.QueueDeclared("own", {}))
    journal.write_local(ev.Enqueued((queue,), b"", True, 4, 0, ""))
    rows = read_rows(journal.data_dir, "lsn", "local", "queue", "queue_id", "message_id")
    assert [tuple(row.values()) for row in rows][1:] == [
        (signed(queue), True, "own", signed(queue), None),
        (signed(queue + 1), True, "own", signed(queue), signed(queue + 1)),
    ]


def test_each_event_has_the_generation_that_wrote_it(journal: WrittenJournal) -> None:
    journal.start(1)
    journal.declare("orders")
    journal.start(2)
    journal.declare("billing")
    journal.roll()
    journal.declare("shipping")
    rows = read_rows(journal.data_dir, "generation")
    assert [row["generation"] for row in rows] == [1, 1, 2, 2, 2]
    journal.write_status()
    assert read_rows(journal.data_dir, "generation") == rows


def test_fixed_fields_of_messages_are_columns(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    journal.write(ev.Enqueued((queue,), b"1234", True, 9, BEGAN_MS, "EUR/USD"))
    _, row = read_rows(journal.data_dir)
    assert (row["durable"], row["priority"], row["key"], row["size"]) == (True, 9, "EUR/USD", 4)
    assert (row["expires_at"].timestamp() * 1000, row["due_at"]) == (BEGAN_MS, None)


def test_a_message_that_is_due_later_is_enqueued_as_others_and_says_when(journal: WrittenJournal) -> None:
    first, second = journal.declare("orders"), journal.declare("audit")
    body = amqp("m", subject="s")
    journal.write(
        ev.Enqueued((first,), body, True, 9, 0, "", BEGAN_MS),
        ev.Enqueued((first, second), with_format(body, 7), True, 4, 0, "EUR/USD", BEGAN_MS + 1),
        ev.Enqueued((first,), body, True, 4, 0, ""),
    )
    _, _, *rows = read_rows(journal.data_dir, "event", "due_at", "key", "subject", "size")
    assert {row["event"] for row in rows} == {"enqueued"}
    due_ms = [row["due_at"] and row["due_at"].timestamp() * 1000 for row in rows]
    assert due_ms == [BEGAN_MS, BEGAN_MS + 1, BEGAN_MS + 1, None]
    assert [(row["key"], row["subject"], row["size"]) for row in rows] == [
        (None, "s", len(body)),
        *[("EUR/USD", "s", len(body))] * 2,
        (None, "s", len(body)),
    ]


MESSAGES = [
    proton.Message(),
    proton.Message(body="text", durable=True, priority=7, ttl=2.5, delivery_count=3),
    proton.Message(body=b"bytes \xff", inferred=True, id="m-1", correlation_id="c-1", address="orders"),
    proton.Message(body=b"text, too", inferred=True, id=proton.ulong(7), correlation_id=proton.ulong(1 << 60)),
    proton.Message(body=b"", inferred=True, id=UUID(int=5), correlation_id=b"\xff", subject="Grüße", reply_to="r"),
    proton.Message(body={"a": 1}, content_type="application/x", creation_time=BEGAN_MS / 1000, group_id="g"),
    proton.Message(body=["list"], inferred=True, properties={"n": 1, "s": "text", "b": True, "f": 1.5, "none": None}),
    proton.Message(body="a\x00b", annotations={proton.symbol("x-opt"): "note"}, instructions={"i": 1}),
    proton.Message(body=b"x" * 70_000, inferred=True, subject="s" * 300, properties={f"p{n}": n for n in range(300)}),
    proton.Message(
        user_id=b"\x00me", group_id="g", group_sequence=(1 << 32) - 1, reply_to_group_id="rg", content_encoding="gzip",
        expiry_time=BEGAN_MS / 1000, first_acquirer=True, ttl=4294967.295,
    ),
]  # fmt: skip
TEXTS = ("subject", "reply_to", "group_id", "reply_to_group_id")


def test_what_is_in_a_message_is_what_proton_reads_in_it(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    journal.enqueue(queue, *[bytes(message.encode()) for message in MESSAGES])
    rows = read_rows(journal.data_dir)[1:]
    for message, row in zip(MESSAGES, rows, strict=True):
        assert (row["ttl_ms"] or 0) == round(message.ttl * 1000)
        assert row["delivery_count"] == message.delivery_count
        for column in TEXTS:
            assert row[column] == (getattr(message, column) or None)
        assert (row["user_id"] or b"") == message.user_id
        assert (row["group_sequence"] or 0) == message.group_sequence
        assert bool(row["first_acquirer"]) == message.first_acquirer
        assert (row["absolute_expiry"].timestamp() if row["absolute_expiry"] else 0) == message.expiry_time
        assert row["to"] == (message.address or None)
        assert row["application_properties"] == _map(message.properties)
        assert row["message_annotations"] == _map(message.annotations)
        assert (row["created_at"].timestamp() if row["created_at"] else 0) == message.creation_time
    assert [row["amqp_message_id"] for row in rows[2:5]] == ["m-1", "7", str(UUID(int=5))]
    assert [row["correlation_id"] for row in rows[2:5]] == ["c-1", str(1 << 60), "ff"]
    assert [row["content_type"] for row in rows[5:7]] == ["application/x", None]
    assert [row["content_encoding"] for row in rows[8:]] == [None, "gzip"]
    bodies = [row["body"] for row in rows]
    assert bodies[1:5] == [b"text", b"bytes \xff", b"text, too", b""]
    assert bodies[8] == b"x" * 70_000
    assert [row["body_text"] for row in rows[1:5]] == ["text", None, "text, too", ""]
    assert rows[7]["body_text"] == "a\x00b"
    assert rows[5]["body"].startswith(b"\x00Sw")
    assert rows[5]["body_text"] is None


def test_a_message_with_a_format_is_read_as_the_message_that_it_is(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    message = amqp("text")
    payloads = [with_format(message, number) for number in (0, 7, 0x80013700)]
    lsns = journal.write(*[ev.Enqueued((queue,), payload, True, 4, 0, "key") for payload in payloads])
    rows = read_rows(journal.data_dir, "payload", "size", "body_text", "key")[1:]
    assert len(rows) == len(lsns) == 3
    assert [tuple(row.values()) for row in rows] == [(message, len(message), "text", "key")] * 3


def test_types_are_kept_in_columns_of_their_own(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    journal.enqueue(queue, *[bytes(message.encode()) for message in MESSAGES])
    rows = read_rows(journal.data_dir, *(column.name for column in ON_REQUEST))[1:]
    assert [row["payload"] for row in rows] == [bytes(message.encode()) for message in MESSAGES]
    assert [row["amqp_message_id_typed"] for row in rows[1:5]] == [
        None, '{"string":"m-1"}', '{"ulong":7}', f'{{"uuid":"{UUID(int=5)}"}}',
    ]  # fmt: skip
    assert [row["correlation_id_typed"] for row in rows[3:5]] == [f'{{"ulong":{1 << 60}}}', '{"binary":"/w=="}']
    assert rows[6]["application_properties_typed"] == (
        '{"n":{"long":1},"s":{"string":"text"},"b":{"boolean":true},"f":{"double":1.5},"none":null}'
    )
    assert rows[7]["message_annotations_typed"] == '{"x-opt":{"string":"note"}}'
    assert rows[7]["delivery_annotations_typed"] == '{"i":{"long":1}}'
    assert [row["footer_typed"] for row in rows] == [None] * len(rows)
    assert [row["body_sections"][:3] for row in rows[1:4]] == [b"\x00Sw", b"\x00Su", b"\x00Su"]


def test_times_that_spark_cannot_show_are_null(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    times_ms = (
        0,
        -1,
        -62_135_596_800_000,
        -62_135_596_800_001,
        253_402_300_799_999,
        253_402_300_800_000,
        (1 << 63) - 1,
    )
    fields = [b"@" * 8 + b"\x83" + time_ms.to_bytes(8, "big", signed=True) for time_ms in times_ms]
    journal.enqueue(queue, *[b"\x00Ss\xc0" + bytes((len(text) + 1, 9)) + text + b"\x00Sw@" for text in fields])
    found = [row["absolute_expiry"] for row in read_rows(journal.data_dir, "absolute_expiry")[1:]]
    assert [time and round(time.timestamp() * 1000) for time in found] == [*times_ms[:3], None, times_ms[4], None, None]


def _map(found: dict[object, object] | None) -> list[tuple[str, str | None]] | None:
    if not found:
        return None
    words = {True: "true", False: "false", None: None}
    return [
        (str(name), words[value] if value is None or isinstance(value, bool) else str(value))
        for name, value in found.items()
    ]


def test_bodies_of_several_sections_are_joined_and_what_is_no_message_has_no_body(journal: WrittenJournal) -> None:
    queue = journal.declare("orders")
    several = b"\x00Su\xa0\x03one\x00Su\xb0\x00\x00\x00\x03two"
    long_descriptor = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01x"
    by_name = b"\x00\xa3\x14amqp:properties:list\xc0\x08\x04@@@\xa1\x02su" + b"\x00\xa3\x10amqp:data:binary\xa0\x01x"
    payloads = (several, b"no message at all", amqp("after it"), b"\x00Su\xa0\xff", long_descriptor, by_name)
    journal.enqueue(queue, *payloads)
    rows = read_rows(journal.data_dir, "body", "body_text", "body_sections", "subject")[1:]
    assert [row["body"] for row in rows] == [b"onetwo", None, b"after it", None, b"x", b"x"]
    assert [row["subject"] for row in rows] == [None] * 5 + ["su"]
    sections = [several, None, amqp("after it")[-13:], None, long_descriptor, by_name[-22:]]
    assert [row["body_sections"] for row in rows] == sections


def test_a_message_may_have_very_many_sections(journal: WrittenJournal) -> None:
    queue, sections = journal.declare("orders"), b"\x00Su\xa0\x01a\x00Su\xa0\x02bc" * 10_000
    journal.enqueue(queue, amqp("first"), amqp("x", subject="many")[:-6] + sections, amqp("last"))
    rows = read_rows(journal.data_dir, "body", "body_sections", "subject")[2:]
    assert (rows[0]["body"], rows[0]["subject"]) == (b"abc" * 10_000, "many")
    assert rows[0]["body_sections"] == sections
    assert rows[1]["body"] == b"last"


def test_random_bytes_as_payloads_never_stop_a_reading(journal: WrittenJournal) -> None:
    random, good = Random(5), amqp("good", subject="s", properties={"n": 1})
    queue = journal.declare("orders")
    payloads = [random.randbytes(random.randrange(40)) for _ in range(300)]
    for _ in range(300):
        payload = bytearray(good)
        payload[random.randrange(len(payload))] = random.randrange(256)
        payloads.append(bytes(payload[: random.randrange(1, len(payload) + 1)]))
    journal.enqueue(queue, *payloads, good)
    rows = read_rows(journal.data_dir)
    assert len(rows) == 602
    assert (rows[-1]["body_text"], rows[-1]["subject"]) == ("good", "s")
