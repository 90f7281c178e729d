"""The client's core against a broker in memory: whatever breaks when, each message is queued and handed out once."""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

import pytest

from qpid_ha_client.core import events as ev
from qpid_ha_client.core.addresses import Backoff, parse_addresses
from qpid_ha_client.core.client_core import ATTEMPTS, ClientPhase, ClientSettings
from qpid_ha_client.core.consuming import ConsumerCore
from qpid_ha_client.core.errors import (
    ClientError,
    LoginRefused,
    SessionLost,
    SessionRefused,
    SessionsNotOffered,
    SessionTaken,
)
from qpid_ha_client.core.events import Guarantee
from qpid_ha_client.core.publishing import PublisherCore
from qpid_ha_client.session_handler import SessionHandler
from session_broker import TIMEOUT_S, SessionBroker

ADDRESSES = parse_addresses("amqp://a:1,b:2,c:3")


def broker_of(mode: str, **settings: Any) -> SessionBroker:
    wanted = ClientSettings(**{"addresses": ADDRESSES, "listens_for_hosts": False, **settings})
    return SessionBroker(mode, wanted, Random(1).random)


def started(mode: str, **settings: Any) -> SessionBroker:
    """A client with a publisher and a consumer, connected."""
    broker = broker_of(mode, **settings)
    broker.feed(ev.SenderWanted("out", "q"))
    broker.feed(ev.ReceiverWanted("in", "q", 4))
    broker.feed(ev.Begun())
    broker.settle_down()
    return broker


def told(broker: SessionBroker, kind: type) -> list[Any]:
    return [effect for effect in broker.told if isinstance(effect, kind)]


def handed_out(broker: SessionBroker) -> list[Any]:
    return [effect.message for effect in told(broker, ev.MessageHandedOut)]


def publish(broker: SessionBroker, *tickets: int) -> None:
    for ticket in tickets:
        broker.feed(ev.Published("out", ticket, f"m{ticket}"))


def accept(broker: SessionBroker, *tickets: int) -> None:
    for ticket in tickets:
        broker.feed(ev.VerdictGiven("in", ticket, ev.ConsumerVerdict.ACCEPT))


def ended_with(broker: SessionBroker) -> ClientError | None:
    (end,) = told(broker, ev.ClientEnded)
    assert isinstance(end, ev.ClientEnded)
    assert broker.core.phase is ClientPhase.ENDED
    return end.error


# --- whatever breaks


class Walk:
    """A client that publishes and consumes while the connection breaks at random. The seed says how."""

    def __init__(self, mode: str, seed: int) -> None:
        self.random = Random(seed)
        self.broker = started(mode)
        self.published = 0
        self.open: list[int] = []
        self._seen = 0

    def step(self) -> None:
        random, broker = self.random, self.broker
        roll = random.random()
        if roll < 0.25 and self.published < 60:
            self.published += 1
            publish(broker, self.published)
        elif roll < 0.45 and self.open:
            ticket = self.open.pop(random.randrange(len(self.open)))
            accept(broker, ticket)
        elif roll < 0.70:
            broker.deliver()
        elif roll < 0.93:
            broker.answer()
        elif roll < 0.97:
            broker.advance(random.random())
        elif broker.core.phase in (ClientPhase.OPEN, ClientPhase.CONNECTING):
            broker.is_up = random.random() < 0.7
            broker.cut()
        self.look()

    def look(self) -> None:
        """What came meanwhile."""
        effects, self._seen = self.broker.told[self._seen :], len(self.broker.told)
        self.open += [effect.ticket for effect in effects if isinstance(effect, ev.MessageHandedOut)]

    def finish(self) -> None:
        """Until nothing is left to be done."""
        self.broker.is_up = True
        while True:
            self.broker.settle_down()
            self.look()
            if not self.open:
                break
            accept(self.broker, *self.open)
            self.open.clear()


@pytest.mark.parametrize("seed", range(150))
def test_with_a_session_nothing_is_queued_or_handed_out_twice_or_lost_or_out_of_order(seed: int) -> None:
    walk = Walk("sessions", seed)
    for _ in range(600):
        walk.step()
    walk.finish()
    everything = [f"m{number}" for number in range(1, walk.published + 1)]
    assert walk.broker.bodies == everything
    assert handed_out(walk.broker) == everything
    assert [each.ticket for each in told(walk.broker, ev.PublishConfirmed)] == list(range(1, walk.published + 1))
    assert len({each.ticket for each in told(walk.broker, ev.AnswerConfirmed)}) == walk.published
    assert not walk.broker.queue
    assert not walk.broker.sessions["the-session"].held


