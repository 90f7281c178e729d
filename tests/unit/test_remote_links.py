"""Links to nodes of brokers outside of the cluster: what clients here get, whatever the other broker says."""

from __future__ import annotations

from typing import Any

import proton
import pytest

import raw_peer
from paired_engines import PairedClient
from paired_links import condition
from paired_remote import PairedRemote
from qpid_ha_broker.amqp.links.remote_links import QUIET_S
from qpid_ha_broker.amqp.wire.remote_path import MOST_STEPS, REMOTE_PATH, Step, extend, read_path

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
RELEASED, MODIFIED = proton.Delivery.RELEASED, proton.Delivery.MODIFIED


@pytest.fixture
def paired() -> PairedRemote:
    return PairedRemote()


@pytest.fixture
def client(paired: PairedRemote) -> PairedClient:
    return paired.client()


def publisher(paired: PairedRemote, client: PairedClient, credit: int = 10) -> tuple[Any, Any]:
    """A client's link, and what the other broker has of it."""
    near = client.sender("orders")
    return near, paired.answer(credit)


def consumer(
    paired: PairedRemote, client: PairedClient, credit: int = 0, *, answers_first: bool = False
) -> tuple[Any, Any]:
    near = client.receiver("orders", credit, answers_first=answers_first)
    return near, paired.answer()


def offer(paired: PairedRemote, far: Any, *texts: str) -> list[Any]:
    """The other broker sends messages."""
    deliveries = []
    for text in texts:
        deliveries.append(far.delivery(f"{far.name}-{text}"))
        far.stream(proton.Message(text).encode())
        far.advance()
    paired.settle_down()
    return deliveries


def take(far: Any) -> list[Any]:
    """The deliveries that the other broker has got."""
    found = []
    while (delivery := far.current) is not None and delivery.readable and not delivery.partial:
        far.recv(delivery.pending)
        far.advance()
        found.append(delivery)
    return found


def told(paired: PairedRemote, delivery: Any, state: Any, *, settle: bool = True) -> None:
    delivery.update(state)
    if settle:
        delivery.settle()
    paired.settle_down()


# --- attaching


def test_the_answer_is_the_other_brokers_under_our_name(paired: PairedRemote, client: PairedClient) -> None:
    near = client.receiver("orders")
    assert not near.state & proton.Endpoint.REMOTE_ACTIVE
    far = paired.answer()
    assert far.remote_source.address == "their-orders"
    assert near.remote_source.address == "orders"


def test_a_refusal_is_the_other_brokers_with_our_name_in_its_text(paired: PairedRemote, client: PairedClient) -> None:
    near = client.sender("orders")
    paired.refuse("amqp:not-found", "no such queue")
    assert condition(near) == "amqp:not-found"
    text = near.remote_condition.description
    assert text == "orders is their-orders at amqp://there:5672, which says: no such queue"
    assert [error.name for error in paired.refusals] == ["amqp:not-found"]
    assert not paired.links


def test_a_session_that_is_ended_for_a_link_refuses_that_link_alone(paired: PairedRemote, client: PairedClient) -> None:
    one, far = publisher(paired, client)
    two = client.sender("orders")
    session = paired.far_link().session
    session.condition = proton.Condition("amqp:not-found", "no exchange")
    session.close()
    paired.settle_down()
    assert condition(two) == "amqp:not-found"
    (delivery,) = client.send_all(one, "a")
    told(paired, take(far)[0], ACCEPTED)
    assert delivery.remote_state == ACCEPTED


def test_a_redirection_is_followed_or_told(paired: PairedRemote, client: PairedClient) -> None:
    paired.follows_redirects = True
    near = client.sender("orders")
    paired.refuse("amqp:link:redirect", "elsewhere", {proton.symbol("network-host"): "h"})
    assert paired.redirects[0].info == {"network-host": "h"}
    paired.connect_far()
    paired.follows_redirects = False
    paired.refuse("amqp:link:redirect", "elsewhere")
    assert condition(near) == "amqp:link:redirect"


def test_a_client_that_does_not_wait_leaves_nothing(paired: PairedRemote, client: PairedClient) -> None:
    near = client.sender("orders")
    near.close()
    paired.settle_down()
    assert not paired.links
    assert not paired.refusals


