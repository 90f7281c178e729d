"""The address `qpid.events`: what happens at this broker, as messages for who watches it.

There is no queue and no log behind it: each broker has its own, also one that leads nothing, and tells of itself alone.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import proton

from qpid_ha_broker.access.rules import Access, Permission, Subject
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.nodes.link_state import LinkState, WaitsFor
from qpid_ha_broker.amqp.nodes.terminus import (
    SHARED,
    Filters,
    answer_source,
    answer_terminus,
    binding_key_of,
    read_filters,
    read_terminus,
)
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, Sender
from qpid_ha_broker.amqp.wire.relay import RelayRequest
from qpid_ha_broker.model.exchanges.broker_events import EVENTS_ADDRESS, BrokerEvent, is_for_events, subjects_of
from qpid_ha_broker.model.exchanges.exchange import ExchangeKind
from qpid_ha_broker.model.exchanges.topic_trie import ANY_WORDS

MOST_IN_A_TURN: Final = 100
"""Messages for one reader: each is encoded when it is sent, in some 40 microseconds."""
TOPIC: Final = "topic"


def reads_events(link: proton.Link) -> bool:
    """Whether the peer attaches it to be told of events."""
    return bool(link.is_sender and not link.remote_source.dynamic and is_for_events(link.remote_source.address or ""))


def access_to_events(link: proton.Link, subject: Subject) -> Access:
    """What its peer has to be allowed: a permission of its own, for it hears of what others do."""
    return Access(subject, Permission.MONITOR, EVENTS_ADDRESS, _pattern_of(link))


def attach_reader(connection: Connection, link: proton.Link, relay: RelayRequest | None) -> EventLink:
    """Answer the attach. Raises AmqpError."""
    terminus, filters = read_terminus(link.remote_source), read_filters(link.remote_source)
    if relay is not None:
        text = f"{EVENTS_ADDRESS} is each broker's own, and yours is of a release that has none"
        raise AmqpError(NOT_IMPLEMENTED, f"{text}: connect to this one to read its events")
    if terminus.queue and not terminus.topic:
        raise AmqpError(PRECONDITION_FAILED, f"{EVENTS_ADDRESS} is a topic: leave the capability queue out")
    if SHARED in terminus.capabilities:
        raise AmqpError(NOT_IMPLEMENTED, f"each reader of {EVENTS_ADDRESS} gets all events: leave {SHARED} out")
    handler = EventLink(connection, link, _pattern_of(link), filters.for_exchange(ExchangeKind.TOPIC))
    answer_terminus(
        link.source,
        link.remote_source,
        terminus,
        None,
        durable=False,
        sharing=frozenset({TOPIC} & terminus.capabilities),
    )
    answer_source(link.source, link.remote_source, handler.filters)
    link.target.copy(link.remote_target)
    link.snd_settle_mode, link.rcv_settle_mode = proton.Link.SND_SETTLED, link.remote_rcv_settle_mode
    link.open()
    connection.engine.attach_sending(link, handler)
    return handler


def _pattern_of(link: proton.Link) -> str:
    """Of subjects, as the peer asks for them."""
    _, _, of_address = (link.remote_source.address or "").partition("/")
    return binding_key_of(link.remote_source) or of_address or ANY_WORDS


def write_event(event: BrokerEvent, broker: str, lost: int) -> bytes:
    """The message that tells of it. `lost`: how many events are missing before it."""
    facts = {name: _sendable(fact) for name, fact in event.facts.items()}
    of_all = {"broker": broker, "number": event.number, **({"lost": lost} if lost else {})}
    address = f"{EVENTS_ADDRESS}/{event.subject}"
    message = proton.Message(address=address, subject=str(event.subject), properties={**of_all, **facts})
    message.creation_time = event.at_ms / 1000
    return bytes(message.encode())


def _sendable(fact: object) -> object:
    return fact.encode("utf-8", "replace").decode() if isinstance(fact, str) else fact


class EventLink(LinkEndpoint, EachDisposition):
    """The promise: it sends what the reader has credit for, and keeps nothing of what it cannot send.

    Who reads slowly, or has no credit, is told with the next event how many are lost.
    """

    def __init__(self, connection: Connection, link: proton.Link, pattern: str, filters: Filters) -> None:
        """Raises AmqpError for a pattern that matches nothing."""
        try:
            subjects = subjects_of(pattern)
        except ValueError as error:
            raise AmqpError(INVALID_FIELD, str(error)) from error
        self.connection = connection
        self.link = link
        self.filters = filters
        self._sender = Sender(link)
        self._lost = 0
        """Of those that are to be told with the next message."""
        self._reader = connection.container.notices.events.read(subjects, partial(connection.engine.guard, self.flow))

    def flow(self) -> None:
        """There is something to tell, or the peer has changed its credit, or reads again."""
        window, sent, has_more = self.connection.window, 0, True
        while self._sender.credit > 0 and has_more:
            if not window.is_writable or window.room_bytes(self._sender) <= 0:
                window.congested[self] = None
                break
            if sent >= MOST_IN_A_TURN:
                self._reader.read_later()
                break
            sent += 1
            has_more = self._send_next()
        if self._sender.draining and not has_more and not self._sender.drained():
            window.congested[self] = None
        self.connection.touch()

    def _send_next(self) -> bool:
        """The oldest that was not sent; False: there is none."""
        event = self._reader.next()
        self._lost += self._reader.take_lost()
        if event is None:
            return False
        container = self.connection.container
        payload = write_event(event, container.settings.name, self._lost)
        selector = self.filters.selector
        if selector is None or selector.matches(container.sections.lookup(payload)):
            self._lost = 0
            self._sender.send_settled(payload)
        return True

    def state(self) -> LinkState:
        waits_for = WaitsFor.SOCKET if self in self.connection.window.congested else WaitsFor.NOTHING
        return super().state()._replace(waits_for=waits_for)

    def update_window(self) -> None:
        """The peer reads again: see `SendWindow`."""
        self.flow()

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """Events are sent settled: there is nothing to say of them."""

    def end(self, error: AmqpError) -> None:
        self.connection.end_link(self, error)

    def stop(self) -> None:
        """Nothing more is to be told."""
        self._reader.close()
        self.connection.window.forget(self)

    def closed(self, *, lost: bool) -> None:
        """The link has ended."""
        self.stop()
