"""What clients count on holds at a proxy, and at the next primary, which knows of it what is in the log.

Each story is told of a client of the proxy, who stays, and of one of the primary, who comes back to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from paired_engines import PairedClient, queued_bodies
from paired_failover import FailingOver, Visit
from paired_links import condition, subscribe
from qpid_ha_broker.access.address_rules import AddressRule, NodeKind, rules_in_force
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.connections.nodes import NodeSettings
from qpid_ha_broker.amqp.links import relayed_links
from qpid_ha_broker.amqp.nodes.terminus import SELECTOR

ACCEPTED = proton.Delivery.ACCEPTED
SECOND = 1000
Attach = Callable[[PairedClient], Any]


@pytest.fixture
def world() -> FailingOver:
    world = FailingOver()
    world.leader.declare("q")
    return world


@pytest.fixture(params=["direct", "proxied"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def from_(address: str | None, name: str = "link", **asked: Any) -> Attach:
    return lambda client: subscribe(client, address, name, **asked)


def publish(world: FailingOver, address: str, *messages: Any) -> list[Any]:
    """By a client of whoever leads."""
    deliveries = world.direct("publisher").publish(address, *messages)
    world.settle_down()
    return [delivery.remote_state for delivery in deliveries]


def of(group: str, *texts: str) -> list[proton.Message]:
    return [proton.Message(text, group_id=group) for text in texts]


def coloured(*colours: str) -> list[proton.Message]:
    return [proton.Message(colour, properties={"colour": colour}) for colour in colours]


# --- subscriptions


def test_a_global_shared_subscription_is_any_clients_and_shares_what_came_before_and_after(
    world: FailingOver, way: str
) -> None:
    asked: dict[str, Any] = {"capabilities": ("topic", "shared", "global"), "durable": True}
    one = world.visit(way, from_("news", "orders|global", **asked), container="")
    publish(world, "topic://news", "before")
    world.fail_over()
    other = world.visit(way, from_("news", "orders|global2", **asked), container="any")
    publish(world, "topic://news", "after")
    assert sorted(one.bodies(1) + other.bodies(1)) == ["after", "before"]
    assert world.queues() == ["q", "subscription::orders"]


def test_unsubscribing_ends_what_was_subscribed_to_at_another_primary(world: FailingOver, way: str) -> None:
    visit = world.visit(way, from_("amq.topic", "paper", durable=True))
    visit.leave()
    world.fail_over()
    assert world.queues() == ["q", "subscription:shop:paper"]
    link = visit.client.attach(visit.client.session.receiver("paper"))
    world.settle_down()
    assert link.remote_source.address == "amq.topic/#"
    link.close()
    world.settle_down()
    assert world.queues() == ["q"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ["before", "after"]),
        ({"address": "amq.topic/news"}, ["after"]),
        ({"filters": {"s": (SELECTOR, "JMSType = 'news'")}}, ["after"]),
    ],
)
def test_another_topic_or_selector_begins_anew_at_another_primary_and_the_same_one_does_not(
    world: FailingOver, way: str, asked: dict[str, Any], expected: list[str]
) -> None:
    visit = world.visit(way, from_("amq.topic", "paper", durable=True))
    visit.leave()
    publish(world, "amq.topic", proton.Message("before", subject="news"))
    world.fail_over()
    again = world.visit(way, from_(**{"address": "amq.topic", "name": "paper", "durable": True, **asked}))
    publish(world, "amq.topic", proton.Message("after", subject="news"))
    assert again.bodies() == expected


def test_a_selector_is_applied_when_the_next_primary_routes(world: FailingOver, way: str) -> None:
    attach = from_("amq.topic", "red", durable=True, filters={"s": (SELECTOR, "colour IN ('red')")})
    world.visit(way, attach).leave()
    world.fail_over()
    publish(world, "amq.topic", *coloured("red", "blue"))
    assert queued_bodies(world.queue("subscription:shop:red")) == ["red"]
    assert world.visit(way, attach).bodies() == ["red"]


def test_a_subscription_waits_for_its_link_as_long_as_it_may_whoever_leads(world: FailingOver, way: str) -> None:
    visit = world.visit(way, from_("amq.topic", "paper", timeout_s=60))
    visit.leave()
    world.fail_over()
    publish(world, "amq.topic", "missed")
    world.pass_time(30 * SECOND)
    again = world.visit(way, from_("amq.topic", "paper", timeout_s=60))
    assert again.bodies() == ["missed"]
    again.leave()
    world.pass_time(59 * SECOND)
    assert len(world.queues()) == 2
    world.pass_time(2 * SECOND)
    assert world.queues() == ["q"]


def test_no_local_holds_for_what_a_client_publishes_at_another_primary(world: FailingOver, way: str) -> None:
    filters: dict[str, Any] = {"no-local": ("apache.org:no-local-filter:list", [])}
    visit = world.visit(way, from_("amq.topic", "own", durable=True, filters=filters))
    visit.leave()
    world.fail_over()
    visit.client.publish("amq.topic", "mine")
    publish(world, "amq.topic", "theirs")
    assert queued_bodies(world.queue("subscription:shop:own")) == ["theirs"]


def test_the_newer_link_of_a_subscriber_wins_at_another_primary(world: FailingOver, way: str) -> None:
    older = world.visit(way, from_("amq.topic", "paper", durable=True))
    world.fail_over()
    newer = world.direct("shop")
    link = subscribe(newer, "amq.topic", "paper", durable=True)
    world.settle_down()
    assert (condition(older.link), condition(link)) == ("amqp:link:stolen", None)


def test_a_name_that_is_attached_again_in_one_session_ends_the_older_link_alone(world: FailingOver, way: str) -> None:
    visit = world.visit(way, from_("q", "worker"))
    world.fail_over()
    kept = visit.client.sender("q")
    older = visit.link
    newer = subscribe(visit.client, "q", "worker")
    world.settle_down()
    assert condition(older) == "amqp:link:stolen"
    visit.client.send_all(kept, "a")
    newer.flow(1)
    world.settle_down()
    assert visit.client.bodies(newer) == ["a"]


def test_a_client_id_is_one_connections_at_another_primary_too(world: FailingOver) -> None:
    """A client that comes at once, though nobody has noticed there that its primary is gone."""
    sole = ("sole-connection-for-container",)
    world.direct("shop")
    world.fail_over()
    found: list[Any] = []
    for _ in range(2):
        client = PairedClient(world.leader, desired_capabilities=sole, container="shop")
        world.settle_down()
        found.append(client.connection.remote_condition)
    assert found[0] is None
    assert found[1].name == "amqp:invalid-field"


# --- queues and topics


def test_a_queue_and_a_topic_of_one_name_and_patterns_are_the_same_to_the_next_primary(
    world: FailingOver, way: str
) -> None:
    reader = world.visit(way, from_("a.b", "queue", capabilities=("queue",)))
    subscriber = world.visit(way, from_("topic://a.#", "topic"), container="other")
    world.fail_over()
    publish(world, "topic://a.b", "topic")
    publish(world, "queue://a.b", "queue")
    assert (reader.bodies(), subscriber.bodies()) == (["queue"], ["topic"])


@pytest.mark.parametrize("capability", ["temporary-queue", "temporary-topic"])
def test_what_is_temporary_goes_with_its_client_whoever_leads(world: FailingOver, capability: str) -> None:
    visit = world.visit("proxied", from_(None, "own", dynamic=True, capabilities=(capability,)))
    address = visit.link.remote_source.address
    world.fail_over(away_ms=5 * SECOND)
    world.pass_time(20 * SECOND)
    assert publish(world, address, "reply") == [ACCEPTED]
    assert visit.bodies() == ["reply"]
    visit.leave(closes=True)
    assert world.queues() == ["q"]


def test_a_rule_for_addresses_means_the_same_to_the_next_primary(way: str) -> None:
    rules = rules_in_force([AddressRule("/topic/{topic}", NodeKind.TOPIC, "{topic}")])
    world = FailingOver(ContainerSettings("primary", "0", NodeSettings(address_rules=rules)))
    world.proxy.container.change_settings(world.leader.container.settings)
    visit = world.visit(way, from_("/topic/news.*"))
    world.fail_over()
    publish(world, "topic://news.today", "a")
    visit.client.publish("/topic/news.tomorrow", "b")
    assert visit.bodies() == ["a", "b"]


# --- delivery


def test_a_message_is_due_when_it_said_so_whoever_leads(world: FailingOver, way: str) -> None:
    visit = world.visit(way, from_("q"))
    later = proton.Message("later", annotations={proton.symbol("x-opt-delivery-delay"): 10 * SECOND})
    visit.client.publish("q", later, "now")
    world.pass_time(4 * SECOND)
    world.fail_over()
    assert visit.bodies() == ["now"]
    world.pass_time(5 * SECOND)
    assert visit.bodies() == []
    world.pass_time(SECOND)
    assert visit.bodies() == ["later"]


def test_a_message_that_is_due_later_can_be_cancelled_at_the_next_primary(world: FailingOver) -> None:
    visit = world.visit("proxied", from_("q"))
    delay = {proton.symbol("x-opt-delivery-delay"): 10 * SECOND}
    visit.client.publish("q", proton.Message("later", annotations=delay))
    world.fail_over()
    world.container.default.resources.purges.begin(world.queue("q"))
    world.settle_down()
    world.pass_time(10 * SECOND)
    assert visit.bodies() == []


def test_a_group_goes_from_consumer_to_consumer_in_order_at_the_next_primary(world: FailingOver, way: str) -> None:
    """The first one has the group, until its publisher closes it; then it goes to whoever is next."""
    one, other = world.visit(way, from_("q", "one")), world.visit(way, from_("q", "other"), container="other")
    last = proton.Message("a1", group_id="a")
    last.group_sequence = 2**32 - 1
    publish(world, "q", *of("a", "a0"), last, *of("a", "a2"))
    world.fail_over()
    assert one.bodies(1) == ["a0"]
    assert other.bodies(2) == [], "it is the first one's"
    assert (one.bodies(1), other.bodies(0)) == (["a1"], ["a2"])
    publish(world, "q", *of("a", "a3", "a4"))
    assert one.bodies() == []
    other.leave(closes=True)
    assert one.bodies() == ["a3", "a4"]


def test_levels_of_priority_and_their_shares_are_those_of_the_queue_whoever_leads(way: str) -> None:
    world = FailingOver()
    world.leader.declare("q", priorities=10, fairshare=2)
    world.leader.declare("strict", priorities=10)
    levels = [proton.Message(str(level), priority=level) for level in (1, 9) for _ in range(4)]
    publish(world, "q", *levels)
    publish(world, "strict", *levels)
    shared, strict = world.visit(way, from_("q", "q")), world.visit(way, from_("strict", "s"), container="other")
    world.fail_over()
    assert "".join(shared.bodies()) == "99119911"
    assert "".join(strict.bodies()) == "99991111"


def test_a_queue_that_jms_made_has_its_levels_whoever_leads(way: str) -> None:
    world = FailingOver()
    before = world.visit(way, from_("before", "before", capabilities=("queue",)))
    levels = [proton.Message(str(level), priority=level) for level in (1, 9, 4) for _ in range(2)]
    publish(world, "before", *levels[:3])
    world.fail_over()
    after = world.visit(way, from_("after", "after", capabilities=("queue",)), container="other")
    publish(world, "before", *levels[3:])
    publish(world, "after", *levels)
    assert ("".join(before.bodies()), "".join(after.bodies())) == ("994411", "994411")


def test_a_message_lives_as_long_as_it_said_whoever_leads_and_is_told_what_is_left(
    world: FailingOver, way: str
) -> None:
    visit = world.visit(way, from_("q"))
    until = world.container.now_ms / SECOND + 5
    publish(world, "q", proton.Message("ttl", ttl=10), proton.Message("absolute", expiry_time=until))
    world.pass_time(4 * SECOND)
    world.fail_over()
    world.pass_time(2 * SECOND)
    ((message),) = visit.take()
    assert (message.body, message.ttl) == ("ttl", 4.0)


def test_one_consumer_at_a_time_is_active_at_the_next_primary(way: str) -> None:
    world = FailingOver()
    world.leader.declare("q", single_active_consumer=True)
    visits = [world.visit(way, from_("q", f"worker-{number}"), container=str(number)) for number in range(3)]
    world.fail_over()
    for visit in visits:
        visit.link.flow(10)
    world.settle_down()
    publish(world, "q", "a", "b")
    found = [visit.bodies(0) for visit in visits]
    assert sorted(found) == [[], [], ["a", "b"]]
    active = next(visit for visit, bodies in zip(visits, found, strict=True) if bodies)
    active.leave(closes=True)
    publish(world, "q", "c")
    assert sorted(visit.bodies() for visit in visits if visit is not active) == [[], ["c"]]


def test_consumers_have_their_priorities_at_the_next_primary(world: FailingOver, way: str) -> None:
    low = world.visit(way, from_("q", "low"), container="low")
    high = world.visit(way, asking("q", "high", priority=proton.int32(5)), container="high")
    world.fail_over()
    low.link.flow(10)
    high.link.flow(2)
    world.settle_down()
    publish(world, "q", "a", "b", "c")
    assert (high.client.bodies(high.link), low.client.bodies(low.link)) == (["a", "b"], ["c"])


def asking(address: str, name: str, **properties: Any) -> Attach:
    """A consumer's link with properties of its attach."""

    def attach(client: PairedClient) -> Any:
        link = client.session.receiver(name)
        link.source.address = address
        link.properties = {proton.symbol(key): value for key, value in properties.items()}
        return client.attach(link)

    return attach


