"""Sessions of clients on the wire: what the open and the attach say, and who gets what after a break."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import count
from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient, take_from
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.amqp.wire.engine import ACCEPTED, REJECTED, RELEASED
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from session_clients import (
    confirmed,
    consume,
    held,
    ids,
    numbered,
    open_session,
    publish,
    refusal,
    refused,
    session_properties,
    status,
    told,
)
from session_support import FIRST, SECOND

WITNESS = "a backup"


def filled(broker: PairedBroker, count: int, queue: str = "q") -> None:
    client = broker.connect()
    client.publish(queue, *[f"m{number}" for number in range(1, count + 1)])
    client.connection.close()
    broker.settle_down()


def answer(client: PairedClient, deliveries: list[Any], outcome: int = ACCEPTED) -> None:
    for delivery in deliveries:
        delivery.update(outcome)
        delivery.settle()
    client.broker.settle_down()


def reason(client: PairedClient) -> str:
    condition: Any = client.connection.remote_condition
    return str(condition.description)


def pass_time(broker: PairedBroker, seconds: float) -> None:
    broker.container.now_ms += int(seconds * 1000)
    broker.container.tick()
    broker.settle_down()


def free(broker: PairedBroker, queue: str = "q") -> list[str]:
    """What a passing consumer without a session gets, and whether it is told that somebody may have seen it."""
    client = broker.connect()
    link = client.receiver(queue, 1000)
    got = [(str(message.body), message.first_acquirer) for _, message in client.received(link)]
    client.connection.close()
    broker.settle_down()
    return [body if first else f"{body} again" for body, first in got]


# --- the open


@pytest.mark.parametrize("name", [FIRST, uuid.UUID(FIRST), FIRST.upper()])
def test_a_client_is_told_that_its_session_is_new_and_then_that_it_is_resumed(broker: PairedBroker, name: Any) -> None:
    first = open_session(broker, name)
    assert told(first) == {"qpid.session": FIRST, "qpid.session-timeout": 60, "qpid.session-status": "new"}
    assert proton.symbol("qpid.sessions") in first.connection.remote_offered_capabilities
    first.vanish()
    assert status(open_session(broker, name, resume=True)) == "resumed"


def test_a_client_without_a_session_is_told_nothing_of_one(broker: PairedBroker) -> None:
    assert told(broker.connect()) == {}
    assert broker.container.default.resources.replicated.state.sessions.by_id == {}


@pytest.mark.parametrize(
    ("asked", "granted"), [(5, 5), (2.5, 2.5), (1000, 300), (None, 300), (proton.uint(7), 7), (0, 0)]
)
def test_the_timeout_is_what_was_asked_for_up_to_what_the_broker_allows(
    broker: PairedBroker, asked: Any, granted: float
) -> None:
    assert told(open_session(broker, timeout=asked))["qpid.session-timeout"] == granted


@pytest.mark.parametrize(
    "properties",
    [
        {"qpid.session": "no uuid"},
        {"qpid.session": FIRST + "0"},
        {"qpid.session": 7},
        {"qpid.session": FIRST, "qpid.session-timeout": -1},
        {"qpid.session": FIRST, "qpid.session-timeout": float("nan")},
        {"qpid.session": FIRST, "qpid.session-timeout": "60"},
        {"qpid.session": FIRST, "qpid.session-timeout": True},
        {"qpid.session": FIRST, "qpid.session-resume": 1},
        {"qpid.session": FIRST, "qpid.keep-session": "yes"},
        {"qpid.session-timeout": 5},
    ],
)
def test_what_cannot_be_understood_is_refused_by_the_name_of_its_property(
    broker: PairedBroker, properties: dict[str, Any]
) -> None:
    client = open_session(broker, None, None, properties=properties)
    assert refusal(client) == "amqp:invalid-field"
    assert list(properties)[-1] in reason(client)


def test_a_resume_is_refused_where_there_is_no_such_session(broker: PairedBroker) -> None:
    client = open_session(broker, resume=True)
    assert refusal(client) == "amqp:not-found"
    assert status(open_session(broker)) == "new", "nothing was begun by it"


def test_there_are_as_many_sessions_as_allowed_and_those_that_are_there_can_be_resumed() -> None:
    broker = PairedBroker(ContainerSettings("test", "0", max_client_sessions=1))
    first = open_session(broker)
    refused = open_session(broker, SECOND)
    assert refusal(refused) == "amqp:resource-limit-exceeded"
    assert "sessions.max" in reason(refused)
    first.vanish()
    assert status(open_session(broker)) == "resumed"


@pytest.mark.parametrize("setting", ["producers", "max_client_sessions"])
def test_where_there_are_no_sessions_they_are_not_offered_and_a_client_is_told_why(setting: str) -> None:
    settings = ContainerSettings("test", "0")
    broker = PairedBroker(replace(settings, **{setting: 0}))  # type: ignore[arg-type]
    assert proton.symbol("qpid.sessions") not in broker.connect().connection.remote_offered_capabilities
    assert refusal(open_session(broker)) == "amqp:not-implemented"


def test_the_session_of_somebody_else_is_not_had_and_not_told_about(broker: PairedBroker) -> None:
    first = open_session(broker)
    registry = broker.container.default.resources.replicated.state.sessions
    session = registry.by_name[FIRST]
    registry._put(session._replace(user="zoë"))
    second = open_session(broker)
    assert refusal(second) == "amqp:unauthorized-access"
    assert "zoë" not in reason(second)
    assert refusal(first) is None, "whoever has it goes on"


# --- what is held and what is confirmed


def test_what_comes_when_its_link_has_ended_is_not_answered_for_it_may_have_been_taken_before(
    broker: PairedBroker,
) -> None:
    """A client gives what is released another number, and it would be there twice."""
    client = open_session(broker)
    link = publish(client, "q")
    client.send(link, numbered(1))
    broker.settle_down()
    again = [client.send(link, numbered(number)) for number in (1, 2)]
    for endpoint in client.peer.links:
        endpoint.end(AmqpError(CONNECTION_FORCED, "try again"))
    broker.settle_down()
    assert link.remote_condition.name == CONNECTION_FORCED
    assert [(bool(delivery.remote_state), delivery.settled) for delivery in again] == [(False, False)] * 2


def test_a_publisher_is_told_which_number_was_accepted_last(broker: PairedBroker) -> None:
    client = open_session(broker)
    link = publish(client, "q")
    assert confirmed(link) == 0
    sent = [client.send(link, numbered(number)) for number in (1, 2, 3)]
    broker.settle_down()
    assert [delivery.remote_state for delivery in sent] == [ACCEPTED] * 3
    client.vanish()
    again = open_session(broker)
    link = publish(again, "q")
    assert confirmed(link) == 3
    again.send(link, numbered(3))
    again.send(link, numbered(4))
    broker.settle_down()
    assert free(broker) == ["m1", "m2", "m3", "m4"]
    assert confirmed(publish(again, "q", "another")) == 0


def test_a_publisher_is_told_which_numbers_were_refused_before_a_later_one_was_accepted(broker: PairedBroker) -> None:
    """It was not told when it happened, and would take the refused ones for queued."""
    client = open_session(broker)
    link, other = publish(client, "full"), publish(client, "q", "other")
    limit = broker.container.default.configuration.update_queue
    limit("full", {"qpid.max_count": 1})
    sent = [client.send(link, numbered(number)) for number in (1, 2, 3)]
    broker.settle_down()
    assert [delivery.remote_state for delivery in sent] == [ACCEPTED, REJECTED, REJECTED]
    assert refused(publish(client, "full", "third")) == []
    limit("full", {"qpid.max_count": 2})
    client.send(link, numbered(4))
    client.send(other, numbered(1, link="other"))
    broker.settle_down()
    client.vanish()

    again = open_session(broker)
    link = publish(again, "full")
    assert (confirmed(link), refused(link)) == (4, [2, 3])
    assert refused(publish(again, "q", "other")) == []
    outcome = again.send(link, numbered(2))
    broker.settle_down()
    assert outcome.remote_state == REJECTED, "it is not taken for a copy of what was taken"
    assert "under a new number" in outcome.remote.condition.description
    assert free(broker, "full") == ["m1", "m4"]


def test_what_a_lost_connection_had_comes_first_in_order_under_the_same_ids_and_others_do_not_get_it(
    broker: PairedBroker,
) -> None:
    filled(broker, 6)
    client = open_session(broker)
    link = consume(client, "q", 4)
    assert held(link) == 0
    got = client.received(link)
    numbers = [int(message.instructions["qpid.message-id"]) for _, message in got]
    answer(client, [got[1][0]])
    client.vanish()
    assert free(broker) == ["m5", "m6"]
    again = open_session(broker, resume=True)
    link = consume(again, "q", 10)
    assert held(link) == 3
    came = again.received(link)
    assert [message.body for _, message in came] == ["m1", "m3", "m4", "m5", "m6"]
    assert [int(m.instructions["qpid.message-id"]) for _, m in came[:3]] == [numbers[0], *numbers[2:]]
    assert not any(message.first_acquirer for _, message in came)
    broker.check_invariants()


def test_what_is_held_comes_as_far_as_there_is_credit_and_nothing_new_before_it(broker: PairedBroker) -> None:
    filled(broker, 5)
    client = open_session(broker)
    consume(client, "q", 3)
    client.vanish()
    again = open_session(broker)
    link = consume(again, "q", 2)
    assert again.bodies(link) == ["m1", "m2"]
    link.drain(2)
    broker.settle_down()
    assert again.bodies(link) == ["m3", "m4"]
    link.drain(9)
    broker.settle_down()
    assert again.bodies(link) == ["m5"]
    assert link.credit == 0, "the rest of the credit is given back"


def test_ten_thousand_come_again_in_their_order() -> None:
    broker = PairedBroker(ContainerSettings("test", "0", max_unsettled_per_connection=4000))
    filled(broker, 10_000)
    settings = broker.container.settings
    broker.container.settings = replace(settings, max_unsettled_per_connection=30_000)
    client = open_session(broker)
    consume(client, "q", 10_000)
    client.vanish()
    broker.container.settings = settings
    again = open_session(broker)
    link = consume(again, "q", 10_000)
    assert held(link) == 10_000
    seen: list[object] = []
    while got := again.received(link):
        assert len(got) <= 4000, "more than a client may leave unanswered"
        seen += [message.body for _, message in got]
        answer(again, [delivery for delivery, _ in got])
    assert seen == [f"m{number}" for number in range(1, 10_001)]
    broker.check_invariants()


def test_what_is_held_waits_for_room_on_the_connection_and_nobody_turns_in_circles_meanwhile(
    broker: PairedBroker,
) -> None:
    client = broker.connect()
    sender = client.sender("q")
    for _ in range(300):
        client.send(sender, proton.Message(bytes(10_000)))
    broker.settle_down()
    held_before = open_session(broker)
    consume(held_before, "q", 300)
    held_before.vanish()
    again = open_session(broker)
    link = again.session.receiver("in")
    link.source.address = "q"
    link.open()
    link.flow(300)
    again.exchange()
    broker.container.work.run()
    for _ in range(20):  # turns, and nothing is taken by the client
        broker.turn()
    assert not broker.container.has_work
    broker.settle_down()
    assert len(again.received(link)) == 300


def test_a_link_that_is_closed_gives_back_what_it_has_and_one_that_is_detached_does_not(broker: PairedBroker) -> None:
    filled(broker, 4)
    client = open_session(broker)
    closing, leaving = consume(client, "q", 2, "closing"), consume(client, "q", 2, "leaving")
    closing.close()
    leaving.detach()
    broker.settle_down()
    assert free(broker) == ["m1 again", "m2 again"]
    assert held(consume(client, "q", 0, "leaving")) == 2
    assert held(consume(client, "q", 0, "closing")) == 0


def test_a_link_that_consumes_from_another_queue_now_gives_back_what_it_had_of_the_first(broker: PairedBroker) -> None:
    filled(broker, 2)
    client = open_session(broker)
    consume(client, "q", 2)
    client.vanish()
    again = open_session(broker)
    assert held(consume(again, "other")) == 0
    assert free(broker) == ["m1 again", "m2 again"]


def test_a_link_that_is_attached_twice_at_a_time_has_nothing_twice(broker: PairedBroker) -> None:
    filled(broker, 2)
    client = open_session(broker)
    first = consume(client, "q", 2)
    assert client.bodies(first) == ["m1", "m2"]
    client.session = client.connection.session()
    client.session.open()
    second = consume(client, "q", 2)
    assert first.remote_condition.name == "amqp:link:stolen"
    assert client.bodies(second) == ["m1", "m2"]


@pytest.mark.parametrize("kind", ["browsing", "presettled", "dynamic"])
def test_nothing_is_held_for_who_only_looks_or_does_not_answer(broker: PairedBroker, kind: str) -> None:
    filled(broker, 2)
    client = open_session(broker)
    link = client.session.receiver("in")
    link.source.address = None if kind == "dynamic" else "q"
    link.source.dynamic = kind == "dynamic"
    if kind == "browsing":
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    if kind == "presettled":
        link.snd_settle_mode = proton.Link.SND_SETTLED
    link.open()
    link.flow(2)
    broker.settle_down()
    assert held(link) is None
    assert len(broker.container.default.resources.catalog.holdings) == 0
    client.vanish()
    assert free(broker) == ([] if kind == "presettled" else ["m1", "m2"])


def test_a_name_that_is_too_long_for_a_producer_is_refused(broker: PairedBroker) -> None:
    client = open_session(broker)
    for link in (publish(client, "q", "l" * 92), consume(client, "q", 0, "l" * 92)):
        assert link.remote_condition.name == "amqp:invalid-field"
    assert confirmed(publish(client, "q", "l" * 91)) == 0


# --- the end of a session


@pytest.mark.parametrize("keep", [None, True])
def test_a_clean_close_ends_a_session_unless_it_is_to_be_kept(broker: PairedBroker, keep: bool | None) -> None:
    filled(broker, 2)
    client = open_session(broker, keep=keep)
    consume(client, "q", 2)
    client.connection.close()
    broker.settle_down()
    assert free(broker) == ([] if keep else ["m1 again", "m2 again"])
    resumed = open_session(broker, resume=True)
    assert refusal(resumed) == (None if keep else "amqp:not-found")


def test_after_its_timeout_a_session_is_gone_and_what_it_had_goes_to_others_as_delivered_in_vain(
    broker: PairedBroker,
) -> None:
    filled(broker, 2)
    client = open_session(broker, timeout=5)
    consume(client, "q", 2)
    pass_time(broker, 100)
    assert refusal(client) is None, "as long as its client is there it does not matter how long"
    client.vanish()
    pass_time(broker, 4.9)
    assert free(broker) == []
    pass_time(broker, 0.1)
    queue = broker.queue("q")
    assert [entry.delivery_count for entry in queue.messages] == [1, 1]
    assert free(broker) == ["m1 again", "m2 again"]
    assert refusal(open_session(broker, resume=True)) == "amqp:not-found"


def test_a_client_that_came_back_in_time_has_the_full_timeout_again(broker: PairedBroker) -> None:
    open_session(broker, timeout=5).vanish()
    pass_time(broker, 4)
    open_session(broker, timeout=5).vanish()
    pass_time(broker, 4)
    assert status(open_session(broker, timeout=5)) == "resumed"


def test_a_session_that_is_over_is_over_even_before_the_broker_has_noticed(broker: PairedBroker) -> None:
    open_session(broker, timeout=5).vanish()
    broker.container.now_ms += 5000
    assert refusal(open_session(broker, resume=True)) == "amqp:not-found"


def test_what_a_link_left_behind_goes_back_when_the_session_is_closed(broker: PairedBroker) -> None:
    filled(broker, 2)
    client = open_session(broker)
    consume(client, "q", 2).detach()
    broker.settle_down()
    client.connection.close()
    broker.settle_down()
    assert free(broker) == ["m1 again", "m2 again"]
    assert [entry.delivery_count for entry in broker.queue("q").messages] == [0, 0]


# --- one connection at a time


def test_a_second_connection_that_resumes_ends_the_first_and_has_what_that_had(broker: PairedBroker) -> None:
    filled(broker, 3)
    first = open_session(broker)
    got = first.received(consume(first, "q", 3))
    second = open_session(broker)
    assert refusal(first) == "amqp:connection:forced"
    assert "the session was resumed on another connection" in reason(first)
    assert status(second) == "resumed"
    got[0][0].update(ACCEPTED)
    got[0][0].settle()
    broker.settle_down()
    link = consume(second, "q", 3)
    assert second.bodies(link) == ["m1", "m2", "m3"], "what the first says now does not count"
    first.vanish()
    pass_time(broker, 1000)
    assert status(open_session(broker)) == "resumed", "the end of the first does not make the session wait"


def test_what_the_first_connection_said_in_the_same_moment_counts(broker: PairedBroker) -> None:
    filled(broker, 2)
    first = open_session(broker)
    got = first.received(consume(first, "q", 2))
    got[0][0].update(ACCEPTED)
    got[0][0].settle()
    first.exchange()  # it is there, and no turn has carried it out
    second = open_session(broker)
    assert second.bodies(consume(second, "q", 2)) == ["m2"]


def test_it_counts_also_where_the_links_of_the_first_end_later(broker: PairedBroker) -> None:
    filled(broker, 2)
    first = open_session(broker)
    consume(first, "other", 0, "ends at once")
    got = first.received(consume(first, "q", 2))
    got[0][0].update(ACCEPTED)
    got[0][0].settle()
    first.exchange()
    ticks = count()
    broker.container.clock = lambda: float(next(ticks))  # nothing gets more than one portion of time
    second = PairedClient(broker, session_properties(FIRST))
    link = second.session.receiver("in")
    link.source.address = "q"
    link.open()
    link.flow(2)
    broker.settle_down()
    assert held(link) == 1
    assert second.bodies(link) == ["m2"]


# --- nothing is told before it is committed


@pytest.fixture
def witnessed(broker: PairedBroker) -> PairedBroker:
    """What is written needs somebody's word."""
    broker.container.default.resources.replicated.log.add_witness(WITNESS)
    return broker


