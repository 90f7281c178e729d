"""Frames to bytes and back: the form in which brokers of a cluster talk to each other.

A frame is like a parcel with a consignment note. The note (kind, sizes, checksum, head) says what is inside and is
sealed as a whole; what is inside (`data`) is records, each of which has a seal of its own, so the bulk is summed once.

`decode` is total: any bytes give a frame or FrameError. docs/protocol.md, "Peer channels", has the tables.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from itertools import chain
from operator import le, lt
from typing import Any, Final
from zlib import crc32

from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.frame_fields import MAX_MEMBERS, check_name, read_fields, write_fields
from qpid_ha_broker.ha.frames import Frame, FrameError
from qpid_ha_broker.model.message_clock import LAST_MS

MAX_FRAME_BYTES: Final = 130 * 1024 * 1024
"""The largest record, in the largest batch, with room for the head."""

Buffer = bytes | bytearray | memoryview


class FrameKind(IntEnum):
    """The first byte. A number that was once used is not given to another frame."""

    HELLO = 0x10
    WELCOME = 0x11
    REFUSED = 0x12
    BATCH = 0x20
    ACK = 0x21
    HEARTBEAT = 0x22
    CLOCK_READING = 0x23
    HOLDINGS = 0x30
    HOLDINGS_DONE = 0x31
    OBJECTS = 0x32
    CHUNK = 0x33
    CAUGHT_UP = 0x34
    OBSERVE = 0x35
    TAKE_OVER = 0x40
    SHUTDOWN = 0x41
    QUESTION = 0x50
    ANSWER = 0x51
    FOLLOW = 0x60
    FOLLOWED = 0x61


_SIZES: Final = struct.Struct("<BII")
"""Kind, bytes of head, bytes of data."""
_NOTE: Final = struct.Struct("<BIII")
"""The same, and CRC-32 over these three and the head."""
_BATCH: Final = struct.Struct("<QQQQ")
_TWO: Final = struct.Struct("<QQ")
_THREE: Final = struct.Struct("<QQQ")
_CHUNK: Final = struct.Struct("<QQQQBI")
_U16: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


def encode(frame: Frame) -> bytes:
    """The bytes of one frame. Raises ValueError for a value that no frame can hold."""
    try:
        kind, write = _WRITERS[type(frame)]
        head, data = write(frame)
        return seal(kind, head, data)
    except (struct.error, FrameError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{type(frame).__name__}: {error}") from error


def seal(kind: int, head: bytes, data: bytes) -> bytes:
    """A frame of these parts. Raises ValueError for too many bytes."""
    if _NOTE.size + len(head) + len(data) > MAX_FRAME_BYTES:
        raise ValueError(f"{len(head) + len(data)} bytes, a frame has {MAX_FRAME_BYTES}")
    sizes = _SIZES.pack(kind, len(head), len(data))
    return b"".join((sizes, _U32.pack(crc32(head, crc32(sizes))), head, data))


def decode(frame: Buffer) -> Frame:
    """The frame that `frame` is, all of it. Raises FrameError. Its `data` is copied once, and nothing else twice."""
    kind, head, data = unseal(frame)
    read = _READERS.get(kind)
    if read is None:
        raise FrameError(f"expected a kind that this release knows, found {kind:#04x}: is the other broker newer?")
    if len(data) and kind not in _WITH_DATA:
        raise FrameError(f"{FrameKind(kind).name}: expected no data, found {len(data)} bytes")
    try:
        return read(head, data)
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"{FrameKind(kind).name}: {error}") from error
    except FrameError as error:
        raise FrameError(f"{FrameKind(kind).name}: {error}") from error


def unseal(frame: Buffer) -> tuple[int, memoryview, memoryview]:
    """Kind, head and data of a frame that is whole. Raises FrameError."""
    view = memoryview(frame).cast("B")
    if len(view) < _NOTE.size:
        raise FrameError(f"expected a frame of {_NOTE.size} bytes or more, found {len(view)}")
    kind, head_bytes, data_bytes, checksum = _NOTE.unpack_from(view)
    stop = _NOTE.size + head_bytes
    if stop + data_bytes != len(view) or len(view) > MAX_FRAME_BYTES:
        raise FrameError(f"expected a frame of {stop + data_bytes} bytes, found {len(view)}")
    head = view[_NOTE.size : stop]
    found = crc32(head, crc32(view[: _SIZES.size]))
    if found != checksum:
        raise FrameError(f"expected CRC-32 {checksum:#010x}, found {found:#010x}: damaged on its way")
    return kind, head, view[stop:]


# --- binary heads


def _write_batch(frame: fr.Batch) -> tuple[bytes, bytes]:
    return _BATCH.pack(frame.generation, frame.first_lsn, frame.last_lsn, frame.committed_lsn), frame.data


def _read_batch(head: memoryview, data: memoryview) -> fr.Batch:
    generation, first_lsn, last_lsn, committed_lsn = _BATCH.unpack(head)
    return fr.Batch(generation, first_lsn, last_lsn, committed_lsn, bytes(data))


def _write_three(frame: fr.Ack | fr.Heartbeat) -> tuple[bytes, bytes]:
    return _THREE.pack(*frame), b""


def _read_ack(head: memoryview, data: memoryview) -> fr.Ack:
    return fr.Ack(*_THREE.unpack(head))


def _read_heartbeat(head: memoryview, data: memoryview) -> fr.Heartbeat:
    return fr.Heartbeat(*_THREE.unpack(head))


def _write_clock(frame: fr.ClockReading) -> tuple[bytes, bytes]:
    return _TWO.pack(frame.generation, _reading(frame.now_ms)), b""


def _read_clock(head: memoryview, data: memoryview) -> fr.ClockReading:
    generation, now_ms = _TWO.unpack(head)
    return fr.ClockReading(generation, _reading(now_ms))


def _reading(now_ms: int) -> int:
    if now_ms > LAST_MS:
        raise FrameError(f"now_ms: expected milliseconds up to the year 9999, {LAST_MS}; found {now_ms}")
    return now_ms


def _write_holdings(frame: fr.Holdings) -> tuple[bytes, bytes]:
    flat = tuple(chain.from_iterable(frame.ranges))
    _check_ranges(flat)
    return struct.pack(f"<Q{len(flat)}Q", frame.queue, *flat), b""


def _read_holdings(head: memoryview, data: memoryview) -> fr.Holdings:
    (queue,) = _U64.unpack_from(head)
    flat = _read_pairs(head, 8)
    _check_ranges(flat)
    return fr.Holdings(queue, tuple(zip(flat[::2], flat[1::2], strict=True)))


def _check_ranges(flat: tuple[int, ...]) -> None:
    if len(flat) % 2 or not all(map(le, flat[::2], flat[1::2])) or not all(map(lt, flat[1::2], flat[2::2])):
        raise FrameError("expected ranges (first, last) that ascend and do not touch each other's ids")


def _write_holdings_done(frame: fr.HoldingsDone) -> tuple[bytes, bytes]:
    return b"", b""


def _read_holdings_done(head: memoryview, data: memoryview) -> fr.HoldingsDone:
    _expect_end(head, 0)
    return fr.HoldingsDone()


def _write_chunk(frame: fr.Chunk) -> tuple[bytes, bytes]:
    counts = len(frame.dropped)
    fixed = _CHUNK.pack(frame.generation, frame.queue, frame.low, frame.high, _truth(frame.last), counts)
    ids = (*frame.dropped, *chain.from_iterable(frame.failures))
    if len(ids) != counts + 2 * len(frame.failures):
        raise FrameError("failures: expected pairs of an id and a number")
    return fixed + struct.pack(f"<{len(ids)}Q", *ids), frame.data


def _read_chunk(head: memoryview, data: memoryview) -> fr.Chunk:
    generation, queue, low, high, last, count = _CHUNK.unpack_from(head)
    if last > 1:
        raise FrameError(f"last: expected 0 or 1, found {last}")
    dropped, at = _read_ids(head, _CHUNK.size, count)
    flat = _read_pairs(head, at)
    failures = tuple(zip(flat[::2], flat[1::2], strict=True))
    return fr.Chunk(generation, queue, low, high, last == 1, dropped, failures, bytes(data))


def _write_objects(frame: fr.Objects) -> tuple[bytes, bytes]:
    _check_members(len(frame.members))
    parts = [_THREE.pack(frame.generation, frame.lsn, frame.epoch), _U16.pack(len(frame.members))]
    parts += [_text(check_name("members", name)) for name in frame.members]
    parts.append(_U32.pack(len(frame.used)))
    for queue, owner in frame.used:
        parts += [_U64.pack(queue), _text(owner)]
    count = len(frame.unreplicated)
    parts.append(struct.pack(f"<I{count}Q", count, *frame.unreplicated))
    return b"".join(parts), frame.data


def _read_objects(head: memoryview, data: memoryview) -> fr.Objects:
    generation, lsn, epoch = _THREE.unpack_from(head)
    (count,), at = _U16.unpack_from(head, _THREE.size), _THREE.size + _U16.size
    _check_members(count)
    members = []
    for _ in range(count):
        name, at = _read_text(head, at)
        members.append(check_name("members", name))
    (count,), at = _U32.unpack_from(head, at), at + _U32.size
    used = []
    for _ in range(count):
        (queue,) = _U64.unpack_from(head, at)
        owner, at = _read_text(head, at + _U64.size)
        used.append((queue, owner))
    (count,) = _U32.unpack_from(head, at)
    unreplicated, at = _read_ids(head, at + _U32.size, count)
    _expect_end(head, at)
    return fr.Objects(generation, lsn, epoch, tuple(members), tuple(used), unreplicated, bytes(data))


def _check_members(count: int) -> None:
    if count > MAX_MEMBERS:
        raise FrameError(f"members: expected at most {MAX_MEMBERS}, found {count}")


def _truth(value: bool) -> int:
    if type(value) is not bool:
        raise FrameError(f"expected a truth value, found {value!r:.80}")
    return int(value)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


def _read_text(head: memoryview, at: int) -> tuple[str, int]:
    (length,) = _U16.unpack_from(head, at)
    start, stop = at + _U16.size, at + _U16.size + length
    if stop > len(head):
        raise FrameError(f"expected {length} bytes of text, found {len(head) - start}")
    return str(head[start:stop], "utf-8"), stop


def _read_ids(head: memoryview, at: int, count: int) -> tuple[tuple[int, ...], int]:
    if len(head) - at < 8 * count:
        raise FrameError(f"expected {count} ids of 8 bytes, found {len(head) - at} bytes")
    return struct.unpack_from(f"<{count}Q", head, at), at + 8 * count


def _read_pairs(head: memoryview, at: int) -> tuple[int, ...]:
    left = len(head) - at
    if left % 16:
        raise FrameError(f"expected pairs of 16 bytes to the end of the head, found {left} bytes")
    return struct.unpack_from(f"<{left // 8}Q", head, at)


def _expect_end(head: memoryview, at: int) -> None:
    if len(head) != at:
        raise FrameError(f"expected a head of {at} bytes, found {len(head)}")


# --- which is which


def _write_json(frame: Frame) -> tuple[bytes, bytes]:
    return write_fields(frame), b""


def _json_reader(frame_type: type[Frame]) -> Callable[[memoryview, memoryview], Frame]:
    return lambda head, data: read_fields(frame_type, head)


_BINARY: Final[dict[type[Frame], tuple[FrameKind, Callable[[Any], tuple[bytes, bytes]], Any]]] = {
    fr.Batch: (FrameKind.BATCH, _write_batch, _read_batch),
    fr.Ack: (FrameKind.ACK, _write_three, _read_ack),
    fr.Heartbeat: (FrameKind.HEARTBEAT, _write_three, _read_heartbeat),
    fr.ClockReading: (FrameKind.CLOCK_READING, _write_clock, _read_clock),
    fr.Holdings: (FrameKind.HOLDINGS, _write_holdings, _read_holdings),
    fr.HoldingsDone: (FrameKind.HOLDINGS_DONE, _write_holdings_done, _read_holdings_done),
    fr.Objects: (FrameKind.OBJECTS, _write_objects, _read_objects),
    fr.Chunk: (FrameKind.CHUNK, _write_chunk, _read_chunk),
}
_JSON: Final[dict[type[Frame], FrameKind]] = {
    fr.Hello: FrameKind.HELLO,
    fr.Welcome: FrameKind.WELCOME,
    fr.Refused: FrameKind.REFUSED,
    fr.CaughtUp: FrameKind.CAUGHT_UP,
    fr.Observe: FrameKind.OBSERVE,
    fr.TakeOver: FrameKind.TAKE_OVER,
    fr.Shutdown: FrameKind.SHUTDOWN,
    fr.Question: FrameKind.QUESTION,
    fr.Answer: FrameKind.ANSWER,
    fr.Follow: FrameKind.FOLLOW,
    fr.Followed: FrameKind.FOLLOWED,
}
_WITH_DATA: Final = frozenset({FrameKind.BATCH, FrameKind.OBJECTS, FrameKind.CHUNK})
_WRITERS: Final[dict[type[Frame], tuple[FrameKind, Callable[[Any], tuple[bytes, bytes]]]]] = {
    **{frame_type: (kind, write) for frame_type, (kind, write, _) in _BINARY.items()},
    **{frame_type: (kind, _write_json) for frame_type, kind in _JSON.items()},
}
_READERS: Final[dict[int, Callable[[memoryview, memoryview], Frame]]] = {
    **{kind: read for kind, _, read in _BINARY.values()},
    **{kind: _json_reader(frame_type) for frame_type, kind in _JSON.items()},
}
