"""Sessions of clients at a broker that relays: who keeps them, and what becomes of them when that is lost.

What a client sees of a session that goes well is in `test_client_sessions`, which runs behind a proxy, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits
from qpid_ha_broker.amqp.relaying import relayed_sessions
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, AmqpError
from qpid_ha_broker.amqp.wire.engine import ACCEPTED, RELEASED
from qpid_ha_broker.amqp.wire.relay import RelayAnswer, RelayRequest, read_answer, read_request
from qpid_ha_broker.amqp.wire.relayed_session_request import SessionAsked, SessionGranted, read_asked, read_granted
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.browser import objects_frame
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.model.sessions import SessionPart
from session_clients import (
    confirmed,
    consume,
    held,
    ids,
    numbered,
    open_session,
    publish,
    refusal,
    session_properties,
    status,
)
from session_support import FIRST, SECOND
from several_sets import SeveralSets

WITNESS = "a backup"


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


@pytest.fixture
def second(proxied: PairedProxy) -> Iterator[PairedProxy]:
    """Another broker that relays to the same primary."""
    other = PairedProxy(primary=proxied.primary)
    other.name = "second"
    yield other
    proxied.check_invariants()


def opened(broker: PairedProxy, **more: Any) -> PairedClient:
    return open_session(cast(PairedBroker, broker), **more)


def filled(broker: PairedProxy, count: int, queue: str = "q") -> None:
    broker.primary.connect().publish(queue, *[f"m{number}" for number in range(1, count + 1)])


def consuming(broker: PairedProxy, count: int, *, credit: int) -> tuple[PairedClient, Any]:
    """A client with a session, and its link from `q`, which has so many messages."""
    filled(broker, count)
    client = opened(broker)
    return client, consume(client, "q", credit)


def registered(broker: PairedProxy, name: str = FIRST) -> Any:
    return broker.container.default.resources.replicated.state.sessions.by_name.get(name)


def settle(client: PairedClient, delivery: Any, outcome: int = ACCEPTED) -> None:
    delivery.update(outcome)
    delivery.settle()
    client.broker.settle_down()


# --- what is said


@pytest.mark.parametrize(
    "asked",
    [
        SessionAsked(FIRST, None, False, 0, 0, "::1"),
        SessionAsked(SECOND, 60_000, True, (1 << 64) - 1, 7, "127.0.0.1:5"),
        SessionAsked(FIRST, None, False, 0, 0, "::1", 12),
        SessionAsked(FIRST, None, False, 0, 0, "::1", 0, 3),
        SessionAsked(FIRST, None, False, 0, 0, "::1", 12, 3),
    ],
)
def test_what_a_proxy_asks_comes_as_it_was(asked: SessionAsked) -> None:
    assert read_asked(asked.properties()) == asked


def test_what_it_is_answered_comes_as_it_was() -> None:
    granted = SessionGranted(12, 3, 60_000, "resumed")
    assert read_granted(granted.properties()) == granted
    answer = RelayAnswer(7, (1, 2), "q", session_held=5)
    assert read_answer(answer.properties()) == answer
    request = RelayRequest(("a",), "client", session=SessionPart(9, FIRST, 2, "in"))
    assert read_request(request.properties()) == request


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [FIRST, 5],
        [FIRST, -1, False, 0, 0, ""],
        [FIRST, True, 0, 0, 0, ""],
        [FIRST, 5, False, 1 << 64, 0, ""],
        [7, 5, False, 0, 0, ""],
    ],
)
def test_what_makes_no_sense_is_refused(fields: Any) -> None:
    for read, name in ((read_asked, "qpid.relay-session-asked"), (read_granted, "qpid.relay-session-granted")):
        with pytest.raises(AmqpError, match=INVALID_FIELD):
            read({name: fields})
    with pytest.raises(AmqpError, match=INVALID_FIELD):
        read_request({"qpid.relay-path": ["a"], "qpid.relay-session": fields or []})


def test_a_broker_of_an_older_release_can_read_what_is_asked_with_a_number() -> None:
    properties = SessionAsked(FIRST, None, False, 0, 0, "::1", 12).properties()
    assert len(properties["qpid.relay-session-asked"]) == 6
    for name in ("qpid.relay-session-attempt", "qpid.relay-session-ask"):
        for number in (-1, "2"):
            with pytest.raises(AmqpError, match=INVALID_FIELD):
                read_asked(properties | {name: number})


# --- attempts that a client has given up


def attempted(broker: PairedProxy, attempt: int, **more: Any) -> PairedClient:
    return opened(broker, properties={"qpid.session-attempt": attempt}, **more)


def given_up(proxied: PairedProxy, attempt: int) -> bytes:
    """What the proxy has said of an attempt that its client gave up, and what has not come to the primary yet."""
    assert proxied.upstream is not None
    client = PairedClient(
        proxied.proxy, session_properties(FIRST) | {proton.symbol("qpid.session-attempt"): proton.ulong(attempt)}
    )
    proxied.proxy.settle_alone()
    late = proxied.upstream.take_output()
    client.vanish()
    return late


def test_an_attempt_that_was_under_way_when_its_client_gave_it_up_takes_nothing_from_the_next_one(
    proxied: PairedProxy, second: PairedProxy
) -> None:
    late = given_up(proxied, 1)
    newer = attempted(second, 2)
    assert status(newer) == "new"
    assert proxied.accepted is not None
    proxied.accepted.receive(late)
    proxied.settle_down()
    second.settle_down()
    assert refusal(newer) is None
    assert registered(second).epoch == 2
    assert registered(second).is_attached


def test_an_attempt_that_was_given_up_comes_too_late_also_at_a_primary_that_was_not_told_of_the_next_one_yet(
    proxied: PairedProxy, second: PairedProxy
) -> None:
    late = given_up(proxied, 1)
    newer = attempted(second, 2)
    second.cut()
    assert proxied.accepted is not None
    proxied.accepted.receive(late)
    proxied.settle_down()
    second.connect_upstream()
    assert refusal(newer) is None
    assert registered(second).epoch == 2


def test_an_attempt_that_is_asked_for_once_more_is_no_older_one(proxied: PairedProxy) -> None:
    client = attempted(proxied, 1)
    client.vanish()
    with proxied.held_up():
        again = attempted(proxied, 4, resume=True)
        proxied._under_way = bytearray()  # the answer is lost with the primary
    assert status(again) is None
    proxied.cut()
    proxied.connect_upstream()
    assert status(again) == "resumed"
    assert registered(proxied).epoch == 4


@pytest.mark.parametrize("attempt", [0, 4])
def test_an_ask_that_a_proxy_has_given_up_takes_nothing_from_its_next_one(proxied: PairedProxy, attempt: int) -> None:
    """Of a connection that broke, what was sent on it may be read behind what came on the next one."""
    numbered_open = {proton.symbol("qpid.session-attempt"): proton.ulong(attempt)} if attempt else {}
    client = PairedClient(proxied.proxy, session_properties(FIRST) | numbered_open)
    proxied.proxy.settle_alone()
    older, late = proxied.give_up_upstream()
    assert status(client) == "new"
    epoch = registered(proxied).epoch
    older.receive(late)
    proxied.settle_down()
    assert refusal(client) is None
    assert (registered(proxied).epoch, registered(proxied).is_attached) == (epoch, True)
    older.lost()
    proxied.settle_down()
    assert registered(proxied).is_attached


def test_the_next_attempt_of_a_client_is_none_that_its_broker_has_given_up(
    proxied: PairedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the broker gives it the name of the attempt before, whose end has not come to the primary yet."""
    monkeypatch.setattr(relayed_sessions, "id", lambda attachment: 7, raising=False)
    client = attempted(proxied, 1)
    proxied.cut()
    proxied.connect_upstream()  # its second ask
    client.vanish()
    proxied.give_up_upstream()
    again = attempted(proxied, 2, resume=True)
    assert (refusal(again), status(again)) == (None, "resumed")


