"""Waiting for what is announced by no event."""

from __future__ import annotations

import time
from collections.abc import Callable

from limits import LIMIT_S

LOOK_S = 0.005


def wait_until(condition: Callable[[], object], what: Callable[[], str], timeout_s: float = LIMIT_S) -> float:
    """How long it took. Raises TimeoutError with what `what` tells."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > timeout_s:
            raise TimeoutError(what())
        time.sleep(LOOK_S)
    return time.monotonic() - began_s
