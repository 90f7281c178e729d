"""What the client's core is told, and what it wants done: all inputs, and all effects.

A *ticket* is the number of a message on its link, as long as it lives: the application's of what it publishes, the
core's of what comes. An *attempt* is the number of a connection: what is said of an earlier one counts for nothing.
`link` is a link's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from qpid_ha_client.core.addresses import BrokerAddress
from qpid_ha_client.core.errors import ClientError, LinkUnusable, SessionLost


class Guarantee(Enum):
    """What a client can promise its application with the broker that it is connected to."""

    EXACTLY_ONCE = "exactly-once"
    """The broker keeps a session: no message is queued twice, lost, or handed to this client twice."""
    DEDUPLICATED = "deduplicated"
    """No message is queued twice. One that was handed out before a break may go to somebody else meanwhile."""
    AT_LEAST_ONCE = "at-least-once"
    """What was not confirmed before a break is sent again, and may be queued twice."""


class ConsumerVerdict(Enum):
    """What a consumer makes of a message."""

    ACCEPT = "accept"
    REJECT = "reject"
    RELEASE = "release"


class PublishOutcome(Enum):
    """What a broker made of a message."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RELEASED = "released"


class EndReason(NamedTuple):
    """Why somebody ended something. `name`: an AMQP condition, or empty; `info`: what came with it."""

    name: str = ""
    description: str = ""
    info: Mapping[Any, Any] = {}


class OpenFacts(NamedTuple):
    """What a broker's open says."""

    container: str = ""
    capabilities: frozenset[str] = frozenset()
    properties: Mapping[str, Any] = {}


# --- inputs of the connection, from whoever does the I/O


class Begun(NamedTuple):
    """The client is to connect."""


class DeadlineReached(NamedTuple):
    """The deadline that the core has named is here, or any other moment."""


class BrokerOpened(NamedTuple):
    """The broker has opened the connection."""

    attempt: int
    facts: OpenFacts


class BrokerClosed(NamedTuple):
    """The broker has closed the connection."""

    attempt: int
    reason: EndReason


class ConnectionLost(NamedTuple):
    """The socket is gone, or never came to be. `is_login`: because the broker did not accept who we are."""

    attempt: int
    reason: EndReason
    is_login: bool = False


class LinkAttached(NamedTuple):
    """The broker has answered an attach. A broker that detaches at once has answered nothing."""

    attempt: int
    link: str
    properties: Mapping[str, Any]


class LinkEnded(NamedTuple):
    """The broker has detached, or refused, a link."""

    attempt: int
    link: str
    reason: EndReason


class CreditGiven(NamedTuple):
    """So many more messages may be sent now, on a publishing link."""

    attempt: int
    link: str
    credit: int


class OutcomeTold(NamedTuple):
    """The broker has answered a message that was sent."""

    attempt: int
    link: str
    ticket: int
    outcome: PublishOutcome
    reason: EndReason = EndReason()


class MessageArrived(NamedTuple):
    """On a consuming link. `handle`: the driver's number of the delivery, on this connection.

    `key`: the same each time that this message comes; None: nothing tells it from others.
    """

    attempt: int
    link: str
    handle: int
    key: object
    redelivered: bool
    message: object


class AnswerSettled(NamedTuple):
    """The broker has settled a delivery that was answered: the answer counts for good."""

    attempt: int
    link: str
    handle: int


class HostsTold(NamedTuple):
    """A notice of the brokers that serve: `host:port,host:port`."""

    attempt: int
    hosts: str


# --- inputs of the application


class SenderWanted(NamedTuple):
    """Publish to `address`, from now on."""

    link: str
    address: str


class ReceiverWanted(NamedTuple):
    """Consume from `address`; `prefetch` messages may be handed out and not answered."""

    link: str
    address: str
    prefetch: int


class Published(NamedTuple):
    """A message to send. `ticket`: one that no other message of this link has."""

    link: str
    ticket: int
    message: object


class VerdictGiven(NamedTuple):
    """What the application makes of a message that it was handed."""

    link: str
    ticket: int
    verdict: ConsumerVerdict


class LinkDropped(NamedTuple):
    """The application has no use for a link any more."""

    link: str


class BegunAnew(NamedTuple):
    """Go on after the session was lost, as session `session`.

    `resend`: what is in doubt is sent again, under its old numbers; otherwise it is given up.
    """

    session: str
    resend: bool


class CloseWanted(NamedTuple):
    """End. `keep_session`: as a crash would, so that the session can be resumed."""

    keep_session: bool = False