def commit(broker: PairedBroker) -> None:
    log = broker.container.default.resources.replicated.log
    log.acknowledge(WITNESS, log.last_lsn)
    broker.settle_down()


def handed_to_a_session(witnessed: PairedBroker) -> tuple[PairedClient, Any]:
    """A client with a session, and its link from `q`, for whose one message all is committed but that it has it."""
    witnessed.container.administration.create_queue("q", {})
    commit(witnessed)
    filled(witnessed, 1)
    commit(witnessed)
    client = open_session(witnessed)
    commit(witnessed)
    return client, consume(client, "q", 1)


def test_an_open_is_answered_when_the_session_is_committed(witnessed: PairedBroker) -> None:
    client = open_session(witnessed)
    assert client.connection.remote_properties is None
    link = client.session.receiver("in")  # a client may say more without waiting
    link.source.address = "q"
    link.open()
    witnessed.settle_down()
    commit(witnessed)
    assert status(client) == "new"
    commit(witnessed)
    assert held(link) == 0


def test_a_client_hears_that_its_session_is_over_when_that_is_committed(witnessed: PairedBroker) -> None:
    """A primary that was stopped, and replaced meanwhile, would say so of a session that lives at the next one."""
    gone = open_session(witnessed, timeout=5)
    commit(witnessed)
    gone.vanish()
    commit(witnessed)
    witnessed.container.now_ms += 5000
    clients = [open_session(witnessed, resume=True) for _ in range(2)]
    assert [refusal(client) for client in clients] == [None, None]
    commit(witnessed)
    assert [refusal(client) for client in clients] == ["amqp:not-found"] * 2


