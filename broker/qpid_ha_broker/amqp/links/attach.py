"""What a peer gets when it attaches a link: a publisher, a consumer, a browser, a subscription, a coordinator."""

from __future__ import annotations

from typing import Any

import proton

from qpid_ha_broker.access.rules import Access, Permission
from qpid_ha_broker.amqp.connections.connection import Connection, Remotes
from qpid_ha_broker.amqp.connections.nodes import Target
from qpid_ha_broker.amqp.links.anonymous_relay import AnonymousRelay
from qpid_ha_broker.amqp.links.coordinator import CoordinatorLink, answer_late
from qpid_ha_broker.amqp.links.event_link import access_to_events, attach_reader, reads_events
from qpid_ha_broker.amqp.links.hosted_reservation import HostedReservation
from qpid_ha_broker.amqp.links.hosted_session import HostedSession
from qpid_ha_broker.amqp.links.incoming import IncomingLink, ReceivingLink
from qpid_ha_broker.amqp.links.management_link import ManagementLink, ReplyLink
from qpid_ha_broker.amqp.links.outgoing import OutgoingLink
from qpid_ha_broker.amqp.links.peer_link import PeerReceiver, PeerSender, check_identity, peer_receiver, peer_sender
from qpid_ha_broker.amqp.links.session_consumer import SessionConsumer
from qpid_ha_broker.amqp.nodes.access_checks import client_names, subject_of
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.management_messages import MANAGEMENT
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits, NodeWait, WaitingAttach
from qpid_ha_broker.amqp.nodes.own_addresses import OwnAddress, is_own, own_address
from qpid_ha_broker.amqp.nodes.subscriptions import SharedSubscription, Subscriber, SubscriptionTerms
from qpid_ha_broker.amqp.nodes.terminus import (
    AFTER,
    GLOBAL,
    SHARED,
    TEMPORARY,
    Filters,
    Terminus,
    answer_coordinator,
    answer_source,
    answer_terminus,
    binding_key_of,
    read_filters,
    read_terminus,
)
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    RESOURCE_LOCKED,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.consumer_wishes import read_wishes
from qpid_ha_broker.amqp.wire.peer_frames import ADDRESS as PEERS
from qpid_ha_broker.amqp.wire.relay import COORDINATOR, RelayRequest, check_path, read_request
from qpid_ha_broker.amqp.wire.relayed_session_request import SESSION_NODE, read_asked
from qpid_ha_broker.amqp.wire.reservation_request import RESERVATION_NODE, read_reservation
from qpid_ha_broker.amqp.wire.session_request import CONFIRMED, REFUSED, check_link_name, producer_of
from qpid_ha_broker.model.exchanges.exchange import Exchange
from qpid_ha_broker.model.logs.log import COMMITTED, DEFAULT_SET, CommitToken
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.replication import has_replicated_messages
from qpid_ha_broker.model.sessions import SessionPart
from qpid_ha_broker.model.sets.session_messages import release_held
from qpid_ha_broker.model.transactions.producers import client_producer

_REPLICA = "this broker is a backup, and what it holds belongs to the primary"


def attach(connection: Connection, link: proton.Link) -> LinkEndpoint:
    """Open our end of `link`, and have the engine tell it what comes.

    Raises AmqpError or ModelError when it is not attached, and AttachWaits when it is to be tried again later.
    """
    relayed = connection.relay.pending.pop(link._impl, None)
    if relayed is not None and relayed.is_attached:
        endpoint = relayed.finish()
        endpoint.access = _access(connection, link, None)
        return endpoint
    session = connection.session
    if (wait := connection.relay.open_wait(connection)) is not None:
        raise AttachWaits(wait)
    relay = _read_relay(connection, link)
    own = _own_address(link, relay)
    access = _access(connection, link, relay)
    if access is not None:
        connection.container.access.check(*access)
    if reads_events(link):
        reader = attach_reader(connection, link, relay)
        reader.access = access
        return reader
    if own is None and connection.relay.remotes is not None:
        _attach_elsewhere(connection, link, connection.relay.remotes)
    try:
        endpoint = _attach_here(connection, link, relay)
        endpoint.access = access or endpoint.access
        return endpoint
    except ServedElsewhere as elsewhere:
        if relay is not None:
            check_path(relay, connection.container.settings.name)
        elif connection.relay.relays is not None and _can_be_relayed(link, own):
            relayed = connection.relay.relays.relay(connection, link, elsewhere.set_name)
            connection.relay.pending[link._impl] = relayed
            raise AttachWaits(relayed.wait) from None
        elif session is not None:
            raise _out_of_reach(elsewhere) from None
        raise


