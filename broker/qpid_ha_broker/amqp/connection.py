"""One client's connection: open, sessions, links, and their end (AMQP 1.0 part 2), without a socket.

What kinds of links there are it does not know: whoever makes them is an argument, and so the links may know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import proton

from qpid_ha_broker.amqp.conditions import (
    CONNECTION_FORCED,
    ESTABLISHMENT_FAILED,
    RESOURCE_LIMIT,
    SOLE_CONNECTION,
    AmqpError,
    as_amqp,
    symbol_map,
)
from qpid_ha_broker.amqp.container import Container, LogNotice
from qpid_ha_broker.amqp.engine import Engine, is_in
from qpid_ha_broker.amqp.identity import PeerIdentity
from qpid_ha_broker.amqp.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.peer_frames import ADMIN_PROPERTY, Channel
from qpid_ha_broker.amqp.transactions import Transactions
from qpid_ha_broker.amqp.values import listed
from qpid_ha_broker.model.budget import UNLIMITED, Budget
from qpid_ha_broker.model.errors import ModelError, NotPrimary
from qpid_ha_broker.model.work import Task, used_up

LAST_WORDS_S = 0.004
"""For what a client has sent that is gone, or silent for too long; and for the first of many links that end."""
NOTES_LIMIT = 100
"""Lines that one connection may cause in the log."""
DESCRIPTION_LENGTH = 200
"""Characters of an error text that is made of what the peer sent."""


class Connections:
    """The connections of a container: those that are open, and those that have something to write.

    `attach`: makes our end of a link. Raises AmqpError or ModelError for one that is refused.
    """

    def __init__(self, container: Container, attach: Callable[[Connection, proton.Link], LinkEndpoint]) -> None:
        self.container = container
        self.attach = attach
        self.open: dict[Connection, None] = {}
        """A dictionary, as all that is gone through: a run can be repeated."""
        self._touched: dict[Connection, None] = {}

    def touch(self, connection: Connection) -> None:
        """`connection` has something to write, or to do, at the end of the turn."""
        self._touched[connection] = None

    def take_touched(self) -> Iterable[Connection]:
        """The connections to be written, once each."""
        touched, self._touched = self._touched, {}
        return touched

    def end_clients(self, error: AmqpError) -> None:
        """End the ordinary connections; of those marked for administration, the links that do more than browse."""
        for connection in list(self.open):
            if connection.is_admin:
                connection.end_writers(error)
            else:
                connection.send_away(error)


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
        self.transactions = Transactions(container.resources, *limits)
        self.writable = True
        """The socket takes more; the driver says."""
        self.partial_bytes = 0
        self.congested: dict[LinkEndpoint, None] = {}
        """Consumers that wait for room in the peer's window or in the socket."""
        self.unsettled = 0
        """Deliveries that the client has not answered; what a turn changes counts at its end."""
        self.waiting_for_answers: dict[LinkEndpoint, None] = {}
        """Consumers that get nothing before the client has answered some of what it has."""
        self.is_behind = False
        """Not all of what came has been worked on: `receive` was cut short."""
        self.is_open = False
        self.is_admin = False
        """Marked for administration: let in everywhere, also where clients are not served."""
        self.peer_channel: Channel | None = None
        """What another broker says on this connection; there is one channel in a connection's life."""
        self.peer_has_closed = False
        self.is_hung_up = False
        """Our side of the stream is to end after what is already due, without a close; nothing is read any more."""
        self._reads_refusals = False
        """The client knows an open of which no connection comes (`ESTABLISHMENT_FAILED`)."""
        self._deadline_ms = 0
        self._admit = admit
        self._links: dict[Any, LinkEndpoint] = {}
        self._sessions = 0
        self._ended = False
        self._is_lost = False
        self._is_ending_links = False
        self._refused: dict[Any, proton.Link] = {}
        """Links that we have closed and the peer has not."""
        self._noted = 0

    # --- the driver's calls

    def receive(self, data: bytes | memoryview, budget: Budget = UNLIMITED) -> None:
        """Bytes came; `container.now_ms` is the time. Call again, also without any, while `is_behind`."""
        if self.is_hung_up:
            self.is_behind = False
            return
        self.engine.push(data)
        self.is_behind = not self.engine.process(self, budget)
        self._connections.touch(self)

    def take_output(self) -> bytes:
        """What is to be written; consumers that waited for room go on."""
        output = self.engine.take_output()
        if self.congested:
            self._relieve()
        return output

    def resume_writing(self) -> None:
        """The socket takes more again."""
        self.writable = True
        self._relieve()
        self.touch()

    def pause_writing(self) -> None:
        """The socket is full."""
        self.writable = False
        for handler in self._links.values():
            handler.update_window()

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
            self._finish(lost=True)

    def budget(self) -> Budget:
        """For what is to be done at once and may be much."""
        return Budget(self.container.clock, LAST_WORDS_S)

    def _relieve(self) -> None:
        congested, self.congested = self.congested, {}
        for link in congested:
            link.update_window()

    @property
    def has_enough_unsettled(self) -> bool:
        """Whether the client has to answer some of its messages before it gets more."""
        return self.unsettled >= self.container.settings.max_unsettled_per_connection

    def count_unsettled(self, change: int) -> None:
        """A consumer has so many unanswered deliveries more, or less."""
        self.unsettled += change
        if change < 0 and self.waiting_for_answers and not self.has_enough_unsettled:
            waiting, self.waiting_for_answers = self.waiting_for_answers, {}
            for link in waiting:
                link.update_window()

    @property
    def identity(self) -> PeerIdentity:
        """Who the peer is."""
        transport = self.engine.transport
        return PeerIdentity(self.peer, transport.user or "", bool(transport.authenticated), self.is_admin)

    @property
    def link_count(self) -> int:
        """Links attached, at least 1: the one that asks may be about to be."""
        return len(self._links) or 1

    @property
    def has_ended(self) -> bool:
        """There is nothing more to be done for this client than to say goodbye."""
        return self._ended

    # --- for links

    def touch(self) -> None:
        """There is something to write at the end of the turn."""
        self._connections.touch(self)

    def note(self, level: str, text: str) -> None:
        """For the operator's log, which no client can fill."""
        self._noted += 1
        if self._noted <= NOTES_LIMIT:
            self._log(level, text)
        elif self._noted == NOTES_LIMIT + 1:
            self._log("warning", "there is more like this; it is not logged for this connection")

    def _log(self, level: str, text: str) -> None:
        source = "connection" if self in self._connections.open else "handshake"
        self.container.notices.append(LogNotice(level, source, f"{self.peer} {text}"))

    def end_link(self, handler: LinkEndpoint, error: AmqpError) -> None:
        """Detach a link with an error, if it has not ended yet; the connection and its other links go on."""
        if handler.link._impl not in self._links:
            return
        self._drop(handler, lost=False)
        self._delete_owned_queue(handler, closed=False)
        self._detach_with(handler.link, error, "ended")

    def end(self, error: AmqpError) -> None:
        """Close the connection with a condition; what the client held is given back."""
        if self._ended:
            return
        usual = error.name == CONNECTION_FORCED
        level = "debug" if self.peer_channel is not None else "info"  # of brokers, the cluster's own log tells
        self._log(level if usual else "warning", f"closed: {error}")
        if not self.is_open:
            self._open(failed=True)
        connection = self.engine.connection
        connection.condition = error.as_condition()
        connection.close()
        self._finish(lost=False)
        self.touch()

    def send_away(self, error: AmqpError) -> None:
        """End the connection so that the client tries its next address by itself; what it held is given back.

        A close would be an order to Proton's Python client to wait: after `amqp:connection:forced` it neither answers
        nor reads, and notices nothing before its next heartbeat; after any other condition it gives up for good. An
        open from us makes it begin again with its first address. But every client survives the end of the stream, as in
        a crash. So the reason is told to those only who are known to go on after it.
        """
        if self.is_admin or self.peer_channel is not None or self._reads_refusals:
            self.end(error)
        elif not self._ended:
            self._log("info", f"sent away: {error.description}")
            self.is_hung_up = True
            self._finish(lost=False)
            self.touch()

    def end_writers(self, error: AmqpError) -> None:
        """End the links that a broker which may only be browsed does not have."""
        for handler in self.links():
            if handler.is_writer:
                self.end_link(handler, error)

    def links(self) -> list[LinkEndpoint]:
        """All that are attached."""
        return list(self._links.values())

    # --- what the peer did: see engine.Handler

    def opened(self) -> None:
        refusal = self._read_open() or self._admit(self)
        if refusal is None:
            self._open(failed=False)
            self._connections.open[self] = None
        elif refusal.name == CONNECTION_FORCED:  # not before this moment: the peer's open says how
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
        self._reads_refusals = SOLE_CONNECTION in desired
        return None if self.is_admin else self.container.client_refusal

    def _open(self, *, failed: bool) -> None:
        """Answer the peer's open; `failed`: a close with the reason follows."""
        settings, connection = self.container.settings, self.engine.connection
        connection.container = settings.name
        connection.offered_capabilities = [proton.symbol(name) for name in self.container.capabilities]
        properties: dict[str, Any] = {"product": "qpid-ha", "version": settings.version}
        if failed:
            properties[ESTABLISHMENT_FAILED] = True
        else:
            properties["failover-server-list"] = [symbol_map(server) for server in self.container.failover_servers]
        connection.properties = {proton.symbol(name): value for name, value in properties.items()}
        connection.open()
        self.is_open = True

    def closed(self) -> None:
        self.peer_has_closed = True
        self._finish(lost=False)

    def failed(self, name: str, description: str) -> None:
        if not self._ended:
            self._log("warning", f"connection failed: {name}: {description:.{DESCRIPTION_LENGTH}}")
        self._finish(lost=True)

    def malformed(self, name: str, description: str) -> None:
        self.end(AmqpError(name, description))

    def session_opened(self, session: proton.Session) -> None:
        self._sessions += 1
        session.open()
        limit = self.container.settings.max_sessions_per_connection
        if self._sessions > limit:
            session.condition = proton.Condition(RESOURCE_LIMIT, f"{limit} sessions are open: end some first")
            session.close()

    def session_closed(self, session: proton.Session) -> None:
        self._sessions -= 1
        handlers = [handler for handler in self._links.values() if is_in(handler.link, session)]
        _stop(handlers)
        self.container.resources.begin(self._end_session(session, handlers), self.budget())

    def _end_session(self, session: proton.Session, handlers: list[LinkEndpoint]) -> Task:
        """The peer is answered when all of its links have ended."""
        for handler in used_up(handlers):
            if self._ended:
                return
            if handler.link._impl in self._links:
                self._drop(handler, lost=False)
                handler.link.free()
                yield
        self._refused = {key: link for key, link in self._refused.items() if not is_in(link, session)}
        session.close()
        session.free()
        self.touch()

    def link_attached(self, link: proton.Link) -> None:
        try:
            if self._ended:
                return
            link.name  # noqa: B018 - one that is not UTF-8 ends the connection here, before anybody has to log it
            limit = self.container.settings.max_links_per_connection
            if len(self._links) >= limit:
                raise AmqpError(RESOURCE_LIMIT, f"{limit} links are attached to this connection: detach some first")
            handler = self._connections.attach(self, link)
        except ModelError as error:
            self._refuse_link(link, as_amqp(error))
        except AmqpError as error:
            self._refuse_link(link, error)
        else:
            self._links[link._impl] = handler

    def link_detached(self, link: proton.Link, closed: bool) -> None:
        handler = self._links.get(link._impl)
        if handler is not None:
            self._drop(handler, lost=False)
            self._delete_owned_queue(handler, closed=closed)
        self._refused.pop(link._impl, None)
        if closed:
            link.close()
        else:
            link.detach()
        link.free()

    # --- the end

    def _refuse_link(self, link: proton.Link, error: AmqpError) -> None:
        link.source.type = proton.Terminus.UNSPECIFIED
        link.target.type = proton.Terminus.UNSPECIFIED
        link.open()
        self._detach_with(link, error, "refused")

    def _detach_with(self, link: proton.Link, error: AmqpError, what: str) -> None:
        self.note("warning", f"link {link.name} {what}: {error}")
        link.condition = error.as_condition()
        link.close()
        self.touch()
        self._refused[link._impl] = link
        limit = self.container.settings.max_links_per_connection
        if len(self._refused) > limit:
            self.end(AmqpError(RESOURCE_LIMIT, f"{limit} links were refused, and none of them has been detached"))

    def _drop(self, handler: LinkEndpoint, *, lost: bool) -> None:
        self._links.pop(handler.link._impl, None)
        self.engine.detach(handler.link)
        handler.closed(lost=lost)

    def _delete_owned_queue(self, handler: LinkEndpoint, *, closed: bool) -> None:
        """Delete a queue that was made for a link: a temporary one always, a durable subscription if it was closed."""
        queue = handler.owned_queue
        if queue is None or (handler.keep_on_detach and not closed):
            return
        if not self.container.is_there(queue):
            return  # it was deleted by hand, or by its auto-delete; another one may have its name by now
        try:
            self.container.configuration.delete_queue(queue.name)
        except NotPrimary:
            return  # it has become the new primary's to delete

    def _finish(self, *, lost: bool) -> None:
        if self._ended:
            if not self._is_ending_links:
                self._links_have_ended()
            return
        self._ended = self._is_ending_links = True
        self._connections.open.pop(self, None)
        self.transactions.closed(self.budget())
        _stop(self._links.values())
        self.container.resources.begin(self._end_links(lost=lost), self.budget())

    def _end_links(self, *, lost: bool) -> Task:
        for handler in used_up(self.links()):
            if handler.link._impl in self._links:
                self._drop(handler, lost=lost)
                self._delete_owned_queue(handler, closed=False)
                yield
        self._is_ending_links = False
        self._links_have_ended()

    def _links_have_ended(self) -> None:
        if self._is_lost:
            self.engine.close()
        elif self.peer_has_closed:
            self.engine.connection.close()
            self.touch()


def _stop(handlers: Iterable[LinkEndpoint]) -> None:
    """They have ended; what they hold comes back as soon as there is time for it."""
    for handler in handlers:
        handler.stop()
