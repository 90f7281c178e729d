"""The end of the stream, kept for backups that were away for a moment.

Like the last pages of a newspaper that a café keeps on its rack: who missed two days reads them there, and who was away
for a month has to ask for more than that. It is bounded in bytes, so a busy primary keeps seconds and an idle one days.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct("<IIQ")
"""How each record begins: its size, its seal, its LSN. See `events.codec`."""


class Stretch(NamedTuple):
    """Records from `first_lsn` to `last_lsn`, encoded: what one turn wrote, or the end of that."""

    first_lsn: int
    last_lsn: int
    data: bytes


class Tail:
    """The promise: what it holds is one unbroken run of records up to `last_lsn`, of at most `limit_bytes`."""

    __slots__ = ("_stretches", "last_lsn", "limit_bytes", "size")

    def __init__(self, limit_bytes: int, last_lsn: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.last_lsn = last_lsn
        """Of the stream; also when nothing is held."""
        self.size = 0
        """Bytes of records that are held."""
        self._stretches: deque[Stretch] = deque()

    @property
    def first_lsn(self) -> int:
        """The oldest record that is held; when there is none, the one that comes next."""
        return self._stretches[0].first_lsn if self._stretches else self.last_lsn + 1

    def append(self, first_lsn: int, last_lsn: int, data: bytes) -> None:
        """Add what the stream goes on with. Raises ValueError for a gap: somebody lost a batch."""
        if first_lsn != self.last_lsn + 1 or last_lsn < first_lsn:
            raise ValueError(f"the stream goes on at LSN {self.last_lsn + 1}, found {first_lsn} to {last_lsn}")
        self._stretches.append(Stretch(first_lsn, last_lsn, data))
        self.last_lsn = last_lsn
        self.size += len(data)
        while self.size > self.limit_bytes:
            self.size -= len(self._stretches.popleft().data)

    def holds_after(self, lsn: int) -> bool:
        """Whether somebody who has all up to `lsn` can be given the rest; True too when there is no rest."""
        return self.first_lsn - 1 <= lsn <= self.last_lsn

    def after(self, lsn: int) -> Iterator[Stretch]:
        """All records after `lsn`, oldest first; what is appended meanwhile is not among them.

        Raises LookupError where `holds_after` is False.
        """
        if not self.holds_after(lsn):
            raise LookupError(f"held are the LSNs {self.first_lsn} to {self.last_lsn}, wanted those after {lsn}")
        wanted: list[Stretch] = []
        # From the new end: who comes back soon must not cost a walk through all that is kept for the others.
        for stretch in reversed(self._stretches):
            if stretch.last_lsn <= lsn:
                break
            wanted.append(stretch)
        if wanted:
            wanted[-1] = _without_head(wanted[-1], lsn)
        return reversed(wanted)

    def truncate_after(self, lsn: int) -> None:
        """Forget the records after `lsn`: the cluster does not have them."""
        if lsn < self.first_lsn - 1:
            self.reset(lsn)
            return
        while self._stretches and self._stretches[-1].first_lsn > lsn:
            self.size -= len(self._stretches.pop().data)
        if self._stretches and self._stretches[-1].last_lsn > lsn:
            last = self._stretches.pop()
            kept = last.data[: _offset_after(last, lsn)]
            self._stretches.append(Stretch(last.first_lsn, lsn, kept))
            self.size -= len(last.data) - len(kept)
        self.last_lsn = min(self.last_lsn, lsn)

    def reset(self, last_lsn: int) -> None:
        """Hold nothing; the stream goes on after `last_lsn`."""
        self._stretches.clear()
        self.size = 0
        self.last_lsn = last_lsn

    def check_invariants(self) -> None:
        """Raise AssertionError where the run is broken or miscounted."""
        following = self.first_lsn
        for first_lsn, last_lsn, _ in self._stretches:
            if first_lsn != following:
                raise AssertionError(f"expected LSN {following} to follow, found {first_lsn}")
            following = last_lsn + 1
        size = sum(len(stretch.data) for stretch in self._stretches)
        if (following - 1, size) != (self.last_lsn, self.size) or size > self.limit_bytes:
            raise AssertionError(f"the run ends at {following - 1} with {size} bytes, not {self.last_lsn}, {self.size}")


def _without_head(stretch: Stretch, lsn: int) -> Stretch:
    if lsn < stretch.first_lsn:
        return stretch
    return Stretch(lsn + 1, stretch.last_lsn, stretch.data[_offset_after(stretch, lsn) :])


def _offset_after(stretch: Stretch, lsn: int) -> int:
    """Where the record after `lsn` begins."""
    offset = 0
    while offset < len(stretch.data):
        size, _, found = _HEAD.unpack_from(stretch.data, offset)
        if found > lsn:
            break
        offset += size
    return offset
