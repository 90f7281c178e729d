"""Stories about work that is cut into pieces: a clock that ticks at each look stands for time that passes."""

from __future__ import annotations

import itertools
from typing import Any

import proton
import pytest
from proton import Delivery

from model_support import NOW_MS, Core, bodies, body, message
from paired_engines import PairedBroker, PairedClient
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.hosted_set import HANDOUT_LIMIT
from qpid_ha_broker.amqp.wire.engine import EVENTS_LENGTH
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.queues.dispatcher import EACH, Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import RELEASED_LENGTH
from qpid_ha_broker.model.sets.timers import EXPIRED_LENGTH
from qpid_ha_broker.model.transactions.transaction import Message


def budget_of(looks: int) -> Budget:
    """Spent after so many looks at the clock."""
    clock = itertools.count()
    return Budget(lambda: next(clock), looks)


def test_a_selector_looks_at_as_many_messages_as_there_is_time_for_and_goes_on_where_it_was() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *(f"{number}" for number in range(100)))
    asked: list[str] = []

    def wants_the_last(encoded: bytes) -> bool:
        asked.append(body(encoded))
        return asked[-1] == "99"

    consumer = core.consumer(queue, accepts=wants_the_last)
    core.give_credit(queue, consumer)
    turns = 0
    handouts = []
    while core.resources.has_work:
        handouts += core.resources.hand_out(core.now_ms, 100, budget_of(10))
        turns += 1
    assert asked == [str(number) for number in range(100)], "each is asked about once"
    assert turns >= 9
    assert [bodies(handout.entries) for handout in handouts] == [["99"]]
    core.check()


@pytest.mark.parametrize("arguments", [{}, {"message_groups": True}, {"priorities": 4}])
def test_where_there_is_no_time_for_all_some_consumers_are_given_many_and_then_the_others(
    arguments: dict[str, Scalar],
) -> None:
    """A write for a few messages costs as much as one for many."""
    core = Core()
    queue = core.queue("q", **arguments)
    core.publish(queue, *(message(str(n), group=f"g{n}") for n in range(4000)))
    consumers = [core.consumer(queue) for _ in range(100)]
    for consumer in consumers:
        core.give_credit(queue, consumer)

    def for_messages(count: int) -> Budget:
        return Budget(lambda: queue.messages.acquired, count)

    turns = [core.resources.hand_out(core.now_ms, 100, for_messages(10 * EACH)) for _ in range(11)]
    asked = [{handout.consumer for handout in turn} for turn in turns]
    assert len(asked[0]) == 100, "before it is known that there is no time"
    assert all(len(takers) <= 11 for takers in asked[1:])
    assert all(len(turn) * EACH // 2 < sum(len(handout.entries) for handout in turn) for turn in turns[1:])
    assert set[Consumer]().union(*asked[1:]) == set(consumers), "nobody is asked again before all others were"
    core.check()


def test_all_are_asked_in_turn_again_once_there_is_time_for_all() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(50)]
    for consumer in consumers:
        core.give_credit(queue, consumer, 20)
    core.publish(queue, *(str(n) for n in range(900)))
    core.resources.hand_out(core.now_ms, 100, budget_of(100))
    while core.resources.has_work:
        core.resources.hand_out(core.now_ms, 100)
    for consumer in consumers:
        core.give_credit(queue, consumer, 20)
    core.publish(queue, *(str(n) for n in range(50)))
    handouts = core.resources.hand_out(core.now_ms, 100)
    assert {len(handout.entries) for handout in handouts} == {1}
    assert len(handouts) == 50
    core.check()


def test_queues_that_had_no_turn_are_the_first_in_the_next_one() -> None:
    core = Core()
    queues = [core.queue(f"q{number}") for number in range(6)]
    for queue in queues:
        core.publish(queue, "x")
        core.give_credit(queue, core.consumer(queue))
    served = []
    for _ in range(6):
        core.publish(queues[0], "another one")
        handouts = core.resources.hand_out(core.now_ms, 100, budget_of(2))
        served += [queue for queue in queues for handout in handouts if handout.consumer in queue.dispatcher.consumers]
    assert set(served) == set(queues), "one that is always awake keeps nobody from having a turn"
    core.check()


