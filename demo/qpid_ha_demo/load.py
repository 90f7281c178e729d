"""A publisher and a consumer that live through failovers: Proton's ordinary client, and what an application adds.

What it adds is little: a short pause between attempts, and sending again what was not confirmed when the connection
broke. Whatever is sent again says so, because only the publisher can.
"""

from __future__ import annotations

import itertools
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from threading import Thread
from typing import Any, Final

from proton import Handler, Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

from qpid_ha_demo.ledger import Arrival, Ledger

_NUMBER: Final = struct.Struct(">Q")
_STEP_S = 0.005
_HEARTBEAT_S = 1.0
"""A broker that says nothing for so long is given up: a paused process keeps its sockets."""
_PAUSES_S = (0.02, 0.04, 0.08, 0.1)
_PREFETCH = 500
PRODUCER: Final = "producer"
_SENT_AGAIN: Final = "sent-again"
_REDIRECT: Final = "amqp:link:redirect"


class Addresses:
    """Where a cluster's brokers are, and how long to wait before the next attempt.

    Proton's own reconnecting has a list, too; but its pauses grow from 0.1 s to 10 s, and a failover takes less.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = deque(urls)
        self._attempts = 0
        self._redirected_to: str | None = None

    @property
    def upcoming(self) -> str:
        """What `next` will give."""
        return self._redirected_to or self._urls[0]

    def redirect(self, url: str) -> None:
        """A broker said that what we want is there."""
        self._redirected_to = url

    def next(self) -> str:
        """The one to try now."""
        if self._redirected_to is not None:
            url, self._redirected_to = self._redirected_to, None
            return url
        url = self._urls[0]
        self._urls.rotate(-1)
        return url

    def pause_s(self) -> float:
        """20 ms, 40 ms, 80 ms, then 100 ms each time: a failover takes tenths of a second."""
        self._attempts += 1
        return _PAUSES_S[min(self._attempts, len(_PAUSES_S)) - 1]

    def reached(self) -> None:
        """One of them serves us."""
        self._attempts = 0


class _LivingSockets(Handler):
    """Keeps from Proton's own handler that a socket, which is closed in the same round, has timed out.

    Proton 0.40 looks into the transport that is gone by then, and the client's thread would end with an AttributeError.
    """

    def __init__(self, protons_own: Any) -> None:
        self._protons_own = protons_own

    def on_unhandled(self, method: str, *arguments: Any) -> None:
        """Called by Proton with every event."""
        (event,) = arguments
        if method != "on_selectable_expired" or event.selectable._transport is not None:
            event.dispatch(self._protons_own)


class FailoverClient(MessagingHandler, ABC):
    """One connection, made again for as long as it takes. It runs in a thread of its own, from `start` to `stop`."""

    step_s = _STEP_S
    """Between two steps; a client that is one of many does with fewer."""

    def __init__(self, urls: Sequence[str], queue: str, ledger: Ledger, **options: Any) -> None:
        super().__init__(**options)
        self._addresses = Addresses(urls)
        self._queue = queue
        self.ledger = ledger
        self._is_stopping = False
        self._connect_at_s: float | None = None
        self._thread = Thread(target=self._run, daemon=True)
        self.problems: list[str] = []
        """What brokers said when they ended something."""
        self.connected_to = ""
        """The address of the connection that there is, or was."""

    def _run(self) -> None:
        container = Container(self)
        container.global_handler = _LivingSockets(container.global_handler)
        container.run()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End, and wait for it, if it ever began."""
        self._is_stopping = True
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # --- the connection

    def on_start(self, event: Any) -> None:
        """Connect, and keep time."""
        self._container = event.container
        self._connect()
        event.container.schedule(self.step_s, self)

    def _connect(self) -> None:
        self._connect_at_s = None
        self.connected_to = self._addresses.next()
        self._connection = self._container.connect(self.connected_to, reconnect=False, heartbeat=_HEARTBEAT_S)
        self.open_link(self._container, self._connection)

    @abstractmethod
    def open_link(self, container: Any, connection: Any) -> None:
        """Attach to the queue."""

    def lost(self) -> None:
        """The connection is gone, and with it the answers that were under way."""

    def step(self) -> None:
        """Called every few milliseconds."""

    def on_timer_task(self, event: Any) -> None:
        """Do what is due."""
        if self._is_stopping:
            self._connection.close()  # the container ends with its last socket
            return
        if self._connect_at_s is not None and time.monotonic() >= self._connect_at_s:
            self._connect()
        self.step()
        self._container.schedule(self.step_s, self)

    def on_link_opened(self, event: Any) -> None:
        """A broker serves us."""
        self._addresses.reached()

    def on_transport_error(self, event: Any) -> None:
        """Nobody there, or nobody any more: `on_disconnected` follows."""

    def on_disconnected(self, event: Any) -> None:
        """The socket is gone."""
        self._start_over(event)

    def on_connection_error(self, event: Any) -> None:
        """The broker ended the connection for a reason: another one may serve us."""
        condition = event.connection.remote_condition
        self.problems.append(f"{condition.name}: {condition.description}")
        self._start_over(event)

    def on_link_error(self, event: Any) -> None:
        """The broker ended the link: a new connection will tell whether it means it; it may have said where to."""
        condition = event.link.remote_condition
        if condition.name == _REDIRECT and condition.info:
            self._addresses.redirect(f"amqp://{condition.info['network-host']}:{int(condition.info['port'])}")
        else:
            self.problems.append(f"{condition.name}: {condition.description}")
        self._start_over(event)
        event.connection.close()

    def break_now(self) -> None:
        """End the connection, with whatever is under way on it; another one follows."""
        self.lost()
        self._connection.close()
        self._connect_at_s = time.monotonic() + self._addresses.pause_s()

    def _start_over(self, event: Any) -> None:
        if event.connection == self._connection and self._connect_at_s is None:
            self.lost()
            self._connect_at_s = time.monotonic() + self._addresses.pause_s()


