"""A client that speaks AMQP in a simulation: Proton's engine on a simulated stream, each time at another broker."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import proton
from cproton_ffi import lib

from simulation.machines.streams import StreamEnd, Streams
from simulation.trace import Trace
from simulation.violations import Violation
from simulation.virtual_time import Schedule

IDLE_S = 2.0
TICK_S = 0.5
BEGAN_MS = 1_000_000
_ACT_WITHIN_S = 0.08
AT_ONCE_S = 0.02
_peek, _pop, _type_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
_wrapped_delivery: Final[Callable[[Any], Any]] = proton.Delivery.wrap
_wrapped_link: Final[Callable[[Any], Any]] = proton.Link.wrap
_DELIVERY: Final[int] = lib.PN_DELIVERY
_FLOW: Final[int] = lib.PN_LINK_FLOW
_RARE: Final = frozenset(
    kind.number
    for kind in (
        proton.Event.CONNECTION_REMOTE_OPEN,
        proton.Event.CONNECTION_REMOTE_CLOSE,
        proton.Event.SESSION_REMOTE_CLOSE,
        proton.Event.LINK_REMOTE_OPEN,
        proton.Event.LINK_REMOTE_CLOSE,
        proton.Event.LINK_REMOTE_DETACH,
        proton.Event.TRANSPORT_ERROR,
    )
)
"""Events that come a few times in the life of a connection or a link."""


def take_message(link: Any, name: str, withdrawn: int = 0) -> tuple[Any, proton.Message] | None:
    """The next message that has come to `name` as a whole, with its delivery; None: there is none.

    `withdrawn`: credit that was taken back, which the broker may not have known yet. Raises Violation for a message for
    which there was no credit.
    """
    delivery = link.current
    if delivery is None or not delivery.readable or delivery.partial:
        return None
    message = proton.Message()
    message.decode(link.recv(delivery.pending))
    link.advance()
    if link.credit < -withdrawn:
        raise Violation(f"{name} got {-link.credit} messages more than it gave credit for")
    return delivery, message


class Talk(asyncio.Protocol):
    """One connection of a client, from when it is wanted until it is gone."""

    def __init__(self, client: AmqpClient, name: str, broker: str) -> None:
        self.client = client
        self.name = name
        """Its container id."""
        self.broker = broker
        self.is_over = False
        self.is_open = False
        """The broker has answered the open, and nobody has closed it."""
        self.is_asleep = False
        """It does not read."""
        self.end: StreamEnd | None = None
        self.transport = proton.Transport()
        self.transport.idle_timeout = client.idle_s
        self.connection = proton.Connection()
        self._collector = proton.Collector()
        self.connection.collect(self._collector)
        self.connection.container = name
        self.connection.properties = client.open_properties()
        self.transport.bind(self.connection)
        self.connection.open()
        self.session: Any = self.connection.session()
        self.session.open()

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.end = cast(StreamEnd, transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.is_over:
            room = self.transport.capacity()
            if room <= 0:  # it has come to its end
                return
            self.transport.push(bytes(rest[:room]))
            rest = rest[room:]
            self._process()
        self.flush()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lose(f"connection lost: {error}")

    # ---

    def flush(self) -> None:
        """Write what there is."""
        while not self.is_over and self.end is not None:
            pending = self.transport.pending()
            if pending <= 0:
                break
            data = bytes(self.transport.peek(pending) or b"")
            self.transport.pop(len(data))
            self.end.write(data)

    def tick(self, now_ms: int) -> None:
        """Keep the idle time-outs of both sides; one that is asleep does not."""
        if not (self.is_over or self.is_asleep):
            self.transport.tick(now_ms / 1000)
            self._process()
            self.flush()

    def _process(self) -> None:
        """Tell the client what happened. Proton's events fetch five objects each, so only what is rare is made one."""
        collector = self._collector._impl
        while not self.is_over and (event := _peek(collector)):
            kind = _type_of(event)
            if kind == _DELIVERY:
                self.client.on_delivery(self, _wrapped_delivery(lib.pn_event_delivery(event)))
            elif kind == _FLOW:
                self.client.on_flow(self, _wrapped_link(lib.pn_event_link(event)))
            elif kind in _RARE:
                self._handle(self._collector.peek())
            _pop(collector)

    def _handle(self, event: Any) -> None:
        kind = event.type
        if kind == proton.Event.CONNECTION_REMOTE_OPEN:
            self.is_open = True
            self.client.on_open(self)
        elif kind == proton.Event.LINK_REMOTE_OPEN:
            self.client.on_attached(self, event.link)
        elif kind in (proton.Event.LINK_REMOTE_CLOSE, proton.Event.LINK_REMOTE_DETACH):
            condition = event.link.remote_condition
            event.link.close()
            self.client.on_detached(self, event.link, "" if condition is None else condition.name)
        elif kind in (proton.Event.CONNECTION_REMOTE_CLOSE, proton.Event.SESSION_REMOTE_CLOSE):
            self.drop(f"closed by the broker: {self.connection.remote_condition}")
        elif kind == proton.Event.TRANSPORT_ERROR:
            self._give_up(f"transport: {self.transport.condition}")

    def _give_up(self, reason: str) -> None:
        """As Proton does, above all when it hears nothing for too long: it closes with an error, and ends the stream.

        A broker that was stopped finds that when it goes on.
        """
        self.flush()
        if self.end is not None:
            self.end.close()
        self.lose(reason)

    def drop(self, reason: str) -> None:
        """End the stream without a word."""
        if self.end is not None:
            self.end.abort()
        self.lose(reason)

    def close(self) -> None:
        """Close in order."""
        self.connection.close()
        self.flush()
        if self.end is not None:
            self.end.close()
        self.lose("closed by the client")

    def lose(self, reason: str) -> None:
        """It is gone."""
        if not self.is_over:
            self.is_over, self.is_open = True, False
            self.client.on_gone(self, reason)


