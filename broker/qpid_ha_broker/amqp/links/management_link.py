"""The node `$management`: requests come in on one link, replies go out on another, or to a queue."""

from __future__ import annotations

from collections import deque

import proton

from qpid_ha_broker.access.audit import AuditChannel, Caller
from qpid_ha_broker.access.rules import Permission, Subject
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links.incoming import ReceivingLink
from qpid_ha_broker.amqp.links.relayed_management import ManagedElsewhere
from qpid_ha_broker.amqp.nodes.access_checks import subject_of
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.management import LaterReply, Reply
from qpid_ha_broker.amqp.nodes.management_control import Control, read_control_request
from qpid_ha_broker.amqp.nodes.management_messages import (
    GIVEN_UP,
    MANAGEMENT,
    REQUEST_BYTES,
    UNAUTHORIZED,
    ManagementAnswer,
    Request,
    RequestRefusal,
    given_up_text,
    write_answer,
)
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import DECODE_ERROR, NOT_FOUND, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, Sender
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.logs.log import COMMITTED, Log
from qpid_ha_broker.model.transactions.transaction import Message

_REQUEST_CREDIT = 100


class ManagementLink(ReceivingLink):
    """The promise: the reply to a command goes out only when the log has committed what the command wrote.

    Credit for a request comes back when its reply has gone out, and requests wait while many bytes of replies do: who
    asks and takes no replies has no more than _REQUEST_CREDIT of them here.
    """

    request_bytes = REQUEST_BYTES
    is_paced = False

    def __init__(self, connection: Connection, link: proton.Link, relay: RelayRequest | None = None) -> None:
        """Raises ServedElsewhere where another broker asks about queues of a set that is not led here."""
        super().__init__(connection, link, _REQUEST_CREDIT)
        self.is_relayed = relay is not None
        self._requester = Requester(connection, relay)
        self._waiting: deque[Reply | LaterReply] = deque()
        self._delayed: deque[tuple[Delivery, bytes]] = deque()
        """Requests that came while too many bytes of replies wait."""
        self._elsewhere: dict[LaterReply, None] = {}
        """Those that wait for other brokers, each for itself."""
        self._is_closed = False
        self._led: HostedSet | None = None
        """Whose queues another broker asks about here."""
        self._others: ManagedElsewhere | None = None
        """What is asked about queues that other brokers lead; None: the client is told where they are."""
        relays = connection.relay.relays if relay is None else connection.relay.onward
        if relay is not None and relay.set_name:
            self._led = connection.container.led_set(relay.set_name)
            self._led.links[self] = None
        elif relays is not None:
            asked_for = relay or _own_request(connection)
            self._others = ManagedElsewhere(connection, link, asked_for, relays, self._requester.check_waits)

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """Carry out one request."""
        whole = self.whole(payload)
        if whole is None:
            return
        if self._delayed or not (self.is_relayed or self.connection.window.takes_requests(self)):
            self._delayed.append((delivery, whole))
        else:
            self._begin(delivery, whole)

    def _begin(self, delivery: Delivery, whole: bytes) -> None:
        control = self.connection.container.management.control
        if control is not None and (request := read_control_request(whole)) is not None:
            engine.accept_all([delivery])
            self._carry_out(control, request)
            return
        self.connection.container.flush_accepted()
        requester, others = self._requester, None if self._others is None else self._others.ask
        management = self.connection.container.management
        reply = management.handle(whole, requester.subject, others, requester.caller, requester.check_waits)
        self._wake()
        if reply is None:
            self.answered()
            engine.reject(delivery, DECODE_ERROR, "a request needs a reply-to and has to be a message")
            return
        engine.accept_all([delivery])
        if isinstance(reply, LaterReply) and reply.is_elsewhere:
            self._elsewhere[reply] = None
        elif isinstance(reply, LaterReply) or reply.reply_to is not None:
            self._waiting.append(reply)
            self._send_committed()  # so that what waits for credit is counted before the next request is looked at
        else:
            self.answered()

    def _wake(self) -> None:
        """It is asked to `confirm` at the end of the turn."""
        self.hosted.unconfirmed[self] = None
        self.hosted.touch()
        self.connection.touch()

    def update_window(self) -> None:
        """Replies have gone: go on with the requests that wait."""
        self._wake()

    def _carry_out(self, control: Control, request: Request) -> None:
        """A control method may take its time: its answer waits for nobody, and nobody for it.

        The sender gets its credit back with the answer, so that what is under way has a bound.
        """

        def done(answer: ManagementAnswer) -> None:
            if answer.status == UNAUTHORIZED:
                self.connection.log.note("warning", f"may not administer this broker: {answer.description}")
            if self._is_closed:
                return
            payload = b"" if request.reply_to is None else write_answer(request, answer)
            self._send(Reply(request.reply_to, payload, COMMITTED))

        def gone() -> bool:
            return request.reply_to is not None and (self._is_closed or self._requester.has_gone(request.reply_to))

        control(self._requester.identity, request.body, done, gone)

    @property
    def needs_primary(self) -> bool:
        """Whether a command was carried out and is not committed yet, or it is for who leads a set."""
        return bool(self._waiting) or self._led is not None

    def waits_for(self, log: Log) -> bool:
        replies = [reply for reply in self._waiting if isinstance(reply, Reply)]
        return super().waits_for(log) or any(reply.written.waits_for(log) for reply in replies)

    def confirm(self) -> bool:
        """Send the replies whose commands are committed, and go on with what waited for those; whether some wait."""
        self._send_committed()
        while self._delayed and self.connection.window.takes_requests(self):
            self._begin(*self._delayed.popleft())
            self._send_committed()
        return super().confirm() or bool(self._waiting or self._elsewhere)

    def _send_committed(self) -> None:
        while self._waiting and (reply := self._next_reply()) is not None and reply.written.is_committed:
            self._waiting.popleft()
            self._send(reply)
        for later in list(self._elsewhere):
            reply = later.ready()
            if reply is not None:
                del self._elsewhere[later]
                self._send(reply)

    def _next_reply(self) -> Reply | None:
        """The first of those that wait; None while its command goes on."""
        first = self._waiting[0]
        reply = first.ready()
        if reply is not None and reply is not first:
            self._waiting[0] = reply
        return reply

    def _send(self, reply: Reply) -> None:
        """To whom it is for; the credit of its request is due when it has gone."""
        if reply.reply_to is None:
            self.answered()
            return
        link = self._requester.reply_link(reply.reply_to)
        if link is not None:
            link.send(reply.payload, self)
            return
        self.answered()
        container, address = self.connection.container, reply.reply_to
        try:
            container.access.check(self._requester.subject, Permission.PUBLISH, address)
            default = container.default
            queue = default.configuration.queue(address)
            default.resources.publish(queue, Message(reply.payload), default.now_ms)
        except (ModelError, AmqpError) as error:
            self.connection.log.note("warning", f"a management reply could not be delivered: {NOT_FOUND}: {error}")

    def closed(self, *, lost: bool) -> None:
        """Nobody waits for the replies any more."""
        super().closed(lost=lost)
        self._is_closed = True
        self._delayed.clear()
        self.connection.window.forget(self)
        if self._led is not None:
            self._led.forget(self)
        if self._others is not None:
            self._others.close()
        for reply in (*self._waiting, *self._elsewhere):
            if isinstance(reply, LaterReply):
                reply.abandon()
        self._waiting.clear()
        self._elsewhere.clear()


