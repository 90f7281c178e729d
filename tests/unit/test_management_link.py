"""Control methods through `$management`, on the side of the link: who asks, and what of the answer is logged."""

from __future__ import annotations

import proton

from paired_engines import PairedBroker
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
