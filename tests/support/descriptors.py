"""What this process has open."""

from __future__ import annotations

import os
from pathlib import Path


def open_files(path: Path) -> int:
    """Descriptors of that file, or of files in that directory, those that are gone included."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            count += os.readlink(each).startswith(str(path))  # noqa: PTH115 - what is gone is no path
        except FileNotFoundError:
            continue
    return count