def test_the_later_of_two_that_resume_at_once_wins_and_the_other_is_told(witnessed: PairedBroker) -> None:
    clients = [open_session(witnessed) for _ in range(3)]
    commit(witnessed)
    assert [refusal(client) for client in clients] == ["amqp:connection:forced"] * 2 + [None]
    assert status(clients[2]) == "resumed"


def test_a_message_goes_out_when_it_is_committed_whose_it_is_and_others_do_not_wait_for_that(
    witnessed: PairedBroker,
) -> None:
    witnessed.container.administration.create_queue("q", {})
    commit(witnessed)
    filled(witnessed, 2)
    commit(witnessed)
    client, other = open_session(witnessed), witnessed.connect()
    commit(witnessed)
    link = consume(client, "q", 1)
    plain = other.receiver("q", 1)
    assert (client.bodies(link), other.bodies(plain)) == ([], ["m2"])
    commit(witnessed)
    assert client.bodies(link) == ["m1"]


@pytest.mark.parametrize("broker", ["direct"], indirect=True)
def test_what_the_last_steps_of_a_turn_commit_goes_out_with_them(witnessed: PairedBroker) -> None:
    """As where a primary has no backup: nobody's answer would bring another turn."""
    client, link = handed_to_a_session(witnessed)
    log = witnessed.container.default.resources.replicated.log
    log.acknowledge(WITNESS, log.last_lsn)
    witnessed.container.tell_what_is_committed()
    client.exchange()
    assert client.bodies(link) == ["m1"]


