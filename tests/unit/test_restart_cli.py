"""`qpid-ha restart` and `upgrade` where agents are asked in vain, or cannot be: what they say, and with which code."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qpid_ha_agent.cli import restart as restart_command
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.invocation import UNREACHABLE, CliFailure, Invocation
from qpid_ha_agent.planned_restart import RESTART_NOTE, RestartRequest, Stage, decode_request, encode_request
from qpid_ha_broker import __version__
from qpid_ha_broker.coordination.file import FileCoordinator

NAMES = ("n1", "n2", "n3")


def qpid_ha(*words: str) -> Result:
    return CliRunner().invoke(admin, list(words))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a cluster shares, and the configuration that this machine's tools find."""
    shared = tmp_path / "shared"
    shared.mkdir()
    configure(tmp_path, monkeypatch, f"file:{shared}")
    for name in ("TAKEN_WITHIN_S", "LOOK_S", "SETTLE_S"):
        monkeypatch.setattr(restart_command, name, 0.05)
    return shared


def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"name: n1\nha: {{cluster: true, coordinator: '{coordinator}'}}\n", encoding="utf-8")
    monkeypatch.setenv("QPID_HA_CONFIG", str(config))


class Brokers:
    """What a cluster of three says: n1 is primary. `rows` are its answers to `status`; `asked`: called each time."""

    def __init__(self) -> None:
        states = {"n1": "primary", "n2": "ready", "n3": "ready"}
        self.rows: list[dict[str, Any]] = [
            {"name": name, "address": f"amqp://{name}", "state": state, "members": list(NAMES), "min_in_sync": 1}
            for name, state in states.items()
        ]
        self.uptimes_s = dict.fromkeys(NAMES, 900.0)
        self.version = __version__
        self.asked: Callable[[], None] = lambda: None

    def call(self, method: str, **_params: object) -> object:
        self.asked()
        if method == "query":
            return [{"name": name, "version": self.version, "uptime_s": up} for name, up in self.uptimes_s.items()]
        return [dict(row) for row in self.rows] if method == "status" else []


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    brokers = Brokers()
    monkeypatch.setattr(Invocation, "call", lambda _self, method, **params: brokers.call(method, **params))
    return brokers


def request_in(directory: Path) -> RestartRequest | None:
    return decode_request(FileCoordinator(directory).read_note(RESTART_NOTE))


def answer(directory: Path, stage: Stage, text: str = "") -> None:
    """As an agent would, if there is a request that waits for that."""
    request = request_in(directory)
    if request is not None and request.stage in (Stage.ASKED, Stage.TAKEN):
        wanted = encode_request(request._replace(stage=stage, text=text))
        assert FileCoordinator(directory).replace_note(RESTART_NOTE, encode_request(request), wanted)


@pytest.mark.parametrize("words", [(), ("--all", "n1"), ("n1", "-b", "n1")])
def test_whom_is_a_question_of_names_or_all_and_no_broker_is_asked(directory: Path, words: tuple[str, ...]) -> None:
    assert qpid_ha("restart", *words).exit_code == 2


@pytest.mark.parametrize(
    ("coordinator", "advice"),
    [("none", "On n2: systemctl restart qpid-ha"), ("pacemaker", "crm node standby n2; crm node online n2")],
)
def test_where_there_are_no_agents_it_says_who_is_to_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coordinator: str, advice: str
) -> None:
    configure(tmp_path, monkeypatch, coordinator)
    done = qpid_ha("upgrade", "n2")
    assert done.exit_code == 1
    assert advice in done.stderr


def test_nobody_is_asked_while_the_coordinator_is_away(directory: Path, brokers: Brokers) -> None:
    directory.rmdir()
    done = qpid_ha("restart", "n2")
    assert done.exit_code == UNREACHABLE
    assert "coordinator does not answer" in done.stderr


def test_nothing_is_done_where_no_broker_answers(directory: Path, brokers: Brokers) -> None:
    def fail() -> None:
        raise CliFailure("no answer", UNREACHABLE)

    brokers.asked = fail
    assert qpid_ha("restart", "--all").exit_code == UNREACHABLE
    assert request_in(directory) is None


def test_a_request_that_no_agent_takes_is_taken_back(directory: Path, brokers: Brokers) -> None:
    done = qpid_ha("restart", "--all")
    assert done.exit_code == 1
    assert "the agent of n2 did not answer" in done.stderr
    assert "systemctl restart qpid-ha" in done.stderr
    assert request_in(directory) is None


