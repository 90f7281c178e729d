"""Stories about what an address means: a queue or a topic, as a link, a message, the address or a rule says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import proton
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from access_support import controlled
from paired_engines import PairedBroker, PairedClient, client_of
from paired_links import condition, subscribe, symbols
from qpid_ha_broker.access.address_rules import BUILT_IN, AddressRule, NodeKind, rules_in_force
from qpid_ha_broker.access.rules import Permission, Subject
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.connections.nodes import NodeSettings
from qpid_ha_broker.model.exchanges.topic_trie import TopicTrie
from qpid_ha_config.access_rules import parse_entries
from qpid_ha_config.address_rules import parse_address_rules

ROOT = Path(__file__).resolve().parents[2]

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
QUEUE, TOPIC, TEMPORARY_QUEUE, TEMPORARY_TOPIC = map(proton.byte, range(4))
RABBITMQ_4 = (
    AddressRule("/queues/{queue}", NodeKind.QUEUE, "{queue}", percent_encoded=True),
    AddressRule("/exchanges/{exchange}/{key}", NodeKind.EXCHANGE, "{exchange}", "{key}", percent_encoded=True),
    AddressRule("/exchanges/{exchange}", NodeKind.EXCHANGE, "{exchange}", percent_encoded=True),
)
RABBITMQ_3 = (
    AddressRule("/topic/{topic}", NodeKind.TOPIC, "{topic}"),
    AddressRule("/queue/{queue}", NodeKind.QUEUE, "{queue}"),
    AddressRule("/amq/queue/{queue}", NodeKind.QUEUE, "{queue}", auto_create=False),
    AddressRule("/exchange/{exchange}/{key}", NodeKind.EXCHANGE, "{exchange}", "{key}"),
)


def with_rules(*rules: AddressRule, auto_create: bool = True) -> PairedBroker:
    nodes = NodeSettings(auto_create, address_rules=rules_in_force(rules))
    return PairedBroker(ContainerSettings("test", "0", nodes=nodes))


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


def sender(
    client: PairedClient, address: str | None, *capabilities: str, name: str = "out", dynamic: bool = False
) -> Any:
    """A publisher's link, whose attach has been answered."""
    link = client.session.sender(name)
    link.target.address = address
    link.target.dynamic = dynamic
    if capabilities:
        link.target.capabilities.put_object(symbols(*capabilities))
    return client.attach(link)


def consumer(client: PairedClient, address: str | None, *capabilities: str, **options: Any) -> Any:
    link = subscribe(client, address, options.pop("name", f"from {address}"), capabilities=capabilities, **options)
    link.flow(100)
    client.broker.settle_down()
    return link


def bodies(client: PairedClient, link: Any) -> list[str]:
    return [message.body for _, message in client.received(link)]


def send(client: PairedClient, link: Any, body: str, **fields: Any) -> Any:
    delivery = client.send(link, proton.Message(body, **fields))
    client.broker.settle_down()
    return delivery


def jms(client: PairedClient, link: Any, body: str, address: str, kind: Any, **fields: Any) -> Any:
    """What Qpid JMS sends by an anonymous producer."""
    message = proton.Message(body, address=address, **fields)
    message.annotations = {proton.symbol("x-opt-jms-dest"): kind, proton.symbol("x-opt-jms-msg-type"): proton.byte(5)}
    delivery = client.send(link, message)
    client.broker.settle_down()
    return delivery


def value(data: Any) -> Any:
    data.rewind()
    return data.get_object() if data.next() is not None else None


def queues(broker: PairedBroker) -> list[str]:
    """Those that are none of a subscription's."""
    names = broker.container.default.resources.catalog.queues
    return [name for name in names if not name.startswith("subscription")]


# --- a queue and a topic of one name


def test_a_queue_and_a_topic_may_have_one_name(broker: PairedBroker, client: PairedClient) -> None:
    """Qpid JMS: `createQueue("a.b")` and `createTopic("a.b")`, with JMSType set, which is the subject."""
    reader = consumer(client, "a.b", "queue", name="reader")
    subscribers = [consumer(client, "a.b", "topic", name=name) for name in ("one", "two")]
    send(client, sender(client, "a.b", "queue", name="q"), "to the queue", subject="type")
    send(client, sender(client, "a.b", "topic", name="t"), "to the topic", subject="type")
    assert bodies(client, reader) == ["to the queue"]
    assert [bodies(client, each) for each in subscribers] == [["to the topic"], ["to the topic"]]
    assert queues(broker) == ["a.b"]
    assert "a.b" not in broker.container.default.resources.catalog.exchanges


