"""Headers and blocks: the form of every file in the journal and among the snapshots. Pure.

A file begins with a header that says whose it is and which number it has. Each block that follows has a checksum, the
file's number, and how many bytes of the file were on disk when it was written: so a block that was cut short when the
machine stopped is told from one that was lost later.

The layout, byte for byte, is in docs/protocol.md.
"""

from __future__ import annotations

import json
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple
from zlib import crc32

from qpid_ha_broker.events.layout import Layout, is_local_lsn

from .errors import BlockError, NewerFormat

FORMAT_VERSION: Final = 2
"""Of the files that this release writes. It reads format 1, too, whose header lacks `store`, `room_bytes` and
`status_revision`."""
FILE_HEADER_BYTES: Final = 512

Buffer = bytes | bytearray | memoryview

_LETTERS: Final = {"journal": b"J", "snapshot": b"S"}
_KINDS: Final = {letter: kind for kind, letter in _LETTERS.items()}
_FILE_MAGIC: Final = b"QPIDHA"
_FILE_START: Final = Layout({"magic": "6s", "letter": "cx", "version": "H", "json_bytes": "H"})
"""The checksum follows, then the JSON."""
_JSON_AT: Final = 16

_MAGIC: Final = b"QhBk"
_SEAL: Final = Layout({"magic": "4s", "number": "I", "checksum": "I"})
"""`checksum`: of the file's number and what follows."""
_SEALED: Final = Layout(
    {
        "data_bytes": "I", "data_checksum": "I", "kind": "B3x", "left_out": "I", "age_ms": "I",
        "first_lsn": "Q", "last_lsn": "Q", "committed_lsn": "Q", "synced": "Q",
    },
    _SEAL.end,
)  # fmt: skip
"""Of what follows, and of Block."""
_BLOCK: Final = _SEAL + _SEALED
BLOCK_HEADER_BYTES: Final = _BLOCK.size
MAX_AGE_MS: Final = 0xFFFFFFFF

_NUMBERS: Final = (
    "number", "generation", "first_lsn", "first_local_lsn", "created_ms", "previous_bytes", "room_bytes",
    "status_revision",
)  # fmt: skip
_SINCE_2: Final = frozenset({"store", "room_bytes", "status_revision"})


class FileHeader(NamedTuple):
    """Whose file it is, and what must come before it. `previous_bytes`: how long file number - 1 was; 0: none."""

    kind: str
    cluster: str
    broker: str
    set: str
    number: int
    generation: int
    first_lsn: int
    first_local_lsn: int
    created_ms: int
    previous_bytes: int
    needs_base: bool
    store: str = ""
    """The UUID of the store; empty in format 1."""
    room_bytes: int = 0
    """How long a segment was made. It may be shorter only once the next one is there; 0: a snapshot, or format 1."""
    status_revision: int = 0
    """The revision of STATUS that was on disk when the file was made; 0 in format 1."""


class BlockKind(IntEnum):
    """What a block is for."""

    EVENTS = 1
    """Records, exactly as `events.codec` encodes them."""
    MARK = 2
    """Nothing but its `synced`: what lies before it is on disk."""
    TAKEN_BACK = 3
    """Replicated records with an LSN above `last_lsn` that came before are void."""
    END = 4
    """Nothing follows: a snapshot is whole, or a segment was closed in order. Data: JSON."""


class Block(NamedTuple):
    """One block at `offset` of its file; `length` is that of its data, which a reader of headers leaves empty."""

    kind: BlockKind
    first_lsn: int
    last_lsn: int
    committed_lsn: int
    left_out: int
    """Copies in queues of messages that were not durable and are not in the data."""
    synced: int
    """So many bytes of the file were known to be on disk when the block was written."""
    offset: int
    data: bytes
    length: int
    age_ms: int = 0
    """When it was handed over, after the file was created; snapshots have no such time."""

    @property
    def is_local(self) -> bool:
        """Whether its events are of the log that the broker keeps for itself."""
        return is_local_lsn(self.first_lsn)

    @property
    def data_at(self) -> int:
        """Where in the file the data begin."""
        return self.offset + BLOCK_HEADER_BYTES

    @property
    def end(self) -> int:
        """Where the next block begins."""
        return self.offset + BLOCK_HEADER_BYTES + self.length


