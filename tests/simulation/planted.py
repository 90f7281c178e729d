"""Taking a safeguard out of the product, and finding out that the checkers see it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from simulation.runs import AnyOutcome, AnyPlan, run_plan


def found_by(monkeypatch: pytest.MonkeyPatch, plans: Iterable[AnyPlan]) -> AnyOutcome:
    """The first run of `plans` in which a promise is broken with the planted bug, and is not without it."""
    tried = 0
    for plan in plans:
        tried += 1
        outcome = run_plan(plan)
        if outcome.problem:
            monkeypatch.undo()
            assert not outcome.problem.startswith("Traceback"), f"an exception, and no checker: {outcome.problem}"
            assert run_plan(plan).problem == ""
            return outcome
    pytest.fail(f"{tried} clusters have not found it")
