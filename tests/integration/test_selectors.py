"""Consumers that want only some of the messages (JMS selectors)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from proton import Message, ulong
from proton.reactor import Copy, Selector
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies

Connect = Callable[..., BlockingClient]


def colored(*colors: str) -> list[Message]:
    return [Message(f"{color}-{n}", properties={"color": color, "n": n}) for n, color in enumerate(colors)]


def test_a_selector_takes_what_it_matches_and_leaves_the_rest_in_order(client: BlockingClient, address: str) -> None:
    client.send(address, *colored("red", "blue", "red", "green"))
    assert bodies(client.consume(address, Selector("color = 'red'"))) == ["red-0", "red-2"]
    assert bodies(client.consume(address)) == ["blue-1", "green-3"]


def test_header_fields_can_be_selected(client: BlockingClient, address: str) -> None:
    client.send(
        address,
        Message("plain"),
        Message("urgent", priority=9),
        Message("typed", subject="order", correlation_id="c1", durable=True),
    )
    assert bodies(client.browse(address, Selector("JMSPriority > 4"))) == ["urgent"]
    assert bodies(client.browse(address, Selector("JMSType = 'order' AND JMSCorrelationID = 'c1'"))) == ["typed"]
    assert bodies(client.browse(address, Selector("amqp.subject = 'order'"))) == ["typed"]


@pytest.mark.parametrize(
    "selector",
    [
        "n IN (1, 3)",
        "n * 2 BETWEEN n + 1 AND 6 AND NOT n = 2",
        "color LIKE 'r\\_d' ESCAPE '\\'",
        "color IS NOT NULL AND (n = 1 OR n - 3 = 0)",
    ],
)
def test_the_grammar_of_jms_is_understood(client: BlockingClient, address: str, selector: str) -> None:
    client.send(address, *(Message(n, properties={"color": "r_d" if n % 2 else "red", "n": n}) for n in range(4)))
    assert bodies(client.browse(address, Selector(selector))) == [1, 3]


UUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


@pytest.mark.parametrize(
    ("correlation_id", "shown"),
    [
        ("text", "text"),
        (ulong(2**64 - 1), f"ID:AMQP_ULONG:{2**64 - 1}"),
        (UUID, f"ID:AMQP_UUID:{UUID}"),
        (b"\x00\xab", "ID:AMQP_BINARY:00AB"),
    ],
)
def test_an_answer_is_found_by_an_id_of_any_type(
    client: BlockingClient, address: str, correlation_id: Any, shown: str
) -> None:
    client.send(address, Message("other", correlation_id="other"), Message("mine", correlation_id=correlation_id))
    (found,) = client.consume(address, Selector(f"JMSCorrelationID = '{shown}'"))
    assert (found.body, found.correlation_id) == ("mine", correlation_id)


def test_a_selector_behind_thousands_of_others_finds_its_message(
    client: BlockingClient, management: Management, address: str
) -> None:
    sender = client.sender(address)
    deliveries = []
    for n in range(5_000):
        client.wait(lambda: sender.link.credit > 0)
        deliveries.append(sender.link.send(Message(n, properties={"color": "blue"})))
    client.wait(lambda: all(delivery.settled for delivery in deliveries))
    client.offer(sender, Message("found", properties={"color": "red"}))
    assert bodies(client.consume(address, Selector("color = 'red'"))) == ["found"]
    assert management.messages(address) == 5_000


@pytest.mark.parametrize("selector", ["color = ", "color = 'red", "1 +", "(((", "color LIKE 5"])
def test_a_malformed_selector_is_refused_and_nothing_else_suffers(
    client: BlockingClient, address: str, selector: str
) -> None:
    with pytest.raises(LinkDetached, match="selector") as refused:
        client.receiver(address, 1, Selector(selector))
    assert refused.value.condition == "amqp:invalid-field"
    client.send(address, "still here")
    assert bodies(client.consume(address)) == ["still here"]


def test_the_broker_says_which_filters_it_applies(client: BlockingClient, address: str) -> None:
    receiver = client.receiver(address, 0, Selector("color = 'red'"), Copy())
    applied = receiver.link.remote_source.filter
    applied.rewind()
    applied.next()
    assert [str(name) for name in applied.get_object()] == ["selector"]
