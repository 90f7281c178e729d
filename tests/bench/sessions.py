"""What sessions of clients cost: a resume with many messages held, and Python calls per message with and without one.

In memory, both ends in this process: only what the broker's end does is timed or counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.figures import Measurement
from bench.scenario import Scenario
from paired_engines import PairedBroker, PairedClient
from session_clients import consume, held, open_session, publish

HELD = 10_000
COUNTED = 2000
_ACCEPTED = 0x24


def measure_sessions(scenario: Scenario) -> Iterator[Measurement]:
    """`scenario` changes nothing here."""
    yield Measurement("session_resume", f"resume with {HELD} messages held: processor time", _resume_s(), "s")
    for key, label, has_session in (("plain", "without a session", False), ("session", "of a session", True)):
        calls = _calls_per_message(has_session)
        yield Measurement(f"session_calls_{key}", f"consumer {label}: Python calls of the broker", calls, "per message")


def _filled(count: int) -> PairedBroker:
    broker = PairedBroker()
    client = broker.connect()
    link = publish(client, "q")
    for _ in range(count):
        client.send(link, b"\x00Sw\xa1\x05hello")
    broker.settle_down()
    return broker


def _resume_s() -> float:
    """From the attach until all that is held is written, of the broker's side."""
    broker = _filled(HELD)
    client = open_session(broker)
    consume(client, "q", HELD)
    client.vanish()
    again = open_session(broker)
    timed = _Timed(again)
    link = consume(again, "q", HELD)
    if held(link) != HELD:
        raise RuntimeError(f"{held(link)} messages are held, not {HELD}")
    return timed.used_s


class _Timed:
    """The processor time that the broker's end of `client` takes, and its turns."""

    def __init__(self, client: PairedClient) -> None:
        self.used_s = 0.0
        peer: Any = client.peer
        broker: Any = client.broker
        peer.receive, peer.take_output = self._timed(peer.receive), self._timed(peer.take_output)
        broker.turn = self._timed(broker.turn)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began_s = time.process_time()
            try:
                return call(*arguments)
            finally:
                self.used_s += time.process_time() - began_s

        return timed


def _calls_per_message(has_session: bool) -> float:
    """From the queue to the socket, and from the client's answer to the settlement."""
    broker = _filled(COUNTED)
    client = open_session(broker) if has_session else broker.connect()
    counter = _Counter(client)
    link = consume(client, "q", COUNTED)
    for delivery, _ in client.received(link):
        delivery.update(_ACCEPTED)
    broker.settle_down()
    return counter.calls / COUNTED


class _Counter:
    """The Python functions that the broker's end of `client` calls."""

    def __init__(self, client: PairedClient) -> None:
        self.calls = 0
        peer: Any = client.peer
        broker: Any = client.broker
        peer.receive, peer.take_output = self._counted(peer.receive), self._counted(peer.take_output)
        broker.turn = self._counted(broker.turn)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            sys.setprofile(self._count)
            try:
                return call(*arguments)
            finally:
                sys.setprofile(None)

        return counted

    def _count(self, frame: Any, event: str, argument: Any) -> None:
        self.calls += event == "call"
