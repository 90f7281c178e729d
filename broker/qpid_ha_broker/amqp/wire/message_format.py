"""`message-format` of transfers (AMQP 1.0 section 2.7.5), which Proton neither tells nor sends: in front of payloads.

A message whose format is not 0 has it in front of its first section, within the broker and in its log: see
`events.payloads`. One with the format 0 has nothing there, and is as it was sent.

On a connection without TLS the frames can be seen before Proton reads them, and after it has written them: there the
field moves in front of the payload (`FormatReader`), and back (`FormatWriter`). TLS is Proton's own: what comes over it
counts as 0, and what goes out over it is sent as 0.

A frame becomes larger by one byte where it is read, and smaller by one where it is written, so that what one broker
sends to another has room in every frame. Of a frame of the largest size that has none, the tag loses its last byte,
which nobody asks for.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.values import compound_at, places, simple_value, value_end
from qpid_ha_broker.events.payloads import FORMAT_LENGTHS, format_of, with_format

_FRAME: Final = struct.Struct(">IBBH")
"""Size, offset of the data in words, type, channel (section 2.3.1)."""
_UINT: Final = struct.Struct(">I")
_PROTOCOL: Final = b"AMQP"
"""How a protocol header begins; as the size of a frame it would be over a thousand million."""
_AMQP_TYPE: Final = 0
_TRANSFER, _DETACH, _END = 0x14, 0x16, 0x17
_DESCRIPTORS: Final = {"amqp:transfer:list": _TRANSFER, "amqp:detach:list": _DETACH, "amqp:end:list": _END}
_TAG_FIELD, _FORMAT_FIELD, _MORE_FIELD, _ABORTED_FIELD = 2, 3, 5, 9
_FIELDS: Final = 10
_NO_FORMAT, _SHORT_BINARY = b"\x43", b"\xa0"
_EXAMINED_BYTES: Final = 1024
"""Of a frame: a performative of a transfer that is longer than that is passed on without a look."""
_EXPECTED_MOST: Final = 20_000
"""Messages of one connection that wait to be written; of more the first, whose links have ended, are forgotten."""

_TAGS: Final = b"|".join(b"%b.{%d}" % (re.escape(bytes((length,))), length) for length in range(33))
_USUAL: Final = re.compile(
    b".{4}\\x02(?:\\x01|\\x00..\\x00S(?:[^\\x14]|\\x14(?:\\xc0.[\\x00-\\x03]|(?:\\xc0..|\\xd0.{8})"
    b"(?:\\x43|\\x52.|\\x70.{4})(?:[\\x40\\x43]|\\x52.|\\x70.{4})(?:\\x40|\\xa0(?:" + _TAGS + b"))"
    b"(?:[\\x40\\x43]|\\x52\\x00|\\x70\\x00{4}))))",
    re.DOTALL,
).match
"""A frame that is surely no transfer with a format other than 0: of SASL, another performative, or such a transfer."""


FrameWalk = Callable[[bytes | memoryview, int], tuple[int, bool]]
"""Goes past frames that `_USUAL` matches, from the one on that begins there: where the first other one begins, and
whether an attach was among those (AMQP 1.0 section 2.7.3)."""


class _Frame(NamedTuple):
    """What matters of a frame; `code` 0: it has no performative."""

    code: int
    channel: int
    fields: list[object]
    payload_at: int


class FormatReader:
    """The promise: Proton is given the frames that came, of which each that begins a message with a format other than 0
    has that in front of its payload. What is no AMQP, or is not understood, it is given as it came.

    A frame is held back until as much of it has come as says whether it has one.
    """

    def __init__(self, max_frame: int, walk: FrameWalk | None = None) -> None:
        """`max_frame`: bytes of a frame at most, 0: no limit. `walk`: the kernel's; None: frame by frame in Python."""
        self._walk = walk
        self.may_have_attach = True
        """An attach may have begun in what came last. Without a `walk` nobody has looked."""
        self._max_frame = max_frame or 1 << 28
        self._is_off = False
        self._skipped = 0
        """Bytes of a frame that are still to come and not looked at."""
        self._held = b""
        self.last_header = b""
        """A protocol header, behind which nothing is AMQP any more; empty: none is expected."""
        self.beyond: bytes | None = None
        """What came behind it; None: it has not come."""
        self._begun: set[tuple[int, object]] = set()
        """Channel and handle where a message with a format is not whole: frames that follow may repeat the format."""

    def feed(self, data: bytes | memoryview) -> bytes | memoryview:
        """What Proton is to be given for it."""
        length, walk = len(data), self._walk
        if self._is_off:
            self.may_have_attach = True
            return data
        self.may_have_attach = walk is None
        if self._skipped >= length:
            self._skipped -= length
            return data
        if self._held:
            data, self._held = self._held + bytes(data), b""
            length = len(data)
        at, self._skipped = self._skipped, 0
        done, pieces = 0, list[bytes | memoryview]()
        while at < length:
            if walk is not None and not self._begun:
                at, has_attach = walk(data, at)
                self.may_have_attach |= has_attach
                if at >= length:
                    break
            elif not self._begun and _USUAL(data, at):
                at += _UINT.unpack_from(data, at)[0] or 1
                continue
            self.may_have_attach = True  # nobody looks whether this is one
            examined = self._examine(data, at)
            if examined is None:
                self._held = bytes(data[at:])
                break
            size, head_bytes, head = examined
            if not size:  # no frame: from here on nothing is looked at any more
                self._is_off = True
                if data[at : at + len(_PROTOCOL)] == _PROTOCOL:  # the last header
                    self.beyond = bytes(data[at + _FRAME.size :])
                    data, length = data[:at], at
                at = length
                break
            if head:
                pieces += (data[done:at], head)
                done = at + head_bytes
            at += size
        self._skipped = max(at - length, 0)
        end = length - len(self._held)
        if not pieces:
            return data if end == length else data[:end]
        return b"".join((*pieces, data[done:end]))

    def _examine(self, data: bytes | memoryview, at: int) -> tuple[int, int, bytes] | None:
        """Size of what begins there, 0 where that is no frame; bytes up to its payload, and what takes their place.

        None: more has to come.
        """
        left = len(data) - at
        if left < _UINT.size:
            return None
        size = _UINT.unpack_from(data, at)[0]
        is_protocol = data[at : at + 4] == _PROTOCOL
        if not (is_protocol or _FRAME.size <= size <= self._max_frame):
            return 0, 0, b""
        if is_protocol or left < _FRAME.size:
            if left < _FRAME.size:
                return None
            return (0 if data[at : at + _FRAME.size] == self.last_header else _FRAME.size), 0, b""
        most = min(size, _EXAMINED_BYTES)
        text = bytes(data[at : at + most])
        try:
            frame = _read_frame(text)
        except DecodeError:
            return None if len(text) < most else (size, 0, b"")
        message_format = self._format_of(frame)
        if not message_format:
            return size, 0, b""
        moved = with_format(b"", message_format)
        head = _with_field(text, frame, _NO_FORMAT)
        grown = size - frame.payload_at + len(head) + len(moved) - self._max_frame
        if grown > 0:
            head = _with_field(text, frame, _NO_FORMAT, cut=grown)
        grown = len(head) + len(moved) - frame.payload_at
        if size + grown > self._max_frame:
            return size, 0, b""
        return size, frame.payload_at, _UINT.pack(size + grown) + head[4:] + moved

    def _format_of(self, frame: _Frame) -> int:
        """The format of a message that begins with `frame`; 0: it begins none, or one with that."""
        fields = frame.fields
        place = (frame.channel, fields[0]) if fields else (frame.channel, None)
        if frame.code == _END:
            self._begun = {begun for begun in self._begun if begun[0] != frame.channel}
        elif frame.code == _DETACH:
            self._begun.discard(place)
        if frame.code != _TRANSFER or len(fields) <= _FORMAT_FIELD:
            return 0
        message_format = fields[_FORMAT_FIELD]
        has_more, is_aborted = ([*fields, *[None] * _FIELDS][field] is True for field in (_MORE_FIELD, _ABORTED_FIELD))
        is_first = place not in self._begun
        if not has_more or is_aborted:
            self._begun.discard(place)
        if not is_first or is_aborted or not isinstance(message_format, int) or not 0 < message_format < 1 << 32:
            return 0
        if has_more:
            self._begun.add(place)
        return message_format


