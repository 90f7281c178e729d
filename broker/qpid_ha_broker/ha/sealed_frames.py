"""What all frames between brokers have in common: a kind, a head, data, and the table that says what each kind has.

Before the head stand the kind, the sizes of head and data, and the checksum of these three and the head: the head says
what the data are. The data are records, each of which has a checksum of its own, or a payload that its publisher
answers for, so the bulk is summed once. docs/protocol.md, "Peer channels", has the layout.

`FrameTable.decode` is total: any bytes give a frame or FrameError.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, Generic, TypeVar
from zlib import crc32

from qpid_ha_broker.events.fields import REFUSALS, UNREADABLE
from qpid_ha_broker.events.forms import Form
from qpid_ha_broker.events.json_forms import JsonForm
from qpid_ha_broker.events.layout import Layout
from qpid_ha_broker.ha.frames import FrameError

MAX_FRAME_BYTES: Final = 130 * 1024 * 1024
"""The largest record, in the largest batch, with room for the head."""

Buffer = bytes | bytearray | memoryview

_SIZES: Final = Layout({"kind": "B", "head_bytes": "I", "data_bytes": "I"})
_CHECKSUM: Final = Layout({"checksum": "I"}, _SIZES.end)
_NOTE: Final = _SIZES + _CHECKSUM
_NOTE_BYTES: Final = _NOTE.size
_SIZES_BYTES: Final = _SIZES.size
_pack_sizes, _pack_checksum, _unpack_note = _SIZES.pack, _CHECKSUM.pack, _NOTE.unpack_from

FrameT = TypeVar("FrameT")


def note(kind: int, head: bytes, data_bytes: int, most: int = MAX_FRAME_BYTES) -> bytes:
    """What stands before the head of a frame with so many bytes of data. Raises ValueError for more than `most`."""
    if _NOTE_BYTES + len(head) + data_bytes > most:
        raise ValueError(f"{_NOTE_BYTES + len(head) + data_bytes} bytes, at most {most} are sent as one")
    sizes = _pack_sizes(kind, len(head), data_bytes)
    return sizes + _pack_checksum(crc32(head, crc32(sizes)))


def unseal(frame: Buffer, most: int = MAX_FRAME_BYTES) -> tuple[int, memoryview, memoryview]:
    """Kind, head and data of a frame that is whole. Raises FrameError."""
    view = memoryview(frame).cast("B")
    if len(view) < _NOTE_BYTES:
        raise FrameError(f"expected a frame of {_NOTE_BYTES} bytes or more, found {len(view)}")
    kind, head_bytes, data_bytes, checksum = _unpack_note(view)
    stop = _NOTE_BYTES + head_bytes
    if stop + data_bytes != len(view) or len(view) > most:
        raise FrameError(f"expected a frame of {stop + data_bytes} bytes, found {len(view)}")
    head = view[_NOTE_BYTES:stop]
    found = crc32(head, crc32(view[:_SIZES_BYTES]))
    if found != checksum:
        raise FrameError(f"expected CRC-32 {checksum:#010x}, found {found:#010x}: damaged on its way")
    return kind, head, view[stop:]


class FrameTable(Generic[FrameT]):
    """The frames of a conversation by their kinds, and the form of each."""

    def __init__(self, noun: str, rows: Mapping[IntEnum, Form | JsonForm]) -> None:
        """`noun`: what is expected where another kind comes."""
        self._noun = noun
        self._writers = {form.made: (int(kind), form.write) for kind, form in rows.items()}
        self._readers = {int(kind): (kind.name, form.payload, form.read) for kind, form in rows.items()}

    def encode(self, frame: FrameT) -> bytes:
        """The bytes of one frame. Raises ValueError for a value that no frame can hold."""
        try:
            kind, write = self._writers[type(frame)]
            head, data = write(frame)
            return b"".join((note(kind, head, len(data)), head, data))
        except (*REFUSALS, KeyError) as error:
            raise ValueError(f"{type(frame).__name__}: {error}") from error

    def decode(self, frame: Buffer) -> FrameT:
        """The frame that `frame` is, all of it. Raises FrameError. Its data are copied once, and nothing else twice."""
        kind, head, data = unseal(frame)
        row = self._readers.get(kind)
        if row is None:
            raise FrameError(f"expected {self._noun}, found {kind:#04x}: is the other broker newer?")
        name, payload, read = row
        if len(data) and not payload:
            raise FrameError(f"{name}: expected no data, found {len(data)} bytes")
        try:
            made: FrameT = read(head, data)
        except UNREADABLE as error:
            raise FrameError(f"{name}: {error}") from error
        return made
