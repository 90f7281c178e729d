"""Single values as people write them: `10s`, `200ms`, `2m`; `100MiB`, `64KiB`, `1GB`; counts; `yes`; paths."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
LARGEST = 10**18
"""Of a number without a unit: what eighteen digits of text say. It fits into a double, which not every integer does."""
_TRUTHS = {
    **dict.fromkeys(("1", "true", "yes", "on", "y", "t"), True),
    **dict.fromkeys(("0", "false", "no", "off", "n", "f"), False),
}
"""In any case of letters: what YAML, OCF and a command line take for a truth value."""
_COUNT = re.compile(r"[0-9]{1,19}", re.ASCII)
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([a-zA-Z]*)", re.ASCII)


def parse_boolean(value: object) -> bool:
    """A truth value. Raises ValueError, as the others do, also for what is not even text."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUTHS:
        return _TRUTHS[value.strip().lower()]
    raise ValueError


def parse_count(value: object) -> int:
    """A whole number, 0 or more. Raises ValueError."""
    if isinstance(value, str) and _COUNT.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError
    return value


def parse_duration_s(value: object) -> float:
    """Seconds from `10s`, `200ms`, `2m`, `1h`, or a bare number of seconds. Raises ValueError."""
    number, unit = _split(value)
    if unit == "":
        return number
    if unit not in _SECONDS:
        raise ValueError(f"the unit {unit!r} is none of {', '.join(_SECONDS)}")
    return number * _SECONDS[unit]


def parse_timeout_s(value: object) -> float:
    """A duration above 0, in seconds. Raises ValueError."""
    duration_s = parse_duration_s(value)
    if duration_s <= 0:
        raise ValueError("it must be more than 0")
    return duration_s


def parse_size_bytes(value: object) -> int:
    """Bytes from `100MiB`, `64KiB`, `1GB`, or a bare number of bytes. Raises ValueError."""
    number, unit = _split(value)
    if unit.lower() not in {"", *_BYTES}:
        raise ValueError(f"the unit {unit!r} is none of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB")
    size_bytes = number * _BYTES[unit.lower() or "b"]
    if size_bytes != int(size_bytes):
        raise ValueError("it is not a whole number of bytes")
    return int(size_bytes)


def parse_path(value: object) -> Path:
    """An absolute path; a relative one begins where this process runs, `~` in a home directory. Raises ValueError."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError
    os.fsencode(value)  # raises UnicodeEncodeError, a ValueError, for what no file system can have
    try:
        return Path.cwd() / Path(value).expanduser()
    except RuntimeError as error:  # ~USER of nobody
        raise ValueError(str(error)) from None


def format_duration(duration_s: float) -> str:
    """The shortest text that `parse_duration_s` reads back as the same duration."""
    if duration_s and duration_s < 1:
        return f"{duration_s * 1000:.12g}ms"
    return f"{duration_s:.12g}s"


def format_period(period_s: float) -> str:
    """For people, how long something has lasted, or is off: `7.5 s`, `90 s`, `5 minutes`, `30 hours`, `12 days`.

    In the largest unit of which there are two, rounded down; seconds to a tenth as long as there are few.
    """
    if period_s < 10:
        return f"{period_s:.1f}".removesuffix(".0") + " s"
    for unit, length_s in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if period_s >= 2 * length_s:
            return f"{int(period_s // length_s)} {unit}"
    return f"{period_s:.0f} s"


def format_size(size_bytes: int) -> str:
    """The shortest text that `parse_size_bytes` reads back as exactly the same size."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes and size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{unit}"
    return f"{size_bytes}B"


def format_progress(done_bytes: int, total_bytes: int) -> str:
    """How much of a store is loaded, for people; `total_bytes` 0: not known yet."""
    if not total_bytes:
        return "looking through its files"
    return f"{100 * done_bytes // total_bytes}% of {-(-total_bytes // 1_000_000)} MB"


def _split(value: object) -> tuple[float, str]:
    """The number and its unit. `True` is a number to Python, but nobody means one by it."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("it is not a number with a unit")
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip())
        if match is None:
            raise ValueError("it is not a number with a unit")
        number = match[1]
        return (float(number) if "." in number else int(number)), match[2]
    if not 0 <= value < LARGEST:
        raise ValueError("it is negative, or larger than anything that is meant")
    return value, ""
