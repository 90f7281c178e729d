"""Stories about "this is all": who says so waits for what the primary has not committed yet, or says that it has not.

A primary that has just been promoted has messages that its predecessor may have confirmed, and shows them to nobody who
only looks before it has committed them itself.
"""

from __future__ import annotations

import re
from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_links import subscribe
from qpid_ha_broker.amqp.nodes.queue_messages import QueueMessages
from qpid_ha_broker.model.errors import Unavailable
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.sets.resource_set import ResourceSet

BACKUPS = "backups"


def log_of(broker: PairedBroker) -> Log:
    return broker.container.default.resources.replicated.log


def commit(broker: PairedBroker, lsn: int | None = None) -> None:
    """All that was written, or as much."""
    log = log_of(broker)
    log.acknowledge(BACKUPS, log.last_lsn if lsn is None else lsn)
    broker.settle_down()


def taken_over(broker: PairedBroker, *messages: str) -> PairedClient:
    """The broker leads since a moment ago. Its predecessor left `messages`; the last of them is not committed yet."""
    client = broker.connect()
    publisher = client.sender("q")
    client.send_all(publisher, *messages[:-1])
    resource_set: ResourceSet = broker.container.default.resources.replicated
    resource_set.log.add_witness(BACKUPS)
    client.send_all(publisher, messages[-1])
    resource_set.take_over(broker.container.now_ms, 0)
    return client


def newest_message(broker: PairedBroker) -> int:
    return list(broker.queue("q").messages)[-1].id


def drain(client: PairedClient, browser: Any, credit: int) -> None:
    browser.drain(credit)
    client.broker.settle_down()


def test_a_drain_of_a_browser_is_answered_once_all_is_committed_that_was_there_when_it_came(
    broker: PairedBroker,
) -> None:
    client = taken_over(broker, "1", "2", "3")
    browser = subscribe(client, "q", browse=True)
    drain(client, browser, 10)
    assert client.bodies(browser) == ["1", "2"]
    assert browser.credit == 8, "there is a third one, which the last primary may have confirmed"
    commit(broker)
    assert client.bodies(browser) == ["3"]
    assert browser.credit == 0


def test_a_drain_of_a_browser_does_not_wait_for_what_came_after_it(broker: PairedBroker) -> None:
    client = taken_over(broker, "1", "2", "3")
    browser = subscribe(client, "q", browse=True)
    drain(client, browser, 10)
    there = log_of(broker).last_lsn
    broker.connect().publish("q", "later")
    commit(broker, there)
    assert client.bodies(browser) == ["1", "2", "3"]
    assert browser.credit == 0


def test_a_drain_of_a_browser_is_answered_when_what_it_waited_for_has_gone(broker: PairedBroker) -> None:
    client = taken_over(broker, "1", "2", "3")
    browser = subscribe(client, "q", browse=True)
    drain(client, browser, 10)
    broker.container.administration.purge_queue("q")
    broker.settle_down()
    assert (client.bodies(browser), browser.credit) == (["1", "2"], 8)
    commit(broker)
    assert (client.bodies(browser), browser.credit) == ([], 0)


def test_a_drain_that_comes_again_asks_for_what_is_there_then(broker: PairedBroker) -> None:
    client = taken_over(broker, "1")
    browser = subscribe(client, "q", browse=True)
    commit(broker)
    drain(client, browser, 10)
    assert (client.bodies(browser), browser.credit) == (["1"], 0)
    client.publish("q", "2")
    drain(client, browser, 10)
    assert (client.bodies(browser), browser.credit) == ([], 10)
    commit(broker)
    assert (client.bodies(browser), browser.credit) == (["2"], 0)


def test_a_drain_of_one_who_takes_waits_for_nothing(broker: PairedBroker) -> None:
    client = taken_over(broker, "1", "2", "3")
    consumer = subscribe(client, "q")
    drain(client, consumer, 10)
    assert (client.bodies(consumer), consumer.credit) == (["1", "2", "3"], 0)


# --- what is said of queues


def look(broker: PairedBroker) -> QueueMessages:
    return QueueMessages(broker.container.management.administration)


def test_a_look_at_a_queue_says_that_there_may_be_more_until_all_is_committed_that_was_taken_over() -> None:
    broker = PairedBroker()
    broker.container.administration.create_queue("q", {})
    taken_over(broker, "1", "2")
    newest = newest_message(broker)
    for asked in (look(broker).peek, look(broker).payload):
        peek = asked("q")
        assert [entry.id for entry in iter(peek.next_entry, None)] == [newest - 1]
        answer = peek.answer([])
        assert (answer["whole"], answer["taking_over"]) == (False, True)
    with pytest.raises(Unavailable):
        look(broker).peek("q", id=newest)
    assert broker.container.administration.queue("q")["taking_over"] is True
    commit(broker)
    peek = look(broker).peek("q")
    assert [entry.id for entry in iter(peek.next_entry, None)] == [newest - 1, newest]
    assert peek.answer([])["whole"] is True
    assert "taking_over" not in peek.answer([])
    assert "taking_over" not in broker.container.administration.queue("q")


@pytest.mark.parametrize(
    ("operation", "properties"),
    [
        ("READ", {"type": "queue", "name": "q"}),
        ("MEASURE", {"type": "queue", "name": "q", "after": proton.ulong(0)}),
        ("LOCATE", {"type": "queue", "name": "q", "timestamp": proton.ulong(1 << 60)}),
        ("QUERY", {"entityType": "queue"}),
    ],
)
def test_management_answers_about_messages_once_all_is_committed_that_was_taken_over(
    broker: PairedBroker, operation: str, properties: dict[str, Any]
) -> None:
    client = taken_over(broker, "1", "2")
    newest = newest_message(broker)
    replies, requests = client.receiver("$management", 10), client.sender("$management")
    request: Any = proton.Message(reply_to="$management", correlation_id=1)
    request.properties = {"operation": operation, **properties}
    client.send_all(requests, request)
    assert client.received(replies) == []
    commit(broker)
    ((_, reply),) = client.received(replies)
    assert reply.properties["statusCode"] == 200
    assert max(map(int, re.findall(r"\d+", str(reply.body)))) >= newest, "the last message, too"


def test_management_answers_what_is_no_matter_of_messages_at_once(broker: PairedBroker) -> None:
    client = taken_over(broker, "1", "2")
    replies, requests = client.receiver("$management", 10), client.sender("$management")
    for properties in ({"operation": "GET-TYPES"}, {"operation": "READ", "type": "exchange", "name": "amq.topic"}):
        request: Any = proton.Message(reply_to="$management", properties=properties)
        client.send_all(requests, request)
    request = proton.Message(reply_to="$management", body={"attributeNames": ["name"]})
    request.properties = {"operation": "QUERY", "entityType": "queue"}
    client.send_all(requests, request)
    assert len(client.received(replies)) == 3
