"""The control socket's methods through `$management`: for `qpid-ha -b amqp://...`, from another machine.

Not a part of AMQP Management: operation=`control`, type=`org.qpid-ha.broker`, the body is the text of a JSON-RPC 2.0
request, and that of the answer the text of its reply. Whoever owns the control methods says who may use them.
"""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.access.audit import Gone
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_messages import ManagementAnswer, Request, read_request

OPERATION, TYPE = "control", "org.qpid-ha.broker"
_TYPE_BYTES = TYPE.encode("ascii")

Done = Callable[[ManagementAnswer], None]
Control = Callable[[PeerIdentity, object, Done, Gone], None]
"""Carry out the request that is in a body for a peer; `Done` is called once, then or later: with 401 if it may not."""


def read_control_request(request_bytes: bytes) -> Request | None:
    """The request, if it is one for the control methods. Others are not decoded for it."""
    if _TYPE_BYTES not in request_bytes:
        return None
    request = read_request(request_bytes)
    if request is None or request.problem:
        return None
    asked = (request.properties.get("operation"), request.properties.get("type"))
    return request if asked == (OPERATION, TYPE) else None
