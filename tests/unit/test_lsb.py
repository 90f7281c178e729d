"""What the init scripts answer: the exit code of each situation, and how long a promotion waits for brokers that have
not come yet. The broker is a control socket; what takes a process is in tests/integration/test_rgmanager_scripts.py.
"""

from __future__ import annotations

import importlib
import os
import pwd
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_broker import ControlBroker, answering
from qpid_ha_agent import actions
from qpid_ha_agent.cli.lsb import KINDS, LsbCode, LsbStatus, run_action
from qpid_ha_agent.service import Service
from qpid_ha_agent.started_by import StartedBy, StartedByFile
from qpid_ha_broker.server.control.control import REFUSED, ControlError

WHY = "this broker holds no data, and amqp://c:5672 cannot be asked for any: start all brokers"
EMPTY: dict[str, object] = {"name": "node1", "state": "connecting", "generation": 0}
LED: dict[str, object] = {"name": "node2", "state": "ready", "generation": 3}
USER_HERE = pwd.getpwuid(os.geteuid()).pw_name
MISSING: dict[str, object] = {"name": None, "address": "amqp://c:5672", "state": "unreachable"}


@dataclass
class StartingBroker(ControlBroker):
    """It refuses to be promoted so many times; `others`: who else is seen after each refusal, the last for good."""

    state: str = "connecting"
    refusals: int = 0
    others: tuple[dict[str, object], ...] = ()

    def promote(self, params: dict[str, object]) -> object:
        if self.promotions <= self.refusals:
            raise ControlError(REFUSED, WHY)
        self.state = "primary"
        return {**EMPTY, "state": "primary", "generation": 1}

    def demote(self, params: dict[str, object]) -> object:
        self.state = "ready"
        return {**EMPTY, "state": "ready"}

    def status(self, params: dict[str, object]) -> object:
        if params != {"all": True}:
            return {**EMPTY, "state": self.state}
        return [EMPTY, self.others[min(self.promotions, len(self.others)) - 1]]

    @property
    def promotions(self) -> int:
        """How often it was asked to lead."""
        return [name for name, _params in self.asked].count("promote")


def configured(directory: Path) -> dict[str, str]:
    """What a script is given on the node of the broker in `directory`; a silence of 0.2 s is a hang."""
    config = directory / "qpid-ha.yaml"
    config.write_text(
        f"name: node1\ncontrol-socket: {directory / 'node1.sock'}\n"
        f"ha: {{cluster: true, coordinator: 'file:{directory}'}}\n",
        encoding="utf-8",
    )
    timeouts = {"QPID_HA_HANG_TIMEOUT": "200ms", "QPID_HA_FIRST_START_TIMEOUT": "200ms"}
    return {"QPID_HA_CONFIG": str(config), "QPID_HA_AGENT_DIRECTORY": str(directory), **timeouts}


def start_primary(broker: StartingBroker, patience: str = "15s") -> int:
    """The exit code of `qpidd-primary start`."""
    with answering(broker):
        environment = configured(broker.directory) | {"QPID_HA_FIRST_START_TIMEOUT": patience}
        return run_action("primary", "start", environment)


def test_a_first_start_waits_until_the_last_broker_has_come(tmp_path: Path) -> None:
    broker = StartingBroker(tmp_path, refusals=2, others=(MISSING, MISSING, EMPTY))
    assert start_primary(broker) == LsbCode.DONE
    assert broker.promotions == 3


def test_one_that_came_between_the_refusal_and_the_look_is_waited_for_as_well(tmp_path: Path) -> None:
    """The refusal was about a broker that answers by the time somebody looks who is missing."""
    broker = StartingBroker(tmp_path, refusals=1, others=(EMPTY,))
    assert start_primary(broker) == LsbCode.DONE
    assert broker.promotions == 2


