"""Attaches and detaches that are answered later: what they are about is being made, or committed, and that takes more
than this turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import proton

from qpid_ha_broker.amqp.wire.conditions import AmqpError

Told = Callable[[AmqpError | None], None]
"""Called once: None when it is worth another attempt, else the reason for which there will be no node."""


class NodeWait:
    """Something that attaches wait for. Whoever makes the node ends it, once; links come and go meanwhile."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        """What is waited for, for a client that has waited too long."""
        self._waiting: dict[Told, None] = {}

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, callback: Told) -> None:
        """Call `callback` at the end."""
        self._waiting[callback] = None

    def forget(self, callback: Told) -> None:
        """`callback` is not called any more."""
        self._waiting.pop(callback, None)

    def forget_all(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()

    def ready(self) -> None:
        """The node is there, or it is known by now who has it: let all attach again."""
        self._end(None)

    def fail(self, error: AmqpError) -> None:
        """The node will not be there: refuse all who wait."""
        self._end(error)

    def _end(self, error: AmqpError | None) -> None:
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            callback(error)


class AttachWaits(Exception):
    """Raised instead of an answer to an attach: the same attach is to be tried again when `wait` has ended."""

    def __init__(self, wait: NodeWait) -> None:
        super().__init__(wait.reason)
        self.wait = wait


@dataclass(frozen=True, eq=False)
class WaitingAttach:
    """A link whose attach is answered later."""

    link: proton.Link
    wait: NodeWait
    callback: Told
    until_s: float
    """By the container's clock: then it is refused."""


@dataclass(frozen=True, eq=False)
class WaitingDetach:
    """A link that its peer has closed, which is answered later."""

    link: proton.Link
    wait: NodeWait
    callback: Told
