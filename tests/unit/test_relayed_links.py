"""Links that a proxy relays, with real ends: a client, the proxy, the primary, and a connection that breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import proton
import pytest

import raw_peer
from paired_engines import BROKER, PairedBroker, PairedClient
from paired_links import condition
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.connections.relayed_memory import COPIES
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.links.relayed_links import RelayedConsumer, RelayedPublisher
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.relay import PATH, RELAY_CAPABILITY
from qpid_ha_broker.events.types import GenerationStarted, Scalar
from qpid_ha_broker.model.transactions.producers import client_producer
from session_clients import numbered
from session_support import FIRST

GENERATION = GenerationStarted(1, "primary", "cluster", 0, False, "")
ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED


def texts(client: PairedClient, link: Any) -> list[tuple[Any, str]]:
    return [(delivery, message.body) for delivery, message in client.received(link)]


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


@pytest.fixture
def client(proxied: PairedProxy) -> PairedClient:
    return proxied.client()


def waiting(proxied: PairedProxy) -> list[bytes]:
    """What the queue at the primary has."""
    return [bytes(entry.resident_body()) for entry in proxied.primary.queue("q").messages]


def limit_queue(proxied: PairedProxy, **most: int) -> None:
    """Have a queue at the primary: `max_size` in bytes, `max_count`."""
    proxied.primary.container.default.configuration.declare_queue("q", refusing(most))


def change_limit(proxied: PairedProxy, **most: int) -> None:
    """Of the queue that there is: see `limit_queue`."""
    proxied.primary.container.default.configuration.update_queue("q", refusing(most))


def refusing(most: dict[str, int]) -> dict[str, Scalar]:
    """Arguments of a queue that refuses what is beyond its limits."""
    return {"qpid.policy_type": "reject", **{f"qpid.{limit}": value for limit, value in most.items()}}


def test_a_message_arrives_with_its_bytes_untouched_and_is_accepted_by_the_primary(
    proxied: PairedProxy, client: PairedClient
) -> None:
    out = client.sender("q")
    message = proton.Message("text", durable=True, properties={"a": 1}, annotations={proton.symbol("x"): 2})
    delivery = client.send(out, message)
    proxied.settle_down()
    assert delivery.remote_state == ACCEPTED
    assert delivery.settled
    assert waiting(proxied) == [message.encode()]


@pytest.mark.parametrize("deliver", [False, True])
def test_unanswered_messages_are_sent_again_and_are_there_once_and_in_order(
    proxied: PairedProxy, client: PairedClient, deliver: bool
) -> None:
    out = client.sender("q")
    log = proxied.primary.container.default.resources.replicated.log
    log.add_witness("backup")
    first = client.send_all(out, "a", "b")
    late = [client.send(out, proton.Message(text)) for text in "cd"]
    client.exchange()  # up to the proxy
    proxied.cut(deliver=deliver)
    paused = client.send_all(out, "e")
    assert not any(delivery.settled for delivery in (*first, *late, *paused))
    proxied.connect_upstream()
    log.acknowledge("backup", log.last_lsn)
    proxied.settle_down()
    assert [delivery.remote_state for delivery in (*first, *late, *paused)] == [ACCEPTED] * 5
    assert waiting(proxied) == [proton.Message(text).encode() for text in "abcde"]


def test_what_is_behind_a_refused_message_is_taken_in_order_and_once(
    proxied: PairedProxy, client: PairedClient
) -> None:
    limit_queue(proxied, max_size=60)
    out = client.sender("q")
    deliveries = client.send_all(out, "a", "b" * 100, "c", "d")
    assert [delivery.remote_state for delivery in deliveries] == [ACCEPTED, REJECTED, ACCEPTED, ACCEPTED]
    assert deliveries[1].remote.condition.name == "amqp:resource-limit-exceeded"
    assert waiting(proxied) == [proton.Message(text).encode() for text in "acd"]


def test_what_is_sent_after_a_refusal_is_there_once_and_in_order_whatever_is_answered_first(
    proxied: PairedProxy, client: PairedClient
) -> None:
    limit_queue(proxied, max_size=120)
    out = client.sender("q")
    client.send_all(out, "a", "b" * 200)
    deliveries = [client.send(out, proton.Message(text)) for text in ("c", "d", "e")]
    client.exchange()
    released = RelayedPublisher.disposition
    kept: list[tuple[RelayedPublisher, object, int, bool]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RelayedPublisher, "disposition", lambda *answer: kept.append(answer))
        proxied.settle_down()
    for answer in reversed(kept):
        released(*answer)
    proxied.settle_down()
    assert [delivery.remote_state for delivery in deliveries] == [ACCEPTED] * 3
    assert waiting(proxied) == [proton.Message(text).encode() for text in "acde"]


def test_a_settled_message_does_not_overtake_what_is_sent_again(proxied: PairedProxy, client: PairedClient) -> None:
    limit_queue(proxied, max_size=60)
    out = client.sender("q")
    for text in ("a", "b" * 100, "c"):
        client.send(out, proton.Message(text))
    client.send(out, proton.Message("d")).settle()
    proxied.settle_down()
    assert waiting(proxied) == [proton.Message(text).encode() for text in "acd"]


def test_a_new_primary_that_refuses_what_another_one_took_gets_the_rest_in_order_and_once(
    proxied: PairedProxy, client: PairedClient
) -> None:
    limit_queue(proxied, max_size=120)
    proxied.primary.container.default.resources.replicated.log.add_witness("backup")
    out = client.sender("q")
    deliveries = client.send_all(out, "a" * 40, "b", "c" * 200, "d")
    assert [delivery.remote_state for delivery in deliveries] == [0, 0, REJECTED, 0]
    proxied.cut()
    proxied.primary = PairedBroker(ContainerSettings("other", "0"))
    limit_queue(proxied, max_size=40)
    proxied.connect_upstream()
    assert [delivery.remote_state for delivery in deliveries] == [REJECTED, ACCEPTED, REJECTED, ACCEPTED]
    assert waiting(proxied) == [proton.Message(text).encode() for text in "bd"]


@pytest.mark.parametrize("room", [60, 1000], ids=["is made again", "is known, as a later message was taken"])
def test_a_refusal_that_nobody_heard_is_not_taken_for_an_acceptance(
    proxied: PairedProxy, client: PairedClient, room: int
) -> None:
    limit_queue(proxied, max_size=60)
    out = client.sender("q")
    deliveries = [client.send(out, proton.Message(text)) for text in ("a", "b" * 100, "c")]
    client.exchange()
    proxied.cut(deliver=True)
    assert waiting(proxied) == [proton.Message(text).encode() for text in "ac"]
    change_limit(proxied, max_size=room)
    proxied.connect_upstream()
    assert [delivery.remote_state for delivery in deliveries] == [ACCEPTED, REJECTED, ACCEPTED]
    assert waiting(proxied) == [proton.Message(text).encode() for text in "ac"]


@pytest.mark.parametrize("fits", [0, 2, 3], ids=["nothing", "each second", "each third"])
def test_what_is_refused_goes_to_the_primary_once_and_what_is_behind_it_too(
    proxied: PairedProxy, client: PairedClient, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    limit_queue(proxied, max_size=50_000)
    out = client.sender("q")
    assert proxied.upstream is not None
    written, take_output = [], proxied.upstream.take_output

    def take_and_count() -> bytes:
        written.append(len(output := take_output()))
        return output

    monkeypatch.setattr(proxied.upstream, "take_output", take_and_count)
    size, count = 60_000, 60
    are_small = [fits > 0 and number % fits == 0 for number in range(count)]
    sent = [client.send(out, proton.Message("x" if is_small else "x" * size)) for is_small in are_small]
    proxied.settle_down()
    assert [each.remote_state for each in sent] == [ACCEPTED if is_small else REJECTED for is_small in are_small]
    assert sum(written) < 1.1 * size * count


def test_a_refused_number_of_which_its_proxy_alone_was_told_is_known_to_the_next_primary(
    proxied: PairedProxy, client: PairedClient
) -> None:
    """The one that refused it noted that, and died before it had a later message written: a client that lost its proxy
    would take the refused one for queued, as it hears of the later one."""
    limit_queue(proxied, max_count=1)
    out = client.sender("q")
    sent = [client.send(out, numbered(number)) for number in (1, 2, 3)]
    proxied.settle_down()
    assert [delivery.remote_state for delivery in sent] == [ACCEPTED, REJECTED, REJECTED]
    proxied.cut()
    deduplication = proxied.primary.container.default.resources.deduplication
    deduplication.forget_unwritten()
    change_limit(proxied, max_count=9)
    proxied.connect_upstream()
    later = client.send(out, numbered(4))
    proxied.settle_down()
    assert later.remote_state == ACCEPTED
    assert deduplication.refused(client_producer("", f"{FIRST}/out".encode())) == (2, 3)
    again = client.send(out, numbered(2))
    proxied.settle_down()
    assert again.remote_state == REJECTED


def test_a_publisher_has_the_credit_that_the_primary_gives() -> None:
    proxied = PairedProxy(ContainerSettings("primary", "0", publisher_credit=10))
    client = proxied.client()
    out = client.sender("q")
    assert out.credit == 10
    proxied.primary.container.default.resources.replicated.log.add_witness("backup")
    client.send_all(out, *"abcdefghij")
    assert out.credit == 0


def test_a_publisher_whose_messages_are_refused_has_no_more_kept_than_the_primary_gives_credit_for() -> None:
    proxied = PairedProxy(ContainerSettings("primary", "0", publisher_credit=10))
    limit_queue(proxied, max_size=1)
    client = proxied.client()
    out = client.sender("q")
    message = proton.Message("a")
    for _ in range(20):
        for _ in range(out.credit):
            client.send(out, message)
        client.exchange()
        proxied._exchange()
        proxied.proxy.turn()
        client.exchange()
        assert proxied.proxy.container.relayed.bytes <= COPIES * 10 * len(message.encode())


def test_a_consumer_gets_what_it_has_credit_for_and_no_more_leaves_the_primary(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), *"abc")
    link = client.receiver("q", 2)
    assert [text for _, text in texts(client, link)] == ["a", "b"]
    assert proxied.primary.queue("q").messages.acquired == 2


def test_credit_that_is_taken_back_is_drained_at_the_primary(proxied: PairedProxy, client: PairedClient) -> None:
    link = client.receiver("q", 10)
    link.drain(0)
    proxied.settle_down()
    assert link.credit == 0
    client.send_all(client.sender("q"), "a")
    assert texts(client, link) == []
    assert proxied.primary.queue("q").messages.acquired == 0
    link.flow(1)
    proxied.settle_down()
    assert [text for _, text in texts(client, link)] == ["a"]


def test_credit_that_is_taken_back_without_a_drain_is_taken_back_from_the_primary(
    proxied: PairedProxy, client: PairedClient
) -> None:
    link = client.receiver("q", 10)
    link.flow(-9)
    proxied.settle_down()
    client.send_all(client.sender("q"), "a", "b")
    assert [text for _, text in texts(client, link)] == ["a"]
    assert proxied.primary.queue("q").messages.acquired == 1


def test_credit_that_was_given_up_is_taken_back_from_the_primary_where_the_client_has_to_answer_first(
    proxied: PairedProxy,
) -> None:
    proxied.proxy.container.change_settings(replace(proxied.proxy.container.settings, max_unsettled_per_connection=1))
    client = proxied.client()
    link = client.receiver("q", 10)
    out = client.sender("q")
    client.send_all(out, "a")
    assert len(texts(client, link)) == 1
    link.drain(0)
    proxied.settle_down()
    assert link.credit == 0
    client.send_all(out, "b")
    assert proxied.primary.queue("q").messages.acquired == 1
    assert not any(entry.acquired_before for entry in proxied.primary.queue("q").messages)


def test_a_message_that_comes_back_before_its_return_is_confirmed_is_another_delivery(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 2, answers_first=True)
    ((first, _),) = texts(client, link)
    first.update(proton.Delivery.RELEASED)
    proxied.settle_down()
    ((second, _),) = texts(client, link)
    second.update(ACCEPTED)
    proxied.settle_down()
    assert (first.settled, first.remote_state) == (True, proton.Delivery.RELEASED)
    assert (second.settled, second.remote_state) == (True, ACCEPTED)
    assert waiting(proxied) == []


def test_what_a_client_gave_back_is_not_claimed_again_for_somebody_else_may_have_it(proxied: PairedProxy) -> None:
    client, other = proxied.client(), proxied.client(container="other")
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 1, answers_first=True)
    proxied.primary.container.default.resources.replicated.log.add_witness("backup")
    client.send_all(client.sender("another"), "b")  # so that nothing is confirmed any more
    ((returned, _),) = texts(client, link)
    theirs = other.receiver("q", 1)
    returned.update(proton.Delivery.RELEASED)
    proxied.settle_down()
    ((delivery, _),) = texts(other, theirs)
    assert not returned.settled
    proxied.cut()
    proxied.connect_upstream()
    assert returned.settled
    assert texts(other, theirs) == []
    delivery.update(ACCEPTED)
    delivery.settle()
    proxied.settle_down()
    assert waiting(proxied) == []


def test_a_primary_that_steps_down_is_a_pause(proxied: PairedProxy, client: PairedClient) -> None:
    out, link = client.sender("q"), client.receiver("q", 2)
    default = proxied.primary.container.default
    default.read_only = True
    default.end_links(ServedElsewhere(proxied.primary.container.directory, "default"), browsers=False)
    (delivery,) = client.send_all(out, "a")
    assert not delivery.settled
    default.read_only = False
    proxied.attach_those_left()
    assert delivery.remote_state == ACCEPTED
    assert [text for _, text in texts(client, link)] == ["a"]


def test_an_answer_is_settled_when_the_primary_has_carried_it_out(proxied: PairedProxy, client: PairedClient) -> None:
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 1, answers_first=True)
    ((delivery, _),) = texts(client, link)
    log = proxied.primary.container.default.resources.replicated.log
    log.add_witness("backup")
    delivery.update(ACCEPTED)
    proxied.settle_down()
    assert not delivery.settled
    log.acknowledge("backup", log.last_lsn)
    proxied.settle_down()
    assert delivery.settled
    assert delivery.remote_state == ACCEPTED
    assert waiting(proxied) == []


def test_what_a_client_holds_is_its_own_after_the_connection_to_the_primary_was_lost(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), *"abc")
    link = client.receiver("q", 2)
    held = [delivery for delivery, _ in texts(client, link)]
    proxied.cut()
    assert proxied.primary.queue("q").messages.acquired == 0
    proxied.connect_upstream()
    assert proxied.primary.queue("q").messages.acquired == 2
    assert texts(client, link) == []
    for delivery in held:
        delivery.update(ACCEPTED)
        delivery.settle()
    proxied.settle_down()
    assert waiting(proxied) == [proton.Message("c").encode()]
    link.flow(1)
    proxied.settle_down()
    assert [text for _, text in texts(client, link)] == ["c"]


def test_a_new_primary_gives_others_nothing_before_proxies_have_come_for_what_their_clients_have(
    proxied: PairedProxy,
) -> None:
    gated: list[HostedSet] = []
    proxied.primary.container.gate = gated.append
    default = proxied.primary.container.default
    default.resources.replicated.state.generations += [(1, GENERATION), (1, GENERATION._replace(generation=2))]
    client = proxied.client()
    client.send_all(client.sender("q"), *"abc")
    link = client.receiver("q", 2)
    held = texts(client, link)
    default.read_only = True
    proxied.cut()
    default.read_only = False
    other = PairedClient(proxied.primary, container="other")
    there = other.receiver("q", 10)
    browsing = other.session.receiver("browser")
    browsing.source.address = "q"
    browsing.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    browsing.open()
    browsing.flow(10)
    proxied.primary.settle_down()
    assert other.received(there) == []
    assert len(other.received(browsing)) == 3
    proxied.connect_upstream()
    (hosted,) = gated
    hosted.open_gate()
    proxied.settle_down()
    assert [message.body for _, message in other.received(there)] == ["c"]
    assert len(held) == 2


def test_what_a_client_accepted_while_there_was_no_primary_is_carried_out_by_the_next_one(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 1)
    ((delivery, _),) = texts(client, link)
    proxied.cut()
    delivery.update(ACCEPTED)
    delivery.settle()
    proxied.settle_down()
    assert len(waiting(proxied)) == 1
    proxied.connect_upstream()
    assert waiting(proxied) == []


def test_an_answer_that_comes_after_the_primary_ended_the_link_is_not_taken_for_carried_out(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 1)
    ((delivery, _),) = texts(client, link)
    delivery.update(ACCEPTED)
    delivery.settle()
    client.exchange()  # up to the proxy
    default = proxied.primary.container.default
    default.read_only = True
    default.end_links(ServedElsewhere(proxied.primary.container.directory, "default"), browsers=False)
    proxied.settle_down()
    assert len(waiting(proxied)) == 1
    default.read_only = False
    proxied.attach_those_left()
    assert waiting(proxied) == []


def test_what_somebody_else_got_meanwhile_is_not_taken_from_him(proxied: PairedProxy, client: PairedClient) -> None:
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 1, answers_first=True)
    ((delivery, _),) = texts(client, link)
    proxied.cut()
    other = PairedClient(proxied.primary, container="other")
    there = other.receiver("q", 1)
    ((_, message),) = other.received(there)
    assert (message.body, message.first_acquirer) == ("a", False)
    proxied.connect_upstream()
    delivery.update(ACCEPTED)
    proxied.settle_down()
    assert delivery.settled
    assert len(waiting(proxied)) == 1


def test_a_lost_client_gives_its_messages_back_as_failed(proxied: PairedProxy, client: PairedClient) -> None:
    client.send_all(client.sender("q"), "a")
    texts(client, client.receiver("q", 1))
    client.vanish()
    proxied.settle_down()
    (entry,) = proxied.primary.queue("q").messages
    assert (entry.holder, entry.delivery_count) == (None, 1)


def test_what_a_lost_client_held_does_not_go_to_its_own_link_again(
    proxied: PairedProxy, client: PairedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary may have time for a delivery between what the proxy says of its messages and the end of its link."""
    client.send_all(client.sender("q"), "a")
    texts(client, client.receiver("q", 10))
    client.vanish()
    proxied.proxy.settle_alone()
    upstream, accepted, delivered = proxied.upstream, proxied.accepted, list[object]()
    assert upstream is not None
    assert accepted is not None
    monkeypatch.setattr(OutgoingLink, "deliver", lambda endpoint, entries: delivered.extend(entries))
    for frame in frames(upstream.take_output()):
        accepted.receive(frame)
        proxied.primary.settle_down()
    assert delivered == []
    (entry,) = proxied.primary.queue("q").messages
    assert (entry.holder, entry.delivery_count) == (None, 1)