def _access(connection: Connection, link: proton.Link, relay: RelayRequest | None) -> Access | None:
    """What the peer has to be allowed, or the client at another broker; None: nothing yet, or it is asked later.

    That is of what comes on the link, as on an anonymous relay, for a coordinator or to an address of the broker's own.
    """
    subject = subject_of(connection, relay)
    terminus = read_terminus(link.remote_source if link.is_sender else link.remote_target)
    if terminus.dynamic:
        if link.is_sender and connection.is_admin and relay is None:
            return None  # for replies
        return Access(subject, Permission.CREATE, TEMPORARY)
    if terminus.coordinator or not terminus.address or is_own(terminus.address):
        return None
    if reads_events(link):
        return access_to_events(link, subject)
    consuming = Permission.BROWSE if terminus.browse else Permission.CONSUME
    action = Permission.PUBLISH if link.is_receiver else consuming
    binding_key = binding_key_of(link.remote_source) if link.is_sender else None
    nodes = connection.container.nodes
    return Access(subject, action, *nodes.access(nodes.meaning(terminus.address, terminus), binding_key))


def _own_address(link: proton.Link, relay: RelayRequest | None) -> OwnAddress | None:
    """The row of the link's address, if that is one of the broker's own. Raises AmqpError for who may not have it."""
    terminus = read_terminus(link.remote_source if link.is_sender else link.remote_target)
    if terminus.dynamic or terminus.coordinator or not terminus.address:
        return None
    return own_address(terminus.address, publishes=link.is_receiver, is_for_another=relay is not None)


def _out_of_reach(elsewhere: ServedElsewhere) -> AmqpError:
    """Of a link of a session, where nothing is relayed."""
    text = f"without ha.clients: proxy, links of a session lead to one broker, and {elsewhere.description}"
    return AmqpError(NOT_IMPLEMENTED, text)


def _attach_elsewhere(connection: Connection, link: proton.Link, remotes: Remotes) -> None:
    """Raises AttachWaits where the address is that of a node outside of the cluster. Raises AmqpError."""
    terminus = link.remote_source if link.is_sender else link.remote_target
    if terminus.address and not terminus.dynamic and terminus.type != proton.Terminus.COORDINATOR:
        relayed = remotes.relay(connection, link, terminus.address)
        if relayed is not None:
            connection.relay.pending[link._impl] = relayed
            raise AttachWaits(relayed.wait)


def _read_relay(connection: Connection, link: proton.Link) -> RelayRequest | None:
    """For whom another broker attaches the link; None: it is the connection's own. Raises AmqpError."""
    if not connection.relay.is_proxy:
        return None
    check_identity(connection, "a relayed link")
    return read_request(engine.remote_properties_of(link))


def _session_part(connection: Connection, link: proton.Link, relay: RelayRequest | None) -> SessionPart | None:
    """Of which session `link` is; None: of none."""
    if relay is not None:
        return relay.session
    return None if connection.session is None else connection.session.part(link.name)


def _can_be_relayed(link: proton.Link, own: OwnAddress | None) -> bool:
    """All but coordinators and anonymous relays, which are there, and relay what comes by its set."""
    if own is not None:
        return own.is_relayed
    terminus = read_terminus(link.remote_source if link.is_sender else link.remote_target)
    return bool(terminus.address or terminus.dynamic or link.is_sender) and not terminus.coordinator


