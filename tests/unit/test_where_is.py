"""The page for newcomers and the glossary name files that are there, and things that are in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def section(name: str, begin: str) -> str:
    """What stands below a heading; all of the page if `begin` is empty."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return text.partition(begin)[2].partition("\n## ")[0] if begin else text


def files_in(text: str) -> list[str]:
    """Paths of Python modules, in the order in which they are named."""
    return re.findall(r"`([\w/]+\.py)`", text)


def resolved(name: str) -> list[Path]:
    """Paths may begin at the root, or in one of the packages."""
    packages = [ROOT / part / f"qpid_ha_{part}" for part in ("broker", "agent", "config", "pipeline")]
    return [start / name for start in (ROOT, *packages) if (start / name).is_file()]


@pytest.mark.parametrize(
    ("page", "begin"),
    [("architecture.md", "\n## Where is ...?\n"), ("architecture.md", "\n## A cluster\n"), ("glossary.md", "")],
)
def test_each_file_that_is_named_is_there(page: str, begin: str) -> None:
    named = files_in(section(page, begin))
    assert len(named) >= 5
    assert [name for name in named if not resolved(name)] == []


def test_what_is_said_to_be_in_a_file_is_in_it() -> None:
    """A word in backquotes is in the file that was named last before it."""
    for line in section("architecture.md", "\n## Where is ...?\n").splitlines():
        for cell in line.split("|")[2:] if line.startswith("| ") else []:
            text = ""
            for word in re.findall(r"`([^`]+)`", cell):
                if word.endswith(".py"):
                    text = resolved(word)[0].read_text(encoding="utf-8")
                elif text:
                    name = word.rpartition(".")[2]
                    assert re.search(rf"\b{re.escape(name)}\b", text), f"{word} is not there: {line}"


def test_the_glossary_has_each_word_once_and_in_order() -> None:
    rows = [line.split("|")[1].strip() for line in section("glossary.md", "").splitlines() if line.startswith("| ")]
    words = [row.lower() for row in rows[2:]]
    assert words == sorted(set(words))
