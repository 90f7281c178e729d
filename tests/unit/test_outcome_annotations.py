"""What consumers say of messages that they give back goes with these from then on: merged, kept, told, and bounded."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import proton
import pytest
from cproton_ffi import lib
from hypothesis import given, settings
from hypothesis import strategies as st

from catchup_support import Pair, pair_with
from kept_core import IDENTITY, KeptCore, recovered
from little_group import LittleGroup
from model_support import Core, bodies, message, picture, replicated_picture
from paired_engines import PairedBroker, PairedClient
from paired_links import condition, subscribe
from paired_proxy import paired_broker
from paired_remote import PairedRemote
from paired_transactions import PairedCoordinator, answer
from qpid_ha_broker.amqp.nodes.queue_messages import QueueLook, QueueMessages
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.outcome_annotations import (
    MAX_BYTES,
    MAX_ENTRIES,
    annotated,
    checked,
    encoded,
    merged,
)
from qpid_ha_broker.amqp.wire.sections import MAX_NUMBERED_PAIRS, MAX_PAIRS, PRODUCER, SEQUENCE
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Annotated, Enqueued, Released
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Batch, Chunk, Hello
from qpid_ha_broker.model.commands.moving import begin_move
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import load_bodies
from qpid_ha_broker.store.fold import fold
from session_clients import consume, open_session
from session_support import FIRST
from small_cluster import Node, SmallCluster

SAID, AGAIN = b"said=busy", b"said=late"
MODIFIED: Any = proton.Delivery.MODIFIED


# --- the merge

names = st.one_of(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=6).map(proton.symbol),
    st.integers(0, 300).map(proton.ulong),
)
values = st.one_of(
    st.text(max_size=5), st.integers(-5, 5), st.booleans(), st.none(), st.lists(st.integers(0, 9), max_size=3)
)
maps = st.dictionaries(names, values, max_size=6)


def of(annotations: dict[Any, Any]) -> bytes:
    return checked(encoded(named(annotations)))


def named(annotations: Any) -> Any:
    """With symbols, where a test has written text."""
    if not isinstance(annotations, dict):
        return annotations
    return {proton.symbol(name) if isinstance(name, str) else name: value for name, value in annotations.items()}


def whole(text: str = "text", **facts: Any) -> bytes:
    """A message, as a publisher sends it."""
    return bytes(proton.Message(text, **facts).encode())


def told(payload: bytes) -> Any:
    decoded: Any = proton.Message()
    decoded.decode(payload)
    return decoded


@settings(max_examples=200, deadline=None)
@given(maps, maps, maps, st.sampled_from([None, {"p": 1}]))
def test_the_newer_value_of_a_name_counts_and_nothing_else_of_the_message_changes(
    own: dict[Any, Any], first: dict[Any, Any], second: dict[Any, Any], properties: dict[str, int] | None
) -> None:
    payload = whole(durable=True, subject="s", annotations=own or None, properties=properties)
    said = merged(of(first), of(second))
    got, expected = told(annotated(payload, said)), {**own, **first, **second}
    assert (got.annotations or {}) == expected
    got.annotations = own or None
    assert got.encode() == payload
    assert annotated(annotated(payload, said), said) == annotated(payload, said)


def test_a_name_is_the_same_however_it_is_encoded() -> None:
    long_symbol = b"\xd1\x00\x00\x00\x0b\x00\x00\x00\x02\xb3\x00\x00\x00\x01x\x41"
    short_ulong, ulong = (
        b"\xc1" + bytes((len(name) + 2, 2)) + name + b"\x41" for name in (b"\x53\x01", b"\x80" + b"\x00" * 7 + b"\x01")
    )
    assert told(annotated(whole(annotations={"x": 1}), checked(long_symbol))).annotations == {"x": True}
    assert merged(checked(short_ulong), checked(ulong)) == checked(ulong)


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"\x00\x53\x72\xc1\x03\x02\xa1\x01", b"no message", b"\x00\x53\x72\x40"]
)
def test_what_cannot_be_read_goes_out_as_it_is(payload: bytes) -> None:
    assert annotated(payload, of({"x": 1})) in (payload, annotated(b"", of({"x": 1})) + payload)


def test_a_message_never_has_more_annotations_than_can_be_read() -> None:
    full = whole(annotations={f"a{number}": 1 for number in range(MAX_PAIRS)})
    assert annotated(full, of({"x": 1})) == full
    assert told(annotated(full, of({"a7": 2}))).annotations["a7"] == 2


def test_the_number_of_a_message_goes_to_nobody_however_much_is_said_of_it() -> None:
    broker = PairedBroker()
    client = broker.connect()
    own = {f"a{number}": 1 for number in range(MAX_NUMBERED_PAIRS - 2)}
    number = {PRODUCER: "mine", SEQUENCE: proton.ulong(1)}
    client.publish("q", proton.Message("a", annotations=named({**own, **number}), durable=True))
    said_on(client, client.receiver("q"), {f"b{number}": 1 for number in range(MAX_ENTRIES)})
    assert set(next_on(client).annotations) == {*own, *(f"b{number}" for number in range(MAX_ENTRIES))}


OURS = [
    "x-opt-qpid-producer", "x-opt-qpid-sequence", "x-opt-qpid-tombstone", "x-opt-qpid-remote-path", "x-opt-qpid-unseen",
    "x-opt-qpid-anything", "x-opt-first-death-queue", "x-opt-last-death-queue", "x-opt-last-death-reason",
    "x-opt-death-count", "x-opt-delivery-time", "x-opt-delivery-delay", "x-opt-jms-dest",
]  # fmt: skip


@pytest.mark.parametrize("name", OURS)
def test_no_consumer_says_what_a_broker_would_take_for_its_own_word(name: str) -> None:
    assert of({name: 1}) == b""
    assert of({name: 1, "x-opt-why": "busy"}) == of({"x-opt-why": "busy"})


def listed(count: int) -> dict[str, int]:
    return {f"n{number}": number for number in range(count)}


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (encoded([1, 2]), "amqp:invalid-field"),
        (encoded("text"), "amqp:invalid-field"),
        (encoded({"text": 1}), "amqp:invalid-field"),
        (encoded({proton.uint(1): 1}), "amqp:invalid-field"),
        (b"\xc1\x05\x02\xa3\x01\xff\x41", "amqp:invalid-field"),
        (b"\xc1\x04\x03\xa3\x01x", "amqp:invalid-field"),
        (encoded({proton.symbol("x"): "y" * MAX_BYTES}), "amqp:resource-limit-exceeded"),
        (encoded({proton.symbol(name): 1 for name in listed(MAX_ENTRIES + 1)}), "amqp:invalid-field"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_reason(wrong: bytes, name: str) -> None:
    with pytest.raises(AmqpError, match="the message-annotations of modified") as caught:
        checked(wrong)
    assert caught.value.name == name


@pytest.mark.parametrize("second", [{"x": "y" * 5000}, {f"m{number}": 1 for number in range(60)}])
def test_what_is_said_bit_by_bit_has_the_same_limits(second: dict[str, Any]) -> None:
    with pytest.raises(AmqpError, match="that were said before"):
        merged(of({"z": "y" * 5000, **listed(60)}), of(second))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40), st.sampled_from([b"", b"\xc1", b"\xd1\x00\x00", b"\xc1\x08\x04\xa3\x01a\x41\xa3"]))
def test_whatever_bytes_come_are_kept_or_refused(data: bytes, start: bytes) -> None:
    try:
        said = checked(start + data)
    except AmqpError:
        return
    assert merged(said, said) == said
    annotated(start + data, said or of({"x": 1}))


# --- a queue


def given_back(core: Core, queue: Queue, said: bytes, count: int = 1, *, failed: bool = False) -> None:
    """A consumer takes messages, and gives each back with that."""
    consumer = core.consumer(queue)
    for entry in core.take(queue, consumer, count):
        core.resources.release(queue, [entry], failed, annotations=said)
    core.leave(queue, consumer)


def said_of(queue: Queue) -> dict[str, bytes]:
    """By what the messages say themselves."""
    return {bodies([entry])[0]: queue.messages.annotations.get(entry.id, b"") for entry in queue.messages}


def test_it_is_written_with_the_outcome_and_stays_until_the_message_leaves() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a", "b")
    core.read()
    first = next(iter(queue.messages)).id
    before = core.catalog.memory_bytes
    given_back(core, queue, SAID)
    *_, said, released, _ = core.read()
    assert (said, released) == (Annotated(queue.id, (first,), SAID), Released(queue.id, (first,), False))
    assert core.catalog.memory_bytes == before + len(SAID)
    given_back(core, queue, AGAIN)
    assert said_of(queue) == {"a": AGAIN, "b": b""}
    core.check()
    assert core.consume(queue, 1) == ["a"]
    assert (queue.messages.annotations, queue.messages.resident) == ({}, queue.messages.size)
    core.check()


@pytest.mark.parametrize("way", ["purge", "delete", "expire", "level"])
def test_nothing_is_left_of_it_whatever_becomes_of_the_message(way: str) -> None:
    core = Core()
    queue = core.queue("q")
    before = core.catalog.memory_bytes
    core.publish(queue, message("a", ttl_ms=1000))
    given_back(core, queue, SAID)
    if way == "purge":
        core.purge(queue)
    elif way == "delete":
        core.configuration.delete_queue("q")
    elif way == "expire":
        core.tick(after_ms=2000)
    else:
        core.configuration.update_queue("q", {"qpid.replicate": "configuration"})
        assert said_of(queue) == {"a": SAID}
        core.configuration.update_queue("q", {"qpid.replicate": "messages"})
        assert said_of(queue) == {"a": SAID}
        core.check()
        assert core.consume(queue) == ["a"]
    assert core.catalog.memory_bytes == before
    core.check()


@pytest.mark.parametrize("limit", [1, 0])
def test_a_dead_letter_and_what_is_moved_or_copied_have_it_among_their_own(limit: int) -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx", delivery_limit=limit)
    copy, other = core.queue("copy"), core.queue("other")
    core.publish(queue, "a")
    given_back(core, queue, SAID, failed=True)
    if not limit:
        begin_move(core.resources, queue, copy, copies=True)
        assert said_of(queue) == {"a": SAID}
        begin_move(core.resources, queue, other)
        (copied,), (moved,) = copy.messages, other.messages
        assert copied.resident_body() == moved.resident_body() == b";said=busy;a"
    else:
        (letter,) = dead.messages
        assert letter.resident_body().startswith(b";said=busy,death=q/delivery-limit/")
    core.check()


def test_nothing_of_it_is_written_while_one_follows_that_cannot_read_it() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    core.state.marks.tells_annotations = False
    given_back(core, queue, SAID, failed=True)
    assert [type(event) for event in core.read() if not isinstance(event, Enqueued)][-1] is Released
    assert said_of(queue) == {"a": b""}
    core.state.marks.tells_annotations = True
    given_back(core, queue, SAID)
    assert said_of(queue) == {"a": SAID}


# --- a store


@pytest.mark.parametrize("way", ["journal", "dump", "fold"])
def test_a_broker_that_starts_again_knows_it_of_the_messages_that_are_there(way: str) -> None:
    core = KeptCore()
    queue, local = core.queue("q"), core.queue("local", replicate="none")
    for target in (queue, local):
        core.publish(target, *(message(text, durable=True) for text in "abc"), message("transient"))
        given_back(core, target, SAID, 4)
        given_back(core, target, AGAIN, 2)
        core.consume(target, 1)
    core.keep()
    if way == "dump":
        dump, number = core.begin_dump()
        given_back(core, queue, b"said=meanwhile", 1)
        pieces = []
        while (piece := dump.next(1)) is not None:
            pieces.append(piece)
        given_back(core, queue, b"said=last", 1)
        core.keep()
        core.write_dump(dump, number, pieces)
    elif way == "fold":
        number = core.journal.roll()
        fold(core.disk, number, IDENTITY)
        core.journal.drop_before(number)
    resources, _ = recovered(core.disk)
    for target in (queue, local):
        there = resources.catalog.queues[target.name]
        assert said_of(there) == {text: said for text, said in said_of(target).items() if text != "transient"}
        there.messages.check_invariants()


# --- a backup


@pytest.mark.parametrize("has_it_already", [True, False])
def test_who_catches_up_has_it_whether_or_not_it_has_the_message(has_it_already: bool) -> None:
    pair, queue = pair_with(3 if has_it_already else 0)
    given_back(pair.backup, pair.backup.catalog.queues["a"], b"said=void", 2)  # by what is not the cluster's log
    if not has_it_already:
        pair.primary.publish(queue, "1", "2", "3")
    given_back(pair.primary, queue, SAID, 1)
    caught_up(pair)
    assert list(said_of(pair.backup.catalog.queues["a"]).values()) == [SAID, b"", b""]


def caught_up(pair: Pair) -> None:
    pair.meet()
    pair.finish()
    pair.follow_on()
    assert picture(pair.backup.sets) == replicated_picture(pair.primary.sets)


def test_a_catch_up_that_comes_to_nothing_leaves_what_was_known() -> None:
    pair, _ = pair_with(3)
    backup = pair.backup.catalog.queues["a"]
    given_back(pair.backup, backup, SAID, 1)
    before = said_of(backup)
    pair.meet()
    assert said_of(backup) == {}
    pair.catch_up.abandon()
    assert said_of(backup) == before
    pair.catch_up.check_invariants()


class MixedCluster(SmallCluster):
    """Brokers of which `older` do not read it. `sent`: what these were sent of it."""

    def __init__(self, *names: str, older: str) -> None:
        self.older = older
        self.sent: list[Annotated] = []
        super().__init__(*names)

    def carry_out(self, node: Node, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Send):
            frame = effect.frame
            if isinstance(frame, Hello) and node.name in self.older:
                effect = effect._replace(frame=frame._replace(reads_annotations=False))
            elif isinstance(frame, Batch | Chunk):
                other, _ = self._links.get((node.name, effect.link), ("", 0))
                if other and other in self.older:
                    self.sent += [event for _, event, _ in decode(frame.data).records if isinstance(event, Annotated)]
        super().carry_out(node, effect)


def led_by_a(older: str = "") -> MixedCluster:
    cluster = MixedCluster("a", "b", "c", older=older)
    for name in "abc":
        cluster.start(name)
    assert cluster.promote("a").done
    cluster.settle()
    cluster["a"].declare("q")
    cluster["a"].publish("q", "1", "2")
    cluster.settle()
    return cluster


def give_back(node: Node, said: bytes) -> None:
    (entry,) = node.take("q", 1)
    node.resources.release(node.resources.catalog.queues["q"], [entry], failed=False, annotations=said)


def known(node: Node) -> list[bytes]:
    messages = node.resources.catalog.queues["q"].messages
    return [messages.annotations.get(entry.id, b"") for entry in messages]


def test_who_leads_next_knows_it() -> None:
    cluster = led_by_a()
    give_back(cluster["a"], SAID)
    cluster.settle()
    assert [known(cluster[name]) for name in "abc"] == [[SAID, b""]] * 3
    cluster.kill("a")
    assert cluster.promote("b", failover=True).done
    cluster.settle()
    assert known(cluster["b"]) == [SAID, b""]
    give_back(cluster["b"], AGAIN)
    cluster.settle()
    assert [known(cluster[name]) for name in "bc"] == [[AGAIN, b""]] * 2


def test_an_older_backup_is_sent_none_of_it() -> None:
    cluster = led_by_a(older="b")
    give_back(cluster["a"], SAID)
    cluster.settle()
    assert cluster.sent == []
    assert [known(cluster[name]) for name in "abc"] == [[b"", b""]] * 3
    ends = {cluster[name].resources.replicated.log.last_lsn for name in "abc"}
    assert len(ends) == 1


def test_one_that_comes_later_compares_what_both_hold_without_it() -> None:
    cluster = led_by_a()
    give_back(cluster["a"], SAID)
    cluster.settle()
    cluster.cut("b", "a", "c")
    give_back(cluster["a"], AGAIN)
    cluster.wait(60)
    cluster.older = "b"
    cluster.heal()
    cluster.wait(30)
    assert cluster.sent == []
    assert cluster["b"].bodies("q") == ["1", "2"]
    assert known(cluster["b"]) == [b"", b""]
    assert cluster["b"].resources.replicated.log.last_lsn == cluster["a"].resources.replicated.log.last_lsn


# --- a group of brokers


def test_each_member_of_a_group_knows_it_once_it_has_its_place() -> None:
    group = LittleGroup()
    group.a.core.publish(group.a.queue(), "x", "y")
    consumer = group.a.core.consumer(group.a.queue())
    group.a.core.give_credit(group.a.queue(), consumer, 1)
    group.settle()
    (entry,) = group.a.core.inbox(consumer)
    token = group.a.resources.release(group.a.queue(), [entry], failed=False, annotations=SAID)
    assert (said_of(group.a.queue()), token.is_committed) == ({"x": b"", "y": b""}, False)
    group.settle()
    assert token.is_committed
    assert [said_of(member.queue()) for member in group.members] == [{"x": SAID, "y": b""}] * 3
    group.a.core.leave(group.a.queue(), consumer)
    other = group.b.core.consumer(group.b.queue())
    group.b.core.give_credit(group.b.queue(), other, 1)
    group.settle()
    (again,) = group.b.core.inbox(other)
    assert (bodies([again]), group.b.queue().is_redelivered(again)) == (["x"], True)


# --- on the wire

WAYS = ["direct", "proxied"]


def modify(delivery: Any, annotations: Any, *, failed: bool = False, undeliverable: bool = False) -> None:
    delivery.local.failed, delivery.local.undeliverable = failed, undeliverable
    delivery.local.annotations = named(annotations)
    delivery.update(MODIFIED)


def said_on(client: PairedClient, link: Any, annotations: Any, **flags: bool) -> Any:
    """Take a message, and give it back with that; the delivery."""
    link.flow(1)
    client.broker.settle_down()
    ((delivery, _),) = client.received(link)
    modify(delivery, annotations, **flags)
    delivery.settle()
    client.broker.settle_down()
    return delivery


def next_on(client: PairedClient, address: str = "q") -> Any:
    """What whoever comes next is given."""
    link = client.receiver(address, 1)
    ((_, got),) = client.received(link)
    return got


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "flags", [{}, {"failed": True}, {"undeliverable": True}, {"failed": True, "undeliverable": True}]
)
def test_whoever_gets_the_message_next_has_them_among_its_own(way: str, flags: dict[str, bool]) -> None:
    broker = paired_broker(way)
    client = broker.connect()
    sent: Any = proton.Message("a", annotations={"mine": 1, "x": 2}, properties={"p": 1}, durable=True)
    client.publish("q", sent)
    said_on(
        client,
        client.receiver("q"),
        {"x": 3, "why": "busy", proton.ulong(7): [1, "2"], "when": proton.timestamp(5)},
        **flags,
    )
    got = next_on(broker.connect())
    assert got.annotations == {"mine": 1, "x": 3, "why": "busy", 7: [1, "2"], "when": 5}
    assert type(got.annotations["when"]) is proton.timestamp
    assert (got.body, got.properties, got.durable) == ("a", {"p": 1}, True)
    assert (got.delivery_count, got.first_acquirer) == (int(flags.get("failed", False)), False)


@pytest.mark.parametrize("way", WAYS)
def test_what_several_say_one_after_the_other_is_all_there(way: str) -> None:
    broker = paired_broker(way)
    client = broker.connect()
    client.publish("q", "a")
    link = client.receiver("q")
    for said in ({"first": 1, "x": 1}, None, {"second": 2, "x": 2}, {}):
        said_on(client, link, said)
    assert next_on(client).annotations == {"first": 1, "second": 2, "x": 2}


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_is_confirmed_without_them(way: str) -> None:
    broker = paired_broker(way)
    client = broker.connect()
    client.publish("q", "a")
    link = client.receiver("q", 1, answers_first=True)
    ((delivery, _),) = client.received(link)
    modify(delivery, {"why": "busy"}, undeliverable=True)
    broker.settle_down()
    assert (delivery.settled, delivery.remote_state, delivery.remote.annotations) == (True, MODIFIED, None)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"x": "y" * 9000}, "amqp:resource-limit-exceeded"),
        ({f"n{number}": 1 for number in range(MAX_ENTRIES + 1)}, "amqp:invalid-field"),
    ],
)
def test_too_much_ends_the_link_and_the_message_goes_on_without(way: str, wrong: dict[str, Any], name: str) -> None:
    broker = paired_broker(way)
    client = broker.connect()
    client.publish("q", "a")
    link = client.receiver("q")
    said_on(client, link, {"before": 1})
    said_on(client, link, wrong, failed=True)
    assert condition(link) == name
    got = next_on(client)
    assert (got.annotations, got.delivery_count) == ({"before": 1}, 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", [[1, 2], "text", {1: 2}, {"text": 1}])
def test_what_is_no_map_of_annotations_ends_the_link_and_nothing_else(way: str, wrong: Any) -> None:
    broker = paired_broker(way)
    client = broker.connect()
    client.publish("q", "a")
    link = client.receiver("q", 1)
    ((delivery, _),) = client.received(link)
    data = proton.Data(lib.pn_disposition_annotations(lib.pn_delivery_local(delivery._impl)))
    data.put_object(wrong)
    lib.pn_delivery_update(delivery._impl, lib.PN_MODIFIED)
    lib.pn_delivery_settle(delivery._impl)
    broker.settle_down()
    assert condition(link) == "amqp:invalid-field"
    assert next_on(client).annotations is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OURS)
def test_no_client_has_a_broker_believe_what_only_a_broker_says(way: str, name: str) -> None:
    """Through a proxy neither: one of these names says there that its client has not seen the message."""
    broker = paired_broker(way)
    client = broker.connect()
    client.publish("q", "a")
    said_on(client, client.receiver("q"), {name: True}, failed=True)
    got = next_on(client)
    assert (got.annotations, got.delivery_count, got.first_acquirer) == (None, 1, False)


@pytest.mark.parametrize("way", WAYS)
def test_an_outcome_within_a_transaction_has_them_too_and_counts_at_once(way: str) -> None:
    broker = paired_broker(way)
    client = broker.connect()
    client.publish("q", "a")
    coordinator = PairedCoordinator(client)
    transaction = coordinator.declare()
    link = client.receiver("q", 1)
    ((delivery, _),) = client.received(link)
    outcome = proton.Described(proton.ulong(0x27), [True, False, {proton.symbol("why"): proton.uint(3)}])
    answer(delivery, transaction, outcome, settles=True)
    broker.settle_down()
    coordinator.discharge(transaction, fails=True)
    got = next_on(client)
    assert (got.annotations, got.delivery_count, type(got.annotations["why"])) == ({"why": 3}, 1, proton.uint)


@pytest.mark.parametrize("way", WAYS)
def test_a_client_with_a_session_says_them_as_any_other_does(way: str) -> None:
    broker = paired_broker(way)
    broker.connect().publish("q", "a")
    client = open_session(broker, FIRST)
    said_on(client, consume(client, "q"), {"why": "busy"}, failed=True, undeliverable=True)
    got = next_on(broker.connect())
    assert (got.annotations, got.delivery_count) == ({"why": "busy"}, 1)


@pytest.mark.parametrize(("max_frame_bytes", "arrives"), [(0, True), (1024, False)])
def test_another_broker_is_told_them_where_they_fit_into_its_frames(max_frame_bytes: int, arrives: bool) -> None:
    joined = PairedRemote()
    if max_frame_bytes:
        joined.cut()
        joined.connect_far(max_frame_bytes)
    client = joined.client()
    near = client.receiver("orders", 1, answers_first=True)
    far = joined.answer()
    theirs = far.delivery("1")
    far.stream(proton.Message("a").encode())
    far.advance()
    joined.settle_down()
    ((delivery, _),) = client.received(near)
    modify(delivery, {"why": "b" * 2000}, failed=True)
    joined.settle_down()
    assert (theirs.remote_state, theirs.remote.failed) == (MODIFIED, True)
    assert (theirs.remote.annotations == {"why": "b" * 2000}) is arrives
    theirs.settle()
    joined.settle_down()
    assert (delivery.settled, delivery.remote_state, delivery.remote.annotations) == (True, MODIFIED, None)


def test_a_browser_says_nothing_of_a_message() -> None:
    broker = PairedBroker()
    client = broker.connect()
    client.publish("q", "a")
    said_on(client, subscribe(client, "q", browse=True), {"why": "busy"})
    assert next_on(client).annotations is None


def test_a_dead_letter_says_why_it_was_not_taken() -> None:
    broker = PairedBroker()
    configuration = broker.container.default.configuration
    configuration.declare_queue("dead", {})
    configuration.declare_queue("q", {"qpid.alternate_exchange": "amq.fanout", "qpid.delivery_limit": 2})
    configuration.bind("amq.fanout", "dead", "", {})
    client = broker.connect()
    client.publish("q", "a")
    link = client.receiver("q")
    said_on(client, link, {"first": 1, "x-opt-last-death-queue": "elsewhere"}, failed=True)
    said_on(client, link, {"second": 2}, failed=True)
    annotations = next_on(client, "dead").annotations
    assert (annotations["first"], annotations["second"], annotations["x-opt-last-death-queue"]) == (1, 2, "q")


def test_operators_see_them_and_so_does_who_exports_or_moves_the_message() -> None:
    broker = PairedBroker()
    client = broker.connect()
    client.publish("q", "a", "b")
    said_on(client, client.receiver("q"), {"why": "busy"}, undeliverable=True)
    messages = QueueMessages(broker.container.management.administration)
    (first, second), look = rows_of(messages.peek("q")), messages.payload("q")
    assert ("busy" in str(first), "busy" in str(second)) == (True, False)
    rows: list[Any] = rows_of(look)
    assert [told(b64decode(row["payload"])).annotations for row in rows] == [{"why": "busy"}, None]
    assert all(row["size"] == len(b64decode(row["payload"])) for row in rows)
    broker.container.default.configuration.declare_queue("other", {})
    resources = broker.container.default.resources
    begin_move(resources, broker.queue("q"), broker.queue("other"))
    broker.settle_down()
    assert next_on(client, "other").annotations == {"why": "busy"}


def rows_of(look: QueueLook) -> list[Any]:
    return [look.row(entry, *load_bodies([entry])) for entry in iter(look.next_entry, None)]
