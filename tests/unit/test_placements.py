"""Placements of other distributions: they are found by their entry points, and one that cannot be loaded is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_broker.cluster.placement import ring, spread
from qpid_ha_broker.server.control.placements import GROUP, NoPlacement, find_placement, load_placement


@pytest.fixture
def _plugged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with `backwards`, which can be loaded, and `broken`, which cannot."""
    info = tmp_path / "odd_placement-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-placement\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\nbackwards = odd_placement:backwards\nbroken = odd_placement:missing\n"
    )
    (tmp_path / "odd_placement.py").write_text("def backwards(placed, brokers):\n    return []\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("_plugged_in")
def test_a_placement_is_one_of_ours_or_that_of_another_distribution() -> None:
    assert load_placement("ring") is ring
    assert load_placement("backwards").__name__ == "backwards"


@pytest.mark.usefixtures("_plugged_in")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("spred", r"ha\.placement: there is no spred; did you mean spread\?"),
        ("backward", r"did you mean backwards\?"),
        ("broken", r"ha\.placement: broken cannot be loaded \(AttributeError"),
    ],
)
def test_one_that_is_not_there_or_cannot_be_loaded_is_told_and_spread_serves(
    name: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NoPlacement, match=problem):
        load_placement(name)
    assert find_placement(name) is spread
    assert f"{name}" in caplog.text
    assert "spread serves" in caplog.text
