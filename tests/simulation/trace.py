"""What happened in a run, a line for each thing, and the fingerprint by which two runs are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from simulation.virtual_time import Schedule

LINE_LENGTH_MAX = 400
VALUE_LENGTH_MAX = 60


class Trace:
    """Lines `time node text`. Kept only where somebody wants to read them: they cost more than the run itself."""

    def __init__(self, schedule: Schedule, wanted: bool) -> None:
        self._schedule = schedule
        self.wanted = wanted
        self.lines: list[str] = []

    def add(self, who: str, text: str) -> None:
        """Call it only while `wanted`: making the text is what takes the time."""
        line = f"{self._schedule.now_s:10.4f} {who:<8} {text}"
        self.lines.append(line if len(line) <= LINE_LENGTH_MAX else line[: LINE_LENGTH_MAX - 3] + "...")

    def fingerprint(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def shown(value: object) -> str:
    """A named tuple on one line, long fields cut."""
    fields = getattr(value, "_fields", None)
    if fields is None:
        return _cut(repr(value))
    inner = ", ".join(_field(name, getattr(value, name)) for name in fields)
    return f"{type(value).__name__}({inner})"


def shown_effects(effects: Iterable[object]) -> str:
    return "; ".join(shown(effect) for effect in effects) or "-"


def _field(name: str, value: object) -> str:
    if hasattr(value, "_fields"):
        return shown(value)
    if isinstance(value, bytes) and len(value) > 16:
        return f"{name}={len(value)}B"
    return f"{name}={_cut(str(value))}"


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 3] + "..."