def test_who_does_not_say_has_the_queue_that_is_there_or_gets_one(broker: PairedBroker, client: PairedClient) -> None:
    consumer(client, "a.b", "topic")
    send(client, sender(client, "a.b"), "plain")
    assert queues(broker) == ["a.b"]
    assert broker.queue("a.b").messages.count == 1


def test_the_answer_says_what_it_is(client: PairedClient) -> None:
    for kind in ("queue", "topic"):
        assert value(consumer(client, kind, kind, "x").remote_source.capabilities) == symbols(kind)
        link = sender(client, kind, kind, name=kind)
        assert value(link.remote_target.capabilities) == symbols(kind)
        assert link.remote_target.address == kind


def test_an_exchange_of_that_name_comes_first(broker: PairedBroker, client: PairedClient) -> None:
    broker.container.default.configuration.declare_exchange("news", "topic", {})
    reader = consumer(client, "news", "topic", name="all")
    of_key = consumer(client, "news/sport", "topic", name="some")
    send(client, sender(client, "news", "topic"), "by subject", subject="sport")
    assert bodies(client, reader) == bodies(client, of_key) == ["by subject"]


def test_topics_are_subscribed_to_by_patterns(client: PairedClient) -> None:
    found = {each: consumer(client, each, "topic") for each in ("a.*", "a.#", "*.b", "a.b", "#", "b.#")}
    for topic in ("a.b", "a", "a.b.c"):
        send(client, sender(client, topic, "topic", name=topic), topic)
    received = {pattern: bodies(client, link) for pattern, link in found.items()}
    everything = ["a.b", "a", "a.b.c"]
    two_words = {pattern: ["a.b"] for pattern in ("a.*", "*.b", "a.b")}
    assert received == {**two_words, "a.#": everything, "#": everything, "b.#": []}


def test_a_durable_subscription_to_a_topic_outlives_its_link(broker: PairedBroker) -> None:
    client = PairedClient(broker, container="shop")
    broker.settle_down()
    link = consumer(client, "orders", "topic", name="mine", durable=True)
    link.detach()
    broker.settle_down()
    send(client, sender(client, "orders", "topic"), "meanwhile")
    again = PairedClient(broker, container="shop")
    broker.settle_down()
    assert bodies(again, consumer(again, "orders", "topic", name="mine", durable=True)) == ["meanwhile"]


def test_what_nobody_subscribes_to_is_accepted_and_unroutable(broker: PairedBroker, client: PairedClient) -> None:
    assert send(client, sender(client, "a.b", "topic"), "x").remote_state == ACCEPTED
    assert queues(broker) == []


# --- by each message


def test_an_anonymous_producer_says_of_each_message_what_it_is_for(broker: PairedBroker, client: PairedClient) -> None:
    reader, subscriber = consumer(client, "a.b", "queue", name="q"), consumer(client, "a.b", "topic", name="t")
    relay = sender(client, None)
    assert jms(client, relay, "1", "a.b", QUEUE).remote_state == ACCEPTED
    assert jms(client, relay, "2", "a.b", TOPIC, subject="type").remote_state == ACCEPTED
    assert send(client, relay, "3", address="a.b").remote_state == ACCEPTED
    assert send(client, relay, "4", address="topic://a.b").remote_state == ACCEPTED
    assert jms(client, relay, "5", "new", QUEUE).remote_state == ACCEPTED
    assert bodies(client, reader) == ["1", "3"]
    assert bodies(client, subscriber) == ["2", "4"]
    assert queues(broker) == ["a.b", "new"]


@pytest.mark.parametrize("kind", [4, -1, "topic", True, 1.0])
def test_a_kind_that_is_none_is_refused(broker: PairedBroker, client: PairedClient, kind: Any) -> None:
    delivery = jms(client, sender(client, None), "x", "a.b", kind)
    assert delivery.remote_state == REJECTED
    assert delivery.remote.condition.name == "amqp:invalid-field"
    assert "x-opt-jms-dest" in delivery.remote.condition.description
    assert queues(broker) == []


