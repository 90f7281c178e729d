"""What queues can be told to do: limits, orders, times, owners, and where the unwanted goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from proton import Delivery, Described, Message, symbol
from proton.reactor import DynamicNodeProperties
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies

Connect = Callable[..., BlockingClient]


# --- what nobody wants


@pytest.fixture
def dead_letters(management: Management, address: str) -> str:
    """A queue with a delivery limit of two, and the queue where its dead letters go."""
    management.create_exchange(f"{address}-dead", "fanout")
    management.create_queue(f"{address}-letters")
    management.bind(f"{address}-dead", f"{address}-letters")
    arguments = {"qpid.alternate_exchange": f"{address}-dead", "qpid.delivery_limit": 2}
    management.create_queue(address, arguments)
    return f"{address}-letters"


def test_what_fails_too_often_becomes_a_dead_letter(client: BlockingClient, address: str, dead_letters: str) -> None:
    client.send(address, Message("poison", id="p", properties={"a": 1}), "good")
    for attempt in range(2):
        receiver = client.receiver(address, 1)
        (message,) = client.fetch(receiver, 1, None)
        assert (message.body, message.delivery_count) == ("poison", attempt)
        receiver.fetcher.unsettled[0].local.failed = True
        receiver.release(delivered=True)
        receiver.close()
    assert bodies(client.consume(address)) == ["good"]
    (letter,) = client.consume(dead_letters)
    assert (letter.body, letter.id, letter.properties, letter.delivery_count) == ("poison", "p", {"a": 1}, 0)


def test_what_is_rejected_becomes_a_dead_letter_at_once(
    client: BlockingClient, address: str, dead_letters: str
) -> None:
    client.send(address, "a", "b")
    receiver = client.receiver(address, 1)
    client.fetch(receiver, 1, Delivery.REJECTED)
    receiver.close()
    assert bodies(client.consume(dead_letters)) == ["a"]
    assert bodies(client.consume(address)) == ["b"]


def test_releasing_never_makes_a_dead_letter(client: BlockingClient, address: str, dead_letters: str) -> None:
    client.send(address, "a")
    receiver = client.receiver(address, 0)
    for _ in range(5):
        client.fetch(receiver, 1, Delivery.RELEASED)
    receiver.close()
    assert bodies(client.browse(dead_letters)) == []
    assert bodies(client.consume(address)) == ["a"]


def test_connections_that_break_count_against_the_limit(
    client: BlockingClient, connect: Connect, address: str, dead_letters: str
) -> None:
    client.send(address, "kills its consumers")
    watcher = client.receiver(dead_letters, 1)
    for _ in range(2):
        victim = connect()
        victim.fetch(victim.receiver(address, 1), 1, None)
        victim.break_connection()
    assert bodies(client.fetch(watcher, 1)) == ["kills its consumers"]


def test_a_deleted_queue_leaves_its_messages_to_the_alternate_exchange(
    client: BlockingClient, management: Management, address: str, dead_letters: str
) -> None:
    client.send(address, *"abc")
    management.delete_queue(address)
    assert bodies(client.consume(dead_letters)) == ["a", "b", "c"]


# --- limits


@pytest.mark.parametrize("limit", [{"qpid.max_count": 3}, {"qpid.max_size": 3 * 1020}])
def test_a_full_queue_refuses_and_says_why(
    client: BlockingClient, management: Management, address: str, limit: dict[str, object]
) -> None:
    management.create_queue(address, limit)
    sender = client.sender(address)
    messages = [Message(f"{n}" * 990) for n in range(4)]
    *fit, refused = [client.offer(sender, message) for message in messages]
    assert {outcome.state for outcome in fit} == {Delivery.ACCEPTED}
    assert (refused.state, refused.condition) == (Delivery.REJECTED, "amqp:resource-limit-exceeded")
    assert address in refused.description
    client.fetch(client.receiver(address, 1), 1)
    client.round_trip()
    assert client.offer(sender, messages[3]).state == Delivery.ACCEPTED
    assert [body[0] for body in bodies(client.consume(address))] == ["1", "2", "3"]


def test_a_ring_keeps_the_newest(client: BlockingClient, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.max_count": 3, "qpid.policy_type": "ring"})
    assert {outcome.state for outcome in client.send(address, *"abcdefg")} == {Delivery.ACCEPTED}
    assert bodies(client.consume(address)) == ["e", "f", "g"]


def test_a_ring_counts_what_was_accepted_before_as_gone(
    client: BlockingClient, management: Management, address: str
) -> None:
    management.create_queue(address, {"qpid.max_count": 2, "qpid.policy_type": "ring"})
    client.send(address, *"ab")
    receiver, sender = client.receiver(address, 1), client.sender(address)
    client.fetch(receiver, 1, None)
    client.write_together(receiver.accept, lambda: sender.link.send(Message("c")))
    client.round_trip()
    assert bodies(client.consume(address)) == ["b", "c"]


def test_a_ring_does_not_drop_what_a_consumer_has(client: BlockingClient, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.max_count": 2, "qpid.policy_type": "ring"})
    client.send(address, *"ab")
    receiver = client.receiver(address, 1)
    assert bodies(client.fetch(receiver, 1, None)) == ["a"]
    client.send(address, *"cd")
    receiver.close()
    assert bodies(client.consume(address)) == ["a", "d"]


# --- orders


def test_urgent_messages_come_first(client: BlockingClient, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.priorities": 10})
    priorities = [4, 0, 9, 4, 7, 0, 9]
    client.send(address, *(Message(f"{priority}-{n}", priority=priority) for n, priority in enumerate(priorities)))
    assert bodies(client.consume(address)) == ["9-2", "9-6", "7-4", "4-0", "4-3", "0-1", "0-5"]


def test_a_fair_share_lets_everybody_through(client: BlockingClient, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.priorities": 10, "qpid.fairshare": 2})
    client.send(address, Message("low", priority=1), *(Message(n, priority=9) for n in range(5)))
    found = bodies(client.consume(address))
    assert sorted(map(str, found)) == ["0", "1", "2", "3", "4", "low"]
    assert found.index("low") == 2


def test_a_last_value_queue_keeps_one_of_each(client: BlockingClient, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.last_value_queue_key": "stock"})
    quotes = [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("a", 3)]
    client.send(address, *(Message(f"{stock}={price}", properties={"stock": stock}) for stock, price in quotes))
    assert sorted(bodies(client.browse(address))) == ["a=3", "b=1", "c=1"]


# --- times


def test_a_message_that_is_too_old_never_arrives(client: BlockingClient, management: Management, address: str) -> None:
    client.send(address, Message("fleeting", ttl=0.05), Message("long", ttl=60), "eternal")
    wait_for(lambda: management.messages(address) == 2)
    kept = client.consume(address)
    assert bodies(kept) == ["long", "eternal"]
    assert kept[0].ttl == 60


def test_a_queue_can_limit_the_age_of_all(client: BlockingClient, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.message_ttl_ms": 50})
    client.send(address, "a", Message("b", ttl=60))
    wait_for(lambda: management.messages(address) == 0)
    assert bodies(client.consume(address)) == []


def wait_for(condition: Callable[[], bool], attempts: int = 100_000) -> None:
    """Ask the broker again and again: it tells nobody of a message that expires."""
    if not any(condition() for _ in itertools.repeat(None, attempts)):
        raise AssertionError("it never came true")


# --- owners and ends


def test_an_exclusive_queue_has_one_connection_at_a_time(
    client: BlockingClient, connect: Connect, management: Management, address: str
) -> None:
    management.create_queue(address, {"qpid.exclusive": True})
    receiver = client.receiver(address, 0)
    client.receiver(address, 0)  # of the same connection
    with pytest.raises(LinkDetached) as refused:
        connect().receiver(address, 0)
    assert refused.value.condition == "amqp:resource-locked"
    receiver.close()
    client.close()
    connect().receiver(address, 0)


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    client: BlockingClient, connect: Connect, management: Management, address: str
) -> None:
    management.create_queue(address, {"qpid.auto_delete": True})
    client.send(address, "a")
    assert management.messages(address) == 1  # it waits for its first consumer
    first, second = client.receiver(address, 0), connect().receiver(address, 0)
    first.close()
    assert management.messages(address) == 1
    second.close()
    wait_for(lambda: management.queue(address) is None)


def test_an_auto_delete_queue_can_wait_for_its_consumer_to_come_back(
    client: BlockingClient, management: Management, address: str
) -> None:
    management.create_queue(address, {"qpid.auto_delete": True, "qpid.auto_delete_delay_s": 0.3})
    client.receiver(address, 0).close()
    assert management.messages(address) == 0
    back = client.receiver(address, 0)
    client.send(address, "still here")
    assert bodies(client.drain(back)) == ["still here"]
    back.close()
    wait_for(lambda: management.queue(address) is None)


def test_a_client_can_say_what_kind_of_queue_it_wants(client: BlockingClient, management: Management) -> None:
    wish = DynamicNodeProperties(
        {
            "qpid.max_count": 1,
            "lifetime-policy": Described(symbol("amqp:delete-on-no-links:list"), []),
        }
    )
    receiver = client.receiver(None, 0, wish, dynamic=True)
    name = receiver.link.remote_source.address
    first, second = client.send(name, "a", "b")
    assert (first.state, second.state) == (Delivery.ACCEPTED, Delivery.REJECTED)


def test_links_of_a_deleted_queue_are_told(
    client: BlockingClient, connect: Connect, management: Management, address: str
) -> None:
    publisher = connect()
    receiver, sender = client.receiver(address, 1), publisher.sender(address)
    management.delete_queue(address)
    with pytest.raises(LinkDetached) as told:
        client.wait(lambda: receiver.link.state & receiver.link.REMOTE_CLOSED)
    assert told.value.condition == "amqp:resource-deleted"
    sender.link.send(Message("late"))
    with pytest.raises(LinkDetached) as told:
        publisher.wait(lambda: sender.link.state & sender.link.REMOTE_CLOSED)
    assert told.value.condition == "amqp:resource-deleted"
    client.send(address, "a new queue of that name")
    assert bodies(client.consume(address)) == ["a new queue of that name"]


def test_answers_for_a_deleted_queue_change_nothing(
    client: BlockingClient, management: Management, address: str
) -> None:
    client.send(address, *"ab")
    receiver = client.receiver(address, 2)
    client.fetch(receiver, 2, None)
    management.delete_queue(address)
    receiver.accept()
    receiver.fetcher.unsettled[0].update(Delivery.RELEASED)
    with pytest.raises(LinkDetached):
        client.wait(lambda: False)
    client.send(address, "new")
    assert bodies(client.consume(address)) == ["new"]