def _own_request(connection: Connection) -> RelayRequest:
    """For whom another broker is asked: the client of this connection."""
    container = connection.engine.connection.remote_container or ""
    name, user = connection.container.settings.name, connection.identity.user
    return RelayRequest((name,), "", container, user, address=connection.peer)


class Requester:
    """Who asks on a link to `$management`: the peer, or where that is another broker, its client.

    He has gone when the peer has hung up, or has ended the link to which the reply is to go: nobody can hear it any
    more. Of a broker's client that is known only by this: while his broker is there, it speaks for him. A reply to a
    queue is read by somebody sometime, so where the peer has said its goodbye, and is still there, it is written.
    """

    def __init__(self, connection: Connection, relay: RelayRequest | None) -> None:
        self._connection = connection
        self.relay = relay

    @property
    def subject(self) -> Subject:
        """For access control."""
        return subject_of(self._connection, self.relay)

    @property
    def identity(self) -> PeerIdentity:
        """For control methods: what the proxy may do, its clients may not."""
        identity = self._connection.identity
        return identity if self.relay is None else PeerIdentity(identity.address, self.relay.user, is_admin=False)

    @property
    def caller(self) -> Caller:
        """For the audit log: with the brokers by which another one's client comes."""
        identity, relay = self._connection.identity, self.relay
        if relay is None:
            return Caller(AuditChannel.MANAGEMENT, identity.user, identity.address)
        return Caller(AuditChannel.MANAGEMENT, relay.user, relay.address or identity.address, via=relay.path)

    def reply_link(self, address: str) -> ReplyLink | None:
        """Where replies to `address` go; None: to a queue, if there is one."""
        client = "" if self.relay is None else self.relay.client
        for handler in self._connection.links:
            if isinstance(handler, ReplyLink) and handler.client == client and address in handler.addresses:
                return handler
        return None

    def has_gone(self, address: str) -> bool:
        """Whether nobody waits any more for a reply to `address`."""
        if self._connection.engine.input.has_hung_up():
            return True
        link = self.reply_link(address)
        return link is not None and engine.has_peer_ended(link.link)

    def check_waits(self, request: Request) -> None:
        """Raises RequestRefusal where nobody waits for the reply any more. Who wants none may go at once."""
        if request.reply_to is None or not self.has_gone(request.reply_to):
            return
        self._connection.log.note("warning", given_up_text(request, self.caller.text))
        raise RequestRefusal(GIVEN_UP, "whoever asked for it has gone: nothing was done")