def test_a_message_that_contradicts_what_is_there_is_refused(client: PairedClient) -> None:
    relay = sender(client, None)
    delivery = jms(client, relay, "x", "amq.fanout", QUEUE)
    assert delivery.remote.condition.name == "amqp:precondition-failed"
    delivery = jms(client, relay, "x", "topic://a", QUEUE)
    assert delivery.remote.condition.name == "amqp:precondition-failed"


@pytest.mark.parametrize("kind", [TEMPORARY_QUEUE, TEMPORARY_TOPIC])
def test_what_was_temporary_is_not_made_by_who_replies(broker: PairedBroker, client: PairedClient, kind: Any) -> None:
    """JMS throws an InvalidDestinationException."""
    delivery = jms(client, sender(client, None), "late", "temporary.gone", kind)
    assert delivery.remote.condition.name == "amqp:not-found"
    for capability in ("temporary-queue", "temporary-topic"):
        assert condition(sender(client, "temporary.gone", capability, name=capability)) == "amqp:not-found"
    assert queues(broker) == []


# --- temporary topics


def test_a_temporary_topic_is_published_to_by_all_and_goes_with_its_link(
    broker: PairedBroker, client: PairedClient
) -> None:
    """Qpid JMS: `createTemporaryTopic` is a dynamic sender; its consumer and who replies name what the answer names."""
    creator = sender(client, None, "temporary-topic", name="creator", dynamic=True)
    topic = creator.remote_target.address
    assert topic.startswith("amq.topic/temporary.")
    assert value(creator.remote_target.capabilities) == symbols("temporary-topic")
    subscribers = [consumer(client, topic, "temporary-topic", name=name) for name in ("one", "two")]
    assert value(subscribers[0].remote_source.capabilities) == symbols("temporary-topic")
    other = broker.connect()
    named = sender(other, topic, "temporary-topic", name="named")
    send(other, named, "1", subject="type")
    jms(other, sender(other, None, name="any"), "2", topic, TEMPORARY_TOPIC)
    send(other, sender(other, topic, name="plain"), "3")
    assert [bodies(client, each) for each in subscribers] == [["1", "2", "3"]] * 2
    creator.close()
    broker.settle_down()
    assert {condition(link) for link in (*subscribers, named)} == {"amqp:resource-deleted"}
    assert not list(broker.container.default.resources.catalog.queues)
    assert len(broker.container.nodes.topics) == 0


def test_a_dynamic_source_may_be_a_topic(broker: PairedBroker, client: PairedClient) -> None:
    """Proton: `create_receiver(dynamic=True)` with the capability; what comes to the topic comes to all."""
    link = consumer(client, None, "temporary-topic", name="own", dynamic=True)
    topic = link.remote_source.address
    another = consumer(client, topic, name="another")
    send(client, sender(client, topic), "x")
    assert bodies(client, link) == bodies(client, another) == ["x"]
    link.close()
    broker.settle_down()
    assert condition(another) == "amqp:resource-deleted"


def test_a_client_that_vanishes_takes_its_temporary_topics_along(broker: PairedBroker) -> None:
    client, other = broker.connect(), broker.connect()
    topic = sender(client, None, "topic", dynamic=True).remote_target.address
    consumer(client, topic, name="own")
    reader, publisher = consumer(other, topic), sender(other, topic)
    client.vanish()
    broker.settle_down()
    assert condition(reader) == condition(publisher) == "amqp:resource-deleted"
    assert len(broker.container.nodes.topics) == 0


def test_who_leaves_a_temporary_topic_ends_nobody_else(broker: PairedBroker, client: PairedClient) -> None:
    creator = sender(client, None, "temporary-topic", name="creator", dynamic=True)
    topic = creator.remote_target.address
    stays, leaves = consumer(client, topic, name="stays"), consumer(client, topic, name="leaves")
    leaves.close()
    broker.settle_down()
    send(client, creator, "x")
    assert bodies(client, stays) == ["x"]