def frames(data: bytes) -> list[bytes]:
    """What it consists of."""
    found = []
    while data:
        size = int.from_bytes(data[:4])
        found.append(data[:size])
        data = data[size:]
    return found


def browser(client: PairedClient) -> Any:
    link = client.session.receiver("browser")
    link.source.address = "q"
    link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.open()
    link.flow(1)
    return link


def test_a_browser_is_told_when_its_place_is_lost(proxied: PairedProxy, client: PairedClient) -> None:
    client.send_all(client.sender("q"), "a")
    link = browser(client)
    proxied.settle_down()
    assert [text for _, text in texts(client, link)] == ["a"]
    proxied.cut()
    proxied.settle_down()
    assert condition(link) == "amqp:resource-locked"


def test_a_browser_is_told_when_its_primary_steps_down_whatever_its_proxy_knows(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), "a")
    link = browser(client)
    proxied.settle_down()
    default = proxied.primary.container.default
    default.read_only = True
    default.end_links(ServedElsewhere(proxied.primary.container.directory, "default"), browsers=False)
    proxied.settle_down()
    assert condition(link) == "amqp:resource-locked"


def test_a_browser_is_not_shown_what_a_primary_of_before_has_left(proxied: PairedProxy, client: PairedClient) -> None:
    client.send_all(client.sender("q"), "a")
    default = proxied.primary.container.default
    default.read_only = True
    default.end_links(ServedElsewhere(proxied.primary.container.directory, "default"), browsers=False)
    link = browser(client)
    proxied.settle_down()
    assert texts(client, link) == []
    default.read_only = False
    proxied.attach_those_left()
    assert [text for _, text in texts(client, link)] == ["a"]


