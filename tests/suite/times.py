"""How long tests take: what runs recorded, what is expected of the next one, and shares of equal length.

Each run records its tests in the environment (`RECORDED`), the last five times of each. `./dev times` makes `EXPECTED`
of that, which is in the repository: so a share is the same wherever it runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Final

from suite.gate import ROOT, Part, file_of, part_of

EXPECTED: Final = Path(__file__).with_name("expected_s.json")
RECORDED: Final = Path(sys.prefix) / "test-times.json"
KEPT: Final = 5
"""Times of a test that are remembered."""
SMALLEST_S: Final = 0.3
"""What takes less has no row in `EXPECTED`."""
UNKNOWN_S: Final[Mapping[str, float]] = {"tests/unit/": 0.2, "tests/lab/": 60.0, "": 10.0}
"""Of a module without a row, below that directory."""

Recorded = dict[str, list[float]]
"""Seconds by node id, the newest last."""


def read_recorded(path: Path = RECORDED) -> Recorded:
    """Empty where nothing was recorded, or what was cannot be read."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def record(seconds: Mapping[str, float], path: Path = RECORDED) -> None:
    """Add the times of one run."""
    recorded = read_recorded(path)
    for node_id, took_s in seconds.items():
        recorded[node_id] = [*recorded.get(node_id, []), round(took_s, 3)][-KEPT:]
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(recorded), encoding="utf-8")
    new.replace(path)


def expect(recorded: Recorded) -> dict[str, dict[str, float]]:
    """Seconds by module and part, without modules that are gone."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for node_id, times in recorded.items():
        sums[file_of(node_id)][part_of(node_id)] += median(times)
    rows = {
        file: {part: round(took_s, 1) for part, took_s in sorted(parts.items()) if took_s >= SMALLEST_S}
        for file, parts in sorted(sums.items())
        if (ROOT / file).is_file()
    }
    return {file: parts for file, parts in rows.items() if parts}


def write_expected(recorded: Recorded, path: Path = EXPECTED) -> None:
    """A row for each module, so that a change of one is a change of one line."""
    rows = ",\n".join(f"  {json.dumps(file)}: {json.dumps(parts)}" for file, parts in expect(recorded).items())
    path.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


@cache
def _rows() -> Mapping[str, Mapping[str, float]]:
    return dict(json.loads(EXPECTED.read_text(encoding="utf-8"))) if EXPECTED.exists() else {}


def expected_s(file: str, part: Part) -> float:
    """Of the tests of a module that are of that part. A module without a row may be new."""
    parts = _rows().get(file)
    if parts is None:
        unknown_s = next(took_s for place, took_s in UNKNOWN_S.items() if file.startswith(place))
        return unknown_s if part is not Part.LONG or not file.startswith("tests/unit/") else 0.0
    return sum(parts.values()) if part is Part.ALL else parts.get(part, 0.0)


def cut(files: Iterable[str], shares: int) -> list[list[str]]:
    """Modules in so many shares, whose long tests take about as long.

    The longest comes first, and each goes to the share that has least.
    """
    cuts: list[list[str]] = [[] for _ in range(shares)]
    sums = [0.0] * shares
    for file in sorted(files, key=lambda file: (-expected_s(file, Part.LONG), file)):
        least = sums.index(min(sums))
        cuts[least].append(file)
        sums[least] += expected_s(file, Part.LONG)
    return cuts