class ReplyLink(LinkEndpoint, EachDisposition):
    """A receiver on `$management`: gets the replies that are addressed to it, as far as its credit goes.

    `own_address`: one that was made for it, where no queue can be: on a broker that changes nothing.
    """

    def __init__(
        self, connection: Connection, link: proton.Link, own_address: str = "", *, relay: RelayRequest | None = None
    ) -> None:
        self.connection = connection
        self.link = link
        self.is_relayed = relay is not None
        self.client = "" if relay is None else relay.client
        """Of another broker, whose replies no other one's are mistaken for; empty: the connection is the client's."""
        name = link.name if relay is None else relay.link
        names = (own_address,) if own_address else (link.remote_target.address, name, MANAGEMENT)
        self.addresses = {name for name in names if name}
        self._sender = Sender(link)
        self._waiting: deque[tuple[bytes, ManagementLink]] = deque()
        """With who was asked, and is to have credit for the next request."""

    def send(self, payload: bytes, asked: ManagementLink) -> None:
        """Send a reply, or keep it until there is credit."""
        self._waiting.append((payload, asked))
        self.connection.window.count_replies(len(payload))
        self.flow()

    def flow(self) -> None:
        """The peer changed its credit."""
        while self._waiting and self._sender.credit > 0:
            payload, asked = self._waiting.popleft()
            self._sender.send_settled(payload)
            self._gone(payload, asked)
        if self._sender.draining and not self._waiting and not self._sender.drained():
            self.connection.window.congested[self] = None
        self.connection.touch()

    def _gone(self, payload: bytes, asked: ManagementLink) -> None:
        """A reply does not wait any more."""
        if asked in asked.connection.links:
            asked.answered()
        self.connection.window.count_replies(-len(payload))

    def update_window(self) -> None:
        """The peer reads again: see `SendWindow`."""
        self.flow()

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """Replies are sent settled: there is nothing to say of them."""

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)

    def closed(self, *, lost: bool) -> None:
        """Nobody waits for the replies any more."""
        waiting, self._waiting = self._waiting, deque()
        for payload, asked in waiting:
            self._gone(payload, asked)