def test_what_expires_at_once_goes_in_portions_and_all_of_it_goes() -> None:
    core = Core()
    queue, other = core.queue("q"), core.queue("other")
    core.publish(queue, *(message("x", ttl_ms=1) for _ in range(3 * EXPIRED_LENGTH)))
    core.publish(other, message("y", ttl_ms=1))
    core.publish(queue, "stays")
    counts: list[tuple[int, int]] = []
    while not counts or core.resources.timers.is_behind:
        core.resources.timers.tick(NOW_MS + 2, budget_of(1))
        counts.append((queue.messages.count, other.messages.count))
    assert counts[0] == (2 * EXPIRED_LENGTH + 1, 1)
    assert counts[1] == (2 * EXPIRED_LENGTH + 1, 0), "the others do not wait until the first has done"
    assert counts[-1] == (1, 0)
    core.check()


def gone_with(core: Core, queue: Queue, count: int) -> list[Entry]:
    """What a consumer held that has gone without an answer."""
    consumer = core.consumer(queue)
    held = core.take(queue, consumer, count)
    core.resources.release_in_portions(queue, consumer, list(held), failed=True)
    core.leave(queue, consumer)
    return held


def bodies_in_turns(core: Core, queue: Queue, consumer: Consumer) -> list[str]:
    """What `consumer` gets while there is time for one portion a turn, in turns of the same order as the driver's."""
    core.give_credit(queue, consumer, 1 << 20)
    got = []
    while core.resources.has_work or core.resources.work:
        core.resources.work.run(budget_of(1))
        got += [entry for handout in core.resources.hand_out(core.now_ms, 1 << 20) for entry in handout.entries]
        queue.messages.check_invariants()
    return bodies(got)


def test_what_a_gone_consumer_held_comes_back_in_portions_and_is_given_out_in_its_old_order() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    count = 3 * RELEASED_LENGTH + 1
    everything = [str(number) for number in range(count + 5)]
    core.publish(queue, *everything)
    held = gone_with(core, queue, count)
    core.resources.work.run(budget_of(1))
    assert [entry.holder is None for entry in held] == [at < RELEASED_LENGTH for at in range(count)]
    core.check()
    assert bodies_in_turns(core, queue, core.consumer(queue)) == everything
    assert {entry.delivery_count for entry in held} == {1}
    core.check()


def test_a_consumer_that_seeks_finds_what_comes_back_before_what_is_behind_it() -> None:
    core = Core()
    queue = core.queue("q")
    count = 3 * RELEASED_LENGTH
    core.publish(queue, *(str(number) for number in range(count)), "last wanted")
    gone_with(core, queue, count)
    wanted = {str(count - 2), str(count - 1), "last wanted"}
    seeking = core.consumer(queue, accepts=lambda encoded: body(encoded) in wanted)
    assert bodies_in_turns(core, queue, seeking) == [str(count - 2), str(count - 1), "last wanted"]


def test_with_priorities_nobody_is_served_before_all_is_back() -> None:
    core = Core()
    queue = core.queue("q", priorities=10)
    urgent = [message(f"urgent {number}", priority=9) for number in range(2 * RELEASED_LENGTH)]
    core.publish(queue, message("patient", priority=0), *urgent)
    gone_with(core, queue, len(urgent) + 1)
    got = bodies_in_turns(core, queue, core.consumer(queue))
    assert got == [*(f"urgent {number}" for number in range(len(urgent))), "patient"]


def test_what_comes_back_in_portions_is_back_at_once_and_unwritten_when_the_log_becomes_another_ones() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    core.publish(queue, *(str(number) for number in range(3 * RELEASED_LENGTH)))
    held = gone_with(core, queue, 3 * RELEASED_LENGTH)
    core.resources.work.run(budget_of(1))
    written = core.log.last_lsn
    core.resources.replication.read_only = "this broker is joining, not primary"
    assert (queue.messages.acquired, bool(core.resources.work), core.log.last_lsn) == (0, False, written)
    assert [entry.delivery_count for entry in held[-2:]] == [0, 0], "nothing counts that the log does not say"
    core.check()