@pytest.mark.parametrize("seed", range(50))
def test_without_a_session_numbers_keep_messages_from_being_queued_twice(seed: int) -> None:
    walk = Walk("numbers", seed)
    for _ in range(600):
        walk.step()
    walk.finish()
    everything = [f"m{number}" for number in range(1, walk.published + 1)]
    assert walk.broker.bodies == everything
    assert sorted(handed_out(walk.broker)) == sorted(everything)  # the only client, and it knows what comes again
    assert [each.ticket for each in told(walk.broker, ev.PublishConfirmed)] == list(range(1, walk.published + 1))


@pytest.mark.parametrize("seed", range(50))
def test_without_either_nothing_is_lost_and_what_comes_again_may_be_marked(seed: int) -> None:
    walk = Walk("nothing", seed)
    for _ in range(600):
        walk.step()
    walk.finish()
    assert set(handed_out(walk.broker)) == {f"m{number}" for number in range(1, walk.published + 1)}
    assert len(told(walk.broker, ev.PublishConfirmed)) == walk.published


# --- one thing at a time


def test_what_the_broker_accepted_before_a_break_is_confirmed_by_its_attach() -> None:
    broker = started("sessions")
    publish(broker, 1)
    assert broker.deliver()
    broker.cut()
    broker.settle_down()
    assert told(broker, ev.PublishConfirmed) == [ev.PublishConfirmed("out", 1)]
    assert broker.bodies == ["m1"]


def test_what_an_attach_confirms_is_not_sent_again() -> None:
    link = PublisherCore("out", "q", "s/out")
    for ticket in (1, 2, 3):
        link.publish(ticket, f"m{ticket}")
    link.detached()

    assert link.attached(2, numbers_count=True) == [ev.PublishConfirmed("out", 1), ev.PublishConfirmed("out", 2)]
    assert link.credited(10) == [ev.SendMessage("out", 3, "s/out", 3, "m3")]


def test_what_the_broker_refused_before_a_break_is_refused_and_not_confirmed_with_what_came_after_it() -> None:
    broker = started("sessions")
    broker.refuses = {"m2", "m4"}
    publish(broker, 1, 2, 3, 4)
    for _ in range(4):
        assert broker.deliver()
    broker.cut()
    broker.settle_down()
    assert told(broker, ev.PublishConfirmed) == [ev.PublishConfirmed("out", 1), ev.PublishConfirmed("out", 3)]
    assert [each.ticket for each in told(broker, ev.PublishRefused)] == [2, 4]
    assert broker.bodies == ["m1", "m3"]


def test_held_messages_all_come_however_many_the_application_has_not_answered() -> None:
    link = ConsumerCore("in", "q", 2)
    link.attached(0)
    numbers = (1, 2, 3, 4)
    for number, answered in zip(numbers, (0, 2, 3, 0), strict=True):
        link.arrived(ev.MessageArrived(1, "in", number, number, False, "m"), number)
        link.answered(answered, ev.ConsumerVerdict.ACCEPT)
    link.detached()
    assert link.attached(4) == [ev.GiveCredit("in", 4)]
    effects = [
        effect for each in numbers for effect in link.arrived(ev.MessageArrived(2, "in", each, each, True, "m"), 0)
    ]
    assert effects == [ev.AnswerDelivery("in", each, ev.ConsumerVerdict.ACCEPT) for each in (2, 3)]


def test_what_the_broker_does_not_hold_any_more_was_confirmed_if_it_was_answered_and_is_withdrawn_if_not() -> None:
    broker = started("sessions")
    publish(broker, 1, 2)
    broker.settle_down()
    accept(broker, 1)
    while broker.deliver():
        pass
    broker.cut()
    broker.sessions["the-session"].held.clear()  # an operator has purged the queue
    broker.settle_down()
    assert told(broker, ev.AnswerConfirmed) == [ev.AnswerConfirmed("in", 1)]
    assert told(broker, ev.DeliveryWithdrawn) == [ev.DeliveryWithdrawn("in", 2)]