Input = (
    Begun | DeadlineReached | BrokerOpened | BrokerClosed | ConnectionLost | LinkAttached | LinkEnded | CreditGiven
    | OutcomeTold | MessageArrived | AnswerSettled | HostsTold | SenderWanted | ReceiverWanted | Published
    | VerdictGiven | LinkDropped | BegunAnew | CloseWanted
)  # fmt: skip


# --- effects on the connection


class OpenConnection(NamedTuple):
    """Connect to `broker`, with these open properties; nothing else is connected."""

    attempt: int
    broker: BrokerAddress
    properties: Mapping[str, object]
    may_read_password: bool = True
    """The broker may be sent the password itself, and not only a proof of it: see `BrokerList.may_read_password`."""


class CutConnection(NamedTuple):
    """End the socket without a close: a close would end the session."""

    attempt: int


class CloseConnection(NamedTuple):
    """Close as AMQP has it. `ConnectionLost` or `BrokerClosed` follows."""

    attempt: int


class AttachSender(NamedTuple):
    """`LinkAttached` or `LinkEnded` follows."""

    link: str
    address: str


class AttachReceiver(NamedTuple):
    """`LinkAttached` or `LinkEnded` follows. Credit is given later."""

    link: str
    address: str


class ListenForHosts(NamedTuple):
    """Attach to the notices, of which nothing is to be answered. It does not matter if that is refused."""


class DetachLink(NamedTuple):
    """No more of this link."""

    link: str


class SendMessage(NamedTuple):
    """Send with these producer annotations. `producer` None: without any."""

    link: str
    ticket: int
    producer: str | None
    number: int
    message: object


class GiveCredit(NamedTuple):
    """So many more may come."""

    link: str
    credit: int


class AnswerDelivery(NamedTuple):
    """Say so, and leave it unsettled until `AnswerSettled`."""

    link: str
    handle: int
    verdict: ConsumerVerdict


class SettleDelivery(NamedTuple):
    """The broker has settled: forget it."""

    link: str
    handle: int


# --- effects for the application


class MessageHandedOut(NamedTuple):
    """A message, for the first time. `redelivered`: somebody else may have had it; not this client."""

    link: str
    ticket: int
    message: object
    key: object
    redelivered: bool


class PublishConfirmed(NamedTuple):
    """The broker has taken responsibility for a message."""

    link: str
    ticket: int


class PublishRefused(NamedTuple):
    """The broker did not take a message."""

    link: str
    ticket: int
    reason: EndReason


class PublishAbandoned(NamedTuple):
    """Nobody knows whether the message is queued, and it is not sent again."""

    link: str
    ticket: int


class AnswerConfirmed(NamedTuple):
    """The broker has carried out what the application made of a message."""

    link: str
    ticket: int


class AnswerInDoubt(NamedTuple):
    """No session has outlived the break: the answer counts, or the message is delivered again, perhaps to others.

    Should it come to this client, it is answered as before, without being handed out.
    """

    link: str
    ticket: int


class DeliveryWithdrawn(NamedTuple):
    """A message that was handed out is not this client's any more; an answer to it has no effect."""

    link: str
    ticket: int


class LinkReady(NamedTuple):
    """A link is attached. `confirmed`: of a publisher in a session, the highest number that was accepted before."""

    link: str
    confirmed: int


class LinkFailed(NamedTuple):
    """A link cannot be used any more."""

    link: str
    error: LinkUnusable


class Connected(NamedTuple):
    """To a broker, which serves us."""

    broker: BrokerAddress
    guarantee: Guarantee


class Disconnected(NamedTuple):
    """The next broker is tried; nothing is lost by that."""

    reason: str


class SessionGone(NamedTuple):
    """Nothing goes on until the application says `BegunAnew` or `CloseWanted`."""

    error: SessionLost


class ClientEnded(NamedTuple):
    """Nothing more will happen. `error` None: because the application wanted it."""

    error: ClientError | None


Effect = (
    OpenConnection | CutConnection | CloseConnection | AttachSender | AttachReceiver | ListenForHosts | DetachLink
    | SendMessage | GiveCredit | AnswerDelivery | SettleDelivery | MessageHandedOut | PublishConfirmed | PublishRefused
    | PublishAbandoned | AnswerConfirmed | AnswerInDoubt | DeliveryWithdrawn | LinkReady | LinkFailed | Connected
    | Disconnected | SessionGone | ClientEnded
)  # fmt: skip
