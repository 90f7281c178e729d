"""The distribution for machines that only analyse: it runs without what only a broker or an agent needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plain_python import plain_environment, plain_python
from written_journal import WrittenJournal

MISSING = ("uvloop", "pyroute2", "psutil", "yaml", "_yaml")
USE = """
import json
import pkgutil
import sys
from importlib import import_module
from click.testing import CliRunner
import qpid_ha_broker
import qpid_ha_pipeline
from qpid_ha_pipeline.main import main
from qpid_ha_pipeline.session import session

for module in pkgutil.walk_packages(qpid_ha_pipeline.__path__, "qpid_ha_pipeline."):
    import_module(module.name)
rows = session().read.format("qpid-journal").load(sys.argv[1]).count()
done = CliRunner().invoke(main, ["stores", sys.argv[1], "--format", "json"])
print(json.dumps([qpid_ha_broker.__file__, rows, json.loads(done.stdout)["reasons"][0]["broker"]]))
"""


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, and with all libraries but those that only brokers and agents need."""
    python = plain_python(tmp_path_factory.mktemp("slim") / "environment", without=MISSING)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)
    return python


def test_a_job_and_a_table_need_nothing_that_only_brokers_need(python: Path, journal: WrittenJournal) -> None:
    journal.start(1)
    journal.declare("orders")
    environment = {name: value for name, value in plain_environment().items() if not name.startswith("PYSPARK_")}
    done = subprocess.run(
        [python, "-c", USE, str(journal.data_dir)],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    place, rows, broker = json.loads(done.stdout.splitlines()[-1])
    assert Path(place).is_relative_to(python.parent.parent)
    assert (rows, broker) == (2, "alpha")


def test_the_wheel_works_as_a_package_that_spark_ships_to_its_workers(wheel: Path, tmp_path: Path) -> None:
    """As an archive on the path of modules, which is what `--py-files` makes of it there."""
    package = tmp_path / "qpid_ha_pipeline.zip"  # Spark takes no other ending for a package
    package.symlink_to(wheel)
    code = (
        "import qpid_ha_broker.events.codec as codec, qpid_ha_pipeline.journal.records as records;"
        "import qpid_ha_pipeline.journal_source, qpid_ha_pipeline.amqp_source; print(codec.__file__, records.__file__)"
    )
    environment = {**plain_environment(), "PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert [path.startswith(f"{package}/") for path in done.stdout.split()] == [True, True]


def test_the_environment_lacks_what_it_should(python: Path) -> None:
    wanted = "import importlib.util, sys; print([name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
    done = subprocess.run([python, "-c", wanted, *MISSING, "pyspark"], capture_output=True, text=True, check=True)
    assert done.stdout == "['pyspark']\n"


def test_the_command_is_installed(python: Path) -> None:
    command = [str(python.parent / "qpid-ha-pipeline"), "--version"]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("qpid-ha-pipeline, version ")
