"""The face for Proton's reactor: a handler with a session, for `Container(handler).run()`.

All of it happens in the container's thread.
"""

from __future__ import annotations

import itertools
import random
import secrets
import uuid
from collections.abc import Iterable
from typing import Any

from proton import Handler, Message

from qpid_ha_client.core import events as ev
from qpid_ha_client.core.addresses import BrokerAddress, parse_addresses
from qpid_ha_client.core.client_core import ATTEMPTS, ClientCore, ClientSettings
from qpid_ha_client.core.errors import ClientError, LinkUnusable, MessageRefused, SessionLost
from qpid_ha_client.proton_driver import ConnectOptions, OutgoingMessage, ProtonDriver

PREFETCH = 100


class ClientLink:
    """A link of a session: it stays, whatever becomes of connections."""

    def __init__(self, handler: SessionHandler, name: str, address: str) -> None:
        self.handler, self.name, self.address = handler, name, address

    def close(self) -> None:
        """Use it no more."""
        self.handler.drop(self.name)


class SessionSender(ClientLink):
    """Publishes."""

    def send(self, message: Message) -> int:
        """Send it, now or when a broker lets us; its ticket, which `on_confirmed` or `on_refused` tells."""
        ticket = next(self.handler.tickets)
        self.handler.feed(ev.Published(self.name, ticket, OutgoingMessage(message)))
        return ticket


class SessionReceiver(ClientLink):
    """Consumes."""


class ReceivedMessage:
    """A message that this client has, until it answers: `accept`, `reject` or `release`, once."""

    def __init__(self, receiver: SessionReceiver, effect: ev.MessageHandedOut) -> None:
        self.receiver = receiver
        self.ticket = effect.ticket
        self.message: Any = effect.message
        self.key = effect.key
        """The same whenever this message comes, to whomever; None: nothing tells it from others."""
        self.redelivered = effect.redelivered
        """Somebody else may have had it before. This client has not."""

    @property
    def body(self) -> Any:
        """The message's."""
        return self.message.body

    def accept(self) -> None:
        """The message is done with."""
        self._answer(ev.ConsumerVerdict.ACCEPT)

    def reject(self) -> None:
        """Nobody can do anything with it."""
        self._answer(ev.ConsumerVerdict.REJECT)

    def release(self) -> None:
        """Somebody else shall have it."""
        self._answer(ev.ConsumerVerdict.RELEASE)

    def _answer(self, verdict: ev.ConsumerVerdict) -> None:
        self.receiver.handler.feed(ev.VerdictGiven(self.receiver.name, self.ticket, verdict))


