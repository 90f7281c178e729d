"""Runs the core on a Proton container: carries out what it wants, and tells it what happens on its connection."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proton import (
    Condition,
    Data,
    Delivery,
    Endpoint,
    Handler,
    Link,
    Message,
    Terminus,
    symbol,
    ulong,
)
from proton.reactor import AtMostOnce

from qpid_ha_client.core import events as ev
from qpid_ha_client.core.addresses import BrokerAddress
from qpid_ha_client.core.client_core import ClientCore

PRODUCER, SEQUENCE = symbol("x-opt-qpid-producer"), symbol("x-opt-qpid-sequence")
MESSAGE_ID: Final = "qpid.message-id"
HOSTS_PROPERTY: Final = "qpid.known.hosts"
NOTICES_ADDRESS: Final = "amq.qpid/cluster"
NOTICES_LINK: Final = "qpid.known.hosts"
NOTICES_CREDIT: Final = 10
READS_REFUSALS: Final = ("sole-connection-for-container", "qpid.reads-refusals")
"""With these brokers say why they do not serve, and who does. The second says that there may be other connections with
our container id; a broker that does not know it does not look."""
PROOFS: Final = ("EXTERNAL", "GSSAPI", "SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1")
"""SASL mechanisms that tell who we are, and do not tell the password."""
HOW_TO_SAY_PLAIN: Final = (
    "the password is said in clear (PLAIN) over TLS and on loopback alone: use amqps://, have the broker offer SCRAM, "
    "or set allow_insecure_plain of ConnectOptions in a network where nobody else listens"
)
_NO_MECHANISM: Final = "[mech=none]"
"""In Proton's words: the broker offers no mechanism that we may use."""
_HEADER, _DELIVERY_ANNOTATIONS = 0x70, 0x71
_STATES: Final = {
    ev.ConsumerVerdict.ACCEPT: Delivery.ACCEPTED,
    ev.ConsumerVerdict.REJECT: Delivery.REJECTED,
    ev.ConsumerVerdict.RELEASE: Delivery.RELEASED,
}
_OUTCOMES: Final = {
    Delivery.ACCEPTED: ev.PublishOutcome.ACCEPTED,
    Delivery.REJECTED: ev.PublishOutcome.REJECTED,
    Delivery.RELEASED: ev.PublishOutcome.RELEASED,
    Delivery.MODIFIED: ev.PublishOutcome.RELEASED,
}


@dataclass(frozen=True)
class ConnectOptions:
    """How to connect, to whichever broker."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    allow_insecure_plain: bool = False
    """Say the password in clear, without TLS, to the brokers that were given: everybody on the way can read it. On
    loopback it may be said in any case. Brokers that others have named get it over TLS alone."""
    container_id: str | None = None
    """None: the session's id."""
    heartbeat_s: float = 5.0
    """A broker that says nothing for twice as long is given up."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Other arguments of Proton's `Container.connect`, such as `ssl_domain`."""


def login_arguments(options: ConnectOptions, broker: BrokerAddress, may_read_password: bool) -> dict[str, Any]:
    """Of Proton's `Container.connect`: who we are to `broker`, and by which mechanisms we may tell.

    Where it may not read the password, or others could on the way, PLAIN is left out; a broker that offers nothing else
    does not get to know it. Proton's own default is to say it to anybody.
    """
    user = options.user if options.user is not None else options.more.get("user")
    if user is None:
        return {"allow_insecure_mechs": False}
    password = options.password if options.user is not None else options.more.get("password")
    login = {"user": user, "password": password}
    in_clear = options.allow_insecure_plain or bool(options.more.get("allow_insecure_mechs", False))
    if may_read_password:
        return {**login, "allow_insecure_mechs": broker.is_tls or broker.is_loopback or in_clear}
    wanted = str(options.more.get("allowed_mechs") or " ".join(PROOFS)).split()
    proofs = " ".join(mechanism for mechanism in wanted if mechanism in PROOFS)
    return {**login, "allow_insecure_mechs": False, "allowed_mechs": proofs or PROOFS[0]}


