"""Replicas that a broker should have and has not: those whose store has failed, and those of sets that have ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.cluster.shutdown import RESUME_S

log = logging.getLogger("cluster")


class AbsentReplicas:
    """The promise: none of these is hosted again before an operator, or the end of a shutdown, gives a reason."""

    def __init__(self) -> None:
        self.problems: Final[dict[str, str]] = {}
        """By set, why this broker cannot have its replica: until it is told to have none, or starts again."""
        self.failed: Callable[[], None] = lambda: None
        """Called when there is another one of `problems`."""
        self._ended: dict[str, float] = {}
        """Sets that ended because the cluster does, and until when this broker waits for its own end."""

    def __contains__(self, name: str) -> bool:
        return name in self.problems or name in self._ended

    def fail(self, name: str, reason: str) -> None:
        """This broker cannot have a replica of that set."""
        self.problems[name] = reason
        self.failed()

    def forget(self, name: str) -> bool:
        """This broker should have none any more; whether it was one of these."""
        was_here = name in self
        self.problems.pop(name, None)
        self._ended.pop(name, None)
        return was_here

    def end(self, name: str) -> None:
        """The whole cluster ends, and that set has: this broker is next."""
        self._ended[name] = time.monotonic() + RESUME_S

    def resumed(self, now_s: float) -> list[str]:
        """Sets that had ended, and are to be had again because this broker goes on; told once."""
        due = [name for name, until_s in self._ended.items() if until_s <= now_s]
        for name in due:
            log.warning("set %s: the cluster was not shut down after all; this broker's replica comes back", name)
            del self._ended[name]
        return due
