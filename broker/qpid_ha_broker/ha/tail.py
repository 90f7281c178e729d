"""The end of the stream, kept for backups that were away for a moment.

It is bounded in bytes (`ha.tail-size`), so a busy primary keeps seconds and an idle one days. A backup that lacks more
than that has to compare what both hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import Final, NamedTuple

from qpid_ha_broker.events.scan import offset_after


class Stretch(NamedTuple):
    """Records from `first_lsn` to `last_lsn`, encoded: what one turn wrote, or the end of that."""

    first_lsn: int
    last_lsn: int
    data: bytes


_LAST_LSN: Final = attrgetter("last_lsn")


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

    def piece_after(self, lsn: int, max_records: int, max_bytes: int) -> Stretch | None:
        """The next records after `lsn` as one stretch: at least one turn's, however large; None when there are none.

        Raises LookupError where `holds_after` is False.
        """
        if not self.holds_after(lsn):
            raise LookupError(f"held are the LSNs {self.first_lsn} to {self.last_lsn}, wanted those after {lsn}")
        if lsn == self.last_lsn:
            return None
        index = bisect_right(self._stretches, lsn, key=_LAST_LSN)
        first = _without_head(self._stretches[index], lsn)
        pieces, last_lsn, size = [first.data], first.last_lsn, len(first.data)
        for following in range(index + 1, len(self._stretches)):
            stretch = self._stretches[following]
            size += len(stretch.data)
            if size > max_bytes or stretch.last_lsn - lsn > max_records:
                break
            pieces.append(stretch.data)
            last_lsn = stretch.last_lsn
        return Stretch(first.first_lsn, last_lsn, b"".join(pieces))

    def truncate_after(self, lsn: int) -> None:
        """Forget the records after `lsn`: the cluster does not have them."""
        if lsn < self.first_lsn - 1:
            self.reset(lsn)
            return
        while self._stretches and self._stretches[-1].first_lsn > lsn:
            self.size -= len(self._stretches.pop().data)
        if self._stretches and self._stretches[-1].last_lsn > lsn:
            last = self._stretches.pop()
            kept = last.data[: offset_after(last.data, lsn)]
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
        following, size = self.first_lsn, 0
        for first_lsn, last_lsn, data in self._stretches:
            if first_lsn != following:
                raise AssertionError(f"expected LSN {following} to follow, found {first_lsn}")
            following = last_lsn + 1
            size += len(data)
        if (following - 1, size) != (self.last_lsn, self.size) or size > self.limit_bytes:
            raise AssertionError(f"the run ends at {following - 1} with {size} bytes, not {self.last_lsn}, {self.size}")


def _without_head(stretch: Stretch, lsn: int) -> Stretch:
    if lsn < stretch.first_lsn:
        return stretch
    return Stretch(lsn + 1, stretch.last_lsn, stretch.data[offset_after(stretch.data, lsn) :])