def test_a_refusal_of_the_primary_is_the_answer_to_the_client(proxied: PairedProxy) -> None:
    proxied.primary.container.nodes.settings = type(proxied.primary.container.nodes.settings)(auto_create=False)
    client = proxied.client()
    assert condition(client.sender("q")) == "amqp:not-found"
    assert proxied.links == {}


def test_a_client_that_goes_before_its_attach_is_answered_leaves_nothing(
    proxied: PairedProxy, client: PairedClient
) -> None:
    proxied.cut()
    link = client.session.sender("early")
    link.target.address = "q"
    link.open()
    proxied.settle_down()
    assert len(proxied.links) == 1
    link.close()
    proxied.settle_down()
    assert proxied.links == {}
    proxied.connect_upstream()
    assert proxied.upstream is not None
    assert len(proxied.upstream) == 0


def test_a_publisher_that_has_gone_leaves_its_name_to_the_next_one(proxied: PairedProxy, client: PairedClient) -> None:
    for text in "abc":
        link = client.sender("q")
        client.send_all(link, text)
        link.close()
        proxied.settle_down()
    assert len(waiting(proxied)) == 3
    producers = proxied.primary.container.default.resources.replicated.state.producers
    assert len(list(producers.events())) == 1


def test_a_client_that_calls_itself_relayed_is_a_client(proxied: PairedProxy) -> None:
    client = PairedClient(proxied.primary, container="liar")
    link = client.session.sender("link")
    link.target.address = "q"
    link.properties = {proton.symbol(PATH): ["proxy"]}
    link.open()
    proxied.primary.settle_down()
    assert condition(link) is None
    assert proxied.primary.container.default.numbered_publishers == {}


