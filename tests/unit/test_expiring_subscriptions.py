"""Subscriptions that wait for their link as long as their source says (AMQP 1.0 section 3.5.3), and links that are
attached anew to exclusive queues (section 2.6.1).
"""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import START_MS, PairedBroker, PairedClient, client_of
from paired_links import condition, subscribe
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.connections.nodes import NodeSettings
from qpid_ha_broker.amqp.nodes.terminus import LONGEST_TIMEOUT_S


def queues(broker: PairedBroker) -> list[str]:
    return list(broker.container.default.resources.catalog.queues)


def at(broker: PairedBroker, after_ms: int) -> None:
    """So long after the beginning."""
    broker.container.now_ms = START_MS + after_ms
    broker.container.tick()
    broker.settle_down()


def taken(client: PairedClient, link: Any) -> list[str]:
    link.flow(100)
    client.broker.settle_down()
    return client.bodies(link)


# --- timeouts


def test_the_answer_says_what_is_kept_and_from_when_it_is_counted(broker: PairedBroker) -> None:
    client = client_of(broker)
    for asked, granted in ((0, 0), (60, 60), (2**32 - 1, LONGEST_TIMEOUT_S)):
        for policy in (proton.Terminus.EXPIRE_WITH_SESSION, proton.Terminus.EXPIRE_WITH_CONNECTION):
            link = client.session.receiver(f"{asked}-{policy}")
            link.source.address, link.source.timeout, link.source.expiry_policy = "amq.topic", asked, policy
            client.attach(link)
            remote = link.remote_source
            assert (remote.timeout, remote.expiry_policy) == (granted, proton.Terminus.EXPIRE_WITH_LINK)
            assert remote.durability == proton.Terminus.NONDURABLE


def test_a_queue_a_shared_subscription_and_who_cannot_be_known_again_are_granted_no_timeout(
    broker: PairedBroker,
) -> None:
    broker.container.default.configuration.declare_queue("q", {})
    client = client_of(broker)
    links = [
        subscribe(client, "q", "1", timeout_s=60),
        subscribe(client, None, "2", dynamic=True, timeout_s=60),
        subscribe(client, "amq.topic", "3", capabilities=("topic", "shared"), timeout_s=60),
        subscribe(client_of(broker, ""), "amq.topic", "4", timeout_s=60),
        subscribe(client, "amq.topic", "5", durable=True, timeout_s=60),
    ]
    assert [link.remote_source.timeout for link in links] == [0] * len(links)


@pytest.mark.parametrize("ends", ["detaches", "vanishes", "closes its connection"])
def test_a_subscription_with_a_timeout_keeps_what_comes_until_its_link_is_back(broker: PairedBroker, ends: str) -> None:
    at(broker, 0)
    client = client_of(broker)
    link = subscribe(client, "amq.topic", "news", timeout_s=60)
    if ends == "detaches":
        link.detach()
    elif ends == "vanishes":
        client.vanish()
    else:
        client.connection.close()
    broker.settle_down()
    client_of(broker, "other").publish("amq.topic", "missed")
    at(broker, 59_000)
    again = client_of(broker)
    assert taken(again, subscribe(again, "amq.topic", "news", timeout_s=60)) == ["missed"]
    at(broker, 200_000)
    assert len(queues(broker)) == 1, "it is used"


def test_it_is_deleted_when_its_time_is_over_or_its_link_is_closed(broker: PairedBroker) -> None:
    at(broker, 0)
    client = client_of(broker)
    link = subscribe(client, "amq.topic", "news", timeout_s=60)
    closed = subscribe(client, "amq.topic", "other", timeout_s=60)
    closed.close()
    link.detach()
    broker.settle_down()
    assert len(queues(broker)) == 1
    at(broker, 60_000)
    assert queues(broker) == []


def test_it_has_the_limits_of_a_queue_whose_reader_may_never_come_back() -> None:
    limits: dict[str, int | str] = {"qpid.max_count": 3, "qpid.policy_type": "self-destruct"}
    broker = PairedBroker(ContainerSettings("b", "0", NodeSettings(temporary_limits=limits)))
    client = client_of(broker)
    subscribe(client, "amq.topic", "news", timeout_s=60).detach()
    client_of(broker, "other").publish("amq.topic", *"abcd")
    assert queues(broker) == []


def test_a_subscription_becomes_durable_and_ceases_to_be(broker: PairedBroker) -> None:
    at(broker, 0)
    client, publisher = client_of(broker), client_of(broker, "other")
    subscribe(client, "amq.topic", "news", timeout_s=60).detach()
    publisher.publish("amq.topic", "a")
    subscribe(client, "amq.topic", "news", durable=True).detach()
    broker.settle_down()
    at(broker, 1_000_000)
    (queue,) = broker.container.default.resources.catalog.queues.values()
    assert (queue.arguments.auto_delete, queue.limits.is_bounded) == (False, False)
    link = subscribe(client, "amq.topic", "news", timeout_s=30)
    assert taken(client, link) == ["a"]
    link.detach()
    broker.settle_down()
    at(broker, 1_030_000)
    assert queues(broker) == []


# --- a link of the same name, to an exclusive queue


def test_a_client_that_attaches_anew_gets_its_exclusive_queue_at_once(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("q", {"qpid.exclusive": True})
    dead, again = client_of(broker, user="alice"), client_of(broker, user="alice")
    older = subscribe(dead, "q", "worker")
    client_of(broker, "other").publish("q", "a")
    assert taken(dead, older) == ["a"]
    newer = subscribe(again, "q", "worker")
    assert (condition(older), condition(newer)) == ("amqp:link:stolen", None)
    assert taken(again, newer) == ["a"]


@pytest.mark.parametrize(
    ("container", "user", "name"),
    [("shop", "alice", "other"), ("other", "alice", "worker"), ("shop", "mallory", "worker"), ("", "alice", "worker")],
)
def test_an_exclusive_queue_is_taken_from_nobody_else(
    broker: PairedBroker, container: str, user: str, name: str
) -> None:
    """So it can serve as a lock among processes that have container ids of their own."""
    broker.container.default.configuration.declare_queue("q", {"qpid.exclusive": True})
    older = subscribe(client_of(broker, user="alice"), "q", "worker")
    assert condition(subscribe(client_of(broker, container, user), "q", name)) == "amqp:resource-locked"
    assert condition(older) is None


def test_links_of_one_name_to_a_queue_that_many_may_have_stay(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("q", {})
    links = [subscribe(client_of(broker), "q", "worker") for _ in range(3)]
    assert [condition(link) for link in links] == [None] * 3


def test_a_browser_of_an_exclusive_queue_takes_it_from_nobody(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("q", {"qpid.exclusive": True})
    older = subscribe(client_of(broker), "q", "worker")
    browser = subscribe(client_of(broker), "q", "worker", browse=True)
    assert (condition(older), condition(browser)) == (None, None)
    newer = subscribe(client_of(broker), "q", "worker")
    assert (condition(older), condition(browser), condition(newer)) == ("amqp:link:stolen", None, None)


def test_an_exclusive_queue_stays_its_clients_when_the_connection_to_the_primary_is_given_up() -> None:
    proxied = PairedProxy()
    proxied.container.default.configuration.declare_queue("q", {"qpid.exclusive": True})
    client = proxied.client(container="shop")
    link = subscribe(client, "q", "worker")
    proxied.give_up_upstream()
    proxied.settle_down()
    client_of(proxied.primary, "other").publish("q", "a")
    assert taken(client, link) == ["a"]
    assert condition(link) is None
