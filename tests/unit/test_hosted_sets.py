"""One container with several resource sets: each has clients, a log and turns of its own, names lead to all."""

from __future__ import annotations

import itertools
from typing import Any

import proton
import pytest
from proton import Delivery

from paired_engines import PairedBroker, PairedClient
from paired_links import ask
from paired_transactions import PairedCoordinator
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import ASK_AGAIN_MS
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits, NodeWait
from qpid_ha_broker.amqp.wire.conditions import LINK_REDIRECT, NOT_IMPLEMENTED, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.commands.naming import NamingRules
from qpid_ha_broker.model.errors import (
    AlreadyExists,
    InUse,
    InvalidArgument,
    ModelError,
    NotFound,
    QueueFull,
    Unavailable,
)
from qpid_ha_broker.model.logs.log import Commitment, Log
from qpid_ha_broker.model.transactions.transaction import Message
from several_sets import BETA, WITNESS, SeveralSets, fan_out


@pytest.fixture
def broker() -> SeveralSets:
    return SeveralSets()


def publish(client: PairedClient, address: str, body: str = "x") -> Any:
    (delivery,) = client.publish(address, body)
    return delivery


# --- each set for itself


@pytest.mark.parametrize("name", ["plain", "red", "blue"])
def test_messages_are_published_to_and_consumed_from_queues_of_all_sets(
    broker: SeveralSets, client: PairedClient, name: str
) -> None:
    assert publish(client, name, "hello").remote_state == Delivery.ACCEPTED
    receiver = client.receiver(name, 10)
    ((delivery, message),) = client.received(receiver)
    assert message.body == "hello"

    delivery.update(Delivery.ACCEPTED)
    delivery.settle()
    broker.settle_down()

    catalogs = [hosted.resources.catalog for hosted in broker.container.sets.values()]
    assert [sum(queue.messages.count for queue in catalog.queues.values()) for catalog in catalogs] == [0, 0, 0]
    assert sum(queue.messages.dequeued_total for catalog in catalogs for queue in catalog.queues.values()) == 1


def test_what_is_published_is_in_the_log_of_its_set_and_in_no_other(broker: SeveralSets, client: PairedClient) -> None:
    def ends() -> dict[str, int]:
        return {name: hosted.resources.replicated.log.last_lsn for name, hosted in broker.container.sets.items()}

    before = ends()
    publish(client, "red")
    assert ends() == before | {"red": before["red"] + 1}


def test_a_publish_waits_for_the_witness_of_its_own_set_only(broker: SeveralSets, client: PairedClient) -> None:
    for name in ("red", "blue"):
        broker.set(name).resources.replicated.log.add_witness(WITNESS)
    red, blue = publish(client, "red"), publish(client, "blue")
    assert (red.settled, blue.settled) == (False, False)

    broker.acknowledge("blue")
    assert (red.settled, blue.settled) == (False, True)

    broker.acknowledge("red")
    assert (red.settled, blue.settled) == (True, True)


def test_what_was_committed_after_the_turn_is_told_without_another_turn(
    broker: SeveralSets, client: PairedClient
) -> None:
    red = broker.set("red")
    red.resources.replicated.log.add_witness(WITNESS)
    delivery = publish(client, "red")
    visits = broker.visits["red"]

    red.resources.replicated.log.acknowledge(WITNESS, red.resources.replicated.log.last_lsn)
    red.touch()
    broker.container.tell_what_is_committed()

    assert not broker.container.has_work
    client.exchange()
    assert delivery.settled
    assert broker.visits["red"] == visits


