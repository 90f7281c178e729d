"""Local transactions through Proton's client: all of it or nothing, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proton import Delivery, Message
from proton.utils import LinkDetached

from blocking_client import BlockingClient, LocalTransaction, Management, bodies

Connect = Callable[..., BlockingClient]


def test_sends_count_when_they_are_committed(client: BlockingClient, connect: Connect, address: str) -> None:
    work = LocalTransaction(client)
    sender = client.sender(address)
    for body in "abc":
        assert work.send(sender, body).state == 0x34
    other = connect()
    assert other.browse(address) == []
    assert work.commit() == "committed"
    assert bodies(other.consume(address)) == ["a", "b", "c"]


@pytest.mark.parametrize("settle_first", [False, True])
def test_accepts_that_are_rolled_back_leave_the_messages(
    client: BlockingClient, connect: Connect, management: Management, address: str, settle_first: bool
) -> None:
    client.send(address, *"abc")
    work = LocalTransaction(client, settle_before_discharge=settle_first)
    receiver = client.receiver(address, 2)
    client.fetch(receiver, 2, None)
    work.accept(receiver)
    assert management.messages(address) == 3
    assert work.abort() == "aborted"
    receiver.close()
    again = connect().consume(address)
    assert bodies(again) == ["a", "b", "c"]
    assert [message.first_acquirer for message in again] == [False, False, True]


def test_the_broker_settles_what_a_transaction_accepted_once_it_is_committed(
    client: BlockingClient, address: str
) -> None:
    client.send(address, "a")
    work = LocalTransaction(client)
    receiver = client.receiver(address, 1)
    client.fetch(receiver, 1, None)
    (delivery,) = receiver.fetcher.unsettled
    work.accept(receiver)
    assert work.commit() == "committed"
    client.wait(lambda: delivery.settled)
    assert delivery.remote_state == Delivery.ACCEPTED


def test_a_move_between_queues_happens_at_once(client: BlockingClient, management: Management, address: str) -> None:
    client.send(f"{address}-from", *"ab")
    receiver, sender = client.receiver(f"{address}-from", 2), client.sender(f"{address}-to")
    work = LocalTransaction(client)
    for message in client.fetch(receiver, 2, None):
        work.send(sender, message)
    work.accept(receiver)
    assert (management.messages(f"{address}-from"), management.messages(f"{address}-to")) == (2, 0)
    assert work.commit() == "committed"
    assert (management.messages(f"{address}-from"), management.messages(f"{address}-to")) == (0, 2)


def test_transactions_of_one_connection_are_apart(client: BlockingClient, address: str) -> None:
    first, second = LocalTransaction(client), LocalTransaction(client)
    sender = client.sender(address)
    first.send(sender, "first")
    second.send(sender, "second")
    assert (second.commit(), first.abort()) == ("committed", "aborted")
    assert bodies(client.consume(address)) == ["second"]


@pytest.mark.parametrize("settle_first", [False, True])
def test_a_transaction_that_does_not_fit_changes_nothing(
    client: BlockingClient, management: Management, address: str, settle_first: bool
) -> None:
    client.send("plain-" + address, "kept")
    management.create_queue(address, {"qpid.max_count": 2})
    receiver = client.receiver("plain-" + address, 1)
    work = LocalTransaction(client, settle_before_discharge=settle_first)
    sender = client.sender(address)
    for body in "abc":
        work.send(sender, body)
    client.fetch(receiver, 1, None)
    work.accept(receiver)
    assert (work.commit(), work.condition) == ("commit failed", "amqp:transaction:rollback")
    receiver.close()
    assert client.browse(address) == []
    assert bodies(client.browse("plain-" + address)) == ["kept"]


def test_an_unknown_transaction_is_refused(client: BlockingClient, address: str) -> None:
    work = LocalTransaction(client)
    sender = client.sender(address)
    assert work.commit() == "committed"
    delivery = work.transaction.send(sender.link, Message("late"))
    client.wait(lambda: delivery.settled)
    assert delivery.remote_state == Delivery.REJECTED
    assert delivery.remote.condition.name == "amqp:transaction:unknown-id"
    assert (work.commit(), work.condition) == ("commit failed", "amqp:transaction:unknown-id")
    assert client.browse(address) == []


def test_an_accept_in_an_unknown_transaction_costs_its_link(client: BlockingClient, address: str) -> None:
    client.send(address, "a")
    work = LocalTransaction(client)
    work.commit()
    receiver = client.receiver(address, 1)
    client.fetch(receiver, 1, None)
    work.accept(receiver)
    with pytest.raises(LinkDetached) as refused:
        client.wait(lambda: False)
    assert refused.value.condition == "amqp:transaction:unknown-id"
    assert bodies(client.consume(address)) == ["a"]
