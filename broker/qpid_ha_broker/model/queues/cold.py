"""Messages of a queue that are on disk alone and of which nobody asked since the broker started: a few bytes each.

Three columns of numbers that ascend: the ids, where in a file the records are, and the sum of the sizes of the bodies.
A column is its first number and the steps to the next ones, each in as few bytes as the largest step takes; steps that
are all alike are one number. So 512 messages that came one after the other take fifty bytes.

| | | |
| --- | --- | --- |
| 1 byte | width | of a step: 2, 4 or 8 bytes; 0: all are alike, and there is one |
| 8 bytes | first | the first number |
| width for each but the first, or 8 bytes | steps | |

It is what the index of a snapshot holds (docs/protocol.md, "The index of a snapshot"), and stays as it lies there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from struct import Struct, calcsize, pack, unpack_from
from typing import Final

from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import BodyRef, BodySource

_COLUMN: Final = Struct("<BQ")
_STEP: Final = Struct("<Q")
_FORMS: Final = {2: "H", 4: "I", 8: "Q"}


class ColdMessages:
    """Messages with one header, by ascending id, and where the record of each is in `source`. Never changes.

    `body_bytes`: of all of them.
    """

    __slots__ = ("_columns", "body_bytes", "count", "first_id", "header", "last_id", "source")

    def __init__(
        self, header: MessageHeader, source: BodySource, columns: bytes,
        *, count: int, first_id: int, last_id: int, body_bytes: int,
    ) -> None:  # fmt: skip
        self.header = header
        self.source = source
        self._columns = columns
        self.count = count
        self.first_id = first_id
        self.last_id = last_id
        self.body_bytes = body_bytes

    def ids(self) -> list[int]:
        """By ascending id."""
        return unpacked(self._columns, self.count)[0]

    def refs(self) -> list[BodyRef]:
        """Where the bodies are, in the order of the ids."""
        ids, offsets, sums = unpacked(self._columns, self.count)
        sizes = map(sub, sums, (0, *sums))
        source = self.source
        return [BodyRef(lsn, source, at, size) for lsn, at, size in zip(ids, offsets, sizes, strict=False)]

    def moved(self, source: BodySource, offsets: Sequence[int]) -> ColdMessages:
        """The same messages, whose records are there now, in another file."""
        ids, _, sums = unpacked(self._columns, self.count)
        return ColdMessages(
            self.header, source, packed(ids, offsets, sums),
            count=self.count, first_id=self.first_id, last_id=self.last_id, body_bytes=self.body_bytes,
        )  # fmt: skip


def packed(*columns: Sequence[int]) -> bytes:
    """The bytes of `columns`, each of ascending numbers, all of one length that is not 0."""
    return b"".join(map(_packed_column, columns))


def _packed_column(numbers: Sequence[int]) -> bytes:
    steps = list(map(sub, numbers[1:], numbers))
    least, most = min(steps, default=0), max(steps, default=0)
    if least < 0:
        raise ValueError("expected numbers that ascend")
    if least == most:
        return _COLUMN.pack(0, numbers[0]) + _STEP.pack(least)
    width = 2 if most < 1 << 16 else 4 if most < 1 << 32 else 8
    return _COLUMN.pack(width, numbers[0]) + pack(f"<{len(steps)}{_FORMS[width]}", *steps)


def unpacked(data: bytes, count: int, columns: int = 3) -> list[list[int]]:
    """The inverse. Raises ValueError or struct.error for bytes that `packed` does not make."""
    lists: list[list[int]] = []
    at = 0
    for _ in range(columns):
        width, first = _COLUMN.unpack_from(data, at)
        at += _COLUMN.size
        if width == 0:
            (step,) = _STEP.unpack_from(data, at)
            at += _STEP.size
            lists.append(list(range(first, first + count * step, step)) if step else [first] * count)
            continue
        if width not in _FORMS:
            raise ValueError(f"expected steps of 2, 4 or 8 bytes, found {width}")
        form = f"<{count - 1}{_FORMS[width]}"
        lists.append(list(accumulate(unpack_from(form, data, at), initial=first)))
        at += calcsize(form)
    if at != len(data):
        raise ValueError(f"expected {at} bytes of columns, found {len(data)}")
    return lists