def test_a_broker_that_does_not_know_relayed_links_is_given_up() -> None:
    ended: list[str] = []
    engine, silence = Engine(proton.Transport(), proton.Connection()), Silence(lambda: 0.0, 1.0)
    upstream = Upstream(engine, "proxy", "old", lambda: None, ended.append, silence)
    older = proton.Transport(proton.Transport.SERVER)
    connection = proton.Connection()
    older.bind(connection)
    connection.open()
    for _ in range(3):
        if outgoing := upstream.take_output():
            older.push(outgoing)
        if (pending := older.pending()) > 0:
            upstream.receive(older.peek(pending) or b"")
            older.pop(pending)
    assert len(ended) == 1
    assert "of an older version, upgrade it" in ended[0]


def test_an_attach_waits_until_somebody_leads(proxied: PairedProxy) -> None:
    proxied.primary.container.default.read_only = True
    client = proxied.client()
    link = client.sender("q")
    assert not link.state & proton.Endpoint.REMOTE_ACTIVE
    proxied.primary.container.default.read_only = False
    (relayed,) = proxied.again
    relayed.look_again()
    proxied.settle_down()
    assert client.send_all(link, "a")[0].remote_state == ACCEPTED


def test_a_broker_may_also_attach_links_that_it_does_not_relay(proxied: PairedProxy) -> None:
    client = PairedClient(proxied.primary, BROKER, [RELAY_CAPABILITY])
    link = client.sender("q")
    client.send(link, proton.Message("a"))
    proxied.primary.settle_down()
    assert len(waiting(proxied)) == 1


