"""The product's source, for tests that read it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {part: f"qpid_ha_{part}" for part in ("broker", "agent", "client", "config", "pipeline")}


@cache
def modules() -> dict[str, ast.Module]:
    """Each module of the product by its name."""
    trees = {}
    for part, package in PACKAGES.items():
        for path in sorted((ROOT / part / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / part).with_suffix("").parts)
            trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees
