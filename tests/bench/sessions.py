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
    work: list[float] = []
    _around_broker(again, lambda: work.append(-time.process_time()), lambda: work.append(time.process_time()))
    link = consume(again, "q", HELD)
    if held(link) != HELD:
        raise RuntimeError(f"{held(link)} messages are held, not {HELD}")
    return sum(work)


def _calls_per_message(has_session: bool) -> float:
    """From the queue to the socket, and from the client's answer to the settlement."""
    broker = _filled(COUNTED)
    client = open_session(broker) if has_session else broker.connect()
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    _around_broker(client, lambda: sys.setprofile(count), lambda: sys.setprofile(None))
    link = consume(client, "q", COUNTED)
    for delivery, _ in client.received(link):
        delivery.update(_ACCEPTED)
    broker.settle_down()
    return calls / COUNTED


def _around_broker(client: PairedClient, begin: Callable[[], object], end: Callable[[], object]) -> None:
    """Have `begin` and `end` called around all that the broker's end of `client` does, and around its turns."""

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def between(*arguments: Any) -> Any:
            begin()
            try:
                return call(*arguments)
            finally:
                end()

        return between

    peer: Any = client.peer
    broker: Any = client.broker
    peer.receive, peer.take_output, broker.turn = map(wrapped, (peer.receive, peer.take_output, broker.turn))