def test_only_the_clusters_user_has_links_relayed() -> None:
    proxied = PairedProxy(ContainerSettings("primary", "0", peer_user="brokers"))
    assert condition(proxied.client().sender("q")) == "amqp:unauthorized-access"


def test_a_message_that_comes_back_before_its_release_is_confirmed_is_held_anew(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 1)
    ((delivery, _),) = texts(client, link)
    proxied.primary.container.default.resources.replicated.log.add_witness("backup")
    delivery.update(proton.Delivery.RELEASED)
    delivery.settle()
    link.flow(1)
    proxied.settle_down()
    ((again, _),) = texts(client, link)
    again.update(ACCEPTED)
    again.settle()
    proxied.settle_down()
    log = proxied.primary.container.default.resources.replicated.log
    log.acknowledge("backup", log.last_lsn)
    proxied.settle_down()
    assert waiting(proxied) == []


def test_a_client_that_answers_before_it_sends_has_made_room(proxied: PairedProxy) -> None:
    limit_queue(proxied, max_count=1)
    client = proxied.client()
    out = client.sender("q")
    client.send_all(out, "a")
    ((delivery, _),) = texts(client, client.receiver("q", 1))
    delivery.update(ACCEPTED)
    delivery.settle()
    client.exchange()  # in an order that Proton keeps
    (sent,) = client.send_all(out, "b")
    assert sent.remote_state == ACCEPTED