def test_without_a_session_an_answer_that_nobody_confirmed_is_in_doubt_and_given_again() -> None:
    broker = started("numbers")
    publish(broker, 1)
    broker.settle_down()
    accept(broker, 1)
    broker.cut()
    broker.settle_down()
    assert told(broker, ev.AnswerInDoubt) == [ev.AnswerInDoubt("in", 1)]
    assert handed_out(broker) == ["m1"]
    assert not broker.queue


def test_a_session_that_is_gone_is_told_with_what_is_in_doubt_and_the_application_decides() -> None:
    broker = started("sessions")
    publish(broker, 1, 2)
    broker.settle_down()
    accept(broker, 1)
    publish(broker, 3)
    broker.cut()
    broker.expire_sessions()
    broker.settle_down()
    (gone,) = told(broker, ev.SessionGone)
    assert isinstance(gone.error, SessionLost)
    assert gone.error.doubts["out"].unconfirmed == (3,)
    assert (gone.error.doubts["in"].accepted, gone.error.doubts["in"].unanswered) == ((1,), (2,))
    publish(broker, 4)
    broker.settle_down()
    assert broker.bodies == ["m1", "m2"]  # nothing goes on by itself

    broker.feed(ev.BegunAnew("another-session", resend=True))
    broker.settle_down()
    assert broker.bodies == ["m1", "m2", "m3", "m4"]
    assert [each.ticket for each in told(broker, ev.DeliveryWithdrawn)] == [2]
    assert handed_out(broker) == ["m1", "m2", "m2", "m3", "m4"]  # 1 is known, and answered again


def test_what_is_in_doubt_can_be_given_up() -> None:
    broker = started("sessions")
    publish(broker, 1)
    broker.cut()
    broker.expire_sessions()
    broker.settle_down()
    broker.feed(ev.BegunAnew("another-session", resend=False))
    publish(broker, 2)
    broker.settle_down()
    assert told(broker, ev.PublishAbandoned) == [ev.PublishAbandoned("out", 1)]
    assert broker.bodies == ["m2"]


def test_a_resent_message_that_was_queued_in_the_lost_session_is_not_queued_again() -> None:
    broker = started("sessions")
    publish(broker, 1)
    broker.deliver()
    broker.cut()
    broker.expire_sessions()
    broker.settle_down()
    broker.feed(ev.BegunAnew("another-session", resend=True))
    publish(broker, 2)
    broker.settle_down()
    assert broker.bodies == ["m1", "m2"]


def test_a_rejected_message_is_told_and_a_released_one_goes_again_as_a_new_one() -> None:
    broker = started("sessions")
    publish(broker, 1, 2)
    attempt = broker.core._connection.attempt
    refused = ev.EndReason("amqp:resource-limit-exceeded", "the queue is full")
    broker.feed(ev.OutcomeTold(attempt, "out", 1, ev.PublishOutcome.REJECTED, refused))
    assert told(broker, ev.PublishRefused) == [ev.PublishRefused("out", 1, refused)]
    broker.feed(ev.OutcomeTold(attempt, "out", 2, ev.PublishOutcome.RELEASED))
    assert told(broker, ev.PublishConfirmed) == []
    broker.cut()
    broker.settle_down()
    assert broker.bodies == ["m2"]
    assert broker.producers == {"the-session/out": 3}


def test_what_an_earlier_connection_said_counts_for_nothing() -> None:
    broker = started("sessions")
    publish(broker, 1)
    earlier = broker.core._connection.attempt
    broker.cut()
    broker.feed(ev.OutcomeTold(earlier, "out", 1, ev.PublishOutcome.ACCEPTED))
    broker.feed(ev.ConnectionLost(earlier, ev.EndReason(description="again")))
    assert told(broker, ev.PublishConfirmed) == []
    assert len(told(broker, ev.Disconnected)) == 1
    broker.settle_down()
    assert broker.bodies == ["m1"]


# --- what ends it


