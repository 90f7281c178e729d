"""Transaction logs of a fleet to snapshots that brokers load, and to Parquet.

A snapshot is made by the broker's own `store.fold`, so it is the same, byte for byte; one task folds one store, because
what a log means depends on all that came before.

Rows are what a stream of the journals gives: each run is one query of Structured Streaming that ends with what is
there now. Its checkpoint holds how far each store was read, and the log of its file sink which files count, so that a
run adds what is new, and one that was interrupted is finished by the next.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from qpid_ha_broker.store.blocks import FileHeader
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import Disk, LocalDisk
from qpid_ha_broker.store.fold import FoldError, fold
from qpid_ha_broker.store.journal import Identity
from qpid_ha_broker.store.layout import SNAPSHOTS, segment_numbers, segment_path, snapshot_numbers, snapshot_path
from qpid_ha_broker.store.reading import header_of
from qpid_ha_broker.store.survey import survey
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.executors import on_an_executor, on_executors
from qpid_ha_pipeline.journal.remote import RemoteDisk, as_path, is_remote, joined
from qpid_ha_pipeline.journal.stores import Directory, find

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


def snapshots(spark: SparkSession, paths: Sequence[str], output: str, sets: Sequence[str] = ()) -> list[Consolidated]:
    """Fold all closed segments of each store; the snapshot comes to OUTPUT/BROKER/SET/snapshots/, or, where two stores
    are of brokers with one name, to OUTPUT/BROKER@PATH/...

    Copied into the store's own snapshots/ while its broker is down, it is what the broker begins with. It takes the
    place of older ones of the same store. Raises PipelineError for a store that is damaged, after all others were done.
    """

    def folded(labelled: tuple[Directory, str]) -> Consolidated:
        directory, label = labelled
        return fold_beside(directory, joined(as_path(output), label))

    labels = on_an_executor(spark, lambda: _labels(find(tuple(paths), tuple(sets))))
    results = on_executors(spark, folded, list(labels.items()))
    damaged = [result for result in results if result.why_not.startswith(_DAMAGED)]
    if damaged:
        raise PipelineError(damaged[0].why_not.removeprefix(_DAMAGED))
    return results


def rows(
    spark: SparkSession, paths: Sequence[str], output: str, sets: Sequence[str] = (), *, fail_on_data_loss: bool = True
) -> int:
    """Add the committed events that are new since the last run to the Parquet below OUTPUT; returns how many rows.

    There is a directory for each cluster, set and day. Raises PipelineError; what is there stays as it was.
    """
    check_rows(spark, output, is_new=False)
    reader = spark.readStream.format("qpid-journal").option("paths", json.dumps(list(paths)))
    reader = reader.option("failOnDataLoss", str(fail_on_data_loss).lower()).option("set", ",".join(sets))
    table = reader.load().withColumn("day", sql.to_date("written_at"))
    writer = table.writeStream.format("parquet").partitionBy(*_PARTITIONS)
    query = writer.option("checkpointLocation", joined(output, _CHECKPOINT)).trigger(availableNow=True).start(output)
    query.awaitTermination()
    return sum(progress.numInputRows for progress in query.recentProgress)


def good_rows(spark: SparkSession, paths: Sequence[str], output: str, sets: Sequence[str] = ()) -> int:
    """All events that can be read, and a row for each place that is damaged, as a new table; returns how many rows.

    A damaged journal has no position up to which all was read, so nothing can be added later.
    """
    reader = spark.read.format("qpid-journal").option("paths", json.dumps(list(paths))).option("mode", "permissive")
    table = (
        reader.option("severalClusters", "true")
        .option("set", ",".join(sets))
        .load()
        .withColumn("day", sql.to_date("written_at"))
    )
    check_rows(spark, output, is_new=True)
    table.write.mode("error").partitionBy(*_PARTITIONS).parquet(output)
    return int(spark.read.parquet(output).count())


_PARTITIONS = ("cluster", "set", "day")
_CHECKPOINT = "_checkpoint"
"""Files and directories that begin so are no data to readers of Parquet."""
_LOG = "_spark_metadata"
"""Which files count: Spark's file sink writes it, and Spark reads by it."""


def check_rows(spark: SparkSession, output: str, *, is_new: bool) -> None:
    """Raises PipelineError where no rows can come to OUTPUT.

    `is_new`: nothing may be there. Else no rows that no log knows: they would not count any more once there is one.
    """
    if not _is_there(spark, output):
        return
    if is_new:
        raise PipelineError(f"{output}: is there already, and to rows of a damaged journal none can be added")
    if not _is_there(spark, joined(output, _LOG)):
        raise PipelineError(
            f"{output}: was not made by runs that add to each other: move it away, or choose another --output"
        )


def _is_there(spark: SparkSession, path: str) -> bool:
    try:
        spark.read.format("binaryFile").load(path).limit(0).collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


def check_apart(spark: SparkSession, paths: Sequence[str], output: str, *, histories: Sequence[str] = ()) -> None:
    """Raises PipelineError where the output lies in a store or around one, or around a history of clients; and where a
    store lies in another one."""
    on_an_executor(spark, lambda: _check_apart(paths, output, histories))


