"""What `qpid-ha set` asks for, and shows, of sets with a primary and of groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from control_broker import ControlBroker, answering
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.set_tables import set_rows, summary_rows
from qpid_ha_broker.server.control.control import ControlServer

ROW: dict[str, object] = {
    "name": "orders", "strategy": "primary", "primary": "b", "in_sync": ["a", "b"], "wanted": 2, "state": "ok",
    "queues": 1, "messages": 7, "problem": "",
}  # fmt: skip
AUDIT = ROW | {"name": "audit", "strategy": "group"}
SILENT = "no member of the group serves: a is away: start a"
SETS = [ROW, AUDIT, AUDIT | {"name": "bills", "primary": "", "state": "no primary", "problem": SILENT}]
OF_AN_OLDER_CONTROLLER = {name: value for name, value in ROW.items() if name != "strategy"}


@dataclass
class SetsBroker(ControlBroker):
    """It has these sets, and makes others."""

    def server(self, path: Path | None = None) -> ControlServer:
        return ControlServer(path or self.path, {"sets": self._method("sets")})

    def sets(self, params: dict[str, object]) -> object:
        return SETS if params["action"] == "list" else {"text": "done"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SetsBroker]:
    broker = SetsBroker(tmp_path)
    with answering(broker):
        yield broker


def run(broker: SetsBroker, *words: str) -> Result:
    return CliRunner().invoke(admin, ["-b", str(broker.path), "set", *words])


def test_a_group_is_asked_for_by_its_strategy_and_other_sets_as_ever(broker: SetsBroker) -> None:
    assert run(broker, "create", "orders", "--strategy", "group").exit_code == 0
    assert run(broker, "create", "bills").exit_code == 0
    group, other = [params for _, params in broker.asked]
    assert (group["name"], group["strategy"]) == ("orders", "group")
    assert "strategy" not in other, "an older controller knows no strategies"
    refused = run(broker, "create", "orders", "--strategy", "all")
    assert refused.exit_code == 2
    assert "'primary', 'group'" in refused.output


def test_groups_are_listed_as_such_with_who_is_in_sync_and_what_they_lack(broker: SetsBroker) -> None:
    done = run(broker, "list")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["set", "primary", "in-sync", "state", "queues", "messages"],
        ["audit", "group", "2", "of", "2", "ok", "1", "7"],
        ["bills", "-", "2", "of", "2,", "recorded", "no", "primary", "1", "7"],
        ["orders", "b", "2", "of", "2", "ok", "1", "7"],
    ]
    assert done.stderr == f"bills: {SILENT}\n"


def test_of_many_sets_the_groups_are_counted_together() -> None:
    rows = summary_rows([ROW, AUDIT, AUDIT | {"name": "more"}, *SETS[2:], OF_AN_OLDER_CONTROLLER])
    assert [(row["primary"], row["sets"], row["messages"]) for row in rows] == [("b", 2, 14), ("group", 2, 14)]
    assert set_rows([OF_AN_OLDER_CONTROLLER])[0]["primary"] == "b"