def _attach_here(connection: Connection, link: proton.Link, relay: RelayRequest | None) -> LinkEndpoint:
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    link.snd_settle_mode = link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode
    if relay is not None and link.is_receiver and link.remote_target.address in (SESSION_NODE, RESERVATION_NODE):
        return _attach_kept(connection, link, relay)
    before = connection.container.default.resources.sets.log_ends
    if link.is_sender:
        sending = _attach_consumer(connection, link, relay)
        if isinstance(sending, OutgoingLink):
            wishes = read_wishes(engine.remote_properties_of(link), browses=sending.browsing).properties()
            if wishes:
                link.properties = {**(link.properties or {}), **wishes}
            _answer_committed(connection, sending, sending.hosted, sending.queue, before)
        else:
            connection.engine.attach_sending(link, sending)
        return sending
    receiving = _attach_publisher(connection, link, relay)
    # What a command asks for may be much.
    is_costly = isinstance(receiving, ManagementLink | CoordinatorLink)
    late = answer_late if isinstance(receiving, CoordinatorLink) else None
    on_settled = receiving.replenish if isinstance(receiving, ReceivingLink) else None
    connection.engine.attach_receiving(link, receiving, is_costly=is_costly, answer_late=late, on_settled=on_settled)
    if isinstance(receiving, IncomingLink):
        node = None if receiving.target is None else receiving.target.node
        _answer_committed(connection, receiving, receiving.hosted, node, before)
    return receiving


def _answer_committed(
    connection: Connection,
    endpoint: OutgoingLink | IncomingLink,
    hosted: HostedSet,
    node: Queue | Exchange | None,
    before: tuple[int, int],
) -> None:
    """Answer the attach once all is committed that the answer says to be there: what a failover takes back, nobody was
    told of. `before`: where the logs of `default` ended before the attach.

    1. It has written something there: a node, a binding, whose a queue is. All that is waited for.
    2. A durable subscription: the attach before, which was not answered, may have written it.
    3. A queue that another link has made, or a command: its declaration.
    4. An exclusive queue of a group: whether the link has it. If not, it is refused.
    """
    default = connection.container.default
    resources = default.resources
    token, waits_in = COMMITTED, hosted
    if not default.read_only and (resources.sets.log_ends != before or endpoint.keep_on_detach):
        token, waits_in = resources.written, default
    elif isinstance(node, Queue) and not hosted.read_only:
        uses = isinstance(endpoint, OutgoingLink) and not endpoint.browsing
        use = hosted.resources.replication.exclusive_use.awaited(node) if uses else None
        token = CommitToken(node.log, node.id) if use is None else use
    if token.is_committed:
        _answer(connection, endpoint)
    else:
        wait = waits_in.await_commit(token, "what the link is attached to is being replicated")
        _answer_later(connection, endpoint, wait)


def _answer(connection: Connection, endpoint: OutgoingLink | IncomingLink) -> None:
    """Nothing that the peer has given credit for goes out before this."""
    endpoint.link.open()
    if isinstance(endpoint, OutgoingLink):
        connection.engine.attach_sending(endpoint.link, endpoint)


def _answer_later(connection: Connection, endpoint: OutgoingLink | IncomingLink, wait: NodeWait) -> None:
    """Answer when `wait` has ended. What was made for the link goes with it, answered or not."""
    link, late = endpoint.link, connection.links.late

    def told(error: AmqpError | None) -> None:
        late.forget(link)
        if error is not None:
            endpoint.end(error)
            return
        _answer(connection, endpoint)
        connection.engine.input.answered(link)
        connection.engine.tell_credit(link)
        connection.touch()

    until_s = connection.container.clock() + connection.container.settings.attach_timeout_s
    late.answer_attach(WaitingAttach(link, wait, told, until_s))


def _attach_kept(connection: Connection, link: proton.Link, relay: RelayRequest) -> HostedSession | HostedReservation:
    """What who leads `default` keeps for clients: it is answered later where a session has to be committed, or another
    connection may have the container id."""
    if connection.container.default.read_only:
        raise ServedElsewhere(connection.container.directory, DEFAULT_SET)
    properties = engine.remote_properties_of(link)
    handler: HostedSession | HostedReservation
    if link.remote_target.address == SESSION_NODE:
        handler = HostedSession(connection, link, relay, read_asked(properties))
    else:
        handler = HostedReservation(connection, link, relay, read_reservation(properties))
    connection.engine.attach_receiving(link, handler)
    return handler


