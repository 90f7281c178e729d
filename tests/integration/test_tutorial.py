"""docs/tutorial.md works as it is typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from doc_blocks import DOCS, blocks_in
from followed_page import PageFailed, follow
from page_stage import follow_there, why_not_here

WHY_NOT_HERE = why_not_here()


@pytest.mark.skipif(bool(WHY_NOT_HERE), reason=WHY_NOT_HERE)
def test_whoever_types_the_tutorial_sees_what_it_shows(tmp_path: Path) -> None:
    code, transcript = follow_there("tutorial.md", tmp_path, timeout_s=900.0)
    assert code == 0, transcript
    assert not (tmp_path / "home" / "qpid-ha-tutorial").exists(), "it cleans up"


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("```sh\necho here\n```\n\n```text\nthere\n```\n", "'there' is not in"),
        ("```sh\nfalse\ntrue\n```\n", "this command has failed: false"),
        ("```sh\ncat no-such-file\n```\n", "No such file"),
    ],
)
def test_a_page_that_does_not_work_as_it_stands_is_found(tmp_path: Path, page: str, why: str) -> None:
    wrong = DOCS / "wrong.md"
    with pytest.raises(PageFailed, match=re.escape(why)):
        follow(blocks_in(wrong, page), tmp_path, limit_s=1.0)