def _check_apart(paths: Sequence[str], output: str, histories: Sequence[str]) -> None:
    stores = {_absolute(directory.parent): directory.parent for directory in find(tuple(paths))}
    where = _absolute(output)
    for history in histories:
        if _is_within(_absolute(history), where):
            raise PipelineError(f"--output {output}: the history {history} must not be in it: choose another")
    for absolute, store in stores.items():
        if _is_within(where, absolute) or _is_within(absolute, where):
            raise PipelineError(
                f"--output {output}: the store {store} must not be in it, nor around it: choose another"
            )
        for other in stores:
            if other != absolute and _is_within(absolute, other):
                raise PipelineError(f"{store} lies in {stores[other]}: no store of a broker does")


def _absolute(path: str) -> str:
    """Without symbolic links where that can be told; without a `/` at its end."""
    local = as_path(path)
    return local.rstrip("/") if is_remote(local) else str(Path(local).resolve())


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other.rstrip('/')}/")


def _labels(directories: Sequence[Directory]) -> dict[Directory, str]:
    """By store, the broker's name, with the path where that and the set do not tell."""
    owners: dict[Directory, tuple[str, str]] = {}
    for directory in directories:
        numbers = segment_numbers(directory.disk)
        above, _, name = directory.path.rstrip("/").rpartition("/")
        owners[directory] = above.rpartition("/")[2], name
        with suppress(StoreError, IndexError, FileNotFoundError):
            header = header_of(directory.disk, segment_path(numbers[-1]))
            owners[directory] = header.broker or owners[directory][0], header.set
    counts = Counter(owners.values())
    return {
        directory: broker if counts[owner] == 1 else f"{broker}@{_NO_NAME.sub('_', directory.path.strip('/'))}"
        for directory, owner in owners.items()
        for broker, _ in [owner]
    }


def fold_beside(store: Directory, output: str) -> Consolidated:
    """Fold one store without touching it, into OUTPUT/SET/snapshots/; what is there is replaced once it is made."""
    try:
        header, upto = _last_segment(store.disk)
        target = joined(output, header.set)
        identity = Identity(header.cluster, header.broker, header.set)
        with TemporaryDirectory(prefix=_UNFINISHED, dir=_workplace(target)) as work:
            disk = OverlayDisk(Path(work), store.disk)
            disk.make_directory(SNAPSHOTS)
            folded = fold(disk, upto, identity)
            _put(str(Path(work) / folded.path), target, folded.path)
    except (FoldError, _OtherStore) as error:
        return Consolidated(store.path, "", "", 0, 0, 0, 0, str(error))
    except StoreError as error:
        return Consolidated(store.path, "", "", 0, 0, 0, 0, f"{_DAMAGED}{store.path}: {error}")
    return Consolidated(
        store.path, header.broker, joined(target, folded.path), folded.messages, folded.bytes_read,
        folded.bytes_written, folded.last_lsn, "",
    )  # fmt: skip


class _OtherStore(Exception):
    """Where a snapshot should go there is one of another store; the text says so."""


_UNFINISHED = ".unfinished-"


def _workplace(target: str) -> Path | None:
    """Where a snapshot is made: on the disk that it will lie on, if that is of this machine."""
    if is_remote(target):
        return None
    path = Path(target)
    path.mkdir(parents=True, exist_ok=True)
    for left in path.glob(f"{_UNFINISHED}*"):  # a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    return path


def _put(made: str, target: str, name: str) -> None:
    """Give a snapshot its place: whole, or not at all; then remove older ones. Raises _OtherStore."""
    if is_remote(target):
        RemoteDisk(target).put(name, made)
        return
    disk = LocalDisk(Path(target))
    new = header_of(LocalDisk(Path(made).parent), Path(made).name)
    for number in snapshot_numbers(disk):
        with suppress(StoreError):
            old = header_of(disk, snapshot_path(number))
            if (old.cluster, old.broker, old.set) != (new.cluster, new.broker, new.set):
                raise _OtherStore(f"{disk.root / snapshot_path(number)} is of another store: choose another --output")
    place = disk.root / name
    place.parent.mkdir(exist_ok=True)
    Path(made).replace(place)
    disk.sync_directory(SNAPSHOTS)
    for number in snapshot_numbers(disk):
        if number < new.number:
            disk.remove(snapshot_path(number))


_DAMAGED = "damaged: "
_NO_NAME = re.compile(r"[^\w.@-]+")
"""What does not go well in the name of a directory."""


def _last_segment(disk: Disk) -> tuple[FileHeader, int]:
    """The newest segment before which all is committed, and none of which is taken back later."""
    surveyed = survey(disk)
    numbers = segment_numbers(disk)
    if len(numbers) < 2:
        raise FoldError("there is no closed segment yet")
    committed = [
        segment.number + 1
        for segment in surveyed.segments[:-1]
        if segment.last_lsn <= surveyed.committed_lsn
        and not any(
            truncation.place[0] > segment.number and truncation.last_lsn < segment.last_lsn
            for truncation in surveyed.taken_back
        )
    ]  # fmt: skip
    if not committed:
        raise FoldError("no closed segment is committed as a whole yet")
    return header_of(disk, segment_path(committed[-1])), committed[-1]