def test_a_client_that_names_no_target_at_all_has_an_anonymous_relay(
    proxied: PairedProxy, client: PairedClient
) -> None:
    link = client.session.sender("anonymous")
    link.target.type = proton.Terminus.UNSPECIFIED
    link.open()
    proxied.settle_down()
    delivery = client.send(link, proton.Message("a", address="q"))
    proxied.settle_down()
    assert delivery.remote_state == ACCEPTED
    assert len(waiting(proxied)) == 1


@pytest.mark.parametrize("cut", [False, True])
def test_a_message_that_came_back_before_its_release_was_confirmed_is_the_clients_again(
    proxied: PairedProxy, client: PairedClient, cut: bool
) -> None:
    out, log = client.sender("q"), proxied.primary.container.default.resources.replicated.log
    client.send_all(out, "a")
    link = client.receiver("q", 1)
    ((first, _),) = texts(client, link)
    log.add_witness("backup")
    client.send_all(out, "b")  # and nothing that the primary says after it is confirmed
    first.update(proton.Delivery.RELEASED)
    link.flow(1)
    proxied.settle_down()
    ((second, text),) = texts(client, link)
    assert text == "a"
    assert not first.settled
    if cut:
        proxied.cut()
        proxied.connect_upstream()
        assert first.settled  # it came again: so it was carried out
    second.update(ACCEPTED)
    second.settle()
    proxied.settle_down()
    log.acknowledge("backup", log.last_lsn)
    proxied.settle_down()
    assert first.settled
    assert waiting(proxied) == [proton.Message("b").encode()]
    assert not any(link._held or link._by_far for link in proxied.links if isinstance(link, RelayedConsumer))


