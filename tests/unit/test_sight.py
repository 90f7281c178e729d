"""One look at a broker from outside: what it says, and what the process table says when it cannot be asked."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from limits import LIMIT_S
from qpid_ha_agent import sight
from qpid_ha_agent.sight import Life, look


def test_a_broker_that_makes_its_socket_again_was_not_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file was removed, and a stop or a demotion would kill who is silent."""
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rwb") as lines:
                request = json.loads(lines.readline())
                reply = {"jsonrpc": "2.0", "id": request["id"], "result": {"state": "primary"}}
                lines.write(json.dumps(reply).encode() + b"\n")

        def find_process(_path: Path) -> int:
            if not path.exists():
                server.bind(str(path))
                server.listen()
                threading.Thread(target=answer, daemon=True).start()
            return 4711

        monkeypatch.setattr(sight, "find_pid", find_process)
        monkeypatch.setattr(sight, "age_s", lambda _pid: 3600.0)
        assert look(path, LIMIT_S).is_primary


@pytest.mark.parametrize("age_s", [0.1, 3600.0])
def test_a_process_that_does_not_make_its_socket_again_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    monkeypatch.setattr(sight, "find_pid", lambda _path: 4711)
    monkeypatch.setattr(sight, "age_s", lambda _pid: age_s)
    seen = look(tmp_path / "a.sock", 0.05)
    assert (seen.life, "its process 4711 is there" in seen.how) == (Life.SILENT, True)


def test_without_a_socket_and_without_a_process_there_is_no_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "find_pid", lambda _path: 0)
    assert look(tmp_path / "a.sock", LIMIT_S).life is Life.GONE
