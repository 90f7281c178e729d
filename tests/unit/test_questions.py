"""What somebody at a terminal is asked before it is gone; a script is not, nor who says --yes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from control_broker import NODE1, ControlBroker, answering
from qpid_ha_agent.cli import cluster, questions, queue
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.cluster import what_force_gives_up


class Asked(ControlBroker):
    """A broker that is to do something that cannot be taken back."""

    messages = 3

    def queues(self, params: dict[str, object]) -> object:
        return {"name": params["name"], "messages": self.messages, "purged": self.messages}

    def status(self, params: dict[str, object]) -> object:
        unreachable = {"name": None, "address": "amqp://b:5672", "state": "unreachable"}
        return [NODE1, unreachable] if params.get("all") else NODE1

    def promote(self, params: dict[str, object]) -> object:
        return NODE1


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Asked]:
    asked = Asked(tmp_path, state="primary")
    with answering(asked):
        yield asked


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (questions, queue, cluster):
        monkeypatch.setattr(module, "is_somebody_there", lambda: True)


def run(broker: Asked, *words: str, answer: str = "") -> Result:
    return CliRunner().invoke(admin, [*words, "-b", str(broker.path)], input=answer)


def done(broker: Asked) -> list[object]:
    """What it was asked to do, beside looks."""
    return [params.get("action", method) for method, params in broker.asked if params.get("action") != "read"
            and method != "status"]  # fmt: skip


DESTROYS = [
    (("queue", "delete", "q"), "Queue q has 3 messages. Delete the queue with them?", "delete"),
    (("queue", "purge", "q"), "Queue q has 3 messages. Drop those that nobody has acquired?", "purge"),
    (("promote", "--force"), "amqp://b:5672 does not answer: what it alone has confirmed is given up", "promote"),
]


@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize(("words", "question", "action"), DESTROYS)
def test_it_is_asked_and_a_no_does_nothing(broker: Asked, words: tuple[str, ...], question: str, action: str) -> None:
    refused = run(broker, *words, answer="n\n")
    assert (refused.exit_code, question in refused.stderr, done(broker)) == (1, True, [])
    assert "nothing was done" in refused.stderr
    assert run(broker, *words, answer="y\n").exit_code == 0
    assert done(broker) == [action]


@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize(("words", "question", "action"), DESTROYS)
def test_who_says_yes_is_not_asked(broker: Asked, words: tuple[str, ...], question: str, action: str) -> None:
    told = run(broker, *words, "--yes")
    assert (told.exit_code, question in told.stderr, done(broker)) == (0, False, [action])


@pytest.mark.parametrize(("words", "question", "action"), DESTROYS)
def test_a_script_is_not_asked(broker: Asked, words: tuple[str, ...], question: str, action: str) -> None:
    told = run(broker, *words)
    assert (told.exit_code, question in told.stderr, done(broker)) == (0, False, [action])


@pytest.mark.usefixtures("at_a_terminal")
def test_nothing_is_asked_about_an_empty_queue(broker: Asked) -> None:
    broker.messages = 0
    assert run(broker, "queue", "delete", "q").exit_code == 0


@pytest.mark.usefixtures("at_a_terminal")
def test_sets_and_the_whole_cluster_are_asked_about(broker: Asked) -> None:
    for words in (("shutdown", "--cluster"), ("set", "delete", "s", "--lost"), ("set", "promote", "s", "b", "--force")):
        refused = run(broker, *words, answer="n\n")
        assert (refused.exit_code, "nothing was done" in refused.stderr, done(broker)) == (1, True, [])


def test_force_gives_up_what_others_are_ahead_with() -> None:
    own = {"name": "a", "generation": 3, "lsn": 100}
    ahead, behind = {"name": "b", "generation": 3, "lsn": 120}, {"name": "c", "generation": 2, "lsn": 500}
    assert what_force_gives_up(own, [own, ahead, behind]) == [
        "b is at generation 3, position 120, this broker at generation 3, position 100: what lies between is given up"
    ]
