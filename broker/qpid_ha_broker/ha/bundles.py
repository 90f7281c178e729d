"""What travels on a shared connection, on which two brokers have a sub-channel for each conversation about a set.

A *bundle* is all that one broker has for the other at the end of a turn: sub-channels that begin and end, and frames on
them (`frames`, or those of another conversation: what is in one is nobody's business here). An empty bundle says that
the broker is there. The entries are in the head, under its checksum; the frames follow as they are.

`decode_bundle` is total: any bytes give entries or FrameError. docs/protocol.md, "Shared connections", has the table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

from qpid_ha_broker.ha.frame_codec import MAX_FRAME_BYTES, Buffer
from qpid_ha_broker.ha.frame_fields import MAX_NAME, MAX_TEXT
from qpid_ha_broker.ha.frames import FrameError

BUNDLE: Final = 0x70
"""The first byte. No frame of a peer channel has it: see `frame_codec.FrameKind`."""
MAX_BUNDLE_BYTES: Final = MAX_FRAME_BYTES + 64 * 1024
"""One frame of the largest size, with its note and entry."""


class Purpose(IntEnum):
    """What a sub-channel is for. A number that was once used is not given to another purpose."""

    FOLLOW = 1
    """A replica follows the primary of its set."""
    ASK = 2
    """Questions, each about the set that it names."""
    CONTROL = 3
    """A broker and the controller."""
    FORWARD = 4
    """Messages that came to an exchange here, for queues of a set that the other broker leads: see `forward_frames`."""


class SubChannelOpened(NamedTuple):
    """A sub-channel begins; about `set`, empty if it is about several. `purpose`: a `Purpose`, or a newer release's."""

    channel: int
    set: str
    purpose: int


class SubChannelFrame(NamedTuple):
    """A frame on a sub-channel."""

    channel: int
    frame: bytes


class SubChannelClosed(NamedTuple):
    """A sub-channel ends; nothing more comes on it."""

    channel: int
    reason: str


class SubChannelStopped(NamedTuple):
    """Send no more frames on a sub-channel for now: they are not read. `stopped` False: go on."""

    channel: int
    stopped: bool


Entry = SubChannelOpened | SubChannelFrame | SubChannelClosed | SubChannelStopped

_OPENED, _FRAME, _CLOSED, _STOPPED, _GOES_ON = range(1, 6)
_SIZES: Final = struct.Struct("<BII")
_NOTE: Final = struct.Struct("<BIII")
_U32: Final = struct.Struct("<I")
_ENTRY: Final = struct.Struct("<BI")
_FRAME_ENTRY: Final = struct.Struct("<BII")
_OPENED_ENTRY: Final = struct.Struct("<BIBB")
_CLOSED_ENTRY: Final = struct.Struct("<BIH")


def encode_bundle(entries: Sequence[Entry]) -> bytes:
    """The bytes of one bundle. Raises ValueError for a value that none can hold."""
    head, data, length = [], [], 0
    try:
        for entry in entries:
            if type(entry) is SubChannelFrame:
                head.append(_FRAME_ENTRY.pack(_FRAME, entry.channel, len(entry.frame)))
                data.append(entry.frame)
                length += len(entry.frame)
            else:
                head.append(_write_entry(entry))
        note = b"".join(head)
        sizes = _SIZES.pack(BUNDLE, len(note), length)
    except struct.error as error:
        raise ValueError(f"no bundle can hold that: {error}") from error
    if _NOTE.size + len(note) + length > MAX_BUNDLE_BYTES:
        raise ValueError(f"{len(note) + length} bytes, a bundle has {MAX_BUNDLE_BYTES}")
    return b"".join((sizes, _U32.pack(crc32(note, crc32(sizes))), note, *data))


def _write_entry(entry: Entry) -> bytes:
    if isinstance(entry, SubChannelOpened):
        name = entry.set.encode()
        return _OPENED_ENTRY.pack(_OPENED, entry.channel, entry.purpose, len(name)) + name
    if isinstance(entry, SubChannelClosed):
        reason = entry.reason[:MAX_TEXT].encode()
        return _CLOSED_ENTRY.pack(_CLOSED, entry.channel, len(reason)) + reason
    if isinstance(entry, SubChannelStopped):
        return _ENTRY.pack(_STOPPED if entry.stopped else _GOES_ON, entry.channel)
    raise ValueError(f"{type(entry).__name__} is no entry of a bundle")


def decode_bundle(bundle: Buffer) -> list[Entry]:
    """The entries of `bundle`, which is all of it. Raises FrameError. Each frame is copied once."""
    view = memoryview(bundle).cast("B")
    if len(view) < _NOTE.size:
        raise FrameError(f"expected a bundle of {_NOTE.size} bytes or more, found {len(view)}")
    kind, head_bytes, data_bytes, checksum = _NOTE.unpack_from(view)
    if kind != BUNDLE:
        raise FrameError(f"expected a bundle ({BUNDLE:#04x}), found kind {kind:#04x}: is the other broker newer?")
    at, stop = _NOTE.size, _NOTE.size + head_bytes
    if stop + data_bytes != len(view) or len(view) > MAX_BUNDLE_BYTES:
        raise FrameError(f"expected a bundle of {stop + data_bytes} bytes, found {len(view)}")
    found = crc32(view[at:stop], crc32(view[: _SIZES.size]))
    if found != checksum:
        raise FrameError(f"expected CRC-32 {checksum:#010x}, found {found:#010x}: damaged on its way")
    head, data_at = view[:stop], stop
    entries: list[Entry] = []
    try:
        while at < stop:
            if head[at] == _FRAME:
                _, channel, length = _FRAME_ENTRY.unpack_from(head, at)
                at += _FRAME_ENTRY.size
                if data_at + length > len(view):
                    raise FrameError(f"expected a frame of {length} bytes, found {len(view) - data_at}")
                entries.append(SubChannelFrame(channel, bytes(view[data_at : data_at + length])))
                data_at += length
            else:
                entry, at = _read_entry(head, at)
                entries.append(entry)
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"entry {len(entries) + 1} of a bundle: {error}") from error
    if data_at != len(view):
        raise FrameError(f"expected {data_at - stop} bytes of frames, found {data_bytes}")
    return entries


def _read_entry(head: memoryview, at: int) -> tuple[Entry, int]:
    kind, channel = _ENTRY.unpack_from(head, at)
    if kind == _OPENED:
        _, _, purpose, length = _OPENED_ENTRY.unpack_from(head, at)
        name, at = _read_text(head, at + _OPENED_ENTRY.size, length, MAX_NAME)
        return SubChannelOpened(channel, name, purpose), at
    if kind == _CLOSED:
        _, _, length = _CLOSED_ENTRY.unpack_from(head, at)
        reason, at = _read_text(head, at + _CLOSED_ENTRY.size, length, MAX_TEXT)
        return SubChannelClosed(channel, reason), at
    if kind in (_STOPPED, _GOES_ON):
        return SubChannelStopped(channel, kind == _STOPPED), at + _ENTRY.size
    raise FrameError(f"expected a kind of entry that this release knows, found {kind}: is the other broker newer?")


def _read_text(head: memoryview, at: int, length: int, most: int) -> tuple[str, int]:
    if at + length > len(head):
        raise FrameError(f"expected {length} bytes of text, found {len(head) - at}")
    text = str(head[at : at + length], "utf-8")
    if len(text) > most:
        raise FrameError(f"expected at most {most} characters of text, found {len(text)}")
    return text, at + length