def test_a_refusal_when_everybody_has_come_is_final(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = StartingBroker(tmp_path, refusals=9, others=(MISSING, EMPTY))
    assert start_primary(broker) == LsbCode.FAILED
    assert broker.promotions == 3
    assert WHY in capsys.readouterr().err


def test_a_cluster_that_has_lived_is_not_waited_for(tmp_path: Path) -> None:
    broker = StartingBroker(tmp_path, refusals=9, others=(LED,))
    assert start_primary(broker) == LsbCode.FAILED
    assert broker.promotions == 1


def test_who_never_comes_is_waited_for_as_long_as_configured(tmp_path: Path) -> None:
    broker = StartingBroker(tmp_path, refusals=99, others=(MISSING,))
    assert start_primary(broker, patience="2s") == LsbCode.FAILED
    assert 1 < broker.promotions < 99


def test_after_a_loss_of_all_power_brokers_that_kept_a_store_are_waited_for_as_at_a_first_start(tmp_path: Path) -> None:
    restored = {**EMPTY, "generation": 3, "restored": "dirty"}
    broker = StartingBroker(tmp_path, refusals=1, others=(restored,))
    assert start_primary(broker) == LsbCode.DONE
    assert broker.promotions == 2


# --- exit codes


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_broker_was_started_a_stop_has_nothing_to_do_and_status_says_so(tmp_path: Path, kind: str) -> None:
    environment = configured(tmp_path)
    assert run_action(kind, "stop", environment) == LsbCode.DONE
    assert run_action(kind, "status", environment) == LsbStatus.RUNS_NOT
    assert run_action(kind, "try-restart", environment) == LsbCode.DONE


def test_a_broker_that_is_gone_though_nobody_stopped_it_has_died(tmp_path: Path) -> None:
    environment = configured(tmp_path)
    started_by(environment).write(StartedBy("", str(tmp_path / "node1.sock")))
    assert run_action("service", "status", environment) == LsbStatus.DIED
    assert run_action("primary", "status", environment) == LsbStatus.RUNS_NOT
    assert run_action("service", "stop", environment) == LsbCode.DONE
    assert run_action("service", "status", environment) == LsbStatus.RUNS_NOT


def test_a_role_is_taken_and_given_up_and_each_may_be_repeated(tmp_path: Path) -> None:
    environment, broker = configured(tmp_path), StartingBroker(tmp_path)
    with answering(broker):
        assert run_action("primary", "status", environment) == LsbStatus.RUNS_NOT, "it is a backup"
        for _ in range(2):
            assert run_action("primary", "start", environment) == LsbCode.DONE
            assert run_action("primary", "status", environment) == LsbStatus.RUNS
        for _ in range(2):
            assert run_action("primary", "stop", environment) == LsbCode.DONE
            assert run_action("primary", "status", environment) == LsbStatus.RUNS_NOT
        assert run_action("service", "status", environment) == LsbStatus.RUNS
    names = [name for name, _params in broker.asked]
    assert (names.count("promote"), names.count("demote")) == (1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_silent_broker_nobody_knows(tmp_path: Path, kind: str) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "node1.sock"))
        mute.listen()
        assert run_action(kind, "status", configured(tmp_path)) == LsbStatus.UNKNOWN


def test_a_promotion_without_a_broker_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_action("primary", "start", configured(tmp_path)) == LsbCode.NOT_RUNNING
    assert capsys.readouterr().err.startswith("qpidd-primary: there is no broker to promote: ")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", ["reload", "jump"])
def test_an_action_that_there_is_not_has_a_code_of_its_own(tmp_path: Path, kind: str, action: str) -> None:
    assert run_action(kind, action, configured(tmp_path)) == LsbCode.UNIMPLEMENTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_without_a_configuration_lets_the_service_go_elsewhere(tmp_path: Path, kind: str) -> None:
    """A start that fails is followed by a stop; were that to fail too, the service would be `failed` for good."""
    nowhere = configured(tmp_path) | {"QPID_HA_CONFIG": "/nonexistent/qpid-ha.yaml"}
    assert run_action(kind, "start", nowhere) == LsbCode.NOT_CONFIGURED
    assert run_action(kind, "stop", nowhere) == LsbCode.DONE
    assert run_action(kind, "status", nowhere) == LsbStatus.UNKNOWN