def test_a_session_that_another_connection_has_taken_is_not_fought_for() -> None:
    broker = started("sessions")
    text = "the session was resumed on another connection"
    broker.feed(ev.BrokerClosed(broker.core._connection.attempt, ev.EndReason("amqp:connection:forced", text)))
    assert isinstance(ended_with(broker), SessionTaken)
    broker.settle_down()
    assert len(told(broker, ev.Connected)) == 1


def outnumbered(broker: SessionBroker, epoch: int) -> None:
    """The broker refuses the attempt, for the session is in a higher epoch."""
    reason = ev.EndReason("amqp:precondition-failed", "it is in another epoch", {"qpid.session-epoch": epoch})
    broker.feed(ev.BrokerClosed(broker.core._connection.attempt, reason))


def test_each_attempt_has_a_higher_number_than_those_before() -> None:
    broker = broker_of("sessions")
    broker.is_up = False
    broker.feed(ev.Begun())
    for _ in range(4):
        broker.deliver()
        broker.answer()
        broker.advance(1)
    broker.is_up = True
    broker.settle_down()
    broker.cut()
    broker.settle_down()
    assert len(broker.attempts) > 2
    assert broker.attempts == list(range(1, len(broker.attempts) + 1))
    broker.feed(ev.BrokerClosed(broker.core._connection.attempt, ev.EndReason("amqp:not-found", "it is over")))
    broker.feed(ev.BegunAnew("another-session", resend=True))
    broker.settle_down()
    assert broker.attempts[-1] == 1, "they are numbers of a session"


def test_who_takes_the_session_of_another_process_over_begins_above_all_that_the_other_has_tried() -> None:
    broker = broker_of("sessions", resume=True)
    broker.feed(ev.Begun())
    outnumbered(broker, 1007)
    broker.settle_down()
    assert broker.attempts[-1] == 2001


def test_two_processes_number_their_attempts_at_one_session_apart() -> None:
    session = str(uuid.uuid4())
    first, second = (SessionHandler(str(ADDRESSES[0]), session=session).core.settings for _ in range(2))
    assert first.first_attempt % ATTEMPTS == 0
    assert first.first_attempt != second.first_attempt
    broker = broker_of("sessions", first_attempt=7000)
    broker.feed(ev.Begun())
    broker.settle_down()
    assert broker.attempts == [7001]


def test_who_comes_back_to_a_session_that_another_process_has_taken_over_is_told() -> None:
    broker = started("sessions")
    broker.cut()
    outnumbered(broker, 1001)
    assert isinstance(ended_with(broker), SessionTaken)


def test_who_comes_back_to_a_session_that_somebody_without_numbers_had_in_between_has_it_with_a_higher_one() -> None:
    broker = started("sessions")
    broker.cut()
    outnumbered(broker, 7)
    broker.settle_down()
    assert broker.attempts[-1] == 8
    assert broker.core.phase is ClientPhase.OPEN


@pytest.mark.parametrize("condition", ["amqp:unauthorized-access", "amqp:invalid-field"])
def test_what_is_refused_for_what_we_are_or_ask_is_not_tried_again(condition: str) -> None:
    broker = broker_of("sessions")
    broker.feed(ev.Begun())
    broker.feed(ev.BrokerClosed(broker.core._connection.attempt, ev.EndReason(condition, "no")))
    assert isinstance(ended_with(broker), SessionRefused)


def test_a_login_that_is_refused_is_told() -> None:
    broker = broker_of("sessions")
    broker.feed(ev.Begun())
    broker.feed(ev.ConnectionLost(broker.core._connection.attempt, ev.EndReason("", "authentication failed"), True))
    assert isinstance(ended_with(broker), LoginRefused)


def test_a_demanded_session_that_no_broker_offers_is_told() -> None:
    broker = broker_of("numbers", require_session=True)
    broker.feed(ev.Begun())
    broker.settle_down()
    assert isinstance(ended_with(broker), SessionsNotOffered)


@pytest.mark.parametrize("is_required", [False, True])
def test_a_broker_that_lets_nobody_in_with_a_session_is_asked_without_one(is_required: bool) -> None:
    broker = broker_of("numbers", require_session=is_required)
    broker.feed(ev.Begun())
    refusal = ev.EndReason("amqp:not-implemented", "sessions.max is 0")
    broker.feed(ev.BrokerClosed(broker.core._connection.attempt, refusal))
    broker.settle_down()
    if is_required:
        assert isinstance(ended_with(broker), SessionsNotOffered)
    else:
        assert broker.core.guarantee is Guarantee.DEDUPLICATED