class FormatWriter:
    """The promise: the peer is sent the frames that Proton has written, of which each that begins a message with a
    format in front of it has the field instead."""

    def __init__(self) -> None:
        self._expected: dict[tuple[bytes, bytes], int] = {}
        """How many messages with this tag and format Proton has, and has not begun to write.

        Only those are looked for: what follows in a message could look like a format, too.
        """

    def expect(self, tag: bytes, payload: bytes) -> None:
        """Proton is given that message, which has a format in front of it, to send."""
        key = tag, format_of(payload)
        self._expected[key] = self._expected.get(key, 0) + 1
        if len(self._expected) > _EXPECTED_MOST:
            del self._expected[next(iter(self._expected))]

    def rewrite(self, output: bytes) -> bytes:
        """`output`: whole frames. What the peer is to be sent for it."""
        if not self._expected:
            return output
        at, done, pieces = 0, 0, list[bytes]()
        while self._expected and len(output) - at >= _FRAME.size:
            size = _FRAME.size if output[at : at + 4] == _PROTOCOL else int(_UINT.unpack_from(output, at)[0])
            if size < _FRAME.size:
                break
            if rewritten := self._rewritten(output[at : at + min(size, _EXAMINED_BYTES)], size):
                head, head_bytes = rewritten
                pieces += (output[done:at], head)
                done = at + head_bytes
            at += size
        return b"".join((*pieces, output[done:]))

    def _rewritten(self, text: bytes, size: int) -> tuple[bytes, int] | None:
        """The head of a frame with the field, and of how many bytes it takes the place; None: it stays as it is."""
        try:
            frame = _read_frame(text)
        except DecodeError:
            return None
        if frame.code != _TRANSFER or len(frame.fields) <= _FORMAT_FIELD:
            return None
        tag = frame.fields[_TAG_FIELD]
        moved = format_of(text[frame.payload_at : frame.payload_at + max(FORMAT_LENGTHS.values())])
        key = (tag if isinstance(tag, bytes) else b"", moved)
        if not moved or key not in self._expected:
            return None
        self._expected[key] -= 1
        if not self._expected[key]:
            del self._expected[key]
        head, head_bytes = _with_field(text, frame, moved), frame.payload_at + len(moved)
        return _UINT.pack(size - head_bytes + len(head)) + head[4:], head_bytes