def test_durable_subscriptions_are_refused(paired: PairedRemote, client: PairedClient) -> None:
    link = client.session.receiver("durable")
    link.source.address = "orders"
    link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
    link.open()
    paired.settle_down()
    assert condition(link) == "amqp:not-implemented"


# --- publishing


def test_credit_is_the_other_brokers(paired: PairedRemote, client: PairedClient) -> None:
    near, far = publisher(paired, client, credit=3)
    assert near.credit == 3
    client.send_all(near, "a", "b", "c")
    assert near.credit == 0
    far.flow(2)
    paired.settle_down()
    assert near.credit == 2


@pytest.mark.parametrize("state", [ACCEPTED, REJECTED, RELEASED, MODIFIED])
def test_a_message_is_what_the_other_broker_says_and_not_before(
    paired: PairedRemote, client: PairedClient, state: Any
) -> None:
    near, far = publisher(paired, client)
    (delivery,) = client.send_all(near, "a")
    assert delivery.remote_state == 0
    (there,) = take(far)
    if state == REJECTED:
        there.local.condition = proton.Condition("their:reason", "their text")
    told(paired, there, state)
    assert delivery.remote_state == state
    assert delivery.settled
    if state == REJECTED:
        assert (delivery.remote.condition.name, delivery.remote.condition.description) == ("their:reason", "their text")


def test_what_is_settled_by_the_sender_stays_so(paired: PairedRemote, client: PairedClient) -> None:
    near, far = publisher(paired, client)
    client.send(near, proton.Message("a")).settle()
    paired.settle_down()
    (there,) = take(far)
    assert there.settled


def test_settled_without_a_word_counts_as_failed(paired: PairedRemote, client: PairedClient) -> None:
    near, far = publisher(paired, client)
    (delivery,) = client.send_all(near, "a")
    take(far)[0].settle()
    paired.settle_down()
    assert delivery.remote_state == MODIFIED
    assert delivery.remote.failed


def test_answers_for_what_was_never_sent_change_nothing(paired: PairedRemote, client: PairedClient) -> None:
    near, far = publisher(paired, client)
    (delivery,) = client.send_all(near, "a")
    fields = [True, proton.uint(7), proton.uint(9), True, raw_peer.described(raw_peer.ACCEPTED, [])]
    paired.say(raw_peer.frame(raw_peer.DISPOSITION, fields, channel=0))
    assert delivery.remote_state == 0
    told(paired, take(far)[0], REJECTED)
    assert delivery.remote_state == REJECTED


def test_after_a_loss_what_was_sent_has_failed_and_the_link_goes_on(paired: PairedRemote, client: PairedClient) -> None:
    near, far = publisher(paired, client)
    first, second = client.send_all(near, "a", "b")
    told(paired, take(far)[0], ACCEPTED)
    paired.cut()
    assert (first.remote_state, second.remote_state, second.remote.failed) == (ACCEPTED, MODIFIED, True)
    (third,) = client.send_all(near, "c")
    assert third.remote_state == 0
    paired.connect_far()
    far = paired.answer(credit=10)
    (there,) = take(far)
    told(paired, there, ACCEPTED)
    assert third.remote_state == ACCEPTED
    assert paired.here.container.relayed.bytes == 0


def test_a_broker_that_comes_back_with_less_credit_gets_no_more_than_that(
    paired: PairedRemote, client: PairedClient
) -> None:
    near, _ = publisher(paired, client)
    paired.cut()
    paired.connect_far()
    far = paired.answer(credit=1)
    deliveries = client.send_all(near, "a", "b", "c")
    assert len(take(far)) == 1
    far.flow(1)
    paired.settle_down()
    assert len(take(far)) == 1
    assert {delivery.remote_state for delivery in deliveries} == {0}
    paired.cut()
    assert [delivery.remote_state for delivery in deliveries] == [MODIFIED, MODIFIED, 0]


def test_what_was_not_sent_is_released_after_a_while(paired: PairedRemote, client: PairedClient) -> None:
    near, _ = publisher(paired, client)
    paired.cut()
    (delivery,) = client.send_all(near, "a")
    paired.wait(9)
    assert delivery.remote_state == 0
    paired.wait(1)
    assert (delivery.remote_state, delivery.settled) == (RELEASED, True)


