"""Source, sink, stream and job through a Spark Connect server that has none of our code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plain_python import plain_environment, plain_python
from running_broker import RunningBroker
from written_journal import WrittenJournal, amqp

SPARK_HOME = Path(os.environ["SPARK_HOME"])
START_S = 120.0
RUN_S = 300.0
CLIENT = """
import json
import sys
from click.testing import CliRunner
from qpid_ha_pipeline.main import main
from qpid_ha_pipeline.session import session

data_dir, broker, output = sys.argv[1:]
spark = session()
messages = spark.read.format("qpid-journal").load(data_dir).where("event = 'enqueued'")
target = {"brokers": broker, "target": "copy"}
messages.select("body").write.format("qpid-amqp").options(**target).mode("append").save()
copied = spark.read.format("qpid-amqp").options(brokers=broker, queue="copy").load()
bodies = sorted(row.body_text for row in copied.collect())
done = CliRunner().invoke(main, ["consolidate", data_dir, "--output", output, "--format", "json"])
lost = CliRunner().invoke(main, ["stores", data_dir + "/nowhere"])
print(json.dumps([type(spark).__module__, bodies, done.exit_code, done.output, lost.stderr]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Connect server with two cores. Its Python has the libraries, but none of our code."""
    directory = tmp_path_factory.mktemp("connect")
    python = str(plain_python(directory / "plain"))
    log_file = directory / "log"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false", "spark.log.level": "INFO",
    }  # fmt: skip
    words = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", *words,
                "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
            ],
            env={**plain_environment(), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        started = "Spark Connect server started at: "
        deadline = time.monotonic() + START_S
        while started not in (text := log_file.read_text(errors="replace")):
            assert time.monotonic() < deadline, text[-3000:]
            assert process.poll() is None, text[-3000:]
            time.sleep(0.2)
        yield f"sc://{text.split(started)[1].split()[0]}"
    finally:
        process.terminate()
        process.wait(30)


def test_a_connect_server_gets_the_code_from_its_client(
    server: str, broker: RunningBroker, journal: WrittenJournal, tmp_path: Path
) -> None:
    queue = journal.declare("orders")
    journal.enqueue(queue, *[amqp(body) for body in ("one", "two", "three")])
    journal.roll()
    journal.declare("copy")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(journal.data_dir), broker.url, str(tmp_path / "out")],
        env={**plain_environment(), "SPARK_REMOTE": server}, capture_output=True, text=True, timeout=RUN_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    module, bodies, code, output, lost = json.loads(done.stdout.splitlines()[-1])
    assert module == "pyspark.sql.connect.session"
    assert bodies == ["one", "three", "two"]
    assert (code, json.loads(output)["rows"]) == (0, 5)
    assert json.loads(output)["snapshots"][0]["messages"] == 3
    nowhere = f"{journal.data_dir}/nowhere: there is no such directory on this machine"
    assert lost == f"qpid-ha-pipeline: {nowhere}\n"