def _is_mere_replica(connection: Connection) -> bool:
    """Whether nothing but looking is for clients here: another broker leads the one set that there is."""
    container = connection.container
    return container.default.read_only and not container.directory.has_many_sets


def _check_leads(connection: Connection, relay: RelayRequest | None, address: str | None) -> None:
    """Raises ServedElsewhere on a mere replica for what can be had at the primary, if that may be relayed."""
    if _is_mere_replica(connection) and (relay is not None or connection.relay.relays is not None):
        raise ServedElsewhere(connection.container.directory, DEFAULT_SET, address or "")


def _check_one_way(connection: Connection, hosted: HostedSet, address: str) -> None:
    """Raises ServedElsewhere where other links of the client in the set are relayed: see `ConnectionRelay`."""
    if connection.relay.is_relayed(hosted.name):
        raise ServedElsewhere(connection.container.directory, hosted.name, address)


def _check_leads_default(connection: Connection, relay: RelayRequest | None) -> None:
    """As `_check_leads`, for what only the set `default` has, in a cluster of many sets, too."""
    if connection.container.default.read_only and (relay is not None or connection.relay.relays is not None):
        raise ServedElsewhere(connection.container.directory, DEFAULT_SET)


def _check_leads_managed(connection: Connection, relay: RelayRequest | None) -> None:
    """As `_check_leads_default`; where another broker asks about the queues of one set, of that one."""
    if relay is not None and relay.set_name:
        connection.container.led_set(relay.set_name)
    else:
        _check_leads_default(connection, relay)


def _own_queue(connection: Connection, relay: RelayRequest | None) -> Queue | None:
    """The queue that a relayed link had when it was attached before; None: it had none. Raises AmqpError."""
    if relay is None or not relay.own_queue:
        return None
    default = connection.container.default
    if default.read_only:
        raise ServedElsewhere(connection.container.directory, DEFAULT_SET, relay.own_queue)
    queue = default.resources.catalog.queues.get(relay.own_queue)
    if queue is None:
        text = f"{relay.own_queue}, the link's own queue, is gone with what it held: its client was not heard of for"
        raise AmqpError(RESOURCE_DELETED, f"{text} too long, or the broker that had it was lost")
    return queue


def _needs_replies_only(connection: Connection, relay: RelayRequest | None) -> bool:
    """Whether a dynamic address is one for replies: an administrator's, where no temporary queue can be made."""
    return connection.is_admin and relay is None and connection.container.default.read_only


def _attach_publisher(
    connection: Connection, link: proton.Link, relay: RelayRequest | None
) -> ReceivingLink | PeerReceiver:
    terminus = read_terminus(link.remote_target)
    if terminus.address == PEERS:
        return peer_receiver(connection, link)
    is_for_any_set = terminus.coordinator or not (terminus.address or terminus.dynamic)
    may_be_elsewhere = is_for_any_set and connection.relay.relays is not None
    if terminus.address == MANAGEMENT:
        _check_leads_managed(connection, relay)
    elif terminus.dynamic:
        _check_leads_default(connection, relay)
    elif not may_be_elsewhere:
        _check_leads(connection, relay, terminus.address)
    if _is_mere_replica(connection) and terminus.address != MANAGEMENT and not may_be_elsewhere:
        raise AmqpError(NOT_ALLOWED, f"{_REPLICA}: publish and have transactions there")
    handler: ReceivingLink
    if terminus.coordinator or terminus.address == COORDINATOR:
        handler = CoordinatorLink(connection, link, relay)
        answer_coordinator(link.target)
    elif terminus.address == MANAGEMENT:
        answer_terminus(link.target, link.remote_target, terminus, None, durable=False)
        handler = ManagementLink(connection, link, relay)
    else:
        handler = _publisher(connection, link, terminus, relay)
    link.max_message_size = handler.max_message_bytes
    if not isinstance(handler, IncomingLink):
        link.open()
    return handler