def test_a_purge_takes_also_what_is_still_coming_back() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    core.publish(queue, *(str(number) for number in range(3 * RELEASED_LENGTH)))
    gone_with(core, queue, 3 * RELEASED_LENGTH)
    core.resources.work.run(budget_of(1))
    assert core.purge(queue) == 3 * RELEASED_LENGTH
    core.resources.work.run()
    core.check()


def test_nothing_comes_back_to_a_queue_that_is_deleted_meanwhile() -> None:
    core = Core(log_acquisitions=True)
    queue, other = core.queue("q"), core.queue("other")
    for each in (queue, other):
        core.publish(each, *(str(number) for number in range(3 * RELEASED_LENGTH)))
        gone_with(core, each, 3 * RELEASED_LENGTH)
    core.resources.work.run(budget_of(2))
    core.configuration.delete_queue("q")
    while core.resources.work:
        core.resources.work.run(budget_of(1))
    assert other.messages.acquired == 0
    core.check()


def test_what_is_spent_among_it_becomes_dead_letters_and_the_rest_comes_back() -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", delivery_limit=2, alternate_exchange="dlx")
    core.publish(queue, *(str(number) for number in range(2 * RELEASED_LENGTH)))
    consumer = core.consumer(queue)
    core.resources.release(queue, core.take(queue, consumer, RELEASED_LENGTH + 1), failed=True)
    core.leave(queue, consumer)
    gone_with(core, queue, 2 * RELEASED_LENGTH)
    while core.resources.work:
        core.resources.work.run(budget_of(1))
    assert dead.messages.count == RELEASED_LENGTH + 1
    assert (queue.messages.count, queue.messages.acquired) == (RELEASED_LENGTH - 1, 0)
    core.check()


def test_a_connection_that_breaks_with_much_unsettled_gives_it_back_over_several_turns() -> None:
    broker = PairedBroker()
    client, other = broker.connect(), broker.connect()
    sender = other.sender("q")
    count = 4 * RELEASED_LENGTH
    for number in range(count):
        client.send(sender, proton.Message(body=number))
        if number % 500 == 499:
            broker.settle_down()
    broker.settle_down()
    client.receiver("q", credit=count)
    queue = broker.queue("q")
    assert queue.messages.acquired == count
    clock = itertools.count()
    broker.container.clock = lambda: next(clock)
    client.vanish()
    acquired = [queue.messages.acquired]
    assert broker.container.held.unsettled_bytes == 0
    while broker.container.has_work:
        broker.turn()
        acquired.append(queue.messages.acquired)
    assert acquired[0] == count - RELEASED_LENGTH
    assert acquired[-1] == 0
    assert not broker.container.default.garbage
    broker.container.clock = lambda: 0.0
    receiver = other.receiver("q", credit=count)
    assert [each.body for _, each in other.received(receiver)] == list(range(count))


def test_a_transaction_takes_as_many_messages_as_one_unit_may_have_and_the_next_rolls_it_back() -> None:
    broker = PairedBroker(ContainerSettings("test", "0", max_transaction_messages=3))
    client = broker.connect()
    coordinator = client.session.sender("coordinator")
    coordinator.target.type = proton.Terminus.COORDINATOR
    coordinator.open()
    sender = client.sender("q")
    broker.settle_down()
    declare = proton.Described(proton.symbol("amqp:declare:list"), [])
    declared = client.send(coordinator, proton.Message(body=declare))
    broker.settle_down()
    transaction_id = bytes(declared.remote.data[0])
    published = []
    for number in range(4):
        delivery = sender.delivery(str(number))
        delivery.local.data = [transaction_id]
        delivery.update(0x34)
        sender.stream(proton.Message(body=number).encode())
        sender.advance()
        published.append(delivery)
    broker.settle_down()
    assert [delivery.remote_state for delivery in published] == [0x34, 0x34, 0x34, Delivery.REJECTED]
    assert "max-transaction-messages" in published[3].remote.condition.description
    commit = client.send(
        coordinator, proton.Message(body=proton.Described(proton.symbol("amqp:discharge:list"), [transaction_id]))
    )
    broker.settle_down()
    assert (commit.remote_state, broker.queue("q").messages.count) == (Delivery.REJECTED, 0)
    assert "max-transaction-messages" in commit.remote.condition.description


