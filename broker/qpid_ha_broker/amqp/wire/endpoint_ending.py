"""How a connection, an AMQP session or a link comes to its end, and what that means for what its peer had."""

from __future__ import annotations

from enum import Enum

import proton

from qpid_ha_broker.amqp.wire.engine import has_error


class EndpointEnding(Enum):
    """A row for each way in which one ends; the columns are `is_farewell` and `is_failure`.

    What outlives the connection, a client's session or a durable subscription, is given up by a farewell alone. An end
    that nobody wished is none, whoever says it: a client whose brokers were frozen closes with an error, and returns.
    docs/protocol.md has what becomes of the rest.
    """

    CLOSED = "the peer has closed it, in order", True, False
    DETACHED = "the peer has left it, in order, and may come back to it", False, False
    FAILED = "the peer has ended it with an error, as by its own idle time-out", False, True
    LOST = "without a word that makes sense: the socket, our idle time-out, what came is no frame", False, True
    OURS = "this broker has ended it: another one leads, it stops, somebody wants it so, a bug of ours", False, False

    def __init__(self, meaning: str, is_farewell: bool, is_failure: bool) -> None:
        self.meaning = meaning
        self.is_farewell = is_farewell
        """The peer will not come back to it."""
        self.is_failure = is_failure
        """What went out and was not answered counts as delivered in vain: its consumer may have failed at it."""


def ending_by_peer(endpoint: proton.Endpoint, *, closed: bool = True) -> EndpointEnding:
    """How the peer has ended it. `closed` False: it has only detached a link."""
    if has_error(endpoint):
        return EndpointEnding.FAILED
    return EndpointEnding.CLOSED if closed else EndpointEnding.DETACHED
