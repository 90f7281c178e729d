"""The container without sockets: who hears of what when, which is what stores and backups rely on."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from proton import Delivery

from paired_engines import PairedBroker, PairedClient
from paired_transactions import PairedCoordinator
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.links.coordinator import read_request
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Acquired, Dequeued, Enqueued

STORE = "store"


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


def witness(broker: PairedBroker, name: str = STORE) -> None:
    broker.container.default.resources.replicated.log.add_witness(name)


def acknowledge(broker: PairedBroker, name: str = STORE, lsn: int | None = None) -> None:
    """The witness has everything up to `lsn`, by default all."""
    log = broker.container.default.resources.replicated.log
    log.acknowledge(name, log.last_lsn if lsn is None else lsn)
    broker.settle_down()


def test_the_id_of_a_transaction_outlives_the_message_that_names_it() -> None:
    """Proton gives binary as a view into the message's memory, which is somebody else's as soon as that is gone."""
    message: Any = proton.Message(body=proton.Described(proton.ulong(0x32), [b"\x00" * 7 + b"\x01", False]))
    descriptor, fields = read_request(bytes(message.encode()))
    assert (descriptor, fields, type(fields[0])) == (0x32, [b"\x00" * 7 + b"\x01", False], bytes)


# --- what a witness delays


def test_a_publish_is_settled_only_when_every_witness_has_it(broker: PairedBroker, client: PairedClient) -> None:
    sender = client.sender("q")
    witness(broker)
    witness(broker, "backup")

    delivery = client.send(sender, proton.Message(body="x"))
    broker.settle_down()
    assert not delivery.settled
    acknowledge(broker)
    assert not delivery.settled

    acknowledge(broker, "backup")

    assert delivery.settled
    assert delivery.remote_state == Delivery.ACCEPTED


def test_publishes_are_settled_as_far_as_the_witness_has_come(broker: PairedBroker, client: PairedClient) -> None:
    sender = client.sender("q")
    witness(broker)
    deliveries = [client.send(sender, proton.Message(body=number)) for number in range(3)]
    broker.settle_down()

    acknowledge(broker, lsn=broker.container.default.resources.replicated.log.last_lsn - 1)

    assert [delivery.settled for delivery in deliveries] == [True, True, False]


def test_a_witness_is_shown_what_was_written_as_one_batch_per_turn(broker: PairedBroker, client: PairedClient) -> None:
    sender = client.sender("q")
    witness(broker)
    for number in range(3):
        client.send(sender, proton.Message(body=number))

    broker.settle_down()

    (batch,) = broker.batches
    events = [record.event for record in decode(batch.data).records]
    assert [type(event) for event in events] == [Enqueued] * 3
    assert batch.last_lsn - batch.first_lsn == 2


def test_a_publisher_gets_no_new_credit_for_what_is_not_committed(broker: PairedBroker, client: PairedClient) -> None:
    sender = client.sender("q")
    witness(broker)
    before = sender.credit
    for number in range(before):
        client.send(sender, proton.Message(body=number))
    broker.settle_down()
    assert sender.credit == 0

    acknowledge(broker)

    assert sender.credit == before


def test_what_comes_behind_the_end_of_a_link_is_released(broker: PairedBroker, client: PairedClient) -> None:
    """Settled without an outcome, it counts as queued with clients that look for refusals only."""
    broker.container.default.configuration.declare_queue("short", {})
    link = client.sender("short")
    broker.container.default.configuration.delete_queue("short")
    client.send(link, proton.Message("a"))
    client.exchange()
    late = client.send(link, proton.Message("b"))
    broker.settle_down()
    assert link.state & proton.Endpoint.REMOTE_CLOSED
    assert (late.settled, late.remote_state) == (True, Delivery.RELEASED)


def test_a_management_reply_waits_for_what_the_command_wrote(broker: PairedBroker, client: PairedClient) -> None:
    replies, requests = client.receiver("$management", 10), client.sender("$management")
    witness(broker)
    request: Any = proton.Message(reply_to="$management", correlation_id=1, body={})
    request.properties = {"operation": "CREATE", "type": "queue", "name": "made"}

    client.send(requests, request)
    broker.settle_down()
    assert client.received(replies) == []

    acknowledge(broker)

    ((_, reply),) = client.received(replies)
    assert reply.properties["statusCode"] == 201


def test_a_discharge_is_accepted_only_when_the_whole_unit_is_committed(
    broker: PairedBroker, client: PairedClient
) -> None:
    coordinator = PairedCoordinator(client)
    transaction_id = coordinator.declare()
    coordinator.publish(client.sender("q"), transaction_id)
    witness(broker)

    discharged = coordinator.discharge(transaction_id)
    assert not discharged.settled
    log = broker.container.default.resources.replicated.log
    acknowledge(broker, lsn=log.last_lsn - 1)
    assert not discharged.settled

    acknowledge(broker)

    assert discharged.settled
    assert discharged.remote_state == Delivery.ACCEPTED
    assert broker.queue("q").messages.count == 1


def test_a_rollback_does_not_let_an_earlier_commit_be_accepted_too_early(
    broker: PairedBroker, client: PairedClient
) -> None:
    coordinator = PairedCoordinator(client)
    committed_id = coordinator.declare()
    coordinator.publish(client.sender("q"), committed_id)
    other_id = coordinator.declare()
    witness(broker)

    bodies: list[list[Any]] = [[committed_id, False], [other_id, True]]
    discharges = [
        client.send(
            coordinator.link, proton.Message(body=proton.Described(proton.symbol("amqp:discharge:list"), fields))
        )
        for fields in bodies
    ]
    broker.settle_down()
    assert not discharges[0].settled

    acknowledge(broker)
    assert [discharge.remote_state for discharge in discharges] == [Delivery.ACCEPTED] * 2


@pytest.mark.parametrize(
    ("outcome", "queued", "failures", "dead"),
    [
        (proton.Described(proton.ulong(Delivery.REJECTED), []), 0, None, 1),
        (proton.Described(proton.ulong(Delivery.RELEASED), []), 1, 0, 0),
        (proton.Described(proton.ulong(Delivery.MODIFIED), [True]), 1, 1, 0),
        (proton.Described(proton.ulong(Delivery.MODIFIED), [False, True]), 1, 0, 0),
        (proton.Described(proton.symbol("amqp:modified:list"), []), 1, 0, 0),
    ],
    ids=["rejected", "released", "failed", "undeliverable", "modified"],
)
def test_an_outcome_other_than_accepted_means_in_a_transaction_what_it_means_outside(
    broker: PairedBroker, client: PairedClient, outcome: object, queued: int, failures: int | None, dead: int
) -> None:
    configuration = broker.container.default.configuration
    configuration.declare_queue("dead", {})
    configuration.declare_exchange("dlx", "fanout", {})
    configuration.bind("dlx", "dead", "", {})
    configuration.declare_queue("q", {"qpid.alternate_exchange": "dlx"})
    client.publish("q", 0)
    transaction_id = PairedCoordinator(client).declare()
    receiver = client.receiver("q", 1)
    ((delivery, _),) = client.received(receiver)
    delivery.local.data = [transaction_id, outcome]
    delivery.update(0x34)
    delivery.settle()
    broker.settle_down()

    receiver.close()
    broker.settle_down()
    assert (broker.queue("q").messages.count, broker.queue("dead").messages.count) == (queued, dead)
    assert [entry.delivery_count for entry in broker.queue("q").messages] == ([] if failures is None else [failures])
    broker.check_invariants()


def test_a_consumers_accepted_is_settled_only_when_the_dequeue_is_committed(
    broker: PairedBroker, client: PairedClient
) -> None:
    client.publish("q", 0)
    receiver = client.receiver("q", 1, answers_first=True)
    ((delivery, _),) = client.received(receiver)
    witness(broker)

    delivery.update(Delivery.ACCEPTED)
    broker.settle_down()
    assert not delivery.settled

    acknowledge(broker)

    assert delivery.settled
    events = [record.event for batch in broker.batches for record in decode(batch.data).records]
    assert [type(event) for event in events] == [Dequeued]
    assert broker.queue("q").messages.count == 0


def test_a_message_goes_out_only_when_its_acquisition_is_committed() -> None:
    broker = PairedBroker(log_acquisitions=True)
    client = broker.connect()
    client.publish("q", 0)
    witness(broker)

    receiver = client.receiver("q", 10)
    assert client.received(receiver) == []
    (batch,) = broker.batches
    assert [type(record.event) for record in decode(batch.data).records] == [Acquired]

    acknowledge(broker)

    assert [message.body for _, message in client.received(receiver)] == [0]


def test_a_message_whose_consumer_left_before_its_acquisition_was_committed_is_there_again() -> None:
    broker = PairedBroker(log_acquisitions=True)
    client = broker.connect()
    client.publish("q", 0)
    witness(broker)
    client.receiver("q", 10)

    client.vanish()
    acknowledge(broker)

    queue = broker.queue("q")
    assert (queue.messages.count, queue.messages.acquired) == (1, 0)
    queue.messages.check_invariants()


def test_without_acquisitions_in_the_log_a_consumer_does_not_wait(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", 0)
    witness(broker)

    assert len(client.received(client.receiver("q", 10))) == 1


def test_what_was_not_confirmed_is_never_confirmed_to_somebody_else(broker: PairedBroker, client: PairedClient) -> None:
    sender = client.sender("q")
    witness(broker)
    client.send(sender, proton.Message(body="x"))
    broker.settle_down()

    client.vanish()
    acknowledge(broker)

    assert broker.container.default.unconfirmed == {}
    assert broker.queue("q").messages.count == 1


def test_when_a_witness_is_dropped_what_it_held_up_goes_on(broker: PairedBroker, client: PairedClient) -> None:
    sender = client.sender("q")
    witness(broker)
    delivery = client.send(sender, proton.Message(body="x"))
    broker.settle_down()

    broker.container.default.resources.replicated.log.remove_witness(STORE)
    broker.settle_down()

    assert delivery.settled


# --- what a lost client leaves


def test_what_a_lost_client_held_is_there_for_the_next_one_and_marked(
    broker: PairedBroker, client: PairedClient
) -> None:
    client.publish("q", *range(3))
    gone = broker.connect()
    assert len(gone.received(gone.receiver("q", 3))) == 3

    gone.vanish()

    again = client.received(client.receiver("q", 3))
    assert [message.body for _, message in again] == [0, 1, 2]
    assert all(message.delivery_count == 1 and not message.first_acquirer for _, message in again)
    broker.check_invariants()


@pytest.mark.parametrize("only_detaches", [False, True])
def test_a_temporary_queue_goes_with_its_client(
    broker: PairedBroker, client: PairedClient, only_detaches: bool
) -> None:
    link = client.session.receiver("dynamic")
    link.source.dynamic = True
    link.open()
    broker.settle_down()
    name = link.remote_source.address
    assert name in broker.container.default.resources.catalog.queues

    if only_detaches:
        link.detach()
        broker.settle_down()
    else:
        client.vanish()

    assert name not in broker.container.default.resources.catalog.queues


@pytest.mark.parametrize("role", ["receiver", "sender"])
def test_a_temporary_queue_goes_with_its_session(broker: PairedBroker, client: PairedClient, role: str) -> None:
    session = client.connection.session()
    session.open()
    link = getattr(session, role)("dynamic")
    (link.source if role == "receiver" else link.target).dynamic = True
    link.open()
    broker.settle_down()
    name = (link.remote_source if role == "receiver" else link.remote_target).address
    assert name in broker.container.default.resources.catalog.queues

    session.close()
    broker.settle_down()

    assert name not in broker.container.default.resources.catalog.queues


# --- limits


def test_a_message_that_nobody_can_read_goes_to_the_dead_letters(broker: PairedBroker, client: PairedClient) -> None:
    """A map with a list for a key: well formed, and nothing that Python could hold."""
    configuration = broker.container.default.configuration
    configuration.declare_queue("dead", {})
    configuration.bind("amq.fanout", "dead", "", {})
    configuration.declare_queue("q", {"qpid.alternate_exchange": "amq.fanout"})
    unreadable = b"\x00Ss\xc1\x05\x02\x45\x45\x45\x45" + b"\x00Su\xa0\x01x"
    client.send(client.sender("q"), unreadable)
    broker.settle_down()
    receiver = client.receiver("q", 1)
    delivery = receiver.current
    receiver.advance()

    delivery.update(Delivery.REJECTED)
    delivery.settle()
    broker.settle_down()

    assert (broker.queue("q").messages.count, broker.queue("dead").messages.count) == (0, 1)


def test_an_unreadable_message_for_a_headers_exchange_is_rejected(broker: PairedBroker, client: PairedClient) -> None:
    configuration = broker.container.default.configuration
    configuration.declare_queue("q", {})
    configuration.bind("amq.match", "q", "all", {"x-match": "all", "colour": "red"})

    delivery = client.send(client.sender("amq.match"), b"\x00St\xc1\x05\x02\x45\x45\x45\x45" + b"\x00Su\xa0\x01x")
    broker.settle_down()

    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == "amqp:decode-error"


def full_broker() -> PairedBroker:
    """One whose memory is full with ten messages."""
    settings = ContainerSettings("test", "0", memory_limit_bytes=10_000, max_message_bytes=8_000, publisher_credit=10)
    broker = PairedBroker(settings)
    broker.connect().sender("q").close()
    broker.connect().publish("q", *["x" * 1000] * 10)
    return broker


def test_a_new_publisher_gets_no_credit_while_memory_is_full_and_some_later() -> None:
    broker = full_broker()
    late = broker.connect()
    sender = late.sender("q")
    assert sender.credit == 0

    receiver = late.receiver("q", 10)
    for delivery, _ in late.received(receiver):
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    broker.settle_down()

    assert sender.credit == 10


def test_commands_are_let_in_while_memory_is_full() -> None:
    broker = full_broker()
    client = broker.connect()
    requests = client.sender("$management")

    for _ in range(3):
        for _ in range(requests.credit):
            client.send(requests, b"no request")
        broker.settle_down()

    assert requests.credit > 0


def test_a_publisher_that_waits_for_memory_and_leaves_is_forgotten() -> None:
    broker = full_broker()
    client = broker.connect()
    client.sender("q")
    assert len(broker.container.starved) == 1

    client.vanish()

    assert broker.container.starved == {}


def test_a_bug_costs_one_connection_and_what_it_held_is_there_for_the_others(
    broker: PairedBroker, client: PairedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    client.publish("q", 0)
    unlucky = broker.connect()
    unlucky.receiver("q", 1)
    monkeypatch.setattr(broker.container.management, "handle", bug)
    requests = unlucky.sender("$management")
    unlucky.send(requests, proton.Message())
    with pytest.raises(ZeroDivisionError):
        unlucky.exchange()
    unlucky.vanish()

    broker.clients.remove(unlucky)
    receiver = client.receiver("q", 1)
    assert [message.body for _, message in client.received(receiver)] == [0]


# --- what clients read


def test_the_tags_of_a_thousand_unsettled_deliveries_can_be_read_by_proton(
    broker: PairedBroker, client: PairedClient
) -> None:
    client.publish("q", *range(1000))
    link = client.receiver("q", 1000)
    tags = {delivery.tag for delivery, _ in client.received(link)}
    assert len(tags) == 1000


@pytest.mark.parametrize("address", ["q", "$management"])
def test_a_drain_without_credit_is_answered_with_a_flow(
    broker: PairedBroker, client: PairedClient, address: str
) -> None:
    link = client.receiver(address)
    collector = proton.Collector()
    client.connection.collect(collector)

    link.drain(0)
    broker.settle_down()

    assert flows(collector) == 1
    assert (link.credit, link.remote_condition) == (0, None)


def test_a_drain_is_answered_although_messages_have_used_up_the_credit(
    broker: PairedBroker, client: PairedClient
) -> None:
    client.publish("q", *range(3))
    link = client.receiver("q")
    collector = proton.Collector()
    client.connection.collect(collector)

    link.drain(2)
    broker.settle_down()
    assert len(client.received(link)) == 2
    assert flows(collector) == 1

    link.drain(0)
    broker.settle_down()
    assert flows(collector) == 1

    link.flow(5)
    broker.settle_down()
    assert (len(client.received(link)), link.credit) == (1, 4)


@pytest.mark.parametrize("address", ["q", "$management"])
def test_credit_that_comes_before_the_end_of_a_drain_is_written_is_no_part_of_it(
    broker: PairedBroker, client: PairedClient, address: str
) -> None:
    link = client.receiver(address)
    link.drain(1)
    say(client)
    broker.turn()  # the drain is over, and nobody has heard of it
    link.flow(1)
    say(client)
    broker.settle_down()
    at_broker: Any = client.peer.engine.connection.link_head(0)
    assert (link.credit, at_broker.credit) == (1, 1)


def test_a_consumer_that_takes_its_drain_back_while_it_waits_gets_its_messages(
    broker: PairedBroker, client: PairedClient
) -> None:
    link = client.receiver("q", 1)
    catalog = broker.container.default.resources
    catalog.is_gated = True
    link.drain(0)
    broker.settle_down()
    link.drain_mode = False
    link.flow(1)
    broker.settle_down()
    catalog.is_gated = False
    client.publish("q", *range(2))
    assert (len(client.received(link)), link.credit) == (2, 0)


def say(client: PairedClient) -> None:
    """Carry what the client has to say, and nothing back."""
    pending = client.transport.pending()
    client.peer.receive(bytes(client.transport.peek(pending) or b""))
    client.transport.pop(pending)


def flows(collector: Any) -> int:
    """How many flows for a link have come since the last call."""
    found = 0
    while (event := collector.peek()) is not None:
        found += event.type == proton.Event.LINK_FLOW
        collector.pop()
    return found


def test_a_request_is_read_whole_and_therefore_short(broker: PairedBroker, client: PairedClient) -> None:
    """A megabyte of nulls takes half a second to decode."""
    sender = client.sender("$management")
    broker.settle_down()
    assert sender.remote_max_message_size == 16 * 1024
    client.send(sender, proton.Message(body=b"x" * 16 * 1024, reply_to="replies"))
    broker.settle_down()
    assert sender.remote_condition.name == "amqp:link:message-size-exceeded"
    assert "a request has 16384 at most" in sender.remote_condition.description