def test_what_a_client_has_is_reclaimed_of_the_primary_that_had_ended_the_link(
    proxied: PairedProxy, client: PairedClient
) -> None:
    client.send_all(client.sender("q"), "a")
    link = client.receiver("q", 1)
    ((delivery, _),) = texts(client, link)
    default = proxied.primary.container.default
    default.read_only = True
    default.end_links(ServedElsewhere(proxied.primary.container.directory, "default"), browsers=False)
    proxied.settle_down()
    default.read_only = False
    proxied.attach_those_left()
    link.flow(1)
    proxied.settle_down()
    assert texts(client, link) == []
    delivery.update(ACCEPTED)
    delivery.settle()
    proxied.settle_down()
    assert waiting(proxied) == []


MB = 1 << 20


def large_body(size: int) -> bytes:
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + b"x" * size


def small_proxy(limit_bytes: int) -> PairedProxy:
    """One with so much memory."""
    return PairedProxy(proxy=PairedBroker(ContainerSettings("proxy", "0", memory_limit_bytes=limit_bytes)))


@pytest.mark.parametrize("to", ["q", None], ids=["a queue", "an anonymous relay"])
def test_a_publisher_whose_messages_are_not_confirmed_takes_no_more_of_a_proxy_than_a_part_of_its_memory(
    to: str | None,
) -> None:
    proxied = small_proxy(32 * MB)
    client = proxied.client()
    out = client.sender(to)
    proxied.primary.container.default.resources.replicated.log.add_witness("a backup")
    payload = large_body(100_000) if to else proton.Message(b"x" * 100_000, address="q").encode()
    most = 0
    for _ in range(60):
        if out.state & proton.Endpoint.REMOTE_CLOSED:
            break
        for _ in range(min(out.credit, 10)):
            client.send(out, payload)
        proxied.settle_down()
        most = max(most, proxied.proxy.container._used_bytes)
    assert 0 < most < 20 * MB


