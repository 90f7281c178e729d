"""What runs for the length of a `with`: processes on loopback, whose ports stay theirs while they are down."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

HOST: Final = "127.0.0.1"
LAST_WORDS: Final = 1500
"""Characters of a log."""


class RunsWhileUsed:
    """Started and stopped by its `with`; stopped, too, when it cannot start. An error gets what was said last."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            for name, log in self.logs():
                error.add_note(f"--- {name}, last words:\n{log[-LAST_WORDS:]}")
        self.stop()

    def start(self) -> None:
        """Start all of it."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it starts")

    def stop(self) -> None:
        """End every process, of those that were started, and leave nothing."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it ends")

    def logs(self) -> Iterable[tuple[str, str]]:
        """What each process has said, behind its name."""
        return ()


def reserve_port(stack: ExitStack, port: int = 0) -> int:
    """A free port, or this one, that stays ours while its process is down: bound here until `stack` ends, and never
    listened on. Raises OSError when somebody has it."""
    with ExitStack() as bound:
        reservation = bound.enter_context(socket.socket())
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((HOST, port))
        stack.push(bound.pop_all())
        return int(reservation.getsockname()[1])
