"""Limits of users: what a line may say, which one holds, and what a client at a limit is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from paired_engines import BROKER, PairedBroker, PairedClient
from paired_links import condition, status, subscribe
from paired_proxy import PairedProxy, paired_broker
from paired_transactions import PairedCoordinator, publish
from qpid_ha_broker.access.rate_limit import BURST_S
from qpid_ha_broker.access.user_limits import LimitKind, UserLimits
from qpid_ha_broker.amqp.connections.connection_facts import connection_rows
from qpid_ha_broker.amqp.wire.conditions import MESSAGE_SIZE, RESOURCE_LIMIT
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import LimitReached
from qpid_ha_config.access_rules import parse_entries
from qpid_ha_config.errors import ConfigError
from session_clients import open_session
from session_support import FIRST, SECOND

MIB = 1024 * 1024
MANY = 5000
LARGE = proton.Message("x" * 3000)


def limits_of(*lines: str, cluster_user: str = "", log: list[str] | None = None) -> UserLimits:
    limits = UserLimits(lambda level, text: (log if log is not None else []).append(text), lambda: 0, lambda: 0.0, MIB)
    limits.change(parse_entries(lines).limits, cluster_user)
    return limits


def value(limits: UserLimits, user: str, kind: LimitKind) -> float | None:
    limit = limits.limit(user, kind)
    return None if limit is None else limit.value


# --- lines


def test_a_line_gives_its_users_limits_of_some_kinds() -> None:
    (limit,) = parse_entries(
        ["allow all all", "limit alice connections=10 links=100 queues=50 message-size=1MiB rate=500/s"]
    ).limits
    assert limit.users == frozenset(["alice"])
    assert {kind.value: number for kind, number in limit.values.items()} == {
        "connections": 10, "links": 100, "queues": 50, "message-size": MIB, "rate": 500,
    }  # fmt: skip
    assert limit.place == "acl.rules, entry 2"


@pytest.mark.parametrize(("text", "rate"), [("500", 500), ("0.5/s", 0.5), ("30/min", 0.5), ("7200/h", 2)])
def test_a_rate_may_be_given_for_a_second_a_minute_or_an_hour(text: str, rate: float) -> None:
    assert parse_entries([f"limit all rate={text}"]).limits[0].values == {LimitKind.RATE: rate}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("limit alice", "a limit is `limit USER"),
        ("limit alice conections=3", "there is no limit 'conections'; did you mean connections?"),
        ("limit alice links=many", "links=many: give a whole number, more than 0, or unlimited"),
        ("limit alice links=0", "links=0: give a whole number, more than 0"),
        ("limit alice links", "links=: give a whole number"),
        ("limit alice rate=5/d", "rate=5/d: give messages such as 500/s"),
        ("limit alice rate=0/s", "rate=0/s: give messages"),
        ("limit alice message-size=1XB", "message-size=1XB: give a size such as 1MiB"),
        ("limit alice links=3 links=4", "links is there twice"),
        ("limit @nobody links=3", "there is no group '@nobody'"),
        ("limits alice links=3", "'limits': did you mean limit?"),
    ],
)
def test_a_slip_is_answered_with_the_line_and_what_to_write(line: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_entries(["allow all all", line])
    assert str(error.value).startswith("acl.rules, entry 2: ")
    assert problem in str(error.value)


# --- which one holds


def test_the_first_line_with_a_kind_decides_about_it() -> None:
    limits = limits_of(
        "group batch bob carol", "limit @batch rate=5 links=unlimited", "limit alice links=3",
        "limit authenticated links=10 connections=2", "limit all links=1",
    )  # fmt: skip
    assert [value(limits, user, LimitKind.LINKS) for user in ("alice", "bob", "dave", "")] == [3, None, 10, 1]
    assert [value(limits, user, LimitKind.CONNECTIONS) for user in ("alice", "bob", "")] == [2, 2, None]
    assert [value(limits, user, LimitKind.RATE) for user in ("alice", "bob")] == [None, 5]
    found = limits.limit("bob", LimitKind.LINKS)
    assert found is not None
    assert found.reason == "acl.rules, entry 2: limit @batch rate=5 links=unlimited"


def test_the_brokers_user_has_no_limit_whatever_the_lines_say() -> None:
    limits = limits_of("limit all links=1", "limit replicator links=1", cluster_user="replicator")
    assert value(limits, "replicator", LimitKind.LINKS) is None
    assert value(limits_of("limit all links=1"), "", LimitKind.LINKS) == 1


def test_a_refusal_names_user_limit_and_line_and_is_counted_and_logged_once_a_second() -> None:
    log: list[str] = []
    limits = limits_of("limit alice connections=2", log=log)
    alice = limits.use_of("alice")
    for _ in range(2):
        limits.check_connection(alice)
        limits.connected(alice)
    for _ in range(3):
        with pytest.raises(LimitReached) as refused:
            limits.check_connection(alice)
    assert str(refused.value) == (
        "alice: connections limit: 2 connections are connected to this broker, and 2 are allowed:"
        " acl.rules, entry 1: limit alice connections=2"
    )
    limits.check_connection(limits.use_of("bob"))
    assert log == [str(refused.value)]
    assert limits.refused == {"connections": 3}
    limits.disconnected(alice)
    limits.check_connection(alice)


def test_users_who_have_nothing_are_forgotten() -> None:
    limits = limits_of("limit all links=1")
    use = limits.use_of("alice")
    limits.connected(use)
    limits.disconnected(use)
    use.links = 1  # it ends some turns later
    limits.tick()
    assert limits.use_of("alice") is use
    use.links = 0
    limits.tick()
    assert limits.use_of("alice") is not use


# --- what a client notices


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


def put_in_force(broker: PairedBroker, *lines: str) -> None:
    broker.container.limits.change(parse_entries(lines).limits, "")
    broker.settle_down()


def reason(endpoint: Any) -> str:
    assert endpoint.remote_condition is not None
    return str(endpoint.remote_condition.description)


def test_one_connection_too_many_is_refused_and_the_place_of_one_that_ended_is_free(broker: PairedBroker) -> None:
    put_in_force(broker, "limit all connections=2")
    first, _ = broker.connect(), broker.connect()
    third = broker.connect()
    assert condition(third.connection) == RESOURCE_LIMIT
    assert "who has not logged in: connections limit: 2 " in reason(third.connection)
    assert "acl.rules, entry 1: limit all connections=2" in reason(third.connection)
    marked, other_broker = PairedClient(broker, {"qpid.ha-admin": True}), PairedClient(broker, BROKER)
    broker.settle_down()
    assert condition(marked.connection) == RESOURCE_LIMIT  # an administrator is a user, too
    assert condition(other_broker.connection) is None
    first.vanish()
    broker.settle_down()
    assert condition(broker.connect().connection) is None
    assert condition(broker.connect().connection) == RESOURCE_LIMIT


def test_links_are_counted_over_all_connections_and_the_connection_of_one_too_many_stays(broker: PairedBroker) -> None:
    put_in_force(broker, "limit all links=3")
    one, other = broker.connect(), broker.connect()
    links = [one.sender("q"), one.receiver("q"), other.sender("q")]
    refused = other.sender("q")
    assert condition(refused) == RESOURCE_LIMIT
    assert "links limit: 3 links are attached" in reason(refused)
    refused.close()
    links[0].close()
    broker.settle_down()
    assert condition(other.sender("q")) is None
    assert condition(other.sender("q")) == RESOURCE_LIMIT
    one.vanish()
    broker.settle_down()
    assert condition(other.sender("q")) is None
    assert broker.container.limits.refused == {"links": 2}


def test_a_message_is_no_larger_than_its_user_may_send(broker: PairedBroker) -> None:
    put_in_force(broker, "limit all message-size=2000B")
    client = broker.connect()
    for address in ("q", None):
        link = client.sender(address)
        assert link.remote_max_message_size == 2000
        client.send(link, proton.Message("x", address="q"))
        broker.settle_down()
        client.send(link, LARGE)
        broker.settle_down()
        assert condition(link) == MESSAGE_SIZE
        assert "limit all message-size=2000B" in reason(link)
    coordinator, link = PairedCoordinator(client), client.sender("q")
    publish(client, link, coordinator.declare(), "x" * 3000)
    broker.settle_down()
    assert condition(link) == MESSAGE_SIZE
    assert broker.queue("q").messages.count == 2
    assert broker.container.limits.refused == {"message-size": 3}
    put_in_force(broker, "limit all message-size=900MiB")
    assert client.sender("q").remote_max_message_size == broker.container.settings.max_message_bytes


@pytest.mark.parametrize("way", ["direct", "proxied"])
def test_a_user_has_no_more_sessions_than_its_limit_and_can_resume_each(way: str) -> None:
    broker = paired_broker(way)
    put_in_force(broker, "limit all sessions=1")
    first = open_session(broker, FIRST)
    refused = open_session(broker, SECOND)
    assert condition(refused.connection) == RESOURCE_LIMIT
    assert "who has not logged in: sessions limit: 1 sessions are kept for that user" in reason(refused.connection)
    assert broker.container.limits.refused == {"sessions": 1}
    first.vanish()
    broker.settle_down()
    assert condition(open_session(broker, SECOND).connection) == RESOURCE_LIMIT, "the first one waits for its client"
    again = open_session(broker, FIRST)
    assert condition(again.connection) is None
    again.connection.close()
    broker.settle_down()
    assert condition(open_session(broker, SECOND).connection) is None


def test_sessions_of_other_users_do_not_count(broker: PairedBroker) -> None:
    put_in_force(broker, "limit all sessions=1")
    open_session(broker, FIRST)
    registry = broker.container.default.resources.replicated.state.sessions
    registry._put(registry.by_name[FIRST]._replace(user="alice"))
    assert condition(open_session(broker, SECOND).connection) is None
    assert [broker.container.sessions.count_of(user) for user in ("alice", "", "bob")] == [1, 1, 0]


def waits(broker: PairedBroker) -> list[str]:
    return [link["waits_for"] for row in connection_rows(broker.connections) for link in row["links"]]  # type: ignore[attr-defined]


class SteadySender:
    """A client that sends whenever it has credit."""

    def __init__(self, client: PairedClient, link: Any, *, settled: bool = False) -> None:
        self.client, self.link, self.settled, self.sent = client, link, settled, 0

    def send(self) -> bool:
        """All that may be sent; whether that was anything."""
        before = self.sent
        while self.link.credit > 0 and self.sent < MANY:
            delivery = self.client.send(self.link, proton.Message("x", address="q"))
            if self.settled:
                delivery.settle()
            self.sent += 1
        return self.sent > before


def run(broker: PairedBroker, clock: list[float], senders: list[SteadySender], for_s: float) -> None:
    """Everybody sends, with a turn every 10 ms."""
    end_s = clock[0] + for_s
    while clock[0] < end_s:
        while sum(sender.send() for sender in senders):
            broker.settle_down()
        clock[0] += 0.01
        broker.settle_down()


def with_clock(broker: PairedBroker) -> list[float]:
    clock = [0.0]
    broker.container.clock = lambda: clock[0]
    return clock


@pytest.mark.parametrize("settled", [False, True])
def test_senders_of_a_user_are_held_back_by_credit_and_none_is_refused(broker: PairedBroker, settled: bool) -> None:
    clock = with_clock(broker)
    put_in_force(broker, "limit all rate=100/s")
    client, other = broker.connect(), broker.connect()
    senders = [
        SteadySender(client, client.sender("q"), settled=settled),
        SteadySender(other, other.sender(None), settled=settled),
    ]
    run(broker, clock, senders, 4.0)
    total = sum(sender.sent for sender in senders)
    assert 100 * 4.0 + 60 <= total <= 100 * (4.0 + BURST_S)
    assert min(sender.sent for sender in senders) > 100
    assert broker.queue("q").messages.count == total
    assert set(waits(broker)) == {"rate limit"}
    assert broker.container.limits.refused == {}


def test_other_users_and_requests_do_not_wait_for_the_rate_of_one(broker: PairedBroker) -> None:
    with_clock(broker)
    put_in_force(broker, "limit all rate=1/h")
    client = broker.connect()
    held = SteadySender(client, client.sender("q"))
    while held.send():
        broker.settle_down()
    assert held.sent == 1
    free = PairedClient(broker, BROKER)
    broker.settle_down()
    assert free.sender("q").credit == broker.container.settings.publisher_credit
    assert client.sender("$management").credit > 1
    assert waits(broker).count("rate limit") == 1


def test_another_limit_holds_at_once_and_none_sets_free_who_waits(broker: PairedBroker) -> None:
    with_clock(broker)
    client = broker.connect()
    early = client.sender("q")
    put_in_force(broker, "limit all rate=1/h connections=1")
    assert condition(early) is None
    late = client.sender("q")
    assert (early.credit, late.credit) == (broker.container.settings.publisher_credit, 1)
    waiting = client.sender("q")
    assert waiting.credit == 0
    put_in_force(broker)
    assert waiting.credit == broker.container.settings.publisher_credit
    assert broker.container.limits.held == {}


# --- through a proxy


def put_in_force_on_both(proxied: PairedProxy, *lines: str) -> None:
    for broker in (proxied.primary, proxied.proxy):
        broker.container.limits.change(parse_entries(lines).limits, "")


def test_through_a_proxy_users_are_counted_where_the_client_is_and_not_twice(proxied: PairedProxy) -> None:
    put_in_force_on_both(proxied, "limit all connections=1 links=2 message-size=2000B")
    client = proxied.client()
    first, second = client.sender("q"), client.sender("q")
    assert (condition(first), condition(second)) == (None, None)
    assert second.remote_max_message_size == 2000
    third = client.sender("q")
    assert condition(third) == RESOURCE_LIMIT
    client.send(first, LARGE)
    proxied.settle_down()
    assert condition(first) == MESSAGE_SIZE
    assert condition(proxied.client().connection) == RESOURCE_LIMIT
    assert proxied.proxy.container.limits.refused == {"links": 1, "message-size": 1, "connections": 1}
    assert proxied.primary.container.limits.refused == {}
    assert proxied.primary.container.limits.used("").links == 0


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("address", ["q", None])
def test_through_a_proxy_the_rate_holds_where_the_client_is(
    proxied: PairedProxy, settled: bool, address: str | None
) -> None:
    clock = with_clock(proxied.proxy)
    put_in_force_on_both(proxied, "limit all rate=100/s")
    client = proxied.client()
    link, requests = client.sender(address), client.sender("$management")
    assert requests.credit > 25  # the window of the rate
    requests.close()
    sender = SteadySender(client, link, settled=settled)
    while clock[0] < 4.0:
        while sender.send():
            proxied.settle_down()
        clock[0] += 0.01
        proxied.settle_down()
    assert 100 * 4.0 + 60 <= sender.sent <= 100 * (4.0 + BURST_S)
    assert proxied.primary.queue("q").messages.count == sender.sent
    assert waits(proxied.proxy) == ["rate limit"]
    assert "rate limit" not in waits(proxied.primary)


# --- queues


def limit_queues(broker: PairedBroker, most: int) -> None:
    put_in_force(broker, f"limit all queues={most}")


MAKING: dict[str, Callable[[PairedClient], str | None]] = {
    "attach a publisher": lambda client: condition(client.sender("made")),
    "attach a consumer": lambda client: condition(client.receiver("made")),
    "ask for a dynamic address": lambda client: condition(subscribe(client, None, dynamic=True)),
    "publish to a dynamic address": lambda client: condition(dynamic_sender(client)),
    "subscribe": lambda client: condition(subscribe(client, "amq.topic/k")),
    "subscribe durably": lambda client: condition(subscribe(client, "amq.topic/k", durable=True)),
    "send to an anonymous relay": lambda client: relayed(client),
    "CREATE": lambda client: {201: None, 409: RESOURCE_LIMIT}[
        status(client, "CREATE", {}, type="org.qpid_ha.queue", name="made")
    ],
}


def dynamic_sender(client: PairedClient) -> Any:
    link: Any = client.session.sender("dynamic")
    link.target.dynamic = True
    link.open()
    client.broker.settle_down()
    return link


def relayed(client: PairedClient) -> str | None:
    delivery = client.send(client.sender(None), proton.Message("x", address="made"))
    client.broker.settle_down()
    return None if delivery.remote_state == proton.Delivery.ACCEPTED else str(delivery.remote.condition.name)


@pytest.mark.parametrize("making", MAKING.values(), ids=MAKING)
def test_a_queue_counts_for_its_user_whichever_way_it_is_made(
    broker: PairedBroker, making: Callable[[PairedClient], str | None]
) -> None:
    broker.connect().sender("before")  # there is no limit: it is nobody's
    limit_queues(broker, 1)
    assert making(broker.connect()) is None
    catalog = broker.container.default.resources.catalog
    (made,) = [queue for queue in catalog.queues.values() if queue.arguments.created_by]
    assert made.arguments.created_by == "anonymous"
    client = broker.connect()
    assert condition(client.sender("one-more")) == RESOURCE_LIMIT
    assert "one-more" not in catalog.queues
    assert condition(client.sender("before")) is None
    broker.container.default.configuration.delete_queue(made.name)
    assert condition(client.sender("one-more")) is None
    assert broker.container.limits.refused == {"queues": 1}


@pytest.mark.parametrize("making", MAKING.values(), ids=MAKING)
def test_at_the_limit_no_way_leads_to_another_queue(
    broker: PairedBroker, making: Callable[[PairedClient], str | None]
) -> None:
    limit_queues(broker, 1)
    broker.connect().sender("first")
    assert making(broker.connect()) == RESOURCE_LIMIT
    assert list(broker.container.default.resources.catalog.queues) == ["first"]


def test_who_made_a_queue_is_for_the_broker_to_say_and_makes_it_no_other_queue(broker: PairedBroker) -> None:
    client = broker.connect()
    mark = {"arguments": {"qpid.created_by": "bob"}}
    assert status(client, "CREATE", mark, type="org.qpid_ha.queue", name="q") == 400
    limit_queues(broker, 1)
    client.sender("q")
    for operation in ("CREATE", "UPDATE"):
        assert status(client, operation, mark, type="org.qpid_ha.queue", name="q") == 400
    assert status(client, "UPDATE", {"arguments": {"qpid.max_count": 5}}, type="org.qpid_ha.queue", name="q") == 200
    assert broker.queue("q").arguments.created_by == "anonymous"
    put_in_force(broker)
    body = {"arguments": {"qpid.max_count": 5}}
    assert status(client, "CREATE", body, type="org.qpid_ha.queue", name="q") == 201  # it was there


def test_through_a_proxy_a_queue_is_its_client_s(proxied: PairedProxy) -> None:
    put_in_force_on_both(proxied, "limit all queues=1")
    client = proxied.client()
    first, second = client.sender("one"), client.sender("two")
    assert (condition(first), condition(second)) == (None, RESOURCE_LIMIT)
    assert proxied.primary.queue("one").arguments.created_by == "anonymous"


def test_the_map_counts_queues_of_other_sets_by_the_user_too() -> None:
    cluster_map = ClusterMap()
    cluster_map.apply(1, ev.SetPlaced("s", ("a",), (), "", 0, 0))
    cluster_map.apply(2, ev.QueuePlaced("q", "s", {"qpid.created_by": "bob"}, False))
    cluster_map.apply(3, ev.QueuePlaced("other", "s", {}, False))
    cluster_map.apply(4, ev.QueuePlaced("q", "s", {"qpid.created_by": "bob"}, True))  # it is being deleted
    assert cluster_map.created_by == {"bob": 1}
    copy = ClusterMap()
    for lsn, event in cluster_map.events(4):
        copy.apply(lsn, event)
    replaced = ClusterMap()
    replaced.replace(copy)
    assert copy.created_by == replaced.created_by == {"bob": 1}
    replaced.apply(5, ev.QueueRemoved(2))
    assert replaced.created_by["bob"] == 0
    assert copy.created_by == {"bob": 1}