@pytest.mark.parametrize("pattern", ["temporary.*", "temporary.#", "temporary.x.*"])
def test_nobody_listens_to_the_temporary_topics_of_others(client: PairedClient, pattern: str) -> None:
    for number, address in enumerate((f"topic://{pattern}", f"amq.topic/{pattern}")):
        assert condition(consumer(client, address, name=str(number))) == "amqp:not-allowed"
    filters = {"k": ("apache.org:legacy-amqp-topic-binding:string", pattern)}
    assert condition(subscribe(client, "amq.topic/a", "filter", filters=filters)) == "amqp:not-allowed"
    assert condition(consumer(client, f"temporary{pattern}", "topic")) is None


def test_a_temporary_capability_is_answered_where_it_is_true(client: PairedClient) -> None:
    send(client, sender(client, "q"), "x")
    assert value(consumer(client, "q", "temporary-queue").remote_source.capabilities) is None
    assert value(consumer(client, "amq.topic", "temporary-topic").remote_source.capabilities) is None
    link = consumer(client, None, "temporary-queue", name="own", dynamic=True)
    assert value(link.remote_source.capabilities) == symbols("temporary-queue")


# --- what an address says


@pytest.mark.parametrize(
    ("address", "kind", "name"),
    [("queue://a.b", "queue", "a.b"), ("topic://a.b", "topic", "a.b"), ("queue://x/y", "queue", "x/y")],
)
def test_a_prefix_says_what_it_is(
    broker: PairedBroker, client: PairedClient, address: str, kind: str, name: str
) -> None:
    """rhea and Proton, with addresses as of ActiveMQ: they send no capabilities."""
    plain, prefixed = consumer(client, name, kind), consumer(client, address)
    assert prefixed.remote_source.address == address
    send(client, sender(client, address), "1")
    send(client, sender(client, name, kind, name="plain"), "2")
    received = bodies(client, plain), bodies(client, prefixed)
    if kind == "topic":
        assert received == (["1", "2"], ["1", "2"])
    else:
        assert sorted([*received[0], *received[1]]) == ["1", "2"]
    assert queues(broker) == ([name] if kind == "queue" else [])


def test_an_address_that_contradicts_its_link_is_refused(broker: PairedBroker, client: PairedClient) -> None:
    assert condition(sender(client, "queue://a", "topic", name="1")) == "amqp:precondition-failed"
    assert condition(consumer(client, "topic://a", "queue")) == "amqp:precondition-failed"
    assert queues(broker) == []


def test_an_address_of_a_queue_leads_to_no_exchange(broker: PairedBroker, client: PairedClient) -> None:
    for number, address in enumerate(("queue://amq.fanout", "queue://amq.topic/k", "queue://amq.qpid")):
        assert condition(consumer(client, address, name=str(number))) == "amqp:precondition-failed"
    assert condition(consumer(client, "topic://amq.fanout")) is None