@pytest.mark.parametrize("kind", ["of a session", "a durable subscription"])
def test_an_attach_that_a_proxy_has_given_up_takes_nothing_from_its_next_one(proxied: PairedProxy, kind: str) -> None:
    """The primary cannot tell which of them was given up: its broker can, and attaches the link once more."""
    client = attempted(proxied, 1) if kind == "of a session" else proxied.client()
    link, address = client.session.receiver("in"), "q"
    link.source.address = address
    if kind != "of a session":
        link.source.address = address = "amq.fanout"
        link.source.durability, link.source.expiry_policy = proton.Terminus.DELIVERIES, proton.Terminus.EXPIRE_NEVER
    link.open()
    client.exchange()
    proxied._place()
    proxied.proxy.settle_alone()
    older, late = proxied.give_up_upstream()
    proxied.settle_down()
    older.receive(late)
    proxied.settle_down()
    proxied.attach_those_left()
    older.lost()
    proxied.settle_down()
    assert link.state & proton.Endpoint.REMOTE_ACTIVE
    assert link.remote_condition is None
    link.flow(5)
    publisher = proxied.client(container="publisher")
    publisher.send(publisher.sender(address), proton.Message("x"))
    proxied.settle_down()
    assert [message.body for _, message in client.received(link)] == ["x"]