@pytest.mark.parametrize("broker", ["direct"], indirect=True)
def test_what_waits_to_be_committed_does_not_go_out_of_a_queue_that_was_deleted_meanwhile(
    witnessed: PairedBroker,
) -> None:
    client, link = handed_to_a_session(witnessed)
    log = witnessed.container.default.resources.replicated.log
    handed_out_lsn = log.last_lsn
    witnessed.container.administration.delete_queue("q")
    log.acknowledge(WITNESS, handed_out_lsn)
    witnessed.container.tell_what_is_committed(in_turn=False)
    client.exchange()
    assert client.bodies(link) == []
    commit(witnessed)
    assert client.bodies(link) == []
    assert link.remote_condition.name == "amqp:resource-deleted"


@pytest.mark.parametrize("broker", ["direct"], indirect=True)
def test_what_a_closed_link_was_still_to_get_takes_nothing_from_a_later_one_of_its_name(
    witnessed: PairedBroker,
) -> None:
    """It leads no more, and then does again: what it had handed out waits all the time, and the client has closed the
    link and attached it anew, at another broker."""
    default = witnessed.container.default
    client, link = handed_to_a_session(witnessed)
    (closed,) = default.resources.catalog.holdings
    default.prove_lead = lambda: LeadProof.MISSING
    commit(witnessed)
    link.close()
    commit(witnessed)
    (entry,) = closed.queue.messages
    assert entry.is_free
    default.resources.replicated.hold(closed.queue, [entry], closed.owner)
    default.prove_lead = lambda: LeadProof.PROVEN
    commit(witnessed)
    (later,) = default.resources.catalog.holdings
    assert entry.holder is later
    assert list(later.ids) == [entry.id]
    assert client.bodies(link) == []