class Shop(Protocol):
    """What all clients have in common."""

    schedule: Schedule
    streams: Streams
    trace: Trace
    brokers: tuple[str, ...]
    sizes: tuple[int, ...]
    """Of messages, in bytes beyond what they have to say; each as often as the others."""
    busy_sizes: tuple[int, ...]
    """Of messages that are on their way to consumers while those take credit back."""

    def now_ms(self) -> int:
        """For idle time-outs."""


class AmqpClient:
    """Connects to some broker, does what its kind does, and connects again when that is over.

    A kind of client overrides `begin`, `act` and what it wants to hear.
    """

    idle_s = IDLE_S
    """After so long without a sign of life it gives its connection up."""

    def __init__(self, shop: Shop, name: str, draw: random.Random) -> None:
        self.shop = shop
        self.name = name
        self.draw = draw
        self.talk: Talk | None = None
        self.is_stopped = False
        """It has gone for good."""
        self.next_brokers: list[str] = []
        """Where it connects next, without staying away before; empty: somewhere."""
        self._talks = 0
        self._opened_s = 0.0
        shop.schedule.after(draw.uniform(0.1, 1.5), self._connect)
        self._act_later()
        self._tick_later()

    # --- what a kind of client does

    def open_properties(self) -> dict[Any, Any] | None:
        """Of the open of its next connection."""
        return None

    def container_id(self) -> str:
        """Of its next connection."""
        return f"{self.name}.{self._talks}"

    def away_s(self) -> float:
        """How long it stays away when its connection is gone."""
        return self.draw.uniform(0.02, 0.6)

    def begin(self, talk: Talk) -> None:
        """The connection is open."""

    def act(self, talk: Talk) -> None:
        """A moment went by, on a connection that is open."""

    def on_attached(self, talk: Talk, link: Any) -> None:
        """The broker has answered an attach, perhaps with a refusal that follows."""

    def on_detached(self, talk: Talk, link: Any, condition: str) -> None:
        """The broker has ended a link, or answered its end; our end is closed."""

    def on_delivery(self, talk: Talk, delivery: Any) -> None:
        """A message, or what became of one."""

    def on_flow(self, talk: Talk, link: Any) -> None:
        """Credit, or the end of a drain."""

    def ended(self, talk: Talk) -> None:
        """The connection is gone, and all its links."""

    def why_not_at_rest(self) -> str:
        """What it still waits for; empty: nothing."""
        return ""

    # --- its connections

    def _connect(self) -> None:
        if self.is_stopped or self.talk is not None:
            return
        self._talks += 1
        broker = self.next_brokers.pop(0) if self.next_brokers else self.draw.choice(self.shop.brokers)
        talk = self.talk = Talk(self, self.container_id(), broker)
        self._opened_s = self.shop.schedule.now_s

        def opened(end: StreamEnd | None, reason: str) -> None:
            if end is None:
                talk.lose(reason)
            elif talk.is_over:
                end.abort()
            else:
                end.have_read_by(talk)

        self.shop.streams.connect(self.name, _at_once, broker, opened)

    def on_open(self, talk: Talk) -> None:
        self.note(f"has connected to {talk.broker}")
        self.begin(talk)
        talk.flush()

    def on_gone(self, talk: Talk, reason: str) -> None:
        """It tries again, somewhere."""
        self.note(f"is not connected to {talk.broker} any more: {reason}")
        if self.talk is talk:
            self.talk = None
            self.ended(talk)
            self.shop.schedule.after(AT_ONCE_S if self.next_brokers else self.away_s(), self._connect)

    def _act_later(self) -> None:
        self.shop.schedule.after(_ACT_WITHIN_S * (0.2 + self.draw.random()), self._act)

    def _act(self) -> None:
        if self.is_stopped:
            return
        self._act_later()
        talk = self.talk
        if talk is not None and talk.is_open and not talk.is_asleep:
            self.act(talk)
            talk.flush()

    def _tick_later(self) -> None:
        self.shop.schedule.after(TICK_S, self._tick)

    def _tick(self) -> None:
        if self.talk is not None and self.talk.end is not None:
            self.talk.tick(self.shop.now_ms())
        if not self.is_stopped:
            self._tick_later()

    def sleep(self, for_s: float) -> None:
        """Read nothing and do nothing for a while."""
        talk = self.talk
        if talk is None or talk.end is None or talk.is_asleep:
            return
        talk.is_asleep = True
        talk.end.pause_reading()

        def wake() -> None:
            talk.is_asleep = False
            if not talk.is_over and talk.end is not None:
                talk.end.resume_reading()

        self.shop.schedule.after(for_s, wake)

    def stop(self) -> None:
        """Go for good: with a goodbye, or without."""
        self.is_stopped = True
        talk = self.talk
        if talk is not None:
            if self.draw.random() < 0.5 and talk.is_open:
                talk.close()
            else:
                talk.drop("the client dies")

    def give_up(self) -> None:
        """If its open is not answered: try the next broker."""
        if self.talk is not None and not self.talk.is_open:
            self.talk.drop("waits no longer")

    def note(self, text: str) -> None:
        if self.shop.trace.wanted:
            self.shop.trace.add(self.name, text)


def _at_once(command: Callable[[], None]) -> None:
    command()
