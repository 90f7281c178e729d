"""Clients with sessions whose queue an operator deletes, and makes again, while they hold messages and publish.

Checked, beside what all sessions are: a link that the broker ends is told that its queue was deleted, or what any
client is told while its set is moved; nothing of a queue that was deleted comes from the next one of its name; at rest
nobody is attached to a queue that is no more, and no session holds anything of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from simulation.brokers.amqp_client import Talk
from simulation.brokers.sessions import HoldingConsumer, SessionClient
from simulation.machines.node import BrokerNode
from simulation.violations import Violation

RESOURCE_DELETED = "amqp:resource-deleted"
OF_A_DELETED_QUEUE = (RESOURCE_DELETED, "amqp:not-found")
"""The second one where the link is attached again, at the next primary or by the client, before it is made again."""
OF_A_MOVE = ("amqp:link:redirect", "amqp:resource-locked", "amqp:connection:forced")
"""What any client may be told where another broker begins to lead."""


class DeletionConsumer(HoldingConsumer):
    """A consumer's link of a session on a queue that is deleted now and then."""

    def told(self, condition: str) -> None:
        if condition in OF_A_DELETED_QUEUE:
            self._forget_deleted()

    def _forget_deleted(self) -> None:
        """What was sent before its queue was deleted is no more, though it may have come after that."""
        for number, held in list(self._held.items()):
            if self._ledger.may_be_deleted(held.handout.sent):
                held.handout.is_returned = True  # the next primary may not know of the deletion, and gives it again
                del self._held[number]

    def _look_what_did_not_come(self) -> None:
        if not self._to_come:
            for number, held in list(self._held.items()):
                if held.delivery is None and self._ledger.may_be_deleted(held.handout.sent):
                    del self._held[number]
        super()._look_what_did_not_come()


class DeletionClient(SessionClient):
    """Publishes to the queue and consumes from it."""

    consumer_kind = DeletionConsumer

    def on_detached(self, talk: Talk, link: Any, condition: str) -> None:
        part = self._part_of(talk, link)
        if part is not None and part.is_attached and condition not in (*OF_A_DELETED_QUEUE, *OF_A_MOVE):
            raise Violation(f"{self.name} is told {condition!r} of {part.name}, whose queue was deleted")
        super().on_detached(talk, link, condition)


def why_deleted_are_used(nodes: Sequence[BrokerNode]) -> str:
    """A link that is attached to a queue which is no more, or a session that holds something of one; empty: none."""
    for node in nodes:
        for link in node.container.default.links if node.is_primary else ():
            if isinstance(link, OutgoingLink) and link.queue.deleted:
                return f"{node.name} has a link to {link.queue.name}, which was deleted"
        for held in node.resources.catalog.holdings if node.is_up else ():
            if node.resources.catalog.queues.get(held.queue.name) is not held.queue:
                return f"{node.name} holds messages for sessions of {held.queue.name}, which was deleted"
    return ""