# --- who keeps it is lost


def test_a_client_does_not_notice_that_who_keeps_its_session_was_lost_and_is_told_of_again(
    proxied: PairedProxy,
) -> None:
    client, link = consuming(proxied, 4, credit=2)
    got = client.received(link)
    before = registered(proxied)
    proxied.cut()
    assert not registered(proxied).is_attached, "it waits, with its full timeout"
    settle(client, got[0][0])
    proxied.connect_upstream()
    assert registered(proxied)[:6] == before[:6], "the same connection has it"
    assert refusal(client) is None
    link.flow(2)
    proxied.settle_down()
    assert client.bodies(link) == ["m3", "m4"], "nothing came again"
    client.vanish()
    again = opened(proxied, resume=True)
    assert again.bodies(consume(again, "q", 9)) == ["m2", "m3", "m4"]


def test_what_was_held_for_a_client_and_never_came_to_it_comes_when_its_link_is_attached_again(
    proxied: PairedProxy,
) -> None:
    client, link = consuming(proxied, 3, credit=1)
    first = ids(client, link)
    proxied._under_way = bytearray()  # what the primary says from here on is lost
    link.flow(2)
    proxied.settle_down()
    proxied._under_way = None
    proxied.cut()
    proxied.connect_upstream()
    came = ids(client, link)
    assert len(first + came) == 3
    assert sorted(first + came) == first + came


def test_what_a_client_has_stays_marked_when_a_link_is_attached_for_it_and_lost_before_a_word_of_that_leaves(
    proxied: PairedProxy,
) -> None:
    """Of what it has a delivery without content goes out, which a broker that relays never got: it has the content."""
    filled(proxied, 3)
    client = opened(proxied)
    assert len(client.received(consume(client, "q", 3))) == 3
    proxied.cut()
    waiting, proxied.again = proxied.again, []
    proxied.connect_upstream()
    assert proxied.upstream is not None
    assert proxied.accepted is not None
    for relayed in waiting:
        proxied.upstream.attach(relayed)
    proxied.accepted.receive(proxied.upstream.take_output())
    proxied.primary.settle_down()
    proxied.cut()
    client.vanish()
    again = open_session(proxied.primary, resume=True)
    came = again.received(consume(again, "q", 9))
    assert [(message.body, message.first_acquirer) for _, message in came] == [(f"m{n}", False) for n in (1, 2, 3)]


