"""Publishers that ask for receiver-settle-mode second (AMQP 1.0 section 2.7.3): we say what became of a message, the
publisher settles, and only then do we. What it has not settled takes credit, so what is remembered is bounded."""

from __future__ import annotations

from typing import Any, cast

import proton
import pytest

from paired_engines import PairedBroker, PairedClient, queued_bodies
from paired_proxy import PairedProxy
from paired_transactions import DECLARED, TRANSACTIONAL, PairedCoordinator
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.wire import engine

WAYS = ("direct", "proxied")
CREDIT = 4


@pytest.fixture(params=WAYS)
def broker(request: pytest.FixtureRequest) -> PairedBroker:
    settings = ContainerSettings("test", "0", publisher_credit=CREDIT)
    if request.param == "direct":
        broker = PairedBroker(settings)
    else:
        broker = cast(PairedBroker, PairedProxy(settings, proxy=PairedBroker(settings)))
    broker.container.default.configuration.declare_queue("q", {})
    return broker


@pytest.fixture
def client(broker: PairedBroker) -> PairedClient:
    client = PairedClient(broker)
    broker.settle_down()
    return client


def second(client: PairedClient, address: str | None = "q") -> Any:
    """A publisher's link."""
    link = client.session.sender(f"out-{address}")
    link.target.address = address
    link.rcv_settle_mode = proton.Link.RCV_SECOND
    return client.attach(link)


def settle(client: PairedClient, *deliveries: Any) -> None:
    for delivery in deliveries:
        delivery.settle()
    client.broker.settle_down()


def remembered(client: PairedClient) -> int:
    """Messages that our end has not settled."""
    return sum(engine.unsettled_on(endpoint.link) for endpoint in client.peer.links)


def test_the_answer_says_second_and_an_outcome_is_settled_when_the_publisher_has_settled_it(
    client: PairedClient, broker: PairedBroker
) -> None:
    link = second(client)
    assert link.remote_rcv_settle_mode == proton.Link.RCV_SECOND
    sent = client.send_all(link, "a", "b")
    assert [(each.remote_state, each.settled) for each in sent] == [(proton.Delivery.ACCEPTED, False)] * 2
    assert queued_bodies(broker.queue("q")) == ["a", "b"]
    assert remembered(client) == 2
    settle(client, sent[1], sent[0])
    assert remembered(client) == 0


def test_what_is_not_settled_takes_credit_until_it_is(client: PairedClient) -> None:
    link = second(client)
    given = link.credit
    assert given > 0
    sent = client.send_all(link, *range(given))
    assert {each.remote_state for each in sent} == {proton.Delivery.ACCEPTED}
    assert link.credit == 0
    settle(client, *sent)
    assert link.credit == given
    assert remembered(client) == 0


def test_who_settles_before_it_knows_the_outcome_gets_none_and_the_message_is_there(
    client: PairedClient, broker: PairedBroker
) -> None:
    link = second(client)
    sent = [client.send(link, proton.Message(body)) for body in "ab"]
    settle(client, *sent)
    assert queued_bodies(broker.queue("q")) == ["a", "b"]
    assert remembered(client) == 0
    (later,) = client.send_all(link, "c")
    assert (later.remote_state, later.settled) == (proton.Delivery.ACCEPTED, False)


def test_a_refusal_is_settled_second_too(client: PairedClient, broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("full", {"qpid.max_count": 1, "qpid.policy_type": "reject"})
    link = second(client, "full")
    taken, refused = client.send_all(link, "a", "b")
    assert (taken.remote_state, refused.remote_state) == (proton.Delivery.ACCEPTED, proton.Delivery.REJECTED)
    assert refused.remote.condition.name == "amqp:resource-limit-exceeded"
    assert not refused.settled
    settle(client, taken, refused)
    assert remembered(client) == 0


def test_an_anonymous_relay_and_a_transaction_are_settled_second(client: PairedClient, broker: PairedBroker) -> None:
    relay = second(client, None)
    (sent,) = client.send_all(relay, proton.Message("a", address="q"))
    assert (sent.remote_state, sent.settled) == (proton.Delivery.ACCEPTED, False)
    settle(client, sent)
    coordinator, link = PairedCoordinator(client), second(client)
    transaction = coordinator.declare()
    delivery = coordinator.publish(link, transaction)
    assert (delivery.remote_state, delivery.settled) == (TRANSACTIONAL, False)
    settle(client, delivery)
    assert coordinator.discharge(transaction).remote_state == proton.Delivery.ACCEPTED
    assert queued_bodies(broker.queue("q")) == ["a", "x"]
    assert remembered(client) == 0


def test_a_coordinator_answers_second_where_it_is_asked_to(client: PairedClient) -> None:
    coordinator = PairedCoordinator.__new__(PairedCoordinator)
    coordinator._client = client
    coordinator.link = client.session.sender("coordinator")
    coordinator.link.target.type = proton.Terminus.COORDINATOR
    coordinator.link.rcv_settle_mode = proton.Link.RCV_SECOND
    client.attach(coordinator.link)
    declared = coordinator.ask("declare", None)
    assert (declared.remote_state, declared.settled) == (DECLARED, False)
    settle(client, declared)
    assert remembered(client) == 0


def test_what_is_left_unsettled_goes_with_the_link_and_the_message_stays(
    client: PairedClient, broker: PairedBroker
) -> None:
    before = set(engine._second)
    link = second(client)
    client.send_all(link, "a")
    link.close()
    broker.settle_down()
    assert set(engine._second) <= before
    again = second(client)
    client.send_all(again, "b")
    client.vanish()
    broker.settle_down()
    assert set(engine._second) <= before
    assert queued_bodies(broker.queue("q")) == ["a", "b"]


def test_a_link_that_we_end_with_answers_open_leaves_nothing(client: PairedClient, broker: PairedBroker) -> None:
    before = set(engine._second)
    link = second(client)
    sent = client.send_all(link, "a")
    broker.container.default.configuration.delete_queue("q")
    broker.settle_down()
    (late,) = client.send_all(link, "b")
    assert link.remote_condition.name == "amqp:resource-deleted"
    assert late.remote_state != proton.Delivery.ACCEPTED
    settle(client, *sent)
    link.close()
    broker.settle_down()
    assert set(engine._second) <= before


def test_what_a_proxy_sends_again_after_a_failover_has_its_outcome_once_and_is_settled_second() -> None:
    proxy = PairedProxy()
    proxy.container.default.configuration.declare_queue("q", {})
    client = proxy.client()
    link = second(client)
    sent = [client.send(link, proton.Message(body)) for body in "ab"]
    client.exchange()
    proxy.cut(deliver=True)  # they are there, and nobody has heard of it
    assert [each.remote_state for each in sent] == [0, 0]
    proxy.connect_upstream()
    assert [(each.remote_state, each.settled) for each in sent] == [(proton.Delivery.ACCEPTED, False)] * 2
    assert queued_bodies(proxy.queue("q")) == ["a", "b"]
    settle(client, *sent)
    assert remembered(client) == 0
