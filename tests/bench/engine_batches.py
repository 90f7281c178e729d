"""What a message costs between the socket's bytes and a link, with the compiled kernel and in plain Python.

Two engines in this process, joined in memory; neither a socket nor a queue: processor time of the engines alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import proton

from bench.figures import Measurement
from bench.scenario import Scenario
from bench.throughput import BURST, SIZES, message
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.batches import use_kernel
from qpid_ha_broker.amqp.wire.engine import Disposition, Engine, Sender, Transfer
from qpid_ha_kernel import Kernel, load

ROUNDS: Final = 5


class _Accepting:
    """Takes messages and accepts them; hears that they were accepted, and settles."""

    def __init__(self) -> None:
        self.came: list[engine.Delivery] = []
        self.answered: list[engine.Delivery] = []
        self.link: Any = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def session_opened(self, session: proton.Session) -> None:
        session.open()

    def link_attached(self, link: proton.Link) -> None:
        self.link = link

    def transfers(self, batch: list[Transfer]) -> None:
        self.came += [delivery for delivery, *_ in batch]

    def dispositions(self, batch: list[Disposition]) -> None:
        self.answered += [delivery for delivery, *_ in batch]


def _carry(source: Engine, target: Engine, handler: _Accepting) -> None:
    while output := source.take_output():
        target.push(output)
        target.process(handler)


def _spent_s(payload: bytes, count: int) -> tuple[float, float]:
    """Processor time of the receiving end and of the sending one, for so many messages."""
    near = Engine(proton.Transport(), proton.Connection())
    far = Engine(proton.Transport(proton.Transport.SERVER), proton.Connection())
    sending, receiving = _Accepting(), _Accepting()
    near.connection.open()
    session = near.connection.session()
    session.open()
    link: Any = session.sender("bench")
    link.open()
    far.connection.open()
    _carry(near, far, receiving)
    receiving.link.open()
    engine.give_credit(receiving.link, count + BURST)
    _carry(far, near, sending)
    near.attach_sending(link, sending)
    far.attach_receiving(receiving.link, receiving)
    sender, clock, spent = Sender(link, near.formats), time.process_time, [0.0, 0.0]
    for _ in range(count // BURST):
        began = clock()
        sent = sender.send_all([payload] * BURST)
        output = near.take_output()
        arrived = clock()
        far.push(output)
        far.process(receiving)
        engine.accept_all(receiving.came)
        answers = far.take_output()
        left = clock()
        near.push(answers)
        near.process(sending)
        engine.forget_all(sending.answered)
        sender.free_all([tag for _, tag in sent])
        ended = clock()
        receiving.came, sending.answered = [], []
        spent[0] += left - arrived
        spent[1] += ended - left + arrived - began
    near.close()
    far.close()
    return spent[0], spent[1]


def measure_engines(scenario: Scenario) -> Iterator[Measurement]:
    """A message received and accepted, and one sent and settled: µs of the engine, the best of ROUNDS in turn."""
    kernel, count = load(), max(scenario.messages // BURST // 4, 1) * BURST
    ways = {"python": None, **({"kernel": kernel} if isinstance(kernel, Kernel) else {})}
    for size in SIZES:
        spent: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for way, used in chain.from_iterable(ways.items() for _ in range(ROUNDS)):
            use_kernel(used)
            spent[way].append(_spent_s(message(size), count))
        for way, times in spent.items():
            for end, label in enumerate(("received", "sent")):
                best_us = min(each[end] for each in times) / count * 1e6
                yield Measurement(f"engine_{label}_{size}_{way}", f"engine, {size} B {label}, {way}", best_us, "µs")
    use_kernel(None)