def test_what_comes_in_the_moment_in_which_a_client_detaches_stays_held_for_its_session(
    proxied: PairedProxy,
) -> None:
    """A proxy that settled it, before its own detach, had it given back as a failed delivery."""
    client, link = consuming(proxied, 2, credit=0)
    proxied._under_way = bytearray()
    link.flow(2)
    proxied.settle_down()
    messages, proxied._under_way = bytes(proxied._under_way), None
    assert proxied.upstream is not None
    proxied.upstream.engine.push(messages)  # the proxy has read them, and comes to them when it has heard the client
    link.detach()
    client.exchange()
    proxied.upstream.receive(b"")
    proxied.settle_down()
    other = proxied.primary.connect()
    assert other.bodies(other.receiver("q", 9)) == []
    again = consume(client, "q", 9, name="in")
    assert held(again) == 2
    assert client.bodies(again) == ["m1", "m2"]


def test_an_answer_that_nobody_confirmed_is_given_again_also_one_that_gives_a_message_back(
    proxied: PairedProxy,
) -> None:
    client, link = consuming(proxied, 3, credit=3)
    got = client.received(link)
    proxied.cut()
    settle(client, got[0][0])
    settle(client, got[1][0], RELEASED)
    proxied.connect_upstream()
    other = proxied.primary.connect()
    assert other.bodies(other.receiver("q", 9)) == ["m2"]


def test_a_message_given_back_in_the_moment_in_which_the_primary_is_lost_is_given_back_to_the_next_one(
    proxied: PairedProxy,
) -> None:
    filled(proxied, 2)
    client = opened(proxied)
    delivery, _ = client.received(consume(client, "q", 2))[0]
    delivery.update(RELEASED)
    delivery.settle()
    client.exchange()  # the proxy has it, and the primary never gets it
    proxied.cut()
    proxied.connect_upstream()
    other = proxied.primary.connect()
    assert other.bodies(other.receiver("q", 9)) == ["m1"]


def test_a_session_that_was_resumed_elsewhere_while_nobody_was_heard_of_ends_the_connection(
    proxied: PairedProxy, second: PairedProxy
) -> None:
    first, link = consuming(proxied, 2, credit=2)
    proxied.cut()
    later = opened(second, resume=True)
    proxied.connect_upstream()
    assert refusal(first) == "amqp:connection:forced"
    condition: Any = first.connection.remote_condition
    assert "resumed on another connection" in condition.description
    settle(first, first.received(link)[0][0])
    assert later.bodies(consume(later, "q", 2)) == ["m1", "m2"]


def test_a_session_that_is_gone_when_it_is_told_of_again_ends_the_connection(proxied: PairedProxy) -> None:
    client = opened(proxied, timeout=5)
    proxied.cut()
    proxied.container.now_ms += 6000
    proxied.container.tick()
    proxied.connect_upstream()
    assert refusal(client) == "amqp:connection:forced"
    assert refusal(opened(proxied, resume=True)) == "amqp:not-found"


def test_a_session_that_was_closed_while_nobody_kept_it_is_ended_by_whoever_keeps_it_then(
    proxied: PairedProxy,
) -> None:
    client = opened(proxied)
    proxied.cut()
    client.connection.close()
    proxied.settle_down()
    proxied.connect_upstream()
    assert registered(proxied) is None
    assert not proxied.links


def test_an_open_that_nobody_answers_is_refused_in_the_end(proxied: PairedProxy) -> None:
    now_s = 0.0
    proxied.proxy.container.clock = lambda: now_s
    proxied.cut()
    client = opened(proxied)
    now_s = 11.0
    proxied.proxy.container.tick()
    proxied.settle_down()
    assert refusal(client) == "amqp:resource-locked"
    assert not proxied.links


def test_a_client_that_goes_before_its_session_is_committed_leaves_it_waiting(proxied: PairedProxy) -> None:
    proxied.container.default.resources.replicated.log.add_witness(WITNESS)
    client = opened(proxied)
    assert registered(proxied).is_attached
    client.vanish()
    assert not registered(proxied).is_attached


# --- at two brokers


