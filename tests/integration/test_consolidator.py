"""The consolidator as the process that a broker starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kept_core import KeptCore
from model_support import message
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.layout import snapshot_index_path, snapshot_path


def test_the_consolidator_is_a_process_that_makes_one_file(tmp_path: Path) -> None:
    core = KeptCore(LocalDisk(tmp_path))
    core.publish(core.queue("q"), *(message(str(each), durable=True) for each in range(10)))
    core.keep()
    number = core.journal.roll()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    done = consolidate(tmp_path, number)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["path"], told["messages"]) == (snapshot_path(number), 10)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after.keys() - before.keys() == {tmp_path / told["path"], tmp_path / snapshot_index_path(number)}
    assert {path: after[path] for path in before} == before

    again = consolidate(tmp_path, number)
    assert (again.returncode, again.stdout) == (1, "")
    assert "there already" in again.stderr
    assert consolidate(tmp_path, 77).returncode == 2


def consolidate(directory: Path, upto: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qpid_ha_broker.store.consolidator", str(directory), "--upto", str(upto)]
    broker = str(Path(__file__).resolve().parents[2] / "broker")
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "PYTHONPATH": broker}
    )
