"""Runbooks work as they are typed, on three machines of which something is broken before."""

from __future__ import annotations

from pathlib import Path

import pytest

from page_stage import follow_there, why_not_here
from runbook_stories import STORIES

WHY_NOT_HERE = why_not_here()
pytestmark = pytest.mark.skipif(bool(WHY_NOT_HERE), reason=WHY_NOT_HERE)


@pytest.mark.parametrize("page", STORIES)
def test_whoever_follows_a_runbook_comes_to_its_end(tmp_path: Path, page: str) -> None:
    code, transcript = follow_there(f"runbooks/{page}.md", tmp_path, 600.0, "three_machines")
    assert code == 0, transcript
