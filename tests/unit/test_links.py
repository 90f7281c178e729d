"""Links of the pages, and places in them that programs, alerts and packages name, are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from doc_blocks import DOCS, ROOT, anchors, pages, without_blocks

DECISIONS = sorted((DOCS / "decisions").glob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_PAGE = re.compile(r"docs/(?P<page>[\w/-]+\.md)(?P<anchor>#[\w-]+)?")
WHERE_PAGES_ARE_NAMED = (
    "agent",
    "broker",
    "client",
    "config",
    "contrib",
    "demo",
    "ocf",
    "packaging",
    "pipeline",
    "systemd",
)
TEXT = {".py", ".yml", ".yaml", ".json", ".service", ".html", ".js", ""}


def problem(page: Path, target: str) -> str:
    """Why a link on `page` leads nowhere; empty: it does not."""
    if re.match(r"[a-z]+:", target):
        return ""
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return f"{page.relative_to(ROOT)}: {target}: there is no such file"
    if anchor and anchor not in anchors(there):
        return f"{page.relative_to(ROOT)}: {target}: there is no such heading"
    return ""


@pytest.mark.parametrize(
    "page", [*pages(), *DECISIONS, ROOT / "tests" / "lab" / "README.md"], ids=lambda page: page.stem
)
def test_links_lead_somewhere(page: Path) -> None:
    text = without_blocks(page)
    targets = LINK.findall(re.sub(r"`[^`\n]*`", "", text))
    assert [why for target in targets if (why := problem(page, target))] == []


def test_a_link_to_a_page_or_a_heading_that_is_not_there_is_found() -> None:
    page = DOCS / "states.md"
    assert problem(page, "state.md")
    assert problem(page, "operations.md#no-such-thing")
    assert not problem(page, "operations.md")


def test_pages_and_headings_that_programs_alerts_and_packages_name_are_there() -> None:
    named = [
        (path, found["page"], (found["anchor"] or "").removeprefix("#"))
        for part in WHERE_PAGES_ARE_NAMED
        for path in (ROOT / part).rglob("*")
        if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts
        for found in NAMED_PAGE.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert len(named) > 20
    wrong = [
        f"{path.relative_to(ROOT)}: {page}{anchor}"
        for path, page, anchor in named
        if not (DOCS / page).is_file() or (anchor and anchor not in anchors(DOCS / page))
    ]
    assert wrong == []