def test_a_session_is_resumed_at_another_broker_which_ends_the_first_connection(
    proxied: PairedProxy, second: PairedProxy
) -> None:
    filled(proxied, 3)
    first = opened(proxied)
    link = publish(first, "out")
    for number in (1, 2):
        first.send(link, numbered(number))
    proxied.settle_down()
    got = first.received(consume(first, "q", 3))
    later = opened(second)
    proxied.settle_down()
    assert (refusal(first), status(later)) == ("amqp:connection:forced", "resumed")
    assert confirmed(publish(later, "out")) == 2
    settle(first, got[0][0])
    link = consume(later, "q", 3)
    assert held(link) == 3
    assert ids(later, link) == [int(message.instructions["qpid.message-id"]) for _, message in got]
    attachment = proxied.container.sessions.attachment_of(registered(proxied).id)
    assert attachment is not None
    assert attachment.broker == "second"


def test_what_an_earlier_connection_sent_and_comes_late_does_not_count(
    proxied: PairedProxy, second: PairedProxy
) -> None:
    first = opened(proxied)
    link = publish(first, "out")
    first.send(link, numbered(1))
    proxied.proxy.settle_alone()  # the proxy has it, and the primary does not
    later = opened(second)
    again = publish(later, "out")
    assert confirmed(again) == 0
    proxied.settle_down()
    later.send(again, numbered(1))
    later.send(again, numbered(2))
    second.settle_down()
    reader = proxied.primary.connect()
    assert reader.bodies(reader.receiver("out", 9)) == ["m1", "m2"]


def test_a_client_that_is_lost_while_its_link_is_being_attached_has_what_it_held(proxied: PairedProxy) -> None:
    filled(proxied, 2)
    client = opened(proxied)
    consume(client, "q", 2)
    client.vanish()
    again = opened(proxied)
    with proxied.held_up():
        link = again.session.receiver("in")
        link.source.address = "q"
        link.open()
        proxied.settle_down()
        assert link.state & proton.Endpoint.REMOTE_UNINIT
        again.vanish()
    proxied.settle_down()
    last = opened(proxied)
    assert held(consume(last, "q", 2)) == 2


# --- sets


def test_links_of_a_session_at_the_primary_of_default_lead_to_sets_that_others_lead() -> None:
    """As `PairedProxy`: the broker with the client leads nothing that the client uses."""
    primary = SeveralSets()
    proxied = PairedProxy(primary=primary)
    for name in ("red", "blue"):
        for number in (1, 2):
            client = primary.connect()
            client.send(client.sender(name), proton.Message(f"{name}{number}"))
            primary.settle_down()
    client = opened(proxied)
    for name in ("red", "blue"):
        consume(client, name, 2, f"from {name}")
        sender = publish(client, name, f"to {name}")
        client.send(sender, numbered(1, link=f"to {name}"))
        proxied.settle_down()
    client.vanish()
    again = opened(proxied, resume=True)
    for name in ("red", "blue"):
        link = consume(again, name, 9, f"from {name}")
        assert (held(link), again.bodies(link)) == (2, [f"{name}1", f"{name}2", "m1"])
        assert confirmed(publish(again, name, f"to {name}")) == 1
    again.connection.close()
    proxied.settle_down()
    primary.container.tick()  # other sets than default give back when it is committed that the session has ended
    proxied.settle_down()
    assert not any(len(primary.set(name).resources.catalog.holdings) for name in ("red", "blue"))


def test_other_sets_give_back_what_a_session_held_when_its_end_is_committed() -> None:
    """If the next primary of `default` did not know of the end, the client could resume, and somebody else have it."""
    primary = SeveralSets()
    publisher = primary.connect()
    publisher.send(publisher.sender("red"), proton.Message("m1"))
    primary.settle_down()
    client = open_session(primary)
    consume(client, "red", 1)
    log = primary.container.default.resources.replicated.log
    log.add_witness(WITNESS)
    client.connection.close()
    primary.settle_down()
    primary.container.tick()
    assert len(primary.set("red").resources.catalog.holdings) == 1
    log.acknowledge(WITNESS, log.last_lsn)
    primary.container.tick()
    assert len(primary.set("red").resources.catalog.holdings) == 0