def test_what_a_publisher_sends_beyond_its_credit_ends_its_link_before_it_fills_a_proxy() -> None:
    proxied = small_proxy(32 * MB)
    proxied.primary.container.default.configuration.declare_queue("q", {})
    proxied.primary.container.default.resources.replicated.log.add_witness("a backup")
    peer = proxied.proxy.accept()
    opened = raw_peer.frame(raw_peer.OPEN, ["raw", "localhost", proton.uint(65536), proton.ushort(10)])
    peer.receive(raw_peer.AMQP_HEADER + opened + raw_peer.begin() + raw_peer.attach("out", 0, raw_peer.SENDER, "q"))
    proxied.settle_down()
    (link,) = peer.links
    most = 0
    for number in range(1000):
        peer.receive(raw_peer.transfer(0, number, large_body(50_000)))
        most = max(most, proxied.proxy.container._used_bytes)
    proxied.settle_down()
    assert link not in peer.links
    assert most < 16 * MB
    assert proxied.proxy.container._used_bytes == 0


def test_consumers_that_read_nothing_take_no_more_of_a_proxy_than_a_part_of_its_memory() -> None:
    proxied = small_proxy(32 * MB)
    publisher = proxied.primary.connect()
    out = publisher.sender("q")
    for _ in range(600):
        publisher.send(out, large_body(100_000))
    proxied.primary.settle_down()
    clients = [proxied.client() for _ in range(20)]
    links = [client.receiver("q", name=f"in-{number}") for number, client in enumerate(clients)]
    for client, link in zip(clients, links, strict=True):
        client.peer.take_output = lambda: b""  # type: ignore[method-assign]  # its socket is full
        link.flow(1000)
    proxied.settle_down()
    held = proxied.proxy.container._used_bytes
    assert 0 < held < 16 * MB
    for client in clients:
        del client.peer.take_output
    proxied.settle_down()
    assert sum(len(client.received(link)) for client, link in zip(clients, links, strict=True)) > 40


def test_a_consumer_goes_on_when_others_have_let_go_of_what_is_relayed() -> None:
    proxied = small_proxy(1 * MB)
    publisher = proxied.primary.connect()
    out = publisher.sender("q")
    for _ in range(100):
        publisher.send(out, large_body(50_000))
    proxied.primary.settle_down()
    client = proxied.client()
    link = client.receiver("q", 100)
    came = 0
    for _ in range(100):
        for delivery, _ in client.received(link):
            came += 1
            delivery.update(ACCEPTED)
            delivery.settle()
        proxied.settle_down()
    assert came == 100
    assert proxied.proxy.container.relayed.bytes == 0
