"""Clients of brokers that relay their links (`ha.clients: proxy`) while a primary dies or moves: a pause, and no more.

What relaying is, link by link, the unit tests of relayed links, transactions, sessions and nodes show in memory; all
that clients do to a served broker is also done by way of a proxy (`served_by`); and what many clients of many brokers
have of each other when those die is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message

from blocking_client import BlockingClient, LocalTransaction, bodies
from failover_load import FailoverLoad
from running_cluster import RunningCluster
from sets_cluster import change, create_queue, create_set, wait_whole

SETTINGS = {"ha": {"failure-timeout": "1s", "clients": "proxy"}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """One set; the first broker leads."""
    with RunningCluster(tmp_path, settings=SETTINGS) as cluster:
        cluster.form()
        yield cluster


@pytest.fixture
def attended(tmp_path: Path) -> Iterator[RunningCluster]:
    """Agents see to it that one leads."""
    with RunningCluster(tmp_path, agents=True, settings=SETTINGS) as cluster:
        cluster.wait_whole()
        yield cluster


def assert_it_was_a_pause(load: FailoverLoad) -> None:
    """Each message came once, in order, and neither client was told of anything or has had to come again."""
    audit = load.finish()
    assert load.interruptions == []
    assert load.unconfirmed == 0
    assert audit.is_flawless, audit
    assert (audit.refused, audit.duplicates_announced) == (0, 0), audit


def test_queues_of_any_set_are_served_by_every_broker(cluster: RunningCluster) -> None:
    create_set(cluster, "orders", preferred=cluster.broker(1).name)
    create_set(cluster, "audit", preferred=cluster.broker(2).name)
    wait_whole(cluster, 0, "orders", "audit")
    create_queue(cluster, 0, "q-orders", "orders")
    create_queue(cluster, 0, "q-audit", "audit")
    for queue in ("q-orders", "q-audit", "q-default"):
        for at, url in enumerate(cluster.urls):
            with BlockingClient(url) as client, BlockingClient(cluster.urls[at - 1]) as other:
                assert client.send(queue, f"from {at}")[0].state == Delivery.ACCEPTED
                to_any = client.offer(client.sender(None), Message(f"by relay from {at}", address=queue))
                assert to_any.state == Delivery.ACCEPTED
                sent = [f"from {at}", f"by relay from {at}"]
                assert bodies(other.browse(queue)) == sent
                assert bodies(other.consume(queue)) == sent


def test_what_an_operator_moves_and_redirects_at_a_proxy_is_passed_on_and_comes_to_consumers_there(
    cluster: RunningCluster,
) -> None:
    primary, proxy = cluster.broker(0), cluster.broker(1)
    primary.ask("exchanges", action="create", name="x", kind="direct")
    for queue in ("from", "red", "copied"):
        primary.ask("queues", action="create", name=queue, arguments={})
    primary.ask("exchanges", action="bind", name="x", queue="red", key="red")
    asked: list[dict[str, Any]] = [
        {"action": "copy", "name": "from", "to": "copied"},
        {"action": "redirect", "name": "from", "exchange": "x"},
        {"action": "move", "name": "from", "to": "copied"},
        {"action": "retry", "name": "copied", "to": "from"},
    ]
    with BlockingClient(cluster.urls[1]) as client:
        client.send("from", *(Message(text, subject=text) for text in ("red", "blue", "red")))
        red, copied = client.receiver("red", 10), client.receiver("copied", 10)
        for request in asked:
            proxy.ask("queues", **request)
        assert bodies(client.fetch(red, 2)) == ["red", "red"]
        assert bodies(client.fetch(copied, 4)) == ["red", "blue", "red", "blue"]


def test_a_killed_primary_is_a_pause_for_clients_of_the_others(attended: RunningCluster) -> None:
    dead = attended.brokers.index(attended.the_primary())
    one, other = [url for at, url in enumerate(attended.urls) if at != dead]
    with FailoverLoad([one], "q", rate=2000, consumer_urls=[other]) as load:
        load.wait_confirmed(3000)
        attended.kill(dead)
        load.wait_confirmed(5000)
        assert_it_was_a_pause(load)


def test_a_set_that_moves_is_a_pause_also_when_it_moves_to_the_proxy_and_away(cluster: RunningCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    create_set(cluster, "orders", preferred=names[1])
    wait_whole(cluster, 0, "orders")
    create_queue(cluster, 0, "q", "orders")
    with FailoverLoad([cluster.urls[2]], "q", rate=2000) as load:
        for to in (0, 2, 1):
            load.wait_confirmed(2000)
            change(cluster, 0, "sets", "transfer", name="orders", to=names[to])
        load.wait_confirmed(2000)
        assert_it_was_a_pause(load)


def test_a_primary_that_is_killed_before_the_discharge_has_rolled_back(attended: RunningCluster) -> None:
    dead = attended.brokers.index(attended.the_primary())
    one, _ = [url for at, url in enumerate(attended.urls) if at != dead]
    with BlockingClient(one) as client:
        client.send("q", "there")
        receiver, sender = client.receiver("q", 1), client.sender("other")
        client.fetch(receiver, 1, None)
        work = LocalTransaction(client)
        work.send(sender, "lost")
        work.accept(receiver)
        client.round_trip()
        attended.kill(dead)
        attended.wait_until(lambda: attended.primary() is not None, "somebody leads")
        assert (work.commit(), work.condition) == ("commit failed", "amqp:transaction:rollback")
        receiver.close()  # Proton's client has released then what it had accepted
        assert bodies(client.consume("q")) == ["there"]
        again = LocalTransaction(client)
        again.send(sender, "kept")
        assert again.commit() == "committed"
        assert (bodies(client.browse("q")), bodies(client.browse("other"))) == ([], ["kept"])
