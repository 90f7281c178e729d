"""A broker that cannot start says why in one line on stderr, and exits with 1 before anybody could connect."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from running_broker import RunningBroker

START_TIMEOUT_S = 20.0


CAN_BE_USED = "qpidd: the settings of node1 can be used"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def port_in_use() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def complaint(directory: Path, *arguments: str, config: str | None = None) -> str:
    """Start a broker that must not start; returns what it says."""
    command = [sys.executable, "-m", "qpid_ha_broker.server.main", "--control-socket", str(directory / "c.sock")]
    if config is not None:
        (directory / "qpid-ha.yaml").write_text(config, encoding="utf-8")
        command += ["--config", str(directory / "qpid-ha.yaml")]
    found = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    assert found.returncode == 1
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert line.startswith("qpidd: ")
    assert "Traceback" not in line
    return line


def test_an_unknown_key_is_named_with_the_nearest_known_one(directory: Path) -> None:
    line = complaint(directory, config="max-conections: 5\n")

    assert "max-conections" in line
    assert "did you mean max-connections?" in line


def test_a_file_that_is_not_there_is_named(directory: Path) -> None:
    missing = directory / "missing.yaml"

    assert str(missing) in complaint(directory, "--config", str(missing))


@pytest.mark.parametrize("content", [None, "this is no certificate\n"], ids=["missing", "no PEM"])
def test_a_certificate_that_cannot_be_used_is_named(directory: Path, content: str | None) -> None:
    certificate = directory / "certificate.pem"
    if content is not None:
        certificate.write_text(content, encoding="ascii")
    key = directory / "key.pem"
    key.touch(mode=0o600)
    key.write_text("neither is this a key\n", encoding="ascii")

    files = ("--set", f"tls.certificate={certificate}", "--set", f"tls.key={key}")
    line = complaint(directory, "--listen", "amqps://127.0.0.1:0", *files)

    assert "tls.certificate" in line
    assert str(certificate) in line


def test_a_port_in_use_is_named(directory: Path, port_in_use: int) -> None:
    line = complaint(directory, "--listen", f"amqp://127.0.0.1:{port_in_use}")

    assert f"127.0.0.1:{port_in_use}" in line
    assert "in use" in line
    assert not (directory / "c.sock").exists()


def test_an_address_of_another_machine_is_named(directory: Path) -> None:
    settings = ("--set", "sasl.allow-anonymous=true", "--set", "acl.rules=allow all all")
    line = complaint(directory, "--listen", "amqp://192.0.2.1:0", *settings)

    assert "192.0.2.1" in line


def test_an_audit_log_that_cannot_be_written_is_named_and_a_stop_by_signal_is_in_one_that_can(directory: Path) -> None:
    file = directory / "logs" / "audit.json"
    line = complaint(directory, "--listen", "amqp://127.0.0.1:0", "--set", f"audit.file={file}")
    assert line == f"qpidd: audit.file: cannot write {file}: No such file or directory"
    file.parent.mkdir()
    with RunningBroker({"audit.file": str(file)}) as broker:
        assert broker.stop() == 0
    (act,) = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert (act["channel"], act["act"], act["result"]) == ("signal", "stop", "done")


def test_a_configuration_can_be_checked_beside_the_broker_that_runs_with_it(directory: Path) -> None:
    """Before a restart: what the running one has open is no mistake, and nothing of it is touched."""
    settings = f"listen: [amqp://127.0.0.1:0]\ndata-dir: {directory / 'data'}\nname: node1\n"
    with RunningBroker({"data-dir": str(directory / "data")}):
        config = directory / "checked.yaml"
        config.write_text(settings, encoding="utf-8")
        command = [sys.executable, "-m", "qpid_ha_broker.server.main", "--check", "--config", str(config)]
        found = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        assert (found.returncode, found.stdout.splitlines()[0]) == (0, CAN_BE_USED), found.stderr
        assert "batches of messages are handled" in found.stdout
        assert found.stderr == ""
    assert "lisen" in complaint(directory, "--check", config=settings + "lisen: []\n")
    assert "did you mean spread?" in complaint(directory, "--check", config=settings + "ha.placement: spred\n")


def test_who_keeps_durable_messages_in_memory_alone_is_told_so_by_a_check_and_in_the_log(directory: Path) -> None:
    config = directory / "checked.yaml"
    config.write_text("listen: [amqp://127.0.0.1:0]\nname: node1\n", encoding="utf-8")
    command = [sys.executable, "-m", "qpid_ha_broker.server.main", "--check", "--config", str(config)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    assert (outcome.returncode, outcome.stdout.splitlines()[0]) == (0, CAN_BE_USED), outcome.stderr
    assert "because there is no data-dir: they are gone when this broker ends" in outcome.stderr
    with RunningBroker({}) as broker:
        assert broker.await_log("durable messages are kept in memory alone")
