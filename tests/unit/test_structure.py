"""The structure of the tree: what tells that a class or a package has become too much, and may only get better.

A class name occurs once, so whoever searches for it finds the one. No modules import each other in a circle. Classes
with more than 25 fields or 30 methods are listed here as they were when this was written; a new one fails, and one that
is gone has to leave the list.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {part: f"qpid_ha_{part}" for part in ("broker", "agent", "client", "config", "pipeline")}
FIELDS_MAX, METHODS_MAX = 25, 30

TOO_LARGE = {
    "qpid_ha_agent.ocf.agent.OcfAgent",
    "qpid_ha_agent.runner.Runner",
    "qpid_ha_config.settings.BrokerSettings",
}


@cache
def modules() -> dict[str, ast.Module]:
    """Each module of the product by its name."""
    found = {}
    for part, package in PACKAGES.items():
        for path in sorted((ROOT / part / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / part).with_suffix("").parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield module, node


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]


def fields(node: ast.ClassDef) -> set[str]:
    """What is annotated in the class, and what its methods assign to `self`."""
    annotated = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
    names = {target.id for target in annotated if isinstance(target, ast.Name)}
    for method in methods(node):
        for part in ast.walk(method):
            match part:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    names.add(name)
    return names


def imports(module: str, tree: ast.Module) -> set[str]:
    """The product's modules that it imports, for type checkers too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return (found & set(modules())) - {module}


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules of which each leads to each other one."""

    def reached(start: str) -> set[str]:
        seen, todo = set[str](), [start]
        while todo:
            for following in graph[todo.pop()] - seen:
                seen.add(following)
                todo.append(following)
        return seen

    reach = {module: reached(module) for module in graph}
    groups = {frozenset(other for other in reach[module] if module in reach[other]) for module in graph}
    return {group for group in groups if len(group) > 1}


def test_a_class_name_occurs_once() -> None:
    where = defaultdict(list)
    for module, node in classes():
        where[node.name].append(module)
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def test_no_other_class_becomes_too_large() -> None:
    large = {
        f"{module}.{node.name}"
        for module, node in classes()
        if len(fields(node)) > FIELDS_MAX or len(methods(node)) > METHODS_MAX
    }
    assert large == TOO_LARGE


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles({module: imports(module, tree) for module, tree in modules().items()}) == set()


def room_of(module: str) -> str:
    """The part of the broker that a module is in; elsewhere its whole package."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "qpid_ha_broker" else parts[0]


def test_no_rooms_import_each_other_in_a_circle() -> None:
    graph = defaultdict[str, set[str]](set)
    for module, tree in modules().items():
        graph[room_of(module)] |= {room_of(imported) for imported in imports(module, tree)} - {room_of(module)}
    assert circles(graph) == set()


def test_a_log_is_appended_to_where_its_events_are_applied() -> None:
    """That is where a unit is delivered, and its short way for one message about which there is nothing to decide."""
    appending = {
        (module.rpartition(".")[2], function.name)
        for module, tree in modules().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "append_unit")
        and ast.unparse(node.func.value).endswith("log")
    }
    assert appending == {("resource_set", "deliver"), ("resource_set", "enqueue_plain")}


def test_which_log_a_number_is_of_is_asked_where_bytes_are_read_and_written() -> None:
    """In memory a queue knows its log, and a set what is its own: only files and frames have nothing but numbers."""
    asking = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and any(alias.name in ("LOCAL_BASE", "is_local_lsn") for alias in node.names)
    }
    reading = (
        "qpid_ha_broker.store.",
        "qpid_ha_broker.server.stores.",
        "qpid_ha_broker.ha.objects",
        "qpid_ha_pipeline.",
    )
    beginning = {"qpid_ha_broker.model.logs.local_log", "qpid_ha_broker.model.sets.resource_set"}
    assert {module for module in asking if not module.startswith(reading)} == beginning


def test_a_disk_is_waited_for_where_it_is_known() -> None:
    """Dead letters of a deleted queue, a change of level, both sides of a catch-up, a snapshot, a move in portions of a
    read or two: nothing that serves."""
    loading = {
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("load_bodies")
    }
    places = "model.sets.resources model.sets.level_change model.commands.moving ha.browser ha.catchup store.dump"
    assert loading == {f"qpid_ha_broker.{place}" for place in places.split()}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {frozenset("abc")}
