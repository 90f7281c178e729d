"""One client's connection: open, sessions, links, and their end (AMQP 1.0 part 2), without a socket.

What kinds of links there are it does not know: whoever makes them is an argument, and so the links may know it. They
share its `links`, `window`, `transactions` and `log`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import proton

from qpid_ha_broker.amqp.connections.connection_log import ConnectionLog
from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.connections.link_table import LinkTable
from qpid_ha_broker.amqp.connections.send_window import SendWindow
from qpid_ha_broker.amqp.connections.sole_connections import DETECTION_POLICY, WEAK, SoleConnections
from qpid_ha_broker.amqp.connections.transactions import Transactions
from qpid_ha_broker.amqp.nodes.access_checks import client_names, marked_refusal, subject_of
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.node_wait import AttachWaits, NodeWait, WaitingAttach
from qpid_ha_broker.amqp.nodes.session_attachment import SessionAttachment
from qpid_ha_broker.amqp.relaying.relayed_reservations import RelayedReservation
from qpid_ha_broker.amqp.relaying.relayed_sessions import RelayedSession
from qpid_ha_broker.amqp.relaying.relayer import Relayer
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    ESTABLISHMENT_FAILED,
    INTERNAL_ERROR,
    INVALID_FIELD,
    READS_REFUSALS,
    RESOURCE_LIMIT,
    SOLE_CONNECTION,
    UNAUTHORIZED_ACCESS,
    UNKNOWN_TRANSACTION,
    AmqpError,
    as_amqp,
    encoded_bytes,
    symbol_map,
)
from qpid_ha_broker.amqp.wire.endpoint_ending import EndpointEnding, ending_by_peer
from qpid_ha_broker.amqp.wire.engine import Engine, has_unsent, session_of
from qpid_ha_broker.amqp.wire.frame_stream import STREAM_CAPABILITY
from qpid_ha_broker.amqp.wire.peer_frames import ADMIN_PROPERTY, OUR_PRODUCT, PROOF_PROPERTY, SHARED_CAPABILITY, Channel
from qpid_ha_broker.amqp.wire.peer_input import PeerInput
from qpid_ha_broker.amqp.wire.relay import (
    OWN_NODES_CAPABILITY,
    RELAY_CAPABILITY,
    RELAY_MANAGEMENT_CAPABILITY,
    RELAY_RESERVATIONS_CAPABILITY,
    RELAY_SESSIONS_CAPABILITY,
    RELAY_SETS_CAPABILITY,
    RelayRequest,
)
from qpid_ha_broker.amqp.wire.session_request import read_session
from qpid_ha_broker.amqp.wire.values import listed
from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.broker_events import EventSubject
from qpid_ha_broker.model.work import Task, used_up

OPEN_BYTES = 128
"""Of a frame with our open, what has a fixed length, at most."""
LAST_WORDS_S = 0.004
"""For what a client has sent that is gone, or silent for too long; and for the first of many links that end."""
DESCRIPTION_LENGTH = 200
"""Characters of an error text that is made of what the peer sent."""
_RELAY_CAPABILITIES = (
    RELAY_CAPABILITY,
    RELAY_SETS_CAPABILITY,
    OWN_NODES_CAPABILITY,
    RELAY_SESSIONS_CAPABILITY,
    RELAY_MANAGEMENT_CAPABILITY,
    RELAY_RESERVATIONS_CAPABILITY,
)


def _as_many_as_fit(servers: Iterable[dict[Any, Any]], room: int) -> list[dict[Any, Any]]:
    """The first of `servers`, as many as have room in so many bytes."""
    found = []
    for server in servers:
        room -= encoded_bytes(server)
        if room < 0:
            break
        found.append(server)
    return found


class AnsweredElsewhere(Protocol):
    """A link of a client whose attach another broker answers."""

    @property
    def is_attached(self) -> bool:
        """The other broker has answered."""

    @property
    def wait(self) -> NodeWait:
        """What the client's attach waits for."""

    def finish(self) -> LinkEndpoint:
        """Answer the client's attach, as the other broker has. Raises AmqpError."""


