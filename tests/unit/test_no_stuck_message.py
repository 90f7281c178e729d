"""No message stays in a proxy with nobody to pass it on to: the cases of docs/cluster.md, "No message is stuck"."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedClient
from paired_links import condition, subscribe
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.links.consumer_credit import HELD_S

ACCEPTED = proton.Delivery.ACCEPTED
SELECTOR = "apache.org:selector-filter:string"
DETACH, FRAME_HEAD = b"\x00S\x16", 8
"""How a detach begins, and the bytes of a frame before that."""


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


def attach(proxied: PairedProxy, client: PairedClient, credit: int, name: str = "link", selector: str = "") -> Any:
    """A consumer of `q`."""
    filters = {"selector": (SELECTOR, selector)} if selector else None
    link = subscribe(client, "q", name, filters=filters)
    link.flow(credit)
    proxied.settle_down()
    return link


def publish(proxied: PairedProxy, *texts: str, **properties: Any) -> None:
    messages = [proton.Message(text, properties=properties or None) for text in texts]
    proxied.primary.connect().publish("q", *messages)
    proxied.settle_down()


def holders(proxied: PairedProxy) -> list[bool]:
    """Of each message at the primary, in order: somebody has it."""
    return [entry.holder is not None for entry in proxied.primary.queue("q").messages]


def received_directly(proxied: PairedProxy, credit: int) -> list[str]:
    """What a consumer at the primary itself gets."""
    client = PairedClient(proxied.primary, container="direct")
    return client.bodies(client.receiver("q", credit))


def test_a_message_under_way_to_a_client_that_detaches_goes_to_somebody_else(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, 1)
    with proxied.held_up():
        publish(proxied, "a")
        assert holders(proxied) == [True]
        link.close()
        proxied.settle_down()
    assert holders(proxied) == [False]
    assert received_directly(proxied, 1) == ["a"]


def test_a_message_under_way_to_a_client_that_vanishes_goes_to_somebody_else(proxied: PairedProxy) -> None:
    client = proxied.client()
    attach(proxied, client, 1)
    with proxied.held_up():
        publish(proxied, "a")
        client.vanish()
        proxied.settle_down()
    assert received_directly(proxied, 1) == ["a"]


def test_a_message_under_way_when_the_client_takes_its_credit_back_goes_to_somebody_else(proxied: PairedProxy) -> None:
    proxied.proxy.container.clock = lambda: 0.0
    client = proxied.client()
    link = attach(proxied, client, 1)
    with proxied.held_up():
        publish(proxied, "a")
        link.flow(-1)
        proxied.settle_down()
    assert client.bodies(link) == []
    proxied.proxy.container.clock = lambda: HELD_S
    proxied.settle_down()
    assert holders(proxied) == [False]
    assert received_directly(proxied, 1) == ["a"]


def test_a_drain_is_answered_when_what_was_under_way_has_come(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, 1)
    with proxied.held_up():
        publish(proxied, "a", "b")
        link.drain(1)
        proxied.settle_down()
        assert link.credit > 0
    assert client.bodies(link) == ["a", "b"]
    assert link.credit == 0


def test_after_a_drain_that_the_client_has_taken_back_it_gets_no_more_than_it_gives_credit_for(
    proxied: PairedProxy,
) -> None:
    client = proxied.client()
    link = attach(proxied, client, 1)
    with proxied.held_up():
        publish(proxied, "a", "b")
        link.drain(0)
        proxied.settle_down()
        link.flow(1)  # which drains no more, while the primary's answer to the drain is on its way
        proxied.settle_down()
    assert client.bodies(link) == ["a", "b"]
    publish(proxied, "c", "d")
    link.flow(1)
    proxied.settle_down()
    assert client.bodies(link) == ["c"]
    assert holders(proxied) == [True, True, True, False]


def test_a_message_that_one_clients_proxy_gives_back_is_the_other_ones(proxied: PairedProxy) -> None:
    one, other = proxied.client(container="one"), proxied.client(container="other")
    link, beside = attach(proxied, one, 1), attach(proxied, other, 0)
    publish(proxied, "a")
    beside.flow(1)
    proxied.settle_down()
    assert other.bodies(beside) == []
    link.close()
    proxied.settle_down()
    assert other.bodies(beside) == ["a"]


def test_what_an_old_selector_let_through_is_not_kept_from_a_new_one(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, 5, "before", "colour = 'red'")
    publish(proxied, "1", "2", colour="red")
    link.close()
    again = attach(proxied, client, 5, "after", "colour <> 'blue'")
    assert client.bodies(again) == ["1", "2"]
    assert holders(proxied) == [True, True]


def test_messages_go_back_from_a_proxy_that_is_lost_with_its_clients(proxied: PairedProxy) -> None:
    client = proxied.client()
    attach(proxied, client, 1)
    publish(proxied, "a", "b")
    assert holders(proxied) == [True, False]
    proxied.cut()
    assert received_directly(proxied, 2) == ["a", "b"]


def test_a_message_that_comes_after_the_primary_was_lost_is_not_waited_for(proxied: PairedProxy) -> None:
    client = proxied.client()
    link = attach(proxied, client, 1)
    with proxied.held_up():
        publish(proxied, "a")
        proxied.cut()
    proxied.connect_upstream()
    assert client.bodies(link) == ["a"]
    for delivery, _ in client.received(link):
        delivery.update(ACCEPTED)
    assert condition(link) is None


@pytest.mark.parametrize("drains", [False, True], ids=["credit", "a drain under way"])
def test_a_client_that_is_gone_gets_nothing_again_of_what_its_proxy_gives_back(
    proxied: PairedProxy, drains: bool
) -> None:
    """The end of its link at the primary may come a turn later than what goes back."""
    client = proxied.client()
    link = attach(proxied, client, 5)
    publish(proxied, "a")
    upstream, accepted = proxied.upstream, proxied.accepted
    assert upstream is not None
    assert accepted is not None
    if drains:
        link.flow(-2)
        client.exchange()
        proxied.proxy.turn()
    client.vanish()
    said = upstream.take_output()
    detach = said.rindex(DETACH)
    accepted.receive(said[: detach - FRAME_HEAD])
    proxied.primary.settle_alone()
    assert holders(proxied) == [False]
    accepted.receive(said[detach - FRAME_HEAD :])
    proxied.primary.settle_alone()
    assert received_directly(proxied, 1) == ["a"]