def _publisher(
    connection: Connection, link: proton.Link, terminus: Terminus, relay: RelayRequest | None
) -> IncomingLink:
    nodes = connection.container.nodes
    target: Target | None = None
    relays = connection.relay.relays
    if not (terminus.dynamic or terminus.address) and relays is not None:
        answer_terminus(link.target, link.remote_target, terminus, None, durable=False, is_target=True)
        if connection.session is not None:  # what one set has confirmed says nothing of the others
            check_link_name(link.name)
            link.properties = {proton.symbol(CONFIRMED): proton.ulong(0)}
        return AnonymousRelay(connection, link, relays)
    if terminus.dynamic and terminus.topic:
        target = nodes.temporary_topic("" if relay is None else relay.own_queue)
    elif terminus.dynamic:
        own = _own_queue(connection, relay)
        if own is not None:
            own.returned()
        target = Target(
            connection.container.default, own or nodes.temporary_queue(terminus, subject_of(connection, relay))
        )
    elif terminus.address:
        target = nodes.find_to_publish(terminus.address, subject_of(connection, relay), terminus)
        connection.log.note_made(target, subject_of(connection, relay))
        _check_one_way(connection, target.hosted, terminus.address)
    node, key = (None, None) if target is None else (target.node, target.key)
    answer_terminus(link.target, link.remote_target, terminus, node, key or "", durable=False, is_target=True)
    part = None if terminus.dynamic else _session_part(connection, link, relay)
    if part is not None:
        _tell_confirmed(connection, part, link, target, relay)
    handler = IncomingLink(connection, link, target, relay)
    if part is not None:
        connection.container.sessions.links.attached(part, handler.hosted, handler, connection, consumes=False)
    if terminus.dynamic and isinstance(node, Queue):
        link.target.address = node.name
        handler.owned_queue = node
    elif target is not None and target.temporary_topic:
        nodes.topics.joined(handler, target.temporary_topic, owns=terminus.dynamic)
        if terminus.dynamic:
            link.target.address = target.address
    return handler


def _tell_confirmed(
    connection: Connection, part: SessionPart, link: proton.Link, target: Target | None, relay: RelayRequest | None
) -> None:
    """Which number of a session's publisher was accepted last, and which below were refused.

    Raises AttachWaits until that is committed.

    Where its messages may be for several sets, each has a highest number of its own, and one that all have accepted is
    not known: the client sends all again that it has no answer for, and copies are dropped.
    """
    check_link_name(part.link)
    container = connection.container
    container.sessions.links.check(part)
    if target is not None:
        hosted = target.hosted
    else:
        hosted = container.default if relay is None else container.led_set(relay.set_name)
    container.sessions.links.commit_wait(part, hosted)
    spans_sets = container.spans_sets and not (target is not None and isinstance(target.node, Queue))
    highest, refused = 0, tuple[int, ...]()
    if not spans_sets:
        producer = client_producer(subject_of(connection, relay).user, producer_of(part.name, part.link))
        deduplication = hosted.resources.deduplication
        highest, refused = deduplication.highest(producer), deduplication.refused(producer)
    told: dict[Any, Any] = {proton.symbol(CONFIRMED): proton.ulong(highest)}
    if refused:
        told[proton.symbol(REFUSED)] = [proton.ulong(number) for number in refused]
    link.properties = told


