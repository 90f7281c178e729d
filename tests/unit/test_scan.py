"""Going through records by their headers finds what decoding finds, also where the loop is written out for speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, decode, encode, encode_all
from qpid_ha_broker.events.layout import (
    BODIES,
    HEADER,
    HEADER_BYTES,
    ONE_QUEUE,
    PART,
    PLAIN,
    VERSION,
    WORDS,
    Layout,
    RecordKind,
    word_of,
)
from qpid_ha_broker.events.scan import RecordError, durable_only, offset_after, queues_at, scan, scan_plain
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.store.bodies import records_in
from qpid_ha_broker.store.evidence import Evidence
from qpid_ha_broker.store.fold import Gatherer, Sieve
from qpid_ha_broker.store.loader import Loader

QUEUES = (1, 2, 3)
DECLARED = [LogRecord(queue, ev.QueueDeclared(f"queue-{queue}", {}), False) for queue in QUEUES]
SOME_QUEUES = st.lists(st.sampled_from(QUEUES), min_size=1, max_size=3, unique=True).map(tuple)
MESSAGES = st.builds(
    ev.Enqueued, SOME_QUEUES, st.binary(max_size=40), st.booleans(), st.integers(0, 9),
    st.integers(0, 2**40), st.sampled_from(["", "", "k", "é"]), st.sampled_from([0, 0, 1, 2**40]),
)  # fmt: skip
IDS = st.lists(st.integers(4, 30), min_size=1, max_size=3, unique=True).map(tuple)
REMOVALS = st.builds(ev.Dequeued, st.sampled_from(QUEUES), IDS, st.sampled_from(ev.DequeueReason))
OTHERS = st.builds(ev.Acquired, st.sampled_from(QUEUES), IDS) | st.builds(
    ev.Released, st.sampled_from(QUEUES), IDS, st.booleans()
)
UNITS = st.lists(MESSAGES | REMOVALS, min_size=1, max_size=3).map(
    lambda events: [*((event, True) for event in events), (ev.TransactionCommitted(len(events)), False)]
)
SINGLE = (MESSAGES | MESSAGES | REMOVALS | OTHERS).map(lambda event: [(event, False)])
LOGS = st.lists(SINGLE | SINGLE | UNITS, max_size=12).map(
    lambda groups: [
        LogRecord(lsn, event, part) for lsn, (event, part) in enumerate([pair for group in groups for pair in group], 4)
    ]
)


# --- the layout


def test_a_layout_packs_what_it_unpacks_and_knows_where_each_field_is() -> None:
    data = encode(7, ev.Enqueued((5,), b"payload", True, 4, 9, ""))
    values = dict(zip(PLAIN.fields, PLAIN.unpack_from(data), strict=True))
    assert (values["lsn"], values["kind"], values["version"], values["queue"]) == (7, RecordKind.ENQUEUED, VERSION, 5)
    assert PLAIN.pack(*values.values()) + b"payload" == data
    for name, at in PLAIN.offsets.items():
        assert PLAIN.between(name, name).unpack_from(data, at) == (values[name],)


def test_joined_fields_are_the_same_bytes_as_one_number() -> None:
    data = encode(7, ev.Enqueued((5,), b"", True, 4, 9, ""))
    values = dict(zip(WORDS.fields, WORDS.unpack_from(data), strict=True))
    assert (values["word"], values["lengths"]) == (word_of(RecordKind.ENQUEUED), ONE_QUEUE)
    assert (WORDS.size, WORDS.offsets["queue"]) == (PLAIN.size, PLAIN.offsets["queue"])
    part = encode(7, ev.Enqueued((5, 6), b"", True, 4, 9, ""), part=True)
    values = dict(zip(WORDS.fields, WORDS.unpack_from(part), strict=True))
    assert values["word"] == word_of(RecordKind.ENQUEUED, PART)
    assert values["lengths"] != ONE_QUEUE


def test_layouts_go_together_only_where_they_meet() -> None:
    with pytest.raises(ValueError, match="expected fields that begin at 20, found some that begin at 21"):
        _ = HEADER + Layout({"queue": "Q"}, 21)


def test_each_kind_has_a_layout_that_begins_behind_the_header() -> None:
    assert BODIES.keys() == set(RecordKind)
    assert {layout.start for layout in BODIES.values()} == {HEADER_BYTES}


# --- one loop and its faster forms


@given(LOGS)
def test_a_scan_finds_the_records_that_decoding_finds(log: list[LogRecord]) -> None:
    data = encode_all(log)
    at = 0
    for record, (lsn, _, flags, body_at, end) in zip(log, scan(data), strict=True):
        assert (lsn, flags == PART, body_at) == (record.lsn, record.part, at + HEADER_BYTES)
        assert data[at:end] == encode(*record)
        at = end
    assert at == len(data)


@given(LOGS)
def test_the_plain_scan_finds_what_the_scan_does(log: list[LogRecord]) -> None:
    data = encode_all(log)
    for record, (lsn, kind, flags, body_at, end), fields in zip(log, scan(data), scan_plain(data), strict=True):
        size, _, plain_lsn, word, durable, priority, expires, _, queue = fields
        assert (size, plain_lsn, word) == (end - body_at + HEADER_BYTES, lsn, word_of(RecordKind(kind), flags))
        if isinstance(record.event, ev.Enqueued):
            assert (durable, priority, expires) == record.event[2:5]
            assert queue == record.event.queues[0]
            assert queues_at(data, body_at - HEADER_BYTES) == record.event.queues


def test_the_plain_scan_has_nothing_of_a_record_that_ends_before_its_first_queue() -> None:
    first, *others = scan_plain(encode(1, ev.QueueDeleted(7)) + encode(2, ev.Enqueued((), b"", True, 4, 9, "")))
    assert first[2:4] == (1, word_of(RecordKind.QUEUE_DELETED))
    assert [(lsn, *rest) for _, _, lsn, _, *rest in others] == [(2, 0, 0, 0, 0, 0)]


@given(LOGS)
def test_what_is_left_out_of_a_journal_is_what_a_scan_finds_to_be_transient(log: list[LogRecord]) -> None:
    data, left_out = durable_only(encode_all(log))
    transient = [
        record.event.queues
        for record in log
        if isinstance(record.event, ev.Enqueued) and not record.event.durable and not record.part
    ]
    assert left_out == sum(map(len, transient))
    assert decode(data).records == [
        record for record in log if not isinstance(record.event, ev.Enqueued) or record.event.durable or record.part
    ]


@given(LOGS, st.integers(0, 40))
def test_a_log_is_cut_behind_an_lsn(log: list[LogRecord], lsn: int) -> None:
    data = encode_all(log)
    at = offset_after(data, lsn)
    assert decode(data[:at]).records == [record for record in log if record.lsn <= lsn]
    assert decode(data[at:]).records == [record for record in log if record.lsn > lsn]


@pytest.mark.parametrize(("size", "text"), [(19, "found 19"), (99, "found 99"), (0, "found 0")])
def test_a_scan_says_where_a_size_cannot_be(size: int, text: str) -> None:
    whole = encode(1, ev.QueueDeleted(1))
    with pytest.raises(RecordError, match=text) as caught:
        list(scan(whole + size.to_bytes(4, "little") + whole[4:]))
    assert caught.value.offset == len(whole)
    with pytest.raises(RecordError, match="expected a record, found 3 bytes"):
        list(scan(whole + whole[:3]))


# --- and those that also take in what they find


def slowly(loader: Loader, log: list[LogRecord]) -> None:
    for record in log:
        loader.apply(record)
    loader.end_block(0)


@given(LOGS)
def test_a_loader_takes_a_block_as_it_would_take_its_records(log: list[LogRecord]) -> None:
    fast, slow = Loader(ResourceSets()), Loader(ResourceSets())
    for loader in (fast, slow):
        slowly(loader, DECLARED)
    fast.load(encode_all(log))
    slowly(slow, log)
    assert fast.messages() == slow.messages()
    assert (fast.enqueued, fast.transient, fast.unknown) == (slow.enqueued, slow.transient, slow.unknown)


@given(LOGS)
def test_a_fold_gathers_and_lets_through_what_the_records_say(log: list[LogRecord]) -> None:
    fast, slow, loaded = Gatherer(ResourceSets()), Gatherer(ResourceSets()), Loader(ResourceSets())
    for loader in (fast, slow, loaded):
        slowly(loader, DECLARED)
    data = encode_all(log)
    fast.load(data)
    slowly(slow, log)
    assert (fast.removed, fast.transient) == (slow.removed, slow.transient)
    gone = {(queue, lsn) for queue, lsns in slow.removed.items() for lsn in lsns}
    passed = decode(b"".join(Sieve(fast).sift(data))).records
    expected = {
        record.lsn: tuple(queue for queue in record.event.queues if (queue, record.lsn) not in gone)
        for record in log
        if isinstance(record.event, ev.Enqueued) and record.event.durable
    }
    assert {record.lsn: record.event.queues for record in passed if isinstance(record.event, ev.Enqueued)} == {
        lsn: queues for lsn, queues in expected.items() if queues
    }
    assert not any(record.part for record in passed)


@given(LOGS)
def test_payloads_and_evidence_are_found_where_the_records_are(log: list[LogRecord]) -> None:
    data, evidence = encode_all(log), Evidence()
    evidence.read(data)
    durable = [record for record in log if isinstance(record.event, ev.Enqueued) and record.event.durable]
    (found,) = records_in(data, 0)
    places = {(queue, lsn) for queue, records in found.items() for lsn in records.lsns}
    assert places == {(queue, record.lsn) for record in durable for queue in record.event.queues}  # type: ignore[union-attr]
    loader = Loader(ResourceSets())
    slowly(loader, [*DECLARED, *log])
    if not any(record.part for record in log):
        lasting = {(queue, lsn) for queue, lsns in loader.messages().items() for lsn in lsns}
        assert evidence.messages == len(lasting)
