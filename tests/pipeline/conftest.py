"""One Spark session for all tests here: starting one takes longer than most of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import spark_home
import warm_daemon
from blocking_client import BlockingClient, Management
from forked_brokers import have_brokers_forked
from live_query import numbers, publish
from qpid_ha_pipeline.session import session
from running_broker import RunningBroker
from written_journal import WrittenJournal

ROOT = Path(__file__).parents[2]

# A JVM lives here for seconds: compiling its code as well as can be takes longer than it gains. Every `java` reads it.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
warm_daemon.have_every_session_use_it(os.environ)
have_brokers_forked()

# Spark's own scripts read it, and so does every session, here and in what a test starts.
if "SPARK_HOME" not in os.environ:
    os.environ["SPARK_HOME"] = str(spark_home.spark_home())


@pytest.fixture(scope="session", autouse=True)
def class_archive() -> None:
    """For every Java that a test here starts."""
    spark_home.use_class_archive(os.environ)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two local cores; as little of everything else as there can be."""
    found = session(
        "local[2]",
        spark_sql_shuffle_partitions="2",
        spark_default_parallelism="2",
        spark_sql_codegen_wholeStage="false",
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
    )
    yield found
    found.stop()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution `qpid-ha-pipeline`. Built from a copy, because building leaves things behind."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    leave_out = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "_kernel.*")
    for home in ("broker", "config", "kernel", "pipeline"):
        shutil.copytree(ROOT / home, source / home, ignore=leave_out)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory)]
    subprocess.run([*command, str(source / "pipeline")], check=True, timeout=300)
    (found,) = directory.glob("*.whl")
    return found


@pytest.fixture
def journal(tmp_path: Path) -> WrittenJournal:
    """Of the broker alpha; nothing is in it yet."""
    return WrittenJournal(tmp_path / "alpha")


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    """One for all that break nothing."""
    with RunningBroker() as running:
        yield running


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[BlockingClient]:
    """An ordinary client."""
    with BlockingClient(broker.url) as found:
        yield found


@pytest.fixture
def management(client: BlockingClient) -> Management:
    """Of the broker."""
    return Management(client)


@pytest.fixture
def queue(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    """Of this test's own, with ten messages."""
    name = str(request.node.name)
    publish(broker.url, name, *numbers(10))
    return name
