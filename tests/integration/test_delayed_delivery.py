"""Messages that are due later: of one broker and through a proxy, after a failover, after a restart, and in a group."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message, symbol, timestamp

from blocking_client import BlockingClient, LocalTransaction, Management, bodies
from running_broker import RunningBroker
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

SHORT_MS = 300
LONG_MS = 3_600_000


def due(body: str, after_ms: int = SHORT_MS, **fields: Any) -> Message:
    """By the time of day, as JMS has it."""
    at = timestamp(int(time.time() * 1000) + after_ms)
    return Message(body, annotations={symbol("x-opt-delivery-time"): at}, **fields)


def delayed(body: str, by_ms: int = SHORT_MS, **fields: Any) -> Message:
    return Message(body, annotations={symbol("x-opt-delivery-delay"): by_ms}, **fields)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("make", [due, delayed])
def test_a_message_comes_when_it_is_due_and_what_was_sent_behind_it_before(
    client: BlockingClient, address: str, make: Any, durable: bool
) -> None:
    began_s = time.monotonic()
    receiver = client.receiver(address, 10)
    assert {outcome.state for outcome in client.send(address, make("later", durable=durable), "now")} == {
        Delivery.ACCEPTED
    }
    assert bodies(client.fetch(receiver, 2)) == ["now", "later"]
    assert time.monotonic() - began_s >= SHORT_MS / 1000


def test_the_connection_offers_what_jms_asks_for(client: BlockingClient, address: str) -> None:
    offered = client.connection.conn.remote_offered_capabilities or ()
    assert "DELAYED_DELIVERY" in map(str, offered)


def test_nonsense_is_refused_and_the_link_goes_on(client: BlockingClient, address: str) -> None:
    sender = client.sender(address)
    for by_ms in (-1, 10**18, "soon"):
        outcome = client.offer(sender, delayed("x", by_ms))  # type: ignore[arg-type]
        assert (outcome.state, outcome.condition) == (Delivery.REJECTED, "amqp:invalid-field")
    assert client.offer(sender, delayed("m")).state == Delivery.ACCEPTED
    assert bodies(client.fetch(client.receiver(address, 1), 1)) == ["m"]


def test_through_exchanges_relays_and_transactions(
    client: BlockingClient, management: Management, address: str
) -> None:
    management.create_queue(address)
    management.create_exchange(f"{address}-x", "fanout")
    management.bind(f"{address}-x", address)
    receiver = client.receiver(address, 10)
    assert client.offer(client.sender(f"{address}-x"), delayed("by exchange", 200)).state == Delivery.ACCEPTED
    assert client.offer(client.sender(None), delayed("by relay", 300, address=address)).state == Delivery.ACCEPTED
    sender = client.sender(address)
    transaction = LocalTransaction(client)
    transaction.send(sender, delayed("in a transaction", 400))
    assert transaction.commit() == "committed"
    found = bodies(client.fetch(receiver, 3))
    assert sorted(found) == ["by exchange", "by relay", "in a transaction"]


def test_management_shows_how_many_wait_and_drops_them(
    client: BlockingClient, management: Management, address: str
) -> None:
    management.create_queue(address)
    client.send(address, delayed("a", LONG_MS), delayed("b", 2 * LONG_MS), "c")
    facts = management.queue(address)
    assert facts is not None
    assert (facts["messages"], facts["scheduled"]) == (3, 2)
    assert facts["next_due_ms"] - time.time() * 1000 <= LONG_MS
    assert bodies(client.browse(address)) == ["c"]
    assert management.ask("PURGE", type="queue", name=address).body == {"purged": 3}
    assert management.messages(address) == 0


def test_what_failed_comes_again_after_a_while(client: BlockingClient, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.redelivery_delay_ms": SHORT_MS})
    client.send(address, "poison", "good")
    receiver = client.receiver(address, 1)
    (message,) = client.fetch(receiver, 1, None)
    began_s = time.monotonic()
    receiver.fetcher.unsettled[0].local.failed = True
    receiver.release(delivered=True)
    receiver.flow(2)
    good, again = client.fetch(receiver, 2)
    assert (message.body, good.body, again.body, again.delivery_count) == ("poison", "good", "poison", 1)
    assert time.monotonic() - began_s >= SHORT_MS / 1000


def test_a_message_is_told_how_long_it_lives_yet(client: BlockingClient, address: str) -> None:
    client.send(address, Message("m", ttl=3600.0), delayed("later"))
    receiver = client.receiver(address, 1)
    (ttl,) = [message.ttl for message in client.fetch(receiver, 1)]
    assert 0 < ttl <= 3600
    assert bodies(client.fetch(receiver, 1)) == ["later"]


def test_what_has_expired_by_its_absolute_time_is_not_delivered(client: BlockingClient, address: str) -> None:
    client.send(address, Message("late", expiry_time=time.time() - 60), Message("m", expiry_time=time.time() + 3600))
    assert bodies(client.consume(address)) == ["m"]


def test_the_next_primary_knows_what_is_due_and_when(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form(0)
        with BlockingClient(cluster.urls[0]) as client:
            client.send("q", delayed("far", LONG_MS), due("soon", 1000, durable=True), "now")
        cluster.kill(0)
        cluster.promote(1)
        with BlockingClient(cluster.urls[1]) as client:
            assert sorted(bodies(client.fetch(client.receiver("q", 10), 2))) == ["now", "soon"]
            facts = Management(client).queue("q")
            assert facts is not None
            assert (facts["messages"], facts["scheduled"]) == (1, 1)


def test_a_backup_that_comes_later_knows_it_too(tmp_path: Path) -> None:
    with RunningCluster(tmp_path) as cluster:
        cluster.form(0)
        cluster.kill(1)
        with BlockingClient(cluster.urls[0]) as client:
            client.send("q", delayed("far", LONG_MS), due("soon", 500), *map(str, range(50)))
        cluster.restart(1)
        cluster.wait_state(1, "ready")
        cluster.kill(0)
        cluster.promote(1)
        with BlockingClient(cluster.urls[1]) as client:
            assert sorted(bodies(client.fetch(client.receiver("q", 100), 51))) == sorted(["soon", *map(str, range(50))])
            facts = Management(client).queue("q")
            assert facts is not None
            assert (facts["messages"], facts["scheduled"]) == (1, 1)


def test_a_restarted_broker_has_it_from_its_store(tmp_path: Path) -> None:
    settings = {"data-dir": str(tmp_path / "data")}
    with RunningBroker(settings) as broker, BlockingClient(broker.url) as client:
        client.send(
            "q", delayed("far", LONG_MS, durable=True), due("soon", 300, durable=True), Message("now", durable=True)
        )
        broker.stop()
    with RunningBroker(settings) as broker, BlockingClient(broker.url) as client:
        assert sorted(bodies(client.fetch(client.receiver("q", 10), 2))) == ["now", "soon"]
        facts = Management(client).queue("q")
        assert facts is not None
        assert (facts["messages"], facts["scheduled"]) == (1, 1)


def test_an_exchange_hands_them_on_to_other_sets(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, settings={"ha": {"clients": "proxy"}}) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred=cluster.broker(1).name)
        wait_whole(cluster, 0, "orders")
        create_queue(cluster, 0, "q", "orders")
        with BlockingClient(cluster.urls[0]) as client, BlockingClient(cluster.urls[2]) as other:
            management = Management(client)
            management.create_exchange("x", "fanout")
            management.bind("x", "q")
            receiver = other.receiver("q", 10)
            client.send("x", delayed("later"), "now")
            assert bodies(other.fetch(receiver, 2)) == ["now", "later"]
