"""Links of clients' sessions to a queue of a group: what their clients are told when the session goes elsewhere."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from lone_group_member import LoneGroupMember
from paired_engines import PairedClient
from qpid_ha_broker.amqp.wire.conditions import LINK_REDIRECT, AmqpError
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.queues.sequence import SessionOwner
from session_clients import consume, held, open_session, publish

FORCED = "amqp:connection:forced"


@pytest.fixture
def broker() -> LoneGroupMember:
    broker = LoneGroupMember()
    broker.connect().publish("q", 1, 2, 3)
    broker.go_on()
    return broker


def attach(broker: LoneGroupMember, client: PairedClient, credit: int) -> Any:
    link = consume(client, "q", credit)
    broker.go_on()
    return link


def bodies_held(broker: LoneGroupMember) -> int:
    return sum(len(link.ids) for link in broker.hosted.resources.catalog.holdings)


def accept_all(client: PairedClient, link: Any) -> list[Any]:
    deliveries = [delivery for delivery, _ in client.received(link)]
    for delivery in deliveries:
        delivery.update(proton.Delivery.ACCEPTED)
    return deliveries


def take_elsewhere(broker: LoneGroupMember) -> None:
    """Another member has the link, as far as the log says here."""
    queue = broker.hosted.resources.catalog.queues["q"]
    log = broker.serving.member._parts.log
    assert log is not None
    (share,) = log.lineage.ownership.shares()
    (place,) = share.links
    log.lineage.ownership.take_link(queue.id, SessionOwner(place.session, place.name, place.link), 9, "b")


def condition(link: Any) -> str | None:
    return None if link.remote_condition is None else str(link.remote_condition.name)


def test_a_session_is_given_what_is_written_as_its_own_and_accepts_it(
    broker: LoneGroupMember,
) -> None:
    client = open_session(broker)
    link = attach(broker, client, 2)
    assert (held(link), bodies_held(broker)) == (0, 2)
    deliveries = accept_all(client, link)
    broker.go_on()
    assert [delivery.settled for delivery in deliveries] == [True, True]
    assert (bodies_held(broker), broker.hosted.resources.catalog.queues["q"].messages.count) == (0, 1)


def test_what_is_accepted_where_the_session_is_no_more_is_not_told_as_settled(broker: LoneGroupMember) -> None:
    client = open_session(broker)
    link = attach(broker, client, 2)
    take_elsewhere(broker)
    deliveries = accept_all(client, link)
    broker.go_on()
    assert (condition(link), [delivery.settled for delivery in deliveries]) == (FORCED, [False, False])
    assert bodies_held(broker) == 2


def test_what_came_back_from_the_session_meanwhile_is_another_consumers(broker: LoneGroupMember) -> None:
    client = open_session(broker)
    link = attach(broker, client, 2)
    take_elsewhere(broker)
    queue = broker.hosted.resources.catalog.queues["q"]
    broker.hosted.resources.replicated.deliver((ev.Released(queue.id, tuple(queue.held), False),))
    accept_all(client, link)
    broker.go_on()
    assert (condition(link), queue.messages.count) == (FORCED, 3)


def test_what_was_on_its_way_when_the_session_went_elsewhere_is_not_told_either(broker: LoneGroupMember) -> None:
    client = open_session(broker)
    link = attach(broker, client, 2)
    broker.is_stalled = True
    deliveries = accept_all(client, link)
    broker.go_on()
    take_elsewhere(broker)
    broker.is_stalled = False
    broker.go_on()
    assert (condition(link), [delivery.settled for delivery in deliveries]) == (FORCED, [False, False])
    assert bodies_held(broker) == 2


def test_a_link_that_gets_nothing_because_the_session_is_elsewhere_ends(broker: LoneGroupMember) -> None:
    client = open_session(broker)
    link = attach(broker, client, 1)
    broker.is_stalled = True
    link.flow(1)
    broker.go_on()
    take_elsewhere(broker)
    broker.is_stalled = False
    broker.go_on()
    assert (condition(link), len(client.received(link)), bodies_held(broker)) == (FORCED, 1, 1)


def test_a_link_that_is_closed_while_more_is_on_its_way_to_it_gives_all_of_it_back(broker: LoneGroupMember) -> None:
    client = open_session(broker)
    link = attach(broker, client, 1)
    broker.is_stalled = True
    link.flow(2)
    broker.go_on()
    link.close()
    broker.go_on()
    broker.is_stalled = False
    broker.go_on()
    assert bodies_held(broker) == 0


def test_a_link_that_is_attached_anew_gets_all_that_it_is_told_of_though_more_was_on_its_way_to_the_one_before(
    broker: LoneGroupMember,
) -> None:
    """Seed 52 of clusters with a group: it came to another session, too."""
    client = open_session(broker)
    link = attach(broker, client, 1)
    broker.is_stalled = True
    link.flow(1)
    broker.go_on()
    link.close()
    broker.go_on()
    again = consume(client, "q", 10)
    broker.go_on()
    broker.is_stalled = False
    broker.go_on()

    received = client.received(again)
    assert sorted(message.body for _, message in received) == [1, 2, 3]
    told = held(again)
    assert isinstance(told, int)
    assert [message.first_acquirer for _, message in received].count(False) >= told
    for delivery, _ in received:
        delivery.update(proton.Delivery.ACCEPTED)
    broker.go_on()
    assert (condition(again), [delivery.settled for delivery, _ in received]) == (None, [True] * 3)
    assert broker.hosted.resources.catalog.queues["q"].messages.count == 0


def test_a_link_that_waited_for_what_the_others_went_on_without_is_attached_when_its_client_comes_again(
    broker: LoneGroupMember,
) -> None:
    """Seed 52 of clusters with a group: it waited for ever."""
    client, other = open_session(broker), broker.connect()
    sender = other.sender("q")
    broker.go_on()
    broker.is_stalled = True
    other.send(sender, proton.Message(4))
    broker.go_on()
    link = publish(client, "q")
    broker.go_on()
    assert not link.state & proton.Endpoint.REMOTE_ACTIVE, "it waits"
    broker.replication.left_behind("the others have gone on")
    broker.hosted.end_links(AmqpError(LINK_REDIRECT, "the others have gone on"), browsers=False)
    broker.is_stalled = False
    broker.go_on()
    assert condition(link) == LINK_REDIRECT
    link.close()
    broker.go_on()

    again = publish(client, "q")
    broker.go_on()
    assert (condition(again), again.remote_target.address, again.credit > 0) == (None, "q", True)


def test_what_was_accepted_on_the_link_before_counts_before_what_is_held_is_told(broker: LoneGroupMember) -> None:
    client = open_session(broker)
    link = attach(broker, client, 2)
    broker.is_stalled = True
    accept_all(client, link)
    broker.go_on()
    again = open_session(broker)
    resumed = consume(again, "q", 10)
    broker.go_on()
    assert held(resumed) is None, "it waits"
    broker.is_stalled = False
    broker.go_on()
    assert (held(resumed), [message.body for _, message in again.received(resumed)]) == (0, [3])


def test_a_link_ends_before_it_is_asked_what_is_held_on_it_when_it_is_attached_once_more(
    broker: LoneGroupMember,
) -> None:
    client = open_session(broker)
    first = attach(broker, client, 2)
    broker.is_stalled = True
    client.session = client.connection.session()
    client.session.open()
    again = attach(broker, client, 10)
    late = accept_all(client, first)
    broker.go_on()
    broker.is_stalled = False
    broker.go_on()
    assert [delivery.settled for delivery in late] == [False, False]
    assert (held(again), [message.body for _, message in client.received(again)]) == (2, [1, 2, 3])
