"""Taking a safeguard out of the product, and finding out that the checkers see it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from simulation.cluster import Outcome, run
from simulation.plan import Plan


def found_by(monkeypatch: pytest.MonkeyPatch, plans: Iterable[Plan]) -> Outcome:
    """The first run of `plans` in which a promise is broken with the planted bug, and is not without it."""
    tried = 0
    for plan in plans:
        tried += 1
        outcome = run(plan)
        if outcome.problem:
            monkeypatch.undo()
            assert not outcome.problem.startswith("Traceback"), "the bug was found by an exception, not by a checker"
            assert run(plan).problem == ""
            return outcome
    pytest.fail(f"{tried} clusters have not found it")