class OutgoingMessage:
    """A message as it was when it was published: the application may change its own."""

    def __init__(self, message: Message) -> None:
        self._plain: bytes = message.encode()
        self._has_annotations = bool(message.annotations)

    def encoded(self, producer: str | None, number: int) -> bytes:
        """With these producer annotations; None: without any."""
        if producer is None:
            return self._plain
        if self._has_annotations:
            message: Any = Message()
            message.decode(self._plain)
            message.annotations = {**message.annotations, PRODUCER: producer, SEQUENCE: ulong(number)}
            return bytes(message.encode())
        start = _end_of_annotations_before(self._plain)
        return self._plain[:start] + _producer_section(producer, number) + self._plain[start:]


def _producer_section(producer: str, number: int) -> bytes:
    data: Any = Data()
    data.put_map()
    data.enter()
    data.put_symbol(PRODUCER)
    data.put_string(producer)
    data.put_symbol(SEQUENCE)
    data.put_ulong(number)
    data.exit()
    return b"\x00\x53\x72" + bytes(data.encode())


def _end_of_annotations_before(encoded: bytes) -> int:
    """Where message annotations stand: behind the header and the delivery annotations, as far as there are any."""
    at = 0
    while encoded[at : at + 2] == b"\x00\x53" and encoded[at + 2] in (_HEADER, _DELIVERY_ANNOTATIONS):
        kind = encoded[at + 3]
        if kind == 0x45:  # an empty list
            at += 4
        elif kind in (0xC0, 0xC1):
            at += 5 + encoded[at + 4]
        else:
            at += 8 + int.from_bytes(encoded[at + 4 : at + 8], "big")
    return at


class TolerantIO(Handler):
    """Proton's own handler of sockets, without two of its faults (0.40).

    A socket that is closed in the round in which its time-out is due makes it look into a transport that is gone; and a
    host without an address raises out of the container, when it is one of several that are tried.
    """

    def __init__(self, protons_own: Any) -> None:
        self._protons_own = protons_own

    def on_unhandled(self, method: str, *arguments: Any) -> None:
        """Called by Proton with every event."""
        (event,) = arguments
        if method == "on_selectable_expired" and event.selectable._transport is None:
            return
        try:
            event.dispatch(self._protons_own)
        except OSError as error:
            if method != "on_connection_bound":
                raise
            _give_up(event.transport, str(error.strerror or error))


def _give_up(transport: Any, reason: str) -> None:
    transport.condition = Condition("proton.pythonio", reason)
    transport.close_tail()
    transport.close_head()


class ProtonDriver:
    """A core, its connection, and the one place where an effect becomes a call of Proton."""

    def __init__(
        self, container: Any, core: ClientCore, options: ConnectOptions, tell: Callable[[ev.Effect], None]
    ) -> None:
        """`tell`: gets the effects for the application, in the container's thread."""
        self.core = core
        self._container = container
        self._options = options
        self._tell = tell
        self.link_options: dict[str, Sequence[Any]] = {}
        """Proton's link options, by the link's name."""
        self._connection: DriverConnection | None = None
        self.handles = 0
        """So many messages have come, on all connections."""
        self._inputs: deque[ev.Input] = deque()
        self._is_feeding = False
        self._timer: Any = None
        container.global_handler = TolerantIO(container.global_handler)

    def feed(self, event: ev.Input) -> None:
        """Something happened. What comes of it is carried out in order, also if that leads to more."""
        self._inputs.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._inputs:
                for effect in self.core.handle(self._inputs.popleft(), time.monotonic()):
                    self._carry_out(effect)
        finally:
            self._is_feeding = False
        self._set_timer()

    def _set_timer(self) -> None:
        deadline_s = self.core.deadline_s
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_s is not None:
            self._timer = self._container.schedule(max(0.0, deadline_s - time.monotonic()), self)

    def on_timer_task(self, _: Any) -> None:
        """The core's deadline is here."""
        self._timer = None
        self.feed(ev.DeadlineReached())

    # --- effects

    def _carry_out(self, effect: ev.Effect) -> None:
        connection = self._connection
        match effect:
            case ev.OpenConnection():
                self._open(effect)
            case ev.CutConnection(attempt):
                if connection is not None and connection.attempt == attempt:
                    connection.cut()
                    self._connection = None
            case ev.CloseConnection() | ev.AttachSender() | ev.AttachReceiver() | ev.ListenForHosts() | ev.DetachLink():
                if connection is not None:
                    connection.change(effect)
            case ev.SendMessage() | ev.GiveCredit() | ev.AnswerDelivery() | ev.SettleDelivery():
                if connection is not None:
                    connection.transfer(effect)
            case _:
                self._tell(effect)

    def _open(self, effect: ev.OpenConnection) -> None:
        if self._connection is not None:
            self._connection.cut()
        given = dict(effect.properties)
        if "qpid.session" in given:
            given["qpid.session"] = uuid.UUID(str(given["qpid.session"]))
        more = {**self._options.more, **login_arguments(self._options, effect.broker, effect.may_read_password)}
        self._connection = DriverConnection(self, effect.attempt)
        self._connection.connection = self._container.connect(
            url=str(effect.broker),
            handler=self._connection,
            reconnect=False,
            heartbeat=self._options.heartbeat_s,
            container_id=self._options.container_id or self.core.session.id,
            desired_capabilities=[symbol(name) for name in READS_REFUSALS],
            properties={symbol(name): value for name, value in given.items()},
            **more,
        )

    @property
    def container(self) -> Any:
        """Proton's."""
        return self._container


