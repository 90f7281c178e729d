"""Stories about events that become bytes, and bytes that claim to be events."""

from __future__ import annotations

import json
import math
import re
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpid_ha_broker.events import layout, types
from qpid_ha_broker.events.bodies import FORMS, READERS, WRITERS
from qpid_ha_broker.events.codec import MAX_RECORD_BYTES, Fault, LogRecord, decode, encode
from qpid_ha_broker.events.fields import MAX_ARGUMENTS_BYTES, UNREADABLE
from qpid_ha_broker.events.layout import HEADER_BYTES, RecordKind
from qpid_ha_broker.events.types import (
    Acquired,
    Annotated,
    Bound,
    BrokerChanged,
    BrokerRegistered,
    BrokerRemoved,
    Dequeued,
    DequeueReason,
    Enqueued,
    Event,
    ExchangeDeclared,
    ExchangeDeleted,
    HandedOut,
    NumbersRefused,
    ProducerAdvanced,
    QueueDeclared,
    QueueDeleted,
    QueuePlaced,
    QueueRemoved,
    QueueUpdated,
    Released,
    ReplicaPoliciesChanged,
    SessionAcquired,
    SessionDetached,
    SessionEnded,
    SessionResumed,
    SessionStarted,
    SetDeleted,
    SetGrouped,
    SetPlaced,
    SetRecorded,
    SettingChanged,
    TransactionCommitted,
    TransientsLost,
    Unbound,
)