def with_an_end_that_is_not_committed() -> SeveralSets:
    """What a session holds in another set, and its end, which nobody else has heard of."""
    primary = SeveralSets()
    publisher = primary.connect()
    publisher.send(publisher.sender("red"), proton.Message("m1"))
    primary.settle_down()
    consume(open_session(primary), "red", 1)
    primary.container.default.resources.replicated.log.add_witness(WITNESS)
    assert primary.container.sessions.end_by_hand(FIRST) is not None
    primary.settle_down()
    return primary


def held_after_a_tick(broker: SeveralSets) -> int:
    """How many links hold something in the other set, which this broker leads all the time."""
    broker.container.tick()
    broker.settle_down()
    return len(broker.set("red").resources.catalog.holdings)


def test_other_sets_do_not_give_back_for_an_end_that_a_former_primary_of_default_has_not_committed() -> None:
    """It leads `default` no more, and its successor may never hear of the end: then the session lives there."""
    primary = with_an_end_that_is_not_committed()
    default, log = primary.container.default, primary.container.default.resources.replicated.log
    default.read_only = True
    assert held_after_a_tick(primary) == 1, "it serves nobody at the moment, and leads yet"
    log.end_writing()
    default.resources.replication.read_only = "another one leads"
    assert held_after_a_tick(primary) == 1
    log.committed_elsewhere(log.last_lsn - 1)
    assert held_after_a_tick(primary) == 1
    log.committed_elsewhere(log.last_lsn)
    assert held_after_a_tick(primary) == 0, "the successor has the end, too"


def test_other_sets_do_not_give_back_for_an_end_that_came_with_a_comparison_before_it_was_committed() -> None:
    """The primary of `default` may be lost, and its successor be one that never had the end."""
    primary = with_an_end_that_is_not_committed()
    default, replicated = primary.container.default, primary.container.default.resources.replicated
    log, lsn = replicated.log, replicated.log.last_lsn
    default.read_only, default.resources.replication.read_only = True, "another one leads"
    catch_up = CatchUp(replicated, 0)
    catch_up.discard_after_common()
    catch_up.objects(objects_frame(replicated.state, 1, lsn))
    assert held_after_a_tick(primary) == 1
    log.committed_elsewhere(lsn)
    assert held_after_a_tick(primary) == 0


# --- the end


def test_nothing_is_kept_of_links_that_have_ended(proxied: PairedProxy) -> None:
    client = opened(proxied)
    consume(client, "q")
    publish(client, "q").close()
    publish(client, "q", "another")
    proxied.settle_down()
    assert len(proxied.container.sessions.links) == 2
    client.vanish()
    assert len(proxied.container.sessions.links) == 0
    assert not proxied.links


def test_a_broker_that_leads_no_more_sends_clients_away_whose_sessions_it_kept_unless_it_relays() -> None:
    broker = PairedBroker()
    client = open_session(broker)
    broker.container.tick()
    broker.container.default.read_only = True
    broker.container.tick()
    broker.settle_down()
    assert refusal(client) == "amqp:resource-locked", "nobody is known who keeps it now"


def test_an_anonymous_relay_of_a_session_has_no_copies_in_any_set() -> None:
    primary = SeveralSets()
    proxied = PairedProxy(primary=primary)
    proxied.proxy.container.directory = primary.directory
    client = opened(proxied)

    def sent(client: PairedClient, number: int, address: str) -> Any:
        message = numbered(number)
        message.address = address
        return client.send(link, message)

    link = publish(client, None)
    assert confirmed(link) == 0
    first = [sent(client, 1, "red"), sent(client, 2, "blue")]
    proxied.settle_down()
    assert [delivery.remote_state for delivery in first] == [ACCEPTED] * 2
    client.vanish()
    client = opened(proxied, resume=True)
    link = publish(client, None)
    again = [sent(client, 1, "red"), sent(client, 2, "blue"), sent(client, 3, "red")]
    proxied.settle_down()
    assert [delivery.remote_state for delivery in again] == [ACCEPTED] * 3
    assert (primary.count("red"), primary.count("blue")) == (2, 1)


