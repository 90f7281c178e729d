"""Who gets a message, as clients see it: groups, priorities of consumers, single ones, and what is undeliverable."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Link, Message, int32, symbol
from proton.reactor import LinkOption
from proton.utils import LinkDetached

from blocking_client import BlockingClient, Management, bodies
from running_cluster import RunningCluster

Connect = Callable[..., BlockingClient]
LAST = 0xFFFFFFFF


class Asks(LinkOption):
    """Properties of an attach."""

    def __init__(self, **properties: Any) -> None:
        self._properties = properties

    def apply(self, link: Link) -> None:
        """Called by Proton."""
        link.properties = {symbol(name.replace("_", ":")): value for name, value in self._properties.items()}


def of(group: str, *texts: str, sequence: int = 0) -> list[Message]:
    return [Message(text, group_id=group, group_sequence=sequence) for text in texts]


def arrived(client: BlockingClient, receiver: Any) -> list[str]:
    """What has come so far, unanswered."""
    client.round_trip()
    return [receiver.fetcher.pop().body for _ in range(receiver.fetcher.has_message)]


def _has(receiver: Any, count: int) -> bool:
    return bool(receiver.fetcher.has_message == count)


def undeliverable(receiver: Any) -> None:
    delivery = receiver.fetcher.unsettled.popleft()
    delivery.local.undeliverable = True
    delivery.update(Delivery.MODIFIED)
    delivery.settle()


def test_groups_are_shared_by_consumers_and_each_is_in_order(connect: Connect, address: str) -> None:
    one, other, publisher = connect(), connect(), connect()
    first, second = one.receiver(address, 50), other.receiver(address, 50)
    one.round_trip()
    other.round_trip()
    publisher.send(address, *(each for n in range(5) for group in "abcd" for each in of(group, f"{group}{n}")))
    found = arrived(one, first), arrived(other, second)
    assert sorted(map(len, found)) == [10, 10]
    for texts in found:
        for group in {text[0] for text in texts}:
            assert [text for text in texts if text[0] == group] == [f"{group}{n}" for n in range(5)]


def test_a_group_goes_on_at_another_consumer_when_its_own_has_gone(connect: Connect, address: str) -> None:
    one, other = connect(), connect()
    one.send(address, *of("a", "a0", "a1", "a2"))
    first = one.receiver(address, 2)
    one.wait(lambda: first.fetcher.has_message == 2)
    second = other.receiver(address, 10)
    assert arrived(other, second) == []
    first.close()
    assert bodies(other.fetch(second, 3)) == ["a0", "a1", "a2"]


def test_a_connection_that_breaks_gives_its_groups_up_in_order(connect: Connect, address: str) -> None:
    one, other = connect(), connect()
    one.send(address, *of("a", "a0", "a1"))
    first = one.receiver(address, 1)
    one.wait(lambda: first.fetcher.has_message)
    second = other.receiver(address, 10)
    assert arrived(other, second) == []
    one.break_connection()
    messages = other.fetch(second, 2)
    assert bodies(messages) == ["a0", "a1"]
    assert not messages[0].first_acquirer


def test_a_group_that_its_publisher_closes_is_for_anybody(connect: Connect, address: str) -> None:
    one, other = connect(), connect()
    one.send(address, *of("a", "a0"), *of("a", "a1", sequence=LAST), *of("a", "a2"))
    first, second = one.receiver(address, 2), other.receiver(address, 5)
    one.wait(lambda: first.fetcher.has_message == 2)
    assert arrived(other, second) == []
    one.fetch(first, 2)
    one.round_trip()
    assert bodies(other.fetch(second, 1)) == ["a2"]


def test_a_queue_may_be_told_to_know_no_groups(connect: Connect, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.message_groups": False})
    one, other = connect(), connect()
    one.send(address, *of("a", *(f"a{n}" for n in range(10))))
    assert len(one.fetch(one.receiver(address, 5), 5, None)) == len(other.fetch(other.receiver(address, 5), 5, None))


def test_a_very_long_id_is_an_id(connect: Connect, address: str) -> None:
    one, other = connect(), connect()
    first, second = one.receiver(address, 9), other.receiver(address, 9)
    one.round_trip()
    other.round_trip()
    for n in range(2):
        one.send(address, *of("x" * 1_000_000 + "y", f"y{n}"), *of("x" * 1_000_000 + "z", f"z{n}"))
    for client, receiver in ((one, first), (other, second)):  # a megabyte may still be on its way behind a round trip
        client.wait(partial(_has, receiver, 2))
    assert sorted([arrived(one, first), arrived(other, second)]) == [["y0", "y1"], ["z0", "z1"]]


def test_groups_outlive_the_primary(tmp_path: Path) -> None:
    settings = {"ha": {"clients": "proxy"}}
    with RunningCluster(tmp_path, settings=settings) as cluster:
        cluster.form(0)
        with BlockingClient(cluster.urls[0]) as client:
            client.send("q", *(each for n in range(3) for group in "ab" for each in of(group, f"{group}{n}")))
            held = client.receiver("q", 2)
            client.wait(lambda: held.fetcher.has_message == 2)
            cluster.kill(0)
        cluster.promote(1, force=True)
        cluster.wait_state(1, "primary")
        with BlockingClient(cluster.urls[1]) as one, BlockingClient(cluster.urls[2]) as other:
            first, second = one.receiver("q", 1), other.receiver("q", 6)
            one.wait(lambda: first.fetcher.has_message)
            other.wait(lambda: second.fetcher.has_message >= 3)
            (own,), rest = arrived(one, first), arrived(other, second)
            assert own[1] == "0"
            assert [text for text in rest if text[0] == own[0]] == []
            assert [text[1] for text in rest] == ["0", "1", "2"]
            assert bodies(one.fetch(first, 2)) == [f"{own[0]}1", f"{own[0]}2"]


# --- who is first


def test_a_single_active_consumer_is_followed_by_the_next(
    connect: Connect, management: Management, address: str
) -> None:
    management.create_queue(address, {"qpid.single_active_consumer": True})
    one, other = connect(), connect()
    first = one.receiver(address, 10)
    one.round_trip()
    second = other.receiver(address, 10)
    other.round_trip()
    one.send(address, "a", "b")
    assert (arrived(one, first), arrived(other, second)) == (["a", "b"], [])
    first.close()
    assert bodies(other.fetch(second, 2)) == ["a", "b"]


@pytest.mark.parametrize("name", ["priority", "rabbitmq_priority"])
def test_a_consumer_of_a_higher_priority_is_first(connect: Connect, address: str, name: str) -> None:
    one, other = connect(), connect()
    low = one.receiver(address, 10)
    high = other.receiver(address, 2, Asks(**{name: int32(5)}))
    assert high.link.remote_properties == {name.replace("_", ":"): 5}
    other.round_trip()
    one.round_trip()
    one.send(address, "a", "b", "c")
    assert (arrived(other, high), arrived(one, low)) == (["a", "b"], ["c"])


@pytest.mark.parametrize(
    "asked", [{"priority": "high"}, {"priority": 1 << 40}, {"priority": 1, "rabbitmq_priority": 1}, {"exclusive": 1}]
)
def test_what_makes_no_sense_is_refused(client: BlockingClient, address: str, asked: dict[str, object]) -> None:
    with pytest.raises(LinkDetached, match="invalid-field"):
        client.receiver(address, 1, Asks(**asked))


def test_an_exclusive_consumer_is_alone(connect: Connect, address: str) -> None:
    one, other = connect(), connect()
    alone = one.receiver(address, 1, Asks(exclusive=True))
    assert alone.link.remote_properties == {"exclusive": True}
    with pytest.raises(LinkDetached, match="exclusive consumer"):
        other.receiver(address)
    alone.close()
    other.receiver(address)
    with pytest.raises(LinkDetached, match="has to be alone"):
        one.receiver(address, 1, Asks(exclusive=True))


def test_what_is_undeliverable_here_goes_to_another_link(connect: Connect, address: str) -> None:
    one, other = connect(), connect()
    one.send(address, "a", "b")
    first = one.receiver(address, 1)
    assert bodies(one.fetch(first, 1, None)) == ["a"]
    undeliverable(first)
    assert bodies(one.fetch(first, 1)) == ["b"]
    first.link.flow(1)
    assert arrived(one, first) == [], "it waits for somebody else"
    (message,) = other.fetch(other.receiver(address), 1)
    assert (message.body, message.delivery_count, message.first_acquirer) == ("a", 0, False)
