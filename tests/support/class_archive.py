"""A session that reads a journal, and leaves an archive of the classes that its Java has loaded for it.

More work in it makes an archive that takes longer to write than it gains: most classes are those of any session.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from qpid_ha_pipeline.session import session
from written_journal import WrittenJournal, amqp


def make(archive: Path) -> None:
    """Java writes it when it ends; this waits for that."""
    spark = session(
        "local[2]",
        spark_driver_extraJavaOptions=f"-XX:ArchiveClassesAtExit={archive}",
        spark_sql_shuffle_partitions="2",
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
    )
    process = SparkContext._gateway.proc  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory() as directory:
        _work(spark, Path(directory))
    spark.stop()
    process.stdin.close()
    process.wait()


def _work(spark: SparkSession, directory: Path) -> None:
    journal = WrittenJournal(directory / "alpha")
    journal.start(1)
    journal.enqueue(journal.declare("orders"), *[amqp("one", id="m1")] * 10)
    journal.roll()
    journal.declare("billing")
    store = str(journal.data_dir)
    rows = spark.read.format("qpid-journal").load(store).select("lsn", "event")
    rows.groupBy("event").count().collect()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