def consumer_of(broker: PairedBroker, count: int) -> tuple[PairedClient, list[Delivery]]:
    """A client that has so many messages of the queue `q`, all there are, and has answered none."""
    queue = broker.container.default.configuration.declare_queue("q", {})
    for number in range(count):
        broker.container.default.resources.publish(queue, Message(bytes(proton.Message(body=number).encode())), 0)
    client = broker.connect()
    receiver = client.receiver("q", credit=count)
    return client, [delivery for delivery, _ in client.received(receiver)]


def test_one_frame_that_settles_very_many_deliveries_is_worked_on_in_portions() -> None:
    broker = PairedBroker()
    client, deliveries = consumer_of(broker, 5 * EVENTS_LENGTH)
    for delivery in deliveries:
        delivery.update(Delivery.RELEASED)
        delivery.settle()
    data = client.transport.peek(client.transport.pending()) or b""
    assert len(data) < 100
    client.peer.receive(data, budget_of(1))
    acquired = [broker.queue("q").messages.acquired]
    while client.peer.is_behind:
        broker.turn()
        client.peer.receive(b"", budget_of(1))
        acquired.append(broker.queue("q").messages.acquired)
    assert {before - after for before, after in itertools.pairwise(acquired)} == {0, EVENTS_LENGTH}
    assert acquired[-1] == 0


def test_what_a_client_has_said_that_is_gone_counts_as_far_as_there_is_time_for_it() -> None:
    broker = PairedBroker()
    client, deliveries = consumer_of(broker, 3 * EVENTS_LENGTH)
    for delivery in deliveries:
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    client.peer.receive(client.transport.peek(client.transport.pending()) or b"", budget_of(2))
    clock = itertools.count(step=1.0)
    broker.container.clock = lambda: next(clock)
    client.vanish()
    while broker.container.has_work:
        broker.turn()
    queue = broker.queue("q")
    assert queue.messages.acquired == 0
    assert EVENTS_LENGTH <= queue.messages.count < EVENTS_LENGTH + 5  # there are other events among them
    assert {entry.delivery_count for entry in queue.messages} == {1}


def test_requests_are_carried_out_one_by_one_as_there_is_time() -> None:
    broker = PairedBroker()
    client = broker.connect()
    sender = client.sender("$management")
    for number in range(4):
        request = {"operation": "CREATE", "type": "queue", "name": f"made {number}"}
        client.send(sender, proton.Message(properties=request, reply_to="nobody"))
    client.peer.receive(client.transport.peek(client.transport.pending()) or b"", budget_of(1))
    queues = broker.container.default.resources.catalog.queues
    made = [len(queues)]
    while client.peer.is_behind:
        client.peer.receive(b"", budget_of(1))
        made.append(len(queues))
    assert made == [1, 2, 3, 4, 4]


def test_links_are_attached_one_by_one_as_there_is_time() -> None:
    broker = PairedBroker()
    client = broker.connect()
    for number in range(3):
        link = client.session.sender(f"l{number}")
        link.target.address = "q"
        link.open()
    client.peer.receive(client.transport.peek(client.transport.pending()) or b"", budget_of(1))
    attached = [len(client.peer.links)]
    while client.peer.is_behind:
        client.peer.receive(b"", budget_of(1))
        attached.append(len(client.peer.links))
    assert attached == [1, 2, 3, 3]


