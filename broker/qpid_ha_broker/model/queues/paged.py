"""Bodies of messages that are on disk alone: where they are, and how they are read back.

Where a record lies is for the store to say; that what lies there is the record that was meant, each reading checks:
by the record's checksum, by its LSN, and by the length of the payload.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Protocol, final
from zlib import crc32

from qpid_ha_broker.events.codec import MAX_RECORD_BYTES
from qpid_ha_broker.events.layout import ENQUEUED, ENQUEUED_KINDS, HEADER, SEAL, VERSION, due_bytes

RUN_BYTES: Final = 512 * 1024
"""One read brings so much at most: whoever reads in a thread must not keep the interpreter for long after it."""
GAP_BYTES: Final = 32 * 1024
"""Records that lie so close are read together, with what is between them."""

QUEUES_AND_KEY_BYTES: Final = 64
"""Of a record, read on trial: the ids of its queues and its key, whose lengths only the record tells."""

_UPTO_QUEUES: Final = HEADER + ENQUEUED
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE})


class BodyDamaged(Exception):
    """A message cannot be read back. `file` and `offset` say where it should be; `lsn` 0: nobody looked whose it is.

    `is_shortage`: its file was not even looked at, because there was no file descriptor; there may be one later.
    """

    def __init__(self, file: str, offset: int, lsn: int, text: str, *, is_shortage: bool = False) -> None:
        subject = f"message {lsn}" if lsn else "some messages"
        super().__init__(f"{file}, offset {offset}: {subject} cannot be read back: {text}")
        self.file = file
        self.offset = offset
        self.lsn = lsn
        self.is_shortage = is_shortage


class BodySource(Protocol):
    """A file with records: a segment of the journal, or a snapshot."""

    name: str
    """Its path in the store: for people."""

    def read(self, offset: int, length: int) -> bytes:
        """What is there, less at the end of the file. Raises OSError."""


@final
class BodyRef:
    """Where the body of a message is that is on disk alone: in the record of LSN `lsn`, at `offset` in `source`.

    It is an address and reads nothing: see `read_bodies`. It takes a hundred bytes of memory itself.
    """

    __slots__ = ("lsn", "offset", "size", "source")

    def __init__(self, lsn: int, source: BodySource, offset: int, size: int) -> None:
        self.lsn = lsn
        self.source = source
        self.offset = offset
        self.size = shared_size(size)
        """Of the body, in bytes."""

    @property
    def record_bytes(self) -> int:
        """How long its record is, or a little less than that, as long as it was not read."""
        return _UPTO_QUEUES.size + QUEUES_AND_KEY_BYTES + self.size


Body = bytes | BodyRef
"""The body of a message, or where it is."""


@lru_cache(4096)
def shared_size(size: int) -> int:
    """The number itself, as one object for many messages."""
    return size


def read_bodies(refs: Sequence[BodyRef]) -> list[bytes | BodyDamaged]:
    """All of `refs`, in that order, neighbours with one read; for those that cannot be read, why.

    Each is what the record says that was written under its LSN. Waits for the disk and touches nothing but the sources:
    run it in another thread.
    """
    bodies: dict[int, bytes | BodyDamaged] = {}
    numbered = sorted(enumerate(refs), key=lambda numbered_ref: (numbered_ref[1].source.name, numbered_ref[1].offset))
    for run in _runs(numbered):
        bodies.update(_read_run(run))
    return [bodies[number] for number in range(len(refs))]


_Numbered = tuple[int, BodyRef]


def _runs(refs: Iterable[_Numbered]) -> Iterator[list[_Numbered]]:
    """Bodies that lie so close to each other that one read brings them."""
    run: list[_Numbered] = []
    start = end = 0
    for numbered_ref in refs:
        ref = numbered_ref[1]
        stop = ref.offset + ref.record_bytes
        if run and (ref.source is not run[0][1].source or ref.offset > end + GAP_BYTES or stop > start + RUN_BYTES):
            yield run
            run = []
        if not run:
            start = ref.offset
        run.append(numbered_ref)
        end = stop
    if run:
        yield run


def _read_run(run: list[_Numbered]) -> Iterator[tuple[int, bytes | BodyDamaged]]:
    first, last = run[0][1], run[-1][1]
    source, start = first.source, first.offset
    try:
        data = source.read(start, last.offset + last.record_bytes - start)
    except OSError as error:
        text, is_shortage = error.strerror or str(error), error.errno in _SHORTAGES
        for number, ref in run:
            yield number, BodyDamaged(source.name, ref.offset, ref.lsn, text, is_shortage=is_shortage)
        return
    for number, ref in run:
        try:
            yield number, _body_at(data, ref.offset - start, ref)
        except BodyDamaged as error:
            yield number, error


def _body_at(data: bytes, at: int, ref: BodyRef) -> bytes:
    if at + _UPTO_QUEUES.size > len(data):
        raise _damaged(ref, "the file ends before it")
    size, checksum, lsn, kind, _, version, _, _, _, count, key_bytes = _UPTO_QUEUES.unpack_from(data, at)
    stop = at + size
    if not _UPTO_QUEUES.size <= size <= MAX_RECORD_BYTES:
        raise _damaged(ref, f"no record has {size} bytes")
    if stop > len(data):
        # It is longer than it should be: a record for more queues than its ref is in, or damage to its size.
        data, at, stop = _read_alone(ref, size), 0, size
    computed = crc32(memoryview(data)[at + SEAL.size : stop])
    if computed != checksum:
        raise _damaged(ref, f"expected CRC-32 {checksum:#010x}, found {computed:#010x}")
    if lsn != ref.lsn or kind not in ENQUEUED_KINDS or version != VERSION:
        raise _damaged(ref, f"another record is there, of kind {kind:#04x}, version {version}, LSN {lsn}")
    start = at + _UPTO_QUEUES.size + key_bytes + 8 * count + due_bytes(kind)
    if stop - start != ref.size:
        raise _damaged(ref, f"expected a body of {ref.size} bytes, found {stop - start}")
    return data[start:stop]


def _read_alone(ref: BodyRef, size: int) -> bytes:
    try:
        data = ref.source.read(ref.offset, size)
    except OSError as error:
        raise _damaged(ref, error.strerror or str(error)) from error
    if len(data) < size:
        raise _damaged(ref, f"expected a record of {size} bytes, found {len(data)}")
    return data


def _damaged(ref: BodyRef, text: str) -> BodyDamaged:
    return BodyDamaged(ref.source.name, ref.offset, ref.lsn, text)