class BlockFault(StrEnum):
    """Why bytes are not a block, in the order in which it is asked."""

    SHORT = "short"
    """The file ends before the block does."""
    MAGIC = "magic"
    """Neither a block nor the zeros that follow the last one."""
    HEADER = "header"
    """The header's checksum fails."""
    KIND = "kind"
    """Whole, but of a kind that this release does not know."""
    DATA = "data"
    """The data's checksum fails."""


class BlockProblem(NamedTuple):
    """What is wrong with the block that should begin at `offset` of the file; `text`: expected and found."""

    fault: BlockFault
    offset: int
    text: str


def encode_header(header: FileHeader) -> bytes:
    """The first 512 bytes of a file. Raises ValueError for what does not fit."""
    letter = _LETTERS.get(header.kind)
    if letter is None:
        raise ValueError(f"kind: expected one of {', '.join(_LETTERS)}, found {header.kind!r}")
    fields = header._asdict()
    del fields["kind"]
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    room = FILE_HEADER_BYTES - _JSON_AT
    if len(text) > room:
        raise ValueError(f"expected names of which a file header can hold {room} bytes of JSON, found {len(text)}")
    start = _FILE_START.pack(_FILE_MAGIC, letter, FORMAT_VERSION, len(text))
    rest = text.ljust(room, b"\0")
    return start + crc32(rest, crc32(start)).to_bytes(4, "little") + rest


def decode_header(data: Buffer) -> FileHeader:
    """The inverse. Raises BlockError for what is no whole header, NewerFormat for one of a newer release.

    The checksum comes first and is the same in all versions: a damaged header never passes for a newer one.
    """
    page = bytes(data[:FILE_HEADER_BYTES])
    if len(page) < FILE_HEADER_BYTES:
        raise BlockError(f"expected a file header of {FILE_HEADER_BYTES} bytes, found {len(page)}")
    magic, letter, version, length = _FILE_START.unpack_from(page)
    if magic != _FILE_MAGIC:
        raise BlockError(f"expected a file that begins with {_FILE_MAGIC!r}, found {magic!r}")
    sealed, computed = int.from_bytes(page[12:16], "little"), crc32(page[_JSON_AT:], crc32(page[:12]))
    if sealed != computed:
        raise BlockError(f"expected a file header with CRC-32 {sealed:#010x}, found {computed:#010x}")
    if version > FORMAT_VERSION:
        raise NewerFormat(version, FORMAT_VERSION)
    kind = _KINDS.get(letter)
    if kind is None or not 1 <= version <= FORMAT_VERSION:
        raise BlockError(
            f"expected a journal or a snapshot of format 1 to {FORMAT_VERSION}, found {letter!r} of {version}"
        )
    return _header_of(kind, version, page[_JSON_AT : _JSON_AT + length])


def _header_of(kind: str, version: int, text: bytes) -> FileHeader:
    try:
        fields: Any = json.loads(text)
        header = FileHeader(kind=kind, **fields)
        if _SINCE_2 & set(fields) != (_SINCE_2 if version > 1 else frozenset()):
            raise ValueError(f"found {', '.join(fields)}")
    except (ValueError, TypeError) as error:
        raise BlockError(f"expected a file header with the fields of format {version}: {error}") from None
    numbers = [getattr(header, name) for name in _NUMBERS]
    names = (header.cluster, header.broker, header.set, header.store)
    if (
        any(type(number) is not int or not 0 <= number < 1 << 64 for number in numbers)
        or any(type(name) is not str for name in names)
        or type(header.needs_base) is not bool
    ):
        raise BlockError(f"expected names and numbers in the file header, found {text!r}")
    return header


