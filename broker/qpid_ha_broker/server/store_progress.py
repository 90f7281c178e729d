"""How far things are on their way to the disk, as the loop keeps count of it."""

from __future__ import annotations

from typing import NamedTuple


class AwaitedWrite(NamedTuple):
    """What is to be told once the pieces up to `ticket` are on disk; `number` 0: nothing of the replicated log."""

    ticket: int
    local_lsn: int
    number: int


class Given:
    """How far a log was given to us, and from where on the journal has nothing: only what nobody asked to keep came."""

    __slots__ = ("last_lsn", "left_out", "next_lsn")

    def __init__(self, last_lsn: int) -> None:
        self.last_lsn = last_lsn
        self.next_lsn = last_lsn + 1
        self.left_out = 0
