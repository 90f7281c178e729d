"""Control methods through `$management`, on the side of the link: who asks, and what of the answer is logged."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker
from qpid_ha_broker.amqp.connections.send_window import REPLY_BYTES
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_control import OPERATION, TYPE, Done
from qpid_ha_broker.amqp.nodes.management_messages import UNAUTHORIZED, ManagementAnswer


def test_who_may_not_administer_is_answered_and_logged() -> None:
    broker = PairedBroker()
    asked = []

    def control(identity: PeerIdentity, body: object, done: Done) -> None:
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
