"""What a member refuses it says in the words of its set: those of `default` are of no use for another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import qpid_ha_broker.ha
from qpid_ha_broker.ha import record_keeper
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.record_keeper import COORDINATOR, controller_of
from small_cluster import SmallCluster, three

OF_DEFAULT = re.compile(r"coordinator|brokers-url|qpid-ha (promote|activation|backups|demote|switchover)|acemaker")
STANDALONE = "this broker is in no cluster"
SOURCES = sorted(Path(qpid_ha_broker.ha.__path__[0]).glob("*.py"))


def told(path: Path) -> Iterator[str]:
    """The string literals of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            yield node.value


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_only_the_keeper_s_words_speak_of_what_default_alone_has(path: Path) -> None:
    if path.name == Path(str(record_keeper.__file__)).name:
        pytest.skip("they are here")
    wrong = [text for text in told(path) if OF_DEFAULT.search(text) and not text.startswith(STANDALONE)]
    assert wrong == []


def test_the_words_of_another_set_name_it_and_the_controller() -> None:
    words = controller_of("orders")
    assert words.name == "the controller"
    assert [text for text in words if OF_DEFAULT.search(text)] == []
    assert all("orders" in text for text in (words.force, words.look_around, words.backups, words.foreign_record))
    assert OF_DEFAULT.search(COORDINATOR.force), "the pattern finds what it is for"


def set_of_three() -> SmallCluster:
    """As of a set `orders`; `a` leads."""
    return three(has_coordinator=True, keeper=controller_of("orders"))


def test_a_candidate_that_cannot_reach_the_record_says_that_it_is_the_controller() -> None:
    cluster = set_of_three()
    cluster.kill("a")
    cluster.wait(1.0)
    cluster.record_is_reachable = False
    assert cluster.promote("b").text.startswith("the controller cannot be reached")


def test_a_primary_whose_record_is_of_another_set_of_its_name_says_so() -> None:
    cluster = set_of_three()
    cluster.record = ClusterRecord("another", 1, "z", 1, ("z",))
    cluster.wait(12.0)
    assert "the cluster map has another set orders (another)" in cluster["a"].member.status.problem