def test_one_set_that_cannot_commit_holds_up_no_other_one_on_the_relay(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.set("red").resources.replicated.log.add_witness(WITNESS)
    relay = client.sender(None)
    red, blue = (client.send(relay, proton.Message(address=name, body="x")) for name in ("red", "blue"))
    broker.settle_down()
    assert (red.settled, blue.settled) == (False, True)

    broker.acknowledge("red")
    assert red.settled


def test_a_message_for_queues_of_several_sets_is_accepted_when_all_have_committed_it(
    broker: SeveralSets, client: PairedClient
) -> None:
    fan_out(broker)
    for name in ("red", "blue"):
        broker.set(name).resources.replicated.log.add_witness(WITNESS)
    delivery = publish(client, "fan")
    assert (broker.count("red"), broker.count("blue"), broker.queue("plain").messages.count) == (1, 1, 1)
    broker.acknowledge("red")
    assert not delivery.settled
    broker.acknowledge("blue")
    assert delivery.remote_state == Delivery.ACCEPTED


def test_who_waits_for_a_set_that_goes_loses_its_link_to_an_exchange_and_is_told_nothing(
    broker: SeveralSets, client: PairedClient
) -> None:
    """It sends all of it again, before what is handed on to the next primary."""
    fan_out(broker)
    broker.set("red").resources.replicated.log.add_witness(WITNESS)
    waiting, other = client.sender("fan"), client.sender("fan")
    delivery = client.send(waiting, proton.Message(body="x"))
    broker.settle_down()
    assert not delivery.settled

    broker.lead_elsewhere("red")
    broker.set("red").end_links(ServedElsewhere(broker.directory, "red"), browsers=False)
    broker.settle_down()

    assert delivery.remote_state != Delivery.ACCEPTED
    assert waiting.remote_condition.name == LINK_REDIRECT
    assert other.state & proton.Endpoint.REMOTE_ACTIVE


class RefusingBroker:
    """Another broker, which refuses what it is handed when it is told to."""

    is_committed = False
    is_full = False
    failure: ModelError | None = None

    def has_unwritten(self, set_name: str) -> bool:
        """Whatever is led here is written at once."""
        return False

    def forward(self, set_name: str, queues: tuple[str, ...], message: Message) -> Commitment:
        """Wait."""
        assert (set_name, queues) == ("red", ("red",))
        return self

    def waits_for(self, log: Log) -> bool:
        """For none that is here."""
        return False


def test_what_another_broker_refuses_is_rejected(broker: SeveralSets, client: PairedClient) -> None:
    fan_out(broker)
    broker.lead_elsewhere("red")
    assert publish(client, "fan").remote.condition.name == "amqp:not-implemented"
    other = broker.container.publisher.forwarder = RefusingBroker()
    delivery = publish(client, "fan")
    assert (broker.count("blue"), delivery.settled) == (1, False)
    other.failure = QueueFull("red is full")
    broker.settle_down()
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.description == "red is full"


def test_nothing_is_handed_on_beside_what_is_written_here_and_not_committed(
    broker: SeveralSets, client: PairedClient
) -> None:
    """The set is about to be handed over, and links that wait for its log are about to end. Were that given up, what
    had gone another way would have overtaken what is sent again."""
    fan_out(broker)
    other = broker.container.publisher.forwarder = RefusingBroker()
    red = broker.set("red")
    red.resources.replicated.log.add_witness(WITNESS)
    first = publish(client, "fan")
    red.read_only = True
    second = publish(client, "fan")
    assert (first.settled, second.remote_state) == (False, Delivery.REJECTED)
    assert second.remote.condition.name == "amqp:resource-locked"
    assert broker.count("blue") == 1

    broker.acknowledge("red")
    third = publish(client, "fan")
    assert (first.remote_state, third.settled, broker.count("blue")) == (Delivery.ACCEPTED, False, 2)
    other.failure = QueueFull("it is led elsewhere")
    broker.settle_down()
    assert third.remote_state == Delivery.REJECTED


def test_what_comes_to_an_exchange_while_its_broker_hands_default_over_is_handed_on_to_nobody(
    broker: SeveralSets, client: PairedClient
) -> None:
    fan_out(broker)
    broker.container.publisher.forwarder = RefusingBroker()
    sender = client.sender("fan")
    broker.container.default.read_only = True
    delivery = client.send(sender, proton.Message(body="x"))
    broker.settle_down()
    assert delivery.remote_state == Delivery.REJECTED
    assert (broker.count("red"), broker.count("blue")) == (0, 0)


def test_who_publishes_through_an_exchange_waits_while_too_much_is_on_its_way_to_other_brokers(
    broker: SeveralSets, client: PairedClient
) -> None:
    fan_out(broker)
    other = broker.container.publisher.forwarder = RefusingBroker()
    other.is_full = True
    sender, direct = client.sender("fan"), client.sender("plain")
    broker.settle_down()
    assert (sender.credit, direct.credit > 0) == (0, True)
    other.is_full = False
    broker.settle_down()
    assert sender.credit > 0


def test_a_set_other_than_default_has_no_exchange_and_replicates_all_that_it_has(broker: SeveralSets) -> None:
    red = broker.set("red")
    assert red.resources.catalog.exchanges == {}
    with pytest.raises(InvalidArgument, match="replicated with their messages"):
        red.configuration.declare_queue("q", {"qpid.replicate": "none"})
    with pytest.raises(InvalidArgument, match="which has the exchanges"):
        red.configuration.declare_queue("q", {"qpid.alternate_exchange": "amq.fanout"})
    assert list(red.resources.catalog.queues) == ["red"]


# --- turns


def test_a_set_without_activity_has_no_turn(broker: SeveralSets, client: PairedClient) -> None:
    sender = client.sender("red")
    before = broker.visits["blue"]
    for number in range(5):
        client.send(sender, proton.Message(body=number))
        broker.settle_down()
    broker.container.tick()
    broker.settle_down()
    assert broker.visits["blue"] == before
    assert broker.visits["red"] >= 5


def test_a_thousand_idle_sets_are_not_visited() -> None:
    broker = PairedBroker()
    for number in range(1000):
        broker.container.host(f"set-{number}")
    client = broker.connect()
    client.send(client.sender("q"), proton.Message(body="x"))
    broker.settle_down()
    broker.container.tick()
    assert [hosted.name for hosted, _ in broker.container.turn()] == ["default"]
    assert broker.visits == {}


def test_default_is_in_every_turn_and_comes_first(broker: SeveralSets) -> None:
    broker.set("blue").touch()
    assert [hosted.name for hosted, _ in broker.container.turn()] == ["default", "blue"]
    assert [hosted.name for hosted, _ in broker.container.turn()] == ["default"]


def test_sets_for_which_there_was_no_time_come_first_the_next_time() -> None:
    broker = PairedBroker()
    for number in range(3):
        broker.container.host(f"{number}").touch()
    ticks = iter(range(1000))
    broker.container.clock = lambda: float(next(ticks))  # each look at it costs a second

    broker.container.sets["0"].touch()
    turns = [[hosted.name for hosted, _ in broker.container.turn()][1:]]
    broker.container.sets["0"].touch()
    turns += [[hosted.name for hosted, _ in broker.container.turn()][1:] for _ in range(3)]

    assert turns == [["0"], ["1"], ["2"], ["0"]]
    assert not broker.container.has_work


def test_a_set_with_work_without_end_lets_the_others_have_their_turns() -> None:
    broker = PairedBroker()
    for number in range(3):
        broker.container.host(f"{number}").touch()
    broker.container.sets["0"].resources.work.add(itertools.repeat(None))
    ticks = itertools.count()
    broker.container.clock = lambda: float(next(ticks))

    turns = [[hosted.name for hosted, _ in broker.container.turn()][1:] for _ in range(5)]

    assert turns == [["0"], ["1"], ["2"], ["0"], ["0"]]


def test_what_expires_in_another_set_goes_with_a_tick_and_a_turn(broker: SeveralSets, client: PairedClient) -> None:
    sender = client.sender("red")
    client.send(sender, proton.Message(body="x", ttl=1.0))
    broker.settle_down()
    assert broker.count("red") == 1

    broker.container.now_ms += 2000
    broker.container.tick()
    broker.settle_down()

    assert (broker.count("red"), broker.set("red").resources.catalog.timed) == (0, {})


def test_on_a_backup_of_a_set_nothing_expires(broker: SeveralSets, client: PairedClient) -> None:
    client.send(client.sender("red"), proton.Message(body="x", ttl=1.0))
    broker.settle_down()
    broker.lead_elsewhere("red")

    broker.container.now_ms += 2000
    broker.container.tick()
    broker.settle_down()

    assert broker.count("red") == 1


def test_a_queue_that_is_deleted_in_another_set_ends_its_consumers(broker: SeveralSets, client: PairedClient) -> None:
    receiver = client.receiver("red", 10)
    broker.set("red").administration.delete_queue("red")
    broker.set("red").touch()
    broker.settle_down()
    assert receiver.remote_condition.name == "amqp:resource-deleted"
    assert [notice.text for notice in broker.container.take_notices() if notice.source == "configuration"][-1] == (
        "set red: queue red deleted; messages in it: 0"
    )


def test_credit_is_drained_at_a_queue_of_another_set(broker: SeveralSets, client: PairedClient) -> None:
    publish(client, "red")
    receiver = client.receiver("red")
    receiver.drain(5)
    broker.settle_down()
    assert (len(client.received(receiver)), receiver.credit) == (1, 0)
    broker.settle_down()

    receiver.drain(0)
    broker.settle_down()
    assert broker.set("red").draining == {}


def test_an_answer_alone_gives_its_set_a_turn(broker: SeveralSets, client: PairedClient) -> None:
    publish(client, "red")
    receiver = client.receiver("red", 1)
    ((delivery, _),) = client.received(receiver)
    broker.settle_down()
    delivery.update(Delivery.ACCEPTED)
    delivery.settle()
    broker.settle_down()
    assert broker.count("red") == 0


def test_a_shared_consumer_of_a_queue_of_another_set_is_a_plain_one(broker: SeveralSets, client: PairedClient) -> None:
    link = client.session.receiver("shared")
    link.source.address = "red"
    link.source.capabilities.put_array(False, proton.Data.SYMBOL)
    link.source.capabilities.enter()
    link.source.capabilities.put_symbol(proton.symbol("shared"))
    link.source.capabilities.exit()
    link.open()
    broker.settle_down()
    assert link.remote_condition is None


def test_what_ends_bit_by_bit_is_over_when_others_begin_to_write_the_set(
    broker: SeveralSets, client: PairedClient
) -> None:
    sender = client.sender("red")
    for number in range(20):
        client.send(sender, proton.Message(body=number))
    broker.settle_down()
    other = broker.connect()
    for _ in range(20):
        other.receiver("red", 1)
    queue = broker.set("red").resources.catalog.queues["red"]
    ticks = itertools.count()
    broker.container.clock = lambda: float(next(ticks))
    other.vanish()
    assert queue.messages.acquired > 10

    broker.lead_elsewhere("red")

    assert queue.messages.acquired == 0


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_where_others_write_all_links_of_a_lost_client_end_at_once(
    broker: SeveralSets, client: PairedClient, role: str
) -> None:
    for _ in range(20):
        getattr(client, role)("red")
    broker.set("red").resources.replication.read_only = "another broker leads red"
    ticks = itertools.count()
    broker.container.clock = lambda: float(next(ticks))

    client.vanish()

    assert broker.set("red").links == {}


# --- memory


def test_all_sets_together_reach_the_memory_limit_and_make_room_for_each_other() -> None:
    settings = ContainerSettings("test", "0", memory_limit_bytes=10_000, max_message_bytes=8_000, publisher_credit=4)
    broker = SeveralSets(settings)
    client = broker.connect()
    for name in ("red", "blue"):
        sender = client.sender(name)
        for _ in range(4):
            client.send(sender, proton.Message(body="x" * 1000))
        broker.settle_down()
    assert broker.container.memory_bytes > 10_000
    late = client.sender("plain")
    assert late.credit == 0

    broker.container.management.administration.purge_queue("red")
    broker.settle_down()

    assert late.credit == 4
    catalogs = [hosted.resources.catalog for hosted in broker.container.sets.values()]
    assert broker.container.memory_bytes == sum(catalog.memory_bytes for catalog in catalogs)


# --- transactions


def begun_in_red(client: PairedClient) -> tuple[PairedCoordinator, bytes]:
    """A transaction with a message for a queue of one set."""
    coordinator = PairedCoordinator(client)
    transaction_id = coordinator.declare()
    coordinator.publish(client.sender("red"), transaction_id)
    return coordinator, transaction_id


def test_a_transaction_in_another_set_is_committed_when_that_set_has_committed_it(
    broker: SeveralSets, client: PairedClient
) -> None:
    coordinator, transaction_id = begun_in_red(client)
    broker.set("red").resources.replicated.log.add_witness(WITNESS)

    discharged = coordinator.discharge(transaction_id)
    assert not discharged.settled
    broker.acknowledge("red")

    assert discharged.remote_state == Delivery.ACCEPTED
    assert broker.count("red") == 1


def test_a_transaction_over_two_sets_is_refused_at_the_second_and_rolled_back_in_the_first(
    broker: SeveralSets, client: PairedClient
) -> None:
    coordinator, transaction_id = begun_in_red(client)

    refused = coordinator.publish(client.sender("blue"), transaction_id)

    assert refused.remote_state == Delivery.REJECTED
    assert refused.remote.condition.name == NOT_IMPLEMENTED
    assert "a transaction stays within one resource set" in refused.remote.condition.description
    commit = coordinator.discharge(transaction_id)
    assert (commit.remote_state, commit.remote.condition.name) == (Delivery.REJECTED, "amqp:transaction:rollback")
    assert "a transaction stays within one resource set" in commit.remote.condition.description
    assert (broker.count("red"), broker.count("blue")) == (0, 0)


def test_accepting_from_a_second_set_in_a_transaction_ends_the_link_and_loses_nothing(
    broker: SeveralSets, client: PairedClient
) -> None:
    publish(client, "blue")
    _, transaction_id = begun_in_red(client)
    receiver = client.receiver("blue", 1)
    ((delivery, _),) = client.received(receiver)

    delivery.local.data = [transaction_id, proton.Described(proton.ulong(Delivery.ACCEPTED), [])]
    delivery.update(0x34)
    broker.settle_down()

    assert receiver.remote_condition.name == NOT_IMPLEMENTED
    queue = broker.set("blue").resources.catalog.queues["blue"]
    assert (queue.messages.count, queue.messages.acquired) == (1, 0)


def test_a_transaction_of_a_lost_client_is_rolled_back_in_its_set(broker: SeveralSets, client: PairedClient) -> None:
    publish(client, "red")
    coordinator = PairedCoordinator(client)
    transaction_id = coordinator.declare()
    ((delivery, _),) = client.received(client.receiver("red", 1))
    delivery.local.data = [transaction_id, proton.Described(proton.ulong(Delivery.ACCEPTED), [])]
    delivery.update(0x34)
    broker.settle_down()

    client.vanish()

    queue = broker.set("red").resources.catalog.queues["red"]
    assert (queue.messages.count, queue.messages.acquired) == (1, 0)
    assert broker.set("red").transactions == {}


# --- management


def test_management_lists_the_queues_of_all_sets_page_by_page(broker: SeveralSets, client: PairedClient) -> None:
    pages = [ask(client, "QUERY", {}, entityType="queue", offset=at, count=2) for at in (0, 2)]
    columns = pages[0].body["attributeNames"]
    rows = [dict(zip(columns, row, strict=True)) for page in pages for row in page.body["results"]]
    assert [(row["name"], row["set"]) for row in rows] == [("plain", "default"), ("red", "red"), ("blue", "blue")]
    assert pages[0].properties["total"] == 3


def test_management_reads_and_purges_a_queue_of_another_set_and_answers_once_that_is_committed(
    broker: SeveralSets, client: PairedClient
) -> None:
    publish(client, "red")
    assert ask(client, "READ", {}, type="queue", name="red").body["messages"] == 1
    broker.set("red").resources.replicated.log.add_witness(WITNESS)
    replies, requests = client.receiver("$management", 10), client.sender("$management")
    request: Any = proton.Message(reply_to="$management", correlation_id=1, body={})
    request.properties = {"operation": "PURGE", "type": "queue", "name": "red"}
    client.send(requests, request)
    broker.settle_down()
    assert client.received(replies) == []

    broker.acknowledge("red")

    ((_, reply),) = client.received(replies)
    assert (reply.properties["statusCode"], reply.body) == (200, {"purged": 1})


def test_a_change_for_the_broker_that_leads_default_is_answered_with_where_that_is(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.lead_elsewhere("default")
    reply = ask(client, "DELETE", {}, type="exchange", name="amq.topic")
    assert reply.properties["statusCode"] == 307
    assert reply.body == {"hostname": "beta", "network-host": "beta.example", "port": 5673}
    assert ask(client, "READ", {}, type="queue", name="red").properties["statusCode"] == 200


class Desk:
    """A client of `$management` with one link for requests, and one for replies."""

    def __init__(self, broker: SeveralSets, client: PairedClient) -> None:
        self._broker, self._client = broker, client
        self._requests, self._replies = client.sender("$management"), client.receiver("$management", 100)

    def ask(self, number: int, operation: str, name: str, body: Any = None, **properties: object) -> None:
        """One request about a queue, with that number."""
        request: Any = proton.Message(reply_to="$management", correlation_id=number, body=body)
        request.properties = {"operation": operation, "type": "queue", "name": name, **properties}
        self._client.send(self._requests, request)
        self._broker.settle_down()

    def answers(self) -> list[tuple[int, int, Any]]:
        """Number, status and body of each reply that has come since the last call."""
        self._broker.settle_down()
        replies: list[Any] = [reply for _, reply in self._client.received(self._replies)]
        return [(int(each.correlation_id), int(each.properties["statusCode"]), each.body) for each in replies]


ELSEWHERE = {"name": "new", "identity": "new", "type": "org.qpid_ha.queue", "set": "green", "arguments": {"own": 1}}


@pytest.mark.parametrize(
    ("result", "error", "expected"),
    [
        ({"set": "green", "created": True}, None, (201, ELSEWHERE)),
        ({"set": "green", "created": False}, None, (201, ELSEWHERE)),
        ({"set": "green", "created": True, "pending": True, "text": "wait"}, None, (202, ELSEWHERE)),
        ({}, AlreadyExists("with other arguments"), (409, {})),
        ({}, InvalidArgument("no such set"), (400, {})),
        ({}, Unavailable("no controller"), (503, {})),
    ],
)
def test_a_queue_of_any_set_is_created_at_any_broker_and_answered_when_that_is_decided(
    broker: SeveralSets,
    client: PairedClient,
    result: dict[str, object],
    error: ModelError | None,
    expected: tuple[int, object],
) -> None:
    broker.lead_elsewhere("default")
    desk = Desk(broker, client)
    desk.ask(1, "CREATE", "new", {"arguments": {"own": 1}})
    desk.ask(2, "READ", "red")
    assert [answer[:2] for answer in desk.answers()] == [(2, 200)], "what comes later does not wait"
    ((name, asked, decision),) = broker.directory.decisions
    assert (name, asked) == ("new", {"own": 1})

    if error is None:
        decision.decide(result)
    else:
        decision.fail(error)

    assert desk.answers() == [(1, *expected)]


def test_who_leads_default_has_a_queue_created_elsewhere_that_its_rules_place_there(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.container.default.configuration.naming = NamingRules(spread=3)
    desk = Desk(broker, client)
    desk.ask(1, "CREATE", "new")
    ((_, _, decision),) = broker.directory.decisions
    decision.decide({"set": "red", "created": True})
    broker.declare("red", "new")
    ((_, status, body),) = desk.answers()
    assert (status, body["set"], body["messages"]) == (201, "red", 0)


def test_a_queue_that_is_led_here_is_compared_with_what_it_is_by_now(broker: SeveralSets, client: PairedClient) -> None:
    fan_out(broker)
    broker.lead_elsewhere("default")
    desk = Desk(broker, client)
    desk.ask(1, "UPDATE", "red", {"arguments": {"qpid.max_count": 7}})
    desk.ask(2, "CREATE", "red", {"arguments": {"qpid.max_count": 7}})
    desk.ask(3, "CREATE", "red")
    assert [answer[:2] for answer in desk.answers()] == [(1, 200), (2, 201), (3, 409)]
    assert not broker.directory.decisions


@pytest.mark.parametrize(
    ("result", "error", "status"),
    [
        ({"set": "red"}, None, 204),
        ({"set": "red", "pending": True, "text": "wait"}, None, 202),
        ({}, InUse("queue red holds 1 message"), 412),
        ({}, NotFound("there is no queue red"), 404),
        ({}, Unavailable("no controller"), 503),
    ],
)
def test_so_is_one_deleted_on_conditions_that_its_primary_judges(
    broker: SeveralSets,
    client: PairedClient,
    result: dict[str, object],
    error: ModelError | None,
    status: int,
) -> None:
    fan_out(broker)
    desk = Desk(broker, client)
    desk.ask(1, "DELETE", "red", if_empty=True)
    assert desk.answers() == []
    ((name, asked, decision),) = broker.directory.decisions
    assert (name, asked) == ("red", {"if_empty": True, "if_unused": False})

    if error is None:
        decision.decide(result)
    else:
        decision.fail(error)

    assert desk.answers() == [(1, status, {})]


def test_a_queue_that_nobody_uses_any_more_is_deleted_by_way_of_its_entry_in_the_directory(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.declare("red", "brief")
    queue = broker.set("red").resources.catalog.queues["brief"]
    broker.set("red").configuration.update_queue("brief", {"qpid.auto_delete": True})
    fan_out(broker)
    broker.container.default.resources.replicated.write(ev.QueuePlaced("brief", "red", {}, False))
    client.receiver("brief", 1).close()
    broker.settle_down()

    for passed_ms in (0, 1, ASK_AGAIN_MS - 2, 1):
        broker.container.now_ms += passed_ms
        broker.container.tick()
        broker.settle_down()

    assert not queue.deleted, "its primary deletes it when the controller has it do so"
    expected = "brief", {"if_empty": False, "if_unused": True}
    assert [each[:2] for each in broker.directory.decisions] == [expected] * 2, "asked once in a while"


def test_so_is_one_that_was_full_and_deleted_itself(broker: SeveralSets, client: PairedClient) -> None:
    broker.set("red").configuration.update_queue("red", {"qpid.max_count": 1, "qpid.policy_type": "self-destruct"})
    fan_out(broker)
    for body in ("one", "two"):
        assert publish(client, "fan", body).remote_state == Delivery.ACCEPTED
    assert not broker.set("red").administration.has_queue("red")
    expected = "red", {"if_empty": True, "if_unused": True}
    assert [each[:2] for each in broker.directory.decisions] == [expected]


def test_a_client_that_goes_before_the_answer_comes_leaves_nothing_behind(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.lead_elsewhere("default")
    Desk(broker, client).ask(1, "CREATE", "new")
    client.peer.lost()
    broker.settle_down()
    ((_, _, decision),) = broker.directory.decisions
    decision.decide({"set": "green", "created": True})
    broker.settle_down()
    assert not broker.container.default.unconfirmed
    assert not broker.container.has_work


def test_of_a_queue_without_a_replica_here_the_directory_is_told_and_who_leads_it(
    broker: SeveralSets, client: PairedClient
) -> None:
    default = broker.container.default.resources.replicated
    default.write(ev.SetPlaced("green", ("beta",), (), "", 0, 0))
    for number in range(3):
        default.write(ev.QueuePlaced(f"g{number}", "green", {"qpid.max_count": number}, number == 2))
        broker.directory.queues[f"g{number}"] = "green"
    broker.directory.primaries["green"] = BETA

    pages = [ask(client, "QUERY", {}, entityType="queue", offset=at, count=2) for at in (0, 2, 4)]

    columns = pages[0].body["attributeNames"]
    rows = [dict(zip(columns, row, strict=True)) for page in pages for row in page.body["results"]]
    assert [row["name"] for row in rows] == ["plain", "red", "blue", "g0", "g1", "g2"]
    assert {name: value for name, value in rows[4].items() if value is not None} == {
        "name": "g1",
        "identity": "g1",
        "type": "org.qpid_ha.queue",
        "set": "green",
        "arguments": {"qpid.max_count": 1},
    }
    assert pages[0].properties["total"] == 6
    desk = Desk(broker, client)
    for operation in ("READ", "UPDATE", "PURGE"):
        desk.ask(1, operation, "g1", {"arguments": {"qpid.max_count": 1}} if operation == "UPDATE" else {})
        assert desk.answers() == [(1, 307, redirect("g1"))]
    del broker.directory.primaries["green"]
    desk.ask(2, "READ", "g1")
    assert desk.answers() == [(2, 503, {})], "nobody leads it"


# --- sets that other brokers lead


def redirect(address: str) -> dict[str, object]:
    return {"hostname": "beta", "network-host": "beta.example", "port": 5673, "address": address}


@pytest.mark.parametrize("role", ["sender", "receiver"])
@pytest.mark.parametrize("is_hosted", [True, False], ids=["a-backup-here", "no-replica-here"])
def test_who_attaches_to_a_queue_of_a_set_that_another_broker_leads_is_redirected(
    broker: SeveralSets, client: PairedClient, role: str, is_hosted: bool
) -> None:
    if is_hosted:
        broker.lead_elsewhere("red")
    else:
        broker.container.unhost("red", AmqpError(LINK_REDIRECT, "gone"))
        broker.directory.primaries["red"] = BETA
    link = getattr(client, role)("red")
    assert link.remote_condition.name == LINK_REDIRECT
    assert link.remote_condition.info == redirect("red")
    assert type(link.remote_condition.info["port"]) is proton.ushort
    assert "whose primary is beta at beta.example:5673" in link.remote_condition.description


def test_where_no_primary_is_known_a_client_is_told_to_try_again(broker: SeveralSets, client: PairedClient) -> None:
    broker.lead_elsewhere("red", None)
    link = client.sender("red")
    assert (link.remote_condition.name, link.remote_condition.info) == (RESOURCE_LOCKED, {"resource-set": "red"})
    assert "try again" in link.remote_condition.description


def test_a_queue_of_a_set_of_which_there_is_a_backup_here_can_be_browsed(
    broker: SeveralSets, client: PairedClient
) -> None:
    publish(client, "red")
    broker.lead_elsewhere("red")
    link = client.session.receiver("browser")
    link.source.address = "red"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.open()
    link.flow(10)
    broker.settle_down()
    assert [message.body for _, message in client.received(link)] == ["x"]


def test_a_message_on_the_relay_for_a_queue_elsewhere_is_rejected_with_where_that_is(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.lead_elsewhere("red")
    relay = client.sender(None)
    red, blue = (client.send(relay, proton.Message(address=name, body="x")) for name in ("red", "blue"))
    broker.settle_down()
    assert (red.remote_state, blue.remote_state) == (Delivery.REJECTED, Delivery.ACCEPTED)
    assert red.remote.condition.name == LINK_REDIRECT
    assert red.remote.condition.info == redirect("red")


def test_a_backup_of_default_serves_the_sets_that_it_leads_and_redirects_for_the_rest(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.lead_elsewhere("default")
    assert publish(client, "red").remote_state == Delivery.ACCEPTED
    coordinator, transaction_id = begun_in_red(client)
    assert coordinator.discharge(transaction_id).remote_state == Delivery.ACCEPTED
    assert len(client.received(client.receiver("red", 10))) == 2

    for address in ("plain", "amq.fanout", "amq.topic/key", "not-there"):
        assert client.sender(address).remote_condition.info == redirect(address)
        assert client.receiver(address).remote_condition.info == redirect(address)
    dynamic = client.session.receiver("dynamic")
    dynamic.source.dynamic = True
    dynamic.open()
    broker.settle_down()
    assert dynamic.remote_condition.name == LINK_REDIRECT
    assert list(broker.container.default.resources.catalog.queues) == ["plain"]


def test_an_empty_transaction_is_nobodys(broker: SeveralSets, client: PairedClient) -> None:
    broker.lead_elsewhere("default")
    coordinator = PairedCoordinator(client)
    transaction_id = coordinator.declare()
    assert coordinator.discharge(transaction_id).remote_state == Delivery.ACCEPTED


def test_with_one_set_a_replica_refuses_as_ever(client: PairedClient) -> None:
    broker = PairedBroker()
    broker.container.default.read_only = True
    link = broker.connect().sender("q")
    assert link.remote_condition.name == "amqp:not-allowed"


# --- the end of a set


def test_when_a_set_is_hosted_no_more_its_links_end_and_the_others_go_on(
    broker: SeveralSets, client: PairedClient
) -> None:
    publish(client, "red")
    held = client.receiver("red", 1)
    ((held_delivery, _),) = client.received(held)
    red, blue = client.sender("red"), client.sender("blue")
    broker.set("red").resources.replicated.log.add_witness(WITNESS)
    unconfirmed = client.send(red, proton.Message(body="never confirmed"))
    broker.settle_down()

    broker.directory.primaries["red"] = BETA
    broker.container.unhost("red", ServedElsewhere(broker.directory, "red"))
    broker.settle_down()

    assert [link.remote_condition.name for link in (held, red)] == [LINK_REDIRECT] * 2
    assert (unconfirmed.settled, held_delivery.settled) == (False, False)
    assert blue.remote_condition is None
    assert list(broker.container.sets) == ["default", "blue"]
    catalogs = [hosted.resources.catalog for hosted in broker.container.sets.values()]
    assert broker.container.memory_bytes == sum(catalog.memory_bytes for catalog in catalogs)
    assert broker.container.held.unsettled_bytes == 0


def test_what_is_led_elsewhere_ends_its_writers_and_rolls_back_its_transactions(
    broker: SeveralSets, client: PairedClient
) -> None:
    publish(client, "red")
    coordinator = PairedCoordinator(client)
    transaction_id = coordinator.declare()
    receiver = client.receiver("red", 1)
    ((delivery, _),) = client.received(receiver)
    delivery.local.data = [transaction_id, proton.Described(proton.ulong(Delivery.ACCEPTED), [])]
    delivery.update(0x34)
    broker.settle_down()

    broker.lead_elsewhere("red")
    broker.set("red").end_links(ServedElsewhere(broker.directory, "red"), browsers=False)
    broker.settle_down()

    assert receiver.remote_condition.name == LINK_REDIRECT
    queue = broker.set("red").resources.catalog.queues["red"]
    assert (queue.messages.count, queue.messages.acquired) == (1, 0)
    discharged = coordinator.discharge(transaction_id)
    assert discharged.remote_state == Delivery.REJECTED
    assert discharged.remote.condition.name == "amqp:transaction:rollback"


def test_who_waits_on_the_relay_for_a_set_that_goes_loses_that_link(broker: SeveralSets, client: PairedClient) -> None:
    broker.set("red").resources.replicated.log.add_witness(WITNESS)
    relay, other = client.sender(None), client.sender(None)
    delivery = client.send(relay, proton.Message(address="red", body="x"))
    broker.settle_down()

    broker.container.unhost("red", AmqpError(LINK_REDIRECT, "red is elsewhere"))
    broker.settle_down()

    assert (delivery.settled, relay.remote_condition.name) == (False, LINK_REDIRECT)
    assert other.remote_condition is None


def test_who_waits_for_a_command_on_a_set_that_goes_loses_that_link(broker: SeveralSets, client: PairedClient) -> None:
    broker.set("red").resources.replicated.log.add_witness(WITNESS)
    client.receiver("$management", 10)
    requests = client.sender("$management")
    request: Any = proton.Message(reply_to="$management", correlation_id=1, body={"arguments": {"mine": 1}})
    request.properties = {"operation": "UPDATE", "type": "queue", "name": "red"}
    client.send(requests, request)
    broker.settle_down()

    broker.container.unhost("red", AmqpError(LINK_REDIRECT, "red is elsewhere"))
    broker.settle_down()

    assert requests.remote_condition.name == LINK_REDIRECT


def test_the_set_default_cannot_go_and_none_comes_twice(broker: SeveralSets) -> None:
    with pytest.raises(ValueError, match="always hosted"):
        broker.container.unhost("default", AmqpError(LINK_REDIRECT, "gone"))
    with pytest.raises(ValueError, match="hosted already"):
        broker.container.host("red")


# --- attaches that wait


def attaching(broker: SeveralSets, client: PairedClient, address: str, role: str = "receiver") -> Any:
    """A link whose attach has reached the broker, with credit on the way if it is ours to give."""
    link = getattr(client.session, role)(f"{role}-of-{address}")
    (link.source if role == "receiver" else link.target).address = address
    link.open()
    if role == "receiver":
        link.flow(10)
    broker.settle_down()
    return link


def is_answered(link: Any) -> bool:
    return not link.state & proton.Endpoint.REMOTE_UNINIT


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_an_attach_to_a_queue_that_is_being_made_is_answered_when_it_is_there(
    broker: SeveralSets, client: PairedClient, role: str
) -> None:
    broker.directory.queues["new"] = "red"
    link = attaching(broker, client, "new", role)
    assert not is_answered(link)

    broker.declare("red", "new")
    broker.settle_down()

    assert is_answered(link)
    assert link.remote_condition is None
    assert broker.container.waiting == {}
    if role == "receiver":  # the credit came while nobody was attached
        publish(client, "new", "hello")
        assert [message.body for _, message in client.received(link)] == ["hello"]
    else:
        assert link.credit > 0


def test_who_waits_for_a_queue_is_redirected_when_another_broker_is_to_make_it(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.directory.queues["new"] = "red"
    link = attaching(broker, client, "new")

    broker.lead_elsewhere("red")
    broker.set("red").end_links(ServedElsewhere(broker.directory, "red"), browsers=False)
    broker.settle_down()

    assert link.remote_condition.info == redirect("new")


def test_a_backup_of_default_asks_for_a_queue_that_it_does_not_know_before_it_sends_a_client_elsewhere(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.lead_elsewhere("default")
    broker.directory.locating = wait = NodeWait("the controller is asked")
    found, missing = attaching(broker, client, "new"), attaching(broker, client, "not-there")
    assert not is_answered(found)
    assert not is_answered(missing)

    broker.declare("red", "new")
    broker.directory.locating = None
    wait.ready()
    broker.settle_down()

    assert is_answered(found)
    assert found.remote_condition is None
    assert missing.remote_condition.info == redirect("not-there")


def test_who_leads_default_asks_nobody_for_a_queue_that_is_not_there(broker: SeveralSets, client: PairedClient) -> None:
    broker.directory.locating = NodeWait("the controller is asked")
    assert is_answered(attaching(broker, client, "new"))
    assert "new" in broker.container.default.resources.catalog.queues


def test_an_attach_that_waits_for_too_long_is_refused(broker: SeveralSets, client: PairedClient) -> None:
    now_s = [100.0]
    broker.container.clock = lambda: now_s[0]
    broker.directory.queues["new"] = "red"
    link = attaching(broker, client, "new")
    broker.container.tick()
    broker.settle_down()
    assert not is_answered(link)

    now_s[0] += broker.container.settings.attach_timeout_s
    broker.container.tick()
    broker.settle_down()

    assert link.remote_condition.name == RESOURCE_LOCKED
    assert "the queue new is being made in the resource set red" in link.remote_condition.description
    assert broker.container.waiting == {}


@pytest.mark.parametrize("how", ["close", "detach", "session", "connection", "vanish"])
def test_an_attach_that_waits_is_forgotten_with_its_link_session_or_connection(
    broker: SeveralSets, client: PairedClient, how: str
) -> None:
    broker.directory.queues["new"] = "red"
    link = attaching(broker, client, "new")
    wait = broker.set("red").await_queue("new")
    assert len(wait) == 1

    ends = {"close": link.close, "detach": link.detach, "session": client.session.close}
    ends |= {"connection": client.connection.close, "vanish": client.vanish}
    ends[how]()
    broker.settle_down()

    assert (len(wait), broker.container.waiting) == (0, {})
    broker.declare("red", "new")
    broker.settle_down()
    assert broker.set("red").links == {}
    if how in ("close", "detach"):
        assert is_answered(link)
        assert link.state & proton.Endpoint.REMOTE_CLOSED or how == "detach"
        assert link.remote_condition is None


def test_whoever_makes_a_node_says_that_it_came_or_why_not(
    broker: SeveralSets, client: PairedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = NodeWait("q is being declared")
    nodes = broker.container.nodes

    def waits(meaning: object, terminus: object, subject: object) -> None:
        raise AttachWaits(wait)

    monkeypatch.setattr(nodes, "find_meant", waits)
    first, second = attaching(broker, client, "q", "sender"), attaching(broker, broker.connect(), "q", "sender")
    assert len(wait) == 2
    wait.fail(AmqpError(RESOURCE_LOCKED, "the controller is away: try again"))
    broker.settle_down()
    assert [link.remote_condition.description for link in (first, second)] == ["the controller is away: try again"] * 2

    third = attaching(broker, broker.connect(), "q", "sender")
    monkeypatch.undo()
    wait.ready()
    broker.settle_down()
    assert is_answered(third)
    assert third.credit > 0


def test_a_message_on_the_relay_for_a_queue_that_is_being_made_is_to_be_sent_again(
    broker: SeveralSets, client: PairedClient
) -> None:
    broker.directory.queues["new"] = "red"
    delivery = client.send(client.sender(None), proton.Message(address="new", body="x"))
    broker.settle_down()
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == RESOURCE_LOCKED