HERE = Path(__file__).parent
PROTOCOL = (HERE.parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
EVENT_TYPES: tuple[type[Event], ...] = get_args(types.Event)

# --- what was agreed: committed vectors ------------------------------------------------------------------------------


def vectors() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((HERE / "vectors" / "events.json").read_text(encoding="utf-8"))
    return loaded


VECTORS = [pytest.param(vector, id=vector["name"]) for vector in vectors()]


def record_of(vector: dict[str, Any]) -> LogRecord:
    fields = dict(vector["fields"])
    for name in {"ids", "queues", "members", "replicas", "leaving", "patterns", "counts", "sequences"} & fields.keys():
        fields[name] = tuple(fields[name])
    for name in {"payload", "producer", "annotations"} & fields.keys():
        fields[name] = bytes.fromhex(fields[name])
    if "reason" in fields:
        fields["reason"] = DequeueReason[fields["reason"]]
    return LogRecord(vector["lsn"], getattr(types, vector["event"])(**fields), vector["part"])


def exactly(record: LogRecord) -> str:
    """Equal text means equal values of equal types: as tuples, `QueueDeleted(1)` equals `ExchangeDeleted(1)`."""
    event = record.event
    arguments = getattr(event, "arguments", None)
    if arguments is not None:
        event = event._replace(arguments=dict(sorted(arguments.items())))  # type: ignore[call-arg]  # just looked
    return repr(LogRecord(record.lsn, event, record.part))


@pytest.mark.parametrize("vector", VECTORS)
def test_an_event_becomes_the_bytes_that_were_agreed(vector: dict[str, Any]) -> None:
    assert encode(*record_of(vector)).hex() == vector["hex"]


@pytest.mark.parametrize("vector", VECTORS)
def test_agreed_bytes_become_the_event(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    records, consumed, problem = decode(data)
    assert [exactly(record) for record in records] == [exactly(record_of(vector))]
    assert (consumed, problem) == (len(data), None)


def test_each_event_type_reason_and_both_values_of_part_have_a_vector() -> None:
    seen = [record_of(vector) for vector in vectors()]
    assert {type(record.event) for record in seen} == set(EVENT_TYPES)
    assert {record.event.reason for record in seen if isinstance(record.event, Dequeued)} == set(DequeueReason)
    assert {record.part for record in seen} == {False, True}


# --- whatever goes in comes out --------------------------------------------------------------------------------------

U8 = st.integers(0, 2**8 - 1)
U16 = st.integers(0, 2**16 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
IDS = st.lists(U64, max_size=5).map(tuple)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TEXTS = st.lists(TEXT, max_size=4).map(tuple)
SCALAR = TEXT | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
ARGUMENTS = st.dictionaries(TEXT, SCALAR | st.booleans() | st.none(), max_size=5)
EVENTS = st.one_of(
    st.builds(QueueDeclared, TEXT, ARGUMENTS),
    st.builds(QueueUpdated, U64, ARGUMENTS),
    st.builds(QueueDeleted, U64),
    st.builds(ExchangeDeclared, TEXT, TEXT, ARGUMENTS),
    st.builds(ExchangeDeleted, U64),
    st.builds(Bound, U64, U64, TEXT, ARGUMENTS),
    st.builds(Unbound, U64, U64, TEXT),
    st.builds(Enqueued, IDS, st.binary(max_size=60), st.booleans(), U8, U64, TEXT, U64),
    st.builds(Dequeued, U64, IDS, st.sampled_from(DequeueReason)),
    st.builds(Acquired, U64, IDS),
    st.builds(Annotated, U64, IDS, st.binary(max_size=60)),
    st.builds(Released, U64, IDS, st.booleans()),
    st.builds(SessionAcquired, U64, U64, TEXT, TEXT, IDS),
    st.builds(SessionStarted, TEXT, TEXT, U64, U64),
    st.builds(SessionResumed, U64, U64, U64, U64),
    st.builds(SessionDetached, U64, U64),
    st.builds(SessionEnded, U64, st.booleans()),
    st.builds(ProducerAdvanced, st.binary(max_size=20), U64, U32),
    st.builds(NumbersRefused, st.binary(max_size=20), IDS),
    st.builds(HandedOut, U64, U64),
    st.builds(TransactionCommitted, U32),
    st.builds(TransientsLost, U64),
    st.builds(BrokerRegistered, TEXT, TEXT, TEXT, TEXT, TEXT, TEXT),
    st.builds(BrokerChanged, TEXT, st.booleans(), st.booleans(), U64),
    st.builds(BrokerRemoved, TEXT),
    st.builds(SetPlaced, TEXT, TEXTS, TEXTS, TEXT, U16, U16),
    st.builds(SetDeleted, TEXT),
    st.builds(SetRecorded, TEXT, TEXT, U64, TEXT, U64, TEXTS, st.booleans()),
    st.builds(QueuePlaced, TEXT, TEXT, ARGUMENTS, st.booleans()),
    st.builds(QueueRemoved, U64),
    st.builds(ReplicaPoliciesChanged, TEXTS, st.lists(U16, max_size=4).map(tuple)),
    st.builds(SetGrouped, TEXT),
    st.builds(SettingChanged, TEXT, TEXT, TEXT, U64),
)
RECORDS = st.builds(LogRecord, U64, EVENTS, st.booleans()).filter(
    lambda record: not (record.part and isinstance(record.event, TransactionCommitted))
)


@given(st.lists(RECORDS, max_size=4))
def test_every_log_comes_back_as_it_went(log: list[LogRecord]) -> None:
    data = b"".join(encode(*record) for record in log)
    records, consumed, problem = decode(data)
    assert [exactly(record) for record in records] == [exactly(record) for record in log]
    assert (consumed, problem) == (len(data), None)


@given(st.dictionaries(TEXT, SCALAR, min_size=2))
def test_the_order_in_which_arguments_were_given_leaves_no_trace(arguments: dict[str, types.Scalar]) -> None:
    turned = dict(reversed(arguments.items()))
    assert encode(1, QueueUpdated(1, arguments)) == encode(1, QueueUpdated(1, turned))


def test_a_large_payload_and_many_ids_come_back() -> None:
    message = Enqueued(tuple(range(65_535)), bytes(1_000_000), True, 4, 0, "k" * 65_535)
    gone = Dequeued(1, tuple(range(100_000)), DequeueReason.PURGED)
    assert decode(encode(1, message) + encode(2, gone)).records == [(1, message, False), (2, gone, False)]


@given(
    st.builds(Dequeued, st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1)).map(tuple),
              st.sampled_from(DequeueReason))
)  # fmt: skip
def test_the_short_way_of_a_dequeued_is_its_row_of_the_table(event: Dequeued) -> None:
    body, payload = FORMS[Dequeued].write(event)
    assert WRITERS[Dequeued][1](event) == (body, payload)
    assert READERS[RecordKind.DEQUEUED](memoryview(body)) == FORMS[Dequeued].read(memoryview(body)) == event


@given(st.binary(max_size=40), st.integers(0, 7), st.integers(0, 3))
def test_the_short_way_of_a_dequeued_refuses_what_its_row_does(noise: bytes, reason: int, count: int) -> None:
    for body in (noise, layout.IDS.pack(1, reason, count) + noise):
        outcomes: list[object] = []
        for read in (READERS[RecordKind.DEQUEUED], FORMS[Dequeued].read):
            try:
                outcomes.append(read(memoryview(body)))
            except UNREADABLE:
                outcomes.append("refused")
        assert outcomes[0] == outcomes[1]


# --- what no record can hold -----------------------------------------------------------------------------------------

MESSAGE = Enqueued((1,), b"hello", True, 4, 0, "")


@pytest.mark.parametrize(
    ("field", "lsn", "event"),
    [
        ("lsn", 2**64, MESSAGE),
        ("lsn", -1, MESSAGE),
        ("queues", 1, MESSAGE._replace(queues=tuple(range(65_536)))),
        ("queues", 1, MESSAGE._replace(queues=(2**64,))),
        ("payload", 1, MESSAGE._replace(payload="text")),  # type: ignore[arg-type]
        ("priority", 1, MESSAGE._replace(priority=256)),
        ("expires_at_ms", 1, MESSAGE._replace(expires_at_ms=-1)),
        ("key", 1, MESSAGE._replace(key="k" * 65_536)),
        ("key", 1, MESSAGE._replace(key="\ud800")),
        ("queue", 1, QueueDeleted(-1)),
        ("ids", 1, Acquired(1, (1, -1))),
        ("link", 1, SessionAcquired(1, 2, "name", None, (3,))),  # type: ignore[arg-type]
        ("user", 1, SessionStarted("name", "u" * 65_536, 1, 1)),
        ("reason", 1, Dequeued(1, (1,), 77)),  # type: ignore[arg-type]
        ("name", 1, QueueDeclared("q" * 65_536, {})),
        ("kind", 1, ExchangeDeclared("e", None, {})),  # type: ignore[arg-type]
        ("producer", 1, ProducerAdvanced("p", 1, 1)),  # type: ignore[arg-type]
        ("producer", 1, ProducerAdvanced(bytes(65_536), 1, 1)),
        ("sequence", 1, ProducerAdvanced(b"p", -1, 1)),
        ("kept", 1, ProducerAdvanced(b"p", 1, 2**32)),
        ("producer", 1, NumbersRefused("p", (1,))),  # type: ignore[arg-type]
        ("sequences", 1, NumbersRefused(b"p", (1, -1))),
        ("sequences", 1, NumbersRefused(b"p", tuple(range(65_536)))),
        ("parts", 1, TransactionCommitted(2**32)),
        ("arguments", 1, QueueDeclared("q", {"a": math.nan})),
        ("arguments", 1, QueueDeclared("q", {"a": -math.inf})),
        ("arguments", 1, QueueDeclared("q", {"a": 2**64})),
        ("arguments", 1, QueueDeclared("q", {"a": b"bytes"})),  # type: ignore[dict-item]
        ("arguments", 1, QueueDeclared("q", {"a": DequeueReason.MOVED})),
        ("arguments", 1, QueueDeclared("q", {"a": "\udcff"})),
        ("arguments", 1, QueueDeclared("q", {1: "a"})),  # type: ignore[dict-item]
        ("arguments", 1, QueueDeclared("q", {"a": "x" * MAX_ARGUMENTS_BYTES})),
        ("arguments", 1, QueueDeclared("q", None)),  # type: ignore[arg-type]
    ],
)
def test_an_event_that_no_record_can_hold_is_refused_by_the_name_of_its_field(
    field: str, lsn: int, event: Event
) -> None:
    with pytest.raises(ValueError, match=rf"^{type(event).__name__}\.{field}: "):
        encode(lsn, event)


def test_a_record_that_nobody_would_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode(1, MESSAGE._replace(payload=bytes(MAX_RECORD_BYTES)))


def test_what_closes_a_transaction_is_no_part_of_it() -> None:
    with pytest.raises(ValueError, match="part"):
        encode(1, TransactionCommitted(1), part=True)


def test_what_is_no_event_is_refused() -> None:
    with pytest.raises(ValueError, match="dict"):
        encode(1, {})  # type: ignore[arg-type]


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS)
def test_no_flipped_bit_goes_unnoticed_even_with_other_records_behind_it(vector: dict[str, Any]) -> None:
    whole = bytes.fromhex(vector["hex"])
    behind = b"".join(bytes.fromhex(other["hex"]) for other in vectors())
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole + behind)
        damaged[bit // 8] ^= 1 << bit % 8
        records, consumed, problem = decode(damaged)
        assert (records, consumed) == ([], 0), f"bit {bit}"
        assert problem is not None
        assert problem.offset == 0
        if bit >= 32:
            assert problem.fault is Fault.CHECKSUM


@pytest.mark.parametrize("vector", VECTORS)
def test_a_record_cut_short_anywhere_says_so_and_waits_for_the_rest(vector: dict[str, Any]) -> None:
    before, whole = encode(1, QueueDeleted(1)), bytes.fromhex(vector["hex"])
    for length in range(1, len(whole)):
        records, consumed, problem = decode(before + whole[:length])
        assert (len(records), consumed) == (1, len(before))
        assert problem is not None
        assert (problem.fault, problem.offset) == (Fault.TRUNCATED, len(before))


@given(st.integers(1, 60))
def test_a_stream_in_pieces_of_any_size_gives_every_record_once(piece: int) -> None:
    log = [record_of(vector) for vector in vectors()]
    stream = b"".join(encode(*record) for record in log)
    waiting, seen = bytearray(), list[LogRecord]()
    for start in range(0, len(stream), piece):
        waiting += stream[start : start + piece]
        records, consumed, problem = decode(waiting)
        assert problem is None or problem.fault is Fault.TRUNCATED
        seen += records
        del waiting[:consumed]
    assert seen == log
    assert not waiting


# --- anything at all -------------------------------------------------------------------------------------------------


def sealed(kind: int, body: bytes, *, lsn: int = 1, flags: int = 0, version: int = 1) -> bytes:
    """A record with a good header around any body, made without the codec."""
    rest = struct.pack("<QBBH", lsn, kind, flags, version) + body
    return struct.pack("<II", 8 + len(rest), zlib.crc32(rest)) + rest


def assert_total_and_canonical(data: bytes) -> None:
    records, consumed, problem = decode(data)
    assert b"".join(encode(*record) for record in records) == data[:consumed]
    if problem is None:
        assert consumed == len(data)
    else:
        assert problem.offset == consumed < len(data)
        assert len(problem.text) < 300


@given(st.binary(max_size=200))
def test_any_bytes_give_records_or_a_named_problem(data: bytes) -> None:
    assert_total_and_canonical(data)


@given(st.sampled_from(RecordKind), st.binary(max_size=80), st.integers(0, 3), st.integers(0, 2))
@settings(max_examples=500)
def test_any_body_gives_an_event_that_has_only_this_spelling_or_a_named_problem(
    kind: RecordKind, body: bytes, flags: int, version: int
) -> None:
    assert_total_and_canonical(sealed(kind, body, flags=flags, version=version))


@given(st.sampled_from(vectors()), st.data())
@settings(max_examples=500)
def test_a_body_that_was_changed_before_it_was_sealed_is_read_or_named(vector: dict[str, Any], data: Any) -> None:
    whole = bytes.fromhex(vector["hex"])
    body = bytearray(whole[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert_total_and_canonical(sealed(whole[16], bytes(body)))


@given(st.text('{}[]",:\\ue+-.0123456789truefalsn ', max_size=30))
@settings(max_examples=500)
def test_arguments_are_read_only_in_their_one_spelling(text: str) -> None:
    for spelling in (text, "{" + text + "}", '{"a":' + text + "}"):
        encoded = spelling.encode()
        assert_total_and_canonical(sealed(RecordKind.QUEUE_UPDATED, struct.pack("<QI", 1, len(encoded)) + encoded))


CORPUS = [pytest.param(path, id=path.stem) for path in sorted((HERE / "corpus" / "codec").glob("*.hex"))]


@pytest.mark.parametrize("path", CORPUS)
def test_the_corpus_is_answered_as_each_file_says_within_little_memory(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    data = bytes.fromhex("".join(line for line in lines if not line.startswith("#")))
    expected = next(line.removeprefix("# expect: ") for line in lines if line.startswith("# expect: "))
    decode(data)  # what is made once for all, such as compiled formats, counts for none
    tracemalloc.start()
    _, consumed, problem = decode(data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert f"{problem.fault if problem else 'none'} {consumed}" == expected
    assert peak_bytes < 8_192 + 16 * len(data)
    assert_total_and_canonical(data)


def test_arguments_that_are_too_long_are_not_even_parsed() -> None:
    text = b'{"a":[' + b"{}," * 300_000 + b"{}]}"
    data = sealed(RecordKind.QUEUE_UPDATED, struct.pack("<QI", 1, len(text)) + text)
    tracemalloc.start()
    problem = decode(data).problem
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problem is not None
    assert problem.fault is Fault.BODY
    assert peak_bytes < 8_192


def test_every_fault_has_an_input_in_the_corpus() -> None:
    texts = " ".join(path.read_text(encoding="utf-8") for path in (HERE / "corpus" / "codec").glob("*.hex"))
    assert {Fault(name) for name in re.findall(r"# expect: (\w+)", texts) if name != "none"} == set(Fault)


# --- how a caller asks -----------------------------------------------------------------------------------------------


def test_reading_stops_after_as_many_records_as_asked_for_and_goes_on_from_there() -> None:
    data = b"".join(encode(lsn, QueueDeleted(1)) for lsn in range(5))
    first = decode(data, max_records=2)
    assert ([record.lsn for record in first.records], first.problem) == ([0, 1], None)
    rest = decode(data, first.consumed)
    assert ([record.lsn for record in rest.records], rest.consumed) == ([2, 3, 4], len(data))
    assert decode(data, max_records=0) == ([], 0, None)


def test_a_reader_may_allow_less_than_the_format_but_not_more() -> None:
    small = encode(1, QueueDeleted(1))
    problem = decode(small, max_record_bytes=len(small) - 1).problem
    assert problem is not None
    assert problem.fault is Fault.SIZE
    huge = decode(struct.pack("<I", MAX_RECORD_BYTES + 1), max_record_bytes=2**40).problem
    assert huge is not None
    assert huge.fault is Fault.SIZE


def test_a_buffer_is_free_again_after_reading_also_after_a_problem() -> None:
    buffer = bytearray(sealed(RecordKind.QUEUE_DECLARED, b"\x01\x00\xff" + bytes(6)))
    problem = decode(buffer).problem
    buffer.clear()
    assert problem is not None
    assert problem.fault is Fault.BODY


def test_what_was_read_does_not_change_with_the_buffer() -> None:
    buffer = bytearray(encode(1, MESSAGE))
    (record,) = decode(memoryview(buffer)).records
    buffer[:] = bytes(len(buffer))
    assert repr(record.event) == repr(MESSAGE)


@pytest.mark.parametrize("offset", [-1, 4])
def test_an_offset_outside_of_the_buffer_is_the_callers_mistake(offset: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        decode(b"abc", offset)


# --- the documentation is true ---------------------------------------------------------------------------------------


def test_the_protocol_document_lists_each_kind_by_its_number() -> None:
    listed = {name: int(number, 16) for number, name in re.findall(r"^\| `(0x\w\w)` \| (\w+) \|", PROTOCOL, re.M)}
    assert {name.replace("_", "").lower(): number for name, number in RecordKind.__members__.items()} == {
        name.lower(): number for name, number in listed.items()
    }


def test_the_protocol_document_names_each_fault_and_reason() -> None:
    for fault in Fault:
        assert f"| `{fault}` |" in PROTOCOL
    for reason in DequeueReason:
        assert f"{reason.value} {reason.name.lower()}" in PROTOCOL


def test_the_annotated_example_is_a_record() -> None:
    (example,) = re.findall(r"```text\n(.*?)```", PROTOCOL.split("### An example")[1], re.S)[:1]
    data = bytes.fromhex("".join(line.split("|")[0] for line in example.splitlines()))
    assert data.hex() in {vector["hex"] for vector in vectors()}
