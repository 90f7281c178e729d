"""qpidd with a stopwatch: every step of its loop that took long goes into a file, by the processor's time.

Run as a program, with the file's path in QPID_HA_LONG_STEPS. Processor time of the loop's thread, so that neither a
busy machine nor another thread of the broker makes a step long.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qpid_ha_broker.amqp.container import Container
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.client_protocol import ClientProtocol
from qpid_ha_broker.server.main import main
from qpid_ha_broker.server.membership import Membership
from qpid_ha_broker.server.pager import Pager
from qpid_ha_broker.server.store_base import BaseDump

LONG_S: Final = 0.004
STEPS: Final = (
    (ClientProtocol, "data_received"),
    (ClientProtocol, "_go_on"),
    (ClientProtocol, "connection_lost"),
    (ClientProtocol, "resume_writing"),
    (Broker, "turn"),
    (Container, "tick"),
    (Membership, "feed"),
    (Pager, "_work"),
    (BaseDump, "_give"),
)
"""What the loop calls, and what runs long inside of that."""


def timed(step: Callable[..., Any], name: str, path: Path) -> Callable[..., Any]:
    """`step`, with a line in the file at `path` whenever it took long: milliseconds and name."""

    @functools.wraps(step)
    def measured(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return step(*arguments)
        finally:
            took_s = time.thread_time() - began
            if took_s >= LONG_S:
                with path.open("a", encoding="ascii") as file:
                    file.write(f"{took_s * 1000:.1f} {name}\n")

    return measured


if __name__ == "__main__":
    for owner, name in STEPS:
        path = Path(os.environ["QPID_HA_LONG_STEPS"])
        setattr(owner, name, timed(getattr(owner, name), f"{owner.__name__}.{name}", path))
    main()