def test_a_broker_without_sessions_is_left_as_long_as_another_may_have_ours() -> None:
    broker = started("sessions")
    broker.mode = "numbers"
    broker.cut()
    for _ in range(20):
        broker.deliver()
        broker.answer()
        broker.advance(0.1)
    assert told(broker, ev.SessionGone) == []
    broker.advance(TIMEOUT_S)
    broker.settle_down()
    assert len(told(broker, ev.SessionGone)) == 1


@pytest.mark.parametrize("keep", [False, True])
def test_a_close_ends_the_session_unless_it_is_to_be_kept(keep: bool) -> None:
    broker = started("sessions")
    broker.feed(ev.CloseWanted(keep_session=keep))
    broker.settle_down()
    assert ended_with(broker) is None
    assert bool(broker.sessions) is keep


@pytest.mark.parametrize("mode", ["sessions", "numbers", "nothing"])
def test_the_guarantee_is_what_the_broker_offers(mode: str) -> None:
    wanted = {"sessions": "exactly-once", "numbers": "deduplicated", "nothing": "at-least-once"}
    broker = started(mode)
    assert broker.core.guarantee is not None
    assert broker.core.guarantee.value == wanted[mode]


# --- where it goes


def brokers_tried(broker: SessionBroker, count: int) -> list[tuple[str, float]]:
    """Host and time of so many attempts, all refused."""
    found: list[tuple[str, float]] = []
    broker.is_up = False
    while len(found) < count:
        state = broker.core._connection
        if broker.core.phase is ClientPhase.CONNECTING:
            assert state.broker is not None
            found.append((state.broker.host, broker.now_s))
            broker.deliver()
            broker.answer()
        else:
            assert broker.core.deadline_s is not None
            broker.advance(broker.core.deadline_s - broker.now_s)
    return found


def test_all_brokers_are_tried_in_each_round_and_rounds_get_rarer() -> None:
    broker = broker_of("sessions", backoff=Backoff(0.1, 1.0))
    broker.feed(ev.Begun())
    tried = brokers_tried(broker, 30)
    for at in range(0, 30, 3):
        assert {host for host, _ in tried[at : at + 3]} == {"a", "b", "c"}
        assert len({at_s for _, at_s in tried[at : at + 3]}) == 1
    pauses_s = [tried[at][1] - tried[at - 1][1] for at in range(3, 30, 3)]
    assert all(0.05 <= pause_s <= 1.0 for pause_s in pauses_s)
    assert pauses_s[0] <= 0.1
    assert all(pause_s >= 0.5 for pause_s in pauses_s[4:])


def test_brokers_that_an_open_or_a_notice_named_come_first_and_those_given_stay() -> None:
    broker = broker_of("sessions")
    broker.feed(ev.SenderWanted("out", "q"))
    broker.feed(ev.Begun())
    servers = [{"network-host": "new", "port": 5672, "scheme": "amqp"}]
    facts = ev.OpenFacts("a", frozenset(), {"failover-server-list": servers})
    attempt = broker.core._connection.attempt
    broker.feed(ev.BrokerOpened(attempt, facts))
    broker.feed(ev.LinkAttached(attempt, "out", {}))
    broker.cut()
    assert brokers_tried(broker, 4)[0][0] == "new"
    broker.feed(ev.HostsTold(broker.core._connection.attempt, "newer:1,[::1]:2,what is this"))
    assert {"newer", "::1", "a", "b", "c"} == {each.host for each in broker.core.brokers.known}


def test_a_client_that_began_with_tls_is_not_led_to_a_broker_without() -> None:
    broker = broker_of("sessions", addresses=parse_addresses("amqps://a"))
    broker.feed(ev.Begun())
    servers = [{"network-host": "bad", "port": 1, "scheme": "amqp"}]
    facts = ev.OpenFacts("a", frozenset(), {"failover-server-list": servers})
    broker.feed(ev.BrokerOpened(broker.core._connection.attempt, facts))
    assert [each.host for each in broker.core.brokers.known] == ["a"]