def test_a_queue_that_has_been_called_by_the_whole_address_stays_what_it_is(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("topic://a", {})
    client = broker.connect()
    send(client, sender(client, "topic://a"), "x")
    assert broker.queue("topic://a").messages.count == 1


@pytest.mark.parametrize("prefix", ["queue://", "topic://"])
@pytest.mark.parametrize("name", ["$management", "$x", "amq.qpid", "amq.qpid/cluster"])
def test_no_prefix_leads_to_what_is_the_brokers_own(
    broker: PairedBroker, client: PairedClient, prefix: str, name: str
) -> None:
    before = broker.container.default.resources.replicated.log.last_lsn
    link = sender(client, f"{prefix}{name}")
    assert condition(link) in ("amqp:not-found", "amqp:unauthorized-access", "amqp:precondition-failed")
    assert send(client, sender(client, None, name="any"), "x", address=f"{prefix}{name}").remote_state == REJECTED
    assert broker.container.default.resources.replicated.log.last_lsn == before


# --- rules


def test_the_addresses_of_rabbitmq_4_can_be_switched_on() -> None:
    """amqp10 and RabbitMQ's own AMQP 1.0 clients: `/queues/Q` and `/exchanges/X/KEY`, percent-encoded."""
    broker = with_rules(*RABBITMQ_4)
    configuration = broker.container.default.configuration
    configuration.declare_queue("a/b", {})
    configuration.declare_exchange("my/x", "direct", {})
    configuration.bind("my/x", "a/b", "k 1%", {})
    client = broker.connect()
    reader = consumer(client, "/queues/a%2Fb")
    send(client, sender(client, "/queues/a%2Fb", name="q"), "1")
    send(client, sender(client, "/exchanges/my%2Fx/k%201%25", name="x"), "2", subject="other")
    send(client, sender(client, "/exchanges/my%2Fx", name="y"), "3", subject="k 1%")
    relay = sender(client, None, name="any")
    send(client, relay, "4", address="/exchanges/my%2Fx/k%201%25")
    assert bodies(client, reader) == ["1", "2", "3", "4"]
    consumer(client, "/queues/new")
    assert "new" in queues(broker)


@pytest.mark.parametrize(
    ("address", "name", "part"),
    [
        ("/exchanges/x/%zz", "amqp:invalid-field", "%zz is no byte"),
        ("/exchanges/x/%", "amqp:invalid-field", "% is no byte"),
        ("/queues/%4", "amqp:invalid-field", "%4 is no byte"),
        ("/queues/%ff", "amqp:invalid-field", "not UTF-8"),
        ("/queues/a/b", "amqp:invalid-field", "%2F"),
        ("/exchanges/none", "amqp:not-found", "no exchange none"),
        ("/exchanges/none/k", "amqp:not-found", "no exchange none"),
    ],
)
def test_an_address_that_no_rule_can_read_is_refused_with_what_to_write(address: str, name: str, part: str) -> None:
    broker = with_rules(*RABBITMQ_4)
    client = broker.connect()
    for link in (sender(client, address), consumer(client, address)):
        assert condition(link) == name
        assert part in link.remote_condition.description
    delivery = send(client, sender(client, None, name="any"), "x", address=address)
    assert delivery.remote.condition.name == name
    assert queues(broker) == []


def test_the_addresses_of_rabbitmq_3_can_be_switched_on() -> None:
    broker = with_rules(*RABBITMQ_3)
    client = broker.connect()
    subscriber = consumer(client, "/topic/a.*")
    send(client, sender(client, "/topic/a.b", name="1"), "topic")
    assert bodies(client, subscriber) == ["topic"]
    assert condition(sender(client, "/amq/queue/q", name="2")) == "amqp:not-found"
    reader = consumer(client, "/queue/q")
    send(client, sender(client, "/amq/queue/q", name="3"), "queue")
    send(client, sender(client, "/exchange/amq.topic/a.c", name="4"), "key")
    assert (bodies(client, reader), bodies(client, subscriber)) == (["queue"], ["key"])


def test_the_prefixes_of_artemis_can_be_switched_on() -> None:
    broker = with_rules(
        AddressRule("jms.queue.{name}", NodeKind.QUEUE, "{name}"),
        AddressRule("jms.topic.{name}", NodeKind.TOPIC, "{name}"),
        AddressRule("{address}::{queue}", NodeKind.QUEUE, "{queue}"),
    )
    client = broker.connect()
    subscriber = consumer(client, "jms.topic.a")
    send(client, sender(client, "jms.queue.a", name="q"), "1")
    send(client, sender(client, "a", "topic", name="t"), "2")
    assert (broker.queue("a").messages.count, bodies(client, subscriber)) == (1, ["2"])
    assert bodies(client, consumer(client, "whatever::a")) == ["1"]


def test_the_rules_in_the_documentation_can_be_used() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```yaml")[1:] if "address-rules:" in block]
    assert len(blocks) == 2
    for block in blocks:
        assert parse_address_rules(yaml.safe_load(block)["address-rules"])


def test_a_rule_that_keeps_the_name_is_for_who_does_not_say() -> None:
    broker = with_rules(
        AddressRule("news.{x}", NodeKind.TOPIC, "news.{x}"),
        AddressRule("news.{x}", NodeKind.QUEUE, "news.{x}", arguments={"qpid.max_count": 5}),
        AddressRule("jobs.{x}", NodeKind.QUEUE, "jobs.{x}", arguments={"qpid.priorities": 3}),
    )
    client = broker.connect()
    subscriber = consumer(client, "news.sport")
    send(client, sender(client, "news.sport"), "topic")
    send(client, sender(client, "news.sport", "queue", name="q"), "queue")
    assert bodies(client, subscriber) == ["topic"]
    assert broker.queue("news.sport").arguments.given["qpid.max_count"] == 5
    assert condition(sender(client, "jobs.1", name="jobs")) is None
    assert broker.queue("jobs.1").arguments.given["qpid.priorities"] == 3
    asks = subscribe(client, "jobs.2", "asks", properties={"qpid.priorities": 7})
    assert value(asks.remote_source.properties) == {"qpid.priorities": 7}


def test_without_auto_create_a_topic_has_to_be_declared_or_allowed_by_a_rule() -> None:
    broker = with_rules(
        AddressRule("news.{x}", NodeKind.TOPIC, "news.{x}", auto_create=True),
        AddressRule("jobs.{x}", NodeKind.QUEUE, "jobs.{x}", auto_create=True),
        auto_create=False,
    )
    broker.container.default.configuration.declare_exchange("declared", "topic", {})
    client = broker.connect()
    for number, (address, *capabilities) in enumerate([("a.b", "topic"), ("topic://a.b",), ("a.b", "queue"), ("a.b",)]):
        link = sender(client, address, *capabilities, name=str(number))
        assert condition(link) == "amqp:not-found"
        assert "auto-create is off" in link.remote_condition.description
        assert condition(consumer(client, address, *capabilities, name=f"c{number}")) == "amqp:not-found"
    assert "amq.topic/a.b" in sender(client, "a.b", "topic", name="x").remote_condition.description
    for number, address in enumerate(["amq.topic/a.b", "news.1", "jobs.1", "declared"]):
        assert condition(sender(client, address, name=f"is there {number}")) is None
    assert condition(sender(client, None, "temporary-topic", name="own", dynamic=True)) is None


def test_topics_alone_can_be_let_be_without_being_declared() -> None:
    """`auto-create: false` for queues, and topics for who asks for them: what Qpid JMS needs there."""
    broker = with_rules(
        AddressRule("{name}", NodeKind.QUEUE, "{name}"),
        AddressRule("{name}", NodeKind.TOPIC, "{name}", auto_create=True),
        auto_create=False,
    )
    client = broker.connect()
    subscriber = consumer(client, "a.*", "topic")
    send(client, sender(client, "a.b", "topic", name="t"), "x")
    assert bodies(client, subscriber) == ["x"]
    for number, capabilities in enumerate(((), ("queue",))):
        assert condition(sender(client, "a.b", *capabilities, name=str(number))) == "amqp:not-found"


def test_no_create_makes_neither_a_queue_nor_a_topic(broker: PairedBroker, client: PairedClient) -> None:
    assert condition(sender(client, "a", "qpid.no-create", name="1")) == "amqp:not-found"
    assert condition(sender(client, "a", "topic", "qpid.no-create", name="2")) == "amqp:not-found"


def test_it_is_logged_once_for_whom_a_queue_was_made_that_was_not_there() -> None:
    """An address mistyped makes a queue where `auto-create` is on: the log has who named it."""
    broker = PairedBroker()
    client, ada = broker.connect(), client_of(broker, user="ada")
    broker.container.take_notices()
    consumer(client, "ordres")
    sender(ada, "inviocs")
    send(client, sender(client, None, name="relay"), "x", address="paymets")
    for number, address in enumerate(["ordres", "inviocs", "amq.topic/a", "amq.direct"]):
        consumer(client, address, name=f"again {number}")
    notices = broker.container.take_notices()
    named = [(notice.level, notice.text.partition(" names ")[2]) for notice in notices if " names " in notice.text]
    assert named == [
        ("info", "queue ordres, which was not there: it is made (auto-create)"),
        ("info", "queue inviocs, which was not there: it is made for ada (auto-create)"),
        ("info", "queue paymets, which was not there: it is made (auto-create)"),
    ]


def test_an_operators_rule_for_a_prefix_takes_the_place_of_the_built_in_one() -> None:
    own = AddressRule("queue://{name}", NodeKind.QUEUE, "q.{name}")
    assert rules_in_force([own]) == (BUILT_IN[1], own)
    everything = AddressRule("{name}", NodeKind.TOPIC, "{name}")
    assert rules_in_force([everything]) == (*BUILT_IN, everything)


def test_a_long_address_is_read_in_no_time() -> None:
    """Each piece ends at the first character of what follows it: nothing is tried twice."""
    rule = AddressRule("{a}.{b}.{c}.{d}!{e}", NodeKind.QUEUE, "{e}")
    assert rule.apply("a." * 500_000) is None
    assert rule.apply(f"{'a' * 500_000}.b.c.d!e") == (NodeKind.QUEUE, "e", None)


# --- who may


ALICE = Subject("alice", is_local=False)


@pytest.mark.parametrize(
    ("rules", "topic", "is_allowed"),
    [
        (["allow alice consume amq.topic"], "a.b", True),
        (["allow alice consume amq.topic"], "#", True),
        (["allow alice consume amq.topic/a.b"], "a.b", True),
        (["allow alice consume amq.topic/a.b"], "a.c", False),
        (["allow alice consume amq.topic/a.b"], "#", False),
        (["allow alice consume a.b"], "a.b", False),
        (["allow alice consume amq.topic/a.*"], "a.b", True),
        (["allow alice consume amq.topic/a.*"], "a.*", True),
        (["allow alice consume amq.topic/a.*"], "a.b.#", True),
        (["allow alice consume amq.topic/a.*"], "a.#", False),
        (["allow alice consume amq.topic/a.*"], "*.b", False),
        (["allow alice consume 'amq.topic/a.#'"], "a.#", True),
        (["allow alice consume amq.topic/*"], "#", True),
        (["allow alice consume amq.topic/${user}.*"], "alice.in", True),
        (["allow alice consume amq.topic/${user}.*"], "bob.in", False),
        (["allow alice consume 'regex:amq[.]topic/[a-c]'"], "b", True),
        (["allow alice consume 'regex:amq[.]topic/[a-c]'"], "*", False),
        (["deny alice consume amq.topic", "allow alice consume amq.topic/a.b"], "a.b", False),
        (["deny alice consume amq.topic/secret.*", "allow alice consume amq.topic"], "secret.x", False),
        (["deny alice consume amq.topic/secret.*", "allow alice consume amq.topic"], "open.x", True),
        (["deny alice consume amq.topic/secret.*", "allow alice consume amq.topic"], "open.*", True),
        (["deny alice consume amq.topic/secret.*", "allow alice consume amq.topic"], "#", False),
        (["deny alice consume amq.topic/secret.*", "allow alice consume amq.topic"], "secret.*", False),
        (["deny alice consume amq.topic/secret.*", "allow alice consume amq.topic"], "*.x", False),
        (["deny alice consume amq.topic/secret.*", "allow alice consume amq.topic"], "secret.#", False),
        (["deny alice consume amq.topic/secret", "allow alice consume amq.topic"], "secret.#", False),
        (["deny alice consume amq.topic/secret", "allow alice consume amq.topic"], "secret.*", True),
        (["deny alice consume amq.topic/${user}.x", "allow alice consume amq.topic"], "alice.#", False),
        (["deny alice consume 'regex:amq[.]topic/s.*'", "allow alice consume amq.topic"], "#", False),
        (["deny alice consume 'regex:log.*'", "allow alice consume amq.topic"], "#", True),
    ],
)
def test_rules_name_topics_one_by_one(rules: list[str], topic: str, is_allowed: bool) -> None:
    assert controlled(*rules).decide(ALICE, Permission.CONSUME, "amq.topic", topic).is_allowed is is_allowed


words = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=4).map(".".join)
named = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=3).map(".".join)
nodes = st.one_of(named, named.map(lambda text: f"{text}*"), named.map(lambda text: f"{text}.*"), st.just("*"))
lines = st.lists(st.tuples(st.sampled_from(["allow", "deny"]), nodes | st.none()), max_size=5)
topics = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=5).map(".".join)


@given(lines, words, st.lists(topics, min_size=1, max_size=20))
def test_who_may_have_many_topics_may_have_each_of_them(
    given_lines: list[tuple[str, str | None]], pattern: str, asked: list[str]
) -> None:
    """The promise of rules for patterns of topics, whatever the order of allowing and denying."""
    rules = [f"{verb} alice consume 'amq.topic{'' if node is None else f'/{node}'}'" for verb, node in given_lines]
    access = controlled(*rules)
    if not access.decide(ALICE, Permission.CONSUME, "amq.topic", pattern).is_allowed:
        return
    trie = TopicTrie()
    trie.add(pattern, 1)
    for topic in asked:
        if trie.match(topic):
            assert access.decide(ALICE, Permission.CONSUME, "amq.topic", topic).is_allowed, (rules, pattern, topic)


def put_in_force(broker: PairedBroker, *rules: str) -> None:
    broker.container.access.change(parse_entries(rules).rules, "")


def test_a_topic_is_called_so_by_rules_whichever_address_leads_to_it(
    broker: PairedBroker, client: PairedClient
) -> None:
    put_in_force(broker, "allow all publish,consume amq.topic/a.b", "allow all publish,consume,create q")
    for number, address in enumerate([("a.b", "topic"), ("topic://a.b",), ("amq.topic/a.b",)]):
        assert condition(sender(client, *address, name=f"s{number}")) is None
        assert condition(consumer(client, *address, name=f"c{number}")) is None
    for number, address in enumerate([("a.c", "topic"), ("topic://a.*",), ("amq.topic",), ("q", "topic"), ("a.b",)]):
        link = sender(client, *address, name=f"denied {number}")
        assert condition(link) == "amqp:unauthorized-access"
    assert "allow anonymous publish amq.topic/a.c" in sender(client, "a.c", "topic").remote_condition.description
    relay = sender(client, None, name="any")
    assert jms(client, relay, "x", "a.b", TOPIC).remote_state == ACCEPTED
    assert jms(client, relay, "x", "a.c", TOPIC).remote_state == REJECTED
    assert jms(client, relay, "x", "q", TOPIC).remote_state == REJECTED
    assert jms(client, relay, "x", "q", QUEUE).remote_state == ACCEPTED


def test_an_operator_asks_about_a_topic_by_its_name(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("q", {})
    nodes = broker.container.nodes
    assert nodes.access_by_name("amq.topic/a.b") == ("amq.topic", "a.b")
    assert nodes.access_by_name("amq.topic") == ("amq.topic", "#")
    for name in ("q", "amq.direct", "nothing", "nothing/x"):
        assert nodes.access_by_name(name) == (name, None)
    assert nodes.access_by_name("amq.direct/k") == ("amq.direct", None)


def test_a_binding_key_in_a_filter_is_what_is_asked_for(broker: PairedBroker, client: PairedClient) -> None:
    put_in_force(broker, "allow all consume amq.topic/a.b", "allow all consume news/a.b")
    broker.container.default.configuration.declare_exchange("news", "topic", {})
    for name in ("amq.topic", "news"):
        for key, expected in (("a.b", None), ("#", "amqp:unauthorized-access"), ("a.c", "amqp:unauthorized-access")):
            filters = {"k": ("apache.org:legacy-amqp-topic-binding:string", key)}
            for address in (name, f"{name}/a.b"):
                link = subscribe(client, address, f"{address} {key}", filters=filters)
                assert condition(link) == expected


def test_a_temporary_topic_needs_no_more_than_a_temporary_queue_for_who_has_it(
    broker: PairedBroker, client: PairedClient
) -> None:
    put_in_force(broker, "allow all create temporary.", "allow all publish,consume amq.topic/temporary.*")
    creator = sender(client, None, "temporary-topic", dynamic=True)
    topic = creator.remote_target.address
    assert condition(consumer(client, topic, "temporary-topic")) is None
    put_in_force(broker, "deny all all")
    assert condition(sender(client, None, "temporary-topic", name="other", dynamic=True)) == "amqp:unauthorized-access"


def test_a_subscription_to_a_topic_ends_when_other_rules_deny_it(broker: PairedBroker, client: PairedClient) -> None:
    links = [consumer(client, topic, "topic") for topic in ("a", "b", "#")]
    put_in_force(broker, "deny all consume amq.topic/a", "allow all consume")
    assert [condition(link) for link in links] == [None] * 3
    broker.connections.check_access()
    broker.settle_down()
    assert [condition(link) for link in links] == ["amqp:unauthorized-access", None, "amqp:unauthorized-access"]
