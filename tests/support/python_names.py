"""What is wrong with a piece of Python, without running it: modules and names of them that are not there, and names
that nothing has defined."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
from collections.abc import Collection, Iterator


def problems_of(text: str, given: Collection[str] = (), not_looked_into: Collection[str] = ()) -> list[str]:
    """One line each, none if all is well. `given`: names that are there before; `not_looked_into`: packages of which
    nothing is asked. Raises SyntaxError."""
    tree = ast.parse(text)
    return [*_imports(tree, not_looked_into), *_undefined(tree, given)]


def _imports(tree: ast.Module, not_looked_into: Collection[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in wanted:
            if module.partition(".")[0] in not_looked_into:
                continue
            try:
                imported = importlib.import_module(module)
            except ImportError as error:
                yield f"line {node.lineno}: {error}"
                continue
            if name and not hasattr(imported, name):
                yield f"line {node.lineno}: {module} has no {name}"


def _undefined(tree: ast.Module, given: Collection[str]) -> Iterator[str]:
    """Wherever in the text a name is defined: order and scope are not looked at."""
    defined = {*given, *dir(builtins)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            defined.add(node.id)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in defined:
            yield f"line {node.lineno}: nothing has defined {node.id}"