def test_a_consumer_that_has_to_be_alone_is_alone_at_the_next_primary(world: FailingOver, way: str) -> None:
    visit = world.visit(way, asking("q", "alone", exclusive=True))
    world.fail_over()
    assert condition(visit.link) is None
    other = subscribe(world.direct("other"), "q")
    world.settle_down()
    assert condition(other) == "amqp:resource-locked"


def test_a_queue_keeps_the_last_value_of_each_key_and_takes_tombstones_whoever_leads(way: str) -> None:
    world = FailingOver()
    world.leader.declare("q", last_value_queue_key="key")
    visit = world.visit(way, from_("q"))
    publish(world, "q", *(proton.Message(body, properties={"key": body[0]}) for body in ("a1", "b1", "c1")))
    world.fail_over()
    gone = proton.Message("", properties={"key": "b"}, annotations={proton.symbol("x-opt-qpid-tombstone"): True})
    publish(world, "q", proton.Message("a2", properties={"key": "a"}), gone)
    assert visit.bodies() == ["c1", "a2"]
    assert world.queue("q").messages.count == 0


def test_what_failed_is_given_at_once_by_the_next_primary_and_waits_there_when_it_fails_again(way: str) -> None:
    world = FailingOver()
    world.leader.declare("q", redelivery_delay_ms=SECOND)
    visit = world.visit(way, from_("q"))
    publish(world, "q", "a")
    fail(world, visit)
    assert visit.bodies() == []
    world.fail_over()
    fail(world, visit)
    world.pass_time(SECOND)
    assert visit.bodies() == [], "it is the second time"
    world.pass_time(SECOND)
    assert visit.bodies() == ["a"]