def _attach_consumer(
    connection: Connection, link: proton.Link, relay: RelayRequest | None
) -> OutgoingLink | ReplyLink | PeerSender:
    terminus, filters = read_terminus(link.remote_source), read_filters(link.remote_source)
    if terminus.address == PEERS:
        return peer_sender(connection, link)
    if terminus.address == MANAGEMENT:
        _check_leads_managed(connection, relay)
        answer_terminus(link.source, link.remote_source, terminus, None, durable=False)
        reply_link = ReplyLink(connection, link, relay=relay)
        link.open()
        return reply_link
    if filters.after is not None and not terminus.browse:
        raise AmqpError(INVALID_FIELD, f"{AFTER} is for browsing: ask for the distribution-mode copy")
    if terminus.address and not terminus.dynamic:
        _check_leads(connection, relay, terminus.address)
    else:
        _check_leads_default(connection, relay)
    is_replica = _is_mere_replica(connection)
    if (is_replica or _needs_replies_only(connection, relay)) and terminus.dynamic and not terminus.browse:
        return _reply_link_of_replica(connection, link, terminus)
    if is_replica:
        handler = _browser_of_replica(connection, link, terminus, filters)
    elif terminus.dynamic and terminus.topic:
        handler = _subscriber_of_own_topic(connection, link, terminus, filters, relay)
    elif terminus.dynamic:
        filters.for_queue()  # before anything is made
        queue = _own_queue(connection, relay) or connection.container.nodes.temporary_queue(
            terminus, subject_of(connection, relay)
        )
        default = connection.container.default
        handler = _consumer_of_queue(connection, link, default, queue, _reading(terminus), filters, relay)
        handler.owned_queue = queue
        link.source.address = queue.name
    elif terminus.address:
        handler = _consumer_of_node(connection, link, terminus.address, terminus, filters, relay)
    elif link.remote_source.type == proton.Terminus.UNSPECIFIED:
        handler = _subscriber_without_source(connection, link, relay)
    else:
        raise AmqpError(INVALID_FIELD, "a consumer's source needs an address, or dynamic=true")
    return handler


def _consumer_of_queue(
    connection: Connection,
    link: proton.Link,
    hosted: HostedSet,
    queue: Queue,
    terminus: Terminus,
    filters: Filters,
    relay: RelayRequest | None = None,
) -> OutgoingLink:
    if not hosted.resources.replicated.is_level and has_replicated_messages(queue):
        text = f"this broker brings its copy of queue {queue.name} level with the primary's: try again, or browse there"
        raise AmqpError(RESOURCE_LOCKED, text)
    answer_terminus(link.source, link.remote_source, terminus, queue, durable=False)
    applied = filters.for_queue()
    answer_source(link.source, link.remote_source, applied)
    part, link_name = _session_part(connection, link, relay), _subscriber(connection, link, relay)
    is_named = queue.arguments.exclusive and not terminus.browse and bool(link_name.container and link_name.link)
    if is_named:
        _steal(connection, hosted, queue, link_name, relay)
    if part is not None and not terminus.dynamic and _is_held(link, terminus):
        handler: OutgoingLink = _session_consumer(connection, part, link, hosted, queue, applied, relay)
    else:
        handler = OutgoingLink(connection, link, hosted, queue, browsing=terminus.browse, filters=applied, relay=relay)
    if is_named:
        hosted.named_consumers.began(handler, link_name)
    return handler


def _reading(terminus: Terminus) -> Terminus:
    """For a queue of its own, which nobody else reads: to look at what is there is to have it. Were it left there, it
    would be kept for nobody."""
    return terminus._replace(browse=False)


def _is_held(link: proton.Link, terminus: Terminus) -> bool:
    """Whether there is something to hold for a session: not for who only looks, nor where nobody answers."""
    return not terminus.browse and link.remote_snd_settle_mode != proton.Link.SND_SETTLED


def _session_consumer(
    connection: Connection,
    part: SessionPart,
    link: proton.Link,
    hosted: HostedSet,
    queue: Queue,
    applied: Filters,
    relay: RelayRequest | None,
) -> SessionConsumer:
    """Raises AttachWaits until it is committed what the link holds."""
    check_link_name(part.link)
    sessions = connection.container.sessions
    sessions.links.check(part)
    sessions.release_of_other_nodes(part, queue)
    sessions.links.commit_wait(part, hosted, queue, connection)
    return SessionConsumer(connection, link, hosted, queue, filters=applied, part=part, relay=relay)


def _consumer_of_node(
    connection: Connection,
    link: proton.Link,
    address: str,
    terminus: Terminus,
    filters: Filters,
    relay: RelayRequest | None,
) -> OutgoingLink:
    nodes, wanted = connection.container.nodes, terminus
    if SHARED in terminus.capabilities and not nodes.has_queue(address):
        wanted = terminus._replace(capabilities=terminus.capabilities | {"topic"})  # on a queue it would say nothing
    in_replica = relay is None and connection.relay.relays is None
    target = nodes.find(address, subject_of(connection, relay), wanted, in_replica=in_replica)
    connection.log.note_made(target, subject_of(connection, relay))
    if isinstance(target.node, Queue):
        _check_one_way(connection, target.hosted, address)
        return _consumer_of_queue(connection, link, target.hosted, target.node, terminus, filters, relay)
    return _subscription(connection, link, target, _reading(terminus), filters, relay)