def test_a_client_that_goes_during_a_loss_leaves_nothing(paired: PairedRemote, client: PairedClient) -> None:
    near, _ = publisher(paired, client)
    client.send_all(near, "a")
    paired.cut()
    client.send_all(near, "b")
    client.vanish()
    assert not paired.links
    assert not paired.again
    assert paired.here.container.relayed.bytes == 0


# --- consuming


def test_credit_is_the_clients_own(paired: PairedRemote, client: PairedClient) -> None:
    near, far = consumer(paired, client, credit=3)
    assert far.credit == 3
    offer(paired, far, "a", "b")
    assert [message.body for _, message in client.received(near)] == ["a", "b"]
    assert far.credit == 1
    near.flow(4)
    paired.settle_down()
    assert far.credit == 5


@pytest.mark.parametrize("state", [ACCEPTED, REJECTED, RELEASED, MODIFIED])
def test_the_client_settles_first_if_it_says_so(paired: PairedRemote, client: PairedClient, state: Any) -> None:
    near, far = consumer(paired, client, credit=1)
    (there,) = offer(paired, far, "a")
    assert there.remote_state == 0
    ((delivery, _),) = client.received(near)
    told(paired, delivery, state)
    assert (there.remote_state, there.settled) == (state, True)
    assert paired.here.container.relayed.bytes == 0


def test_the_client_settles_second_when_the_other_broker_has(paired: PairedRemote, client: PairedClient) -> None:
    near, far = consumer(paired, client, credit=1, answers_first=True)
    (there,) = offer(paired, far, "a")
    ((delivery, _),) = client.received(near)
    told(paired, delivery, ACCEPTED, settle=False)
    assert (there.remote_state, there.settled, delivery.settled) == (ACCEPTED, False, False)
    told(paired, there, ACCEPTED)
    assert (delivery.remote_state, delivery.settled) == (ACCEPTED, True)


def test_a_drain_is_the_other_brokers_to_end(paired: PairedRemote, client: PairedClient) -> None:
    near, far = consumer(paired, client)
    near.drain(5)
    paired.settle_down()
    assert (far.credit, bool(far.drain_mode)) == (5, True)
    offer(paired, far, "a")
    assert [message.body for _, message in client.received(near)] == ["a"]
    assert near.credit == 4
    far.drained()
    paired.settle_down()
    assert near.credit == 0


def test_a_broker_that_ends_no_drain_is_waited_for_and_its_credit_taken_back() -> None:
    paired = PairedRemote(product="RabbitMQ")
    client = paired.client()
    near, far = consumer(paired, client)
    near.drain(5)
    paired.settle_down()
    assert (far.credit, bool(far.drain_mode)) == (5, False)
    offer(paired, far, "a")
    paired.wait(0.2)
    offer(paired, far, "b")
    paired.wait(0.2)
    assert [message.body for _, message in client.received(near)] == ["a", "b"]
    assert near.credit == 3
    paired.wait(0.2)
    assert (near.credit, far.credit) == (0, 0)
    near.flow(2)
    paired.settle_down()
    assert far.credit == 2


def test_what_was_under_way_when_credit_was_taken_back_goes_back() -> None:
    paired = PairedRemote(product="RabbitMQ")
    client = paired.client()
    near, far = consumer(paired, client)
    near.drain(2)
    paired.settle_down()
    (late,) = [far.delivery("late")]
    far.stream(proton.Message("late").encode())
    far.advance()
    pending = paired.transport.pending()
    data = bytes(paired.transport.peek(pending) or b"")
    paired.transport.pop(pending)
    paired.now_s += 1
    for link in paired.links:
        link.expire(paired.now_s)
    paired.here.settle_alone()
    assert near.credit == 0
    assert paired.upstream is not None
    paired.upstream.receive(data)
    paired.settle_down()
    paired.wait(QUIET_S)
    assert (late.remote_state, late.settled, near.queued) == (RELEASED, True, 0)
    near.flow(3)
    paired.settle_down()
    assert far.credit == 3
    assert not paired.ended


def test_after_a_loss_what_the_client_says_changes_nothing(paired: PairedRemote, client: PairedClient) -> None:
    near, far = consumer(paired, client, credit=3, answers_first=True)
    offer(paired, far, "a", "b")
    (first, _), (second, _) = client.received(near)
    told(paired, first, ACCEPTED, settle=False)
    paired.cut()
    assert (first.settled, first.remote_state) == (True, MODIFIED)
    paired.connect_far()
    far = paired.answer()
    assert far.credit == 1
    told(paired, second, ACCEPTED, settle=False)
    assert (second.settled, second.remote_state) == (True, MODIFIED)
    (there,) = offer(paired, far, "a")
    assert there.remote_state == 0
    first.settle()
    second.settle()
    client.vanish()
    assert paired.here.container.relayed.bytes == 0