class DriverConnection(Handler):
    """Proton's events of one connection, as inputs, and the calls on its links."""

    def __init__(self, driver: ProtonDriver, attempt: int) -> None:
        self.attempt = attempt
        self.connection: Any = None
        self._driver = driver
        self._links: dict[str, Any] = {}
        self._deliveries: dict[int, Any] = {}
        """Of messages that came, by handle."""
        self._is_over = False

    def _feed(self, event: ev.Input) -> None:
        if not self._is_over:
            self._driver.feed(event)

    # --- what the core wants

    def change(self, effect: ev.Effect) -> None:
        """Of links, or of the connection."""
        match effect:
            case ev.CloseConnection():
                self.connection.close()
            case ev.AttachSender(name, address):
                options = list(self._driver.link_options.get(name, ()))
                self._links[name] = self._driver.container.create_sender(
                    self.connection, address, name=name, options=options
                )
            case ev.AttachReceiver(name, address):
                link = self._attach_receiver(name, address, self._driver.link_options.get(name, ()))
                self._links[name] = link
            case ev.ListenForHosts():
                self._attach_receiver(NOTICES_LINK, NOTICES_ADDRESS, [AtMostOnce()]).flow(NOTICES_CREDIT)
            case ev.DetachLink(name):
                link = self._links.pop(name, None)
                if link is not None:
                    link.close()

    def _attach_receiver(self, name: str, address: str, options: Sequence[Any]) -> Any:
        container, wanted = self._driver.container, [*options, _SettlesSecond()]
        return container.create_receiver(self.connection, address, name=name, options=wanted)

    def transfer(self, effect: ev.Effect) -> None:
        """Of messages."""
        match effect:
            case ev.SendMessage(name, ticket, producer, number, message) if isinstance(message, OutgoingMessage):
                link = self._links[name]
                link.delivery(str(ticket))
                link.stream(message.encoded(producer, number))
                link.advance()
            case ev.GiveCredit(name, credit):
                self._links[name].flow(credit)
            case ev.AnswerDelivery(_, handle, verdict):
                self._deliveries[handle].update(_STATES[verdict])
            case ev.SettleDelivery(_, handle):
                self._deliveries.pop(handle).settle()

    def cut(self) -> None:
        """End the socket as a crash would."""
        self._is_over = True
        transport = self.connection.transport
        if transport is None:
            return
        connecting = getattr(transport, "_connect_selectable", None)
        if connecting is not None:  # nobody has answered; Proton would wait for as long as the system does
            connecting.terminate()
            connecting.update()
        transport.close_tail()
        transport.close_head()

    # --- what Proton tells

    def on_connection_remote_open(self, event: Any) -> None:
        """The broker's open."""
        connection = event.connection
        facts = ev.OpenFacts(
            str(connection.remote_container or ""),
            frozenset(str(capability) for capability in _listed(connection.remote_offered_capabilities)),
            _plain(connection.remote_properties),
        )
        self._feed(ev.BrokerOpened(self.attempt, facts))

    def on_connection_remote_close(self, event: Any) -> None:
        """The broker's close."""
        reason = _reason(event.connection.remote_condition)
        event.connection.close()
        self._feed(ev.BrokerClosed(self.attempt, reason))

    def on_transport_closed(self, event: Any) -> None:
        """The socket is gone."""
        reason = _reason(event.transport.condition)
        is_login = reason.name == "amqp:unauthorized-access" and bool(event.connection.state & Endpoint.REMOTE_UNINIT)
        if is_login and _NO_MECHANISM in reason.description:
            reason = reason._replace(description=f"{reason.description}; {HOW_TO_SAY_PLAIN}")
        self._feed(ev.ConnectionLost(self.attempt, reason, is_login))

    def on_link_remote_open(self, event: Any) -> None:
        """The broker's attach. Without a terminus it refuses, and a detach with the reason follows."""
        link = event.link
        terminus = link.remote_source if link.is_receiver else link.remote_target
        if link.name in self._links and terminus.type != Terminus.UNSPECIFIED:
            self._feed(ev.LinkAttached(self.attempt, link.name, _plain(link.remote_properties)))

    def on_link_remote_close(self, event: Any) -> None:
        """The broker's detach."""
        link = event.link
        link.close()
        if self._links.get(link.name) == link:
            del self._links[link.name]
            self._feed(ev.LinkEnded(self.attempt, link.name, _reason(link.remote_condition)))

    on_link_remote_detach = on_link_remote_close

    def on_link_flow(self, event: Any) -> None:
        """Credit."""
        if event.link.is_sender and event.link.name in self._links:
            self._feed(ev.CreditGiven(self.attempt, event.link.name, event.link.credit))

    def on_delivery(self, event: Any) -> None:
        """A message, an outcome, or a settlement."""
        delivery, link = event.delivery, event.link
        if link.is_sender:
            self._outcome(link, delivery)
        elif delivery.readable and not delivery.partial:
            message = Message()
            message.decode(link.recv(delivery.pending))
            link.advance()
            if link.name == NOTICES_LINK:
                delivery.settle()
                link.flow(1)
                hosts = _plain(message.properties).get(HOSTS_PROPERTY)
                self._feed(ev.HostsTold(self.attempt, str(hosts or "")))
            else:
                self._arrived(link, delivery, message)
        elif delivery.updated and delivery.settled and hasattr(delivery, "qpid_handle"):
            self._feed(ev.AnswerSettled(self.attempt, link.name, delivery.qpid_handle))

    def _outcome(self, link: Any, delivery: Any) -> None:
        outcome = _OUTCOMES.get(delivery.remote_state)
        if not delivery.updated or (outcome is None and not delivery.settled):
            return
        ticket, reason = int(delivery.tag), _reason(delivery.remote.condition)
        delivery.settle()
        # Settled without an outcome: AMQP 1.0 has released as what counts then.
        self._feed(ev.OutcomeTold(self.attempt, link.name, ticket, outcome or ev.PublishOutcome.RELEASED, reason))

    def _arrived(self, link: Any, delivery: Any, message: Message) -> None:
        self._driver.handles += 1
        delivery.qpid_handle = handle = self._driver.handles
        self._deliveries[handle] = delivery
        is_marked = not message.first_acquirer or message.delivery_count > 0
        self._feed(ev.MessageArrived(self.attempt, link.name, handle, _key(message), is_marked, message))