def test_what_is_told_of_a_link_is_committed(witnessed: PairedBroker) -> None:
    client = open_session(witnessed)
    commit(witnessed)
    sender = publish(client, "q")
    commit(witnessed)
    client.send(sender, numbered(1))
    witnessed.settle_down()
    client.vanish()
    again = open_session(witnessed)
    log = witnessed.container.default.resources.replicated.log
    log.acknowledge(WITNESS, log.last_lsn)
    log.append_unit([])  # something more is on its way
    witnessed.settle_down()
    sender, receiver = publish(again, "q"), consume(again, "q")
    assert sender.state & proton.Endpoint.REMOTE_UNINIT
    assert receiver.state & proton.Endpoint.REMOTE_UNINIT
    commit(witnessed)
    assert (confirmed(sender), held(receiver)) == (1, 0)


@pytest.mark.parametrize("broker", ["direct"], indirect=True)
def test_a_client_whose_open_waits_too_long_is_told_to_try_again(witnessed: PairedBroker) -> None:
    now_s = 0.0
    witnessed.container.clock = lambda: now_s
    client = open_session(witnessed)
    now_s = 11.0
    pass_time(witnessed, 11)
    assert refusal(client) == "amqp:resource-locked"
    commit(witnessed)


# --- who leads


def test_a_broker_that_begins_to_lead_waits_for_the_clients_of_all_sessions(broker: PairedBroker) -> None:
    """As after a failover, or a restart from a store: it has the registry, and none of the connections."""
    filled(broker, 1)
    consume(open_session(broker, timeout=5), "q", 1)
    following = PairedBroker()
    following.container.default.resources.replication.read_only = "another one leads"
    following.container.default.read_only = True
    replay(broker, following)
    pass_time(following, 100)
    assert refusal(open_session(following)) == "amqp:resource-locked", "nobody knows who leads"
    following.container.default.resources.replication.read_only = ""
    following.container.default.read_only = False
    pass_time(following, 0)
    pass_time(following, 4.9)
    assert free(following) == []
    pass_time(following, 0.1)
    assert free(following) == ["m1 again"]


