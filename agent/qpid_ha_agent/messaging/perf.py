"""A measurement: producers and consumers of one address, in one process, and how long each message took.

Each message says when it was sent, by a clock that all processes of a machine share. So consumers may be in another
process of the same machine. A message that says nothing of it is counted, and not measured.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import proton
import proton.handlers
import proton.reactor

from qpid_ha_agent.messaging.exchange import NoCreate, NoSuchAddress, now_us, refusal_of, text_of
from qpid_ha_agent.messaging.latency import Latencies

_SENTINEL: Final = 0xA5C3_96E1_5A3C_691E
_NAME: Final = "sent_us"
_MARK: Final = b"\xa1" + bytes((len(_NAME),)) + _NAME.encode() + b"\x80"
"""How the application property begins that says it; its eight bytes follow."""
TICK_S: Final = 0.005
"""So often a producer with a rate looks what is due."""
QUIET_S: Final = 2.0
"""Consumers wait so long for what was sent and has not come."""


@dataclass(frozen=True)
class PerfPlan:
    """What is measured. `rate`: messages a second of all producers, 0: as fast as they are confirmed."""

    address: str
    producers: int = 1
    consumers: int = 1
    count: int | None = None
    duration_s: float | None = None
    size: int = 100
    rate: float = 0.0
    durable: bool = False
    window: int = 500
    prefetch: int = 1000
    create: bool = False
    """A queue may be made where none is."""


@dataclass
class PerfFigures:
    """What came of it. Seconds and counts."""

    sent: int = 0
    confirmed: int = 0
    refused: int = 0
    received: int = 0
    unmarked: int = 0
    elapsed_s: float = 0.0
    processor_s: float = 0.0
    """Of this process."""
    reason: str = ""
    """Why a message was refused, or the measurement ended early; empty: nothing of that."""
    is_missing: bool = False
    """Nothing is at the address."""
    confirm: Latencies = field(default_factory=Latencies)
    transit: Latencies = field(default_factory=Latencies)

    def document(self) -> dict[str, object]:
        """For programs."""
        elapsed_s = max(self.elapsed_s, 1e-9)
        return {
            "sent": self.sent,
            "confirmed": self.confirmed,
            "refused": self.refused,
            "received": self.received,
            "received_unmarked": self.unmarked,
            "seconds": round(self.elapsed_s, 3),
            "sent_per_s": round(self.sent / elapsed_s, 1),
            "received_per_s": round(self.received / elapsed_s, 1),
            "processor_s": round(self.processor_s, 3),
            "confirm_ms": self.confirm.summary_ms(),
            "transit_ms": self.transit.summary_ms(),
            "confirm_histogram_ms": self.confirm.histogram(),
            "transit_histogram_ms": self.transit.histogram(),
            "problem": self.reason or None,
        }


class MarkedMessage:
    """The bytes of a message of a size, in which only the time changes."""

    def __init__(self, size: int, *, durable: bool) -> None:
        message: Any = proton.Message(body=bytes(size), durable=durable, properties={_NAME: proton.ulong(_SENTINEL)})
        before, _, self._after = bytes(message.encode()).partition(_SENTINEL.to_bytes(8, "big"))
        self._before = before

    def at(self, time_us: int) -> bytes:
        """Sent at that time."""
        return self._before + time_us.to_bytes(8, "big") + self._after


def sent_us(payload: bytes) -> int | None:
    """When a message was sent; None: it does not say so."""
    at = payload.find(_MARK, 0, 4096)
    return None if at < 0 else int.from_bytes(payload[at + len(_MARK) : at + len(_MARK) + 8], "big")


class _Producer:
    """One link, and what is under way on it: in the order in which it is answered, mostly."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.under_way: dict[Any, int] = {}
        self.tags = 0
        self.owed = 0.0
        """Messages that its part of the rate allows now."""