class _SettlesSecond:
    """A receiver that settles when the broker has: then its answer is known to count."""

    def apply(self, link: Any) -> None:
        """Called by Proton."""
        if link.name != NOTICES_LINK:
            link.rcv_settle_mode = Link.RCV_SECOND

    def test(self, link: Any) -> bool:
        """Called by Proton."""
        return bool(link.is_receiver)


def _key(message: Any) -> object:
    """What tells a message from all others, each time that it comes; None: nothing does."""
    given = (message.instructions or {}).get(MESSAGE_ID)
    if given is not None:
        return int(given)
    annotations = message.annotations or {}
    if annotations.get(PRODUCER) is not None and annotations.get(SEQUENCE) is not None:
        return str(annotations[PRODUCER]), int(annotations[SEQUENCE])
    message_id = message.id
    return bytes(message_id) if isinstance(message_id, memoryview) else message_id


def _reason(condition: Any) -> ev.EndReason:
    if condition is None:
        return ev.EndReason()
    info = condition.info if isinstance(condition.info, dict) else {}
    return ev.EndReason(str(condition.name or ""), str(condition.description or ""), info)


def _plain(properties: Any) -> dict[str, Any]:
    return {str(name): value for name, value in properties.items()} if isinstance(properties, dict) else {}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(getattr(value, "elements", None) or value)
