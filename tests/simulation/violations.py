"""What a run comes to when a promise was broken, and how that is told."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from simulation.trace import Trace


class Violation(Exception):
    """A promise was broken."""


def problem_of(run: Callable[[], None], trace: Trace) -> str:
    """What broke a promise in `run`, also as the last line of `trace`; empty: nothing did."""
    problem = ""
    try:
        run()
    except Violation as violation:
        problem = str(violation)
    except Exception:  # noqa: BLE001 - whatever a broken core raises is what was looked for
        problem = traceback.format_exc()
    if problem and trace.wanted:
        trace.add("PROBLEM", problem)
    return problem