class Measurement(proton.Handler):
    """Runs a plan in Proton's reactor; what it counts is in `figures`."""

    def __init__(self, plan: PerfPlan) -> None:
        super().__init__()
        self.plan = plan
        self.figures = PerfFigures()
        self._message = MarkedMessage(plan.size, durable=plan.durable)
        self._producers: dict[str, _Producer] = {}
        self._connections: list[Any] = []
        self._container: Any = None
        self._began_s = self._processor_s = self._news_s = 0.0
        self._is_over = self._is_stopping = False

    def attach(self, container: Any, connections: list[Any]) -> None:
        """Make the links, each on one of the connections in turn."""
        self._container, self._connections = container, connections
        self._began_s, self._processor_s = time.monotonic(), time.process_time()
        self._news_s = self._began_s
        plan = self.plan
        options = None if plan.create else NoCreate()
        for number in range(plan.consumers):
            link = container.create_receiver(
                connections[number], plan.address, name=f"perf-in-{number}", options=options
            )
            link.flow(plan.prefetch)
        for number in range(plan.producers):
            connection = connections[plan.consumers + number]
            link = container.create_sender(connection, plan.address, name=f"perf-out-{number}", options=options)
            self._producers[link.name] = _Producer(link)
        container.schedule(TICK_S, self)

    # --- what Proton tells

    def on_link_flow(self, event: Any) -> None:
        """There may be credit."""
        if event.link.is_sender and not self.plan.rate:
            self._send(self._producers[event.link.name])

    def on_delivery(self, event: Any) -> None:
        """A message came, or an answer to one."""
        delivery, link = event.delivery, event.link
        if link.is_receiver:
            if delivery.readable and not delivery.partial:
                self._take(link, delivery)
        elif delivery.settled or delivery.remote_state:
            self._answered(self._producers[link.name], delivery)

    def on_timer_task(self, _event: Any) -> None:
        """See what is due."""
        now_s = time.monotonic()
        plan, figures = self.plan, self.figures
        if plan.duration_s is not None and now_s - self._began_s >= plan.duration_s:
            self._is_over = True
        if plan.rate and not self._is_over:
            due = plan.rate * (now_s - self._began_s) - figures.sent
            for producer in self._producers.values():
                producer.owed = due / len(self._producers)
                self._send(producer)
        if not self._is_finished(now_s):
            self._container.schedule(TICK_S, self)

    def on_link_remote_close(self, event: Any) -> None:
        """It was refused, or has ended."""
        self._failed(event.link.remote_condition)

    def on_connection_remote_close(self, event: Any) -> None:
        """The same of a connection."""
        self._failed(event.connection.remote_condition)

    def on_transport_error(self, event: Any) -> None:
        """It was lost."""
        self._failed(event.transport.condition)

    # ---

    def _send(self, producer: _Producer) -> None:
        plan, link, figures = self.plan, producer.link, self.figures
        under_way = producer.under_way
        while not self._is_over and link.credit > 0 and len(under_way) < plan.window:
            if plan.count is not None and figures.sent >= plan.count:
                self._is_over = True
                return
            if plan.rate:
                if producer.owed < 1:
                    return
                producer.owed -= 1
            producer.tags += 1
            delivery = link.delivery(str(producer.tags))
            now = now_us()
            link.stream(self._message.at(now))
            link.advance()
            under_way[delivery.tag] = now
            figures.sent += 1

    def _answered(self, producer: _Producer, delivery: Any) -> None:
        began_us = producer.under_way.pop(delivery.tag, None)
        state, condition = delivery.remote_state, delivery.remote.condition
        delivery.settle()
        if began_us is None:
            return
        self._news_s = time.monotonic()
        if state == proton.Delivery.ACCEPTED:
            self.figures.confirmed += 1
            self.figures.confirm.add(now_us() - began_us)
        else:
            self.figures.refused += 1
            self.figures.reason = self.figures.reason or text_of(condition) or str(state)
        if not self.plan.rate:
            self._send(producer)

    def _take(self, link: Any, delivery: Any) -> None:
        payload = link.recv(delivery.pending)
        link.advance()
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        figures, began_us = self.figures, sent_us(payload)
        figures.received += 1
        self._news_s = time.monotonic()
        if began_us is None:
            figures.unmarked += 1
        else:
            figures.transit.add(now_us() - began_us)
        if link.credit <= self.plan.prefetch // 2:
            link.flow(self.plan.prefetch - link.credit)

    def _is_finished(self, now_s: float) -> bool:
        """Whether it is over, and all is answered and received that will be; then it ends."""
        plan, figures = self.plan, self.figures
        if not plan.producers and plan.count is not None and figures.received >= plan.count:
            self._is_over = True
        if not self._is_over:
            return False
        waits = any(producer.under_way for producer in self._producers.values())
        if plan.consumers and plan.producers:
            waits = waits or figures.received < figures.confirmed
        if waits and now_s - self._news_s < QUIET_S:
            return False
        self.stop()
        return True

    def _failed(self, condition: Any) -> None:
        if self._is_stopping:
            return
        self.figures.is_missing = isinstance(refusal_of(condition), NoSuchAddress)
        self.figures.reason = self.figures.reason or text_of(condition) or "the connection was lost"
        self.stop()

    def stop(self) -> None:
        """End it, whatever is under way."""
        if self._is_stopping:
            return
        self._is_stopping = self._is_over = True
        self.note_times()
        for connection in self._connections:
            connection.close()

    def note_times(self) -> None:
        """Until now."""
        self.figures.elapsed_s = time.monotonic() - self._began_s
        self.figures.processor_s = time.process_time() - self._processor_s
