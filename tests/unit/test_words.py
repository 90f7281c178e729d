"""Names say what they hold: no variable, argument or field goes by a pronoun or a participle that fits everything.

`for backup in backups`, not `for each in backups`; `match = pattern.fullmatch(text)`, not `found`. Held in the rooms
that are listed here; who clears another room adds it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from product_source import modules

RIDDLES = frozenset({"each", "found", "told", "what", "it", "ours", "theirs"})
ROOMS = (
    "qpid_ha_broker.access",
    "qpid_ha_broker.amqp.nodes",
    "qpid_ha_broker.amqp.selectors",
    "qpid_ha_broker.amqp.wire",
    "qpid_ha_broker.coordination",
    "qpid_ha_broker.events",
    "qpid_ha_broker.group",
    "qpid_ha_broker.ha.browser",
    "qpid_ha_broker.ha.catchup",
    "qpid_ha_broker.ha.in_sync",
    "qpid_ha_broker.ha.objects",
    "qpid_ha_broker.ha.verdict",
    "qpid_ha_broker.metrics",
    "qpid_ha_broker.model",
    "qpid_ha_broker.server.clients",
    "qpid_ha_broker.server.control",
    "qpid_ha_broker.server.http",
    "qpid_ha_broker.store",
    "qpid_ha_agent",
    "qpid_ha_client",
    "qpid_ha_config",
    "qpid_ha_pipeline",
)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module gives to something, with its line: variables, arguments, fields, captures."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                yield node.lineno, name


def riddles(module: str, tree: ast.AST) -> list[str]:
    return [f"{module}:{line}: {name}" for line, name in bound_names(tree) if name in RIDDLES]


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_of_a_room_is_a_riddle(room: str) -> None:
    trees = {name: tree for name, tree in modules().items() if name == room or name.startswith(f"{room}.")}
    assert trees, "there is no such room any more"
    assert [riddle for name, tree in trees.items() for riddle in riddles(name, tree)] == []


def test_riddles_are_seen_wherever_a_name_is_given() -> None:
    source = """
for each in ours: found = [what for what in each]
def take(it): self.told = lambda theirs: it
match it:
    case [*found]: pass
"""
    names = [riddle.rpartition(" ")[2] for riddle in riddles("module", ast.parse(source))]
    assert sorted(names) == ["each", "found", "found", "it", "theirs", "told", "what"]
