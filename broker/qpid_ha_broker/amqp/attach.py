"""What a peer gets when it attaches a link: a publisher, a consumer, a browser, a subscription, a coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import proton

from qpid_ha_broker.amqp.conditions import INVALID_FIELD, NOT_ALLOWED, AmqpError
from qpid_ha_broker.amqp.coordinator import CoordinatorLink
from qpid_ha_broker.amqp.incoming import IncomingLink, ReceivingLink
from qpid_ha_broker.amqp.management_link import MANAGEMENT, ManagementLink, ReplyLink
from qpid_ha_broker.amqp.nodes import Target
from qpid_ha_broker.amqp.outgoing import OutgoingLink
from qpid_ha_broker.amqp.peer_frames import ADDRESS as PEERS
from qpid_ha_broker.amqp.peer_link import PeerReceiver, PeerSender, peer_receiver, peer_sender
from qpid_ha_broker.amqp.terminus import AFTER, Filters, Terminus, read_filters, read_terminus
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import NotFound, NotPrimary
from qpid_ha_broker.model.queue import Queue

if TYPE_CHECKING:
    from qpid_ha_broker.amqp.connection import Connection, LinkHandler

_REPLICA = "this broker is a backup, and what it holds belongs to the primary"
_TEMPORARY: dict[str, Scalar] = {"qpid.auto_delete": True}


def attach(connection: Connection, link: proton.Link) -> LinkHandler:
    """Open our end of `link`. Raises AmqpError or ModelError; then nothing is attached."""
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode
    return _attach_consumer(connection, link) if link.is_sender else _attach_publisher(connection, link)


def _attach_publisher(connection: Connection, link: proton.Link) -> ReceivingLink | PeerReceiver:
    terminus = read_terminus(link.remote_target)
    if terminus.address == PEERS:
        return peer_receiver(connection, link)
    if connection.container.read_only and (terminus.coordinator or terminus.address != MANAGEMENT):
        raise AmqpError(NOT_ALLOWED, f"{_REPLICA}: publish and have transactions there")
    link.rcv_settle_mode = proton.Link.RCV_FIRST  # what we do, whatever the publisher would like (section 2.7.3)
    link.max_message_size = connection.container.settings.max_message_bytes
    nodes = connection.container.nodes
    handler: ReceivingLink
    if terminus.coordinator:
        handler = CoordinatorLink(connection, link)
    elif terminus.address == MANAGEMENT:
        handler = ManagementLink(connection, link)
    elif terminus.dynamic:
        queue = nodes.temporary_queue({**_TEMPORARY, **terminus.arguments})
        link.target.address = queue.name
        handler = IncomingLink(connection, link, Target(queue))
        handler.owned_queue = queue.name
    else:
        target = nodes.target(terminus.address, terminus) if terminus.address else None
        handler = IncomingLink(connection, link, target)
    link.open()
    return handler


def _attach_consumer(connection: Connection, link: proton.Link) -> OutgoingLink | ReplyLink | PeerSender:
    terminus, filters = read_terminus(link.remote_source), read_filters(link.remote_source)
    if terminus.address == MANAGEMENT:
        reply_link = ReplyLink(connection, link)
        link.open()
        return reply_link
    if terminus.address == PEERS:
        return peer_sender(connection, link)
    if connection.container.read_only:
        _check_browsing(connection, terminus)
    if filters.after is not None and not terminus.browse:
        raise AmqpError(INVALID_FIELD, f"{AFTER} is for browsing: ask for the distribution-mode copy")
    if terminus.dynamic:
        queue = connection.container.nodes.temporary_queue({**_TEMPORARY, **terminus.arguments})
        link.source.address, owned = queue.name, queue.name
    elif terminus.address:
        queue, owned = _queue_of(connection, link, terminus.address, terminus, filters)
    else:
        raise AmqpError(INVALID_FIELD, "a consumer's source needs an address, or dynamic=true")
    _echo_filters(link, filters)
    handler = OutgoingLink(connection, link, queue, browsing=terminus.browse, filters=filters)
    handler.owned_queue = owned
    handler.keep_on_detach = terminus.durable
    link.open()
    return handler


def _check_browsing(connection: Connection, terminus: Terminus) -> None:
    """Raises AmqpError for whatever would change something: a replica may be looked at."""
    if not terminus.browse or terminus.dynamic:
        raise AmqpError(NOT_ALLOWED, f"{_REPLICA}: consume there, or browse here (distribution-mode copy)")
    if terminus.address and terminus.address not in connection.container.resources.state.queues:
        raise AmqpError(NOT_ALLOWED, f"{_REPLICA}: {terminus.address} is no queue here, and none is made")


def is_writer(handler: LinkHandler) -> bool:
    """Whether a link does more than a replica allows."""
    if isinstance(handler, OutgoingLink):
        return not handler.browsing
    if isinstance(handler, ManagementLink):
        return handler.has_waiting_replies
    return isinstance(handler, ReceivingLink)


def _queue_of(
    connection: Connection, link: proton.Link, address: str, terminus: Terminus, filters: Filters
) -> tuple[Queue, str]:
    """The queue to consume from, and its name if it exists for this link alone."""
    nodes = connection.container.nodes
    queue, exchange = nodes.source_queue(address, terminus)
    if queue is not None:
        return queue, ""
    if exchange is None:
        raise AmqpError(INVALID_FIELD, f"{address} is nothing that can be consumed from")
    durable_name = f"{connection.engine.connection.remote_container}.{link.name}" if terminus.durable else None
    queue = nodes.subscription(exchange, filters, durable_name)
    return queue, queue.name


def _echo_filters(link: proton.Link, filters: Filters) -> None:
    applied = link.source.filter
    applied.clear()
    if filters.applied:
        applied.put_object(filters.applied)


def after_detach(connection: Connection, handler: LinkHandler, closed: bool) -> None:
    """Delete a queue that was made for this link: a temporary one always, a durable subscription when it was closed."""
    name = handler.owned_queue
    if not name or (handler.keep_on_detach and not closed):
        return
    try:
        connection.container.configuration.delete_queue(name)
    except (NotFound, NotPrimary):
        return  # it was deleted by hand, or by its auto-delete; or it has become the new primary's to delete
