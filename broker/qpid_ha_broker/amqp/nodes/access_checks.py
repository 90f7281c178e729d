"""Who a peer is when it asks for access, and whether it may be marked for administration."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from qpid_ha_broker.access.rules import AccessControl, Permission, Subject
from qpid_ha_broker.amqp.nodes.identity import ClientNames, PeerIdentity
from qpid_ha_broker.amqp.wire.conditions import AmqpError, as_amqp
from qpid_ha_broker.amqp.wire.relay import ITSELF, RelayRequest
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Origin


class AskingPeer(Protocol):
    """What is needed of a connection."""

    @property
    def identity(self) -> PeerIdentity:
        """Who the peer is."""


def subject_of(peer: AskingPeer, relay: RelayRequest | None = None) -> Subject:
    """Who asks: the client at another broker for whom `relay` is, else the peer."""
    if relay is not None:
        return Subject.logged_in(relay.user, is_local=True)
    identity = peer.identity
    return Subject.logged_in(identity.user, is_local=identity.is_local)


def client_names(peer: AskingPeer, relay: RelayRequest | None = None) -> ClientNames:
    """Of the same."""
    user, identity = subject_of(peer, relay).user, peer.identity
    if relay is None:
        return ClientNames(user, identity.container, (identity.broker, identity.connection))
    broker = identity.broker if relay.path[0] == ITSELF else relay.path[0]
    return ClientNames(user, relay.container, (broker, relay.client))


class PublisherIdentity(NamedTuple):
    """Who publishes on a link."""

    subject: Subject
    origin: Origin

    @classmethod
    def of(cls, peer: AskingPeer, relay: RelayRequest | None) -> PublisherIdentity:
        """As in `subject_of`."""
        return cls(subject_of(peer, relay), client_names(peer, relay).origin)


def marked_refusal(peer: AskingPeer, access: AccessControl) -> AmqpError | None:
    """Why the connection may not be marked for administration, if it is: that is for administrators and brokers."""
    if not peer.identity.is_admin or peer.identity.is_broker:
        return None
    subject = subject_of(peer)
    if access.decide(subject, Permission.REPLICATE, "").is_allowed:
        return None
    try:
        access.check(subject, Permission.ADMINISTER, "")
    except ModelError as error:
        return as_amqp(error)
    return None
