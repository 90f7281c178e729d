"""A broker that cannot go on says why, tells its clients, and ends with an exit code that a supervisor sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from qpid_ha_broker.server import command_line as program
from qpid_ha_broker.server.broker import Broker


class FailingBroker(Broker):
    async def start(self) -> None:
        await super().start()
        self.fail("refused by amqp://node1:5672: it belongs to another cluster: erase it")
        self.fail("a second reason changes nothing")


def test_the_process_ends_with_1_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "Broker", FailingBroker)
    monkeypatch.setenv("QPID_HA_CONFIG", str(tmp_path / "empty.yaml"))
    (tmp_path / "empty.yaml").touch()
    flags = ["--listen", "amqp://127.0.0.1:0", "--control-socket", str(tmp_path / "s"), "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(program.main, flags)
    assert result.exit_code == 1
    assert "qpidd: refused by amqp://node1:5672: it belongs to another cluster: erase it" in result.output
    assert not (tmp_path / "s").exists()
