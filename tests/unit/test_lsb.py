"""Stories about how long a promotion by an init script waits for brokers that have not come yet."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_broker import ControlBroker, answering
from qpid_ha_agent.cli.lsb import LsbCode, LsbStatus, run_action
from qpid_ha_broker.server.control.control import REFUSED, ControlError

WHY = "this broker holds no data, and amqp://c:5672 cannot be asked for any: start all brokers"
EMPTY: dict[str, object] = {"name": "node1", "state": "connecting", "generation": 0}
LED: dict[str, object] = {"name": "node2", "state": "ready", "generation": 3}
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
        return {**EMPTY, "state": "primary", "generation": 1}

    def status(self, params: dict[str, object]) -> object:
        if params != {"all": True}:
            return EMPTY
        return [EMPTY, self.others[min(self.promotions, len(self.others)) - 1]]

    @property
    def promotions(self) -> int:
        """How often it was asked to lead."""
        return [name for name, _params in self.asked].count("promote")


def start_primary(broker: StartingBroker, patience: str = "15s") -> int:
    """The exit code of `qpidd-primary start`."""
    config = broker.directory / "qpid-ha.yaml"
    config.write_text(
        f"name: node1\ncontrol-socket: {broker.path}\nha: {{cluster: true, coordinator: 'file:{broker.directory}'}}\n",
        encoding="utf-8",
    )
    environment = {"QPID_HA_CONFIG": str(config), "QPID_HA_AGENT_DIRECTORY": str(broker.directory)}
    with answering(broker):
        return run_action("primary", "start", environment | {"QPID_HA_FIRST_START_TIMEOUT": patience})


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
