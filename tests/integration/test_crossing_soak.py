"""`./dev soak --sets` without a fault: its load works at real brokers, and its books balance."""

from __future__ import annotations

from pathlib import Path

from bench.crossing_soak import CrossingSoak
from qpid_ha_demo.stage import Stage


def test_books_of_a_cluster_that_nobody_troubles_balance(tmp_path: Path) -> None:
    soak = CrossingSoak(Stage(), tmp_path, seed=1)

    assert soak.run(minutes=0.0), (tmp_path / "findings.log").read_text(encoding="utf-8")
    assert (tmp_path / "steps.log").read_text(encoding="utf-8") == ""