def modify_one(world: FailingOver, visit: Visit, *, failed: bool = False, undeliverable: bool = False) -> None:
    """Its client gets one message, and gives it back."""
    visit.link.flow(1)
    world.settle_down()
    ((delivery, _),) = visit.client.received(visit.link)
    delivery.local.failed, delivery.local.undeliverable = failed, undeliverable
    delivery.update(proton.Delivery.MODIFIED)
    delivery.settle()


def fail(world: FailingOver, visit: Visit) -> None:
    """Its client gets one message, and cannot do it."""
    modify_one(world, visit, failed=True)
    world.settle_down()


def decline(world: FailingOver, visit: Visit, *, is_told: bool = True) -> None:
    """Its client gets one message, and finds it undeliverable here. `is_told`: so the primary hears."""
    modify_one(world, visit, undeliverable=True)
    if is_told:
        world.settle_down()
    else:
        visit.client.exchange()


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_what_a_link_has_declined_goes_to_another_one_at_the_next_primary(
    world: FailingOver, grouped: bool, is_told: bool
) -> None:
    """The link of a proxy's client is the same one over any number of failovers, and never gets it again."""
    visit = world.visit("proxied", from_("q"))
    publish(world, "q", proton.Message("a", group_id="g" if grouped else None), "b")
    decline(world, visit, is_told=is_told)
    for number in range(2):
        world.fail_over(at_once=number == 0 and not is_told)
        publish(world, "q", f"c{number}")
        assert visit.bodies() == [*["b"][number:], f"c{number}"]
    world.cut()
    world.connect_upstream()
    assert visit.bodies() == []
    other = world.visit("direct", from_("q", "other"), container="other")
    assert other.bodies() == ["a"]
    assert visit.bodies() == []


