"""Our end of a link that changes a set, which is for the set's primary alone."""

from __future__ import annotations

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint


class PrimaryLink(LinkEndpoint):
    """The promise: it ends, at once, when this broker leads the set no more."""

    hosted: HostedSet

    @property
    def needs_primary(self) -> bool:
        return True

    @property
    def must_end_at_once(self) -> bool:
        return bool(self.hosted.resources.replication.read_only)
