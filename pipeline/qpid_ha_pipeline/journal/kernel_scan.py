"""Blocks and records of a piece of a file, found by the compiled kernel: one call instead of a walk in Python.

It finds what `Scan` finds in Python, in the same windows, and checks the same: the checksum of each header and, where
it is wanted, of each block's data; that records fill their block; that each is of a kind and version that there is.

    what there is                             what comes of it
    ----------------------------------------  --------------------------------------------------------------
    good blocks, whole in the window          their records
    a block that the window cuts off          ends before it, and says how many bytes it takes
    none, one that is damaged, or zeros       ends before it: `Scan._behind` finds out which
    a good block with records that do not     None: the window is left to the walk in Python, which says where
    add up, or more than there is room for

tests/pipeline/test_kernel_scan.py compares both on random, cut and damaged blocks.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpid_ha_broker.events.layout import HEADER_BYTES, RecordKind
from qpid_ha_broker.store.blocks import BLOCK_HEADER_BYTES
from qpid_ha_broker.store.survey import NO_LIMIT
from qpid_ha_kernel import Kernel, NoKernel, load
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.options import KernelUse

from .records import Bytes, Columns, Ints, Mask

BLOCK: Final = np.dtype([
    ("offset", "<i8"), ("length", "<i8"), ("first_lsn", "<u8"), ("last_lsn", "<u8"), ("committed_lsn", "<u8"),
    ("synced", "<u8"), ("left_out", "<u4"), ("age_ms", "<u4"), ("kind", "<u4"), ("records", "<u4"),
])  # fmt: skip
"""`qh_block` of scan.h. `offset` is that in the window."""
_KNOWN: Final = bytes(kind in set(RecordKind) for kind in range(256))


class FoundRecords(NamedTuple):
    """`columns`: of all records of `blocks`. `end`: where in the window the next block begins that was not looked at;
    `needed`: how many bytes from there on are wanted to look at it, 0 unless the window cuts it off."""

    blocks: NDArray[Any]
    columns: Columns
    end: int
    needed: int


def chosen_kernel(use: KernelUse) -> Kernel | None:
    """What an option says of it, and what there is here. Raises PipelineError where it must be and is not."""
    if use is KernelUse.OFF:
        return None
    kernel = load()
    if isinstance(kernel, NoKernel):
        if use is KernelUse.REQUIRED:
            raise PipelineError(f"kernel=required, but {kernel.reason}; or leave the option out")
        return None
    return kernel


class KernelScanner:
    """Looks at one window after the other of one file."""

    def __init__(
        self, kernel: Kernel, number: int, first_lsn: int, last_lsn: int, *, is_snapshot: bool, checks: bool
    ) -> None:
        """Of the replicated log, only blocks with these LSNs; of a snapshot, which has none in its headers, all."""
        self._kernel = kernel
        self._number = number & 0xFFFFFFFF
        self._first, self._last = (max(first_lsn, 0), last_lsn) if last_lsn >= 0 else (NO_LIMIT, 0)
        lib = kernel.lib
        self._flags = (lib.QH_SCAN_CHECKS if checks else 0) | (lib.QH_SCAN_SNAPSHOT if is_snapshot else 0)
        self._room = _Room(0)

    def find(self, data: bytes) -> FoundRecords | None:
        """In a window that begins with a block. None: as the table says."""
        ffi, lib = self._kernel
        if self._room.bytes < len(data):
            self._room = _Room(len(data))
        room, scanned = self._room, ffi.new("qh_scanned *")
        blocks = ffi.from_buffer("qh_block[]", room.blocks, require_writable=True)
        offsets, lsns, sizes = (
            ffi.from_buffer("int64_t[]", column, require_writable=True)
            for column in (room.offsets, room.lsns, room.sizes)
        )
        kinds = ffi.from_buffer("uint8_t[]", room.kinds, require_writable=True)
        lib.qh_scan_blocks(
            ffi.from_buffer("uint8_t[]", data), len(data), 0, self._number, self._first, self._last, self._flags,
            ffi.from_buffer("uint8_t[]", _KNOWN), blocks, len(blocks), offsets, lsns, sizes, kinds, len(kinds), scanned,
        )  # fmt: skip
        if scanned.why in (lib.QH_SCAN_RECORDS, lib.QH_SCAN_FULL):
            return None
        return FoundRecords(
            room.blocks[: scanned.blocks].copy(), room.first(scanned.records), scanned.end, scanned.needed
        )


def find_bodies(kernel: Kernel, data: bytes, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Mask] | None:
    """Where the body of each message begins and ends, and whether it has one: as `Messages` tells them.

    None where a message is not as usual: several sections of a body, a descriptor spelled otherwise, or none at all.
    """
    ffi, lib = kernel
    body_starts, body_ends = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    present = np.empty(len(starts), np.bool_)
    starts, ends = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
    whole_count = lib.qh_find_bodies(
        ffi.from_buffer("uint8_t[]", data), len(data), ffi.from_buffer("int64_t[]", starts),
        ffi.from_buffer("int64_t[]", ends), len(starts),
        ffi.from_buffer("int64_t[]", body_starts, require_writable=True),
        ffi.from_buffer("int64_t[]", body_ends, require_writable=True),
        ffi.from_buffer("uint8_t[]", present, require_writable=True),
    )  # fmt: skip
    return (body_starts, body_ends, present) if whole_count == len(starts) else None


class _Room:
    """For as many blocks and records as so many bytes can have. What nothing is written to costs no memory."""

    def __init__(self, length: int) -> None:
        self.bytes = length
        self.blocks = np.empty(length // (BLOCK_HEADER_BYTES + HEADER_BYTES) + 1, BLOCK)
        records = length // HEADER_BYTES + 1
        self.offsets: Ints = np.empty(records, np.int64)
        self.lsns: Ints = np.empty(records, np.int64)
        self.sizes: Ints = np.empty(records, np.int64)
        self.kinds: Bytes = np.empty(records, np.uint8)

    def first(self, count: int) -> Columns:
        """Copies: the next window is found in the same room."""
        return Columns(
            self.offsets[:count].copy(), self.lsns[:count].copy(), self.sizes[:count].copy(), self.kinds[:count].copy()
        )
