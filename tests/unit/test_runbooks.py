"""A page for each runbook, which somebody finds at 3 a.m.: from the table, from a finding, from an alert."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from doc_blocks import DOCS, ROOT, anchors, blocks_of, without_blocks
from qpid_ha_broker.diagnosis.findings import KINDS, PAGES, Severity

RUNBOOKS = sorted((DOCS / "runbooks").glob("*.md"))
STEPS = ["What you see", "What it means", "Do", "Check"]


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_a_runbook_says_what_one_sees_what_it_means_what_to_do_and_how_to_check(page: Path) -> None:
    text = without_blocks(page)
    assert text.startswith("# ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[: len(STEPS)] == STEPS
    for step in STEPS:
        assert part(page, step).strip(), f"{step}: nothing"
    of_check = part(page, "Check")
    assert [block for block in blocks_of(page) if block.language == "sh" and block.text.strip() in dedented(of_check)]


def part(page: Path, heading: str) -> str:
    """What stands below a heading, its blocks too."""
    return page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def dedented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def test_the_table_of_operations_leads_to_every_runbook() -> None:
    rows = [line for line in without_blocks(DOCS / "operations.md").splitlines() if line.startswith("|")]
    of_table = [row for row in rows if not row.startswith("| [`")]  # those are findings
    named = {name for row in of_table for name in re.findall(r"\(runbooks/([\w-]+)\.md", row)}
    assert named == {page.stem for page in RUNBOOKS}


def test_each_finding_has_a_page_and_each_urgent_one_a_page_that_says_what_to_do() -> None:
    assert set(PAGES) == set(KINDS)
    for key, target in PAGES.items():
        page, _, anchor = target.partition("#")
        assert (DOCS / page).is_file(), key
        assert not anchor or anchor in anchors(DOCS / page), key
        if KINDS[key].severity is Severity.CRITICAL:
            assert target.startswith("runbooks/") or target == "groups.md#when-something-fails", key


def test_an_alert_leads_to_the_page_of_its_finding() -> None:
    (group,) = yaml.safe_load((ROOT / "contrib" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    pages: dict[str, set[str]] = {}
    for key, kind in KINDS.items():
        pages.setdefault(kind.alert, set()).add(f"docs/{PAGES[key]}")
    for rule in group["rules"]:
        if rule["alert"] in pages:
            assert rule["annotations"]["runbook"] in pages[rule["alert"]], rule["alert"]


def test_a_runbook_names_the_findings_that_lead_to_it() -> None:
    for key, target in PAGES.items():
        if target.startswith("runbooks/"):
            assert f"`{key}`" in (DOCS / target).read_text(encoding="utf-8"), f"{target} has no {key}"
