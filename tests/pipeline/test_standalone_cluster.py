"""A real Spark master with two workers that have none of our code, and stores on S3, as docs/pipeline.md says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

from plain_python import plain_environment, plain_python
from written_journal import WrittenJournal, amqp

SPARK_HOME = Path(os.environ["SPARK_HOME"])
WORKERS = 2
START_S = 180.0
RUN_S = 900.0
"""On a slow machine the two tests take 126 s alone, and one of them took more than 300 s beside others."""
JOBS = """
import json
import sys
from click.testing import CliRunner
from qpid_ha_pipeline.main import main

done = [CliRunner().invoke(main, words) for words in json.loads(sys.argv[1])]
print(json.dumps([[each.exit_code, each.stdout, each.stderr] for each in done]))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """A server of S3: how fsspec and its library find it, by their own variables."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield {
            "FSSPEC_S3_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
    finally:
        server.stop()


@pytest.fixture(scope="module")
def environment(s3: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of driver and workers. Executors have the libraries, but none of our code."""
    configuration = tmp_path_factory.mktemp("conf")
    (configuration / "spark-defaults.conf").write_text(
        "spark.sql.shuffle.partitions 2\nspark.sql.codegen.wholeStage false\nspark.ui.enabled false\n"
    )
    python = plain_python(tmp_path_factory.mktemp("plain"), without=("uvloop", "pyroute2", "psutil"))
    return {
        **plain_environment(), **s3, "SPARK_CONF_DIR": str(configuration), "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
    }  # fmt: skip


@pytest.fixture(scope="module")
def master(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master with two workers of one core each."""
    directory, port = tmp_path_factory.mktemp("cluster"), free_port()
    url = f"spark://127.0.0.1:{port}"
    # What is configured is for the driver; with another directory on their class path, no archive fits them.
    daemons = {name: value for name, value in environment.items() if name != "SPARK_CONF_DIR"}
    deploy, web = "org.apache.spark.deploy", ("--webui-port", "0", "--host", "127.0.0.1")
    with ExitStack() as stack:
        log = stack.enter_context((directory / "log").open("wb"))

        def start(*words: str) -> None:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *words], env=daemons, stdout=log, stderr=log
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


def filled_journal(directory: Path) -> WrittenJournal:
    """Four hundred messages, of which none was consumed, in a closed segment, and an open one."""
    journal = WrittenJournal(directory / "alpha")
    journal.start(1)
    queue = journal.declare("orders")
    for turn in range(40):
        journal.enqueue(queue, *[amqp(f"turn {turn % 2} " + "x" * 500, id="m1")] * 10)
    journal.roll()
    journal.declare("billing")
    return journal


def test_the_jobs_bring_their_code_along_and_read_stores_on_s3(
    master: str, s3: dict[str, str], environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = filled_journal(tmp_path)
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    bucket = fsspec.filesystem(
        "s3", endpoint_url=s3["FSSPEC_S3_ENDPOINT_URL"], skip_instance_cache=True
    )  # fmt: skip
    bucket.mkdir("fleet")
    bucket.put(str(journal.data_dir), "fleet/alpha", recursive=True)
    history, local, remote = tmp_path / "history.json", str(journal.data_dir), "s3://fleet/alpha"
    line = {"op": "accepted", "id": "m1", "client": "p1", "queue": "orders", "number": 1, "at_ms": 1, "marked": None}
    history.write_text(json.dumps(line))
    jobs = [
        ["stores", remote],
        ["failovers", remote],
        ["consolidate", local, "--output", str(tmp_path / "out")],
        ["audit", local, "--history", str(history)],
    ]
    words = json.dumps([[*job, "--master", master, "--format", "json"] for job in jobs])
    done = subprocess.run(
        [sys.executable, "-c", JOBS, words], env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert [stderr for _, _, stderr in results] == [""] * len(jobs)
    stores, failovers, consolidated, audited = (json.loads(stdout) for _, stdout, _ in results)
    assert [reason["where"] for reason in stores["reasons"]] == [remote]
    assert [generation["primary"] for generation in failovers["clusters"][0]["generations"]] == ["alpha"]
    assert (consolidated["snapshots"][0]["messages"], consolidated["rows"]) == (400, 403)
    assert audited["confirmed"] == 1
