"""What `--help` lists: every command in one section, with its whole first sentence, whatever the width."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from control_broker import ControlBroker, answering
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.agent import agent
from qpid_ha_agent.cli.command_groups import OTHERS, ListedGroup


def groups(group: click.Group) -> list[click.Group]:
    inner = [command for command in group.commands.values() if isinstance(command, click.Group)]
    return [group, *(deeper for each in inner for deeper in groups(each))]


ALL = groups(admin) + groups(agent)


@pytest.mark.parametrize("group", ALL, ids=lambda group: str(group.name))
@pytest.mark.parametrize("width", [60, 100])
def test_a_summary_is_whole_however_narrow_the_terminal_is(group: click.Group, width: int) -> None:
    shown = " ".join(
        CliRunner().invoke(group, ["--help"], terminal_width=width, max_content_width=width).output.split()
    )
    for name, command in group.commands.items():
        summary = " ".join((command.help or "").split("\n\n")[0].split()).partition(". ")[0]
        assert command.hidden or f"{name} {summary}" in shown, name


def test_each_command_is_in_one_section() -> None:
    assert isinstance(admin, ListedGroup)
    listed = Counter(name for names in admin.sections.values() for name in names)
    assert set(listed.values()) == {1}
    assert set(listed) == {name for name, command in admin.commands.items() if not command.hidden}
    assert OTHERS not in CliRunner().invoke(admin, ["--help"]).output


class Settings(ControlBroker):
    """One with one setting."""

    def get(self, params: dict[str, object]) -> object:
        return {"log-level": "info"}

    def set(self, params: dict[str, object]) -> object:
        return {**params, "old": "info", "new": params["value"]}


@pytest.mark.parametrize("words", [("config", "set"), ("set",)])
def test_settings_have_a_word_of_their_own_and_the_old_one_still_works(tmp_path: Path, words: tuple[str, ...]) -> None:
    lines = (*words, "log-level=debug"), ("config", "get", "log-level"), ("get", "log-level")
    broker = Settings(tmp_path)
    with answering(broker):
        asked = [CliRunner().invoke(admin, [*line, "-b", str(broker.path)]) for line in lines]
    assert [result.stdout for result in asked] == ["log-level: info -> debug\n", "info\n", "info\n"]
    assert [result.stderr for result in asked] == [""] * 3
