"""What queues can be told to do: limits, owners, and where the unwanted goes. Orders and times: unit tests."""

from __future__ import annotations

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


def test_what_a_consumer_says_of_a_message_goes_with_it_to_the_next_one_and_to_its_dead_letters(
    client: BlockingClient, address: str, dead_letters: str
) -> None:
    client.send(address, Message("m", annotations={symbol("x-opt-a"): "sent", symbol("x-opt-b"): "sent"}))
    for attempt in (1, 2):
        receiver = client.receiver(address, 1)
        (message,) = client.fetch(receiver, 1, None)
        assert message.annotations.get(symbol("x-opt-a")) == ("sent" if attempt == 1 else "busy 1")
        said = receiver.fetcher.unsettled[0].local
        said.failed, said.annotations = True, {symbol("x-opt-a"): f"busy {attempt}"}
        receiver.release(delivered=True)
        receiver.close()
    (letter,) = client.consume(dead_letters)
    assert letter.annotations[symbol("x-opt-a")] == "busy 2"
    assert letter.annotations[symbol("x-opt-b")] == "sent"


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


# --- owners and ends


@pytest.mark.parametrize(("arguments", "order"), [({}, "99991111"), ({"qpid.fairshare": 2}, "99119911")])
def test_levels_of_priority_come_first_or_take_turns(
    client: BlockingClient, management: Management, address: str, arguments: dict[str, object], order: str
) -> None:
    management.create_queue(address, {"qpid.priorities": 10, **arguments})
    client.send(address, *(Message(str(level), priority=level) for level in (1, 9) for _ in range(4)))
    assert "".join(bodies(client.consume(address))) == order


def test_a_tombstone_takes_the_last_value_of_its_key_away(
    client: BlockingClient, management: Management, address: str
) -> None:
    management.create_queue(address, {"qpid.last_value_queue_key": "key"})
    values = [Message(body, properties={"key": body[0]}) for body in ("a1", "b1", "a2")]
    gone = Message("", properties={"key": "b"}, annotations={symbol("x-opt-qpid-tombstone"): True})
    client.send(address, *values, gone)
    assert bodies(client.browse(address)) == ["a2"]
    assert bodies(client.consume(address)) == ["a2"]
    assert management.messages(address) == 0


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