def test_what_comes_for_a_link_that_has_ended_and_waits_for_its_transaction_stays_the_sessions(
    proxied: PairedProxy,
) -> None:
    client, link = consuming(proxied, 1, credit=9)
    coordinator = client.session.sender("coordinator")
    coordinator.target.type = proton.Terminus.COORDINATOR
    coordinator.open()
    proxied.settle_down()
    declare: Any = proton.Message(proton.Described(proton.symbol("amqp:declare:list"), [None]), inferred=True)
    declared = client.send(coordinator, declare)
    proxied.settle_down()
    (transaction_id,) = declared.remote.data
    ((delivery, _),) = client.received(link)
    with proxied.held_up():  # the far link stays until it is known at the primary what was accepted on it
        delivery.local.data = [transaction_id, proton.Described(proton.ulong(ACCEPTED), [])]
        delivery.update(0x34)
        proxied.settle_down()
        filled(proxied, 2)
        proxied.settle_down()
        link.detach()
        proxied.settle_down()
    client.vanish()
    again = opened(proxied, resume=True)
    link = consume(again, "q", 9)
    assert (held(link), again.bodies(link)) == (3, ["m1", "m1", "m2"])


# --- a broker whose copy of the registry is behind, or ahead


def test_a_link_waits_until_its_session_is_known_and_is_refused_when_a_later_connection_has_it() -> None:
    broker = PairedBroker()
    links, default = broker.container.sessions.links, broker.container.default.resources.replicated
    part = SessionPart(default.log.last_lsn + 1, FIRST, 1, "in")
    told: list[AmqpError | None] = []
    with pytest.raises(AttachWaits) as waits:
        links.check(part)
    waits.value.wait.add(told.append)
    broker.settle_down()
    assert told == []
    assert default.write(ev.SessionStarted(FIRST, "", 1000, 0)) == part.id
    broker.settle_down()
    assert told == [None]
    links.check(part)
    with pytest.raises(AttachWaits):
        links.check(part._replace(epoch=2))
    default.write(ev.SessionResumed(part.id, 2, 1000, 0))
    with pytest.raises(AmqpError, match="resumed on another connection"):
        links.check(part)
    with pytest.raises(AmqpError, match="has ended"):
        links.check(part._replace(name=SECOND))
    default.write(ev.SessionEnded(part.id, False))
    with pytest.raises(AmqpError, match="has ended"):
        links.check(part._replace(epoch=2))


def test_links_of_a_connection_that_has_the_session_no_more_end(proxied: PairedProxy) -> None:
    """Where the broker that leads the set hears of it before the client's broker does."""
    client, link = consuming(proxied, 2, credit=2)
    session = registered(proxied)
    default = proxied.container.default.resources.replicated
    default.write(ev.SessionResumed(session.id, session.epoch + 1, 1000, 0))
    assert len(proxied.container.sessions.links) == 1
    proxied.container.tick()
    assert len(proxied.container.sessions.links) == 0
    assert len(client.received(link)) == 2
    assert proxied.container.default.resources.catalog.holdings.find(session.id, FIRST, "in", proxied.queue("q"))


# --- releases before this one


def test_a_primary_of_an_older_version_is_not_asked_to_keep_a_session(
    proxied: PairedProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = ("qpid.relay", "qpid.relay-sets", "qpid.relay-own-nodes")
    monkeypatch.setattr("qpid_ha_broker.amqp.connections.connection._RELAY_CAPABILITIES", older)
    proxied.connect_upstream()
    client = opened(proxied)
    assert refusal(client) == "amqp:not-implemented"
    condition: Any = client.connection.remote_condition
    assert "upgrade it" in condition.description
    plain = proxied.connect()
    assert plain.receiver("q").remote_condition is None


@pytest.mark.parametrize("setting", ["producers", "max_client_sessions"])
def test_where_the_primary_has_no_sessions_the_client_is_told_why(setting: str) -> None:
    settings: Any = {setting: 0}
    proxied = PairedProxy(ContainerSettings("primary", "0", **settings))
    client = opened(proxied)
    assert refusal(client) == "amqp:not-implemented"
    assert not proxied.links