class Relayed(AnsweredElsewhere, Protocol):
    """A link of a client that is, or will be, relayed to another broker of the cluster."""

    set_name: str
    link: proton.Link
    """The client's."""

    @property
    def is_in_doubt(self) -> bool:
        """If the client's connection ended now, nobody could tell the client whether what it has sent is queued."""


class Relays(Relayer, Protocol):
    """Who has links of clients relayed to the brokers that lead their sets."""

    def relay(self, connection: Connection, link: proton.Link, set_name: str) -> Relayed:
        """Have `link` attached where the set is led. Raises AmqpError for one that cannot be."""


def transactions_of(connection: Connection, request: RelayRequest | None, set_name: str) -> Transactions:
    """Those that deliveries of a set may name on a link: its client's. Raises AmqpError where there are none."""
    if request is None:
        return connection.transactions
    return connection.relay.transactions_of(request, set_name)


class Remotes(Protocol):
    """Who has links of clients attached to nodes of brokers outside of the cluster."""

    def relay(self, connection: Connection, link: proton.Link, address: str) -> AnsweredElsewhere | None:
        """Have `link` attached there; None: `address` is no such node. Raises AmqpError."""


class OpenRequest(NamedTuple):
    """What a client's open asks for, and who answers it has to know."""

    to_be_sole: bool
    """Its user is to have no other connection with its container id."""
    for_refusals: bool
    """It knows an open of which no connection comes (`ESTABLISHMENT_FAILED`), or is a broker of ours."""


class Opening(NamedTuple):
    """When a client opened its connection, and the how manyth that was since the broker's start."""

    number: int
    since_ms: int
    """Since the Unix epoch."""


class Connections:
    """The connections of a container: those that are open, and those that have something to write.

    `attach`: makes our end of a link. Raises AmqpError or ModelError for one that is refused.
    """

    def __init__(self, container: Container, attach: Callable[[Connection, proton.Link], LinkEndpoint]) -> None:
        self.container = container
        self.attach = attach
        self.relays: Relays | None = None
        """None: clients are told where what they ask for is."""
        self.remotes: Remotes | None = None
        """None: there are no nodes of other brokers here."""
        self.is_proof: Callable[[str], bool] = lambda proof: False
        """Whether this text is for a broker of the cluster alone to know; asked where brokers have no login."""
        self.open: dict[Connection, Opening] = {}
        """A dictionary, as all that is gone through: a run can be repeated."""
        self.sole = SoleConnections()
        self.made = count(1)
        """Numbers of connections, whether they come to be open or not."""
        self._numbers = count(1)
        self._touched: dict[Connection, None] = {}

    def opened(self, connection: Connection) -> None:
        """`connection` is open, and served."""
        opening = self.open[connection] = Opening(next(self._numbers), self.container.steady.wall_ms())
        self.container.notices.events.tell(
            EventSubject.CONNECTION_OPENED, id=opening.number, **connection.identity.facts
        )
        self.container.limits.connected(connection.links.use)
        if connection.asks.to_be_sole:
            self.sole.opened(client_names(connection), connection)

    def closed(self, connection: Connection, ending: EndpointEnding, reason: str) -> None:
        """`connection` is served no more, if it ever was. `reason`: why this broker has ended it, if it has."""
        opening = self.open.pop(connection, None)
        if opening is not None:
            facts = {**connection.identity.facts, "ending": ending.name.lower(), "reason": reason}
            self.container.notices.events.tell(EventSubject.CONNECTION_CLOSED, id=opening.number, **facts)
            self.container.limits.disconnected(connection.links.use)
            if connection.asks.to_be_sole:
                self.sole.closed(client_names(connection), connection)

    def sole_refusal(self, connection: Connection) -> AmqpError | None:
        """Why it cannot be the only one with its container id, if it asks for that."""
        if not connection.asks.to_be_sole:
            return None
        properties = connection.engine.remote_properties
        return self.sole.refusal(client_names(connection), properties, self.container.now_ms)

    def limit_refusal(self, connection: Connection) -> AmqpError | None:
        """Why the user of `connection` may not have one more, if so. Those of other brokers, which bring links of many
        users, count for nobody."""
        if connection.relay.is_broker:
            return None
        limits = self.container.limits
        use = limits.use_of(subject_of(connection).user)
        try:
            limits.check_connection(use)
        except ModelError as error:
            return as_amqp(error)
        connection.links.use = use
        return None

    def touch(self, connection: Connection) -> None:
        """`connection` has something to write, or to do, at the end of the turn."""
        self._touched[connection] = None

    def take_touched(self) -> Iterable[Connection]:
        """The connections to be written, once each."""
        touched, self._touched = self._touched, {}
        return touched

    def end_clients(self, error: AmqpError) -> None:
        """End the ordinary connections; of those marked for administration, the links that need the primary."""
        for connection in list(self.open):
            if connection.is_admin:
                for link in connection.links:
                    if link.needs_primary:
                        link.end(error)
            else:
                connection.send_away(error)

    def check_logins(self) -> int:
        """Users of the cluster have changed: end connections of those who have logged in by what counts no more.
        Returns how many."""
        count = 0
        for connection in list(self.open):
            if (refusal := _login_refusal(connection.engine.input)) is not None:
                connection.end(refusal)
                count += 1
        return count

    def check_access(self) -> int:
        """The rules have changed: end what they do not allow any more. Returns how many links and connections."""
        access, count = self.container.access, 0
        for connection in list(self.open):
            refusal = marked_refusal(connection, access)
            if refusal is not None:
                connection.end(refusal)
                count += 1
                continue
            for link in connection.links:
                if link.access is None:
                    continue
                try:
                    access.check(*link.access)
                except ModelError as error:
                    link.end(as_amqp(error))
                    count += 1
        return count


