"""Which brokers a client is told of, in which order, and when those who listen hear of a change."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import proton

from event_loops import in_event_loop
from paired_engines import PairedBroker
from qpid_ha_broker.amqp.connections.container import Container, Greeting
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.server.clients.known_hosts import HostNotices, ServingBrokers, failover_entries, serving_brokers
from qpid_ha_config.addresses import Address, parse_brokers
from qpid_ha_config.settings import HaSettings

ABC = parse_brokers("amqp://a:1,b:2,c:3")


def ha(**more: Any) -> HaSettings:
    return HaSettings(cluster=True, brokers_url=ABC, **more)


def member(primary: str = "") -> Member:
    """What is asked of a member: where the primary is, as it knows."""
    status = SimpleNamespace(primary="x" if primary else "", primary_address=primary)
    return cast(Member, SimpleNamespace(status=status, settings=SimpleNamespace(own_address="amqp://a:1")))


def map_of(*brokers: str) -> ClusterMap:
    found = ClusterMap()
    for lsn, name in enumerate(brokers, start=1):
        found.apply(lsn, ev.BrokerRegistered(name, "", f"amqp://{name}:{lsn}", "", "", ""))
    return found


def test_where_the_primary_alone_serves_it_comes_first() -> None:
    found = serving_brokers(ha(), member("amqp://b:2"), ClusterMap(), every_broker=False)
    assert found == ServingBrokers((ABC[1], ABC[0], ABC[2]), alike=False)
    assert serving_brokers(ha(), member(), ClusterMap(), every_broker=False).addresses == ABC


def test_where_every_broker_serves_they_are_those_of_the_map_that_are_up_and_not_drained() -> None:
    there = map_of("a", "b", "c", "d")
    there.apply(5, ev.BrokerChanged("b", False, False, 0))
    there.apply(6, ev.BrokerChanged("c", True, True, 0))
    there.apply(7, ev.BrokerRegistered("d", "", "amqp://d:4", "amqps://public.d:5", "", ""))
    found = serving_brokers(ha(), member("amqp://b:2"), there, every_broker=True)
    assert found == ServingBrokers((Address("amqp", "a", 1), Address("amqps", "public.d", 5)), alike=True)


def test_without_a_map_they_are_those_of_the_settings_and_public_addresses_take_the_place_of_all() -> None:
    assert serving_brokers(ha(), member(), ClusterMap(), every_broker=True).addresses == ABC
    public = serving_brokers(ha(public_url=parse_brokers("amqp://vip")), member(), map_of("a"), every_broker=True)
    assert public.addresses == (Address("amqp", "vip", 5672),)


def test_a_map_that_says_that_nobody_is_up_is_not_believed() -> None:
    there = map_of("a")
    there.apply(2, ev.BrokerChanged("a", False, False, 0))
    assert serving_brokers(ha(), member(), there, every_broker=True).addresses == ABC


def test_a_broker_that_is_in_no_cluster_names_none() -> None:
    assert serving_brokers(HaSettings(), member(), ClusterMap(), every_broker=False).addresses == ()


def test_clients_that_lose_a_broker_are_spread_evenly_over_the_others() -> None:
    greeting = Greeting()
    greeting.failover_servers, greeting.interchangeable = failover_entries(ABC), 2
    orders = [[server["network-host"] for server in greeting.servers_for_next_client()] for _ in range(100)]
    assert Counter(order[0] for order in orders) == {"a": 50, "b": 50}
    assert {order[2] for order in orders} == {"c"}
    assert {tuple(sorted(map(str, order))) for order in orders} == {("a", "b", "c")}


class Noticing:
    """A broker that leads, with a queue that is bound to the notices, and one that is not."""

    def __init__(self) -> None:
        broker = PairedBroker()
        self.container: Container = broker.container
        self.is_in_turn = False
        self.turns = 0
        self.configuration = Configuration(self.container.default.resources)
        self.queue = self.configuration.declare_queue("listening", {"qpid.max_count": 2, "qpid.policy_type": "reject"})
        self.configuration.bind("amq.qpid", "listening", "cluster", {})
        self.notices = HostNotices(cast(Any, self))

    def set_time(self) -> None:
        self.container.now_ms = 5000

    def schedule_turn(self) -> None:
        self.turns += 1

    def told(self) -> list[str]:
        found = []
        for entry in self.queue.messages:
            message: Any = proton.Message()
            message.decode(entry.resident_body())
            found.append(message.properties["qpid.known.hosts"])
        return found


@in_event_loop
async def test_each_list_is_published_once_by_whoever_leads() -> None:
    broker = Noticing()
    broker.notices.update(ABC, leads=False)
    await asyncio.sleep(0)
    assert broker.told() == []
    for addresses in (ABC[:1], ABC, ABC):
        broker.notices.update(addresses, leads=True)
    assert broker.told() == []  # not while an event is applied
    await asyncio.sleep(0)
    assert broker.told() == ["a:1,b:2,c:3"]
    broker.notices.update(ABC, leads=True)
    await asyncio.sleep(0)
    assert broker.told() == ["a:1,b:2,c:3"]
    broker.notices.update(ABC, leads=False)
    broker.notices.update(ABC, leads=True)
    await asyncio.sleep(0)
    assert broker.told() == ["a:1,b:2,c:3"] * 2


@in_event_loop
async def test_a_notice_that_was_due_when_the_broker_stopped_leading_is_not_published() -> None:
    broker = Noticing()
    broker.notices.update(ABC, leads=True)
    broker.notices.update(ABC, leads=False)
    await asyncio.sleep(0)
    assert broker.told() == []


@in_event_loop
async def test_a_notice_is_neither_durable_nor_kept_for_long() -> None:
    broker = Noticing()
    broker.notices.update(ABC, leads=True)
    await asyncio.sleep(0)
    (entry,) = broker.queue.messages
    assert not entry.header.durable
    assert entry.header.expires_at_ms == 65_000


@in_event_loop
async def test_a_full_queue_keeps_the_notice_until_there_is_room(monkeypatch: Any) -> None:
    monkeypatch.setattr("qpid_ha_broker.server.clients.known_hosts.RETRY_S", 0.0)
    broker = Noticing()
    for addresses in (ABC[:1], ABC[:2], ABC):
        broker.notices.update(addresses, leads=True)
        await asyncio.sleep(0)
    assert broker.told() == ["a:1", "a:1,b:2"]
    broker.configuration.update_queue("listening", {"qpid.max_count": 3})
    while len(broker.told()) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert broker.told()[-1] == "a:1,b:2,c:3"