def replay(leading: PairedBroker, following: PairedBroker) -> None:
    """Let the second broker have what the first one holds, as from a snapshot."""
    from qpid_ha_broker.ha.browser import Browsers, objects_frame
    from qpid_ha_broker.ha.catchup import CatchUp

    default = leading.container.default.resources.replicated
    catch_up = CatchUp(following.container.default.resources.replicated, 0)
    catch_up.discard_after_common()
    lsn = default.log.last_lsn
    catch_up.objects(objects_frame(default.state, 1, lsn))
    browsers = Browsers(default.state, 1, lsn, {}, max_messages=1000, max_bytes=1 << 20, window=1000)
    while not browsers.done:
        frame = browsers.next(1 << 30)
        if frame is not None and hasattr(frame, "queue"):
            catch_up.chunk(frame)  # type: ignore[arg-type]
    catch_up.finish()


def test_an_operator_ends_a_session_by_hand(broker: PairedBroker) -> None:
    filled(broker, 2)
    client = open_session(broker)
    consume(client, "q", 9)  # and what it gives back would come to it again
    ended = broker.container.sessions.end_by_hand(FIRST)
    broker.settle_down()
    assert ended is not None
    assert refusal(client) == "amqp:connection:forced"
    assert len(broker.container.default.resources.catalog.holdings) == 0
    assert free(broker) == ["m1 again", "m2 again"]
    assert broker.container.sessions.end_by_hand(FIRST) is None


