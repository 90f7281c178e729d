"""A message whose payload is on disk alone: all that routing and counting need is here, the bytes are fetched.

Where a record lies is for the store to say; that what lies there is the record that was meant, each reading checks:
by the record's checksum, by its LSN, and by the length of the payload.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from qpid_ha_broker.events.codec import MAX_RECORD_BYTES
from qpid_ha_broker.events.layout import ENQUEUED, HEADER, SEAL, VERSION, RecordKind
from qpid_ha_broker.events.types import Enqueued

RUN_BYTES: Final = 512 * 1024
"""One read brings so much at most: whoever reads in a thread must not keep the interpreter for long after it."""
GAP_BYTES: Final = 32 * 1024
"""Records that lie so close are read together, with what is between them."""

_UPTO_QUEUES: Final = HEADER + ENQUEUED
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE})


class BodyDamaged(Exception):
    """A message cannot be read back. `file` and `offset` say where it should be.

    `is_shortage`: its file was not even looked at, because there was no file descriptor; there may be one later.
    """

    def __init__(self, file: str, offset: int, lsn: int, text: str, *, is_shortage: bool = False) -> None:
        super().__init__(f"{file}, offset {offset}: message {lsn} cannot be read back: {text}")
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


class Shape(NamedTuple):
    """What messages of one publisher have in common; one for all of them."""

    queues: tuple[int, ...]
    durable: bool
    priority: int
    expires_at_ms: int
    key: str
    size: int


class PagedMessage:
    """Stands for an Enqueued. The promise: `payload` is what the record says that was written under `lsn`, or raises.

    Reading it one by one is slow; `read_back` brings many. What it takes itself: docs/performance.md.
    """

    __slots__ = ("lsn", "offset", "shape", "source")

    def __init__(self, lsn: int, shape: Shape, source: BodySource, offset: int) -> None:
        self.lsn = lsn
        self.shape = shape
        self.source = source
        self.offset = offset

    @property
    def queues(self) -> tuple[int, ...]:
        """As in Enqueued, and so are those that follow."""
        return self.shape.queues

    @property
    def durable(self) -> bool:
        return self.shape.durable

    @property
    def priority(self) -> int:
        return self.shape.priority

    @property
    def expires_at_ms(self) -> int:
        return self.shape.expires_at_ms

    @property
    def key(self) -> str:
        return self.shape.key

    @property
    def size(self) -> int:
        """Of the payload."""
        return self.shape.size

    @property
    def payload(self) -> bytes:
        """Fetched from disk now. Raises BodyDamaged."""
        return self.whole().payload

    def whole(self) -> Enqueued:
        """The message as it was before it was paged out. Raises BodyDamaged."""
        result = read_back((self,))[0]
        if isinstance(result, BodyDamaged):
            raise result
        return result

    @property
    def record_bytes(self) -> int:
        """How long its record is, as far as this can be known before it is read."""
        queues, _, _, _, key, size = self.shape
        return _UPTO_QUEUES.size + 8 * len(queues) + len(key) + size


Outline = Enqueued | PagedMessage
"""A message of which everything but the payload costs nothing."""


def size_of(message: Outline) -> int:
    """Bytes of payload, wherever they are."""
    return message.shape.size if type(message) is PagedMessage else len(message.payload)


class Shapes:
    """Makes shapes, each once as long as there are few of them; expiry times and last-value keys make many."""

    def __init__(self, at_most: int = 4096) -> None:
        self._known: dict[Shape, Shape] = {}
        self._last = Shape((), False, 0, 0, "", 0)
        self._at_most = at_most

    def of(self, event: Enqueued) -> Shape:
        """That of a message that is here."""
        queues, payload, durable, priority, expires_at_ms, key = event
        shape = (queues, durable, priority, expires_at_ms, key, len(payload))
        if shape != self._last:
            self._last = self.get(Shape(*shape))
        return self._last

    def get(self, shape: Shape) -> Shape:
        """One that equals `shape`."""
        known = self._known.get(shape)
        if known is None:
            if len(self._known) >= self._at_most:
                self._known.clear()
            known = self._known[shape] = shape
        return known


def read_back(messages: Sequence[PagedMessage]) -> list[Enqueued | BodyDamaged]:
    """All of `messages`, in that order, neighbours with one read; for those that cannot be read, why.

    Touches nothing but their sources: it may run in another thread.
    """
    found: dict[int, Enqueued | BodyDamaged] = {}
    numbered = sorted(enumerate(messages), key=lambda each: (each[1].source.name, each[1].offset))
    for run in _runs(numbered):
        found.update(_read_run(run))
    return [found[number] for number in range(len(messages))]


_Numbered = tuple[int, PagedMessage]


def _runs(messages: Iterable[_Numbered]) -> Iterator[list[_Numbered]]:
    """Messages that lie so close to each other that one read brings them."""
    run: list[_Numbered] = []
    start = end = 0
    for each in messages:
        message = each[1]
        stop = message.offset + message.record_bytes
        if run and (
            message.source is not run[0][1].source or message.offset > end + GAP_BYTES or stop > start + RUN_BYTES
        ):
            yield run
            run = []
        if not run:
            start = message.offset
        run.append(each)
        end = stop
    if run:
        yield run


def _read_run(run: list[_Numbered]) -> Iterator[tuple[int, Enqueued | BodyDamaged]]:
    first, last = run[0][1], run[-1][1]
    source, start = first.source, first.offset
    try:
        data = source.read(start, last.offset + last.record_bytes - start)
    except OSError as error:
        text, is_shortage = error.strerror or str(error), error.errno in _SHORTAGES
        for number, message in run:
            yield number, BodyDamaged(source.name, message.offset, message.lsn, text, is_shortage=is_shortage)
        return
    for number, message in run:
        try:
            yield number, _message_at(data, message.offset - start, message)
        except BodyDamaged as error:
            yield number, error


def _message_at(data: bytes, at: int, message: PagedMessage) -> Enqueued:
    if at + _UPTO_QUEUES.size > len(data):
        raise _damaged(message, "the file ends before it")
    size, checksum, lsn, kind, _, version, _, _, _, count, key_bytes = _UPTO_QUEUES.unpack_from(data, at)
    stop = at + size
    if not _UPTO_QUEUES.size <= size <= MAX_RECORD_BYTES:
        raise _damaged(message, f"no record has {size} bytes")
    if stop > len(data):
        # It is longer than it should be: a record for more queues than its message is in, or damage to its size.
        data, at, stop = _read_alone(message, size), 0, size
    found = crc32(memoryview(data)[at + SEAL.size : stop])
    if found != checksum:
        raise _damaged(message, f"expected CRC-32 {checksum:#010x}, found {found:#010x}")
    if lsn != message.lsn or kind != RecordKind.ENQUEUED or version != VERSION:
        raise _damaged(message, f"another record is there, of kind {kind:#04x}, version {version}, LSN {lsn}")
    start = at + _UPTO_QUEUES.size + key_bytes + 8 * count
    if stop - start != message.shape.size:
        raise _damaged(message, f"expected a payload of {message.shape.size} bytes, found {stop - start}")
    queues, durable, priority, expires_at_ms, key, _ = message.shape
    return Enqueued(queues, data[start:stop], durable, priority, expires_at_ms, key)


def _read_alone(message: PagedMessage, size: int) -> bytes:
    try:
        data = message.source.read(message.offset, size)
    except OSError as error:
        raise _damaged(message, error.strerror or str(error)) from error
    if len(data) < size:
        raise _damaged(message, f"expected a record of {size} bytes, found {len(data)}")
    return data


def _damaged(message: PagedMessage, text: str) -> BodyDamaged:
    return BodyDamaged(message.source.name, message.offset, message.lsn, text)
