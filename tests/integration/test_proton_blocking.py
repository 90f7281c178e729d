"""Proton's blocking client: send, receive, answer, and what the broker makes of each answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proton import Delivery, Link, Message, symbol
from proton.reactor import AtMostOnce

from blocking_client import BlockingClient, Management, SettleSecond, bodies

Connect = Callable[..., BlockingClient]
MIB = 1024 * 1024


def test_what_was_sent_first_comes_first(client: BlockingClient, address: str) -> None:
    outcomes = client.send(address, *(str(n) for n in range(100)))
    assert {outcome.state for outcome in outcomes} == {Delivery.ACCEPTED}
    assert bodies(client.consume(address)) == [str(n) for n in range(100)]
    assert client.browse(address) == []


def test_the_tag_of_each_delivery_can_be_read(client: BlockingClient, address: str) -> None:
    client.send(address, *(str(n) for n in range(300)))
    receiver = client.receiver(address, 300)
    client.wait(lambda: len(receiver.fetcher.unsettled) + len(receiver.fetcher.incoming) >= 300)
    tags = {delivery.tag for _, delivery in receiver.fetcher.incoming}
    assert len(tags) == 300


def test_a_message_arrives_as_it_was_sent(client: BlockingClient, address: str) -> None:
    message = Message(
        body={"list": [1, "two", None], "bytes": b"\0\xff"},
        durable=True,
        priority=7,
        subject="subject",
        reply_to="reply",
        id="id",
        correlation_id=17,
        content_type="text/x",
        user_id=b"me",
        group_id="group",
        properties={"color": "red", "size": 3},
        annotations={"x-opt-a": "b"},
    )
    client.send(address, message)
    (found,) = client.consume(address)
    for name in ("body", "durable", "priority", "subject", "reply_to", "id", "correlation_id", "content_type"):
        assert getattr(found, name) == getattr(message, name), name
    assert (found.user_id, found.group_id) == (b"me", "group")
    assert (found.properties, found.annotations) == (message.properties, message.annotations)
    assert (found.first_acquirer, found.delivery_count) == (True, 0)


def test_a_body_may_have_any_shape(client: BlockingClient, address: str) -> None:
    shapes = ["", b"", b"data", None, 0, [1, 2], {"a": 1}, "é" * 300, True, 1.5]
    client.send(address, *(Message(shape) for shape in shapes))
    assert bodies(client.consume(address)) == shapes


def test_delivery_annotations_are_for_the_broker_alone(client: BlockingClient, address: str) -> None:
    message = Message("m", annotations={symbol("x-opt-kept"): "yes"})
    message.instructions = {symbol("x-opt-secret"): "for the broker"}
    client.send(address, message)
    (found,) = client.consume(address)
    assert (dict(found.annotations), dict(found.instructions or {})) == ({"x-opt-kept": "yes"}, {})


@pytest.mark.parametrize("frame_bytes", [512, 4096, 65536, 1_000_000])
def test_a_message_larger_than_a_frame_comes_through(connect: Connect, address: str, frame_bytes: int) -> None:
    sizes = [frame_bytes - 1, frame_bytes, frame_bytes + 1, 3 * frame_bytes, 200_000]
    narrow, default = connect(max_frame_size=frame_bytes), connect()
    for sender, receiver in ((narrow, default), (default, narrow)):
        sender.send(address, *(Message(size.to_bytes(4, "big") * (size // 4)) for size in sizes))
        found = bodies(receiver.consume(address))
        assert [(len(body), body[:4]) for body in found] == [(s // 4 * 4, s.to_bytes(4, "big")) for s in sizes]


def test_ten_mebibytes_come_through_among_small_messages(
    client: BlockingClient, connect: Connect, address: str
) -> None:
    large = bytes(range(256)) * (10 * MIB // 256)
    client.send(address, "before", Message(large), "after")
    before, found, after = bodies(connect().consume(address))
    assert (before, after) == ("before", "after")
    same = found == large  # apart: pytest would spend minutes on a picture of the difference
    assert same


def test_credit_that_is_given_while_the_socket_is_full_counts_when_it_is_not(
    client: BlockingClient, connect: Connect, address: str
) -> None:
    client.send(address, *[Message(b"x" * 20 * MIB)] * 2)
    slow = connect()
    receiver = slow.receiver(address, 2)
    slow.wait(lambda: receiver.link.current and receiver.link.current.pending)
    receiver.link.flow(1)  # reaches the broker while it has megabytes to write
    assert [len(body) for body in bodies(slow.fetch(receiver, 2))] == [20 * MIB] * 2


# --- credit


def test_without_credit_nothing_comes_and_with_some_no_more_than_that(client: BlockingClient, address: str) -> None:
    client.send(address, *"abcde")
    receiver = client.receiver(address, 0)
    client.send(address, "f")  # the broker had every chance to send something
    assert receiver.fetcher.has_message == 0
    receiver.link.flow(2)
    client.wait(lambda: receiver.fetcher.has_message == 2)
    client.send(address, "g")
    assert bodies(receiver.fetcher.incoming[n][0] for n in range(receiver.fetcher.has_message)) == ["a", "b"]


def test_a_drain_gives_what_there_is_and_then_the_credit_back(client: BlockingClient, address: str) -> None:
    client.send(address, *"abc")
    receiver = client.receiver(address, 0)
    assert bodies(client.drain(receiver)) == ["a", "b", "c"]
    assert receiver.link.credit == 0
    client.send(address, "later")
    assert receiver.fetcher.has_message == 0
    assert bodies(client.drain(receiver)) == ["later"]


def test_prefetched_messages_are_nobody_elses(client: BlockingClient, connect: Connect, address: str) -> None:
    client.send(address, *"abcdef")
    greedy = client.receiver(address, 4)
    client.wait(lambda: greedy.fetcher.has_message == 4)
    assert bodies(connect().consume(address)) == ["e", "f"]
    assert bodies(client.fetch(greedy, 4)) == ["a", "b", "c", "d"]


# --- answers


def test_released_goes_back_to_its_place_and_counts_as_no_failure(client: BlockingClient, address: str) -> None:
    client.send(address, *"abc")
    receiver = client.receiver(address, 2)
    client.fetch(receiver, 2, Delivery.RELEASED)
    receiver.close()
    again = client.consume(address)
    assert bodies(again) == ["a", "b", "c"]
    assert [(m.delivery_count, m.first_acquirer) for m in again] == [(0, False), (0, False), (0, True)]


def test_modified_as_failed_is_counted(client: BlockingClient, address: str) -> None:
    client.send(address, "a")
    for attempt in range(3):
        receiver = client.receiver(address, 1)
        message = receiver.receive()
        assert (message.delivery_count, message.first_acquirer) == (attempt, attempt == 0)
        receiver.fetcher.unsettled[0].local.failed = True
        receiver.release(delivered=True)
        receiver.close()


def test_what_nobody_wants_is_gone(client: BlockingClient, address: str) -> None:
    client.send(address, "a", "b")
    receiver = client.receiver(address, 1)
    assert receiver.receive().body == "a"
    receiver.reject()
    receiver.close()
    assert bodies(client.consume(address)) == ["b"]


def test_what_is_undeliverable_to_one_is_there_for_others(client: BlockingClient, address: str) -> None:
    client.send(address, "a", "b")
    receiver = client.receiver(address, 1)
    assert receiver.receive().body == "a"
    receiver.fetcher.unsettled[0].local.undeliverable = True
    receiver.release(delivered=True)
    assert bodies(client.drain(receiver)) == ["b"]
    receiver.close()
    assert bodies(client.consume(address)) == ["a", "b"]


def test_a_consumer_that_settles_second_hears_that_its_answer_counts(client: BlockingClient, address: str) -> None:
    client.send(address, "a")
    receiver = client.receiver(address, 1, SettleSecond())
    assert receiver.link.remote_rcv_settle_mode == Link.RCV_SECOND
    assert receiver.receive().body == "a"
    delivery = receiver.fetcher.unsettled.popleft()
    delivery.update(Delivery.ACCEPTED)
    client.wait(lambda: delivery.settled)
    assert delivery.remote_state == Delivery.ACCEPTED
    delivery.settle()
    receiver.close()
    assert client.browse(address) == []


def test_a_publisher_that_settles_first_hears_an_outcome_and_then_has_the_broker_settle(
    client: BlockingClient, address: str
) -> None:
    sender = client.sender(address, options=[SettleSecond()])
    assert sender.link.remote_rcv_settle_mode == Link.RCV_SECOND
    delivery = sender.link.send(Message("a"))
    client.wait(lambda: delivery.remote_state == Delivery.ACCEPTED)
    assert not delivery.settled
    delivery.settle()
    assert bodies(client.consume(address)) == ["a"]


def test_at_most_once_needs_no_answers(client: BlockingClient, management: Management, address: str) -> None:
    sender = client.sender(address, options=AtMostOnce())
    for body in "abc":
        assert sender.link.send(Message(body)).settled is False  # the engine's own view: the broker says nothing
    receiver = client.receiver(address, 3, AtMostOnce())
    client.wait(lambda: receiver.fetcher.has_message == 3)
    assert bodies(client.fetch(receiver, 3, None)) == ["a", "b", "c"]
    assert not receiver.fetcher.unsettled
    receiver.close()
    assert management.messages(address) == 0


# --- ends


def test_messages_of_a_broken_connection_come_back_as_failed(
    client: BlockingClient, connect: Connect, address: str
) -> None:
    client.send(address, *"abc")
    broken = connect()
    receiver = broken.receiver(address, 2)
    assert bodies(broken.fetch(receiver, 2, None)) == ["a", "b"]
    broken.break_connection()
    again = client.fetch(client.receiver(address, 3), 3)
    found = {message.body: (message.delivery_count, message.first_acquirer) for message in again}
    assert found == {"a": (1, False), "b": (1, False), "c": (0, True)}


def test_messages_of_a_closed_link_come_back_in_order_and_not_as_failed(client: BlockingClient, address: str) -> None:
    client.send(address, *"abcd")
    receiver = client.receiver(address, 3)
    assert bodies(client.fetch(receiver, 3, None)) == ["a", "b", "c"]
    receiver.fetcher.unsettled.rotate(-1)
    receiver.accept()  # b
    receiver.close()
    again = client.consume(address)
    assert [(m.body, m.delivery_count, m.first_acquirer) for m in again] == [
        ("a", 0, False),
        ("c", 0, False),
        ("d", 0, True),
    ]


def test_messages_of_a_closed_connection_come_back_not_as_failed(
    client: BlockingClient, connect: Connect, address: str
) -> None:
    client.send(address, "a")
    leaving = connect()
    assert leaving.receiver(address, 1).receive().body == "a"
    leaving.close()
    (again,) = client.consume(address)
    assert (again.delivery_count, again.first_acquirer) == (0, False)
