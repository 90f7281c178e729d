"""The checkers find what they are there for: each test plants a bug in the core, and seeds must find it soon."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from qpid_ha_broker.ha import catchup
from qpid_ha_broker.ha.in_sync import InSyncSet
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.model.sequence import Entry
from simulation.cluster import Outcome
from simulation.runs import first_failure, run_seed

SEEDS = range(150)


def found_by(monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The first run that fails with the bug, and does not without it."""
    for seed in SEEDS:
        outcome = first_failure([seed])
        if outcome is not None:
            monkeypatch.undo()
            assert run_seed(seed).problem == ""
            return outcome
    pytest.fail(f"{len(SEEDS)} seeds have not found it")


def test_confirming_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def advance_alone(self: InSyncSet) -> None:
        self.committed_lsn = max(self.committed_lsn, self._acknowledged[self.primary])

    monkeypatch.setattr(InSyncSet, "_advance", advance_alone)

    outcome = found_by(monkeypatch)

    assert "was confirmed and is gone" in outcome.problem or "was settled and is there again" in outcome.problem


def test_skipping_the_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_without_a_word(self: Primary, name: str, why: str) -> None:
        self._expected.discard(name)
        self.in_sync._acknowledged.pop(name)
        self.in_sync._advance()
        self._check_phase()

    monkeypatch.setattr(Primary, "_leave", leave_without_a_word)

    outcome = found_by(monkeypatch)

    assert outcome.problem


def test_forgetting_a_tombstone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def remaining_with_the_dead(self: object, entries: Iterable[Entry], dropped: Iterable[int] = ()) -> list[Entry]:
        return [entry for entry in entries if entry.id not in set(dropped)]

    monkeypatch.setattr(catchup._Level, "remaining", remaining_with_the_dead)

    outcome = found_by(monkeypatch)

    assert "replicas differ" in outcome.problem or "is there again" in outcome.problem or "lacks" in outcome.problem