def crowded(count: int = 2000) -> tuple[PairedBroker, PairedClient, Any, list[Delivery]]:
    """A client that has as much unanswered as it may, a link with more credit than that, and what came on it."""
    broker = PairedBroker(ContainerSettings("test", "0", max_unsettled_per_connection=600))
    queue = broker.container.default.configuration.declare_queue("q", {})
    for number in range(count):
        broker.container.default.resources.publish(queue, Message(bytes(proton.Message(body=number).encode())), 0)
    client = broker.connect()
    receiver = client.receiver("q", credit=count)
    return broker, client, receiver, [delivery for delivery, _ in client.received(receiver)]


def test_who_has_much_unanswered_gets_no_more_before_it_answers() -> None:
    broker, client, receiver, deliveries = crowded()
    assert 600 <= len(deliveries) < 600 + HANDOUT_LIMIT
    other = client.receiver("q", credit=10)
    assert client.received(other) == [], "it counts for the connection, not for a link"
    for outcome, number in itertools.product((Delivery.ACCEPTED, Delivery.RELEASED), range(100)):
        delivery = deliveries[number if outcome == Delivery.ACCEPTED else -1 - number]
        delivery.update(outcome)
        delivery.settle()
    broker.settle_down()
    held = len(deliveries) - 200 + len(more := client.received(receiver)) + len(client.received(other))
    assert more
    assert 600 <= held < 600 + HANDOUT_LIMIT + 10
    for delivery, _ in [*more, *((each, None) for each in deliveries[100:-100])]:
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
    broker.settle_down()
    assert client.peer.window.unsettled == broker.queue("q").messages.acquired >= 600


@pytest.mark.parametrize("how", ["at once", "answers second", "browser", "rejected"])
def test_what_is_answered_in_any_way_makes_room(how: str) -> None:
    broker = PairedBroker(ContainerSettings("test", "0", max_unsettled_per_connection=10))
    queue = broker.container.default.configuration.declare_queue("q", {})
    for number in range(1000):
        broker.container.default.resources.publish(queue, Message(bytes(proton.Message(body=number).encode())), 0)
    client = broker.connect()
    link = client.session.receiver("in")
    link.source.address = "q"
    if how == "answers second":
        link.rcv_settle_mode = proton.Link.RCV_SECOND
    if how == "browser":
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.open()
    link.flow(1000)
    broker.settle_down()
    got = 0
    while found := client.received(link):
        got += len(found)
        for delivery, _ in found:
            delivery.update(Delivery.REJECTED if how == "rejected" else Delivery.ACCEPTED)
            if how != "answers second":
                delivery.settle()
        broker.settle_down()
    assert (got, client.peer.window.unsettled) == (1000, 0)


def test_a_drain_is_answered_also_where_answers_are_waited_for() -> None:
    broker, client, receiver, deliveries = crowded()
    receiver.drain(0)
    broker.settle_down()
    assert (receiver.credit, client.received(receiver)) == (0, [])
    assert broker.queue("q").messages.count == 2000
    assert len(deliveries) == broker.queue("q").messages.acquired


def test_a_link_that_ends_makes_room_for_the_others() -> None:
    broker, client, receiver, _ = crowded()
    other = client.receiver("q", credit=10)
    receiver.close()
    broker.settle_down()
    assert [message.body for _, message in client.received(other)] == list(range(10))
    assert client.peer.window.unsettled == 10


def many_links(count: int) -> tuple[PairedBroker, PairedClient]:
    """A client with so many consumers of one queue, each of which holds a message, and a broker that has time for one
    link a turn."""
    broker = PairedBroker()
    queue = broker.container.default.configuration.declare_queue("q", {})
    client = broker.connect()
    for number in range(count):
        link = client.session.receiver(f"l{number}")
        link.source.address = "q"
        link.open()
        link.flow(2)
    broker.settle_down()
    for number in range(count):
        broker.container.default.resources.publish(queue, Message(bytes(proton.Message(body=number).encode())), 0)
    broker.settle_down()
    assert (len(client.peer.links), queue.messages.acquired) == (count, count)
    clock = itertools.count(step=1.0)
    broker.container.clock = lambda: next(clock)
    return broker, client


