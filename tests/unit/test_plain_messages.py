"""Which messages are plain, and what goes out of them: looked at together as each by itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import cast
from unittest.mock import patch

import proton
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from model_support import Core
from paired_engines import PairedBroker
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.links.incoming import IncomingLink, ReceivingLink
from qpid_ha_broker.amqp.links.plain_messages import runs_of
from qpid_ha_broker.amqp.links.sent_payload import sent_payload, sent_payloads
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.annotations import DELIVERY_DELAY, DELIVERY_TIME
from qpid_ha_broker.amqp.wire.conditions import AmqpError, DecodeError
from qpid_ha_broker.amqp.wire.engine import Delivery, Transfer
from qpid_ha_broker.amqp.wire.group_ids import has_group
from qpid_ha_broker.amqp.wire.sections import PRODUCER, SEQUENCE, SUBJECT_FIELD, Header, MessageSections
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.transactions.transaction import Message

SECTIONS = MessageSections()
LIMIT = 160
LISTS = (b"\x02\x01A", b"\x04\x02BP\x07", b"\x08\x03@@p\x00\x00\x00\x09")
HEADERS = (b"", b"\x00SpE", *(b"\x00Sp\xc0" + fields for fields in LISTS))
"""None, an empty one, and such with few fields: some clients leave out what is as usual."""
BODY = b"\x00Sw\xa1\x04body"


OF_JMS = {"x-opt-jms-msg-type": proton.byte(5), "x-opt-jms-dest": proton.byte(0)}
"""Each message of Qpid JMS has these two."""
ASKING = (PRODUCER, SEQUENCE, DELIVERY_TIME, DELIVERY_DELAY)


def encoded(**fields: object) -> bytes:
    annotations = cast("Mapping[str, int] | None", fields.pop("annotations", None))
    message = proton.Message("body", **fields)
    if annotations:
        message.annotations = {proton.symbol(name): value for name, value in annotations.items()}
    return bytes(message.encode())


NUMBERED = encoded(annotations={SEQUENCE: 7})
CUT_IN_ANNOTATIONS = NUMBERED[: NUMBERED.index(b"\x00Sr") + 8]
"""It ends behind the size of its annotations, with which the other one begins as well."""
of_clients = st.builds(
    encoded,
    durable=st.booleans(),
    priority=st.sampled_from([4, 4, 9]),
    ttl=st.sampled_from([0, 0, 0, 5]),
    id=st.sampled_from([None, "a", 7]),
    group_id=st.sampled_from([None, None, "g"]),
    group_sequence=st.sampled_from([0, 3]),
    expiry_time=st.sampled_from([0, 0, 1700]),
    subject=st.sampled_from([None, "s"]),
    annotations=st.sampled_from(
        [None, None, {"x-opt-a": 1}, OF_JMS, OF_JMS, {"x-opt-qpid-sequence": 7}, {"x-opt-delivery-delay": 3000}]
    ),
)
by_hand = st.builds(lambda header: header + BODY, st.sampled_from(HEADERS))
broken = st.builds(lambda payload, end: payload[:end], of_clients | by_hand, st.integers(0, 40))
large = st.builds(lambda payload: payload + b"\x00Su\xa0" + bytes((LIMIT,)) + bytes(LIMIT), of_clients)
ONE_FRAME = bytes(proton.Message("x" * 2000).encode())
LARGE_BYTES = 70_000
PARTS = [
    b"\x00Sw\xb1" + LARGE_BYTES.to_bytes(4, "big") + (b"x" * shift + BODY * LARGE_BYTES)[:LARGE_BYTES]
    for shift in range(len(BODY))
]
"""Each takes two frames, and in one of them the second frame begins as a message does."""
of_sizes = st.sampled_from([ONE_FRAME, *PARTS, PARTS[0] + PARTS[0]])
payloads = by_hand | of_clients | of_clients | of_clients | broken | st.binary(max_size=12) | large


def has_header(payload: bytes) -> bool:
    """Whether a message is taken: others are refused, whatever else they are."""
    try:
        SECTIONS.header(payload)
    except AmqpError:
        return False
    return True


taken = (by_hand | of_clients | broken).filter(has_header)


def is_plain(payload: bytes, *, detects_groups: bool) -> bool:
    """By looking at all that counts of one message."""
    try:
        header = SECTIONS.header(payload)
        annotations = SECTIONS.annotations(payload)
    except AmqpError:
        return False
    says_when = SECTIONS.absolute_expiry(payload, header.length)
    is_of_group = detects_groups and has_group(payload)
    asks = any(name in annotations for name in ASKING)
    return len(payload) <= LIMIT and not says_when and not asks and not is_of_group


def transfers_of(*sent: tuple[bytes, int] | bytes) -> list[Transfer]:
    """Of payloads, or of payloads with what they say of their state."""
    pairs = [(each, 0) if isinstance(each, bytes) else each for each in sent]
    return [(cast("Delivery", at), payload, False, state) for at, (payload, state) in enumerate(pairs)]


@settings(max_examples=400, deadline=None)
@given(
    sent=st.lists(st.tuples(payloads, st.sampled_from([0, 0, 0, engine.TRANSACTIONAL])), max_size=10),
    detects_groups=st.booleans(),
)
@example([(HEADERS[0] + BODY, 0), (HEADERS[2] + BODY, 0), (HEADERS[0] + BODY, 0), (HEADERS[1] + BODY, 0)], True)
@example([(CUT_IN_ANNOTATIONS, 0), (NUMBERED, 0)], False)
def test_a_run_has_the_header_that_each_of_its_messages_has_and_nothing_is_to_be_decided_about_them(
    sent: list[tuple[bytes, int]], detects_groups: bool
) -> None:
    batch = transfers_of(*sent)
    runs = list(runs_of(batch, SECTIONS, LIMIT, detects_groups=detects_groups))
    assert [transfer for run, _ in runs for transfer in run] == batch
    assert all(run for run, _ in runs)
    for run, header in runs:
        for _, payload, _, state in run:
            if header is not None:
                assert header == SECTIONS.header(payload)
                assert state != engine.TRANSACTIONAL
                assert is_plain(payload, detects_groups=detects_groups)


def test_messages_as_clients_write_them_are_plain_and_come_in_one_run() -> None:
    usual = [encoded(id=number, subject="s", correlation_id="c") for number in range(3)]
    usual += [encoded(), encoded(reply_to="r", user_id=b"u")]
    others = [encoded(durable=True), encoded(durable=True, id=7)]
    of_jms = [encoded(id=number, annotations=OF_JMS, creation_time=1_790_000_000) for number in range(3)]
    batch = transfers_of(*usual, *others, *of_jms)
    lengths = [(len(run), header is not None) for run, header in runs_of(batch, SECTIONS, LIMIT, detects_groups=True)]
    assert lengths == [(5, True), (2, True), (3, True)]


@pytest.mark.parametrize("name", ASKING)
def test_what_asks_for_something_by_its_annotations_is_looked_at_by_itself_wherever_it_says_so(name: str) -> None:
    usual = encoded(annotations=OF_JMS)
    for asking in ({name: 1, **OF_JMS}, {**OF_JMS, name: 1}, {name: 1}):
        batch = transfers_of(usual, encoded(annotations=asking), usual)
        runs = runs_of(batch, SECTIONS, LIMIT, detects_groups=True)
        assert [(len(run), header is not None) for run, header in runs] == [(1, True), (1, False), (1, True)]


def test_of_a_message_with_a_group_the_queue_is_told_as_long_as_it_looks_for_groups() -> None:
    batch = transfers_of(encoded(), encoded(group_id="g"), encoded())
    kinds: dict[bool, list[tuple[int, Header | None]]] = {}
    for detects_groups in (True, False):
        runs = runs_of(batch, SECTIONS, LIMIT, detects_groups=detects_groups)
        kinds[detects_groups] = [(len(run), header) for run, header in runs]
    assert [(count, header is None) for count, header in kinds[True]] == [(1, False), (1, True), (1, False)]
    assert [(count, header is None) for count, header in kinds[False]] == [(3, False)]


@settings(max_examples=300, deadline=None)
@given(sent=st.lists(st.tuples(taken, st.booleans()), min_size=1, max_size=10), expires=st.booleans())
@example([(HEADERS[0] + BODY, False), (HEADERS[2] + BODY, False), (HEADERS[0] + BODY, True)], False)
@example([(CUT_IN_ANNOTATIONS, False), (NUMBERED, False)], False)
def test_what_goes_out_together_is_what_each_would_be_by_itself(sent: list[tuple[bytes, bool]], expires: bool) -> None:
    core = Core()
    queue = core.queue("q")
    consumer = core.consumer(queue)
    for payload, _ in sent:
        core.publish(queue, Message(payload, False, 4, core.now_ms + 1000 if expires else 0))
    entries = core.take(queue, consumer)
    for entry, (_, comes_back) in zip(entries, sent, strict=True):
        entry.acquired_before = comes_back
    bodies = [entry.resident_body() for entry in entries]
    together = sent_payloads(SECTIONS, queue, entries, bodies, core.now_ms)
    each = [sent_payload(SECTIONS, queue, entry, entry.resident_body(), core.now_ms) for entry in entries]
    assert together == each


@settings(max_examples=300, deadline=None)
@given(payload=of_clients | by_hand | broken)
def test_the_subject_is_found_as_any_other_field(payload: bytes) -> None:
    found = []
    for read in (SECTIONS.routing_key, lambda whole: SECTIONS._property(whole, SUBJECT_FIELD)):
        try:
            found.append(read(payload))
        except DecodeError as error:
            found.append(str(error))
    assert found[0] == found[1]


QUEUES: tuple[dict[str, Scalar], ...] = (
    {},
    {"qpid.priorities": 3},
    {"qpid.max_count": 3},
    {"qpid.max_count": 3, "qpid.policy_type": "ring"},
    {"qpid.message_ttl_ms": 1000},
    {"qpid.replicate": "none"},
    {"qpid.message_groups": True},
)
BINDINGS: tuple[tuple[str, dict[str, Scalar]], ...] = (
    ("s", {}),
    ("#", {}),
    ("", {}),
    ("s", {"x-filter-jms-selector": "JMSPriority > 4"}),
    ("s", {"x-match": "any", "a": 1}),
)
bound = st.tuples(st.sampled_from([*QUEUES[:1] * 6, *QUEUES]), st.sampled_from([*BINDINGS[:1] * 6, *BINDINGS]))


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(["topic", "topic", "direct", "fanout", "headers"]),
    queues=st.lists(bound, max_size=4),
    address=st.sampled_from(["x", "x/s", "x/t"]),
    sent=st.lists(st.tuples(of_clients | by_hand | broken, st.booleans()), min_size=1, max_size=10),
)
def test_an_exchange_brings_messages_that_come_together_where_it_brings_each_by_itself(
    kind: str,
    queues: list[tuple[dict[str, Scalar], tuple[str, dict[str, Scalar]]]],
    address: str,
    sent: list[tuple[bytes, bool]],
) -> None:
    """The long way is what every link has."""
    quick, careful = PairedBroker(), PairedBroker()
    seen: dict[PairedBroker, object] = {}
    for broker in (quick, careful):
        configuration = broker.container.default.configuration
        configuration.declare_exchange("x", kind, {})
        for number, (arguments, (key, conditions)) in enumerate(queues):
            configuration.declare_queue(f"q{number}", arguments)
            with suppress(ModelError):  # arguments that are none of that kind
                configuration.bind("x", f"q{number}", key, conditions)
        with patch.object(IncomingLink, "transfers", ReceivingLink.transfers) if broker is careful else nullcontext():
            client = broker.connect()
            link = client.sender(address)
            deliveries = []
            for payload, settled in sent:
                delivery = client.send(link, payload)
                if settled:
                    delivery.settle()
                deliveries.append(delivery)
            broker.settle_down()
        broker.check_invariants()
        resources = broker.container.default.resources
        seen[broker] = (
            [
                [(entry.id, entry.body, entry.header) for entry in queue.messages]
                for queue in resources.catalog.queues.values()
            ],
            [(delivery.remote_state, delivery.settled) for delivery in deliveries],
            bool(link.state & proton.Endpoint.REMOTE_ACTIVE),
            (resources.unroutable_total, resources.replicated.log.last_lsn, resources.catalog.memory_bytes),
        )
    assert seen[quick] == seen[careful]


def test_what_an_exchange_brings_to_queues_of_two_logs_is_in_each_of_these() -> None:
    broker = PairedBroker()
    configuration = broker.container.default.configuration
    configuration.declare_exchange("x", "fanout", {})
    queues = [
        configuration.declare_queue("replicated", {}),
        configuration.declare_queue("here", {"qpid.replicate": "none"}),
    ]
    for queue in queues:
        configuration.bind("x", queue.name, "", {})
    client = broker.connect()
    link = client.sender("x")
    before = [queue.log.last_lsn for queue in queues]
    for _ in range(3):
        client.send(link, BODY)
    broker.settle_down()
    assert [queue.log.last_lsn - first for queue, first in zip(queues, before, strict=True)] == [3, 3]


@settings(max_examples=60, deadline=None)
@given(
    sent=st.lists(st.tuples(of_clients | by_hand | broken | of_sizes, st.booleans()), min_size=1, max_size=8),
    limit=st.sampled_from([1000, len(PARTS[0])]),
)
@example([(BODY, False), *((payload, False) for payload in PARTS), (BODY, False)], len(PARTS[0]))
@example([(BODY, False), (ONE_FRAME, False), (BODY, True), (BODY, False)], 1000)
def test_messages_that_come_in_one_piece_are_taken_or_refused_as_those_that_come_alone(
    sent: list[tuple[bytes, bool]], limit: int
) -> None:
    """Those in parts, and those that are too large, and end their link, among them."""
    limited = ContainerSettings("test", "0", max_message_bytes=limit)
    together, alone = PairedBroker(limited), PairedBroker(limited)
    seen: dict[PairedBroker, object] = {}
    for broker in (together, alone):
        client = broker.connect()
        link = client.sender("q")
        deliveries = []
        for payload, settled in sent:
            delivery = client.send(link, payload)
            if settled:
                delivery.settle()
            deliveries.append(delivery)
            if broker is alone:
                broker.settle_down()
        broker.settle_down()
        broker.check_invariants()
        queued = [(entry.body, entry.header) for entry in broker.queue("q").messages]
        is_open = bool(link.state & proton.Endpoint.REMOTE_ACTIVE)
        # Of a link that ended before it could be told, nobody hears what became of its last messages.
        outcomes = [(delivery.remote_state, delivery.settled, link.credit) for delivery in deliveries if is_open]
        seen[broker] = (queued, outcomes, is_open)
    assert seen[together] == seen[alone]
