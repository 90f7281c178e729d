"""Control methods through `$management`, on the side of the link: who asks, and what of the answer is logged."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker
from qpid_ha_broker.access.audit import AuditedAct, AuditResult, Gone
from qpid_ha_broker.amqp.connections.send_window import REPLY_BYTES
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_control import OPERATION, TYPE, Done
from qpid_ha_broker.amqp.nodes.management_messages import GIVEN_UP, UNAUTHORIZED, ManagementAnswer


def test_who_may_not_administer_is_answered_and_logged() -> None:
    broker = PairedBroker()
    asked = []

    def control(identity: PeerIdentity, body: object, done: Done, gone: Gone) -> None:
        asked.append((identity.is_admin, identity.address, body))
        done(ManagementAnswer(UNAUTHORIZED, "somebody else may", ""))

    broker.container.management.control = control
    client = broker.connect()
    requests, replies = client.sender("$management"), client.receiver("$management", credit=1)
    properties = {"operation": OPERATION, "type": TYPE}
    client.send(requests, proton.Message(body="{}", reply_to="$management", properties=properties))
    broker.settle_down()
    ((_, reply),) = client.received(replies)
    assert reply.properties["statusCode"] == UNAUTHORIZED
    assert asked == [(False, client.peer.peer, "{}")]
    warnings = [notice.text for notice in broker.container.take_notices() if notice.level == "warning"]
    assert warnings == [f"{client.peer.peer} may not administer this broker: somebody else may"]


@pytest.mark.parametrize("replies_first", [True, False])
def test_who_takes_no_replies_has_so_many_requests_carried_out_and_no_more(replies_first: bool) -> None:
    broker = PairedBroker()
    client = broker.connect()
    replies = client.receiver("$management") if replies_first else None
    requests = client.sender("$management")
    carried_out = 0
    handle = broker.container.management.handle

    def count(*asked: Any) -> Any:
        nonlocal carried_out
        carried_out += 1
        return handle(*asked)

    broker.container.management.handle = count  # type: ignore[assignment, method-assign]
    if replies is None:
        replies = client.receiver("$management")
    for number in range(300):
        request: Any = proton.Message(reply_to="$management", correlation_id=number)
        request.properties = {"operation": "GET-TYPES"}
        client.send(requests, request)
    broker.settle_down()
    assert carried_out == 100
    replies.flow(300)
    broker.settle_down()
    assert [int(message.correlation_id) for _, message in client.received(replies)] == list(range(300))
    assert carried_out == 300
    assert broker.container.held.unsettled_bytes == 0


def test_large_replies_that_are_not_taken_hold_up_the_requests_behind_them() -> None:
    broker = PairedBroker()
    for number in range(400):
        broker.container.default.configuration.declare_queue(f"{'q' * 100}{number}", {"text": "x" * 300})
    client = broker.connect()
    replies, requests = client.receiver("$management"), client.sender("$management")
    for number in range(90):
        request: Any = proton.Message(reply_to="$management", correlation_id=number, body={"attributeNames": []})
        request.properties = {"operation": "QUERY", "entityType": "queue", "count": 100}
        client.send(requests, request)
    broker.settle_down()
    held = broker.container.held.unsettled_bytes
    assert REPLY_BYTES // 2 < held < 2 * REPLY_BYTES
    replies.flow(100)
    broker.settle_down()
    assert [int(message.correlation_id) for _, message in client.received(replies)] == list(range(90))
    client.vanish()
    assert broker.container.held.unsettled_bytes == 0


# --- who has gone


class Stopped:
    """A broker that finds what came while it was stopped, and a client that can ask it."""

    def __init__(self) -> None:
        self.broker = PairedBroker()
        self.client = self.broker.connect()
        self.replies = self.client.receiver("$management", credit=10)
        self.requests = self.client.sender("$management")

    def ask(self, name: str, reply_to: str | None = "$management") -> None:
        """Ask for a queue; the broker hears of it with what comes next."""
        request: Any = proton.Message(reply_to=reply_to, body={})
        request.properties = {"operation": "CREATE", "type": "queue", "name": name}
        self.client.send(self.requests, request)

    def hang_up(self) -> None:
        """The socket is closed, which the broker has not read yet."""
        self.client.peer.engine.input.has_hung_up = lambda: True

    @property
    def queues(self) -> set[str]:
        self.broker.settle_down()
        return set(self.broker.container.default.resources.catalog.queues)

    @property
    def warnings(self) -> list[str]:
        notices = self.broker.container.take_notices()
        return [notice.text for notice in notices if notice.level == "warning"]


@pytest.mark.parametrize("reply_to", ["$management", "answers"])
def test_what_was_asked_for_is_not_begun_once_the_client_has_hung_up_and_the_log_says_so(reply_to: str) -> None:
    stopped = Stopped()
    stopped.broker.container.default.configuration.declare_queue("answers", {})
    stopped.ask("orders", reply_to)
    stopped.hang_up()
    assert stopped.queues == {"answers"}
    who = f"somebody at {stopped.client.peer.peer}"
    assert stopped.warnings == [
        f"{stopped.client.peer.peer} CREATE queue orders was asked for by {who}, who has gone since: not done"
    ]


def test_who_reads_the_replies_in_a_queue_learns_that_it_was_not_done() -> None:
    stopped = Stopped()
    queue = stopped.broker.container.default.configuration.declare_queue("answers", {})
    stopped.ask("orders", "answers")
    stopped.hang_up()
    stopped.broker.settle_down()
    reader = stopped.broker.connect()
    ((_, reply),) = reader.received(reader.receiver("answers", credit=1))
    assert (reply.properties["statusCode"], queue.messages.acquired) == (GIVEN_UP, 1)


def test_who_wants_no_reply_may_hang_up_at_once() -> None:
    stopped = Stopped()
    stopped.ask("orders", None)
    stopped.hang_up()
    assert stopped.queues == {"orders"}


def test_it_is_audited_as_refused() -> None:
    stopped, acts = Stopped(), list[AuditedAct]()
    stopped.broker.container.management.record = acts.append
    stopped.ask("orders")
    stopped.hang_up()
    stopped.broker.settle_down()
    assert [(act.act, act.result, act.reason) for act in acts] == [("queue CREATE", AuditResult.REFUSED, "408")]


@pytest.mark.parametrize("goodbye", ["link", "session", "connection"])
def test_whose_reply_link_is_closed_by_what_came_behind_his_request_has_given_it_up(goodbye: str) -> None:
    stopped = Stopped()
    stopped.ask("orders")
    closed = {"link": stopped.replies, "session": stopped.client.session, "connection": stopped.client.connection}
    closed[goodbye].close()
    assert stopped.queues == set()


def test_who_has_the_reply_in_a_queue_may_say_goodbye_behind_his_request() -> None:
    stopped = Stopped()
    stopped.broker.container.default.configuration.declare_queue("answers", {})
    stopped.ask("orders", "answers")
    stopped.client.connection.close()
    assert stopped.queues == {"answers", "orders"}


def test_what_waits_for_room_for_replies_is_not_begun_either_once_the_client_has_hung_up() -> None:
    stopped = Stopped()
    stopped.client.peer.window.count_replies(REPLY_BYTES)
    stopped.ask("orders")
    assert stopped.queues == set()
    stopped.hang_up()
    stopped.client.peer.window.count_replies(-REPLY_BYTES)
    assert stopped.queues == set()
    assert len(stopped.warnings) == 1


@pytest.mark.parametrize(
    ("reply_to", "hangs_up", "has_gone"),
    [("$management", False, False), ("$management", True, True), (None, True, False)],
)
def test_who_carries_out_control_requests_can_ask_whether_the_client_has_gone(
    reply_to: str | None, hangs_up: bool, has_gone: bool
) -> None:
    stopped, asked = Stopped(), list[Gone]()
    stopped.broker.container.management.control = lambda identity, body, done, gone: asked.append(gone)
    properties = {"operation": OPERATION, "type": TYPE}
    stopped.client.send(stopped.requests, proton.Message(body="{}", reply_to=reply_to, properties=properties))
    stopped.broker.settle_down()
    (gone,) = asked
    assert not gone()
    if hangs_up:
        stopped.hang_up()
    assert gone() is has_gone
    stopped.client.vanish()
    assert gone() is (reply_to is not None)
    assert stopped.client.peer.engine.input.has_hung_up()


def test_who_has_closed_his_link_for_requests_hears_no_answer_to_a_control_request_and_has_gone() -> None:
    stopped, asked = Stopped(), list[Gone]()
    stopped.broker.container.management.control = lambda identity, body, done, gone: asked.append(gone)
    properties = {"operation": OPERATION, "type": TYPE}
    stopped.client.send(stopped.requests, proton.Message(body="{}", reply_to="$management", properties=properties))
    stopped.broker.settle_down()
    stopped.requests.close()
    stopped.broker.settle_down()
    assert [gone() for gone in asked] == [True]