def test_a_browser_is_told_of_a_loss(paired: PairedRemote, client: PairedClient) -> None:
    near = client.session.receiver("browser")
    near.source.address = "orders"
    near.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    near.open()
    paired.settle_down()
    assert paired.answer().remote_source.distribution_mode == proton.Terminus.DIST_MODE_COPY
    paired.cut()
    assert condition(near) == "amqp:resource-locked"


def test_more_than_there_was_credit_for_ends_the_link(paired: PairedRemote, client: PairedClient) -> None:
    near, _ = consumer(paired, client, credit=1)
    message = proton.Message("a").encode()
    handle = proton.uint(0)
    for number in range(2):
        fields = [handle, proton.uint(number), b"t%d" % number, proton.uint(0), False, False]
        paired.say(raw_peer.frame(raw_peer.TRANSFER, fields, message))
    assert condition(near) == "amqp:link:transfer-limit-exceeded"
    assert paired.refusals[0].name == "amqp:link:transfer-limit-exceeded"


def test_a_message_that_is_too_large_ends_the_link(paired: PairedRemote, client: PairedClient) -> None:
    near, far = consumer(paired, client, credit=1)
    far.delivery("large")
    far.stream(b"x" * 100_001)
    paired.settle_down()
    assert condition(near) == "amqp:link:message-size-exceeded"


def test_noise_ends_the_connection_and_not_the_clients_link(paired: PairedRemote, client: PairedClient) -> None:
    near, _ = consumer(paired, client, credit=1)
    paired.say(b"\x00\x00\x00\x03noise")
    assert len(paired.ended) == 1
    assert len(paired.again) == 1
    assert near.state & proton.Endpoint.REMOTE_ACTIVE


def test_the_connection_is_closed_for_a_reason_and_the_link_waits(paired: PairedRemote, client: PairedClient) -> None:
    near, _ = publisher(paired, client)
    paired.far.condition = proton.Condition("amqp:connection:forced", "maintenance")
    paired.far.close()
    paired.settle_down()
    assert paired.ended == ["amqp:connection:forced: maintenance"]
    assert near.state & proton.Endpoint.REMOTE_ACTIVE


def test_a_node_that_is_deleted_there_ends_the_link(paired: PairedRemote, client: PairedClient) -> None:
    near, far = publisher(paired, client)
    far.condition = proton.Condition("amqp:resource-deleted", "deleted")
    far.close()
    paired.settle_down()
    assert condition(near) == "amqp:resource-deleted"
    assert not paired.links


# --- the way


def test_the_way_is_told_and_one_that_comes_back_is_refused(paired: PairedRemote, client: PairedClient) -> None:
    client.sender("orders")
    paired.settle_down()
    path = read_path(dict(paired.far_link().remote_properties))
    assert path == (Step("here's-uuid", "here", "orders"),)
    link = client.session.sender("again")
    link.target.address = "orders"
    link.properties = {proton.symbol(REMOTE_PATH): ["here's-uuid", "here", "orders", "x", "there", "their-orders"]}
    link.open()
    paired.settle_down()
    assert condition(link) == "amqp:not-allowed"
    assert "here/orders -> there/their-orders -> here/orders" in link.remote_condition.description


@pytest.mark.parametrize("way", ["text", [1, 2, 3], ["a", "b"], ["a"] * 3 * (MOST_STEPS + 1)])
def test_a_way_that_makes_no_sense_is_refused(paired: PairedRemote, client: PairedClient, way: Any) -> None:
    link = client.session.sender("again")
    link.target.address = "orders"
    link.properties = {proton.symbol(REMOTE_PATH): way}
    link.open()
    paired.settle_down()
    assert condition(link) == "amqp:invalid-field"


def test_a_way_has_an_end() -> None:
    path: tuple[Step, ...] = ()
    for number in range(MOST_STEPS):
        path = extend(path, Step(str(number), "b", "n"))
    with pytest.raises(Exception, match="shorten the way"):
        extend(path, Step("x", "b", "n"))
