"""The blocks of a page of the documentation that have a title: ```crmsh title="virtual-ip"."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r'^```(\w+) title="([\w-]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def titled_blocks(page: str, language: str) -> dict[str, str]:
    """{title: text} of the blocks in `language` on the page `page` of docs/."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = [(title, body) for kind, title, body in _BLOCK.findall(text) if kind == language]
    blocks = dict(found)
    if len(blocks) != len(found):
        raise ValueError(f"{page}: two {language} blocks have the same title")
    return blocks
