"""Transaction logs of a fleet to snapshots that brokers load, and to Parquet.

A snapshot is made by the broker's own `store.fold`, so it is the same, byte for byte; one task folds one store, because
what a log means depends on all that came before. Rows are made in as many tasks as there are segments.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.fold import FoldError, fold
from qpid_ha_broker.store.journal import Identity
from qpid_ha_broker.store.layout import SNAPSHOTS, segment_numbers, segment_path
from qpid_ha_broker.store.reading import header_of
from qpid_ha_broker.store.survey import survey
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.journal.remote import RemoteDisk, as_path, is_remote, joined
from qpid_ha_pipeline.journal.stores import Directory, find
from qpid_ha_pipeline.options import JournalOptions

from .overlay import OverlayDisk


class Consolidated(NamedTuple):
    """What came of one store. `why_not`: empty where there is a snapshot."""

    store: str
    broker: str
    snapshot: str
    messages: int
    bytes_read: int
    bytes_written: int
    last_lsn: int
    why_not: str


def snapshots(
    spark: SparkSession, paths: Sequence[str], output: str, resource_set: str = JournalOptions.set
) -> list[Consolidated]:
    """Fold all closed segments of each store; the snapshot comes to OUTPUT/BROKER/SET/snapshots/, or, where two stores
    are of brokers with one name, to OUTPUT/BROKER@PATH/...

    Copied into the store's own snapshots/ while its broker is down, it is what the broker begins with.
    """
    directories = find(tuple(paths), resource_set)
    labels = _labels(directories)

    def folded(found: Iterable[Directory]) -> Iterator[str]:
        for directory in found:
            yield json.dumps(fold_beside(directory, joined(as_path(output), labels[directory])))

    found = spark.sparkContext.parallelize(directories, max(1, len(directories))).mapPartitions(folded).collect()
    results = [Consolidated(*json.loads(text)) for text in found]
    damaged = [result for result in results if result.why_not.startswith(_DAMAGED)]
    if damaged:
        raise PipelineError(damaged[0].why_not.removeprefix(_DAMAGED))
    return results


def rows(spark: SparkSession, paths: Sequence[str], output: str, **options: str) -> int:
    """All events as Parquet below OUTPUT, one directory for each cluster, set and day; returns how many rows."""
    source = (
        spark.read.format("qpid-journal").option("paths", json.dumps(list(paths))).option("severalClusters", "true")
    )
    table = source.options(**options).load().withColumn("day", sql.to_date("written_at"))
    table.write.mode("overwrite").partitionBy("cluster", "set", "day").parquet(output)
    return int(spark.read.parquet(output).count())


def _labels(directories: Sequence[Directory]) -> dict[Directory, str]:
    """By store, the broker's name, with the path where that alone does not tell."""
    brokers = {}
    for directory in directories:
        numbers = segment_numbers(directory.disk)
        brokers[directory] = directory.parent.rpartition("/")[2]
        with suppress(StoreError, IndexError, FileNotFoundError):
            brokers[directory] = header_of(directory.disk, segment_path(numbers[-1])).broker or brokers[directory]
    names = list(brokers.values())
    return {
        directory: broker if names.count(broker) == 1 else f"{broker}@{_NO_NAME.sub('_', directory.path.strip('/'))}"
        for directory, broker in brokers.items()
    }


def fold_beside(store: Directory, output: str) -> Consolidated:
    """Fold one store without touching it; what was below `output` before is gone, if that is of this machine."""
    try:
        header, upto = _last_segment(store.disk)
        target = joined(output, header.set)
        with _workplace(target) as root:
            identity = Identity(header.cluster, header.broker, header.set)
            folded = fold(OverlayDisk(root, store.disk), upto, identity)
            if is_remote(target):
                RemoteDisk(target).put(folded.path, str(root / folded.path))
    except FoldError as error:
        return Consolidated(store.path, "", "", 0, 0, 0, 0, str(error))
    except StoreError as error:
        return Consolidated(store.path, "", "", 0, 0, 0, 0, f"{_DAMAGED}{store.path}: {error}")
    return Consolidated(
        store.path, header.broker, joined(target, folded.path), folded.messages, folded.bytes_read,
        folded.bytes_written, folded.last_lsn, "",
    )  # fmt: skip


@contextmanager
def _workplace(target: str) -> Iterator[Path]:
    """Where a snapshot is made: where it is to be, or beside, if that is not on this machine."""
    with ExitStack() as stack:
        if is_remote(target):
            root = Path(stack.enter_context(TemporaryDirectory(prefix="qpid-ha-")))
        else:
            root = Path(target)
            shutil.rmtree(root, ignore_errors=True)
        (root / SNAPSHOTS).mkdir(parents=True)
        yield root


_DAMAGED = "damaged: "
_NO_NAME = re.compile(r"[^\w.@-]+")
"""What does not go well in the name of a directory."""


def _last_segment(disk: Disk) -> tuple[FileHeader, int]:
    """The newest segment before which all is committed, and none of which is taken back later."""
    found = survey(disk)
    numbers = segment_numbers(disk)
    if len(numbers) < 2:
        raise FoldError("there is no closed segment yet")
    committed = [
        segment.number + 1
        for segment in found.segments[:-1]
        if segment.last_lsn <= found.committed_lsn
        and not any(
            each.place[0] > segment.number and each.last_lsn < segment.last_lsn for each in found.taken_back
        )
    ]  # fmt: skip
    if not committed:
        raise FoldError("no closed segment is committed as a whole yet")
    return header_of(disk, segment_path(committed[-1])), committed[-1]