class DemoPublisher(FailoverClient):
    """Sends numbered messages at a steady pace, and again what was not confirmed when a connection broke."""

    producer = ""
    """Said in each message where several publish to one queue: each has books of its own."""
    burst_s = 0.0
    """How long what is due may wait for more to be sent with it: ten messages at once cost brokers little more than
    one."""

    def __init__(
        self, urls: Sequence[str], queue: str, ledger: Ledger, *, rate: int, size: int = 100, durable: bool = False
    ) -> None:
        super().__init__(urls, queue, ledger)
        self._durable = durable
        self._rate = rate
        self._burst_at_s = 0.0
        """Nothing is sent before."""
        self._padding = b"x" * max(0, size - _NUMBER.size)
        self._sender: Any = None
        self._unconfirmed: dict[Any, int] = {}
        self._again: deque[int] = deque()
        self._tags = itertools.count(1)
        self._paced_from: tuple[float, int] | None = None
        self._attached_at_s: float | None = None
        self._is_paused = False
        self.is_settled = False
        """Since `pause`: nothing new will be sent, and every message that was sent is confirmed."""
        self.recoveries: list[tuple[float, float]] = []
        """Of each connection that led to a confirmation: when its link was open, and when the first one came."""

    def open_link(self, container: Any, connection: Any) -> None:
        """Attach to the queue."""
        self._sender = container.create_sender(connection, self._queue)

    def on_link_opened(self, event: Any) -> None:
        """The broker takes messages; whatever was due meanwhile is not made up for."""
        super().on_link_opened(event)
        self._attached_at_s = time.monotonic()
        self._paced_from = None

    def pause(self) -> None:
        """Send nothing new. Whoever asks wants to know `is_settled`, and only the client's thread can tell."""
        self.is_settled = False
        self._is_paused = True

    def resume(self) -> None:
        """Go on at the same pace."""
        self._is_paused = False

    def lost(self) -> None:
        """Nobody will answer any more for what is under way."""
        self._attached_at_s = None
        self._again = deque(sorted({*self._again, *self._unconfirmed.values()}))
        self._unconfirmed.clear()

    def step(self) -> None:
        """Send what is due."""
        now_s = time.monotonic()
        if self._attached_at_s is not None and now_s >= self._burst_at_s:
            self._burst_at_s = now_s + self.burst_s
            self._send_what_is_due()
        if self._is_paused and len(self.ledger.confirmed_at_s) == self.ledger.sent:
            self.is_settled = True

    def _send_what_is_due(self) -> None:
        while self._again and self._sender.credit > 0:
            self._send(self._again.popleft(), sent_again=True)
        while self.ledger.sent < self._due() and self._sender.credit > 0:
            self._send(self.ledger.sent, sent_again=False)
            self.ledger.sent += 1

    def _due(self) -> int:
        now = time.monotonic()
        if self._paced_from is None or self._is_paused:
            self._paced_from = (now, self.ledger.sent)
        began, sent = self._paced_from
        return sent + int((now - began) * self._rate)

    def _send(self, number: int, *, sent_again: bool) -> None:
        tag = str(next(self._tags))
        delivery = self._sender.send(self._message(number, tag, sent_again=sent_again), tag=tag)
        self._unconfirmed[delivery.tag] = number

    def _message(self, number: int, tag: str, *, sent_again: bool) -> Message:
        marks: dict[str, object] = {_SENT_AGAIN: True} if sent_again else {}
        if self.producer:
            marks[PRODUCER] = self.producer
        body = _NUMBER.pack(number) + self._padding
        return Message(body, id=str(number), correlation_id=tag, durable=self._durable, properties=marks or None)

    def on_accepted(self, event: Any) -> None:
        """The cluster has taken a message over."""
        now = time.monotonic()
        number = self._unconfirmed.pop(event.delivery.tag, None)
        if number is None:
            return
        self.ledger.confirm(number, now)
        if self._attached_at_s is not None and (not self.recoveries or self.recoveries[-1][0] != self._attached_at_s):
            self.recoveries.append((self._attached_at_s, now))

    def on_rejected(self, event: Any) -> None:
        """The broker will not have it now: send it again."""
        number = self._unconfirmed.pop(event.delivery.tag, None)
        if number is not None:
            self.ledger.refused.add(number)
            self._again.append(number)

    def on_released(self, event: Any) -> None:
        """The broker could not take it now: the same."""
        self.on_rejected(event)


