"""How a resource set may be called: its name is that of a directory, and part of commands, everywhere alike."""

from __future__ import annotations

import re
from typing import Final

EXPECTED: Final = "1 to 64 lower-case letters, digits and . _ -, the first a letter or digit"
RESERVED: Final = frozenset({"discarded", "journal", "local", "lock", "snapshots", "status"})
"""What else lies in a data directory or in a store, and `local`, the log that a broker keeps for itself. What a
broker or an operator makes beside the sets (`LOCK`, `default.set-aside-20260131T120000Z`) has upper-case letters."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


def set_name_problem(name: str) -> str | None:
    """Why no resource set may be called `name`, and what may be; None: it may. `default` may."""
    if _NAME.fullmatch(name) is None:
        shown = repr(name) if len(name) <= 80 else f"{name[:77]!r}..."
        return f"{shown} cannot be the name of a resource set: expected {EXPECTED}"
    if name in RESERVED:
        return f"{name!r} cannot be the name of a resource set: the broker uses it itself; choose another one"
    return None
