"""What a client says of time: when a message is to be delivered, how long it lives, and what others hear of that."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import START_MS, PairedBroker, PairedClient
from paired_links import symbols
from qpid_ha_broker.amqp.connections.container import TurnTime
from qpid_ha_broker.amqp.wire.annotations import without_delay
from qpid_ha_broker.amqp.wire.sections import HEADER, MessageSections, encode_header
from qpid_ha_broker.model.message_reader import Death, DeathReason

SECOND = 1000
TIME, DELAY = "x-opt-delivery-time", "x-opt-delivery-delay"
WRONG = "amqp:invalid-field"


@pytest.fixture
def broker() -> PairedBroker:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {})
    return broker


def annotated(body: str, **annotations: Any) -> proton.Message:
    named = {proton.symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in annotations.items()}
    return proton.Message(body, annotations=named)


def pass_ms(broker: PairedBroker, passed_ms: int) -> None:
    broker.container.now_ms += passed_ms
    broker.container.tick()
    broker.settle_down()


# --- when it is delivered


def test_connections_offer_delayed_delivery_unless_a_backup_cannot_read_it(broker: PairedBroker) -> None:
    assert "DELAYED_DELIVERY" in (broker.connect().connection.remote_offered_capabilities or ())
    broker.container.default.resources.replicated.state.marks.why_no_delay = "beta is older"
    assert "DELAYED_DELIVERY" not in (broker.connect().connection.remote_offered_capabilities or ())


@pytest.mark.parametrize("producers", [0, 10])
@pytest.mark.parametrize(
    ("annotations", "error"),
    [
        ({"delivery_time": START_MS + 1}, ""),
        ({"delivery_time": proton.timestamp(START_MS + 1)}, ""),
        ({"delivery_time": proton.ulong(START_MS)}, None),
        ({"delivery_time": 0}, None),
        ({"delivery_delay": 1}, ""),
        ({"delivery_delay": proton.uint(1)}, ""),
        ({"delivery_delay": 0}, None),
        ({"delivery_time": None, "delivery_delay": None}, None),
        ({"jms_msg_type": 5}, None),
        ({"delivery_time": "soon"}, WRONG),
        ({"delivery_time": True}, WRONG),
        ({"delivery_time": -1}, WRONG),
        ({"delivery_time": 10**18}, WRONG),
        ({"delivery_delay": -1}, WRONG),
        ({"delivery_delay": 1.5}, WRONG),
        ({"delivery_delay": proton.ulong(10**18)}, WRONG),
        ({"delivery_delay": 253_402_300_799_999}, WRONG),
        ({"delivery_time": START_MS + 5, "delivery_delay": 5}, WRONG),
    ],
)
def test_a_message_is_due_when_it_says_so_and_what_makes_no_sense_is_refused(
    broker: PairedBroker, client: PairedClient, annotations: dict[str, Any], error: str | None, producers: int
) -> None:
    """`error` None: it is due at once; empty: a millisecond later."""
    broker.container.default.resources.deduplication.producers = producers
    receiver = client.receiver("q", 10)
    (delivery,) = client.publish("q", annotated("m", **annotations))
    if error:
        assert (delivery.remote_state, delivery.remote.condition.name) == (proton.Delivery.REJECTED, error)
        assert "x-opt-delivery" in delivery.remote.condition.description
        assert broker.queue("q").messages.count == 0
        return
    assert delivery.remote_state == proton.Delivery.ACCEPTED
    assert client.bodies(receiver) == ([] if error == "" else ["m"])
    pass_ms(broker, 1)
    assert client.bodies(receiver) == (["m"] if error == "" else [])


@pytest.mark.parametrize("selects", [False, True])
def test_a_browser_does_not_see_a_message_before_it_is_due(
    broker: PairedBroker, client: PairedClient, selects: bool
) -> None:
    client.publish("q", annotated("later", delivery_delay=SECOND), "now")
    link = client.session.receiver("browser")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    client.attach(link, 10)
    assert client.bodies(link) == ["now"]
    again = client.session.receiver("another")
    again.source.address = "q"
    again.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    pass_ms(broker, SECOND)
    client.attach(again, 10)
    assert client.bodies(again) == ["later", "now"]


def test_a_drain_does_not_wait_for_what_is_due_later(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", annotated("later", delivery_delay=SECOND))
    receiver = client.receiver("q")
    receiver.drain(10)
    broker.settle_down()
    assert (client.bodies(receiver), receiver.credit) == ([], 0)


def test_the_annotations_go_on_as_they_came_and_a_dead_letter_is_delivered_at_once(
    broker: PairedBroker, client: PairedClient
) -> None:
    configuration = broker.container.default.configuration
    configuration.update_queue("q", {"qpid.alternate_exchange": "amq.fanout"})
    configuration.declare_queue("dead", {})
    configuration.bind("amq.fanout", "dead", "", {})
    receiver, dead = client.receiver("q", 1), client.receiver("dead", 1)
    client.publish("q", annotated("m", delivery_delay=SECOND))
    pass_ms(broker, SECOND)
    ((delivery, message),) = client.received(receiver)
    assert message.annotations == {proton.symbol(DELAY): SECOND}
    delivery.update(proton.Delivery.REJECTED)
    delivery.settle()
    broker.settle_down()
    assert client.bodies(dead) == ["m"]


def test_who_relays_a_message_takes_off_a_delay_that_has_passed_and_nothing_else() -> None:
    both = annotated("m", delivery_delay=5, jms_type="x")
    message = proton.Message()
    message.decode(without_delay(bytes(both.encode())))
    assert (message.body, message.annotations) == ("m", {proton.symbol("x-opt-jms-type"): "x"})
    for kept in (annotated("m", delivery_time=5), annotated("x-opt-delivery-delay"), proton.Message("m")):
        assert without_delay(bytes(kept.encode())) == kept.encode()
    assert without_delay(b"\x00x-opt-delivery-") == b"\x00x-opt-delivery-"


def test_management_tells_how_many_wait_and_when_the_next_one_is_due(
    broker: PairedBroker, client: PairedClient
) -> None:
    client.publish("q", annotated("a", delivery_delay=5 * SECOND), annotated("b", delivery_delay=SECOND), "c")
    facts = broker.container.default.administration.queue("q")
    assert (facts["messages"], facts["scheduled"], facts["next_due_ms"]) == (3, 2, START_MS + SECOND)
    pass_ms(broker, 5 * SECOND)
    facts = broker.container.default.administration.queue("q")
    assert (facts["messages"], facts["scheduled"], facts["next_due_ms"]) == (3, 0, None)


# --- how long it lives


@pytest.mark.parametrize(
    ("ttl_s", "absolute_ms", "lives_ms"),
    [
        (None, START_MS + SECOND, SECOND),
        (5.0, START_MS + SECOND, SECOND),
        (1.0, START_MS + 5 * SECOND, SECOND),
        (1.0, 0, SECOND),
        (None, 0, None),
        (None, START_MS - SECOND, 0),
    ],
)
@pytest.mark.parametrize("annotations", [None, {"x-opt-a": 1}])
@pytest.mark.parametrize("transacted", [False, True])
def test_a_message_expires_by_the_earlier_one_of_its_two_times(
    broker: PairedBroker,
    client: PairedClient,
    ttl_s: float | None,
    absolute_ms: int,
    lives_ms: int | None,
    annotations: dict[str, int] | None,
    transacted: bool,
) -> None:
    message = proton.Message("m", expiry_time=absolute_ms / 1000, annotations=annotations)
    if ttl_s is not None:
        message.ttl = ttl_s
    if transacted:  # the long way, as of an exchange
        broker.container.default.configuration.bind("amq.fanout", "q", "", {})
    client.publish("amq.fanout" if transacted else "q", message)
    if lives_ms:
        pass_ms(broker, lives_ms - 1)
        assert broker.queue("q").messages.count == 1
    pass_ms(broker, 1)
    assert broker.queue("q").messages.count == (lives_ms is None)


def test_absolute_expiry_is_by_the_time_of_day(broker: PairedBroker, client: PairedClient) -> None:
    steady = broker.container.steady
    assert isinstance(steady, TurnTime)
    steady.wall_ahead_ms = 3_600_000
    client.publish("q", proton.Message("m", expiry_time=(START_MS + 3_600_000 + SECOND) / 1000))
    assert [entry.header.expires_at_ms for entry in broker.queue("q").messages] == [START_MS + SECOND]


def test_absolute_expiry_is_found_wherever_it_may_be_and_what_is_none_says_nothing() -> None:
    sections = MessageSections()

    def found(payload: bytes) -> int:
        return sections.absolute_expiry(bytes(payload), sections.header(bytes(payload)).length)

    expiring = proton.Message("m", expiry_time=7.0, id="x", subject="s", annotations={"a": 1}, properties={"p": 1})
    assert found(expiring.encode()) == 7000
    expiring.durable = True
    expiring.instructions = {"hop": 1}
    assert found(expiring.encode()) == 7000
    for without in (
        proton.Message("m"),
        proton.Message("m", creation_time=5.0),
        proton.Message("m", annotations={"a": 1}),
    ):
        assert found(without.encode()) == 0
    fields = b"\x40" * 8
    long_list = b"\x00Ss\xd0" + (4 + 17).to_bytes(4, "big") + (9).to_bytes(4, "big") + fields
    assert found(long_list + b"\x83" + (7000).to_bytes(8, "big")) == 7000
    assert found(long_list + b"\x81" + (7000).to_bytes(8, "big")) == 0, "a long is no time"
    assert found(b"\x00Ss\xc0\x20\x09\x40") == 0, "cut off"
    assert found(b"\x00Sr\xc1\x20") == 0


def test_a_consumer_is_told_how_long_a_message_lives_yet(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", proton.Message("a", ttl=5.0, priority=7, durable=True), proton.Message("b"))
    pass_ms(broker, 2 * SECOND)
    receiver = client.receiver("q", 2)
    (first, message), (_, other) = client.received(receiver)
    assert (message.ttl, message.first_acquirer, message.priority, message.durable) == (3.0, True, 7, True)
    assert (other.ttl, other.first_acquirer) == (0, True)
    first.update(proton.Delivery.MODIFIED)
    first.local.failed = True
    first.settle()
    pass_ms(broker, SECOND)
    receiver.flow(1)
    broker.settle_down()
    ((_, message),) = client.received(receiver)
    assert (message.ttl, message.first_acquirer, message.delivery_count) == (2.0, False, 1)


def test_a_time_to_live_is_never_told_longer_than_it_was_or_as_none() -> None:
    sections = MessageSections()
    payload = bytes(proton.Message("m", ttl=0.005).encode())
    for left_ms, told_ms in ((9, 5), (5, 5), (2, 2), (0, 1), (-4, 1)):
        message = proton.Message()
        message.decode(sections.aged(payload, left_ms, 3, is_first=False))
        assert (message.ttl, message.delivery_count, message.first_acquirer) == (told_ms / 1000, 3, False)
    message.decode(sections.aged(bytes(proton.Message("m").encode()), 5, 0, is_first=True))
    assert (message.ttl, message.first_acquirer) == (0, True), "the queue's limit is no time to live of the message"


@pytest.mark.parametrize("ttl_ms", [0, 1, 255, 256, 0xFFFFFFFF])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 0xFFFFFFFF])
@pytest.mark.parametrize("truth", [False, True])
def test_proton_reads_a_header_as_it_was_meant(ttl_ms: int, count: int, truth: bool) -> None:
    data = proton.Data()
    data.decode(encode_header(truth, 9, ttl_ms, not truth, count))
    data.next()
    ttl = proton.uint(ttl_ms) if ttl_ms else None
    fields = [truth, proton.ubyte(9), ttl, not truth, proton.uint(count)]
    read: Any = data.get_object()
    assert (read.descriptor, read.value) == (HEADER, fields)
    assert list(map(type, read.value)) == list(map(type, fields))


def test_a_dead_letter_has_neither_of_its_times(broker: PairedBroker) -> None:
    reader: Any = broker.container.default.resources.catalog.reader
    message = proton.Message("m", ttl=5.0, expiry_time=9.0)
    letter = proton.Message()
    letter.decode(reader.dead_letter(bytes(message.encode()), Death("q", DeathReason.REJECTED, 1)))
    assert (letter.ttl, letter.expiry_time) == (0, 0)


def test_a_target_says_that_it_honours_delays_if_it_is_asked(client: PairedClient) -> None:
    for address in ("q", "amq.topic", None):
        sender = client.session.sender(f"to {address}")
        sender.target.address = address
        sender.target.capabilities.put_object(symbols("DELAYED_DELIVERY"))
        client.attach(sender)
        sender.remote_target.capabilities.rewind()
        sender.remote_target.capabilities.next()
        assert sender.remote_target.capabilities.get_object() == symbols("DELAYED_DELIVERY")
