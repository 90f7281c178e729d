"""What a reviewer would say every time, said once: functions that stay readable, nothing left lying about."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
TEXT = {".cfg", ".js", ".json", ".md", ".py", ".toml", ".yaml", ""}
NOT_OURS = {".git", ".venv", "build", "dist", "node_modules", "__pycache__", "LICENSE"}
# Where a developer's checkout lies; the system's own paths (/etc, /run, /var/lib) are part of the product.
MACHINE_PATH = re.compile(r"/(?:home|root|Users)/")
ENDS_WITH_IT = {
    "broker/qpid_ha_broker/server/control/control.py: except (TimeoutError, ConnectionError, asyncio.CancelledError):"
}
"""Where nothing comes after it: the task of a connection is over."""
LEFT_OVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b")


def text_files() -> Iterator[Path]:
    for directory, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in NOT_OURS and (name == ".ci" or name[0] != ".")]
        yield from (Path(directory, name) for name in files if Path(name).suffix in TEXT and name not in NOT_OURS)


def python_files() -> list[Path]:
    return [path for path in text_files() if path.suffix == ".py"]


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_functions_fit_on_a_screen() -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in python_files()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert too_long == []


def swallowed_cancellations(tree: ast.Module) -> Iterator[int]:
    """Lines at which a coroutine could take its own cancellation for that of what it waits for, and go on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught, goes_on = node.args, True
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            caught = list(node.type.elts) if isinstance(node.type, ast.Tuple) else [node.type]
            goes_on = not any(isinstance(each, ast.Raise) and each.exc is None for each in node.body)
        else:
            continue
        if goes_on and any(ast.unparse(each).endswith("CancelledError") for each in caught):
            yield node.lineno


def test_no_cancellation_is_lost() -> None:
    """Who has cancelled a task waits for it by `asyncio.wait` or `gather`, which take nothing for their own."""
    lost = {
        f"{path.relative_to(ROOT)}: {path.read_text(encoding='utf-8').splitlines()[line - 1].strip()}"
        for part in ("agent", "broker", "client", "kernel", "pipeline")
        for path in sorted((ROOT / part).rglob("*.py"))
        for line in swallowed_cancellations(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert lost == ENDS_WITH_IT


def test_nothing_names_a_path_of_one_machine() -> None:
    assert lines_matching(MACHINE_PATH) == []


def test_nothing_is_left_for_later_in_the_source() -> None:
    assert lines_matching(LEFT_OVER) == []


TAKE_ALL_AT_ONCE = {
    "all", "any", "bytes", "dict", "extend", "fromkeys", "join", "list", "max", "min", "next", "set", "sorted", "sum",
    "tuple", "update",
}  # fmt: skip
"""What has gone through a generator when it returns."""


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def _is_used_up(parent: ast.AST, generator: ast.GeneratorExp) -> bool:
    """Whether it is gone through where it is made."""
    if isinstance(parent, ast.Call):
        return ast.unparse(parent.func).rpartition(".")[2] in TAKE_ALL_AT_ONCE
    if isinstance(parent, ast.Assign):
        return all(isinstance(target, ast.Tuple | ast.List) for target in parent.targets)
    return isinstance(parent, ast.Starred | ast.YieldFrom) or (isinstance(parent, ast.For) and parent.iter is generator)


def late_bindings(tree: ast.Module) -> Iterator[int]:
    """Lines of generators that a loop makes for later, and that then find its names as the last round has left them.

    Ruff's B023 sees functions alone. What a generator goes through first is bound when it is made.
    """
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For | ast.AsyncFor | ast.While):
            continue
        bound = _names(loop, ast.Store)
        generators = [node for part in loop.body for node in ast.walk(part) if isinstance(node, ast.GeneratorExp)]
        for generator in generators:
            first, *_ = generator.generators
            later = _names(generator, ast.Load) - _names(first.iter, ast.Load)
            own = set().union(*[_names(each.target, ast.Store) for each in generator.generators])
            is_late = not (later - own).isdisjoint(bound)
            if is_late and not _is_used_up(parents[generator], generator):
                yield generator.lineno


def test_no_generator_binds_the_names_of_a_loop_late() -> None:
    assert list(late_bindings(ast.parse("for a in b:\n    c.append(f(a, d) for d in e)"))) == [2]
    assert list(late_bindings(ast.parse("for a in b:\n    c.append(sum(f(a, d) for d in e))"))) == []
    late = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in python_files()
        for line in late_bindings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert late == []
