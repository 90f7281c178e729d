"""The wheel on a real Spark master with two workers, by spark-submit, as docs/pipeline.md says."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from written_journal import WrittenJournal, amqp

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(os.environ["SPARK_HOME"])
WORKERS = 2
START_S = 180.0
JOB = """
import sys
from pyspark.sql import SparkSession
import qpid_ha_pipeline

spark = SparkSession.builder.getOrCreate()
qpid_ha_pipeline.register(spark)
journal = spark.read.format("qpid-journal").option("partitionBytes", "65536").load(sys.argv[1])
rows = journal.where("event = 'enqueued'").groupBy("queue", "body_text").count().collect()

def where(_):
    import qpid_ha_broker.events.codec as codec
    import qpid_ha_pipeline.journal.records as records
    import os
    yield os.getcwd(), codec.__file__, records.__file__

places = set(spark.sparkContext.parallelize(range(40), 40).mapPartitions(where).collect())
print("ROWS", sorted(tuple(row) for row in rows))
print("MASTER", spark.sparkContext.master)
print("WORKERS", len({root for root, *_ in places}))
print("WHEEL", all("qpid_ha.zip" in path for _, *paths in places for path in paths))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {
        **os.environ, "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
    }  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of this checkout. Built from a copy, because building leaves things behind."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    for name in filter(None, files):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (directory / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / "source" / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*command, str(directory), str(directory / "source")], check=True, timeout=300)
    (found,) = directory.glob("*.whl")
    return found.rename(directory / "qpid_ha.zip")  # Spark takes no other ending for a package


@pytest.fixture(scope="module")
def master(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master with two workers of one core each."""
    directory, port = tmp_path_factory.mktemp("cluster"), free_port()
    url = f"spark://127.0.0.1:{port}"
    deploy, web = "org.apache.spark.deploy", ("--webui-port", "0", "--host", "127.0.0.1")
    with ExitStack() as stack:
        log = stack.enter_context((directory / "log").open("wb"))

        def start(*words: str) -> None:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *words], env=environment, stdout=log, stderr=log
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)

        start(f"{deploy}.master.Master", "--port", str(port), *web)
        for number in range(WORKERS):
            work = str(directory / f"worker{number}")
            start(f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", work, *web, url)
        deadline = time.monotonic() + START_S
        while (directory / "log").read_text(errors="replace").count("Registering worker") < WORKERS:
            assert time.monotonic() < deadline, (directory / "log").read_text(errors="replace")[-3000:]
            time.sleep(0.2)
        yield url


def test_the_wheel_runs_on_a_master_with_two_workers(
    master: str, wheel: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    journal = WrittenJournal(tmp_path / "alpha")
    queue = journal.declare("orders")
    for turn in range(40):
        journal.enqueue(queue, *[amqp(f"turn {turn % 2} " + "x" * 500)] * 10)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    settings = {
        "spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false",
        "spark.cores.max": str(WORKERS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master, "--py-files", str(wheel), *words]
    done = subprocess.run(
        [*submit, str(job), str(journal.data_dir)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ")[0].isupper())
    rows = eval(said["ROWS"])
    assert [(queue, text[:6], count) for queue, text, count in rows] == [
        ("orders", "turn 0", 200),
        ("orders", "turn 1", 200),
    ]
    assert (said["MASTER"], said["WORKERS"], said["WHEEL"]) == (master, str(WORKERS), "True")