def test_an_agent_that_refuses_ends_it_with_the_reason(
    directory: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers.version = "older"
    monkeypatch.setattr(restart_command, "TAKEN_WITHIN_S", 30.0)
    asked: list[RestartRequest] = []

    class Refusing(FileCoordinator):
        def read_note(self, name: str) -> str:
            request = decode_request(super().read_note(name))
            if request is not None and request.stage is Stage.ASKED:
                asked.append(request)
                answer(directory, Stage.REFUSED, "no room")
            return super().read_note(name)

    monkeypatch.setattr("qpid_ha_broker.coordination.registry.open_coordinator", lambda _: Refusing(directory))
    done = qpid_ha("upgrade", "--all")
    assert done.exit_code == 1
    assert "the agent of n2 refuses: no room. To go on: `qpid-ha upgrade --all`" in done.stderr
    assert [(request.node, request.version) for request in asked] == [("n2", __version__)]


def test_a_request_is_taken_back_when_another_broker_dies_before_the_agent_has_taken_it(
    directory: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_command, "TAKEN_WITHIN_S", 30.0)

    def die() -> None:
        request = request_in(directory)
        if request is not None:
            brokers.rows[2] |= {"state": "unreachable"}

    brokers.asked = die
    done = qpid_ha("restart", "n2")
    assert done.exit_code == 1
    assert "n2: the request is taken back: n3 does not answer" in done.stdout
    assert "n3 does not answer" in done.stderr
    assert request_in(directory) is None


@pytest.mark.parametrize("stage", [Stage.ASKED, Stage.TAKEN])
def test_a_second_one_at_the_same_time_is_refused(directory: Path, brokers: Brokers, stage: Stage) -> None:
    other = RestartRequest("1", "n3", "root on n9", datetime.now(UTC) + timedelta(minutes=1), stage=stage)
    assert FileCoordinator(directory).replace_note(RESTART_NOTE, "", encode_request(other))
    done = qpid_ha("restart", "n2", "--force")
    assert done.exit_code == 1
    assert f"a restart by root on n9, of n3, is {stage}" in done.stderr
    assert request_in(directory) == other


def test_who_comes_in_between_two_looks_is_heeded(directory: Path, brokers: Brokers) -> None:
    other = RestartRequest("1", "n3", "root on n9", datetime.now(UTC) + timedelta(minutes=1))

    def come_in_between() -> None:
        FileCoordinator(directory).replace_note(RESTART_NOTE, "", encode_request(other))

    brokers.asked = come_in_between
    done = qpid_ha("restart", "n2")
    assert done.exit_code == 1
    assert "of n3, is asked" in done.stderr
    assert request_in(directory) == other


def test_a_dry_run_says_the_order_and_asks_nobody(directory: Path, brokers: Brokers) -> None:
    done = qpid_ha("restart", "--all", "--dry-run", "--format", "json")
    assert done.exit_code == 0
    assert [step["node"] for step in json.loads(done.stdout)["steps"]] == ["n2", "n3", "n1"]
    brokers.rows[2]["state"] = "catchup"
    done = qpid_ha("restart", "--all", "--dry-run")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (1, "would restart:")
    assert "not now: n3 is catchup" in done.stderr
    assert request_in(directory) is None


def test_what_does_not_mend_itself_in_time_ends_the_wait(directory: Path, brokers: Brokers) -> None:
    brokers.rows[2]["state"] = "catchup"
    done = qpid_ha("restart", "n2", "--wait", "100ms")
    assert done.exit_code == 1
    assert "n3 is catchup after 0.1 s" in done.stderr


def test_a_broker_that_is_away_is_called_as_the_controller_calls_it(directory: Path, brokers: Brokers) -> None:
    brokers.rows[2] |= {"name": None, "state": "unreachable"}
    del brokers.uptimes_s["n3"]
    told = brokers.call

    def call(method: str, **params: object) -> object:
        return [{"name": "n3", "address": "amqp://n3"}] if method == "brokers" else told(method, **params)

    brokers.call = call  # type: ignore[method-assign]
    done = qpid_ha("restart", "n2")
    assert "n3 does not answer" in done.stderr
    assert "n3 does not answer" in qpid_ha("restart", "n3", "--force").stderr


def test_a_request_is_taken_back_by_a_command_that_fails_or_is_interrupted(directory: Path, brokers: Brokers) -> None:
    for error, code in ((CliFailure("no answer", 4), 4), (KeyboardInterrupt(), 1)):

        def fail(error: BaseException = error) -> None:
            if request_in(directory) is not None:
                raise error

        brokers.asked = fail
        done = qpid_ha("restart", "n2")
        assert (done.exit_code, request_in(directory)) == (code, None), done.output


def test_an_upgrade_of_brokers_that_run_the_version_does_nothing(directory: Path, brokers: Brokers) -> None:
    done = qpid_ha("upgrade", "--all")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"nothing to do; all run {__version__}")
