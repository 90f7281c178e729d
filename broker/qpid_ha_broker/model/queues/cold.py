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

import sys
from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from typing import Final
from zlib import crc32

from qpid_ha_broker.events.layout import ONE_QUEUE, PLAIN, SEAL, WORDS, Layout, RecordKind, word_of
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import RUN_BYTES, BodyRef, BodySource, read_bodies

GAPS: Final = 4
"""One read brings up to so many times what is wanted: messages of other queues lie in between."""

_ENQUEUED: Final = word_of(RecordKind.ENQUEUED)
_COLUMN: Final = Layout({"width": "B", "first": "Q"})
_STEP: Final = Layout({"step": "Q"})
_CODES: Final = {2: "H", 4: "I", 8: "Q"}
"""Of arrays with steps of so many bytes."""


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

    def read(self) -> list[bytes] | None:
        """The bodies, in the order of the ids, with one read. None: one of them is not as it was written, or cannot be
        read; `read_bodies` of `refs` says which, and why. Waits for the disk and touches nothing: for another thread.
        """
        ids, offsets, sums = unpacked(self._columns, self.count)
        sizes = list(map(sub, sums, (0, *sums)))
        start, stop = offsets[0], offsets[-1] + PLAIN.size + sizes[-1]
        if stop - start > GAPS * (self.body_bytes + self.count * PLAIN.size) + RUN_BYTES:
            bodies = [body for body in read_bodies(self.refs()) if isinstance(body, bytes)]
            return bodies if len(bodies) == self.count else None
        try:
            data = self.source.read(start, stop - start)
        except OSError:
            return None
        return None if len(data) < stop - start else _bodies(data, start, ids, offsets, sizes)

    def moved(self, source: BodySource, offsets: Sequence[int]) -> ColdMessages:
        """The same messages, whose records are there now, in another file."""
        ids, _, sums = unpacked(self._columns, self.count)
        return ColdMessages(
            self.header, source, packed(ids, offsets, sums),
            count=self.count, first_id=self.first_id, last_id=self.last_id, body_bytes=self.body_bytes,
        )  # fmt: skip


def _bodies(data: bytes, start: int, ids: list[int], offsets: list[int], sizes: list[int]) -> list[bytes] | None:
    unpack, plain, sealed_at, bodies = WORDS.unpack_from, PLAIN.size, SEAL.end, list[bytes]()
    body_at = plain - sealed_at
    for lsn, offset, body_size in zip(ids, offsets, sizes, strict=True):
        at = offset - start
        size, checksum, found_lsn, word, _, _, _, lengths, _ = unpack(data, at)
        sealed = data[at + sealed_at : at + plain + body_size]
        if found_lsn != lsn or word != _ENQUEUED or lengths != ONE_QUEUE or size != plain + body_size:
            return None
        if crc32(sealed) != checksum:
            return None
        bodies.append(sealed[body_at:])
    return bodies


def packed(*columns: Sequence[int]) -> bytes:
    """The bytes of `columns`, each of ascending numbers, all of one length that is not 0."""
    return b"".join(map(_packed_column, columns))


def _packed_column(numbers: Sequence[int]) -> bytes:
    first, last, count = numbers[0], numbers[-1], len(numbers)
    step = (last - first) // (count - 1) if count > 1 else 0
    if step > 0 and first + step * (count - 1) == last and list(numbers) == list(range(first, last + 1, step)):
        return _COLUMN.pack(0, first) + _STEP.pack(step)
    steps = list(map(sub, numbers[1:], numbers))
    least, most = min(steps, default=0), max(steps, default=0)
    if least < 0:
        raise ValueError("expected numbers that ascend")
    if least == most:
        return _COLUMN.pack(0, first) + _STEP.pack(least)
    width = 2 if most < 1 << 16 else 4 if most < 1 << 32 else 8
    return _COLUMN.pack(width, first) + _little_endian(array(_CODES[width], steps)).tobytes()


def _little_endian(numbers: array[int]) -> array[int]:
    """From or to the order of the machine."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


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
        if width not in _CODES:
            raise ValueError(f"expected steps of 2, 4 or 8 bytes, found {width}")
        steps, length = array(_CODES[width]), width * (count - 1)
        steps.frombytes(data[at : at + length])
        lists.append(list(accumulate(_little_endian(steps), initial=first)))
        at += length
    if at != len(data):
        raise ValueError(f"expected {at} bytes of columns, found {len(data)}")
    return lists