@pytest.mark.parametrize("what", ["session", "connection", "queue"])
def test_links_end_one_by_one_as_there_is_time_and_the_client_is_answered_when_all_have(what: str) -> None:
    broker, client = many_links(30)
    queue = broker.queue("q")
    if what == "queue":
        broker.container.default.configuration.delete_queue("q")
    else:
        (client.session if what == "session" else client.connection).close()
    client.exchange()
    left = [len(queue.dispatcher.consumers)]
    while broker.container.has_work:
        ended = proton.Endpoint.REMOTE_CLOSED
        if what != "queue" and left[-1]:
            assert not (client.session.state | client.connection.state) & ended
        broker.turn()
        client.exchange()
        left.append(len(queue.dispatcher.consumers))
    assert {before - after for before, after in itertools.pairwise(left)} <= {0, 1, 2}
    assert left[0] >= 28
    assert left[-1] == 0
    if what != "queue":
        assert (client.session if what == "session" else client.connection).state & ended
        assert (queue.messages.count, queue.messages.acquired) == (30, 0)
        assert {entry.delivery_count for entry in queue.messages} == {0}


def test_a_client_that_has_gone_gets_no_more_while_its_links_end() -> None:
    broker, client = many_links(30)
    queue = broker.queue("q")
    client.vanish()
    for number in range(100):
        broker.container.default.resources.publish(queue, Message(bytes(proton.Message(body=number).encode())), 0)
    while broker.container.has_work:
        broker.turn()
        assert queue.messages.acquired <= 30
    assert (queue.messages.count, queue.messages.acquired, len(queue.dispatcher.consumers)) == (130, 0, 0)
    assert sum(entry.delivery_count for entry in queue.messages) == 30
    broker.container.clock = lambda: 0.0
    other = broker.connect()
    got = [message.body for _, message in other.received(other.receiver("q", credit=200))]
    assert got == [*range(30), *range(100)]


def test_a_connection_that_is_lost_while_the_links_of_its_session_end_gives_all_back_once() -> None:
    broker, client = many_links(30)
    client.session.close()
    client.exchange()
    broker.turn()
    client.vanish()
    while broker.container.has_work:
        broker.turn()
    broker.check_invariants()
    assert (broker.queue("q").messages.acquired, broker.queue("q").messages.count) == (0, 30)
    assert broker.queue("q").dispatcher.consumers == []


def test_a_broker_that_may_write_no_more_ends_all_links_at_once() -> None:
    broker, client = many_links(30)
    client.vanish()
    broker.container.default.resources.replication.read_only = "this broker is joining, not primary"
    assert broker.queue("q").dispatcher.consumers == []
    broker.check_invariants()


def test_very_many_transactions_are_rolled_back_one_by_one_as_there_is_time() -> None:
    broker = PairedBroker()
    queue = broker.container.default.configuration.declare_queue("q", {})
    client = broker.connect()
    consumer = Consumer()
    broker.container.default.resources.subscribe(queue, consumer, "somebody")
    for number in range(20):
        broker.container.default.resources.publish(queue, Message(b"%d" % number), 0)
        transaction_id = client.peer.transactions.declare()
        consumer.credit, consumer.window_bytes = 1, 1000
        (handout,) = broker.container.default.resources.hand_out(0, 1)
        transaction = client.peer.transactions._open[transaction_id]
        client.peer.transactions.join(transaction, broker.container.default)
        transaction.accept(queue, handout.entries[0], None)
    clock = itertools.count(step=1.0)
    broker.container.clock = lambda: next(clock)
    client.vanish()
    acquired = [queue.messages.acquired]
    while broker.container.has_work:
        broker.turn()
        acquired.append(queue.messages.acquired)
    assert {before - after for before, after in itertools.pairwise(acquired)} <= {0, 1, 2}
    assert acquired[0] >= 17
    assert acquired[-1] == 0
