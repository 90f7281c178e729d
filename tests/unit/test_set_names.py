"""The names of resource sets: each is a directory of its own beside what else lies in a data directory."""

from __future__ import annotations

import pytest

from qpid_ha_broker.events.set_names import RESERVED, set_name_problem
from qpid_ha_broker.server.runtime.data_directory import LOCK_FILE
from qpid_ha_broker.server.stores.discarded import DIRECTORY


@pytest.mark.parametrize("name", ["default", "orders", "shard-12", "a", "0", "a.b_c-d", "x" * 64])
def test_letters_digits_and_a_few_signs_make_a_name(name: str) -> None:
    assert set_name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "-rf", "_x", "a/b", "../default", "Orders", "x" * 65, "a b", "a\n", "a\0", "ä", "a:b"],
)
def test_what_is_no_safe_name_of_a_directory_is_refused_with_what_may_be(name: str) -> None:
    problem = set_name_problem(name)
    assert problem is not None
    assert "lower-case letters" in problem
    assert "\n" not in problem


def test_a_name_of_thousands_of_characters_is_not_quoted_whole() -> None:
    problem = set_name_problem("x" * 10_000)
    assert problem is not None
    assert len(problem) < 300


@pytest.mark.parametrize("name", [*sorted(RESERVED), DIRECTORY])
def test_what_lies_in_a_data_directory_already_is_refused(name: str) -> None:
    problem = set_name_problem(name)
    assert problem is not None
    assert "choose another one" in problem


@pytest.mark.parametrize("name", [LOCK_FILE, "default.set-aside-20260131T120000Z", "orders.DELETED"])
def test_what_is_made_beside_the_sets_is_never_taken_for_one(name: str) -> None:
    assert set_name_problem(name) is not None
