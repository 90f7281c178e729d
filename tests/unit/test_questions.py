"""What somebody at a terminal is asked before it is gone; a script, and who says --yes, are told what goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from control_broker import NODE1, ControlBroker, answering
from qpid_ha_agent.cli import questions
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.cluster import what_force_gives_up
from qpid_ha_broker.server.control.control import NOT_ALLOWED, ControlError, ControlServer


class Asked(ControlBroker):
    """A broker that is to do something that cannot be taken back."""

    messages = 3
    may_read = True

    def server(self, path: Path | None = None) -> ControlServer:
        names = ("status", "queues", "sets", "promote", "shutdown")
        return ControlServer(path or self.path, {name: self._method(name) for name in names})

    def queues(self, params: dict[str, object]) -> object:
        if params["action"] == "read" and not self.may_read:
            raise ControlError(NOT_ALLOWED, "queue q is not for you")
        return {"name": params["name"], "messages": self.messages, "purged": self.messages}

    def status(self, params: dict[str, object]) -> object:
        unreachable = {"name": None, "address": "amqp://b:5672", "state": "unreachable"}
        return [NODE1, unreachable] if params.get("all") else NODE1

    def promote(self, params: dict[str, object]) -> object:
        return NODE1

    def sets(self, params: dict[str, object]) -> object:
        return {"name": params["name"], "text": "done"}

    def shutdown(self, params: dict[str, object]) -> object:
        return {"text": "it ends"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Asked]:
    asked = Asked(tmp_path, state="primary")
    with answering(asked):
        yield asked


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "is_somebody_there", lambda: True)


def run(broker: Asked, *words: str, answer: str = "") -> Result:
    return CliRunner().invoke(admin, [*words, "-b", str(broker.path)], input=answer)


def done(broker: Asked) -> list[object]:
    """What it was asked to do, beside looks."""
    return [params.get("action", method) for method, params in broker.asked if params.get("action") != "read"
            and method != "status"]  # fmt: skip


GIVEN_UP = "amqp://b:5672 does not answer: what it alone has confirmed is given up."
DESTROYS = [
    (("queue", "delete", "q"), "Queue q has 3 messages.", "Delete the queue with them?", "delete"),
    (("queue", "purge", "q"), "Queue q has 3 messages.", "Drop those that nobody has acquired?", "purge"),
    (("promote", "--force"), GIVEN_UP, "Promote this broker all the same?", "promote"),
    (("shutdown", "--cluster"), "No broker of the cluster serves clients then.", "End all of them?", "shutdown"),
    (
        ("set", "delete", "s", "--lost"),
        "All that is in the queues of set s is given up.",
        "Delete it with them?",
        "delete",
    ),
    (
        ("set", "promote", "s", "b", "--force"),
        "What brokers other than b alone have confirmed in set s is given up.",
        "Have b lead it all the same?",
        "promote",
    ),
]


@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize(("words", "given_up", "question", "action"), DESTROYS)
def test_it_is_asked_and_a_no_does_nothing(
    broker: Asked, words: tuple[str, ...], given_up: str, question: str, action: str
) -> None:
    refused = run(broker, *words, answer="n\n")
    assert (refused.exit_code, f"{given_up} {question}" in refused.stderr, done(broker)) == (1, True, [])
    assert "nothing was done" in refused.stderr
    assert run(broker, *words, answer="y\n").exit_code == 0
    assert done(broker) == [action]


@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize(("words", "given_up", "question", "action"), DESTROYS)
def test_who_says_yes_is_told_and_not_asked(
    broker: Asked, words: tuple[str, ...], given_up: str, question: str, action: str
) -> None:
    told = run(broker, *words, "--yes")
    assert (told.exit_code, told.stderr, done(broker)) == (0, f"{given_up}\n", [action])


@pytest.mark.parametrize(("words", "given_up", "question", "action"), DESTROYS)
def test_a_script_is_not_asked_and_says_what_it_gives_up(
    broker: Asked, words: tuple[str, ...], given_up: str, question: str, action: str
) -> None:
    told = run(broker, *words)
    assert (told.exit_code, told.stderr, done(broker)) == (0, f"{given_up}\n", [action])


def test_a_script_does_what_it_is_to_do_where_it_may_not_look_and_says_so(broker: Asked) -> None:
    broker.may_read = False
    told = run(broker, "queue", "purge", "q")
    assert (told.exit_code, done(broker)) == (0, ["purge"])
    assert told.stderr == "What is given up is not known: queue q is not for you.\n"


@pytest.mark.usefixtures("at_a_terminal")
def test_nothing_is_asked_about_an_empty_queue(broker: Asked) -> None:
    broker.messages = 0
    assert run(broker, "queue", "delete", "q").exit_code == 0


def test_force_gives_up_what_others_are_ahead_with() -> None:
    own = {"name": "a", "generation": 3, "lsn": 100}
    ahead, behind = {"name": "b", "generation": 3, "lsn": 120}, {"name": "c", "generation": 2, "lsn": 500}
    assert what_force_gives_up(own, [own, ahead, behind]) == [
        "b is at generation 3, position 120, this broker at generation 3, position 100: what lies between is given up"
    ]