def test_a_broker_that_leads_no_more_ends_the_wait_of_those_who_resume(witnessed: PairedBroker) -> None:
    client = open_session(witnessed)
    error = AmqpError("amqp:connection:forced", "another broker leads")
    witnessed.container.default.end_links(error, browsers=False)
    witnessed.settle_down()
    assert refusal(client) == "amqp:connection:forced"


def test_what_a_client_begins_and_ends_before_its_open_is_answered_is_answered_after_it(
    witnessed: PairedBroker,
) -> None:
    client = open_session(witnessed)
    brief: Any = client.connection.session()
    brief.open()
    witnessed.settle_down()
    brief.close()
    witnessed.settle_down()
    assert client.session.state & proton.Endpoint.REMOTE_UNINIT
    commit(witnessed)
    assert client.session.state & proton.Endpoint.REMOTE_ACTIVE
    assert brief.state & proton.Endpoint.REMOTE_CLOSED


def test_a_transaction_that_ends_with_its_connection_leaves_the_session_what_it_had(broker: PairedBroker) -> None:
    filled(broker, 2)
    client = open_session(broker)
    link = consume(client, "q", 2)
    coordinator = client.session.sender("coordinator")
    coordinator.target.type = proton.Terminus.COORDINATOR
    coordinator.open()
    declare: Any = proton.Message(proton.Described(proton.symbol("amqp:declare:list"), [None]), inferred=True)
    declared = client.send(coordinator, declare)
    broker.settle_down()
    (transaction_id,) = declared.remote.data
    got = client.received(link)
    local = got[0][0].local
    local.data = [transaction_id, proton.Described(proton.ulong(ACCEPTED), [])]
    got[0][0].update(0x34)
    broker.settle_down()
    before = [int(message.instructions["qpid.message-id"]) for _, message in got]
    client.vanish()
    again = open_session(broker)
    assert ids(again, consume(again, "q", 2)) == before


