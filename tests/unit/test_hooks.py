"""What is told of a broker's role: each beginning once, and then its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_agent.hooks import HookEvent, Hooks, RoleChange, RoleHistory
from qpid_ha_config.settings import ActivationSettings


def promoted(generation: int) -> RoleChange:
    return RoleChange(HookEvent.PROMOTED, generation)


def demoted(generation: int) -> RoleChange:
    return RoleChange(HookEvent.DEMOTED, generation)


def told(history: RoleHistory, *looks: tuple[bool | None, int | None]) -> list[RoleChange]:
    return [change for is_primary, generation in looks for change in history.note(is_primary, generation)]


def test_a_role_that_lasts_is_told_once() -> None:
    assert told(RoleHistory(), (True, 3), (True, 3), (False, 3), (False, 3)) == [promoted(3), demoted(3)]


def test_what_is_not_known_yet_changes_nothing() -> None:
    """A new primary has not said its generation; a new process nothing at all."""
    assert told(RoleHistory(), (False, 0), (True, None), (None, 0), (True, 3), (None, None)) == [promoted(3)]


def test_who_leads_anew_between_two_looks_has_ended_before() -> None:
    assert told(RoleHistory(), (True, 3), (True, 5)) == [promoted(3), demoted(3), promoted(5)]


def test_a_new_agent_goes_on_where_the_old_one_was() -> None:
    assert told(RoleHistory(announced=3), (None, None), (True, 3)) == []
    assert told(RoleHistory(announced=3), (False, 0)) == [demoted(3)]
    assert told(RoleHistory(announced=3), (True, 4)) == [demoted(3), promoted(4)]


@pytest.mark.parametrize("text", ["", "three", "3\n4"])
def test_a_memory_that_cannot_be_understood_is_none(tmp_path: Path, text: str) -> None:
    memory = tmp_path / "a.hooks"
    memory.write_text(text, encoding="ascii")
    hooks = Hooks(ActivationSettings(on_promoted=("/bin/true",)), memory, {})
    hooks.note(is_primary=True, generation=4)
    assert memory.read_text(encoding="ascii") == "4\n"


def test_without_programs_nothing_is_remembered(tmp_path: Path) -> None:
    Hooks(ActivationSettings(), tmp_path / "a.hooks", {}).note(is_primary=True, generation=4)
    assert list(tmp_path.iterdir()) == []
