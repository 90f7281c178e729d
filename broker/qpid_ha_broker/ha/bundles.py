"""What travels on a shared connection, on which two brokers have a sub-channel for each conversation about a set.

A *bundle* is all that one broker has for the other at the end of a turn: sub-channels that begin and end, and frames on
them (`frames`, or those of another conversation: what is in one is nobody's business here). An empty bundle says that
the broker is there. The entries are in the head, under its checksum; the frames follow as they are.

The form of the whole is that of a frame (`sealed_frames`). `decode_bundle` is total: any bytes give entries or
FrameError. docs/protocol.md, "Shared connections", has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from qpid_ha_broker.events.fields import SHORT_TEXT, TEXT, U8, U32, UNREADABLE, tuple_of
from qpid_ha_broker.events.layout import Layout
from qpid_ha_broker.ha.frame_codec import MAX_TEXT, NAME, SENTENCE
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.ha.sealed_frames import MAX_FRAME_BYTES, Buffer, note, unseal

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
_CHANNEL: Final = tuple_of(U8, U32)
_FIELDS: Final = {
    _OPENED: tuple_of(U8, U32, U8, SHORT_TEXT),
    _CLOSED: tuple_of(U8, U32, TEXT),
    _STOPPED: _CHANNEL,
    _GOES_ON: _CHANNEL,
}
"""Kind, sub-channel, and what else there is: of an Opened purpose and set, of a Closed the reason."""
_FRAME_ENTRY: Final = Layout({"kind": "B", "channel": "I", "length": "I"})
"""Nearly every entry is a frame."""


def encode_bundle(entries: Sequence[Entry]) -> bytes:
    """The bytes of one bundle. Raises ValueError for a value that none can hold."""
    head, frames, length = [], [], 0
    try:
        for entry in entries:
            if type(entry) is SubChannelFrame:
                head.append(_FRAME_ENTRY.pack(_FRAME, entry.channel, len(entry.frame)))
                frames.append(entry.frame)
                length += len(entry.frame)
            else:
                kind, *values = _values_of(entry)
                head.append(_FIELDS[kind].write((kind, *values)))
        entered = b"".join(head)
        return b"".join((note(BUNDLE, entered, length, MAX_BUNDLE_BYTES), entered, *frames))
    except UNREADABLE as error:
        raise ValueError(f"no bundle can hold that: {error}") from error


def decode_bundle(bundle: Buffer) -> list[Entry]:
    """The entries of `bundle`, which is all of it. Raises FrameError. Each frame is copied once."""
    kind, head, data = unseal(bundle, MAX_BUNDLE_BYTES)
    if kind != BUNDLE:
        raise FrameError(f"expected a bundle ({BUNDLE:#04x}), found kind {kind:#04x}: is the other broker newer?")
    entries: list[Entry] = []
    at = data_at = 0
    try:
        while at < len(head):
            if head[at] == _FRAME:
                _, channel, length = _FRAME_ENTRY.unpack_from(head, at)
                at += _FRAME_ENTRY.size
                if data_at + length > len(data):
                    raise ValueError(f"expected a frame of {length} bytes, found {len(data) - data_at}")
                entries.append(SubChannelFrame(channel, bytes(data[data_at : data_at + length])))
                data_at += length
            else:
                entry, at = _read_entry(head, at)
                entries.append(entry)
    except UNREADABLE as error:
        raise FrameError(f"entry {len(entries) + 1} of a bundle: {error}") from error
    if data_at != len(data):
        raise FrameError(f"expected {data_at} bytes of frames, found {len(data)}")
    return entries


def _values_of(entry: Entry) -> tuple[Any, ...]:
    match entry:
        case SubChannelOpened(channel, set_name, purpose):
            return _OPENED, channel, purpose, set_name
        case SubChannelClosed(channel, reason):
            return _CLOSED, channel, reason[:MAX_TEXT]
        case SubChannelStopped(channel, stopped):
            return _STOPPED if stopped else _GOES_ON, channel
    raise ValueError(f"{type(entry).__name__} is no entry of a bundle")


def _read_entry(head: memoryview, at: int) -> tuple[Entry, int]:
    if head[at] not in _FIELDS:
        raise ValueError(f"expected a kind of entry that this release knows, found {head[at]}: is the other one newer?")
    (kind, channel, *more), at = _FIELDS[head[at]].read(head, at)
    if kind == _OPENED:
        return SubChannelOpened(channel, NAME(more[1]), more[0]), at
    if kind == _CLOSED:
        return SubChannelClosed(channel, SENTENCE(more[0])), at
    return SubChannelStopped(channel, kind == _STOPPED), at