def test_nonsense_in_the_settings_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = configured(tmp_path) | {"QPID_HA_START_TIMEOUT": "soon"}
    assert run_action("service", "start", environment) == LsbCode.NOT_CONFIGURED
    assert "QPID_HA_START_TIMEOUT=soon" in capsys.readouterr().err


# --- whose broker it is


@pytest.mark.parametrize(
    ("asking", "stops"), [("qpidd-node2", False), ("qpidd-node1", True), ("", True)], ids=["another", "its own", "hand"]
)
def test_a_broker_is_stopped_for_the_service_that_started_it_and_for_an_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asking: str, stops: bool
) -> None:
    """rgmanager gives each node the stop of every service, also of one that is new in its configuration."""
    stopped: list[Path] = []

    def stop(service: Service, timeout_s: float) -> str:
        stopped.append(service.control_socket)
        return "it ended"

    monkeypatch.setattr(actions, "stop", stop)
    environment, socket_path = configured(tmp_path), tmp_path / "node1.sock"
    started_by(environment).write(StartedBy("qpidd-node1", str(socket_path)))
    assert run_action("service", "stop", environment | {"OCF_RESKEY_service_name": asking}) == LsbCode.DONE
    assert stopped == ([socket_path] if stops else [])
    assert (started_by(environment).read() is None) == stops


def test_a_primary_steps_down_before_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is ended as the primary waits for clients that may never hear of it: their address goes, too."""
    environment, broker = configured(tmp_path), StartingBroker(tmp_path, state="primary")
    ended_as: list[str] = []

    def stop(service: Service, timeout_s: float) -> str:
        ended_as.append(broker.state)
        return "it ended"

    monkeypatch.setattr(actions, "stop", stop)
    with answering(broker):
        assert run_action("service", "stop", environment) == LsbCode.DONE
    assert ended_as == ["ready"]


def test_a_broker_that_was_started_by_hand_belongs_to_the_service_that_starts_it_next(tmp_path: Path) -> None:
    environment, broker = configured(tmp_path), StartingBroker(tmp_path)
    started_by(environment).write(StartedBy("", str(broker.path)))
    with answering(broker):
        start = environment | {"OCF_RESKEY_service_name": "qpidd-node1", "QPID_HA_USER": USER_HERE}
        assert run_action("service", "start", start) == LsbCode.DONE
    owner = started_by(environment).read()
    assert owner is not None
    assert owner.service == "qpidd-node1"


def started_by(environment: dict[str, str]) -> StartedByFile:
    return StartedByFile(Path(environment["QPID_HA_CONFIG"]), Path(environment["QPID_HA_AGENT_DIRECTORY"]))


# --- who may


NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Files are opened as that user; what was imported before stays."""
    importlib.import_module("psutil")  # which a real user's installation would let him read
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="SKIPPED FOR LACK OF ROOT: only root can do something as somebody else")
@pytest.mark.parametrize("config_mode", [0o600, 0o644], ids=["secret configuration", "public configuration"])
@pytest.mark.parametrize("kind", ["service", "primary"])
@pytest.mark.parametrize("action", ["start", "stop", "restart", "status"])
def test_whoever_may_not_administer_the_broker_is_told_so(kind: str, action: str, config_mode: int) -> None:
    """One who may not even look would else be told that nothing runs here, and that it was stopped."""
    with tempfile.TemporaryDirectory(prefix="qpid-ha-test-") as place:
        Path(place).chmod(0o755)
        broker = StartingBroker(Path(place))
        config = Path(place, "qpid-ha.yaml")
        config.write_text(f"name: node1\ncontrol-socket: {broker.path}\nha.cluster: true\n", encoding="utf-8")
        config.chmod(config_mode)
        environment = {"QPID_HA_CONFIG": str(config), "QPID_HA_AGENT_DIRECTORY": f"{place}/agent"}
        with answering(broker):
            Path(broker.path).chmod(0o600)
            with as_nobody():
                code = run_action(kind, action, environment | {"QPID_HA_HANG_TIMEOUT": "200ms"})
    assert code == (LsbStatus.UNKNOWN if action == "status" else LsbCode.NOT_ALLOWED)
    assert broker.asked == []
