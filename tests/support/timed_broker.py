"""qpidd with a stopwatch: every step of its loop that took long goes into a file, by the processor's time.

Run as a program, with the file's path in QPID_HA_LONG_STEPS. Processor time of the loop's thread, so that neither a
busy machine nor another thread of the broker makes a step long.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Final

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.clients.client_protocol import ClientProtocol
from qpid_ha_broker.server.control.control import ControlServer
from qpid_ha_broker.server.main import main
from qpid_ha_broker.server.sets.set_member import SetMember
from qpid_ha_broker.server.stores.checkpoint import CheckpointWriter
from qpid_ha_broker.server.stores.pager import Pager

LONG_S: Final = 0.004
DEFAULT_THRESHOLD: Final = gc.get_threshold()
STEPS: Final = (
    (ClientProtocol, "data_received"),
    (ClientProtocol, "_go_on"),
    (ClientProtocol, "connection_lost"),
    (ClientProtocol, "resume_writing"),
    (Broker, "turn"),
    (Container, "tick"),
    (SetMember, "feed"),
    (Pager, "_work"),
    (CheckpointWriter, "_give"),
    (ControlServer, "_call"),
)
"""What the loop calls, and what runs long inside of that."""


def timed(step: Callable[..., Any], name: str, path: Path) -> Callable[..., Any]:
    """`step`, with a line in the file at `path` whenever it took long: milliseconds and name.

    Of a coroutine, whatever it does between two times that it waits for something is a step.
    """

    @functools.wraps(step)
    def measured(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            result = step(*arguments)
            return _TimedSteps(result, name, path) if inspect.iscoroutine(result) else result
        finally:
            _note(began, name, path)

    return measured


class _TimedSteps:
    """A coroutine to be awaited once, by whoever would have awaited it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], name: str, path: Path) -> None:
        self._coroutine = coroutine
        self._name = name
        self._path = path

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        while True:
            began = time.thread_time()
            try:
                awaited = next(steps)
            except StopIteration as end:
                return end.value
            finally:
                _note(began, self._name, self._path)
            yield awaited


def _note(began: float, name: str, path: Path) -> None:
    took_s = time.thread_time() - began
    if took_s >= LONG_S:
        with path.open("a", encoding="ascii") as file:
            file.write(f"{took_s * 1000:.1f} {name}\n")


class TimedCollections:
    """The collector stops everybody wherever it is called, also outside of the steps above.

    What comes before the broker serves, when it changes how often the collector works, does not count.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = 0.0

    def __call__(self, phase: str, facts: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        elif gc.get_threshold() != DEFAULT_THRESHOLD and (took_s := time.thread_time() - self._began) >= LONG_S:
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{took_s * 1000:.1f} collection-{facts['generation']}\n")


if __name__ == "__main__":
    path = Path(os.environ["QPID_HA_LONG_STEPS"])
    gc.callbacks.append(TimedCollections(path))
    for owner, name in STEPS:
        setattr(owner, name, timed(getattr(owner, name), f"{owner.__name__}.{name}", path))
    main()