def encode_block(
    number: int,
    kind: BlockKind,
    first_lsn: int,
    last_lsn: int,
    committed_lsn: int,
    left_out: int,
    synced: int,
    data: Buffer = b"",
    age_ms: int = 0,
) -> bytes:
    """The header that goes before `data` in the file with that number."""
    age_ms = min(max(age_ms, 0), MAX_AGE_MS)
    sealed = _SEALED.pack(len(data), crc32(data), kind, left_out, age_ms, first_lsn, last_lsn, committed_lsn, synced)
    low = number & 0xFFFFFFFF
    return b"".join((block_mark(number), crc32(sealed, low).to_bytes(4, "little"), sealed))


def block_mark(number: int) -> bytes:
    """How each block of that file begins, for who looks for one in the middle of bad bytes."""
    return _MAGIC + (number & 0xFFFFFFFF).to_bytes(4, "little")


def read_block(
    buffer: Buffer, offset: int, number: int, *, base: int = 0, headers_only: bool = False
) -> Block | BlockProblem | None:
    """The block at `offset` of `buffer`, whose first byte is byte `base` of file `number`; None: the blocks end here.

    They end at zeros, at the buffer's end, and at a whole header that bears another number (of a file that was there
    before). SHORT means that the buffer ends too early: `needed_bytes` says how much is wanted. With `headers_only`
    the data need not be in the buffer and are not looked at. Offsets in what is returned are those of the file.
    """
    view = memoryview(buffer)
    start, at = base + offset, view[offset : offset + BLOCK_HEADER_BYTES]
    if not any(at):
        return None
    if len(at) < BLOCK_HEADER_BYTES:
        return BlockProblem(
            BlockFault.SHORT, start, f"expected a header of {BLOCK_HEADER_BYTES} bytes, found {len(at)}"
        )
    magic, low, sealed, length, checksum, kind, left_out, age, first, last, committed, synced = _BLOCK.unpack(at)
    if magic != _MAGIC:
        return BlockProblem(BlockFault.MAGIC, start, f"expected a block or zeros, found {bytes(at[:8]).hex(' ')}")
    computed = crc32(at[_SEALED.start :], low)
    if computed != sealed:
        return BlockProblem(BlockFault.HEADER, start, f"expected CRC-32 {sealed:#010x}, found {computed:#010x}")
    if low != number & 0xFFFFFFFF:
        return None
    if kind not in _KNOWN:
        return BlockProblem(BlockFault.KIND, start, f"expected a kind that this release knows, found {kind}")
    data = b""
    if not headers_only:
        data = bytes(view[offset + BLOCK_HEADER_BYTES : offset + BLOCK_HEADER_BYTES + length])
        if len(data) < length:
            return BlockProblem(BlockFault.SHORT, start, f"expected {length} bytes of data, found {len(data)}")
        computed = crc32(data)
        if computed != checksum:
            return BlockProblem(BlockFault.DATA, start, f"expected CRC-32 {checksum:#010x}, found {computed:#010x}")
    return Block(BlockKind(kind), first, last, committed, left_out, synced, start, data, length, age)


def has_whole_data(buffer: Buffer, offset: int) -> bool:
    """Whether the data of a block whose header, at `offset` of `buffer`, is good are there and as they were written.

    For who reads many blocks where they lie: `read_block` makes a copy of the data.
    """
    view = memoryview(buffer)
    length, checksum = _BLOCK.unpack_from(view, offset)[3:5]
    data = view[offset + BLOCK_HEADER_BYTES : offset + BLOCK_HEADER_BYTES + length]
    return bool(len(data) == length and crc32(data) == checksum)


_KNOWN: Final = frozenset(int(kind) for kind in BlockKind)
