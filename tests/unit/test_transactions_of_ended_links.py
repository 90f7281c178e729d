"""What comes in a transaction and is refused, or comes for a link that has ended, is not in it: the commit, which may
be on its way behind it, must not count for the rest."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_proxy import PairedProxy, paired_broker
from paired_transactions import PairedCoordinator, answer, publish, publish_message
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_DELETED, TRANSACTION_ROLLBACK, AmqpError
from session_clients import open_session

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
MOST_BYTES = 1000


@pytest.fixture(params=["direct", "proxied"])
def broker(request: pytest.FixtureRequest) -> PairedBroker:
    settings = ContainerSettings("test", "0", max_message_bytes=MOST_BYTES)
    return paired_broker(request.param, settings)


@pytest.fixture(params=["without a session", "with a session"])
def client(request: pytest.FixtureRequest, broker: PairedBroker) -> PairedClient:
    return broker.connect() if request.param == "without a session" else open_session(broker)


class Work:
    """A transaction with a message on a link of its own, and another link."""

    def __init__(self, broker: PairedBroker, client: PairedClient, address: str | None = "q") -> None:
        self.broker, self.client = broker, client
        self.coordinator = PairedCoordinator(client)
        good, self.link = client.sender("q"), client.sender(address)
        broker.settle_down()
        self.id = self.coordinator.declare()
        publish(client, good, self.id, "a")
        broker.settle_down()

    def end_link(self, link: Any = None) -> None:
        """As the broker does whose queue is deleted; the client has not heard of it."""
        name = (link or self.link).name
        (endpoint,) = [each for each in self.client.peer.links if each.link.name == name]
        endpoint.end(AmqpError(RESOURCE_DELETED, "gone"))

    def discharge_at_once(self, *, fails: bool = False) -> Any:
        """On its way with what was sent before it."""
        body = proton.Described(proton.symbol("amqp:discharge:list"), [self.id, fails])
        delivery = self.client.send(self.coordinator.link, proton.Message(body=body))
        self.broker.settle_down()
        return delivery

    def check_rolled_back(self, commit: Any) -> None:
        assert commit.remote_state == REJECTED
        assert commit.remote.condition.name == TRANSACTION_ROLLBACK
        assert self.broker.queue("q").messages.count == 0
        again = Work(self.broker, self.client)
        assert again.discharge_at_once().remote_state == ACCEPTED
        assert self.broker.queue("q").messages.count == 1
        self.broker.check_invariants()


@pytest.mark.parametrize("settles", [False, True], ids=["unsettled", "settled"])
@pytest.mark.parametrize("how", ["a message before it was too large", "the broker has ended it"])
def test_a_message_behind_the_end_of_its_link_takes_the_transaction_with_it(
    broker: PairedBroker, client: PairedClient, how: str, settles: bool
) -> None:
    work = Work(broker, client)
    if how == "the broker has ended it":
        work.end_link()
    else:
        client.send(work.link, b"x" * (MOST_BYTES + 1))
    late = publish(client, work.link, work.id, "b")
    if settles:
        late.settle()
    work.check_rolled_back(work.discharge_at_once())


def test_a_message_at_which_its_link_ends_takes_the_transaction_with_it(
    broker: PairedBroker, client: PairedClient
) -> None:
    work = Work(broker, client)
    publish(client, work.link, work.id, "x" * (MOST_BYTES + 1))
    work.check_rolled_back(work.discharge_at_once())


@pytest.mark.parametrize("settles", [False, True], ids=["unsettled", "settled"])
def test_a_message_that_is_refused_takes_the_transaction_with_it(
    broker: PairedBroker, client: PairedClient, settles: bool
) -> None:
    work = Work(broker, client, None)
    refused = publish_message(client, work.link, work.id, proton.Message("b", address="$nowhere"))
    if settles:
        refused.settle()
    commit = work.discharge_at_once()
    assert "$nowhere" in commit.remote.condition.description
    work.check_rolled_back(commit)


def test_a_message_that_is_refused_takes_no_other_transaction_with_it(
    broker: PairedBroker, client: PairedClient
) -> None:
    work, other = Work(broker, client, None), Work(broker, client)
    publish_message(client, work.link, work.id, proton.Message("b", address="$nowhere"))
    assert other.discharge_at_once().remote_state == ACCEPTED
    assert work.discharge_at_once(fails=True).remote_state == ACCEPTED
    assert broker.queue("q").messages.count == 1


def end_link(connection: Connection, node: str) -> None:
    """Of a consumer, as a broker does by itself; the peer has not heard of it."""
    (endpoint,) = [each for each in connection.links if each.link.is_sender and each.link.remote_source.address == node]
    endpoint.end(AmqpError(RESOURCE_DELETED, "gone"))


@pytest.mark.parametrize("settles", [False, True], ids=["unsettled", "settled"])
@pytest.mark.parametrize("where", ["at the client's broker", "at the primary"])
def test_what_is_accepted_behind_the_end_of_its_link_takes_the_transaction_with_it(
    broker: PairedBroker, client: PairedClient, settles: bool, where: str
) -> None:
    work = Work(broker, client)
    client.publish("source", "moved")
    ((held, _),) = client.received(client.receiver("source", 1, answers_first=True))
    answer(held, work.id, settles=settles)
    publish(client, work.link, work.id, "moved")
    if where == "at the client's broker" or not isinstance(broker, PairedProxy):
        end_link(client.peer, "source")
    else:
        client.exchange()  # the proxy has passed it on, and the primary not heard of it
        assert broker.accepted is not None
        end_link(broker.accepted, "source")
    work.check_rolled_back(work.discharge_at_once())
    assert broker.queue("source").messages.count == 1


def test_the_transaction_can_be_rolled_back_and_others_go_on(broker: PairedBroker, client: PairedClient) -> None:
    work, other = Work(broker, client), Work(broker, client)
    work.end_link()
    publish(client, work.link, work.id, "b")
    assert work.discharge_at_once(fails=True).remote_state == ACCEPTED
    assert broker.queue("q").messages.count == 0
    assert other.discharge_at_once().remote_state == ACCEPTED
    assert broker.queue("q").messages.count == 1


@pytest.mark.parametrize("client", ["without a session"], indirect=True)
@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_a_discharge_behind_the_end_of_its_coordinator_is_answered_with_what_has_become_of_it(
    broker: PairedBroker, client: PairedClient, fails: bool
) -> None:
    work = Work(broker, client)
    work.end_link(work.coordinator.link)
    late = work.discharge_at_once(fails=fails)
    if fails:
        assert late.remote_state == ACCEPTED
        assert broker.queue("q").messages.count == 0
    else:
        work.check_rolled_back(late)


def test_a_client_with_a_session_hears_of_a_late_discharge_by_the_end_of_its_coordinator(broker: PairedBroker) -> None:
    work = Work(broker, open_session(broker))
    work.end_link(work.coordinator.link)
    late = work.discharge_at_once()
    assert (late.settled, late.remote_state) == (False, 0)
    assert broker.queue("q").messages.count == 0


@pytest.mark.parametrize("client", ["without a session"], indirect=True)
def test_a_late_request_that_is_no_discharge_is_not_taken(broker: PairedBroker, client: PairedClient) -> None:
    work = Work(broker, client)
    work.end_link(work.coordinator.link)
    body = proton.Described(proton.symbol("amqp:declare:list"), [None])
    declare, nonsense = client.send_all(work.coordinator.link, proton.Message(body=body), proton.Message("commit!"))
    assert (declare.remote_state, nonsense.remote_state) == (proton.Delivery.RELEASED, REJECTED)


def test_a_message_without_a_transaction_takes_none_with_it(broker: PairedBroker, client: PairedClient) -> None:
    work = Work(broker, client)
    work.end_link()
    client.send(work.link, proton.Message("b"))
    assert work.discharge_at_once().remote_state == ACCEPTED
    assert broker.queue("q").messages.count == 1


@pytest.mark.parametrize("settles", [False, True], ids=["unsettled", "settled"])
def test_a_consumer_that_accepts_in_a_transaction_that_has_failed_goes_on(
    broker: PairedBroker, client: PairedClient, settles: bool
) -> None:
    """As a transacted session of Qpid JMS does, whose listener consumes while its messages are refused: it settles what
    it accepts, hears by its commit that all was rolled back, and goes on with the same consumer."""
    work = Work(broker, client, None)
    source = client.receiver("source", 1, answers_first=True)
    publish_message(client, work.link, work.id, proton.Message("b", address="$nowhere"))
    client.publish("source", "moved")
    ((held, _),) = client.received(source)
    answer(held, work.id, settles=settles)
    broker.settle_down()
    work.check_rolled_back(work.discharge_at_once())
    assert source.state & proton.Endpoint.REMOTE_ACTIVE
    (entry,) = broker.queue("source").messages
    assert (entry.holder is None, entry.delivery_count) == (settles, int(settles))
    if settles:
        source.flow(1)
        broker.settle_down()
        ((held, _),) = client.received(source)
    again = work.coordinator.declare()
    answer(held, again)
    broker.settle_down()
    assert work.coordinator.discharge(again).remote_state == ACCEPTED
    assert broker.queue("source").messages.count == 0
