"""Where in the store's directory what lies, and how files are called."""

from __future__ import annotations

import re
from typing import Final

from .files import Disk

SEGMENTS: Final = "journal"
SNAPSHOTS: Final = "snapshots"
SPARE: Final = "journal/spare"
"""A segment to be: has its room, and no name yet."""

_NUMBERED: Final = re.compile(r"(\d{20})\.(log|snap|index)")


def segment_path(number: int) -> str:
    """The journal file with that ordinal."""
    return f"{SEGMENTS}/{number:020d}.log"


def snapshot_path(number: int) -> str:
    """The snapshot that holds the state before that segment."""
    return f"{SNAPSHOTS}/{number:020d}.snap"


def snapshot_number(path: str) -> int:
    """That of the snapshot at `path`."""
    return int(path.removeprefix(f"{SNAPSHOTS}/").removesuffix(".snap"))


def snapshot_index_path(number: int) -> str:
    """The index of that snapshot."""
    return f"{SNAPSHOTS}/{number:020d}.index"


def segment_numbers(disk: Disk) -> list[int]:
    """Of the segments that are there, ascending."""
    return _numbers(disk, SEGMENTS, "log")


def snapshot_numbers(disk: Disk) -> list[int]:
    """Of the snapshots that are there, ascending. Unfinished ones are not among them."""
    return _numbers(disk, SNAPSHOTS, "snap")


def snapshot_index_numbers(disk: Disk) -> list[int]:
    """Of the indexes of snapshots that are there, ascending; the snapshot itself may be missing."""
    return _numbers(disk, SNAPSHOTS, "index")


def _numbers(disk: Disk, directory: str, ending: str) -> list[int]:
    matches = (_NUMBERED.fullmatch(name) for name in disk.names(directory))
    return sorted(int(match[1]) for match in matches if match is not None and match[2] == ending)