class RelayedOwner:
    """Stands for the connection of a client at another broker."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transactions] = {}
        """That its links may name, by resource set."""


class ConnectionRelay:
    """What relaying is to one connection: of a client whose links go on to other brokers, or of a broker that relays
    links of its clients here."""

    def __init__(self, relays: Relays | None, remotes: Remotes | None, number: int) -> None:
        self.name = str(number)
        """As no other connection of this process is called, be it open or not: what its client has alone at another
        broker is known by it."""
        self.relays = relays
        """Who relays links of this client; None: nobody does."""
        self.onward: Relays | None = None
        """Who relays what clients of the peer, a proxy, ask this broker to pass on; None: nobody does."""
        self.remotes = remotes
        """The same, for links to nodes of brokers outside of the cluster."""
        self.is_broker = False
        """The peer is one of the cluster, which it has proved: see `PeerIdentity`."""
        self.is_proxy = False
        """Another broker has opened it to relay links of its clients on it."""
        self.pending: dict[Any, AnsweredElsewhere] = {}
        """Links whose attach is to be answered as the broker answers that leads their set, or has the remote node."""
        self.links: dict[Relayed, None] = {}
        """All that are relayed, or will be."""
        self.reservation: RelayedReservation | None = None
        """Of the client's container id, at the broker that leads `default`; None: it is not asked."""
        self._owners: WeakValueDictionary[str, RelayedOwner] | None = None

    def opened(self, is_admin: bool, desired: Sequence[object]) -> None:
        """The peer has opened, and desires these capabilities."""
        if is_admin:
            self.is_proxy = RELAY_CAPABILITY in desired
            self.onward, self.relays = self.relays if self.is_proxy else None, None

    def ending_of(self, endpoint: proton.Endpoint) -> EndpointEnding:
        """How the peer has ended its connection or an AMQP session. A proxy detaches links whose clients are gone: the
        others are attached again, here or elsewhere."""
        return EndpointEnding.LOST if self.is_proxy else ending_by_peer(endpoint)

    def forget(self, link: Relayed) -> None:
        """It has ended, or is not relayed after all."""
        self.pending.pop(link.link._impl, None)
        self.links.pop(link, None)

    def has_nothing(self, container: Container, links: LinkTable) -> bool:
        """Whether none of the client's links is to a node of a set that is led here, or is attached where it is led, or
        has sent what it could not be told of anywhere else."""
        led = [hosted for hosted in container.sets.values() if not hosted.read_only]
        is_served = any(endpoint in hosted.links for hosted in led for endpoint in links)
        return not (is_served or any(link.is_attached or link.is_in_doubt for link in self.links))

    def is_relayed(self, set_name: str) -> bool:
        """Whether links in that set are relayed: what is led here by now, is for their client led elsewhere still.

        So that all of a client's transaction comes to the set in one way.
        """
        return bool(self.links) and any(link.set_name == set_name for link in self.links)

    def owner_of(self, client: str) -> RelayedOwner:
        """Who has what a client has alone that another broker calls so: the same for all of its links."""
        if self._owners is None:  # few connections need it
            self._owners = WeakValueDictionary()
        owner = self._owners.get(client)
        if owner is None:
            owner = self._owners[client] = RelayedOwner()
        return owner

    def transactions_of(self, request: RelayRequest, set_name: str) -> Transactions:
        """Those that a client at another broker has in a set. Raises AmqpError where it has no coordinator."""
        transactions = self.owner_of(request.client).transactions.get(set_name)
        if transactions is None:
            raise AmqpError(UNKNOWN_TRANSACTION, f"the client has declared no transaction in the set {set_name}")
        return transactions

    def begin_session(self, container: Container, asking: SessionAttachment, container_id: str) -> None:
        """The client has opened with a session. Where links are relayed, so is that, also to this broker itself: then
        it goes on whoever leads."""
        if self.relays is None:
            container.sessions.begin(asking)
        else:
            container.sessions.begin_relayed(asking, RelayedSession(asking, self.relays, container_id))

    def reserve(self, connection: Connection) -> None:
        """The client has opened. Where other brokers take clients, too, one that asks to be the only one with its
        container id is answered when it is; all others are at once."""
        is_asked = connection.asks.to_be_sole and connection.container.settings.reserves_container_ids
        if self.relays is None or not is_asked:
            connection.answer_open()
            return
        unattached = connection.container.reservations.unattached
        self.reservation = RelayedReservation(connection, client_names(connection), self.relays, unattached)
        self.reservation.begin()

    def open_wait(self, connection: Connection) -> NodeWait | None:
        """What the answer to its client's open waits for, and so all that came with it; None: nothing."""
        if connection.is_open:
            return None
        if connection.session is not None:
            return connection.session.wait
        return None if self.reservation is None else self.reservation.wait

    def is_sole(self, connection: Connection) -> bool:
        """Whether its client asks to be the only one with its container id, and is. Where several brokers serve clients
        and none of them relays, each knows its own connections alone, and so tells nobody that it is."""
        if self.reservation is not None:
            return self.reservation.is_granted
        is_alone = self.relays is None and not connection.container.directory.has_many_sets
        return connection.asks.to_be_sole and is_alone

    def roll_back(self, budget: Budget) -> None:
        """The connection is gone, and so are the transactions of all clients that were relayed on it."""
        for owner in list((self._owners or {}).values()):
            for transactions in owner.transactions.values():
                transactions.closed(budget)


