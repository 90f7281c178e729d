"""What the pages of the documentation show between fences: ```sh, or with a title, ```crmsh title="virtual-ip"."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>[\w+-]*)(?: title="(?P<title>[\w-]+)")?\n(?P<text>.*?)^(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """`text`: what is between the fences, without the indent of a list; `line`: of its first line, from 1.

    `language` and `title`: empty where the fence has none.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str

    @property
    def name(self) -> str:
        """Where it is, for people."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """All pages for people who run it: README.md and docs/, without decisions, which tell of their time."""
    of_docs = [page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"]
    return [ROOT / "README.md", *sorted(of_docs), ROOT / "vagrant" / "README.md"]


def blocks_of(page: Path) -> Iterator[Block]:
    """All of a page, in their order."""
    yield from blocks_in(page, page.read_text(encoding="utf-8"))


def blocks_in(page: Path, text: str) -> Iterator[Block]:
    """The same of a page that has this text."""
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        yield Block(page, line, found["language"], found["title"] or "", textwrap.dedent(found["text"]))


def without_blocks(page: Path) -> str:
    """Its sentences and tables, with the lines where they are: blocks leave empty ones."""
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading: https://github.com/gjtorikian/html-pipeline, toc_filter."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    """All of a page; a heading that is there twice has a number the second time."""
    found: list[str] = []
    for line in without_blocks(page).splitlines():
        heading = re.match(r"#{1,6} (.*)", line)
        if heading is not None:
            name = slug(heading[1].strip())
            found.append(f"{name}-{found.count(name)}" if name in found else name)
        found += re.findall(r'<a id="([\w-]+)">', line)
    return frozenset(found)


def titled_blocks(page: str, language: str) -> dict[str, str]:
    """{title: text} of the blocks in `language` on the page `page` of docs/."""
    found = [(block.title, block.text) for block in blocks_of(DOCS / page) if block.language == language]
    titled = [(title, text) for title, text in found if title]
    blocks = dict(titled)
    if len(blocks) != len(titled):
        raise ValueError(f"{page}: two {language} blocks have the same title")
    return blocks