class SessionHandler(Handler):
    """The promise: what `send` was given is queued once, `on_message` gets a message once, or it is told otherwise.

    `guarantee` says which of that the brokers can keep. Subclass it, and give it to `proton.reactor.Container`.
    """

    def __init__(
        self,
        addresses: str | Iterable[str],
        *,
        session: str | None = None,
        options: ConnectOptions | None = None,
        **settings: Any,
    ) -> None:
        """`addresses`: of brokers, `amqp://a:5672,b:5672`. `session`: the UUID of one to resume, else a new one.

        `settings`: of `ClientSettings`. Raises ValueError.
        """
        super().__init__()
        settings = {"first_attempt": secrets.randbelow(1 << 32) * ATTEMPTS, **settings}
        wanted = ClientSettings(parse_addresses(addresses), resume=session is not None, **settings)
        name = str(uuid.uuid4() if session is None else uuid.UUID(session))
        self.core = ClientCore(wanted, name, random.random)
        self.tickets = itertools.count(1)
        self._options = options or ConnectOptions()
        self._driver: ProtonDriver | None = None
        self._links: dict[str, ClientLink] = {}
        self._last_words: list[ev.Input] = []
        """What was said before the container had begun."""

    # --- what an application does

    @property
    def session_id(self) -> str:
        """The UUID under which another process can resume this session."""
        return self.core.session.id

    @property
    def guarantee(self) -> ev.Guarantee | None:
        """What is promised with the broker that we are connected to, or were last; None: with none yet."""
        return self.core.guarantee

    def create_sender(self, address: str, name: str = "", *, options: Iterable[Any] = ()) -> SessionSender:
        """Publish to `address`. `name`: of the link, the same whenever the session is resumed. Raises ValueError."""
        sender = SessionSender(self, name or f"to {address}", address)
        self._add(sender, ev.SenderWanted(sender.name, address), options)
        return sender

    def create_receiver(
        self, address: str, name: str = "", *, prefetch: int = PREFETCH, options: Iterable[Any] = ()
    ) -> SessionReceiver:
        """Consume from `address`; `prefetch` messages come before the first is answered. Raises ValueError."""
        receiver = SessionReceiver(self, name or f"from {address}", address)
        self._add(receiver, ev.ReceiverWanted(receiver.name, address, prefetch), options)
        return receiver

    def begin_anew(self, *, resend: bool = True) -> None:
        """After `on_session_lost`: go on with a new session; `resend`: what may not be queued is sent again."""
        self.feed(ev.BegunAnew(str(uuid.uuid4()), resend))

    def close(self, *, keep_session: bool = False) -> None:
        """End, now. `keep_session`: the brokers hold what we have not answered, until somebody resumes the session."""
        self.feed(ev.CloseWanted(keep_session))

    # --- what an application is told

    def on_start(self, event: Any) -> None:
        """The container runs: time to create senders and receivers."""

    def on_connected(self, broker: BrokerAddress, guarantee: ev.Guarantee) -> None:
        """A broker serves us."""

    def on_disconnected(self, reason: str) -> None:
        """The connection is gone; the next broker is tried."""

    def on_link_ready(self, link: ClientLink, confirmed: int) -> None:
        """The link is attached, again. `confirmed`: in a session, the sender's highest number that brokers have."""

    def on_message(self, received: ReceivedMessage) -> None:
        """A message came, for the first time."""

    def on_confirmed(self, sender: SessionSender, ticket: int) -> None:
        """A message that was sent is safe."""

    def on_refused(self, sender: SessionSender, ticket: int, error: MessageRefused) -> None:
        """A message that was sent was not taken."""

    def on_abandoned(self, sender: SessionSender, ticket: int) -> None:
        """After `begin_anew(resend=False)`: nobody knows whether this message is queued."""

    def on_answered(self, receiver: SessionReceiver, ticket: int) -> None:
        """The answer to a message counts, for good."""

    def on_answer_in_doubt(self, receiver: SessionReceiver, ticket: int) -> None:
        """Without a session: the answer to a message may not count, and the message may go to others."""

    def on_withdrawn(self, receiver: SessionReceiver, ticket: int) -> None:
        """A message is not this client's any more: stop working on it if that can be; an answer has no effect."""

    def on_link_failed(self, link: ClientLink, error: LinkUnusable) -> None:
        """A link cannot be used any more."""

    def on_session_lost(self, error: SessionLost) -> None:
        """The session is gone; the error says what is in doubt. All waits for `begin_anew`. By default: the end."""
        self.close()

    def on_end(self, error: ClientError | None) -> None:
        """Nothing more will happen. None: because we were closed."""

    # --- how it works

    def on_reactor_init(self, event: Any) -> None:
        """Called by Proton."""
        self._driver = ProtonDriver(event.container, self.core, self._options, self._tell)
        self.on_start(event)
        for said in self._last_words:
            self._driver.feed(said)
        self._last_words.clear()
        self._driver.feed(ev.Begun())

    def feed(self, event: ev.Input) -> None:
        """Tell the core; before the container runs, as soon as it does."""
        if self._driver is None:
            self._last_words.append(event)
        else:
            self._driver.feed(event)

    def drop(self, name: str) -> None:
        """Have no such link any more."""
        self._links.pop(name, None)
        self.feed(ev.LinkDropped(name))

    def _add(self, link: ClientLink, wanted: ev.SenderWanted | ev.ReceiverWanted, options: Iterable[Any]) -> None:
        if link.name in self._links:
            raise ValueError(f"there is a link {link.name!r} already: give this one another name")
        if self._driver is None:
            raise ValueError("links can be created from on_start on")
        self._driver.link_options[link.name] = list(options)
        self._links[link.name] = link
        self._driver.feed(wanted)

    def _tell(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Connected(broker, guarantee):
                self.on_connected(broker, guarantee)
            case ev.Disconnected(reason):
                self.on_disconnected(reason)
            case ev.SessionGone(error):
                self.on_session_lost(error)
            case ev.ClientEnded(error):
                self.on_end(error)
            case ev.LinkFailed(name, error):
                if name in self._links:
                    self.on_link_failed(self._links.pop(name), error)
            case ev.LinkReady(name, confirmed):
                if name in self._links:
                    self.on_link_ready(self._links[name], confirmed)
            case _:
                self._tell_of_message(effect)

    def _tell_of_message(self, effect: Any) -> None:
        link = self._links.get(effect.link)  # None: it was closed meanwhile
        if isinstance(link, SessionReceiver):
            match effect:
                case ev.MessageHandedOut():
                    self.on_message(ReceivedMessage(link, effect))
                case ev.AnswerConfirmed(_, ticket):
                    self.on_answered(link, ticket)
                case ev.AnswerInDoubt(_, ticket):
                    self.on_answer_in_doubt(link, ticket)
                case ev.DeliveryWithdrawn(_, ticket):
                    self.on_withdrawn(link, ticket)
        elif isinstance(link, SessionSender):
            match effect:
                case ev.PublishConfirmed(_, ticket):
                    self.on_confirmed(link, ticket)
                case ev.PublishRefused(_, ticket, reason):
                    self.on_refused(link, ticket, MessageRefused(reason.name, reason.description))
                case ev.PublishAbandoned(_, ticket):
                    self.on_abandoned(link, ticket)