class Connection:
    """The promise: when it ends, however it ends, everything that its client held comes back to where it was.

    `admit`: asked at the open for a reason not to serve this client.
    """

    def __init__(
        self,
        connections: Connections,
        engine: Engine,
        peer: str,
        admit: Callable[[Connection], AmqpError | None] = lambda connection: None,
    ) -> None:
        self.container = container = connections.container
        self._connections = connections
        self.engine = engine
        self.peer = peer
        settings = container.settings
        limits = settings.max_transaction_bytes, settings.max_transaction_messages
        self.transactions = Transactions(container.default, *limits)
        engine.dropped = self.transactions.dropped
        self.log = ConnectionLog(container, peer)
        self.links = LinkTable(container, engine, self.log)
        self.window = SendWindow(container, self.links)
        self.partial_bytes = 0
        """In unfinished messages."""
        self.is_behind = False
        """Not all of what came has been worked on: `receive` was cut short."""
        self.is_open = False
        self.is_admin = False
        """Marked for administration: let in everywhere, also where clients are not served."""
        self.is_shared = False
        """Another broker has opened it to have sub-channels on it."""
        self.relay = ConnectionRelay(connections.relays, connections.remotes, next(connections.made))
        self.session: SessionAttachment | None = None
        """The session that the client has opened with, which outlives the connection."""
        self.peer_channel: Channel | None = None
        """What another broker says on this connection; there is one channel in a connection's life."""
        self.peer_has_closed = False
        self.is_hung_up = False
        """Our side of the stream is to end after what is already due, without a close; nothing is read any more."""
        self.asks = OpenRequest(to_be_sole=False, for_refusals=False)
        self._deadline_ms = 0
        self._admit = admit
        self.sessions_open = 0
        """AMQP's own sessions."""
        self._ended = False
        self._is_lost = False
        self._is_ending_links = False

    # --- the driver's calls

    def receive(self, data: bytes | memoryview, budget: Budget = UNLIMITED) -> None:
        """Bytes came; `container.now_ms` is the time. Call again, also without any, while `is_behind`."""
        if self.is_hung_up:
            self.is_behind = False
            return
        self.engine.input.heard_ms = self.container.now_ms
        self.engine.push(data)
        self.is_behind = not self.engine.process(self, budget)
        stream = self.engine.input.stream
        if stream is None or not stream.is_reading:  # who answers a frame says so itself
            self._connections.touch(self)

    def take_output(self) -> bytes:
        """What is to be written; consumers that waited for room go on."""
        output = self.engine.take_output()
        self.window.left()
        if self.window.congested:
            self.engine.guard(self.window.relieve)
        return output

    def heartbeat(self, now_ms: int) -> None:
        """Keep the idle time-outs of both sides, by a clock that never jumps.

        To be called several times in the shortest of them: Proton learns of traffic only here.
        """
        deadline_ms, self._deadline_ms = self._deadline_ms, self.engine.tick(now_ms)
        if 0 < deadline_ms <= now_ms:  # before, nothing can have happened
            self.is_behind = not self.engine.process(self, self.budget())
            self.touch()

    def lost(self) -> None:
        """The socket is gone. What came and takes too long to be worked on is lost with it, like what did not come.

        When the last link has ended the engine is closed: nothing may be called any more.
        """
        try:
            self.engine.process(self, self.budget())  # a refused login is known only when its outcome has been written
        finally:  # even if it is a bug of ours that ended this connection, others get what it held
            self._is_lost = True
            self._finish(EndpointEnding.LOST)

    def budget(self) -> Budget:
        """For what is to be done at once and may be much."""
        return Budget(self.container.clock, LAST_WORDS_S)

    @property
    def identity(self) -> PeerIdentity:
        """Who the peer is."""
        transport = self.engine.transport
        return PeerIdentity(
            self.peer,
            self.engine.input.user or (transport.authenticated and transport.user) or "",
            self.is_admin,
            self.relay.is_broker,
            self.engine.connection.remote_container or "",
            self.relay.name,
            self.container.settings.name,
        )

    @property
    def has_ended(self) -> bool:
        """There is nothing more to be done for this client than to say goodbye."""
        return self._ended

    # --- for links

    def touch(self) -> None:
        """There is something to write at the end of the turn."""
        self._connections.touch(self)

    def end_link(self, endpoint: LinkEndpoint, error: AmqpError) -> None:
        """Detach a link with an error, if it has not ended yet; the connection and its other links go on."""
        if endpoint in self.links:
            self.links.end(endpoint, error)
            self._check_refused()

    def _check_refused(self) -> None:
        """A link has been closed by us: one too many, for a peer that detaches none of them, ends the connection."""
        self.touch()
        try:
            self.links.check_refused()
        except AmqpError as error:
            self.end(error)

    def end(self, error: AmqpError, ending: EndpointEnding = EndpointEnding.OURS) -> None:
        """Close the connection with a condition; what the client held is given back."""
        if self._ended:
            return
        usual = error.name == CONNECTION_FORCED
        level = "debug" if self.peer_channel is not None else "info"  # of brokers, the cluster's own log tells
        self.log.write(level if usual else "warning", f"closed: {error}")
        if not self.is_open:
            self.answer_open(failed=True)
        connection = self.engine.connection
        connection.condition = error.as_condition(self.engine.peer_frame_bytes)
        connection.close()
        self._finish(ending, str(error))
        self.touch()

    def send_away(self, error: AmqpError) -> None:
        """End the connection so that the client tries its next address by itself; what it held is given back.

        A close would be an order to Proton's Python client to wait: after `amqp:connection:forced` it neither answers
        nor reads, and notices nothing before its next heartbeat; after any other condition it gives up for good. An
        open from us makes it begin again with its first address. But every client survives the end of the stream, as in
        a crash. So the reason is told to those only who are known to go on after it.
        """
        if self.is_admin or self.peer_channel is not None or self.asks.for_refusals:
            self.end(error)
        elif not self._ended:
            self.log.write("info", f"sent away: {error.description}")
            self.is_hung_up = True
            self._finish(EndpointEnding.OURS, str(error))
            self.touch()

    # --- what the peer did: see engine.Handler

    def opened(self) -> None:
        connections = self._connections
        refusal = self._read_open() or _login_refusal(self.engine.input) or self._admit(self)
        refusal = refusal or connections.sole_refusal(self) or connections.limit_refusal(self)
        if refusal is None:
            connections.opened(self)
            self.log.is_let_in = True
            if self.session is None:
                self.relay.reserve(self)
            else:
                self.relay.begin_session(self.container, self.session, self.engine.connection.remote_container or "")
            return
        self.log.is_let_in = self.relay.is_broker  # else what is said of it would be lost among strangers' mistakes
        if refusal.name == CONNECTION_FORCED:  # not before this moment: the peer's open says how
            self.send_away(refusal)
        else:
            self.end(refusal)

    def _read_open(self) -> AmqpError | None:
        """Read whether the peer is an administrator and whether it reads refusals; and why it is not served, if so."""
        try:
            properties = self.engine.remote_properties
            desired = listed(self.engine.remote_desired_capabilities)
        except AmqpError as error:
            return error
        self.is_admin = isinstance(properties, dict) and properties.get(ADMIN_PROPERTY) is True
        is_ours = isinstance(properties, dict) and properties.get("product") == OUR_PRODUCT
        self.relay.is_broker = self.is_admin and is_ours and _has_proved(self, self._connections.is_proof, properties)
        may_be_sole = SOLE_CONNECTION in desired and READS_REFUSALS not in desired
        self.asks = OpenRequest(
            may_be_sole and not self.is_admin, is_ours or bool({SOLE_CONNECTION, READS_REFUSALS} & {*desired})
        )
        self.relay.opened(self.is_admin, desired)
        try:
            session = read_session(properties)
        except AmqpError as error:
            return error
        if session is not None:  # of its connections the newer one wins
            self.asks = self.asks._replace(to_be_sole=False)
            self.session = SessionAttachment(self, session, self.identity.user)
            self.engine.answers_late = False
        self.links.is_limited = self.window.is_limited = not (self.relay.is_proxy and self.relay.is_broker)
        self.is_shared = self.container.peers.shared is not None and SHARED_CAPABILITY in desired
        if self.engine.input.may_stream and self.relay.is_broker and STREAM_CAPABILITY in desired:
            self.engine.input.expect_stream()
        return marked_refusal(self, self.container.access) if self.is_admin else self.container.greeting.refusal

    def answer_open(self, *, failed: bool = False) -> None:
        """Answer the peer's open; `failed`: a close with the reason follows. See also `SessionConnection`."""
        settings, connection = self.container.settings, self.engine.connection
        connection.container = settings.name
        shared = (SHARED_CAPABILITY,) if self.is_shared else ()  # of no use to anybody else
        stream = (STREAM_CAPABILITY,) if self.engine.input.stream is not None else ()
        relay = _RELAY_CAPABILITIES if self.relay.is_proxy else ()
        sessions = self.container.sessions.capabilities(relays=self.relay.relays is not None)
        is_sole = self.relay.is_sole(self)
        sole = (SOLE_CONNECTION,) if is_sole else ()
        capabilities = (*self.container.capabilities, *sessions, *shared, *stream, *relay, *sole)
        connection.offered_capabilities = [proton.symbol(name) for name in capabilities]
        properties: dict[str, Any] = {"product": OUR_PRODUCT, "version": settings.version}
        if is_sole:
            properties[DETECTION_POLICY] = WEAK
        if failed:
            properties[ESTABLISHMENT_FAILED] = True
        else:
            servers = self.container.greeting.servers_for_next_client()
            if self.session is not None:
                properties |= self.session.properties
            room = self.engine.peer_frame_bytes - OPEN_BYTES - encoded_bytes([settings.name, *capabilities, properties])
            properties["failover-server-list"] = _as_many_as_fit(map(symbol_map, servers), room)
        connection.properties = {proton.symbol(name): value for name, value in properties.items()}
        connection.open()
        self.is_open = True

    def closed(self) -> None:
        self.peer_has_closed = True
        ending = self.relay.ending_of(self.engine.connection)
        if ending is EndpointEnding.FAILED and not self._ended:
            level = "debug" if self.peer_channel is not None else "info"
            text = self.engine.reason_of_close
            self.log.write(level, f"closed by its client with an error: {text:.{DESCRIPTION_LENGTH}}")
        self._finish(ending)

    def failed(self, name: str, description: str) -> None:
        if not self._ended:
            self.log.write("warning", f"connection failed: {name}: {description:.{DESCRIPTION_LENGTH}}")
        self._finish(EndpointEnding.LOST)

    def malformed(self, name: str, description: str) -> None:
        self.end(AmqpError(name, description), EndpointEnding.OURS if name == INTERNAL_ERROR else EndpointEnding.LOST)

    def session_opened(self, session: proton.Session) -> None:
        def told(_: AmqpError | None) -> None:
            self.session_opened(session)
            if session.state & proton.Endpoint.REMOTE_CLOSED:
                self.session_closed(session)

        if not self.is_open:  # Proton forgets what it is to say before our open
            if (wait := self.relay.open_wait(self)) is not None:
                wait.add(told)
            return
        self.sessions_open += 1
        session.open()
        limit = self.container.settings.max_sessions_per_connection
        if self.sessions_open > limit:
            session.condition = proton.Condition(RESOURCE_LIMIT, f"{limit} sessions are open: end some first")
            session.close()

    def session_closed(self, session: proton.Session) -> None:
        if not self.is_open:
            return
        self.sessions_open -= 1
        self.links.end_waits(session)
        endpoints = self.links.of_session(session)
        for endpoint in endpoints:
            endpoint.stop()
        at_once = any(endpoint.must_end_at_once for endpoint in endpoints)
        ending = self.relay.ending_of(session)
        self.container.begin(self._end_session(session, endpoints, ending), self.budget(), at_once=at_once)

    def _end_session(self, session: proton.Session, endpoints: list[LinkEndpoint], ending: EndpointEnding) -> Task:
        """The peer is answered when all of its links have ended."""
        for endpoint in used_up(endpoints):
            if self._ended:
                return
            if endpoint in self.links:
                self.engine.guard(partial(self.links.remove, endpoint, lost=ending.is_failure))
                endpoint.link.free()
                yield
        self.links.session_ended(session)
        self.window.session_ended(session._impl)
        session.close()
        session.free()
        self.touch()

    def link_attached(self, link: proton.Link) -> None:
        self._attach(link, self.container.clock() + self.container.settings.attach_timeout_s, is_new=True)

    def _attach(self, link: proton.Link, until_s: float, *, is_new: bool) -> None:
        """Answer the peer's attach; one that has to wait is refused when it has been `until_s`.

        `is_new`: it has not waited before.
        """
        try:
            if self._ended:
                return
            if link.name is None:  # one that is not UTF-8 ends the connection here, before anybody has to log it
                raise AmqpError(INVALID_FIELD, "a link needs a name")
            if is_new:
                self.links.end_older(link)
            self.links.check_room(link, is_new=is_new)
            self.links.add(self._connections.attach(self, link))
        except AttachWaits as waits:
            self._await_node(link, waits.wait, until_s)
        except ModelError as error:
            self._refuse_link(link, as_amqp(error))
        except AmqpError as error:
            self._refuse_link(link, error)

    def _await_node(self, link: proton.Link, wait: NodeWait, until_s: float) -> None:
        """Answer when `wait` has ended. The peer may have given credit meanwhile."""

        def told(error: AmqpError | None) -> None:
            self.links.end_wait_of(link)  # by its link: a function that refers to what refers to it is freed by nobody
            if error is None:
                self._attach(link, until_s, is_new=False)
                self.engine.tell_credit(link)
            else:
                self._refuse_link(link, error)
            self.touch()

        self.links.wait(WaitingAttach(link, wait, told, until_s))

    def link_detached(self, link: proton.Link, closed: bool) -> None:
        session = session_of(link) if has_unsent(link) else None

        def answered() -> None:
            if session is not None:
                self.window.note_never_sent(session)
            self.touch()

        self.links.detached(link, answered, closed=closed)

    def _refuse_link(self, link: proton.Link, error: AmqpError) -> None:
        self.links.refuse(link, error)
        self._check_refused()

    # --- the end

    def _finish(self, ending: EndpointEnding, reason: str = "") -> None:
        if self._ended:
            if not self._is_ending_links:
                self._links_have_ended()
            return
        self._ended = self._is_ending_links = True
        self._connections.closed(self, ending, reason)
        self.log.is_let_in = False
        self.transactions.closed(self.budget())
        self.relay.roll_back(self.budget())
        self.links.end_waits()
        for endpoint in self.links:
            endpoint.stop()
        if self.relay.reservation is not None:
            self.relay.reservation.left()
        if self.session is not None:
            # Who was not told that it has the session has given up waiting for it, and means to try again.
            ends = ending.is_farewell and self.session.is_granted and not self.session.request.is_kept
            self.container.sessions.left(self.session, ends=ends)
        at_once = any(endpoint.must_end_at_once for endpoint in self.links)
        self.container.begin(self._end_links(ending), self.budget(), at_once=at_once)

    def _end_links(self, ending: EndpointEnding) -> Task:
        for endpoint in used_up(list(self.links)):
            if endpoint in self.links:
                self.engine.guard(partial(self.links.remove, endpoint, lost=ending.is_failure))
                yield
        self._is_ending_links = False
        self._links_have_ended()

    def _links_have_ended(self) -> None:
        if self._is_lost:
            self.peer_channel = None  # which has this connection
            self.engine.close()
        elif self.peer_has_closed:
            self.engine.connection.close()
            self.touch()


def _login_refusal(came: PeerInput) -> AmqpError | None:
    """Why what the peer has logged in by does not count any more, if it does not."""
    if came.login is None or came.login.is_in_force:
        return None
    return AmqpError(UNAUTHORIZED_ACCESS, f"{came.user} has another password, or is no user any more")


def _has_proved(connection: Connection, is_proof: Callable[[str], bool], properties: Any) -> bool:
    """Whether who says to be a broker of the cluster is one: by its login, or where there is none by a proof."""
    expected = connection.container.settings.peer_user
    if expected:
        return subject_of(connection).user == expected  # SASL's ANONYMOUS is nobody, whatever it is called
    proof = properties.get(PROOF_PROPERTY)
    return isinstance(proof, str) and is_proof(proof)