def _with_field(text: bytes, frame: _Frame, encoded: bytes, cut: int = 0) -> bytes:
    """The head of the frame `text` with `encoded` as its message-format; the size that it says is as it was.

    `cut`: so many bytes are taken off the tag, if it has them.
    """
    start = text[4] * 4
    list_at = value_end(text, start + 1)
    compound = compound_at(text, list_at)
    *_, (tag_at, tag_end), (_, stop) = places(text, compound, _FORMAT_FIELD + 1)
    tag = text[tag_at:tag_end]
    if cut and tag[:1] == _SHORT_BINARY:
        kept = max(tag[1] - cut, 0)
        tag = _SHORT_BINARY + bytes((kept,)) + tag[2 : 2 + kept]
    fields = text[compound.first : tag_at] + tag + encoded + text[stop : frame.payload_at]
    if len(fields) < 255:
        described = b"\xc0" + bytes((len(fields) + 1, compound.length)) + fields
    else:
        described = b"\xd0" + struct.pack(">II", len(fields) + 4, compound.length) + fields
    return text[:list_at] + described


def _read_frame(text: bytes) -> _Frame:
    """Of a frame as far as it has come. Raises DecodeError where its performative is not whole, or is none."""
    size, offset, kind, channel = _FRAME.unpack_from(text)
    start = offset * 4
    if kind != _AMQP_TYPE or not _FRAME.size <= start < size:
        return _Frame(0, channel, [], 0)
    if len(text) <= start + 1:
        raise DecodeError("the frame is not whole")
    descriptor_end = value_end(text, start + 1)
    descriptor = simple_value(text, start + 1, descriptor_end)
    code = _DESCRIPTORS.get(descriptor, 0) if isinstance(descriptor, str) else descriptor
    if code not in (_TRANSFER, _DETACH, _END) or not isinstance(code, int):
        return _Frame(0, channel, [], 0)
    compound = compound_at(text, descriptor_end)
    values = [simple_value(text, *place) for place in places(text, compound, _FIELDS)]
    return _Frame(code, channel, values, compound.end)
