"""The exchange on which the broker itself tells clients something: which brokers serve. Nobody else publishes there.

Clients go where a notice sends them, with their logins. So it has to be the broker's, whichever way a message could
take:

1. a link to the exchange, an anonymous relay, a transaction: access control refuses everybody (`AccessControl`);
2. an alternate exchange: it cannot be one (`Configuration`), and where a store of an earlier release says so it leads
   nowhere (`Catalog.alternate`);
3. a queue or an exchange with the name of an address there, which would be found in place of the exchange: none can be
   made (`Configuration`), and the exchange is found before it (`Nodes`);
4. the queue of who listens: what the broker made for a subscription gets notices from the exchange, and from nowhere
   else (`takes_notices_alone`).
"""

from __future__ import annotations

from typing import Final

NOTICE_EXCHANGE: Final = "amq.qpid"
TEMPORARY_SUBSCRIPTION: Final = "subscription."
DURABLE_SUBSCRIPTION: Final = "subscription:"
"""What the names of queues begin with that are made for who consumes from an exchange."""


def is_for_notices(node: str) -> bool:
    """Whether the name of a node, or an address, is the exchange's or has it before a routing key."""
    return node == NOTICE_EXCHANGE or node.startswith(f"{NOTICE_EXCHANGE}/")
