"""An application installs the client without the broker, and runs the examples of docs/clients.md with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plain_python import plain_environment, plain_python
from running_broker import RunningBroker

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
MISSING = ("uvloop", "pyroute2", "psutil", "yaml", "_yaml", "click", "rich", "numpy", "pandas", "pyspark")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, built from a copy, and without what brokers, agents and analyses need."""
    directory = tmp_path_factory.mktemp("wheel")
    leave_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "client", directory / "client", ignore=leave_out)
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory)]
    subprocess.run([*wheel, str(directory / "client")], check=True, timeout=300)
    (found,) = directory.glob("*.whl")
    python = plain_python(directory / "environment", without=MISSING)
    install = ["--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(found)]
    subprocess.run([*pip, *install], check=True, timeout=120)
    return python


@pytest.mark.parametrize("name", ["exactly_once.py", "exactly_once_reactor.py"])
def test_an_example_runs_with_nothing_but_the_wheel_and_proton(python: Path, broker: RunningBroker, name: str) -> None:
    done = subprocess.run(
        [python, EXAMPLES / name, broker.url],
        env=plain_environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *numbers, guarantee = done.stdout.splitlines()
    assert numbers == [str(number) for number in range(10)]
    assert guarantee in ("guarantee: exactly-once", "guarantee: deduplicated")


@pytest.mark.parametrize("name", ["exactly_once.py", "exactly_once_reactor.py", "blocking.py"])
def test_an_example_is_short_and_stands_in_the_documentation(name: str) -> None:
    lines = [line for line in (EXAMPLES / name).read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(lines) <= 22
    assert f"examples/{name}" in (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