def test_a_proxy_tells_the_next_primary_of_what_is_there_and_of_no_more_than_that_takes(
    world: FailingOver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed_links, "DECLINED_MOST", 2)
    visit = world.visit("proxied", from_("q"))
    publish(world, "q", *"abc")
    for _ in range(3):
        decline(world, visit)
    (far,) = world.links
    assert isinstance(far, relayed_links.RelayedConsumer)
    assert len(far.request().declined) == 2
    world.fail_over()
    assert visit.bodies() == ["a"], "it is the oldest"
    other = world.visit("direct", from_("q", "other"), container="other")
    assert other.bodies() == ["b", "c"]
    world.cut()
    world.connect_upstream()
    assert far.request().declined == ()


# --- corners of the protocol


def test_delivery_annotations_are_nobodys_after_a_failover(world: FailingOver, way: str) -> None:
    visit = world.visit(way, from_("q"))
    message = proton.Message("a", annotations={proton.symbol("x-opt-kept"): "yes"})
    message.instructions = {proton.symbol("x-opt-secret"): "for the broker"}
    visit.client.publish("q", message)
    world.fail_over()
    (found,) = visit.take()
    assert (dict(found.annotations), dict(found.instructions or {})) == ({"x-opt-kept": "yes"}, {})


IDS = {
    "ID:AMQP_ULONG:5": proton.ulong(5),
    "ID:AMQP_BINARY:0AFF": b"\x0a\xff",
    "text": "text",
}


@pytest.mark.parametrize(("shown", "value"), IDS.items())
def test_an_answer_is_found_by_an_id_of_any_type_at_the_next_primary(
    world: FailingOver, way: str, shown: str, value: Any
) -> None:
    visit = world.visit(way, from_("q", filters={"s": (SELECTOR, f"JMSCorrelationID = '{shown}'")}))
    publish(world, "q", proton.Message("other", correlation_id="other"), proton.Message("mine", correlation_id=value))
    world.fail_over()
    (found,) = visit.take()
    assert (found.body, found.correlation_id) == ("mine", value)