# --- attempts that a client has given up


def numbered_open(broker: PairedBroker, attempt: int, **more: Any) -> PairedClient:
    return open_session(broker, properties={"qpid.session-attempt": proton.ulong(attempt)}, **more)


def epoch_told(client: PairedClient) -> int:
    """In the refusal of an attempt that is older than the one that has the session."""
    condition: Any = client.connection.remote_condition
    return int(condition.info["qpid.session-epoch"])


def test_an_attempt_that_was_given_up_takes_the_session_from_no_later_one(broker: PairedBroker) -> None:
    filled(broker, 2)
    newer = numbered_open(broker, 3)
    link = consume(newer, "q", 2)
    for resume in (False, True):
        older = numbered_open(broker, 2, resume=resume)
        assert refusal(older) == "amqp:precondition-failed"
        assert epoch_told(older) == 3
    assert refusal(newer) is None
    answer(newer, [delivery for delivery, _ in newer.received(link)])
    newer.connection.close()
    broker.settle_down()
    assert free(broker) == []


def test_an_attempt_that_was_given_up_does_not_get_a_session_that_waits(broker: PairedBroker) -> None:
    numbered_open(broker, 3).vanish()
    assert refusal(numbered_open(broker, 2)) == "amqp:precondition-failed"
    assert status(numbered_open(broker, 4, resume=True)) == "resumed"


def test_a_later_attempt_takes_the_session_from_an_earlier_one(broker: PairedBroker) -> None:
    older, newer = numbered_open(broker, 5), numbered_open(broker, 7)
    assert refusal(older) == CONNECTION_FORCED
    assert status(newer) == "resumed"


def test_who_does_not_number_its_attempts_takes_the_session_as_ever(broker: PairedBroker) -> None:
    first = numbered_open(broker, 5)
    second, third = open_session(broker), open_session(broker)
    assert [refusal(client) for client in (first, second, third)] == [CONNECTION_FORCED, CONNECTION_FORCED, None]
    same = numbered_open(broker, 7)
    assert (refusal(same), epoch_told(same)) == ("amqp:precondition-failed", 7), "the third has that epoch"
    assert status(numbered_open(broker, 8)) == "resumed", "who hears the refusal can have it"


@pytest.mark.parametrize("attempt", [-1, True, "2", 1.5, 1 << 53])
def test_an_attempt_is_a_number(broker: PairedBroker, attempt: Any) -> None:
    client = open_session(broker, properties={"qpid.session-attempt": attempt})
    assert refusal(client) == "amqp:invalid-field"
    assert "qpid.session-attempt" in reason(client)


@pytest.mark.parametrize("seen_before", [False, True], ids=["by nobody", "by somebody else"])
def test_what_never_left_the_broker_comes_again_with_the_mark_that_it_had(seen_before: bool) -> None:
    broker = PairedBroker()
    filled(broker, 1)
    if seen_before:
        other = broker.connect()
        link = other.receiver("q", 1)
        answer(other, [delivery for delivery, _ in other.received(link)], RELEASED)
        other.connection.close()
        broker.settle_down()
    client = open_session(broker)
    link = consume(client, "q")
    link.flow(1)
    client.peer.receive(take_from(client.transport))
    broker.turn()
    client.vanish()  # before anything of what was sent has begun to leave
    again = open_session(broker, resume=True)
    link = consume(again, "q", 5)
    assert held(link) == 1
    ((_, message),) = again.received(link)
    assert message.first_acquirer is not seen_before