@pytest.mark.parametrize("condition", ["amqp:connection:redirect", "amqp:connection:forced"])
def test_a_broker_that_says_where_to_go_is_heeded_at_once(condition: str) -> None:
    broker = broker_of("sessions")
    broker.feed(ev.Begun())
    info = {"network-host": "there", "port": 7}
    broker.feed(ev.BrokerClosed(broker.core._connection.attempt, ev.EndReason(condition, "", info)))
    assert str(broker.core._connection.broker) == "amqp://there:7"
    assert broker.now_s == 0


def test_brokers_that_send_a_client_in_a_circle_do_not_make_it_spin() -> None:
    broker = broker_of("sessions")
    broker.feed(ev.Begun())
    for _ in range(100):
        if broker.core.phase is ClientPhase.PAUSING:
            break
        info = {"network-host": "there", "port": 7}
        attempt = broker.core._connection.attempt
        broker.feed(ev.BrokerClosed(attempt, ev.EndReason("amqp:connection:redirect", "", info)))
    assert broker.core.phase is ClientPhase.PAUSING


def test_a_link_that_belongs_to_another_broker_takes_the_client_there() -> None:
    broker = broker_of("sessions")
    broker.feed(ev.SenderWanted("out", "q"))
    broker.feed(ev.Begun())
    broker.deliver()
    broker.answer()
    info = {"network-host": "there", "port": 7}
    broker.feed(ev.LinkEnded(broker.core._connection.attempt, "out", ev.EndReason("amqp:link:redirect", "", info)))
    assert str(broker.core._connection.broker) == "amqp://there:7"


def test_links_that_belong_to_two_brokers_are_told_apart_from_a_move() -> None:
    broker = started("sessions")
    info = {"network-host": "there", "port": 7}
    for _ in range(100):
        attempt = broker.core._connection.attempt
        broker.feed(ev.LinkEnded(attempt, "in", ev.EndReason("amqp:link:redirect", "", info)))
        if told(broker, ev.LinkFailed):
            break
        assert broker.core.deadline_s is not None
        broker.advance(broker.core.deadline_s - broker.now_s)
    (failed,) = told(broker, ev.LinkFailed)
    assert broker.now_s >= 10
    assert "ha.clients: proxy" in str(failed.error)
    assert len(told(broker, ev.Connected)) == 1


def test_a_link_that_is_refused_for_now_is_attached_again_and_one_that_is_refused_for_good_is_told() -> None:
    broker = started("sessions")
    attempt = broker.core._connection.attempt
    broker.feed(ev.LinkEnded(attempt, "out", ev.EndReason("amqp:resource-locked", "no primary just now")))
    publish(broker, 1)
    broker.settle_down()
    assert broker.bodies == ["m1"]
    broker.feed(ev.LinkEnded(attempt, "out", ev.EndReason("amqp:resource-deleted", "q was deleted")))
    (failed,) = told(broker, ev.LinkFailed)
    assert failed.error.condition == "amqp:resource-deleted"


def test_a_broker_that_does_not_answer_is_left_in_time() -> None:
    broker = broker_of("sessions", connect_timeout_s=2.0)
    broker.feed(ev.Begun())
    first = broker.core._connection.broker
    broker.advance(2.0)
    assert broker.core._connection.broker != first


# --- what it is given


@pytest.mark.parametrize(
    "text", ["", "http://a", "amqp://user@a", "amqp://a:0", "amqp://a:99999", "amqp://a/q", "amqp://a b"]
)
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_addresses(text)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ValueError) as refused:
        parse_addresses("amqp://me:secret@host")
    assert "secret" not in str(refused.value)


def test_addresses_are_read_as_they_are_written() -> None:
    found = parse_addresses(["amqps://a,b:1", "amqp://[::1]", "amqps://a"])
    assert [str(each) for each in found] == ["amqps://a:5671", "amqps://b:1", "amqp://[::1]:5672"]


def test_names_of_links_are_checked() -> None:
    broker = started("sessions")
    with pytest.raises(ValueError, match="already"):
        broker.feed(ev.SenderWanted("in", "q"))
    with pytest.raises(ValueError, match="at most"):
        broker.feed(ev.SenderWanted("x" * 128, "q"))
    with pytest.raises(ValueError, match="prefetch"):
        broker.feed(ev.ReceiverWanted("other", "q", 0))