def _subscriber_of_own_topic(
    connection: Connection, link: proton.Link, terminus: Terminus, filters: Filters, relay: RelayRequest | None
) -> OutgoingLink:
    """A topic of its own, and what comes to it. Where the link was attached before, its queue is bound to the topic."""
    nodes, own = connection.container.nodes, _own_queue(connection, relay)
    target = nodes.temporary_topic("" if own is None else nodes.topic_of_queue(own))
    asked = _reading(terminus)._replace(
        durable=False, timeout_s=0, capabilities=terminus.capabilities - {SHARED, GLOBAL}
    )
    handler = _subscription(connection, link, target, asked, filters, relay)
    link.source.address = target.address
    return handler


def _subscription(
    connection: Connection,
    link: proton.Link,
    target: Target,
    terminus: Terminus,
    filters: Filters,
    relay: RelayRequest | None,
) -> OutgoingLink:
    """A consumer of an exchange or a topic: see `subscriptions`, whose table has the kinds."""
    nodes, subject = connection.container.nodes, subject_of(connection, relay)
    nodes.check_arguments(subject, terminus)
    own, names = _own_queue(connection, relay), client_names(connection, relay)
    link_name = _subscriber(connection, link, relay)
    part = _session_part(connection, link, relay)
    # Who cannot be known again, for want of a container id, does not come back.
    timeout_s = 0 if SHARED in terminus.capabilities or not link_name.container else terminus.timeout_s
    is_kept = terminus.durable or timeout_s > 0
    route = nodes.route(target, filters, names.client if is_kept else names.connection)
    arguments = terminus.arguments if terminus.durable else nodes.settings.temporary_arguments(terminus.arguments)
    terms = SubscriptionTerms(route, arguments, nodes.created_by(subject), timeout_s)
    sharing = frozenset[str]()
    if SHARED in terminus.capabilities:
        if filters.no_local:
            raise AmqpError(NOT_IMPLEMENTED, "a shared subscription is nobody's own: leave the filter no-local out")
        sharing = terminus.capabilities & {SHARED, GLOBAL}
        queue = _shared_queue(connection, terminus, terms, link_name, relay)
    elif is_kept:
        there = nodes.subscriptions.find(link_name, route)
        if there is not None:
            _steal(connection, target.hosted, there, link_name, relay)
            _take_from_sessions(connection, there, part)
        queue = nodes.subscriptions.durable(link_name, terms)
    else:
        queue = own or nodes.subscriptions.temporary(route, arguments, terms.created_by)
    applied = filters.for_exchange(route.exchange.kind)
    answer_terminus(
        link.source, link.remote_source, terminus, route.exchange, route.key, durable=terminus.durable,
        timeout_s=timeout_s, sharing=sharing,
    )  # fmt: skip
    answer_source(link.source, link.remote_source, applied)
    if part is not None and terminus.durable and _is_held(link, terminus):
        handler: OutgoingLink = _session_consumer(connection, part, link, target.hosted, queue, applied, relay)
    else:
        handler = OutgoingLink(connection, link, target.hosted, queue, browsing=False, filters=applied, relay=relay)
    handler.keep_on_detach, handler.shares_queue = is_kept, bool(sharing)
    if is_kept or not sharing:
        handler.owned_queue = queue
    if is_kept or sharing:
        target.hosted.named_consumers.began(handler, link_name)
    if target.temporary_topic:
        nodes.topics.joined(handler, target.temporary_topic, owns=terminus.dynamic)
    return handler


