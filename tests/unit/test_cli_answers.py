"""Stories about what `qpid-ha` ends with, and how long it waits: what scripts at three in the morning rely on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner, Result

from control_broker import ControlBroker, answering
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.agent import agent
from qpid_ha_broker.server.command_line import main as qpidd
from qpid_ha_broker.server.control.control import INVALID_PARAMS, NOT_ALLOWED, REFUSED, ControlError
from qpid_ha_pipeline.main import main as pipeline


@dataclass
class Broker(ControlBroker):
    """One that goes from state to state each time that it is asked."""

    states: list[str] = field(default_factory=list)
    lets_in: bool = True

    def status(self, params: dict[str, object]) -> object:
        if not self.lets_in:
            raise ControlError(NOT_ALLOWED, "uid 1000 may not administer this broker: join the socket's group")
        self.state = self.states.pop(0) if self.states else self.state
        return {"state": self.state, "name": "node1"}

    def queues(self, params: dict[str, object]) -> object:
        match params:
            case {"action": "create", "name": "orders", "arguments": {"qpid.max_count": 1}}:
                raise ControlError(REFUSED, "queue orders exists with other arguments: {}")
            case {"action": "create", "name": name}:
                return {"name": name, "created": name != "orders"}
            case {"action": "purge"}:
                return {"name": "orders", "purged": 3}
        return {"name": params["name"]}


@dataclass
class Older(ControlBroker):
    """One that does not know who wants what."""

    def demote(self, params: dict[str, object]) -> object:
        if params:
            raise ControlError(INVALID_PARAMS, "unknown parameter 'cause'; there are none")
        return {"name": "node1", "state": "connecting"}


@dataclass
class Leaderless(ControlBroker):
    """A broker of a cluster that nobody leads."""

    def status(self, params: dict[str, object]) -> object:
        if not params.get("all"):
            return {"state": "connecting", "name": "node1"}
        silent = {"name": None, "last_name": "node2", "address": "amqp://b:5672", "state": "unreachable"}
        by = {"in_sync": False, "in_sync_by": "the record says (generation 3, epoch 8), while nobody leads"}
        return [
            {"name": "node1", "address": "amqp://a:5672", "state": "connecting", "in_sync_known": "no", **by},
            {**silent, "in_sync_known": "unknown", **by},
        ]


@contextmanager
def running(tmp_path: Path, *states: str, lets_in: bool = True) -> Iterator[Broker]:
    broker = Broker(tmp_path, states=list(states), lets_in=lets_in)
    with answering(broker):
        yield broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path) as broker:
        yield broker


def qpid_ha(broker: ControlBroker, *words: str) -> Result:
    return CliRunner().invoke(admin, [*words, "-b", str(broker.path)])


def test_a_wait_ends_when_the_state_is_reached(tmp_path: Path) -> None:
    with running(tmp_path, "connecting", "catchup", "ready") as broker:
        done = qpid_ha(broker, "status", "--expect", "ready", "--wait", "30s")
    assert (done.exit_code, done.output) == (0, "")
    assert len(broker.asked) == 3


def test_a_wait_ends_with_1_when_the_time_is_over_and_says_how_far_it_is(tmp_path: Path) -> None:
    with running(tmp_path, "catchup") as broker:
        done = qpid_ha(broker, "status", "--expect", "ready", "--wait", "0.2s")
    assert (done.exit_code, done.stderr) == (1, "Error: node1 is catchup, not ready, after 0.2 s\n")


def test_a_wait_ends_at_once_with_4_where_we_are_not_let_in(tmp_path: Path) -> None:
    with running(tmp_path, lets_in=False) as broker:
        done = qpid_ha(broker, "status", "--is-primary", "--wait", "1h")
    assert (done.exit_code, len(broker.asked)) == (4, 1)
    assert "join the socket's group" in done.stderr


def test_a_wait_for_a_broker_that_does_not_come_ends_with_3(tmp_path: Path) -> None:
    done = qpid_ha(Broker(tmp_path), "status", "--expect", "ready", "--wait", "0.2s")
    assert done.exit_code == 3


def test_a_broker_of_an_older_version_that_takes_no_cause_is_demoted_all_the_same(tmp_path: Path) -> None:
    broker = Older(tmp_path, "primary")
    with answering(broker):
        done = qpid_ha(broker, "demote")
    assert done.exit_code == 0, done.output
    assert [sorted(params) for _method, params in broker.asked] == [["cause"], []]


def test_while_nobody_leads_it_is_said_who_is_known_to_be_in_sync_and_by_whom(tmp_path: Path) -> None:
    with answering(broker := Leaderless(tmp_path)):
        for words in (("status", "--all"), ("watch", "--once")):
            done = qpid_ha(broker, *words)
            lines = [line.split() for line in done.stdout.splitlines()]
            assert [(line[0], line[-1]) for line in lines[1:]] == [("node1", "no"), ("node2", "unknown")]
            assert done.stderr == "in sync, as the record says (generation 3, epoch 8), while nobody leads\n"


def test_a_wait_for_no_state_is_for_an_answer(tmp_path: Path) -> None:
    """Right after a start there is no socket yet."""
    absent = qpid_ha(Broker(tmp_path), "status", "--wait", "0.2s")
    assert absent.exit_code == 3
    with running(tmp_path, "catchup") as broker:
        done = qpid_ha(broker, "status", "--wait", "1s")
    assert (done.exit_code, "catchup" in done.stdout) == (0, True)


@pytest.mark.parametrize("words", [("status",), ("status", "--all"), ("status", "--expect", "ready")])
def test_who_may_not_ask_gets_4(tmp_path: Path, words: tuple[str, ...]) -> None:
    with running(tmp_path, lets_in=False) as broker:
        assert qpid_ha(broker, *words).exit_code == 4


def test_queue_create_says_whether_it_made_one(broker: Broker) -> None:
    assert qpid_ha(broker, "queue", "create", "new").stdout == "queue new created\n"
    there = "queue orders exists already, with the same arguments: nothing was changed\n"
    done = qpid_ha(broker, "queue", "create", "orders")
    assert (done.exit_code, done.stdout) == (0, there)
    refused = qpid_ha(broker, "queue", "create", "orders", "--max-messages", "1")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "other arguments" in refused.stderr
    assert json.loads(qpid_ha(broker, "queue", "create", "new", "--format", "json").stdout)["created"] is True


def test_queue_delete_and_purge_say_what_they_did(broker: Broker) -> None:
    assert qpid_ha(broker, "queue", "delete", "orders").stdout == "queue orders deleted\n"
    assert qpid_ha(broker, "queue", "purge", "orders").stdout == "3 messages purged from queue orders\n"


@pytest.mark.parametrize(
    ("name", "program"),
    [("qpid-ha", admin), ("qpid-ha-agent", agent), ("qpid-ha-pipeline", pipeline), ("qpidd", qpidd)],
)
def test_each_program_has_a_version(name: str, program: Command) -> None:
    done = CliRunner().invoke(program, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"{name}, version {version('qpid-ha')}\n")


def commands_of(command: Command, name: str) -> Iterator[tuple[str, Command]]:
    yield name, command
    for inner in getattr(command, "commands", {}).values():
        yield from commands_of(inner, f"{name} {inner.name}")


@pytest.mark.parametrize(("name", "command"), list(commands_of(admin, "qpid-ha")))
def test_no_two_parameters_of_a_command_share_a_name(name: str, command: Command) -> None:
    names = [parameter.name for parameter in command.params]
    assert len(names) == len(set(names)), f"{name}: one would overwrite the other"
