"""What this process has open."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_files(path: Path) -> int:
    """Descriptors of that file, or of files in that directory, those that are gone included; of no directory."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            is_below = os.readlink(each).startswith(str(path))  # noqa: PTH115 - what is gone is no path
            count += is_below and not stat.S_ISDIR(each.stat().st_mode)
        except FileNotFoundError:
            continue
    return count