class DemoConsumer(FailoverClient):
    """Accepts whatever comes, and writes it down."""

    def __init__(self, urls: Sequence[str], queue: str, ledger: Ledger, **options: Any) -> None:
        super().__init__(urls, queue, ledger, prefetch=_PREFETCH, **options)

    def open_link(self, container: Any, connection: Any) -> None:
        """Attach to the queue."""
        container.create_receiver(connection, self._queue)

    def on_message(self, event: Any) -> None:
        """One arrived; the handler accepts it when this returns."""
        self.write_down(event.message)

    def write_down(self, message: Message) -> None:
        """Into the book that it belongs into."""
        self.ledger.arrive(arrival_of(message))


def numbered(number: int, producer: str) -> Message:
    """A message as a producer sends it who has other ways to send one again."""
    return Message(_NUMBER.pack(number), id=str(number), durable=True, properties={PRODUCER: producer})


def producer_of(message: Any) -> str:
    """Whose it is; empty when it does not say."""
    return str((message.properties or {}).get(PRODUCER, ""))


def arrival_of(message: Any) -> Arrival:
    """What is to be written down of a message that has just come."""
    return Arrival(
        number=_NUMBER.unpack_from(message.body)[0],
        at_s=time.monotonic(),
        marked=not message.first_acquirer or message.delivery_count > 0,
        sent_again=bool(message.properties and message.properties.get(_SENT_AGAIN)),
    )


class DemoTraffic:
    """A publisher and a consumer of one queue, each of which tries its brokers in that order, and their books."""

    def __init__(
        self, queue: str, publish_at: Sequence[str], consume_at: Sequence[str], *, rate: int, durable: bool = False
    ) -> None:
        self.queue = queue
        self.ledger = Ledger()
        self.publisher = DemoPublisher(publish_at, queue, self.ledger, rate=rate, durable=durable)
        self.consumer = DemoConsumer(consume_at, queue, self.ledger)

    def start(self) -> None:
        """Begin."""
        self.publisher.start()
        self.consumer.start()

    def stop(self) -> None:
        """End both."""
        self.publisher.stop()
        self.consumer.stop()

    @property
    def is_settled(self) -> bool:
        """Everything that was sent is confirmed, and has arrived."""
        return self.publisher.is_settled and self.ledger.missing == 0

    @property
    def progress(self) -> tuple[int, int]:
        """Messages that are confirmed, and that have arrived."""
        return len(self.ledger.confirmed_at_s), len(self.ledger.arrived)

    @property
    def errors(self) -> list[str]:
        """What brokers told the clients beside the end of a socket."""
        return [*self.publisher.problems, *self.consumer.problems]
