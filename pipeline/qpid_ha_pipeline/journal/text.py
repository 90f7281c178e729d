"""Arrow arrays of slices of a buffer: text and bytes that never become Python objects."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .records import Ints, Mask


def binaries(data: bytes, starts: Ints, ends: Ints, present: Mask | None = None) -> pa.Array:
    """`data[start:end]` for each, null where not `present`. Starts ascend, and slices do not overlap.

    The buffer is seen as an array of slices and the gaps between them, of which every other one is taken: one copy.
    """
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    if present is not None:
        running = np.maximum.accumulate(np.where(present, ends, 0))
        starts, ends = np.where(present, starts, running), running
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )  # fmt: skip
    wanted = pa.array(np.arange(0, 2 * count, 2), mask=None if present is None else ~present)
    return pieces.take(wanted)


def texts(data: bytes, starts: Ints, ends: Ints, present: Mask | None = None) -> pa.Array:
    """The slices as UTF-8; what is none is null."""
    return as_text(binaries(data, starts, ends, present))


def as_text(values: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 is null."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode("utf-8")
    except UnicodeDecodeError:
        return None


def named(codes: Ints, names: list[str | None]) -> pa.Array:
    """`names[code]` for each."""
    return pa.array(names, pa.string()).take(pa.array(codes))


def times(milliseconds: Ints, missing: Mask | None = None) -> pa.Array:
    """Timestamps as Spark has them: microseconds, in UTC."""
    return pa.array(milliseconds * 1000, pa.int64(), mask=missing).cast(pa.timestamp("us", tz="UTC"))