def _shared_queue(
    connection: Connection,
    terminus: Terminus,
    terms: SubscriptionTerms,
    link_name: Subscriber,
    relay: RelayRequest | None,
) -> Queue:
    """Of a shared subscription, without the link of that name that was there before."""
    default, subscriptions = connection.container.default, connection.container.nodes.subscriptions
    wanted = SharedSubscription.of_link(
        link_name, is_global=GLOBAL in terminus.capabilities, is_durable=terminus.durable
    )
    there = subscriptions.find_shared(wanted, default.now_ms)
    if there is not None:
        _steal(connection, default, there, link_name, relay)
    return subscriptions.shared(wanted, terms, default.now_ms)


def _subscriber(connection: Connection, link: proton.Link, relay: RelayRequest | None) -> Subscriber:
    names = client_names(connection, relay)
    return Subscriber(names.container, link.name if relay is None else relay.link, names.user)


def _steal(
    connection: Connection, hosted: HostedSet, queue: Queue, link_name: Subscriber, relay: RelayRequest | None
) -> None:
    """End the link of that name that consumed from `queue` before (AMQP 1.0 section 2.6.1): of a client that has died,
    as long as nobody has noticed."""
    older = hosted.named_consumers.of(queue, link_name)
    if isinstance(older, OutgoingLink):
        older.stolen(connection, relay, f"the link {link_name.link} was attached again")


def _take_from_sessions(connection: Connection, queue: Queue, part: SessionPart | None) -> None:
    """Give back what another session than that of `part` holds of a subscription, which its client will not resume
    there."""
    default = connection.container.default
    holdings = default.resources.catalog.holdings
    for held in holdings if len(holdings) else ():
        if held.queue is queue and (part is None or (held.session, held.name, held.link) != part.owner):
            release_held(default.resources, held, failed=True)
            default.touch()


def _subscriber_without_source(connection: Connection, link: proton.Link, relay: RelayRequest | None) -> OutgoingLink:
    """A subscriber comes back that does not say to what: JMS does so to unsubscribe, by closing the link then.

    Its selector is not known: what it gives credit for comes unfiltered, and the answer has no filter.
    """
    subscriber = _subscriber(connection, link, relay)
    queue, exchange, binding = connection.container.nodes.subscriptions.left_behind(subscriber)
    topic = connection.container.nodes.topic_of(exchange.name, binding.key)
    access = Access(subject_of(connection, relay), Permission.CONSUME, exchange.name, topic)
    connection.container.access.check(*access)
    source = link.source
    source.type = proton.Terminus.SOURCE
    source.address = f"{exchange.name}/{binding.key}" if binding.key else exchange.name
    source.durability, source.expiry_policy = proton.Terminus.CONFIGURATION, proton.Terminus.EXPIRE_NEVER
    default, filters = connection.container.default, Filters(None, None, None, None, {})
    handler = OutgoingLink(connection, link, default, queue, browsing=False, filters=filters, relay=relay)
    handler.owned_queue, handler.keep_on_detach, handler.unsubscribes = queue, True, True
    handler.shares_queue = not queue.arguments.exclusive
    handler.access = access
    default.named_consumers.began(handler, subscriber)
    return handler


def _browser_of_replica(
    connection: Connection, link: proton.Link, terminus: Terminus, filters: Filters
) -> OutgoingLink:
    """Raises AmqpError for whatever would change something: a replica may be looked at."""
    if not terminus.browse or terminus.dynamic:
        raise AmqpError(NOT_ALLOWED, f"{_REPLICA}: consume there, or browse here (distribution-mode copy)")
    default = connection.container.default
    queue = default.resources.catalog.queues.get(terminus.address or "")
    if queue is None:
        raise AmqpError(NOT_ALLOWED, f"{_REPLICA}: {terminus.address} is no queue here, and none is made")
    return _consumer_of_queue(connection, link, default, queue, terminus, filters)


def _reply_link_of_replica(connection: Connection, link: proton.Link, terminus: Terminus) -> ReplyLink:
    """A dynamic address for the replies of `$management`, which is all that can come here: nobody may publish."""
    address = connection.container.nodes.reply_address()
    if terminus.topic:
        raise AmqpError(NOT_ALLOWED, f"{_REPLICA}: have topics there")
    answer_terminus(link.source, link.remote_source, terminus, None, durable=False)
    link.source.address = address
    handler = ReplyLink(connection, link, address)
    link.open()
    return handler
